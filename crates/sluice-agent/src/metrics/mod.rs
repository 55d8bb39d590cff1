//! The agent's metrics. Handles are made once per target, when its policy arrives: an exchange touches
//! atomics only, and label values come from policy, never from a request.
//!
//! | module | |
//! |---|---|
//! | [`target`] | what is counted per target |
//! | [`calls`] | the GenAI conventions' histograms, per target, operation and model |
//! | [`series`] | that the series of a target go with it |
//! | [`open_time`] | for how long a breaker was open |
//!
//! Every family has a row in `sluice_telemetry::names::metric`; a test compares them.

mod calls;
mod open_time;
mod series;
mod target;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use sluice_core::policy::{ModelPattern, TargetPolicy};
use sluice_state::store::{StoreHealth, StoreStats};
use sluice_telemetry::names::metric as rows;
use sluice_telemetry::{Books, Page, TextFormat};

pub(crate) use calls::{CallMetrics, Ended};
pub(crate) use target::TargetMetrics;

use calls::CallFamilies;
use target::TargetFamilies;

/// Seconds. Redis beside the agent answers in a tenth of a millisecond; an admission gives up after 20 ms.
const STORE_BUCKETS: [f64; 10] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RefusalLabel {
    route: Arc<str>,
    stage: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OperationLabel {
    operation: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct HomeLabel {
    home: &'static str,
}

/// Everything the agent counts.
pub(crate) struct Metrics {
    page: Page,
    targets: TargetFamilies,
    calls: Arc<CallFamilies>,
    refusals: Family<RefusalLabel, Counter>,
    /// Those with a route, so that they go with it.
    refused_routes: Mutex<HashSet<RefusalLabel>>,
    pub(crate) failed_over: Counter,
    pub(crate) exchanges: Counter,
    pub(crate) exchanges_in_flight: Gauge,
    pub(crate) cancelled: Counter,
    /// All refusals together; for `/state`.
    pub(crate) refused_total: Counter,
    /// Round trips of admissions to the shared state.
    pub(crate) store_duration: Histogram,
    pub(crate) policy_updates: Counter,
    store: StoreMetrics,
    unsettled: Gauge,
    connected: Gauge,
    routes: Gauge,
    rejected: Gauge,
}

/// What the store counts itself, shown as it is at each reading.
#[derive(Default)]
struct StoreMetrics {
    reachable: Family<HomeLabel, Gauge>,
    subscribed: Gauge,
    may_evict: Gauge,
    errors: Family<OperationLabel, Counter>,
    fallbacks: Counter,
    refused: Counter,
    skipped: Counter,
    connections: Counter,
    scripts_lost: Counter,
    settlements: Family<OutcomeLabel, Counter>,
    settlements_waiting: Gauge,
    tokens_forgiven: Counter,
}

/// What is read elsewhere when the page is.
pub(crate) struct Reading {
    pub(crate) home: &'static str,
    pub(crate) health: StoreHealth,
    pub(crate) stats: StoreStats,
    pub(crate) unsettled: u64,
    /// To the control plane.
    pub(crate) connected: bool,
    pub(crate) routes: usize,
    pub(crate) rejected: usize,
}

impl Metrics {
    pub(crate) fn new(books: &Books) -> Self {
        let mut page = Page::new(books);
        let targets = TargetFamilies::register(&mut page);
        let calls = Arc::new(CallFamilies::register(&mut page));
        let mut metrics = Self {
            targets,
            calls,
            refusals: Family::default(),
            refused_routes: Mutex::default(),
            failed_over: Counter::default(),
            exchanges: Counter::default(),
            exchanges_in_flight: Gauge::default(),
            cancelled: Counter::default(),
            refused_total: Counter::default(),
            store_duration: Histogram::new(STORE_BUCKETS),
            policy_updates: Counter::default(),
            store: StoreMetrics::default(),
            unsettled: Gauge::default(),
            connected: Gauge::default(),
            routes: Gauge::default(),
            rejected: Gauge::default(),
            page,
        };
        metrics.register_exchanges();
        metrics.register_store();
        metrics
    }

    fn register_exchanges(&mut self) {
        let page = &mut self.page;
        page.register(&rows::EXCHANGES, self.exchanges.clone());
        page.register(&rows::EXCHANGES_IN_FLIGHT, self.exchanges_in_flight.clone());
        page.register(&rows::EXCHANGES_FAILED_OVER, self.failed_over.clone());
        page.register(&rows::EXCHANGES_CANCELLED, self.cancelled.clone());
        page.register(&rows::REFUSALS, self.refusals.clone());
        page.register(&rows::POLICY_CONNECTED, self.connected.clone());
        page.register(&rows::POLICY_ROUTES, self.routes.clone());
        page.register(&rows::POLICY_REJECTED, self.rejected.clone());
        page.register(&rows::POLICY_UPDATES, self.policy_updates.clone());
    }

    fn register_store(&mut self) {
        let (page, store) = (&mut self.page, &self.store);
        page.register(&rows::UNSETTLED, self.unsettled.clone());
        page.register(&rows::SETTLEMENTS, store.settlements.clone());
        page.register(&rows::SETTLEMENTS_WAITING, store.settlements_waiting.clone());
        page.register(&rows::TOKENS_FORGIVEN, store.tokens_forgiven.clone());
        page.register(&rows::STORE_REACHABLE, store.reachable.clone());
        page.register(&rows::STORE_SUBSCRIBED, store.subscribed.clone());
        page.register(&rows::STORE_MAY_EVICT, store.may_evict.clone());
        page.register(&rows::STORE_DURATION, self.store_duration.clone());
        page.register(&rows::STORE_ERRORS, store.errors.clone());
        page.register(&rows::STORE_FALLBACKS, store.fallbacks.clone());
        page.register(&rows::STORE_REFUSED, store.refused.clone());
        page.register(&rows::STORE_SKIPPED, store.skipped.clone());
        page.register(&rows::STORE_CONNECTIONS, store.connections.clone());
        page.register(&rows::STORE_SCRIPTS_LOST, store.scripts_lost.clone());
    }

    /// The handles of one target; `name` is `namespace/route/target`.
    pub(crate) fn target(&self, name: &str) -> TargetMetrics {
        TargetMetrics::new(name, &self.targets)
    }

    /// The handles of a target's calls, for the models that its route is asked for.
    pub(crate) fn calls(&self, name: &str, policy: &TargetPolicy, models: &[ModelPattern]) -> CallMetrics {
        CallMetrics::new(name, policy, models, self.calls.clone())
    }

    /// Takes the refusals of routes out that are no more.
    pub(crate) fn retain_routes(&self, named: &HashSet<&str>) {
        self.refused_routes.lock().retain(|label| {
            let keep = named.contains(&*label.route);
            if !keep {
                self.refusals.remove(label);
            }
            keep
        });
    }

    /// `route`: as the policy names it, where one was found.
    pub(crate) fn refused(&self, route: Option<&Arc<str>>, stage: &'static str, reason: &'static str) {
        self.refused_total.inc();
        let label = RefusalLabel { route: route.cloned().unwrap_or_default(), stage, reason };
        self.refusals.get_or_create_owned(&label).inc();
        if route.is_some() {
            self.refused_routes.lock().insert(label);
        }
    }

    /// Brings up to date what is counted elsewhere.
    pub(crate) fn read(&self, reading: &Reading) {
        let gauge = |gauge: &Gauge, value: u64| gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        let count = |counter: &Counter, total: u64| counter.inner().store(total, Ordering::Relaxed);
        let (store, stats) = (&self.store, &reading.stats);
        store
            .reachable
            .get_or_create_owned(&HomeLabel { home: reading.home })
            .set(i64::from(reading.health.reachable));
        store.subscribed.set(i64::from(reading.health.subscribed));
        store.may_evict.set(i64::from(reading.health.unsafe_eviction.is_some()));
        for (operation, total) in [("admit", stats.admit_errors), ("settle", stats.settle_errors)] {
            count(&store.errors.get_or_create_owned(&OperationLabel { operation }), total);
        }
        for (outcome, total) in [("delivered", stats.settles), ("dropped", stats.settles_dropped)] {
            count(&store.settlements.get_or_create_owned(&OutcomeLabel { outcome }), total);
        }
        count(&store.fallbacks, stats.fallbacks);
        count(&store.refused, stats.refused);
        count(&store.skipped, stats.skipped);
        count(&store.connections, stats.connections);
        count(&store.scripts_lost, stats.noscript);
        count(&store.tokens_forgiven, stats.tokens_forgiven);
        gauge(&store.settlements_waiting, stats.settles_waiting);
        gauge(&self.unsettled, reading.unsettled);
        gauge(&self.connected, reading.connected.into());
        gauge(&self.routes, reading.routes as u64);
        gauge(&self.rejected, reading.rejected as u64);
    }

    pub(crate) fn registry(&self) -> &Registry {
        self.page.registry()
    }

    /// The page at `/metrics`.
    pub(crate) fn text(&self, format: TextFormat) -> String {
        self.page.text(format)
    }

    #[cfg(test)]
    pub(crate) fn misfits(&self) -> Vec<String> {
        self.page.misfits(rows::AGENT)
    }
}

/// Counters of a float, for times.
type Seconds = Counter<f64, AtomicU64>;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use sluice_core::admission::{AdmitAnswer, BreakerState, Transition, TransitionReason, WindowCounts};
    use sluice_core::balance::PassedOver;
    use sluice_core::classify::CredentialFault;
    use sluice_core::policy::{Credential, Provider, Rules};
    use sluice_core::target_id::TargetId;
    use sluice_core::wire::{Operation, Usage};

    use super::*;

    fn policy(model: Option<&str>) -> TargetPolicy {
        TargetPolicy {
            name: "primary".into(),
            id: TargetId::of("ns", "chat/primary", "http://127.0.0.1/v1", ""),
            provider: Provider::OpenAi,
            endpoint: "http://127.0.0.1/v1".into(),
            model: model.map(Into::into),
            region: "".into(),
            credential: Credential::None,
            priority: 0,
            weight: 1,
            price: None,
            rules: Rules::default(),
        }
    }

    fn reading() -> Reading {
        let health = StoreHealth { reachable: true, error: None, subscribed: true, unsafe_eviction: None };
        let stats = StoreStats { settles: 5, ..StoreStats::default() };
        Reading { home: "redis", health, stats, unsettled: 1, connected: true, routes: 2, rejected: 0 }
    }

    /// Everything that can be counted, counted once.
    fn exercise(metrics: &Metrics) -> (TargetMetrics, CallMetrics) {
        let target = metrics.target("ns/chat/primary");
        let models = ["gpt-4o", "gpt-*"].map(ModelPattern::parse);
        let calls = metrics.calls("ns/chat/primary", &policy(None), &models);
        for answer in AdmitAnswer::ALL {
            target.answered(answer, 10);
        }
        target.passed_over(PassedOver::LimiterFull);
        target.observed("open");
        target.credential_fault(CredentialFault::Refused);
        target.see(Duration::from_secs(1), BreakerState::Open, Duration::from_secs(5));
        target.see_limit(8, 3);
        target.see_tokens_left(-7);
        target.transition(&Transition {
            from: BreakerState::Closed,
            to: BreakerState::Open,
            reason: TransitionReason::SlowRate,
            epoch: 3,
            counts: WindowCounts::default(),
        });
        let took = Duration::from_millis(1_500);
        let usage = Some(Usage { input: 9, output: 40, ..Usage::default() });
        calls.first_token(Operation::ChatCompletions, "gpt-4o", took);
        calls.ended(Operation::ChatCompletions, "gpt-4o", Ended { took, error: None, usage });
        calls.ended(Operation::Responses, "gpt-5", Ended { took, error: Some("throttled"), usage: None });
        metrics.refused(Some(&"ns/chat".into()), "admit", "circuit_open");
        metrics.refused(None, "route", "model_not_found");
        metrics.store_duration.observe(0.0004);
        metrics.read(&reading());
        (target, calls)
    }

    fn series(metrics: &Metrics) -> usize {
        metrics.text(TextFormat::Prometheus).lines().filter(|line| !line.starts_with('#')).count()
    }

    #[test]
    fn every_family_fits_its_row_and_every_row_has_a_family() {
        let metrics = Metrics::new(&Books::new());
        exercise(&metrics);
        assert_eq!(metrics.misfits(), Vec::<String>::new());
        let page = metrics.text(TextFormat::Prometheus);
        for row in rows::AGENT.iter().chain([&rows::EVERY_PROCESS]).flat_map(|(_, rows)| *rows) {
            let line = format!("# TYPE {} {}\n", row.prometheus_name(), row.kind.as_str());
            assert!(page.contains(&line), "{line}");
        }
    }

    #[test]
    fn a_target_that_is_forgotten_leaves_no_series_and_makes_no_more() {
        let metrics = Metrics::new(&Books::new());
        metrics.read(&reading());
        let before = series(&metrics);
        let (target, calls) = exercise(&metrics);
        target.forget();
        calls.forget();
        metrics.retain_routes(&HashSet::from(["ns/another"]));
        target.observed("paused");
        target.passed_over(PassedOver::LimiterFull);
        target.see_tokens_left(1);
        let ended = Ended { took: Duration::from_secs(1), error: Some("stall"), usage: None };
        calls.ended(Operation::ChatCompletions, "gpt-4o", ended);
        calls.first_token(Operation::Embeddings, "gpt-4o", Duration::from_secs(1));
        let page = metrics.text(TextFormat::Prometheus);
        assert!(!page.contains("ns/chat"), "{page}");
        // The refusal that had no route is its own.
        assert_eq!(series(&metrics), before + 1, "{page}");
    }

    #[test]
    fn a_model_counts_under_the_name_or_the_longest_pattern_that_it_fits() {
        let metrics = Metrics::new(&Books::new());
        let models = ["gpt-4o", "gpt-*", "gpt-4*"].map(ModelPattern::parse);
        let calls = metrics.calls("ns/chat/primary", &policy(None), &models);
        let took = Duration::from_secs(1);
        for asked in ["gpt-4o", "gpt-4o-mini", "gpt-5", "gpt-6", "", "from-a-request"] {
            calls.first_token(Operation::ChatCompletions, asked, took);
        }
        let page = metrics.text(TextFormat::Prometheus);
        for (label, count) in [("gpt-4o", 1), ("gpt-4*", 1), ("gpt-*", 2), ("_other", 2)] {
            let model = format!("gen_ai_request_model=\"{label}\"");
            let line = page.lines().find(|line| {
                line.starts_with("gen_ai_client_operation_time_to_first_chunk_seconds_count")
                    && line.contains(&model)
            });
            assert!(line.unwrap().ends_with(&format!(" {count}")), "{line:?}");
        }
        let own = metrics.calls("ns/chat/fallback", &policy(Some("small")), &models);
        own.first_token(Operation::ChatCompletions, "gpt-5", took);
        assert!(metrics.text(TextFormat::Prometheus).contains("gen_ai_request_model=\"small\""));
        assert!(!own.is_same(&calls) && calls.is_same(&metrics.calls("x", &policy(None), &models)));
    }

    #[test]
    fn only_the_breakers_own_refusals_are_its_rejections() {
        let metrics = Metrics::new(&Books::new());
        let (target, _) = exercise(&metrics);
        let page = metrics.text(TextFormat::Prometheus);
        for (reason, told) in [("open", true), ("ramping", true), ("tokens-exhausted", false)] {
            let of_breaker = format!(
                "llm_circuit_breaker_rejections_total{{name=\"ns/chat/primary\",reason=\"{reason}\"}} 1"
            );
            assert_eq!(page.contains(&of_breaker), told, "{reason}");
            let tokens =
                format!("sluice_tokens_refused_total{{name=\"ns/chat/primary\",answer=\"{reason}\"}} 10");
            assert!(page.contains(&tokens), "{page}");
        }
        assert!(!page.contains("answer=\"admitted\"} 10") && target.rejections().len() == 6);
    }
}
