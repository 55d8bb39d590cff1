//! The metrics: one row each. `docs/metrics.md`, the page at `/metrics` and what goes out over OTLP come from
//! these rows.
//!
//! A row has the OTLP name; the Prometheus name follows from it by OpenTelemetry's own rule (dots become
//! underscores, the unit and a counter's `_total` are appended), so that a scrape and a collector's translation
//! of the OTLP metric give the same series.

use super::attribute as a;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, from 0 at the start of the process.
    Counter,
    Gauge,
    Histogram,
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
#[derive(Debug, Clone, Copy)]
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

/// The metric that has this name at `/metrics`.
pub fn scraped_as(name: &str) -> Option<&'static Metric> {
    ALL.iter().copied().find(|metric| metric.prometheus_name() == name)
}

const NAME: &str = "name";
const REASON: &str = "reason";

const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, unit: Unit::None, labels, help }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, unit: Unit::None, labels, help }
}

pub const BREAKER_STATE: Metric =
    gauge("llm.circuit_breaker.state", &[NAME], "State of a target's breaker: 0 closed, 1 half-open, 2 open");
pub const BREAKER_REJECTIONS: Metric = counter(
    "llm.circuit_breaker.rejections",
    &[NAME, REASON],
    "Attempts that a target's shared state did not admit, by answer",
);
pub const BREAKER_TRANSITIONS: Metric = counter(
    "llm.circuit_breaker.transitions",
    &[NAME, "from", "to", REASON],
    "Transitions that an attempt of this agent caused",
);

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

pub const OPERATION_DURATION: Metric = Metric {
    name: "gen_ai.client.operation.duration",
    kind: Kind::Histogram,
    unit: Unit::Seconds,
    labels: &[a::GEN_AI_OPERATION_NAME, a::GEN_AI_PROVIDER_NAME, a::GEN_AI_REQUEST_MODEL, a::ERROR_TYPE],
    help: "From the start of an attempt to the last byte of its answer",
};
pub const TOKEN_USAGE: Metric = Metric {
    name: "gen_ai.client.token.usage",
    kind: Kind::Histogram,
    unit: Unit::Token,
    labels: &[
        a::GEN_AI_OPERATION_NAME,
        a::GEN_AI_PROVIDER_NAME,
        a::GEN_AI_REQUEST_MODEL,
        a::GEN_AI_TOKEN_TYPE,
    ],
    help: "Tokens of an attempt, as the provider reported them",
};
pub const TIME_TO_FIRST_CHUNK: Metric = Metric {
    name: "gen_ai.client.operation.time_to_first_chunk",
    kind: Kind::Histogram,
    unit: Unit::Seconds,
    labels: &[a::GEN_AI_OPERATION_NAME, a::GEN_AI_PROVIDER_NAME, a::GEN_AI_REQUEST_MODEL],
    help: "From the start of an attempt to its first token",
};

/// Every row.
pub const ALL: &[&Metric] = &[
    &BREAKER_STATE,
    &BREAKER_REJECTIONS,
    &BREAKER_TRANSITIONS,
    &OPERATION_DURATION,
    &TOKEN_USAGE,
    &TIME_TO_FIRST_CHUNK,
    &TELEMETRY_EXPORTED,
    &TELEMETRY_DROPPED,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_names_follow_from_otlp_names() {
        assert_eq!(BREAKER_STATE.prometheus_name(), "llm_circuit_breaker_state");
        assert_eq!(BREAKER_TRANSITIONS.prometheus_name(), "llm_circuit_breaker_transitions_total");
        assert_eq!(OPERATION_DURATION.prometheus_name(), "gen_ai_client_operation_duration_seconds");
        assert_eq!(TOKEN_USAGE.prometheus_name(), "gen_ai_client_token_usage");
    }

    #[test]
    fn no_two_rows_share_a_name() {
        let mut names: Vec<_> = ALL.iter().map(|metric| metric.registered_name()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
        assert!(ALL.iter().all(|metric| scraped_as(&metric.prometheus_name()).is_some()));
    }
}
