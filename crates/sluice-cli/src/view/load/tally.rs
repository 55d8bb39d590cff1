//! What came of the calls, from the clients' side.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Times to first token are shown of the last ten seconds…
const TTFT_SPAN: Duration = Duration::from_secs(10);
/// …and of at most so many calls.
const TTFT_KEPT: usize = 2_000;

/// Counts since the start. Every call that was sent is in flight or in exactly one of ok, degraded, refused,
/// failed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadCounts {
    pub sent: u64,
    /// Whole answers, by whichever target.
    pub ok: u64,
    /// Whole answers that say they are degraded.
    pub degraded: u64,
    /// Sluice's own refusals.
    pub refused: u64,
    /// Everything else: a provider's error, a cut stream, no answer in time.
    pub failed: u64,
    /// Due while too many were in flight; not sent.
    pub held_back: u64,
    pub in_flight: u64,
    /// Of the streams of the last ten seconds, failover included.
    pub ttft_p50_ms: Option<u64>,
    pub ttft_p95_ms: Option<u64>,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Ok,
    Degraded,
    Refused,
    Failed,
}

impl Ending {
    /// `whole`: the answer was read to its proper end.
    #[must_use]
    pub fn of(status: u16, refused: bool, degraded: bool, whole: bool) -> Self {
        match (status, whole) {
            _ if refused => Self::Refused,
            (200, true) if degraded => Self::Degraded,
            (200, true) => Self::Ok,
            _ => Self::Failed,
        }
    }
}

/// What one call came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallResult {
    pub ending: Ending,
    /// `None`: no stream, or no token.
    pub ttft: Option<Duration>,
}

/// Adds up results.
#[derive(Debug, Default)]
pub struct Tally {
    counts: LoadCounts,
    ttfts: VecDeque<(Instant, Duration)>,
}

impl Tally {
    pub fn send(&mut self) {
        self.counts.sent += 1;
        self.counts.in_flight += 1;
    }

    pub fn hold_back(&mut self) {
        self.counts.held_back += 1;
    }

    pub fn end(&mut self, result: CallResult, now: Instant) {
        let counts = &mut self.counts;
        counts.in_flight = counts.in_flight.saturating_sub(1);
        match result.ending {
            Ending::Ok => counts.ok += 1,
            Ending::Degraded => counts.degraded += 1,
            Ending::Refused => counts.refused += 1,
            Ending::Failed => counts.failed += 1,
        }
        if let Some(ttft) = result.ttft {
            if self.ttfts.len() == TTFT_KEPT {
                self.ttfts.pop_front();
            }
            self.ttfts.push_back((now, ttft));
        }
    }

    #[must_use]
    pub fn counts(&self, now: Instant) -> LoadCounts {
        let recent = self.ttfts.iter().filter(|(at, _)| *at + TTFT_SPAN >= now);
        let mut recent: Vec<Duration> = recent.map(|(_, ttft)| *ttft).collect();
        recent.sort_unstable();
        // Nearest rank.
        let percentile = |percent: usize| {
            let rank = (recent.len() * percent).div_ceil(100).max(1);
            recent.get(rank - 1).map(|ttft| u64::try_from(ttft.as_millis()).unwrap_or(u64::MAX))
        };
        LoadCounts { ttft_p50_ms: percentile(50), ttft_p95_ms: percentile(95), ..self.counts.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn an_answer_is_judged_by_its_end() {
        assert_eq!(Ending::of(200, false, false, true), Ending::Ok);
        assert_eq!(Ending::of(200, false, true, true), Ending::Degraded);
        assert_eq!(Ending::of(200, false, false, false), Ending::Failed);
        assert_eq!(Ending::of(200, false, true, false), Ending::Failed);
        assert_eq!(Ending::of(503, true, false, true), Ending::Refused);
        assert_eq!(Ending::of(503, false, false, true), Ending::Failed);
    }

    #[test]
    fn percentiles_are_of_the_last_ten_seconds() {
        let mut tally = Tally::default();
        let start = clock::now();
        let stream = |ms| CallResult { ending: Ending::Ok, ttft: Some(Duration::from_millis(ms)) };
        for ms in 1..=100 {
            tally.send();
            tally.end(stream(ms), start);
        }
        let counts = tally.counts(start + Duration::from_secs(5));
        assert_eq!((counts.ttft_p50_ms, counts.ttft_p95_ms), (Some(50), Some(95)));
        tally.send();
        tally.end(stream(7_000), start + Duration::from_secs(14));
        let counts = tally.counts(start + Duration::from_secs(15));
        assert_eq!((counts.ttft_p50_ms, counts.ttft_p95_ms), (Some(7_000), Some(7_000)));
        assert_eq!(tally.counts(start + Duration::from_secs(61)).ttft_p50_ms, None);
    }

    #[test]
    fn it_is_bounded() {
        let mut tally = Tally::default();
        let now = clock::now();
        for _ in 0..3 * TTFT_KEPT {
            tally.end(CallResult { ending: Ending::Ok, ttft: Some(Duration::ZERO) }, now);
        }
        assert_eq!(tally.ttfts.len(), TTFT_KEPT);
    }
}
