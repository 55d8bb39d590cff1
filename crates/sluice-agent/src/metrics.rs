//! The agent's metrics. Handles are made once per target, when its policy arrives: an exchange touches
//! atomics only, and label values come from policy, never from a request.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use sluice_core::admission::{AdmitAnswer, BreakerState, Transition, TransitionReason};
use sluice_core::classify::CredentialFault;
use sluice_core::outcome::Verdict;

/// Seconds. Model calls take from tens of milliseconds to minutes.
const TTFT_BUCKETS: [f64; 12] = [0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TargetLabel {
    name: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    name: String,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TransitionLabel {
    name: String,
    from: &'static str,
    to: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StageLabel {
    stage: String,
    reason: String,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, EncodeLabelValue)]
enum Side {
    Reserved,
    Charged,
    Estimated,
    AfterDisconnect,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TokenLabel {
    name: String,
    kind: Side,
}

type Histograms = Family<TargetLabel, Histogram, fn() -> Histogram>;

fn ttft_histogram() -> Histogram {
    Histogram::new(TTFT_BUCKETS)
}

/// Everything the agent counts.
pub(crate) struct Metrics {
    registry: Registry,
    state: Family<TargetLabel, Gauge>,
    rejections: Family<ReasonLabel, Counter>,
    transitions: Family<TransitionLabel, Counter>,
    attempts: Family<TargetLabel, Counter>,
    retries: Family<TargetLabel, Counter>,
    failovers: Family<TargetLabel, Counter>,
    verdicts: Family<ReasonLabel, Counter>,
    tokens: Family<TokenLabel, Counter>,
    in_flight: Family<TargetLabel, Gauge>,
    limit: Family<TargetLabel, Gauge>,
    ttft: Histograms,
    refusals: Family<StageLabel, Counter>,
    observed: Family<ReasonLabel, Counter>,
    credential_faults: Family<ReasonLabel, Counter>,
    pub(crate) failed_over: Counter,
    pub(crate) exchanges: Counter,
    pub(crate) exchanges_in_flight: Gauge,
    pub(crate) cancelled: Counter,
    /// All refusals together.
    pub(crate) refused_total: Counter,
    pub(crate) store_degraded: Gauge,
    pub(crate) store_fallbacks: Gauge<u64, AtomicU64>,
    pub(crate) settles_dropped: Gauge<u64, AtomicU64>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            state: Family::default(),
            rejections: Family::default(),
            transitions: Family::default(),
            attempts: Family::default(),
            retries: Family::default(),
            failovers: Family::default(),
            verdicts: Family::default(),
            tokens: Family::default(),
            in_flight: Family::default(),
            limit: Family::default(),
            ttft: Family::new_with_constructor(ttft_histogram as fn() -> Histogram),
            refusals: Family::default(),
            observed: Family::default(),
            credential_faults: Family::default(),
            failed_over: Counter::default(),
            exchanges: Counter::default(),
            exchanges_in_flight: Gauge::default(),
            cancelled: Counter::default(),
            refused_total: Counter::default(),
            store_degraded: Gauge::default(),
            store_fallbacks: Gauge::default(),
            settles_dropped: Gauge::default(),
        };
        metrics.register_breakers();
        metrics.register_attempts();
        metrics.register_exchanges();
        metrics
    }

    fn register_breakers(&mut self) {
        let r = &mut self.registry;
        r.register(
            "llm_circuit_breaker_state",
            "State of a target's breaker: 0 closed, 1 half-open, 2 open",
            self.state.clone(),
        );
        r.register(
            "llm_circuit_breaker_rejections",
            "Attempts that a target's shared state did not admit, by answer",
            self.rejections.clone(),
        );
        r.register(
            "llm_circuit_breaker_transitions",
            "Transitions that an attempt of this agent caused",
            self.transitions.clone(),
        );
    }

    fn register_attempts(&mut self) {
        let r = &mut self.registry;
        r.register("sluice_attempts", "Upstream calls", self.attempts.clone());
        r.register(
            "sluice_retries",
            "Upstream calls that repeated one at the same target",
            self.retries.clone(),
        );
        r.register(
            "sluice_failovers",
            "Exchanges that went on past this target to another",
            self.failovers.clone(),
        );
        r.register("sluice_verdicts", "Attempts by what they meant to the breaker", self.verdicts.clone());
        r.register("sluice_tokens", "Tokens reserved, charged, and charged by estimate", self.tokens.clone());
        r.register("sluice_in_flight", "Attempts in flight from this agent", self.in_flight.clone());
        r.register("sluice_limit", "Attempts that may be in flight from this agent", self.limit.clone());
        r.register(
            "sluice_time_to_first_token_seconds",
            "From the start of an attempt to its first token",
            self.ttft.clone(),
        );
        r.register("sluice_refusals", "Exchanges that Sluice answered itself", self.refusals.clone());
    }

    fn register_exchanges(&mut self) {
        let r = &mut self.registry;
        r.register(
            "sluice_observed",
            "What policies in mode Observe would have refused or ended, by reason",
            self.observed.clone(),
        );
        r.register(
            "sluice_credential_faults",
            "Attempts that a provider refused for the target's credential or its account",
            self.credential_faults.clone(),
        );
        r.register(
            "sluice_exchanges_failed_over",
            "Client requests served by another target than the first choice",
            self.failed_over.clone(),
        );
        r.register("sluice_exchanges", "Client requests", self.exchanges.clone());
        r.register(
            "sluice_exchanges_in_flight",
            "Client requests in flight",
            self.exchanges_in_flight.clone(),
        );
        r.register("sluice_exchanges_cancelled", "Client requests whose client left", self.cancelled.clone());
        r.register(
            "sluice_store_degraded",
            "1 while the shared state cannot be reached",
            self.store_degraded.clone(),
        );
        r.register(
            "sluice_store_fallback_admissions",
            "Admissions that the agent decided alone",
            self.store_fallbacks.clone(),
        );
        r.register(
            "sluice_settles_dropped",
            "Settlements that could not be delivered",
            self.settles_dropped.clone(),
        );
    }

    /// The handles of one target; `name` is `namespace/route/target`.
    pub(crate) fn target(&self, name: &str) -> TargetMetrics {
        let label = TargetLabel { name: name.to_owned() };
        let reason = |reason| ReasonLabel { name: name.to_owned(), reason };
        let tokens = |kind| self.tokens.get_or_create_owned(&TokenLabel { name: name.to_owned(), kind });
        TargetMetrics {
            name: name.to_owned(),
            state: self.state.get_or_create_owned(&label),
            rejections: AdmitAnswer::ALL
                .map(|answer| self.rejections.get_or_create_owned(&reason(answer.as_str()))),
            attempts: self.attempts.get_or_create_owned(&label),
            retries: self.retries.get_or_create_owned(&label),
            failovers: self.failovers.get_or_create_owned(&label),
            verdicts: Verdict::ALL
                .map(|verdict| self.verdicts.get_or_create_owned(&reason(verdict.as_str()))),
            tokens_reserved: tokens(Side::Reserved),
            tokens_charged: tokens(Side::Charged),
            tokens_estimated: tokens(Side::Estimated),
            tokens_after_disconnect: tokens(Side::AfterDisconnect),
            in_flight: self.in_flight.get_or_create_owned(&label),
            limit: self.limit.get_or_create_owned(&label),
            ttft: self.ttft.get_or_create_owned(&label),
            observed: self.observed.clone(),
            observed_reasons: Mutex::new(Some(BTreeSet::new())),
            credential_faults: self.credential_faults.clone(),
        }
    }

    /// Takes the series of a target out that no policy names any more; one that comes back begins anew.
    pub(crate) fn forget(&self, target: &TargetMetrics) {
        let name = || target.name.clone();
        let label = TargetLabel { name: name() };
        for family in [&self.attempts, &self.retries, &self.failovers] {
            family.remove(&label);
        }
        for family in [&self.state, &self.in_flight, &self.limit] {
            family.remove(&label);
        }
        self.ttft.remove(&label);
        for kind in [Side::Reserved, Side::Charged, Side::Estimated, Side::AfterDisconnect] {
            self.tokens.remove(&TokenLabel { name: name(), kind });
        }
        for answer in AdmitAnswer::ALL {
            self.rejections.remove(&ReasonLabel { name: name(), reason: answer.as_str() });
        }
        for verdict in Verdict::ALL {
            self.verdicts.remove(&ReasonLabel { name: name(), reason: verdict.as_str() });
        }
        for fault in [CredentialFault::Refused, CredentialFault::SpendCap] {
            self.credential_faults.remove(&ReasonLabel { name: name(), reason: fault.as_str() });
        }
        // From here on an exchange that still runs makes no new ones.
        for reason in target.observed_reasons.lock().take().into_iter().flatten() {
            self.observed.remove(&ReasonLabel { name: name(), reason });
        }
        for (from, to) in
            BreakerState::ALL.into_iter().flat_map(|from| BreakerState::ALL.map(|to| (from, to)))
        {
            for reason in TransitionReason::ALL {
                let (from, to, reason) = (from.as_str(), to.as_str(), reason.as_str());
                self.transitions.remove(&TransitionLabel { name: name(), from, to, reason });
            }
        }
    }

    pub(crate) fn refused(&self, stage: &str, reason: &str) {
        self.refused_total.inc();
        self.refusals
            .get_or_create_owned(&StageLabel { stage: stage.to_owned(), reason: reason.to_owned() })
            .inc();
    }

    pub(crate) fn transition(&self, name: &str, transition: &Transition) {
        let label = TransitionLabel {
            name: name.to_owned(),
            from: transition.from.as_str(),
            to: transition.to.as_str(),
            reason: transition.reason.as_str(),
        };
        self.transitions.get_or_create_owned(&label).inc();
    }

    /// The page at `/metrics`.
    pub(crate) fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &self.registry)?;
        Ok(page)
    }
}

/// One target's handles.
pub(crate) struct TargetMetrics {
    pub(crate) name: String,
    state: Gauge,
    rejections: [Counter; AdmitAnswer::ALL.len()],
    pub(crate) attempts: Counter,
    pub(crate) retries: Counter,
    pub(crate) failovers: Counter,
    verdicts: [Counter; Verdict::ALL.len()],
    pub(crate) tokens_reserved: Counter,
    pub(crate) tokens_charged: Counter,
    pub(crate) tokens_estimated: Counter,
    pub(crate) tokens_after_disconnect: Counter,
    pub(crate) in_flight: Gauge,
    pub(crate) limit: Gauge,
    pub(crate) ttft: Histogram,
    /// Rare, so made when they happen.
    observed: Family<ReasonLabel, Counter>,
    /// Those that happened; `None`: the target is forgotten.
    observed_reasons: Mutex<Option<BTreeSet<&'static str>>>,
    credential_faults: Family<ReasonLabel, Counter>,
}

impl TargetMetrics {
    pub(crate) fn answered(&self, answer: AdmitAnswer, state: BreakerState) {
        if !answer.granted() {
            self.rejections[answer as usize].inc();
        }
        self.set_state(state);
    }

    /// A policy in mode Observe would have refused or ended an attempt.
    pub(crate) fn observed(&self, reason: &'static str) {
        let mut reasons = self.observed_reasons.lock();
        let Some(reasons) = reasons.as_mut() else { return };
        reasons.insert(reason);
        self.observed.get_or_create_owned(&ReasonLabel { name: self.name.clone(), reason }).inc();
    }

    pub(crate) fn credential_fault(&self, fault: CredentialFault) {
        let known = self.observed_reasons.lock();
        if known.is_none() {
            return;
        }
        let reason = fault.as_str();
        self.credential_faults.get_or_create_owned(&ReasonLabel { name: self.name.clone(), reason }).inc();
    }

    pub(crate) fn set_state(&self, state: BreakerState) {
        self.state.set(state as i64);
    }

    pub(crate) fn verdict(&self, verdict: Verdict) {
        self.verdicts[verdict as usize].inc();
    }

    pub(crate) fn verdicts(&self) -> [(&'static str, u64); Verdict::ALL.len()] {
        Verdict::ALL.map(|verdict| (verdict.as_str(), self.verdicts[verdict as usize].get()))
    }

    pub(crate) fn rejections(&self) -> [(&'static str, u64); AdmitAnswer::ALL.len()] {
        AdmitAnswer::ALL.map(|answer| (answer.as_str(), self.rejections[answer as usize].get()))
    }
}
