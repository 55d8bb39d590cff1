//! Counters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Inner;
use super::types::StoreStats;
use crate::redis_home::RedisHome;

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub admits: Counter,
    pub admit_micros: Counter,
    pub admit_errors: Counter,
    pub fallbacks: Counter,
    pub refused: Counter,
    pub skipped: Counter,
    pub settles: Counter,
    pub settle_errors: Counter,
    pub settles_dropped: Counter,
    pub tokens_forgiven: Counter,
}

#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn increment(&self) {
        self.add(1);
    }

    pub(super) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(super) fn add_micros(&self, duration: Duration) {
        self.add(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Inner {
    pub(super) fn stats(&self) -> StoreStats {
        let c = &self.counters;
        StoreStats {
            admits: c.admits.get(),
            admit_micros: c.admit_micros.get(),
            admit_errors: c.admit_errors.get(),
            fallbacks: c.fallbacks.get(),
            refused: c.refused.get(),
            skipped: c.skipped.get(),
            settles: c.settles.get(),
            settle_errors: c.settle_errors.get(),
            settles_dropped: c.settles_dropped.get(),
            settles_waiting: self.queue.len() as u64,
            tokens_forgiven: c.tokens_forgiven.get(),
            noscript: self.redis().map_or(0, RedisHome::noscript),
            connections: self.redis().map_or(0, RedisHome::connections),
        }
    }
}
