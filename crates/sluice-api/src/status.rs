//! What the controller writes back.
//!
//! A policy's status has the shape of GEP-713: one ancestor per object it rules. A route's status shows sums
//! over the fleet and per target the state of the shared breaker, never lists of pods.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::enums::string_enum;
use crate::rule::bounds;

/// Longest message in a status.
pub const MAX_MESSAGE: usize = 1024;
/// Most ancestors in a policy's status.
pub const MAX_ANCESTORS: usize = 16;

/// Status of a `ModelRoute`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelRouteStatus {
    /// `Accepted`, `ResolvedRefs`, `Programmed` and, where they matter, others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,

    /// Agents that serve this route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agents: Option<AgentsStatus>,

    /// The targets, in the order of the spec.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub targets: Vec<TargetStatus>,

    /// Texts for `kubectl get`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<RouteSummary>,
}

/// Agents that serve a route, counted over the fleet.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentsStatus {
    /// Agents with a stream to a controller.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub connected: u32,

    /// Those that work by the newest version.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub in_sync: u32,

    /// Those that refused it and stay with their last good one.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub rejecting: u32,

    /// Why the first of them refused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_MESSAGE))]
    pub reason: Option<String>,
}

/// One target as the whole fleet sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetStatus {
    /// The target's name.
    #[schemars(length(max = bounds::LABEL))]
    pub name: String,

    /// Its breaker.
    pub breaker: BreakerStatus,
}

/// A breaker's state, since when, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BreakerStatus {
    /// The state.
    pub state: BreakerState,

    /// When it came to this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub since: Option<Time>,

    /// What brought it there, such as `failure-rate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_MESSAGE))]
    pub reason: Option<String>,
}

string_enum! {
    /// State of a breaker, from best to worst.
    pub enum BreakerState {
        Closed = "Closed",
        /// Its cool-down is over and no request has come to probe with.
        AwaitingProbe = "AwaitingProbe",
        HalfOpen = "HalfOpen",
        Open = "Open",
    }
}

/// Texts for `kubectl get`, which prints a list's first element only.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteSummary {
    /// Names of the targets in the order of their priority.
    #[schemars(length(max = MAX_MESSAGE))]
    pub targets: String,

    /// The worst breaker's state.
    #[schemars(length(max = MAX_MESSAGE))]
    pub breaker: String,

    /// Agents in sync / connected.
    #[schemars(length(max = MAX_MESSAGE))]
    pub agents: String,
}

/// Status of a `ReliabilityPolicy`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReliabilityPolicyStatus {
    /// One entry per route that the policy rules, or one for a Namespace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_ANCESTORS), extend("x-kubernetes-list-type" = "atomic"))]
    pub ancestors: Vec<PolicyAncestorStatus>,
}

/// The policy's standing with one object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyAncestorStatus {
    /// The object.
    pub ancestor_ref: AncestorRef,

    /// Who wrote this entry.
    #[schemars(length(min = 1, max = bounds::NAME))]
    pub controller_name: String,

    /// `Accepted` and `Programmed`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}

/// An object that a policy rules.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AncestorRef {
    /// Its API group.
    #[schemars(length(max = bounds::NAME))]
    pub group: String,

    /// Its kind.
    #[schemars(length(min = 1, max = bounds::LABEL))]
    pub kind: String,

    /// Its namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::LABEL))]
    pub namespace: Option<String>,

    /// Its name.
    #[schemars(length(min = 1, max = bounds::NAME))]
    pub name: String,

    /// The target in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::LABEL))]
    pub section_name: Option<String>,
}

fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

/// `metav1.Condition` with the bounds that Kubernetes documents for it.
fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 8,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "type": {
                    "type": "string", "maxLength": 316,
                    "description": "Type of the condition in CamelCase.",
                },
                "status": {
                    "type": "string", "enum": ["True", "False", "Unknown"],
                    "description": "True, False or Unknown.",
                },
                "observedGeneration": {
                    "type": "integer", "format": "int64", "minimum": 0,
                    "description": "The metadata.generation that the condition is about.",
                },
                "lastTransitionTime": {
                    "type": "string", "format": "date-time",
                    "description": "When the status last changed.",
                },
                "reason": {
                    "type": "string", "minLength": 1, "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                    "description": "Why, as one word in CamelCase.",
                },
                "message": {
                    "type": "string", "maxLength": 32768,
                    "description": "Why, for people.",
                },
            },
        },
    })
}
