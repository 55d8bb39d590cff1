//! Deadlines, relaying, and what happens while the shared state is away.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_core::defaults;

use crate::duration::DurationString;
use crate::enums::string_enum;
use crate::rule::{between, not_longer, optional_between};

const MILLISECOND: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_hours(1);

/// How long an exchange and its parts may take. A caller's own deadline shortens them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = deadline_rules()))]
pub struct Deadlines {
    /// Streams: from the start of an attempt to its first token; absent: 10s, or `total` where that is shorter.
    /// Reasoning models want more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_token: Option<DurationString>,

    /// From the arrival of an exchange to its last byte, all attempts included; absent: 5m, or `firstToken` or
    /// `stall` where those are longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<DurationString>,

    /// Streams: between two signs of life, from the first token on; absent: 20s, or `total` or `maxSilence`
    /// where those are shorter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall: Option<DurationString>,

    /// Streams: without a token, however many pings and reasoning deltas arrive; absent: 5m, or `stall` where
    /// that is longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_silence: Option<DurationString>,
}

fn deadline_rules() -> Vec<serde_json::Value> {
    vec![
        optional_between("firstToken", MILLISECOND, HOUR),
        optional_between("total", MILLISECOND, HOUR * 24),
        optional_between("stall", MILLISECOND, HOUR),
        optional_between("maxSilence", MILLISECOND, HOUR * 24),
        not_longer(
            "firstToken",
            "total",
            "firstToken",
            "firstToken must not be longer than total; set a shorter firstToken or a longer total",
        ),
        not_longer(
            "stall",
            "total",
            "stall",
            "stall must not be longer than total; set a shorter stall or a longer total",
        ),
        not_longer(
            "stall",
            "maxSilence",
            "maxSilence",
            "maxSilence must not be shorter than stall, which it extends; set a longer maxSilence or a shorter stall",
        ),
    ]
}

/// How answers are relayed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = streaming_rules()))]
pub struct Streaming {
    /// Bytes buffered per stream between provider and client; when full, the provider is not read. Up to as
    /// many are held back before the first token, so that failover stays invisible.
    #[schemars(range(min = 4096, max = 16_777_216))]
    pub buffer_bytes: u64,

    /// A client that reads nothing for this long is closed, and the provider's stream with it.
    pub slow_client_timeout: DurationString,

    /// Send a comment to the client after this long without a byte, so that idle hops stay open; absent: off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<DurationString>,

    /// Largest body of a request; a larger one is refused with 413.
    #[schemars(range(min = 1024, max = 268_435_456))]
    pub body_bytes: u64,

    /// Whether the provider is told the remaining deadline: `Header` sends `x-sluice-timeout-ms` upstream.
    pub deadline_propagation: DeadlinePropagation,

    /// Whether the provider is told the trace: `TraceContext` sends W3C `traceparent` and `tracestate` upstream, for
    /// providers that you run yourself. `baggage` is never sent.
    pub trace_propagation: TracePropagation,
}

impl Default for Streaming {
    fn default() -> Self {
        use defaults::streaming as d;
        Self {
            buffer_bytes: d::BUFFER_BYTES,
            slow_client_timeout: d::SLOW_CLIENT.into(),
            keep_alive: None,
            body_bytes: d::BODY_BYTES,
            deadline_propagation: DeadlinePropagation::None,
            trace_propagation: TracePropagation::None,
        }
    }
}

fn streaming_rules() -> Vec<serde_json::Value> {
    vec![
        between("slowClientTimeout", MILLISECOND, HOUR),
        optional_between("keepAlive", Duration::from_millis(100), HOUR),
    ]
}

string_enum! {
    /// Whether the remaining deadline goes upstream.
    #[derive(Default)]
    pub enum DeadlinePropagation {
        #[default]
        None = "None",
        Header = "Header",
    }
}

string_enum! {
    /// Whether the trace goes upstream.
    #[derive(Default)]
    pub enum TracePropagation {
        #[default]
        None = "None",
        TraceContext = "TraceContext",
    }
}

/// What happens while the shared state is away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StateStore {
    /// `LocalFallback`: each agent's own breaker, and its share of 80 % of the quota. `FailOpen`: its own
    /// breaker and no quota. `FailClosed`: exchanges are refused.
    pub on_unreachable: OnUnreachable,

    /// Agents that share the quota in `LocalFallback`, until the control plane has counted them.
    #[schemars(range(min = 1, max = 100_000))]
    pub assumed_agents: u32,
}

impl Default for StateStore {
    fn default() -> Self {
        Self {
            on_unreachable: OnUnreachable::default(),
            assumed_agents: defaults::state_store::ASSUMED_AGENTS,
        }
    }
}

string_enum! {
    /// What an exchange does while the shared state is away.
    #[derive(Default)]
    pub enum OnUnreachable {
        #[default]
        LocalFallback = "LocalFallback",
        FailOpen = "FailOpen",
        FailClosed = "FailClosed",
    }
}
