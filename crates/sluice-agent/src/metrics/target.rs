//! What is counted per target.

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use sluice_core::admission::{AdmitAnswer, BreakerState, Transition, TransitionReason};
use sluice_core::balance::PassedOver;
use sluice_core::classify::CredentialFault;
use sluice_core::outcome::Verdict;
use sluice_telemetry::Page;
use sluice_telemetry::names::metric as rows;

use std::time::Duration;

use super::Seconds;
use super::open_time::OpenTime;
use super::series::Series;

/// The transitions that there are: their series begin at 0, so that the first one is an increase.
const TRANSITIONS: [(BreakerState, BreakerState, TransitionReason); 8] = {
    use BreakerState::{Closed, HalfOpen, Open};
    [
        (Closed, Open, TransitionReason::FailureRate),
        (Closed, Open, TransitionReason::SlowRate),
        (Closed, Open, TransitionReason::StallRate),
        (Closed, Open, TransitionReason::Consecutive),
        (Open, HalfOpen, TransitionReason::CooldownEnded),
        (HalfOpen, Open, TransitionReason::ProbeFailed),
        (HalfOpen, Open, TransitionReason::ProbeThrottled),
        (HalfOpen, Closed, TransitionReason::ProbesSucceeded),
    ]
};

/// Why a target is passed over without an answer of its shared state.
const UNASKED: [PassedOver; 5] = [
    PassedOver::LimiterFull,
    PassedOver::NeverFits,
    PassedOver::NoCredential,
    PassedOver::Throttled,
    PassedOver::StoreUnavailable,
];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct NameLabel {
    name: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    name: String,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct AnswerLabel {
    name: String,
    answer: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct VerdictLabel {
    name: String,
    verdict: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct BasisLabel {
    name: String,
    basis: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TransitionLabel {
    name: String,
    from: &'static str,
    to: &'static str,
    reason: &'static str,
}

/// The families of all targets.
#[derive(Clone, Default)]
pub(super) struct TargetFamilies {
    state: Family<NameLabel, Gauge>,
    awaiting_probe: Family<NameLabel, Gauge>,
    open_time: Family<NameLabel, Seconds>,
    rejections: Family<ReasonLabel, Counter>,
    transitions: Family<TransitionLabel, Counter>,
    attempts: Family<NameLabel, Counter>,
    retries: Family<NameLabel, Counter>,
    failovers: Family<NameLabel, Counter>,
    verdicts: Family<VerdictLabel, Counter>,
    throttled: Family<NameLabel, Counter>,
    credential_faults: Family<ReasonLabel, Counter>,
    in_flight: Family<NameLabel, Gauge>,
    limit: Family<NameLabel, Gauge>,
    headroom: Family<NameLabel, Gauge>,
    admissions: Family<AnswerLabel, Counter>,
    passed_over: Family<ReasonLabel, Counter>,
    observed: Family<ReasonLabel, Counter>,
    tokens_reserved: Family<NameLabel, Counter>,
    tokens_refused: Family<AnswerLabel, Counter>,
    tokens_charged: Family<BasisLabel, Counter>,
    tokens_after_disconnect: Family<NameLabel, Counter>,
    tokens_left: Family<NameLabel, Gauge>,
}

impl TargetFamilies {
    pub(super) fn register(page: &mut Page) -> Self {
        let families = Self::default();
        page.register(&rows::BREAKER_STATE, families.state.clone());
        page.register(&rows::BREAKER_AWAITING_PROBE, families.awaiting_probe.clone());
        page.register(&rows::BREAKER_OPEN_TIME, families.open_time.clone());
        page.register(&rows::BREAKER_REJECTIONS, families.rejections.clone());
        page.register(&rows::BREAKER_TRANSITIONS, families.transitions.clone());
        page.register(&rows::ATTEMPTS, families.attempts.clone());
        page.register(&rows::RETRIES, families.retries.clone());
        page.register(&rows::FAILOVERS, families.failovers.clone());
        page.register(&rows::VERDICTS, families.verdicts.clone());
        page.register(&rows::THROTTLED, families.throttled.clone());
        page.register(&rows::CREDENTIAL_FAULTS, families.credential_faults.clone());
        page.register(&rows::IN_FLIGHT, families.in_flight.clone());
        page.register(&rows::LIMIT, families.limit.clone());
        page.register(&rows::HEADROOM, families.headroom.clone());
        page.register(&rows::ADMISSIONS, families.admissions.clone());
        page.register(&rows::PASSED_OVER, families.passed_over.clone());
        page.register(&rows::OBSERVED, families.observed.clone());
        page.register(&rows::TOKENS_RESERVED, families.tokens_reserved.clone());
        page.register(&rows::TOKENS_REFUSED, families.tokens_refused.clone());
        page.register(&rows::TOKENS_CHARGED, families.tokens_charged.clone());
        page.register(&rows::TOKENS_AFTER_DISCONNECT, families.tokens_after_disconnect.clone());
        page.register(&rows::TOKENS_LEFT, families.tokens_left.clone());
        families
    }
}

/// One target's handles.
pub(crate) struct TargetMetrics {
    pub(crate) name: String,
    families: TargetFamilies,
    series: Series,
    state: Gauge,
    awaiting_probe: Gauge,
    open_time: Seconds,
    seen: Mutex<OpenTime>,
    pub(crate) attempts: Counter,
    pub(crate) retries: Counter,
    pub(crate) failovers: Counter,
    verdicts: [Counter; Verdict::ALL.len()],
    pub(crate) throttled: Counter,
    pub(crate) in_flight: Gauge,
    limit: Gauge,
    headroom: Gauge,
    admissions: [Counter; AdmitAnswer::ALL.len()],
    /// The breaker's own refusals once more, and the tokens of all refusals.
    rejections: [Option<Counter>; AdmitAnswer::ALL.len()],
    tokens_refused: [Option<Counter>; AdmitAnswer::ALL.len()],
    pub(crate) tokens_reserved: Counter,
    pub(crate) tokens_reported: Counter,
    pub(crate) tokens_estimated: Counter,
    pub(crate) tokens_after_disconnect: Counter,
}

impl TargetMetrics {
    pub(super) fn new(name: &str, families: &TargetFamilies) -> Self {
        let series = Series::new();
        let label = NameLabel { name: name.to_owned() };
        let counter = |family: &Family<NameLabel, Counter>| series.get(family, &label).unwrap_or_default();
        let gauge = |family: &Family<NameLabel, Gauge>| series.get(family, &label).unwrap_or_default();
        let answer = |answer: AdmitAnswer| AnswerLabel { name: name.to_owned(), answer: answer.as_str() };
        let basis = |basis| {
            let label = BasisLabel { name: name.to_owned(), basis };
            series.get(&families.tokens_charged, &label).unwrap_or_default()
        };
        let reason = |reason| ReasonLabel { name: name.to_owned(), reason };
        let target = Self {
            name: name.to_owned(),
            families: families.clone(),
            state: gauge(&families.state),
            awaiting_probe: gauge(&families.awaiting_probe),
            open_time: series.get(&families.open_time, &label).unwrap_or_default(),
            seen: Mutex::default(),
            attempts: counter(&families.attempts),
            retries: counter(&families.retries),
            failovers: counter(&families.failovers),
            verdicts: Verdict::ALL.map(|verdict| {
                let label = VerdictLabel { name: name.to_owned(), verdict: verdict.as_str() };
                series.get(&families.verdicts, &label).unwrap_or_default()
            }),
            throttled: counter(&families.throttled),
            in_flight: gauge(&families.in_flight),
            limit: gauge(&families.limit),
            headroom: gauge(&families.headroom),
            admissions: AdmitAnswer::ALL
                .map(|one| series.get(&families.admissions, &answer(one)).unwrap_or_default()),
            rejections: AdmitAnswer::ALL.map(|one| {
                of_breaker(one).then(|| series.get(&families.rejections, &reason(one.as_str())))?
            }),
            tokens_refused: AdmitAnswer::ALL
                .map(|one| (!one.granted()).then(|| series.get(&families.tokens_refused, &answer(one)))?),
            tokens_reserved: counter(&families.tokens_reserved),
            tokens_reported: basis("reported"),
            tokens_estimated: basis("estimated"),
            tokens_after_disconnect: counter(&families.tokens_after_disconnect),
            series,
        };
        for (from, to, reason) in TRANSITIONS {
            target.transition_series(from, to, reason);
        }
        for why in UNASKED {
            target.reason_series(&target.families.passed_over, why.as_str());
        }
        for fault in [CredentialFault::Refused, CredentialFault::SpendCap] {
            target.reason_series(&target.families.credential_faults, fault.as_str());
        }
        target
    }

    /// Takes the series out; one that comes back begins anew.
    pub(crate) fn forget(&self) {
        self.series.forget();
    }

    fn reason_series(&self, family: &Family<ReasonLabel, Counter>, reason: &'static str) -> Option<Counter> {
        self.series.get(family, &ReasonLabel { name: self.name.clone(), reason })
    }

    fn transition_series(
        &self,
        from: BreakerState,
        to: BreakerState,
        reason: TransitionReason,
    ) -> Option<Counter> {
        let (from, to, reason) = (from.as_str(), to.as_str(), reason.as_str());
        let label = TransitionLabel { name: self.name.clone(), from, to, reason };
        self.series.get(&self.families.transitions, &label)
    }

    /// The shared state answered, or would have: what is known to be open is not asked.
    pub(crate) fn answered(&self, answer: AdmitAnswer, tokens: u64) {
        let place = answer as usize;
        self.admissions[place].inc();
        if let Some(rejections) = &self.rejections[place] {
            rejections.inc();
        }
        if let Some(refused) = &self.tokens_refused[place] {
            refused.inc_by(tokens);
        }
    }

    /// The target was passed over. Answers of its shared state are counted by [`answered`](Self::answered).
    pub(crate) fn passed_over(&self, why: PassedOver) {
        if UNASKED.contains(&why)
            && let Some(counter) = self.reason_series(&self.families.passed_over, why.as_str())
        {
            counter.inc();
        }
    }

    /// An attempt of this agent made a transition.
    pub(crate) fn transition(&self, transition: &Transition) {
        if let Some(counter) = self.transition_series(transition.from, transition.to, transition.reason) {
            counter.inc();
        }
    }

    /// What is seen of the breaker. `open_for`: for how long this agent does not ask.
    pub(crate) fn see(&self, now: Duration, state: BreakerState, open_for: Duration) {
        let open = state == BreakerState::Open;
        self.state.set(state as i64);
        self.awaiting_probe.set(i64::from(open && open_for.is_zero()));
        let added = self.seen.lock().see(now, open.then_some(open_for));
        self.open_time.inc_by(added.as_secs_f64());
    }

    pub(crate) fn see_limit(&self, limit: u32, in_flight: u32) {
        self.limit.set(i64::from(limit));
        self.headroom.set(i64::from(limit.saturating_sub(in_flight)));
    }

    pub(crate) fn see_tokens_left(&self, left: i64) {
        let label = NameLabel { name: self.name.clone() };
        if let Some(gauge) = self.series.get(&self.families.tokens_left, &label) {
            gauge.set(left);
        }
    }

    /// A policy in mode Observe would have refused or ended an attempt.
    pub(crate) fn observed(&self, reason: &'static str) {
        if let Some(counter) = self.reason_series(&self.families.observed, reason) {
            counter.inc();
        }
    }

    pub(crate) fn credential_fault(&self, fault: CredentialFault) {
        if let Some(counter) = self.reason_series(&self.families.credential_faults, fault.as_str()) {
            counter.inc();
        }
    }

    pub(crate) fn verdict(&self, verdict: Verdict) {
        self.verdicts[verdict as usize].inc();
    }

    pub(crate) fn verdicts(&self) -> [(&'static str, u64); Verdict::ALL.len()] {
        Verdict::ALL.map(|verdict| (verdict.as_str(), self.verdicts[verdict as usize].get()))
    }

    /// Attempts that were not admitted, by answer.
    pub(crate) fn rejections(&self) -> Vec<(&'static str, u64)> {
        let refused = AdmitAnswer::ALL.into_iter().filter(|answer| !answer.granted());
        refused.map(|answer| (answer.as_str(), self.admissions[answer as usize].get())).collect()
    }

    pub(crate) fn tokens_charged(&self) -> u64 {
        self.tokens_reported.get() + self.tokens_estimated.get()
    }
}

/// Whether it was the breaker that refused, and not the quota.
fn of_breaker(answer: AdmitAnswer) -> bool {
    matches!(answer, AdmitAnswer::Open | AdmitAnswer::ProbesBusy | AdmitAnswer::Ramping)
}
