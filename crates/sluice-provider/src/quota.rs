//! The scripted quota: a bucket of tokens per minute and one of requests.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::scenario::{Counting, Quota};

/// A quota with its state.
#[derive(Debug)]
pub(crate) struct Buckets {
    quota: Quota,
    levels: Mutex<Levels>,
}

#[derive(Debug)]
struct Levels {
    tokens: f64,
    requests: f64,
    at: Instant,
}

/// What a refused call is told.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spent {
    pub(crate) wait: Duration,
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    /// `tokens` or `requests`.
    pub(crate) what: &'static str,
}

impl Buckets {
    pub(crate) fn new(quota: Quota, now: Instant) -> Self {
        let levels = Levels { tokens: burst(&quota), requests: quota.requests_per_minute as f64, at: now };
        Self { quota, levels: Mutex::new(levels) }
    }

    /// Takes what a call costs at its start, or says how long to wait.
    pub(crate) fn take(&self, input: u64, max_output: u64, now: Instant) -> Result<(), Spent> {
        let cost = self.cost(input, max_output);
        let mut levels = self.levels.lock();
        self.refill(&mut levels, now);
        if self.quota.requests_per_minute > 0 && levels.requests < 1.0 {
            return Err(spent("requests", 1.0 - levels.requests, self.quota.requests_per_minute, &levels));
        }
        // More than the burst never fits; providers answer it with the same 429.
        if self.quota.tokens_per_minute > 0 && levels.tokens < cost {
            return Err(spent("tokens", cost - levels.tokens, self.quota.tokens_per_minute, &levels));
        }
        levels.requests -= 1.0;
        levels.tokens -= cost;
        Ok(())
    }

    /// Evens out what a call took with what it used.
    pub(crate) fn settle(&self, max_output: u64, output: u64, now: Instant) {
        let mut levels = self.levels.lock();
        self.refill(&mut levels, now);
        match self.quota.count {
            Counting::Reserve => levels.tokens += max_output.saturating_sub(output) as f64,
            Counting::Hold => {}
            Counting::Used => levels.tokens -= output as f64,
        }
        levels.tokens = levels.tokens.min(burst(&self.quota));
    }

    /// Undoes [`Buckets::take`].
    pub(crate) fn give_back(&self, input: u64, max_output: u64) {
        let mut levels = self.levels.lock();
        levels.requests += 1.0;
        levels.tokens += self.cost(input, max_output);
    }

    fn cost(&self, input: u64, max_output: u64) -> f64 {
        let cost = match self.quota.count {
            Counting::Reserve | Counting::Hold => input + max_output,
            Counting::Used => input,
        };
        cost as f64
    }

    fn refill(&self, levels: &mut Levels, now: Instant) {
        let minutes = now.saturating_duration_since(levels.at).as_secs_f64() / 60.0;
        levels.at = now;
        let requests = self.quota.requests_per_minute as f64;
        levels.requests = (levels.requests + minutes * requests).min(requests);
        levels.tokens =
            (levels.tokens + minutes * self.quota.tokens_per_minute as f64).min(burst(&self.quota));
    }
}

fn spent(what: &'static str, missing: f64, per_minute: u64, levels: &Levels) -> Spent {
    let level = if what == "tokens" { levels.tokens } else { levels.requests };
    let seconds = (missing * 60.0 / per_minute as f64).min(3600.0);
    Spent {
        wait: Duration::from_secs_f64(seconds),
        limit: per_minute,
        remaining: level.max(0.0) as u64,
        what,
    }
}

fn burst(quota: &Quota) -> f64 {
    quota.burst.unwrap_or(quota.tokens_per_minute) as f64
}

#[cfg(test)]
mod tests {
    use super::Buckets;
    use crate::clock::now;
    use crate::scenario::{Counting, Quota};
    use std::time::Duration;

    fn buckets(count: Counting) -> (Buckets, tokio::time::Instant) {
        let start = now();
        (Buckets::new(Quota { tokens_per_minute: 600, count, ..Quota::default() }, start), start)
    }

    #[test]
    fn reserved_tokens_come_back() {
        let (bucket, start) = buckets(Counting::Reserve);
        bucket.take(100, 500, start).unwrap();
        let spent = bucket.take(10, 20, start).unwrap_err();
        assert_eq!((spent.what, spent.remaining, spent.wait), ("tokens", 0, Duration::from_secs(3)));
        bucket.settle(500, 100, start);
        bucket.take(100, 300, start).unwrap();
        assert!(bucket.take(1, 0, start).is_err());
        bucket.take(1, 9, start + Duration::from_secs(1)).unwrap();
    }

    #[test]
    fn held_tokens_do_not() {
        let (bucket, start) = buckets(Counting::Hold);
        bucket.take(100, 500, start).unwrap();
        bucket.settle(500, 0, start);
        assert!(bucket.take(1, 0, start).is_err());
    }

    #[test]
    fn usage_is_charged_at_the_end_and_may_overdraw() {
        let (bucket, start) = buckets(Counting::Used);
        for _ in 0..3 {
            bucket.take(100, 5000, start).unwrap();
        }
        bucket.settle(5000, 900, start);
        let spent = bucket.take(0, 0, start).unwrap_err();
        assert_eq!(spent.wait, Duration::from_mins(1));
    }

    #[test]
    fn requests_are_counted_beside_tokens() {
        let start = now();
        let bucket = Buckets::new(Quota { requests_per_minute: 2, ..Quota::default() }, start);
        bucket.take(1_000_000, 1, start).unwrap();
        bucket.take(1, 1, start).unwrap();
        assert_eq!(bucket.take(1, 1, start).unwrap_err().what, "requests");
        bucket.take(1, 1, start + Duration::from_secs(30)).unwrap();
    }
}
