//! Settlements: at once in this process, queued for the shared home.

use std::sync::Arc;
use std::time::Duration;

use sluice_core::admission::{SettleAsk, SettleReply};

use super::settle_queue::Pending;
use super::types::SettleJob;
use super::{Inner, SharedHome};
use crate::clock;
use crate::error::StoreError;
use crate::home::HomeKind;

/// How long a record outlives its exchange's deadline.
const RECORD_GRACE: Duration = Duration::from_secs(60);

impl Inner {
    pub(super) fn settle(&self, mut job: SettleJob) {
        if job.admission.home == HomeKind::Local {
            let local = self.local_policy(&job.target);
            let reply = self.local.settle_now(&self.tag, &local, &ask_of(&job));
            return self.settled(&mut job, reply);
        }
        match &self.shared {
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
                if let Some(waiting) = job.reply.take() {
                    // Whoever asked may have gone.
                    let _ = waiting.send(reply);
                }
            }
            Err(error) => {
                self.counters.settle_errors.increment();
                self.counters.settles_dropped.increment();
                tracing::warn!(target = %job.target.id, kind = %error.kind, "a settlement was refused");
            }
        }
    }
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
