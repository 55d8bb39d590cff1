//! How fast Events are written: a fleet of breakers that open at once, or a thousand routes without their Secrets, must
//! not be felt by the API server.

use std::time::Duration;

use tokio::time::Instant;

/// Written at once after a quiet time.
const BURST: u32 = 50;
/// Between two writes after that.
const EVERY: Duration = Duration::from_millis(100);

/// A bucket that fills by itself.
#[derive(Debug)]
pub(super) struct Pace {
    /// When it is full again.
    full_at: Instant,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self { full_at: now }
    }

    /// When the next one may be written. It is taken to be written then.
    pub(super) fn next(&mut self, now: Instant) -> Instant {
        self.full_at = self.full_at.max(now) + EVERY;
        let at = self.full_at - EVERY * BURST;
        at.max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_goes_out_at_once_and_the_rest_one_by_one() {
        let start = crate::clock::now();
        let mut pace = Pace::new(start);
        assert!((0..BURST).all(|_| pace.next(start) == start));
        for n in 1..=5 {
            assert_eq!(pace.next(start), start + n * EVERY);
        }
        // The five that were promised and one more have gone out by then.
        let later = start + 100 * EVERY;
        let at_once = (0..2 * BURST).filter(|_| pace.next(later) == later).count();
        assert_eq!(at_once, BURST as usize);
    }
}
