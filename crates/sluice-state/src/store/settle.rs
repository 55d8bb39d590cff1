//! Settlements: at once in this process, queued for the shared home.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use sluice_core::admission::{SettleAsk, SettleReply};
use tokio::time::Instant;

use super::settle_queue::{Pending, RESEND_WITHIN};
use super::types::SettleJob;
use super::{Inner, SharedHome};
use crate::clock;
use crate::error::StoreError;
use crate::home::{Home as _, HomeKind};

/// How long a record outlives its exchange's deadline.
const RECORD_GRACE: Duration = Duration::from_mins(1);
/// Settlements under way at a time.
const IN_FLIGHT: usize = 64;
/// Before a settlement that failed goes again.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

impl Inner {
    pub(super) fn settle(&self, mut job: SettleJob) {
        if job.admission.home == HomeKind::Local {
            let local = self.local_policy(&job.target);
            let reply = self.local.settle_now(&self.tag, &local, &ask_of(&job));
            return self.settled(&mut job, reply);
        }
        match &self.shared {
            SharedHome::Redis(_) => {
                let give_up_at = clock::now() + job.target.rules.deadlines.rules.total + RECORD_GRACE;
                if !self.queue.push(Pending { job, give_up_at }) {
                    self.counters.settles_dropped.increment();
                }
            }
            SharedHome::Embedded(home) => {
                let reply = home.settle_now(&self.tag, &job.target, &ask_of(&job));
                self.settled(&mut job, reply);
            }
        }
    }

    fn settled(&self, job: &mut SettleJob, reply: Result<SettleReply, StoreError>) {
        match reply {
            Ok(reply) => {
                self.counters.settles.increment();
                self.counters.tokens_forgiven.add(reply.forgiven);
                self.note_settle(&job.target, &reply, job.traceparent.as_ref(), job.admission.home);
                if let Some(told) = job.told.take() {
                    told.tell(reply);
                }
            }
            Err(error) => {
                self.counters.settle_errors.increment();
                self.counters.settles_dropped.increment();
                tracing::warn!(target = %job.target.id, kind = %error.kind, "a settlement was refused");
            }
        }
    }

    /// Carries the queue to Redis, in its order, a bounded number at a time.
    pub(super) async fn deliver_settlements(self: Arc<Self>) {
        let mut under_way = FuturesUnordered::new();
        loop {
            while under_way.len() < IN_FLIGHT && self.breaker.lock().is_up() {
                let Some(pending) = self.queue.take() else { break };
                under_way.push(self.deliver(pending));
            }
            tokio::select! {
                Some(()) = under_way.next() => {}
                () = self.queue.added.notified() => {}
            }
        }
    }

    async fn deliver(&self, mut pending: Pending) {
        let now = clock::now();
        if now >= pending.give_up_at {
            self.counters.settles_dropped.increment();
            return self.queue.done();
        }
        let Some(redis) = self.redis() else { return self.queue.done() };
        let reply = redis.settle(&self.tag, &pending.job.target, &ask_of(&pending.job)).await;
        match reply {
            Err(error) if error.kind.is_outage() => {
                self.counters.settle_errors.increment();
                self.store_failed(&error);
                pending.give_up_at = resend_until(&error, now, pending.give_up_at);
                tokio::time::sleep(AGAIN_AFTER).await;
                self.queue.again(pending);
            }
            reply => {
                if reply.is_ok() {
                    self.breaker.lock().answered();
                }
                self.settled(&mut pending.job, reply);
                self.queue.done();
            }
        }
    }
}

/// A settlement that may have arrived goes again only while its tombstone lives.
fn resend_until(error: &StoreError, sent: Instant, give_up_at: Instant) -> Instant {
    if error.kind.is_lost() { give_up_at.min(sent + RESEND_WITHIN) } else { give_up_at }
}

fn ask_of(job: &SettleJob) -> SettleAsk {
    SettleAsk {
        nonce: job.admission.nonce,
        epoch: job.admission.epoch,
        verdict: job.verdict,
        tokens: job.tokens,
        tenant: job.tenant.clone(),
        pause: job.pause,
        draw: job.draw,
        traceparent: job.traceparent.clone(),
    }
}
