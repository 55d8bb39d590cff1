//! One admission.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sluice_core::admission::{AdmitAnswer, AdmitAsk, AdmitReply, BreakerState, Draw, Settlement};
use sluice_core::outcome::Verdict;
use sluice_core::policy::{Mode, OnUnreachable, TargetPolicy};

use super::types::{Admission, SettleJob, Ticket};
use super::{Inner, SharedHome};
use crate::clock;
use crate::error::{StoreError, StoreErrorKind};
use crate::home::{Home as _, HomeKind};

/// An admission under way in the shared home. Dropped before it was answered, it is cancelled there: it may
/// have been granted.
struct UnderWay<'a> {
    inner: &'a Inner,
    target: &'a Arc<TargetPolicy>,
    ask: &'a AdmitAsk,
    armed: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.inner.cancel_lost(self.target, self.ask);
        }
    }
}

impl Inner {
    pub(super) async fn admit(
        &self,
        target: &Arc<TargetPolicy>,
        ask: AdmitAsk,
    ) -> Result<Admission, StoreError> {
        if let Some(refused) = self.refused_as_known(target, &ask) {
            self.counters.skipped.increment();
            return Ok(refused);
        }
        if !self.breaker.lock().is_up() {
            return self.fall_back(
                target,
                ask,
                StoreError::new(StoreErrorKind::Skipped, "the store is down"),
                None,
            );
        }
        let started = clock::now();
        let mut under_way = UnderWay { inner: self, target, ask: &ask, armed: true };
        let answered = self.admit_shared(target, &ask).await;
        under_way.armed = answered.as_ref().is_err_and(|error| error.kind.is_lost());
        drop(under_way);
        let took = clock::now() - started;
        match answered {
            Ok(reply) => {
                self.breaker.lock().answered();
                self.counters.admits.increment();
                self.counters.admit_micros.add_micros(took);
                self.note_admit(target, &reply, HomeKind::Shared);
                let (home, nonce) = (HomeKind::Shared, ask.nonce);
                Ok(Admission { reply, home, nonce, degraded: None, took: Some(took) })
            }
            Err(error) => {
                self.counters.admit_errors.increment();
                self.store_failed(&error);
                self.fall_back(target, ask, error, Some(took))
            }
        }
    }

    async fn admit_shared(
        &self,
        target: &Arc<TargetPolicy>,
        ask: &AdmitAsk,
    ) -> Result<AdmitReply, StoreError> {
        match &self.shared {
            SharedHome::Redis(home) => home.admit(&self.tag, target, ask).await,
            SharedHome::Embedded(home) => home.admit_now(&self.tag, target, ask),
        }
    }

    /// An observed breaker is asked all the same: it has to see its probes.
    fn refused_as_known(&self, target: &Arc<TargetPolicy>, ask: &AdmitAsk) -> Option<Admission> {
        let now = clock::now();
        let mut known = self.known.lock();
        let entry = known.entry(target, now);
        if target.rules.breaker.mode == Mode::Observe {
            return None;
        }
        let reply = entry.refusal(now)?;
        Some(Admission { reply, home: HomeKind::Shared, nonce: ask.nonce, degraded: None, took: None })
    }

    /// The agent's own home, or an error where the policy wants one.
    fn fall_back(
        &self,
        target: &Arc<TargetPolicy>,
        mut ask: AdmitAsk,
        error: StoreError,
        took: Option<Duration>,
    ) -> Result<Admission, StoreError> {
        if target.rules.state_store.rules.on_unreachable == OnUnreachable::FailClosed {
            self.counters.refused.increment();
            return Err(error);
        }
        self.counters.fallbacks.increment();
        let local = self.local_policy(target);
        self.adopt(target, &local);
        ask.nonce = self.random.nonce();
        let reply = match self.local.admit_now(&self.tag, &local, &ask) {
            Ok(reply) => reply,
            // The own home is full, or worse. An exchange must not fail for that.
            Err(own) => {
                tracing::error!(target = %target.id, error = %own, "the agent's own home has no answer");
                granted_blindly()
            }
        };
        self.note_admit(target, &reply, HomeKind::Local);
        Ok(Admission { reply, home: HomeKind::Local, nonce: ask.nonce, degraded: Some(error.kind), took })
    }

    /// Once per outage and target: the own breaker begins from the last state seen.
    fn adopt(&self, target: &Arc<TargetPolicy>, local: &TargetPolicy) {
        let outage = self.outage.load(Ordering::Relaxed);
        let seen = {
            let now = clock::now();
            let mut known = self.known.lock();
            let entry = known.entry(target, now);
            if entry.adopted == outage {
                return;
            }
            entry.adopted = outage;
            entry.view(now)
        };
        if let Err(error) = self.local.adopt(local, &seen) {
            tracing::error!(target = %target.id, %error, "the agent's own home did not take over the last state seen");
        }
    }

    fn cancel_lost(&self, target: &Arc<TargetPolicy>, ask: &AdmitAsk) {
        self.settle(SettleJob {
            target: Arc::clone(target),
            admission: Ticket { home: HomeKind::Shared, nonce: ask.nonce, epoch: 0 },
            tenant: ask.tenant.clone(),
            verdict: Some(Verdict::Cancelled),
            tokens: Settlement::Used(0),
            pause: None,
            draw: Draw::new(0),
            traceparent: None,
            told: None,
        });
    }
}

fn granted_blindly() -> AdmitReply {
    AdmitReply {
        answer: AdmitAnswer::Admitted,
        observed: None,
        retry_after: std::time::Duration::ZERO,
        state: BreakerState::Closed,
        epoch: 0,
        open_for: std::time::Duration::ZERO,
        tokens_left: None,
        rate_percent: 100,
        transition: None,
        opened_by: None,
    }
}
