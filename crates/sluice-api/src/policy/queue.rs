//! Who waits for a slot, how long, and in which order.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_core::defaults::queue as defaults;

use crate::duration::DurationString;
use crate::route::Lane;
use crate::rule::{between, rule};

/// Bounded queues, one per lane.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = queue_rules()))]
pub struct Queue {
    /// The lanes. One that is not listed has its defaults.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 3))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub lanes: Vec<LaneQueue>,
}

/// Adds up the shares that are written; the others take what these leave.
fn queue_rules() -> Vec<serde_json::Value> {
    vec![rule(
        "lanes",
        "!has(self.lanes) || self.lanes.map(l, has(l.sharePercent) ? l.sharePercent : 0).sum() <= 100",
        "the lanes' sharePercent add up to more than 100; lower them",
    )]
}

/// The share of a lane whose `sharePercent` is absent, where the other lanes' leave as much.
#[must_use]
pub const fn built_in_share(lane: Lane) -> u32 {
    match lane {
        Lane::Interactive => defaults::INTERACTIVE_PERCENT,
        Lane::Agent => defaults::AGENT_PERCENT,
        Lane::Background => defaults::BACKGROUND_PERCENT,
    }
}

/// One lane's queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [between("maxWait", Duration::ZERO, Duration::from_mins(10))]))]
pub struct LaneQueue {
    /// Which lane.
    pub name: Lane,

    /// Of the concurrency limit, in percent; idle shares are borrowed. Absent: 60 for Interactive, 30 for Agent, 10
    /// for Background, or in these proportions what the other lanes' shares leave, where they leave less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub share_percent: Option<u32>,

    /// Exchanges that may wait; 0: none, the lane is refused when its slots are taken.
    #[serde(default = "default_max_length")]
    #[schemars(range(min = 0, max = 10_000))]
    pub max_length: u32,

    /// Longest wait.
    #[serde(default = "default_max_wait")]
    pub max_wait: DurationString,
}

const fn default_max_length() -> u32 {
    defaults::MAX_LENGTH
}

const fn default_max_wait() -> DurationString {
    DurationString(defaults::MAX_WAIT)
}

impl LaneQueue {
    /// A lane of which nothing is written.
    #[must_use]
    pub const fn built_in(lane: Lane) -> Self {
        Self {
            name: lane,
            share_percent: None,
            max_length: default_max_length(),
            max_wait: default_max_wait(),
        }
    }
}
