//! The breaker of a target.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_core::defaults::breaker as defaults;

use crate::duration::DurationString;
use crate::enums::string_enum;
use crate::rule::{between, bounds, not_longer, optional_between, rule, union, unwritten};

const MILLISECOND: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_hours(1);

/// Outcomes that a window of type `Count` can hold.
const MOST_CALLS: u32 = 1_000;

/// When calls stop going to a target, and how they come back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = breaker_rules()))]
pub struct Breaker {
    /// Which outcomes the rates are computed from; absent: type `Time` with its defaults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,

    /// Calls in the window below which no rate trips the breaker; absent: 10, or `window.count.calls` where that
    /// is less.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub minimum_calls: Option<u32>,

    /// Failures among the window's calls, in percent, at which the breaker opens.
    #[schemars(range(min = 1, max = 100))]
    pub failure_percent: u32,

    /// When a call that succeeds is too slow, and how many slow calls open the breaker; absent: its defaults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow: Option<Slow>,

    /// Stalled or cut streams among the window's calls, in percent, at which the breaker opens.
    #[schemars(range(min = 1, max = 100))]
    pub stall_percent: u32,

    /// Failures in a row that open the breaker whatever `minimumCalls`; 0: off.
    #[schemars(range(min = 0, max = 1000))]
    pub consecutive_failures: u32,

    /// How long the breaker stays open.
    pub cooldown: Cooldown,

    /// How a recovery is tried.
    pub probes: Probes,

    /// How load comes back after a recovery.
    pub ramp: Ramp,

    /// What a status or an error type means to the breaker, before the built-in classification; the first
    /// match rules.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub classify: Vec<ClassifyRule>,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            window: None,
            minimum_calls: None,
            failure_percent: defaults::FAILURE_PERCENT,
            slow: None,
            stall_percent: defaults::STALL_PERCENT,
            consecutive_failures: defaults::CONSECUTIVE_FAILURES,
            cooldown: Cooldown::default(),
            probes: Probes::default(),
            ramp: Ramp::default(),
            classify: Vec::new(),
        }
    }
}

fn breaker_rules() -> Vec<serde_json::Value> {
    vec![rule(
        "minimumCalls",
        format!(
            "{} || !has(self.window.count) || self.minimumCalls <= (has(self.window.count.calls) ? \
             self.window.count.calls : {MOST_CALLS})",
            unwritten(&["minimumCalls", "window"])
        ),
        format!(
            "minimumCalls must not exceed window.count.calls (at most {MOST_CALLS}), or no rate ever opens the \
             breaker; lower minimumCalls or raise window.count.calls"
        ),
    )]
}

/// Which outcomes the rates are computed from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = window_rules()))]
pub struct Window {
    /// `Time`: those of the last while. `Count`: the last so many.
    #[serde(rename = "type")]
    pub type_: WindowType,

    /// With type `Time`: how long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<TimeWindow>,

    /// With type `Count`: how many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<CountWindow>,
}

fn window_rules() -> Vec<serde_json::Value> {
    union(&[("Time", Some("time")), ("Count", Some("count"))])
}

string_enum! {
    /// Kinds of windows.
    pub enum WindowType {
        Time = "Time",
        Count = "Count",
    }
}

/// A window in time, moved bucket by bucket.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = time_window_rules()))]
pub struct TimeWindow {
    /// Length of the window; absent: 1m, or the nearest that `buckets` divides into whole milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub span: Option<DurationString>,

    /// Buckets of equal length that the window consists of; absent: 10, or the nearest that divides `span`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16))]
    pub buckets: Option<u32>,
}

fn time_window_rules() -> Vec<serde_json::Value> {
    let but = format!("{} || duration(self.span) > duration('1h')", unwritten(&["span", "buckets"]));
    vec![
        optional_between("span", Duration::from_millis(100), HOUR),
        rule(
            "buckets",
            format!("{but} || duration(self.span).getMilliseconds() % self.buckets == 0"),
            "buckets must divide span into whole milliseconds; choose a number that divides it, such as 10 for 60s",
        ),
        rule(
            "buckets",
            format!("{but} || duration(self.span).getMilliseconds() >= self.buckets * 10"),
            "a bucket must last 10ms at least; use fewer buckets or a longer span",
        ),
    ]
}

/// The last so many outcomes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CountWindow {
    /// Outcomes that the window holds; absent: 100, or `minimumCalls` where that is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MOST_CALLS))]
    pub calls: Option<u32>,
}

/// When a call that succeeds was too slow all the same. A threshold that is absent is not looked at, but where
/// all of them are absent `ttft` is 5s.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = slow_rules()))]
pub struct Slow {
    /// Slow calls among the window's calls, in percent, at which the breaker opens.
    #[serde(default = "default_slow_percent")]
    #[schemars(range(min = 1, max = 100))]
    pub percent: u32,

    /// Time to first token of a stream above which it is slow; absent: 5s, or none where there is another
    /// threshold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft: Option<DurationString>,

    /// Time per output token above which a call is slow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_output_token: Option<DurationString>,

    /// Whole duration above which a call is slow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<DurationString>,

    /// Slow above this percentage of the target's own 95th percentile of time to first token, learned while
    /// it was healthy; 300 is three times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 110, max = 10_000))]
    pub relative_percent: Option<u32>,

    /// `Slow`: slow calls have their own rate, `percent`. `Failure`: they count as failures.
    #[serde(default)]
    pub count_as: SlowCounts,
}

const fn default_slow_percent() -> u32 {
    defaults::SLOW_PERCENT
}

impl Default for Slow {
    fn default() -> Self {
        Self {
            percent: default_slow_percent(),
            ttft: None,
            per_output_token: None,
            duration: None,
            relative_percent: None,
            count_as: SlowCounts::Slow,
        }
    }
}

fn slow_rules() -> Vec<serde_json::Value> {
    vec![
        optional_between("ttft", MILLISECOND, HOUR),
        optional_between("perOutputToken", MILLISECOND, Duration::from_mins(1)),
        optional_between("duration", MILLISECOND, HOUR),
    ]
}

string_enum! {
    /// What a slow call counts as.
    #[derive(Default)]
    pub enum SlowCounts {
        #[default]
        Slow = "Slow",
        Failure = "Failure",
    }
}

/// How long the breaker stays open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = cooldown_rules()))]
pub struct Cooldown {
    /// The first cool-down; absent: 30s, or `max` where that is shorter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<DurationString>,

    /// ± around the cool-down, in percent of it, drawn once by the call that trips and shared by all agents.
    #[schemars(range(min = 0, max = 90))]
    pub jitter_percent: u32,

    /// The next cool-down in percent of the last, when a recovery fails; 100: no growth. Back to `base` after
    /// the ramp and one clean window.
    #[schemars(range(min = 100, max = 1000))]
    pub growth_percent: u32,

    /// No cool-down grows longer than this; absent: 5m, or `base` where that is longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<DurationString>,
}

impl Default for Cooldown {
    fn default() -> Self {
        Self {
            base: None,
            jitter_percent: defaults::COOLDOWN_JITTER_PERCENT,
            growth_percent: defaults::COOLDOWN_GROWTH_PERCENT,
            max: None,
        }
    }
}

fn cooldown_rules() -> Vec<serde_json::Value> {
    vec![
        optional_between("base", MILLISECOND, HOUR),
        optional_between("max", MILLISECOND, HOUR * 24),
        not_longer(
            "base",
            "max",
            "base",
            "base must not be longer than max; shorten base or set a longer max",
        ),
    ]
}

/// How a recovery is tried: with real requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Probes {
    /// Probes between admission and verdict at a time, over all agents together.
    #[schemars(range(min = 1, max = 16))]
    pub concurrency: u32,

    /// Successful probes in a row that close the breaker.
    #[schemars(range(min = 1, max = 100))]
    pub successes: u32,
}

impl Default for Probes {
    fn default() -> Self {
        Self { concurrency: defaults::PROBE_CONCURRENCY, successes: defaults::PROBE_SUCCESSES }
    }
}

/// After a recovery, admissions grow from a part of the rate before the trip to all of it. What the ramp
/// refuses goes to the next target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [between("duration", Duration::ZERO, HOUR)]))]
pub struct Ramp {
    /// How long the growth takes; `0s`: no ramp.
    pub duration: DurationString,

    /// Where it begins, in percent of the rate before the trip.
    #[schemars(range(min = 1, max = 100))]
    pub initial_percent: u32,
}

impl Default for Ramp {
    fn default() -> Self {
        Self { duration: defaults::RAMP.into(), initial_percent: defaults::RAMP_INITIAL_PERCENT }
    }
}

/// What a status or an error type means to the breaker, instead of the built-in classification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = classify_rules()))]
pub struct ClassifyRule {
    /// Statuses that match; absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statuses: Option<StatusRange>,

    /// The error's `type` or `code` in the body; absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = bounds::LABEL))]
    pub error_type: Option<String>,

    /// What such an answer counts as. `Throttled` is not counted and makes everyone wait; `Ignored` is not
    /// counted at all.
    pub verdict: Verdict,
}

fn classify_rules() -> Vec<serde_json::Value> {
    vec![rule(
        "",
        "has(self.statuses) || has(self.errorType)",
        "the rule matches every answer; set statuses, errorType or both",
    )]
}

/// Statuses from `first` to `last`, both included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = status_range_rules()))]
pub struct StatusRange {
    /// First status.
    #[schemars(range(min = 100, max = 599))]
    pub first: u16,

    /// Last status.
    #[schemars(range(min = 100, max = 599))]
    pub last: u16,
}

fn status_range_rules() -> Vec<serde_json::Value> {
    vec![rule("first", "self.first <= self.last", "first must not exceed last; exchange them")]
}

string_enum! {
    /// What an attempt counts as.
    pub enum Verdict {
        Success = "Success",
        Failure = "Failure",
        Slow = "Slow",
        Stall = "Stall",
        Throttled = "Throttled",
        Ignored = "Ignored",
    }
}
