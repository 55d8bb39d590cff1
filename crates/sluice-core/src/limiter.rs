//! How many exchanges one agent has in flight to one target.
//!
//! A slot is held until the stream ends; latency is scored at the first token, because a long answer is not a
//! slow one. The limit is state and arithmetic only: who waits for a slot, and in which lane, is the queue's.
//!
//! AIMD, as TCP's congestion avoidance has it (Chiu and Jain 1989; Netflix's concurrency-limits applies it to
//! services):
//! - a first token later than the target multiplies the limit by `decrease` (0.9), at most once per interval
//!   (10 s), since all calls that are in flight when a provider slows down report the same slowdown;
//! - a first token in time adds 1/limit while the limit is what holds callers back (saturated), so that a
//!   limit's worth of good answers adds one. An idle agent learns nothing, and its limit stays.
//!
//! The limit is a real number; [`Limiter::limit`] rounds it. Bounds hold at every step.

use std::time::Duration;

use crate::policy::{Aimd, Concurrency};

/// The limit of one target. `now` is the time since any fixed moment.
#[derive(Debug, Clone, PartialEq)]
pub enum Limiter {
    Fixed(u32),
    Aimd(AimdLimit),
}

#[derive(Debug, Clone, PartialEq)]
pub struct AimdLimit {
    rules: Aimd,
    limit: f64,
    decreased_at: Option<Duration>,
}

impl Limiter {
    #[must_use]
    pub fn new(rules: &Concurrency) -> Self {
        match rules {
            Concurrency::Fixed { limit } => Self::Fixed(*limit),
            Concurrency::Aimd(rules) => Self::Aimd(AimdLimit {
                limit: clamp(f64::from(rules.initial), rules),
                rules: rules.clone(),
                decreased_at: None,
            }),
        }
    }

    /// Takes over another policy's settings; what was learned is kept within the new bounds.
    pub fn configure(&mut self, rules: &Concurrency) {
        match (&mut *self, rules) {
            (Self::Aimd(learned), Concurrency::Aimd(rules)) => {
                learned.limit = clamp(learned.limit, rules);
                learned.rules = rules.clone();
            }
            _ => *self = Self::new(rules),
        }
    }

    /// Exchanges that may be in flight. A limit that shrank below what is in flight ends nothing; it only lets
    /// nobody in.
    #[must_use]
    pub fn limit(&self) -> u32 {
        match self {
            Self::Fixed(limit) => *limit,
            Self::Aimd(aimd) => aimd.limit.round() as u32,
        }
    }

    /// A first token came after `ttft`. `in_flight` counts this exchange.
    pub fn on_first_token(&mut self, now: Duration, ttft: Duration, in_flight: u32) {
        if let Self::Aimd(aimd) = self {
            if ttft > aimd.rules.ttft_target {
                aimd.decrease(now);
            } else if in_flight >= aimd.limit.round() as u32 {
                aimd.limit = clamp(aimd.limit + 1.0 / aimd.limit, &aimd.rules);
            }
        }
    }

    /// No first token came within `waited`: the provider failed, or the wait was given up. An attempt that failed
    /// faster than the target says nothing of load and changes nothing.
    pub fn on_no_first_token(&mut self, now: Duration, waited: Duration) {
        if let Self::Aimd(aimd) = self
            && waited > aimd.rules.ttft_target
        {
            aimd.decrease(now);
        }
    }
}

impl AimdLimit {
    fn decrease(&mut self, now: Duration) {
        let due = self.decreased_at.is_none_or(|at| now.saturating_sub(at) >= self.rules.decrease_interval);
        if due {
            self.decreased_at = Some(now);
            self.limit = clamp(self.limit * f64::from(self.rules.decrease_percent) / 100.0, &self.rules);
        }
    }
}

fn clamp(limit: f64, rules: &Aimd) -> f64 {
    // Not f64::clamp, which panics when a policy has min > max.
    limit.min(f64::from(rules.max)).max(f64::from(rules.min.max(1)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn aimd(initial: u32, min: u32) -> Limiter {
        Limiter::new(&Concurrency::Aimd(Aimd { initial, min, ..Aimd::default() }))
    }

    #[test]
    fn a_slow_tuesday() {
        let mut limiter = aimd(180, 100);
        let mut seen = vec![limiter.limit()];
        // 25 slow first tokens a second for 50 s.
        for tick in 0..25 * 50 {
            limiter.on_first_token(Duration::from_millis(tick * 40), secs(4), 180);
            if limiter.limit() != seen[seen.len() - 1] {
                seen.push(limiter.limit());
            }
        }
        assert_eq!(seen, [180, 162, 146, 131, 118, 106]);
        limiter.on_first_token(secs(60), secs(4), 106);
        limiter.on_first_token(secs(70), secs(4), 100);
        assert_eq!(limiter.limit(), 100, "the floor");
    }

    #[test]
    fn it_grows_only_when_saturated() {
        let mut limiter = aimd(10, 4);
        for _ in 0..1_000 {
            limiter.on_first_token(secs(1), secs(1), 9);
        }
        assert_eq!(limiter.limit(), 10);
        for _ in 0..10 {
            limiter.on_first_token(secs(1), secs(1), 11);
        }
        assert_eq!(limiter.limit(), 11, "a limit's worth of good answers adds one");
    }

    #[test]
    fn a_fast_failure_says_nothing_of_load() {
        let mut limiter = aimd(32, 4);
        limiter.on_no_first_token(secs(1), Duration::from_millis(5));
        assert_eq!(limiter.limit(), 32);
        limiter.on_no_first_token(secs(1), secs(10));
        assert_eq!(limiter.limit(), 29);
    }

    #[test]
    fn new_settings_keep_what_was_learned() {
        let mut limiter = aimd(180, 100);
        limiter.on_first_token(secs(0), secs(4), 180);
        limiter.configure(&Concurrency::Aimd(Aimd { max: 150, ..Aimd::default() }));
        assert_eq!(limiter.limit(), 150);
        limiter.configure(&Concurrency::Fixed { limit: 7 });
        assert_eq!(limiter.limit(), 7);
        limiter.on_first_token(secs(0), secs(4), 180);
        assert_eq!(limiter.limit(), 7);
    }

    proptest! {
        #[test]
        fn bounds_hold(samples in prop::collection::vec((0..100_000_u64, 0..10_000_u64, 0..600_u32), 0..500)) {
            let mut limiter = aimd(32, 4);
            let mut now = 0;
            for (step, ttft, in_flight) in samples {
                now += step;
                limiter.on_first_token(Duration::from_millis(now), Duration::from_millis(ttft), in_flight);
                prop_assert!((4..=512).contains(&limiter.limit()));
            }
        }
    }
}
