//! The small breaker on the store itself.
//!
//! A dead or hung Redis must cost a few exchanges 20 ms each and later ones nothing. Exchanges therefore
//! never find out whether it is back: after [`FAILURES`] failures in a row they stop asking, and one
//! background task tries, with growing, jittered pauses, until a whole admission works again.
//!
//! Pure: the caller says what time it is and draws the jitter.

use std::time::Duration;

use tokio::time::Instant;

/// Failures in a row that take the store out of the path.
pub(crate) const FAILURES: u32 = 3;
/// The first pause between two tries, and the longest.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(100);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreState {
    /// Exchanges ask it.
    Up,
    /// Exchanges don't; it is tried again at `at`.
    Down { since: Instant, at: Instant },
}

#[derive(Debug, Clone)]
pub(crate) struct StoreBreaker {
    state: StoreState,
    failures: u32,
    tries: u32,
}

impl StoreBreaker {
    /// A store that has not been reached yet: the first try is due at once.
    #[must_use]
    pub(crate) fn new(now: Instant) -> Self {
        Self { state: StoreState::Down { since: now, at: now }, failures: 0, tries: 0 }
    }

    #[must_use]
    pub(crate) fn state(&self) -> StoreState {
        self.state
    }

    /// Whether an exchange may ask the store.
    #[must_use]
    pub(crate) fn is_up(&self) -> bool {
        self.state == StoreState::Up
    }

    /// An exchange was answered.
    pub(crate) fn answered(&mut self) {
        self.failures = 0;
    }

    /// An exchange was not; says whether this took the store out of the path. Without a connection there is
    /// nothing to wait for: `disconnected` does so at once. `draw` is in [0, 1).
    pub(crate) fn failed(&mut self, now: Instant, disconnected: bool, draw: f64) -> bool {
        self.failures = self.failures.saturating_add(1);
        if !self.is_up() || (self.failures < FAILURES && !disconnected) {
            return false;
        }
        self.tries = 0;
        self.state = StoreState::Down { since: now, at: now + self.pause(draw) };
        true
    }

    /// The background try worked; says whether the store was out of the path.
    pub(crate) fn recovered(&mut self) -> bool {
        let was_down = !self.is_up();
        *self = Self { state: StoreState::Up, failures: 0, tries: 0 };
        was_down
    }

    /// The background try did not. `draw` is in [0, 1).
    pub(crate) fn still_down(&mut self, now: Instant, draw: f64) {
        if let StoreState::Down { since, .. } = self.state {
            self.tries = self.tries.saturating_add(1);
            self.state = StoreState::Down { since, at: now + self.pause(draw) };
        }
    }

    /// Doubles per try up to the longest; the jitter takes off up to half, so that agents don't come back
    /// in step.
    fn pause(&self, draw: f64) -> Duration {
        let full = FIRST_PAUSE.saturating_mul(1 << self.tries.min(8)).min(LONGEST_PAUSE);
        full.mul_f64(1.0 - draw.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    fn up() -> (StoreBreaker, Instant) {
        let now = clock::now();
        let mut breaker = StoreBreaker::new(now);
        assert!(breaker.recovered());
        (breaker, now)
    }

    #[test]
    fn three_failures_in_a_row_take_it_out() {
        let (mut breaker, now) = up();
        assert!(!breaker.failed(now, false, 0.0));
        assert!(!breaker.failed(now, false, 0.0));
        breaker.answered();
        assert!(!breaker.failed(now, false, 0.0));
        assert!(!breaker.failed(now, false, 0.0));
        assert!(breaker.failed(now, false, 0.0));
        assert!(!breaker.is_up());
        assert!(!breaker.failed(now, false, 0.0), "it is told once");
    }

    #[test]
    fn a_lost_connection_takes_it_out_at_once() {
        let (mut breaker, now) = up();
        assert!(breaker.failed(now, true, 0.0));
        assert!(!breaker.is_up());
    }

    #[test]
    fn the_pauses_grow_to_a_cap_and_jitter_halves_them_at_most() {
        let (mut breaker, now) = up();
        for _ in 0..FAILURES {
            breaker.failed(now, false, 0.0);
        }
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let StoreState::Down { at, .. } = breaker.state() else { unreachable!("it is down") };
            pauses.push(at - now);
            breaker.still_down(now, 0.0);
        }
        assert_eq!(pauses[0], FIRST_PAUSE);
        assert_eq!(pauses[1], FIRST_PAUSE * 2);
        assert_eq!(pauses[7], LONGEST_PAUSE);
        breaker.still_down(now, 1.0);
        let StoreState::Down { at, .. } = breaker.state() else { unreachable!("it is down") };
        assert_eq!(at - now, LONGEST_PAUSE / 2);
    }

    #[test]
    fn only_the_background_try_brings_it_back() {
        let (mut breaker, now) = up();
        for _ in 0..FAILURES {
            breaker.failed(now, false, 0.5);
        }
        breaker.answered();
        assert!(!breaker.is_up());
        assert!(breaker.recovered());
        assert!(breaker.is_up());
        assert!(!breaker.recovered());
    }
}
