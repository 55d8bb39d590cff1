//! The metrics: one row each. `docs/metrics.md`, the page at `/metrics` and what goes out over OTLP come from
//! these rows.
//!
//! A row has the OTLP name; the Prometheus name follows from it by OpenTelemetry's own rule (dots become
//! underscores, the unit and a counter's `_total` are appended), so that a scrape and a collector's translation
//! of the OTLP metric give the same series.

mod agent;
mod control_plane;

pub use agent::*;
pub use control_plane::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, from 0 at the start of the process.
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    /// As the page at `/metrics` writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// The units that we have, as UCUM writes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A number of things, or a code.
    None,
    Seconds,
    Token,
}

impl Unit {
    pub const fn ucum(self) -> &'static str {
        match self {
            Self::None => "1",
            Self::Seconds => "s",
            Self::Token => "{token}",
        }
    }
}

/// One metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Over OTLP.
    pub name: &'static str,
    pub kind: Kind,
    pub unit: Unit,
    /// Attributes; every value comes from policy or from a fixed set.
    pub labels: &'static [&'static str],
    /// One sentence, no full stop: the Prometheus client appends it.
    pub help: &'static str,
}

impl Metric {
    /// The name under which a Prometheus client registers it: without the `_total` that the page appends.
    pub fn registered_name(&self) -> String {
        let suffix = if self.unit == Unit::Seconds { "_seconds" } else { "" };
        self.name.replace('.', "_") + suffix
    }

    /// The name at `/metrics`.
    pub fn prometheus_name(&self) -> String {
        self.registered_name() + if self.kind == Kind::Counter { "_total" } else { "" }
    }
}

/// The metrics of a kind of process, under a heading.
pub type Section = (&'static str, &'static [&'static Metric]);

/// Every row.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    let sections = AGENT.iter().chain(CONTROL_PLANE).chain(CONTROLLER).chain(&[EVERY_PROCESS]);
    sections.flat_map(|(_, rows)| rows.iter().copied())
}

/// The metric that has this name at `/metrics`.
pub fn scraped_as(name: &str) -> Option<&'static Metric> {
    all().find(|metric| metric.prometheus_name() == name)
}

const NAME: &str = "name";
const REASON: &str = "reason";

const fn row(
    kind: Kind,
    unit: Unit,
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric { name, kind, unit, labels, help }
}

const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    row(Kind::Counter, Unit::None, name, labels, help)
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    row(Kind::Gauge, Unit::None, name, labels, help)
}

const fn tokens(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    row(Kind::Counter, Unit::Token, name, labels, help)
}

const fn seconds(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    row(Kind::Histogram, Unit::Seconds, name, labels, help)
}

pub const BUILD_INFO: Metric = gauge("sluice.build.info", &["version"], "Always 1; which build this is");
pub const TELEMETRY_EXPORTED: Metric = counter(
    "sluice.telemetry.exported",
    &["signal"],
    "Spans, log records and metric points that a collector accepted",
);
pub const TELEMETRY_DROPPED: Metric = counter(
    "sluice.telemetry.dropped",
    &["signal", REASON],
    "Spans, log records and metric points that were given up, by reason",
);

/// What every process has.
pub const EVERY_PROCESS: Section = ("Every process", &[&BUILD_INFO, &TELEMETRY_EXPORTED, &TELEMETRY_DROPPED]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_names_follow_from_otlp_names() {
        assert_eq!(BREAKER_STATE.prometheus_name(), "llm_circuit_breaker_state");
        assert_eq!(BREAKER_TRANSITIONS.prometheus_name(), "llm_circuit_breaker_transitions_total");
        assert_eq!(BREAKER_OPEN_TIME.prometheus_name(), "llm_circuit_breaker_open_time_seconds_total");
        assert_eq!(OPERATION_DURATION.prometheus_name(), "gen_ai_client_operation_duration_seconds");
        assert_eq!(TOKEN_USAGE.prometheus_name(), "gen_ai_client_token_usage");
    }

    #[test]
    fn no_two_rows_share_a_name() {
        let mut names: Vec<_> = all().map(Metric::registered_name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(all().all(|metric| scraped_as(&metric.prometheus_name()) == Some(metric)));
    }

    #[test]
    fn help_is_one_sentence() {
        for metric in all() {
            assert!(!metric.help.is_empty() && !metric.help.ends_with('.'), "{}", metric.name);
            assert!(!metric.help.contains(['\n', '\\', '|']), "{}", metric.name);
        }
    }
}
