//! What the agent says of itself: to the control plane, and at `/state`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sluice_core::admission::{BreakerState, TargetView};
use sluice_core::classify::CredentialFault;
use sluice_core::policy::Quota;
use sluice_core::target_id::TargetId;
use sluice_core::units::millis;
use sluice_proto::report::{BreakerSeen, Report, StoreHealth, TargetAggregate};

use crate::agent::Shared;
use crate::metrics::Reading;
use crate::policies::Route;
use crate::policy_client::Standing;
use crate::state::{
    AgentState, BreakerView, ControlPlaneState, ExchangeCounts, RouteState, StoreState, TargetState,
};
use crate::targets::Target;

/// The small aggregate: one entry per target, however many routes name it.
pub(crate) fn aggregate(shared: &Shared) -> Report {
    let policies = shared.policies.load();
    let mut targets: BTreeMap<TargetId, TargetAggregate> = BTreeMap::new();
    for target in policies.routes.iter().flat_map(|route| &route.targets) {
        let breaker = shared.store.known(&target.policy.id).map(|known| BreakerSeen {
            state: known.state,
            epoch: known.epoch,
            open_for: known.open_for,
        });
        let one = targets.entry(target.policy.id.clone()).or_insert_with(|| TargetAggregate {
            target: target.policy.id.clone(),
            in_flight: target.in_flight(),
            limit: target.limit(),
            admitted: 0,
            refused: 0,
            failed_over: 0,
            breaker,
            credential: target.live.credential(),
        });
        one.admitted += target.metrics.attempts.get();
        one.refused += target.metrics.rejections().iter().map(|(_, count)| count).sum::<u64>();
        one.failed_over += target.metrics.failovers.get();
    }
    let health = shared.store.health().borrow().clone();
    let store = match (shared.home == "redis", health.reachable) {
        (false, _) => StoreHealth::Embedded,
        (true, true) => StoreHealth::Shared,
        (true, false) => StoreHealth::Unreachable {
            reason: health.error.map_or_else(String::new, |(kind, detail)| format!("{kind}: {detail}")),
        },
    };
    Report { transitions: Vec::new(), targets: targets.into_values().collect(), store: Some(store) }
}

/// What a stream has been told.
#[derive(Debug, Default)]
pub(crate) struct Told {
    targets: BTreeMap<TargetId, TargetAggregate>,
    store: Option<StoreHealth>,
}

impl Told {
    /// What of a report is new; `None`: nothing.
    pub(crate) fn news(&mut self, mut report: Report) -> Option<Report> {
        report.targets.retain(|target| self.targets.get(&target.target) != Some(target));
        self.targets.extend(report.targets.iter().map(|target| (target.target.clone(), target.clone())));
        if report.store == self.store {
            report.store = None;
        } else {
            self.store.clone_from(&report.store);
        }
        (report != Report::default()).then_some(report)
    }
}

/// Brings the metrics up to date that are counted elsewhere.
pub(crate) fn read_metrics(shared: &Shared) {
    let policies = shared.policies.load();
    let now = shared.clock.now();
    for target in policies.routes.iter().flat_map(|route| &route.targets) {
        let metrics = &target.metrics;
        metrics.see_limit(target.limit(), target.in_flight());
        if let Some(left) = target.live.tokens_left() {
            metrics.see_tokens_left(left);
        }
        if let Some(known) = shared.store.known(&target.policy.id) {
            metrics.see(now, known.state, known.open_for);
        }
    }
    let health = shared.store.health().borrow().clone();
    shared.metrics.read(&Reading {
        home: shared.home,
        health,
        stats: shared.store.stats(),
        unsettled: shared.unsettled.load(Ordering::Acquire),
        connected: *shared.standing.lock() == Standing::Connected,
        routes: policies.routes.len(),
        rejected: shared.rejected.lock().len(),
    });
}

/// What `/state` shows.
pub(crate) async fn state(shared: &Shared) -> AgentState {
    let policies = shared.policies.load_full();
    let mut routes = Vec::with_capacity(policies.routes.len());
    for route in &policies.routes {
        routes.push(route_state(shared, route).await);
    }
    AgentState {
        agent: shared.identity.name.clone(),
        namespace: shared.identity.namespace.clone(),
        policy_version: policies.version.to_string(),
        control_plane: control_plane(shared),
        store: store(shared),
        exchanges: exchanges(shared),
        routes,
        rejected: shared.rejected.lock().clone(),
    }
}

fn control_plane(shared: &Shared) -> ControlPlaneState {
    match &*shared.standing.lock() {
        Standing::Unasked => ControlPlaneState::default(),
        Standing::Connected => ControlPlaneState { connected: true, reason: None },
        Standing::Away(reason) => ControlPlaneState { connected: false, reason: Some(reason.to_string()) },
    }
}

fn store(shared: &Shared) -> StoreState {
    let health = shared.store.health().borrow().clone();
    let stats = shared.store.stats();
    StoreState {
        home: shared.home,
        reachable: health.reachable,
        reason: health.error.filter(|_| !health.reachable).map(|(kind, detail)| format!("{kind}: {detail}")),
        fallback_admissions: stats.fallbacks,
        settles_waiting: stats.settles_waiting,
        settles_dropped: stats.settles_dropped,
    }
}

fn exchanges(shared: &Shared) -> ExchangeCounts {
    let metrics = &shared.metrics;
    ExchangeCounts {
        total: metrics.exchanges.get(),
        in_flight: u64::try_from(metrics.exchanges_in_flight.get()).unwrap_or(0),
        refused: metrics.refused_total.get(),
        failed_over: metrics.failed_over.get(),
        cancelled: metrics.cancelled.get(),
        unsettled: shared.unsettled.load(Ordering::Acquire),
    }
}

async fn route_state(shared: &Shared, route: &Route) -> RouteState {
    let mut targets = Vec::with_capacity(route.targets.len());
    for target in &route.targets {
        targets.push(target_state(shared, target).await);
    }
    RouteState {
        namespace: route.policy.namespace.to_string(),
        name: route.policy.name.to_string(),
        models: route.policy.models.iter().map(ToString::to_string).collect(),
        targets,
    }
}

async fn target_state(shared: &Shared, target: &Arc<Target>) -> TargetState {
    let view = shared.store.view(&target.policy).await.ok();
    let quota = target.policy.rules.quota.as_ref().filter(|quota| quota.rules.tokens_per_minute.is_some());
    let now = shared.clock.now();
    let ttft = |percent| target.live.ttft.lock().percentile(now, percent).map(millis);
    let metrics = &target.metrics;
    TargetState {
        name: target.policy.name.to_string(),
        id: target.policy.id.to_string(),
        in_flight: target.in_flight(),
        limit: target.limit(),
        tokens_left: view.as_ref().and_then(|view| view.tokens_left).or_else(|| target.live.tokens_left()),
        burst_tokens: quota.map(|quota| shared_burst(&quota.rules)),
        rate_percent: view.as_ref().map_or(100, |view| view.rate_percent),
        paused_for_ms: view.as_ref().map_or(0, |view| millis(view.paused_for)),
        attempts: metrics.attempts.get(),
        retries: metrics.retries.get(),
        failovers: metrics.failovers.get(),
        verdicts: metrics.verdicts().to_vec(),
        rejections: metrics.rejections(),
        tokens_reserved: metrics.tokens_reserved.get(),
        tokens_charged: metrics.tokens_charged(),
        tokens_estimated: metrics.tokens_estimated.get(),
        tokens_after_disconnect: metrics.tokens_after_disconnect.get(),
        ttft_p50_ms: ttft(50),
        ttft_p95_ms: ttft(95),
        credential: target.live.credential().map(CredentialFault::as_str),
        breaker: breaker(
            view,
            shared.store.known(&target.policy.id).map_or(Duration::ZERO, |known| known.open_for),
        ),
    }
}

/// What the bucket that everyone shares holds when it is full: what tenants have reserved is not in it.
fn shared_burst(quota: &Quota) -> u64 {
    let reserved: u32 = quota.tenants.iter().map(|tenant| tenant.reserved_percent).sum();
    quota.burst_tokens * u64::from(100_u32.saturating_sub(reserved)) / 100
}

/// `not_asked`: how long this agent will not ask for a probe, its own jitter included.
fn breaker(view: Option<TargetView>, not_asked: Duration) -> BreakerView {
    let Some(view) = view else {
        return BreakerView {
            state: "unknown",
            epoch: 0,
            open_for_ms: 0,
            calls: 0,
            failures: 0,
            slow: 0,
            stalls: 0,
            probes_out: 0,
            ramping: false,
            opened_by: None,
        };
    };
    let open_for =
        if view.state == BreakerState::Open { view.open_for.max(not_asked) } else { view.open_for };
    let awaiting = view.state == BreakerState::Open && open_for.is_zero();
    BreakerView {
        state: if awaiting { "awaiting-probe" } else { view.state.as_str() },
        epoch: view.epoch,
        open_for_ms: millis(open_for),
        calls: view.counts.calls,
        failures: view.counts.failures,
        slow: view.counts.slow,
        stalls: view.counts.stalls,
        probes_out: view.probes_out,
        ramping: view.ramping,
        opened_by: view.opened_by.map(|traceparent| traceparent.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(name: &str, admitted: u64) -> TargetAggregate {
        TargetAggregate {
            target: TargetId::of("ns", name, "https://x", ""),
            in_flight: 0,
            limit: 1,
            admitted,
            refused: 0,
            failed_over: 0,
            breaker: None,
            credential: None,
        }
    }

    fn report(targets: Vec<TargetAggregate>, store: StoreHealth) -> Report {
        Report { transitions: Vec::new(), targets, store: Some(store) }
    }

    #[test]
    fn a_stream_is_told_everything_once_and_then_what_changes() {
        let mut told = Told::default();
        let first = report(vec![target("a", 1), target("b", 1)], StoreHealth::Shared);
        assert_eq!(told.news(first.clone()), Some(first.clone()));
        assert_eq!(told.news(first), None);
        let busy = report(vec![target("a", 2), target("b", 1)], StoreHealth::Shared);
        assert_eq!(told.news(busy), Some(Report { targets: vec![target("a", 2)], ..Report::default() }));
        let away = StoreHealth::Unreachable { reason: "x".to_owned() };
        let cut_off = report(vec![target("a", 2), target("b", 1)], away.clone());
        assert_eq!(told.news(cut_off), Some(Report { store: Some(away), ..Report::default() }));
    }
}
