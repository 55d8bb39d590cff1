//! How often an exchange is tried.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_core::defaults::retries as defaults;

use crate::duration::DurationString;
use crate::rule::{between, not_longer, optional_between};

const MINUTE: Duration = Duration::from_mins(1);

/// Retries, only before the first byte has reached the client. Going on to the next target is failover and
/// free of the budget; `maxAttempts` bounds both together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [between("retryAfterMax", Duration::ZERO, MINUTE * 60)]))]
pub struct Retries {
    /// Attempts of one exchange over all targets, the first included; 1: no retries and no failover after a
    /// failed attempt.
    #[schemars(range(min = 1, max = 10))]
    pub max_attempts: u32,

    /// Waits between attempts at one target.
    pub backoff: Backoff,

    /// Retries in percent of first attempts, per agent and target, over 10 s; one per 10 s is always allowed.
    #[schemars(range(min = 0, max = 100))]
    pub budget_percent: u32,

    /// A longer Retry-After is not waited for.
    pub retry_after_max: DurationString,

    /// gRPC's retry throttling on top of the budget; absent: off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttling: Option<Throttling>,

    /// Adaptive throttling of new requests (Google SRE, "Handling Overload"); absent: off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adaptive: Option<AdaptiveThrottling>,
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            max_attempts: defaults::MAX_ATTEMPTS,
            backoff: Backoff::default(),
            budget_percent: defaults::BUDGET_PERCENT,
            retry_after_max: defaults::RETRY_AFTER_MAX.into(),
            throttling: None,
            adaptive: None,
        }
    }
}

/// Exponential backoff with full jitter: before retry n a time between 0 and base × 2^(n−1), at most `max`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = backoff_rules()))]
pub struct Backoff {
    /// Longest wait before the first retry; absent: 250ms, or `max` where that is shorter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<DurationString>,

    /// Longest wait before any retry; absent: 8s, or `base` where that is longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<DurationString>,
}

fn backoff_rules() -> Vec<serde_json::Value> {
    vec![
        optional_between("base", Duration::from_millis(1), MINUTE),
        optional_between("max", Duration::from_millis(1), MINUTE * 10),
        not_longer(
            "base",
            "max",
            "base",
            "base must not be longer than max; shorten base or set a longer max",
        ),
    ]
}

/// gRPC's retry throttling (gRFC A6): a failure costs one token, a success returns `tokenRatioPercent` / 100,
/// and retries stop while half of the tokens or more are gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Throttling {
    /// Tokens when full.
    #[schemars(range(min = 1, max = 1000))]
    pub max_tokens: u32,

    /// What a success returns, in percent of a token.
    #[schemars(range(min = 1, max = 1000))]
    pub token_ratio_percent: u32,
}

impl Default for Throttling {
    fn default() -> Self {
        Self {
            max_tokens: defaults::THROTTLING_MAX_TOKENS,
            token_ratio_percent: defaults::THROTTLING_TOKEN_RATIO_PERCENT,
        }
    }
}

/// New requests are refused with the probability max(0, (requests − K × accepts) / (requests + 1)).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AdaptiveThrottling {
    /// K in percent: 200 lets through twice as many requests as the target accepts.
    #[schemars(range(min = 101, max = 1000))]
    pub k_percent: u32,
}

impl Default for AdaptiveThrottling {
    fn default() -> Self {
        Self { k_percent: defaults::ADAPTIVE_K_PERCENT }
    }
}
