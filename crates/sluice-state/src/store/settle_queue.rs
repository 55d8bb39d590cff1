//! Settlements on their way to the shared home: bounded, off the response path, and held while it is away.
//!
//! A settlement may be sent again, because its admission's record makes each half take effect once. That
//! holds as long as the record's tombstone does, so one whose first try may have arrived is given up before
//! the tombstone goes; one that was never sent waits as long as the record lives.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use sluice_core::defaults::state_store::SETTLE_QUEUE;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::types::SettleJob;

/// Below the 60 s that a tombstone lives.
pub(super) const RESEND_WITHIN: Duration = Duration::from_secs(45);

#[derive(Debug)]
pub(super) struct Pending {
    pub job: SettleJob,
    pub give_up_at: Instant,
}

#[derive(Debug, Default)]
pub(super) struct SettleQueue {
    waiting: Mutex<Waiting>,
    pub(super) added: Notify,
    pub(super) emptied: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    jobs: VecDeque<Pending>,
    in_flight: usize,
}

impl SettleQueue {
    /// Adds one; false: the queue is full.
    pub(super) fn push(&self, pending: Pending) -> bool {
        {
            let mut waiting = self.waiting.lock();
            if waiting.jobs.len() + waiting.in_flight >= SETTLE_QUEUE {
                return false;
            }
            waiting.jobs.push_back(pending);
        }
        self.added.notify_one();
        true
    }

    /// Takes the next one; it counts as waiting until [`Self::done`] or [`Self::again`].
    pub(super) fn take(&self) -> Option<Pending> {
        let mut waiting = self.waiting.lock();
        let next = waiting.jobs.pop_front();
        waiting.in_flight += usize::from(next.is_some());
        next
    }

    pub(super) fn done(&self) {
        let mut waiting = self.waiting.lock();
        waiting.in_flight = waiting.in_flight.saturating_sub(1);
        if waiting.in_flight == 0 && waiting.jobs.is_empty() {
            self.emptied.notify_waiters();
        }
    }

    /// Puts one back in front: it keeps its place.
    pub(super) fn again(&self, pending: Pending) {
        let mut waiting = self.waiting.lock();
        waiting.in_flight = waiting.in_flight.saturating_sub(1);
        waiting.jobs.push_front(pending);
    }

    pub(super) fn len(&self) -> usize {
        let waiting = self.waiting.lock();
        waiting.jobs.len() + waiting.in_flight
    }
}
