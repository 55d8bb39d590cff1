//! When a call's headers and tokens are due.

use std::time::Duration;

use tokio::time::Instant;

use crate::director::Pick;
use crate::random;

/// A call's timetable.
#[derive(Debug, Clone)]
pub(crate) struct Pace {
    start: Instant,
    headers_delay: Duration,
    ttft: Duration,
    per_token: Duration,
    jitter: f64,
    seed: u64,
    call: u64,
}

impl Pace {
    pub(crate) fn new(pick: &Pick, seed: u64, call: u64, start: Instant) -> Self {
        let behaviour = &pick.behaviour;
        let at = |list: &Vec<Duration>, index: u64| list.get(index as usize).or(list.last()).copied();
        let ttft = behaviour
            .ttft_by_second
            .as_ref()
            .and_then(|list| at(list, pick.since.as_secs()))
            .or_else(|| behaviour.ttft_by_call.as_ref().and_then(|list| at(list, pick.call)))
            .or(behaviour.ttft)
            .unwrap_or_default();
        let jitter = behaviour.jitter_percent.unwrap_or(0.0) / 100.0;
        let mut pace = Self {
            start,
            headers_delay: behaviour.headers_delay.unwrap_or_default(),
            ttft,
            per_token: behaviour.per_token.unwrap_or_default(),
            jitter,
            seed,
            call,
        };
        pace.ttft = pace.spread(ttft, 0);
        pace
    }

    /// Nothing when the headers may go at once.
    pub(crate) fn headers_at(&self) -> Option<Instant> {
        (!self.headers_delay.is_zero()).then(|| self.start + self.headers_delay)
    }

    /// Nothing when the first token may go at once.
    pub(crate) fn first_token_at(&self) -> Option<Instant> {
        (!self.ttft.is_zero()).then(|| self.start + self.ttft)
    }

    /// Nothing when the tokens follow each other at once.
    pub(crate) fn after_token(&self, index: u64, previous: Instant) -> Option<Instant> {
        (!self.per_token.is_zero()).then(|| previous + self.spread(self.per_token, index + 1))
    }

    pub(crate) fn is_paced(&self) -> bool {
        !self.per_token.is_zero()
    }

    fn spread(&self, base: Duration, index: u64) -> Duration {
        if self.jitter <= 0.0 || base.is_zero() {
            return base;
        }
        base.mul_f64(1.0 + self.jitter * (2.0 * random::draw(self.seed, self.call, index) - 1.0))
    }
}
