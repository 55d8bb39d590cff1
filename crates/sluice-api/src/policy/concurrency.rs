//! Exchanges in flight from one agent to one target.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_core::defaults::concurrency as defaults;

use crate::duration::DurationString;
use crate::enums::string_enum;
use crate::rule::{between, rule, union, unwritten};

/// How many exchanges may be in flight from one agent to one target. A slot is held until the stream ends;
/// latency is scored at the first token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = concurrency_rules()))]
pub struct Concurrency {
    /// `Fixed`: a number. `AIMD`: grows by one, shrinks by a factor when the time to first token exceeds a
    /// target. `Gradient`: shrinks as latency grows over its long-term mean. `Vegas`: holds the estimated
    /// queue upstream between two numbers.
    #[serde(rename = "type")]
    pub type_: ConcurrencyType,

    /// With type `Fixed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed: Option<FixedLimit>,

    /// With type `AIMD`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aimd: Option<Aimd>,

    /// With type `Gradient`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient: Option<Gradient>,

    /// With type `Vegas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vegas: Option<Vegas>,
}

fn concurrency_rules() -> Vec<serde_json::Value> {
    union(&[
        ("Fixed", Some("fixed")),
        ("AIMD", Some("aimd")),
        ("Gradient", Some("gradient")),
        ("Vegas", Some("vegas")),
    ])
}

string_enum! {
    /// Kinds of limiters.
    pub enum ConcurrencyType {
        Fixed = "Fixed",
        Aimd = "AIMD",
        Gradient = "Gradient",
        Vegas = "Vegas",
    }
}

fn range_rules() -> Vec<serde_json::Value> {
    vec![
        rule(
            "initial",
            "!has(self.initial) || ((!has(self.min) || self.min <= self.initial) && (!has(self.max) || self.initial \
             <= self.max))",
            "initial must lie between min and max; change initial, or set min and max around it",
        ),
        // With an initial between them the rule above speaks.
        rule(
            "min",
            "has(self.initial) || !has(self.min) || !has(self.max) || self.min <= self.max",
            "min must not exceed max; lower min or raise max",
        ),
    ]
}

/// A limit that does not change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FixedLimit {
    /// Exchanges in flight.
    #[schemars(range(min = 1, max = 100_000))]
    pub limit: u32,
}

impl Default for FixedLimit {
    fn default() -> Self {
        Self { limit: defaults::FIXED_LIMIT }
    }
}

/// Additive increase, multiplicative decrease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = aimd_rules()))]
pub struct Aimd {
    /// Where it begins; absent: 32, or the nearest between `min` and `max`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub initial: Option<u32>,

    /// The limit never falls below this; absent: 4, or `initial` or `max` where those are less.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub min: Option<u32>,

    /// The limit never exceeds this; absent: 512, or `initial` or `min` where those are more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max: Option<u32>,

    /// Time to first token above which the limit shrinks.
    pub ttft_target: DurationString,

    /// What is left of the limit after a decrease, in percent.
    #[schemars(range(min = 10, max = 99))]
    pub decrease_percent: u32,

    /// At most one decrease in this time.
    pub decrease_interval: DurationString,
}

impl Default for Aimd {
    fn default() -> Self {
        Self {
            initial: None,
            min: None,
            max: None,
            ttft_target: defaults::TTFT_TARGET.into(),
            decrease_percent: defaults::DECREASE_PERCENT,
            decrease_interval: defaults::DECREASE_INTERVAL.into(),
        }
    }
}

fn aimd_rules() -> Vec<serde_json::Value> {
    let mut rules = range_rules();
    let millisecond = Duration::from_millis(1);
    rules.push(between("ttftTarget", millisecond, Duration::from_mins(10)));
    rules.push(between("decreaseInterval", millisecond, Duration::from_mins(10)));
    rules
}

/// Shrinks as latency grows over its long-term mean (Netflix' Gradient2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = range_rules()))]
pub struct Gradient {
    /// Where it begins; absent: 32, or the nearest between `min` and `max`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub initial: Option<u32>,

    /// The limit never falls below this; absent: 4, or `initial` or `max` where those are less.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub min: Option<u32>,

    /// The limit never exceeds this; absent: 512, or `initial` or `min` where those are more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max: Option<u32>,

    /// Short-term latency in percent of the long-term mean up to which the limit does not shrink.
    #[schemars(range(min = 100, max = 1000))]
    pub tolerance_percent: u32,

    /// Weight of a new limit against the old one, in percent.
    #[schemars(range(min = 1, max = 100))]
    pub smoothing_percent: u32,
}

impl Default for Gradient {
    fn default() -> Self {
        Self {
            initial: None,
            min: None,
            max: None,
            tolerance_percent: defaults::GRADIENT_TOLERANCE_PERCENT,
            smoothing_percent: defaults::GRADIENT_SMOOTHING_PERCENT,
        }
    }
}

/// Holds the estimated queue upstream between two numbers (TCP Vegas).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = vegas_rules()))]
pub struct Vegas {
    /// Where it begins; absent: 32, or the nearest between `min` and `max`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub initial: Option<u32>,

    /// The limit never falls below this; absent: 4, or `initial` or `max` where those are less.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub min: Option<u32>,

    /// The limit never exceeds this; absent: 512, or `initial` or `min` where those are more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max: Option<u32>,

    /// The limit grows while fewer exchanges than this seem to queue upstream; absent: 3, or one less than `beta`
    /// where that is less.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 999))]
    pub alpha: Option<u32>,

    /// The limit shrinks when more exchanges than this seem to queue upstream; absent: 6, or one more than `alpha`
    /// where that is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 1000))]
    pub beta: Option<u32>,
}

fn vegas_rules() -> Vec<serde_json::Value> {
    let mut rules = range_rules();
    rules.push(rule(
        "alpha",
        format!("{} || self.alpha < self.beta", unwritten(&["alpha", "beta"])),
        "alpha must be less than beta, or the limit grows and shrinks at once; lower alpha or raise beta",
    ));
    rules
}
