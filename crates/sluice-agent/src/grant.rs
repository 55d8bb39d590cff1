//! What an attempt was given: a place in flight, tokens, perhaps a probe permit. All of it goes back on every
//! exit path, because giving back is what dropping a [`Grant`] does.
//!
//! A grant's two halves are settled apart. The verdict goes as soon as it is certain; the tokens go when the
//! attempt ends. Usually that is one moment and one call.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sluice_core::admission::{AdmitAnswer, Settlement};
use sluice_core::estimate::Reservation;
use sluice_core::outcome::Verdict;
use sluice_core::policy::TargetPolicy;
use sluice_core::wire::{RequestFacts, Usage};
use sluice_state::store::{Admission, SettleJob, Ticket, Told};

use crate::agent::Shared;
use crate::spans::{self, SharedSpan};
use crate::targets::{Slot, Target};
use crate::transitions;

pub(crate) struct Grant {
    shared: Arc<Shared>,
    target: Arc<Target>,
    ticket: Ticket,
    probe: bool,
    tenant: Option<Arc<str>>,
    /// The caller's, where this agent makes no spans.
    traceparent: Option<Arc<str>>,
    span: SharedSpan,
    reservation: Reservation,
    /// What was asked, for learning how many bytes make a token.
    facts: Arc<RequestFacts>,
    slot: Option<Slot>,
    verdict: Option<Verdict>,
    pause: Option<Duration>,
    used: Used,
    settled: bool,
}

/// What is known of the tokens so far.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    /// Whether the request went out at all.
    sent: bool,
    /// What the provider said.
    reported: Option<Usage>,
    /// Whether that is its last word. Before the end it is not: Anthropic's first event reports one output
    /// token.
    is_final: bool,
    /// Deltas seen: about one token each, where nothing is reported.
    deltas: u64,
}

impl Grant {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        target: &Arc<Target>,
        slot: Slot,
        admission: &Admission,
        ask: &crate::ask::Ask,
        tenant: Option<Arc<str>>,
        reservation: Reservation,
    ) -> Self {
        shared.unsettled.fetch_add(1, Ordering::AcqRel);
        target.metrics.tokens_reserved.inc_by(reservation.total());
        Self {
            shared: shared.clone(),
            target: target.clone(),
            ticket: admission.ticket(),
            probe: admission.reply.answer == AdmitAnswer::Probe,
            tenant,
            traceparent: ask.traceparent.clone(),
            span: SharedSpan::default(),
            reservation,
            facts: ask.facts.clone(),
            slot: Some(slot),
            verdict: None,
            pause: None,
            used: Used::default(),
            settled: false,
        }
    }

    /// The attempt's span: it ends once the attempt is settled.
    pub(crate) fn within(mut self, span: SharedSpan) -> Self {
        self.span = span;
        self
    }

    pub(crate) fn span(&self) -> &SharedSpan {
        &self.span
    }

    pub(crate) fn is_probe(&self) -> bool {
        self.probe
    }

    /// The model that the client asked for.
    pub(crate) fn model(&self) -> &str {
        &self.facts.model
    }

    /// The tokens as the provider reported them so far.
    pub(crate) fn reported(&self) -> Option<Usage> {
        self.used.reported
    }

    pub(crate) fn now(&self) -> Duration {
        self.shared.clock.now()
    }

    /// The place in flight is free again, whatever is still to be settled.
    pub(crate) fn free_slot(&mut self) {
        self.slot = None;
    }

    /// From here on the provider may charge for the input.
    pub(crate) fn sent(&mut self) {
        self.used.sent = true;
    }

    /// The provider refused the request or never saw it: nothing is charged.
    pub(crate) fn not_charged(&mut self) {
        self.used.sent = false;
    }

    pub(crate) fn saw_deltas(&mut self, deltas: u32) {
        self.used.deltas += u64::from(deltas);
    }

    pub(crate) fn saw_usage(&mut self, usage: Usage) {
        self.used.reported = Some(usage);
    }

    pub(crate) fn usage_is_final(&mut self) {
        self.used.is_final = true;
    }

    /// The verdict is certain before the end. The first one stands, but for a probe's later stall, which the
    /// shared state judges.
    pub(crate) fn verdict(&mut self, verdict: Verdict) {
        let later_stall = verdict == Verdict::Stall && self.verdict == Some(Verdict::Success);
        if self.verdict.is_some() && !later_stall {
            return;
        }
        self.record(verdict);
        let pause = pause(verdict, None, &self.target.policy);
        self.shared.store.settle(self.job(Some(verdict), Settlement::Later, pause));
    }

    /// The attempt is over.
    pub(crate) fn finish(mut self, verdict: Verdict, pause: Option<Duration>) {
        self.pause = pause;
        self.end(verdict);
    }

    fn end(&mut self, verdict: Verdict) {
        if self.settled {
            return;
        }
        self.settled = true;
        let later_stall = verdict == Verdict::Stall && self.verdict == Some(Verdict::Success);
        let verdict = (self.verdict.is_none() || later_stall).then_some(verdict);
        if let Some(verdict) = verdict {
            self.record(verdict);
        }
        if let Some(usage) = self.used.reported {
            spans::attempt_used(&self.span, usage);
        }
        let used = self.charge();
        let pause = self.pause;
        self.shared.store.settle(self.job(verdict, Settlement::Used(used), pause));
        self.shared.unsettled.fetch_sub(1, Ordering::AcqRel);
    }

    fn record(&mut self, verdict: Verdict) {
        if self.verdict.is_none() {
            self.target.metrics.verdict(verdict);
            spans::attempt_meant(&self.span, verdict);
            self.verdict = Some(verdict);
        }
    }

    /// The tokens to charge: the provider's own number, or an estimate, marked so.
    fn charge(&self) -> u64 {
        let metrics = &self.target.metrics;
        match self.used.reported {
            Some(usage) => {
                self.target.live.ratio.lock().learn(&self.facts, usage.input);
                let used = if self.used.is_final {
                    usage.total()
                } else {
                    usage.input.saturating_add(usage.output.max(self.used.deltas))
                };
                metrics.tokens_reported.inc_by(used);
                used
            }
            None if self.used.sent => {
                let used = self.reservation.input.saturating_add(self.used.deltas);
                metrics.tokens_estimated.inc_by(used);
                used
            }
            None => 0,
        }
    }

    fn job(&self, verdict: Option<Verdict>, tokens: Settlement, pause: Option<Duration>) -> SettleJob {
        SettleJob {
            target: self.target.policy.clone(),
            admission: self.ticket,
            tenant: self.tenant.clone(),
            verdict,
            tokens,
            pause,
            draw: self.shared.random.draw(),
            traceparent: verdict.filter(|verdict| verdict.may_open()).and_then(|_| self.traceparent()),
            told: verdict.and_then(|_| self.told()),
        }
    }

    fn traceparent(&self) -> Option<Arc<str>> {
        self.span.traceparent().or_else(|| self.traceparent.clone())
    }

    /// The reply says what transition the verdict made, on the span that lives until then.
    fn told(&self) -> Option<Told> {
        if !self.span.is_recording() {
            return None;
        }
        let (told, target, span) = (self.shared.told.clone(), self.target.clone(), self.span.clone());
        let home = self.ticket.home;
        Some(Told::new(move |reply| {
            if let Some(transition) = &reply.transition {
                transitions::caused(&told, &target, home, &span, transition);
            }
        }))
    }
}

/// How long a 429 pauses the target for everyone: the time that the provider asked for, or the policy's for one
/// that named none, clamped.
pub(crate) fn pause(verdict: Verdict, asked: Option<Duration>, policy: &TargetPolicy) -> Option<Duration> {
    if verdict != Verdict::Throttled {
        return None;
    }
    let quota = policy.rules.quota.as_ref();
    let pushback = quota.map(|quota| quota.rules.pushback.clone()).unwrap_or_default();
    Some(asked.unwrap_or(pushback.default_pause).min(pushback.max_pause))
}

impl Drop for Grant {
    /// Left by its client, drained, or panicked: what is known is settled, and the breaker hears nothing.
    fn drop(&mut self) {
        self.end(Verdict::Cancelled);
    }
}
