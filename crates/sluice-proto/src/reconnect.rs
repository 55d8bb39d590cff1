//! How long an agent waits before it connects to the control plane again.
//!
//! Exponential with equal jitter: half of the pause is fixed so that a thousand agents whose controller just
//! restarted do not arrive within its first milliseconds, the other half is drawn so that they do not
//! arrive together.

use std::time::Duration;

use sluice_core::admission::Draw;

const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(30);

/// The pause before the next attempt. `failures`: attempts in a row that brought no snapshot; a stream that
/// brought one starts again at zero.
#[must_use]
pub fn pause(failures: u32, draw: Draw) -> Duration {
    let whole = FIRST.saturating_mul(1 << failures.min(16)).min(LONGEST);
    whole / 2 + (whole / 2).mul_f64(f64::from(draw.get()) / f64::from(Draw::BOUND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_bound_and_are_never_shorter_than_half() {
        for (failures, whole_ms) in [(0, 250), (1, 500), (3, 2_000), (7, 30_000), (u32::MAX, 30_000)] {
            let shortest = pause(failures, Draw::new(0));
            let longest = pause(failures, Draw::new(Draw::BOUND - 1));
            assert_eq!(shortest, Duration::from_millis(whole_ms / 2), "{failures}");
            assert!(longest > shortest && longest <= Duration::from_millis(whole_ms), "{failures}");
        }
    }
}
