//! The quota of a target, shared by all agents.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_core::defaults::quota as defaults;

use crate::duration::DurationString;
use crate::rule::{between, bounds, not_longer, optional_between, rule};

/// Tokens and requests per minute over all agents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = quota_rules()))]
pub struct Quota {
    /// Tokens per minute, input and output together; absent: not limited; 0: nothing is admitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = bounds::TOKENS))]
    pub tokens_per_minute: Option<u64>,

    /// Tokens that can be spent at once; absent: those of one minute. None where `tokensPerMinute` is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = bounds::TOKENS))]
    pub burst_tokens: Option<u64>,

    /// Requests per minute; absent: not limited; 0: nothing is admitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub requests_per_minute: Option<u64>,

    /// Output tokens reserved for a request that names no maximum.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub default_max_output_tokens: u64,

    /// Tenants with a share of their own. A tenant spends its reserved share first, then the rest, which
    /// everyone shares.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub tenants: Vec<TenantShare>,

    /// What a 429 does to the target for everyone.
    pub pushback: Pushback,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            tokens_per_minute: None,
            burst_tokens: None,
            requests_per_minute: None,
            default_max_output_tokens: defaults::MAX_OUTPUT_TOKENS,
            tenants: Vec::new(),
            pushback: Pushback::default(),
        }
    }
}

fn quota_rules() -> Vec<serde_json::Value> {
    vec![
        rule(
            "burstTokens",
            "!has(self.burstTokens) || has(self.tokensPerMinute)",
            "burstTokens without tokensPerMinute limits nothing; set tokensPerMinute or remove burstTokens",
        ),
        rule(
            "burstTokens",
            "!has(self.burstTokens) || !has(self.tokensPerMinute) || self.tokensPerMinute == 0 || \
             (self.burstTokens > 0 && self.burstTokens >= self.tokensPerMinute / 60)",
            "burstTokens must hold one second of tokensPerMinute at least, or the quota can never be used; raise \
             burstTokens or remove it",
        ),
        rule(
            "tenants",
            "!has(self.tenants) || has(self.tokensPerMinute) || self.tenants.all(t, t.reservedPercent == 0)",
            "tenants reserve a share of tokensPerMinute and it is not set; set it or remove reservedPercent",
        ),
        rule(
            "tenants",
            "!has(self.tenants) || self.tenants.map(t, t.reservedPercent).sum() <= 100",
            "the tenants' reservedPercent add up to more than 100; lower them",
        ),
    ]
}

/// One tenant's share of a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantShare {
    /// The tenant's name, as the route's `tenant` gives it.
    #[schemars(length(min = 1, max = bounds::NAME))]
    pub name: String,

    /// Of the target's tokens, reserved for this tenant; 0 reserves nothing.
    #[serde(default)]
    #[schemars(range(min = 0, max = 100))]
    pub reserved_percent: u32,

    /// Share of the rest relative to other tenants of a lane.
    #[serde(default = "default_weight")]
    #[schemars(range(min = 1, max = 1000))]
    pub weight: u32,
}

const fn default_weight() -> u32 {
    defaults::TENANT_WEIGHT
}

/// What a 429 does to the target for everyone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = pushback_rules()))]
pub struct Pushback {
    /// Longest pause that a Retry-After can cause; absent: 5m, or `defaultPause` where that is longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_pause: Option<DurationString>,

    /// Pause after a 429 that names none; absent: 5s, or `maxPause` where that is shorter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_pause: Option<DurationString>,

    /// What is left of the refill rate after a pause, in percent, once per pause; 100: it does not shrink.
    #[schemars(range(min = 1, max = 100))]
    pub shrink_percent: u32,

    /// The refill rate never shrinks below this percentage of `tokensPerMinute`.
    #[schemars(range(min = 1, max = 100))]
    pub floor_percent: u32,

    /// How fast the refill rate comes back, in percent of `tokensPerMinute` per second.
    #[schemars(range(min = 1, max = 100))]
    pub recovery_percent_per_second: u32,

    /// Time without a 429 before it begins to come back.
    pub recovery_delay: DurationString,
}

impl Default for Pushback {
    fn default() -> Self {
        Self {
            max_pause: None,
            default_pause: None,
            shrink_percent: defaults::SHRINK_PERCENT,
            floor_percent: defaults::FLOOR_PERCENT,
            recovery_percent_per_second: defaults::RECOVERY_PERCENT_PER_SECOND,
            recovery_delay: defaults::RECOVERY_DELAY.into(),
        }
    }
}

fn pushback_rules() -> Vec<serde_json::Value> {
    let hour = Duration::from_hours(1);
    vec![
        optional_between("maxPause", Duration::from_millis(1), hour),
        optional_between("defaultPause", Duration::ZERO, hour),
        between("recoveryDelay", Duration::ZERO, hour),
        not_longer(
            "defaultPause",
            "maxPause",
            "defaultPause",
            "defaultPause must not be longer than maxPause; shorten it or raise maxPause",
        ),
    ]
}
