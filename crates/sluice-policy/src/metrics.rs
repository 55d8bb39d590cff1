//! What a control plane measures: for `/metrics` and OTLP, under the names of `sluice_telemetry::names::metric`.
//!
//! Who is counted is what is there already (the [`Fleet`]); what happens is counted where it happens.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use sluice_telemetry::names::metric as rows;
use sluice_telemetry::{Books, MetricSource, Page, TextFormat};

use crate::compile::Compiled;
use crate::fleet::Fleet;

/// Seconds. A compilation of ten routes takes less than a millisecond, one of ten thousand a second.
const COMPILE_BUCKETS: [f64; 10] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

/// What came of reading the resources' source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reload {
    Changed,
    Unchanged,
    Failed,
}

/// What the streams count.
#[derive(Debug, Default)]
pub(crate) struct StreamCounts {
    pushes: Family<KindLabel, Counter>,
    acks: Family<OutcomeLabel, Counter>,
    rejected_routes: Counter,
}

impl StreamCounts {
    /// `kind`: snapshot, secrets or agents.
    pub(crate) fn pushed(&self, kind: &'static str) {
        self.pushes.get_or_create_owned(&KindLabel { kind }).inc();
    }

    pub(crate) fn answered(&self, rejected: usize) {
        let outcome = if rejected == 0 { "accepted" } else { "rejected" };
        self.acks.get_or_create_owned(&OutcomeLabel { outcome }).inc();
        self.rejected_routes.inc_by(rejected as u64);
    }
}

/// A control plane's metrics.
#[derive(Debug)]
pub struct ControlMetrics {
    page: Page,
    fleet: Arc<Fleet>,
    compile: Histogram,
    routes: Family<StateLabel, Gauge>,
    reloads: Family<OutcomeLabel, Counter>,
    agents: Family<StateLabel, Gauge>,
    transitions_dropped: Counter,
}

impl ControlMetrics {
    /// `books`: what became of the process's own telemetry.
    #[must_use]
    pub fn new(books: &Books, fleet: Arc<Fleet>) -> Self {
        let mut metrics = Self {
            page: Page::new(books),
            compile: Histogram::new(COMPILE_BUCKETS),
            routes: Family::default(),
            reloads: Family::default(),
            agents: Family::default(),
            transitions_dropped: Counter::default(),
            fleet,
        };
        let page = &mut metrics.page;
        page.register(&rows::COMPILE_DURATION, metrics.compile.clone());
        page.register(&rows::ROUTES, metrics.routes.clone());
        page.register(&rows::RELOADS, metrics.reloads.clone());
        page.register(&rows::AGENTS, metrics.agents.clone());
        page.register(&rows::PUSHES, metrics.fleet.counts().pushes.clone());
        page.register(&rows::ACKS, metrics.fleet.counts().acks.clone());
        page.register(&rows::REJECTED_ROUTES, metrics.fleet.counts().rejected_routes.clone());
        page.register(&rows::TRANSITIONS_DROPPED, metrics.transitions_dropped.clone());
        metrics
    }

    /// For what else a control plane measures.
    pub fn page_mut(&mut self) -> &mut Page {
        &mut self.page
    }

    pub fn reloaded(&self, reload: Reload) {
        let outcome = match reload {
            Reload::Changed => "changed",
            Reload::Unchanged => "unchanged",
            Reload::Failed => "failed",
        };
        self.reloads.get_or_create_owned(&OutcomeLabel { outcome }).inc();
    }

    pub fn compiled(&self, took: Duration, compiled: &Compiled) {
        self.compile.observe(took.as_secs_f64());
        let routes = compiled.namespaces.values().map(|namespace| namespace.routes.len()).sum();
        let held = compiled.namespaces.values().map(|namespace| namespace.held.len()).sum();
        set(&self.routes, "compiled", routes);
        set(&self.routes, "held", held);
    }

    /// The page at `/metrics`.
    #[must_use]
    pub fn text(&self, format: TextFormat) -> String {
        self.refresh();
        self.page.text(format)
    }

    fn refresh(&self) {
        let sync = self.fleet.sync();
        set(&self.agents, "in-sync", sync.in_sync);
        set(&self.agents, "behind", sync.behind);
        set(&self.agents, "rejecting", sync.rejecting);
        self.transitions_dropped.inner().store(self.fleet.dropped_transitions(), Ordering::Relaxed);
    }
}

impl MetricSource for ControlMetrics {
    fn read(&self, reader: &mut dyn FnMut(&Registry)) {
        self.refresh();
        reader(self.page.registry());
    }
}

fn set(family: &Family<StateLabel, Gauge>, state: &'static str, value: usize) {
    family.get_or_create_owned(&StateLabel { state }).set(i64::try_from(value).unwrap_or(i64::MAX));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_fits_its_row_and_every_row_has_a_family() {
        let (fleet, _transitions) = Fleet::new();
        let metrics = ControlMetrics::new(&Books::new(), Arc::new(fleet));
        metrics.reloaded(Reload::Changed);
        metrics.compiled(Duration::from_millis(1), &Compiled::default());
        metrics.fleet.counts().pushed("snapshot");
        metrics.fleet.counts().answered(0);
        metrics.fleet.counts().answered(2);
        let page = metrics.text(TextFormat::Prometheus);
        assert_eq!(metrics.page.misfits(rows::CONTROL_PLANE), Vec::<String>::new());
        for line in [
            "sluice_control_plane_acks_total{outcome=\"rejected\"} 1",
            "sluice_control_plane_rejected_routes_total 2",
            "sluice_control_plane_agents{state=\"in-sync\"} 0",
        ] {
            assert!(page.lines().any(|one| one == line), "{line}\n{page}");
        }
    }
}
