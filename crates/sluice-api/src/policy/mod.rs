//! `ReliabilityPolicy`: groups of rules for the targets of routes.
//!
//! A group is present or absent as a whole. Per target and group the most specific policy that has the group
//! gives it whole: target (`sectionName`) → route → namespace → built-in. So defaults apply inside a group
//! that is present, and an absent group says nothing.
#![allow(clippy::duplicated_attributes, reason = "printer columns have the same `type_`")]

mod breaker;
mod concurrency;
mod queue;
mod quota;
mod retries;
mod streams;
mod tasks;

pub use breaker::*;
pub use concurrency::*;
pub use queue::*;
pub use quota::*;
pub use retries::*;
pub use streams::*;
pub use tasks::*;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::enums::string_enum;
use crate::rule::{bounds, rule};
use crate::status::ReliabilityPolicyStatus;

/// What rules the targets that it names.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "sluice.dev",
    version = "v1alpha1",
    kind = "ReliabilityPolicy",
    plural = "reliabilitypolicies",
    namespaced,
    shortname = "rp",
    shortname = "relpol",
    category = "sluice",
    status = "ReliabilityPolicyStatus",
    derive = "PartialEq",
    label("gateway.networking.k8s.io/policy", "Inherited"),
    doc = "A ReliabilityPolicy rules the targets of the routes it names: deadlines, breaker, quota, concurrency, queue, retries and more, each group present or absent.",
    printcolumn(
        name = "Target",
        type_ = "string",
        json_path = ".spec.targetRefs[0].name",
        description = "The first object that the policy rules"
    ),
    printcolumn(
        name = "Mode",
        type_ = "string",
        json_path = ".spec.mode",
        description = "Whether decisions are carried out or only reported"
    ),
    printcolumn(
        name = "Accepted",
        type_ = "string",
        json_path = r#".status.ancestors[0].conditions[?(@.type=="Accepted")].status"#,
        description = "Whether the policy is valid and attached"
    ),
    printcolumn(
        name = "Programmed",
        type_ = "string",
        json_path = r#".status.ancestors[0].conditions[?(@.type=="Programmed")].status"#,
        description = "Whether agents work by it"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        priority = 1,
        json_path = r#".status.ancestors[0].conditions[?(@.type=="Programmed")].reason"#,
        description = "Why, or why not"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = spec_rules()))]
pub struct ReliabilityPolicySpec {
    /// What the policy rules, in its own namespace.
    #[schemars(length(min = 1, max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub target_refs: Vec<TargetRef>,

    /// `Enforce`: decisions are carried out. `Observe`: they are made and reported, and nothing is refused.
    #[serde(default)]
    pub mode: Mode,

    /// How long an exchange and its parts may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadlines: Option<Deadlines>,

    /// When calls stop going to a target, and how they come back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker: Option<Breaker>,

    /// Tokens and requests per minute over all agents; absent: not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,

    /// Exchanges in flight from one agent to one target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,

    /// Who waits, how long, and in which order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Queue>,

    /// How often an exchange is tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<Retries>,

    /// How answers are relayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streaming: Option<Streaming>,

    /// What happens while the shared state is away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_store: Option<StateStore>,

    /// Whether answers are checked; absent: they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<Validation>,

    /// What one task of an AI agent may spend; absent: not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_budget: Option<TaskBudget>,
}

impl ReliabilityPolicySpec {
    /// Names of the groups, in the order of the fields.
    pub const GROUPS: [&'static str; 10] = [
        "deadlines",
        "breaker",
        "quota",
        "concurrency",
        "queue",
        "retries",
        "streaming",
        "stateStore",
        "validation",
        "taskBudget",
    ];
}

fn spec_rules() -> Vec<serde_json::Value> {
    let any_group = ReliabilityPolicySpec::GROUPS.map(|group| format!("has(self.{group})")).join(" || ");
    vec![
        rule(
            "",
            any_group,
            format!(
                "the policy has no group and so rules nothing; add one of {}",
                ReliabilityPolicySpec::GROUPS.join(", ")
            ),
        ),
        rule(
            "targetRefs",
            "self.targetRefs.all(a, self.targetRefs.exists_one(b, a.kind == b.kind && a.name == b.name && \
             (has(a.sectionName) ? a.sectionName : '') == (has(b.sectionName) ? b.sectionName : '')))",
            "targetRefs must not name the same object twice; remove the repetition",
        ),
    ]
}

/// Something that a policy rules.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = target_ref_rules()))]
pub struct TargetRef {
    /// The API group: `sluice.dev` for a ModelRoute, empty for a Namespace.
    pub group: TargetGroup,

    /// `ModelRoute`: one route. `Namespace`: every route of the policy's own namespace.
    pub kind: TargetKind,

    /// The object's name; for a Namespace, the policy's own.
    #[schemars(length(min = 1, max = bounds::NAME), regex(pattern = bounds::NAME_PATTERN))]
    pub name: String,

    /// One target of the route; absent: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = bounds::LABEL), regex(pattern = bounds::LABEL_PATTERN))]
    pub section_name: Option<String>,
}

fn target_ref_rules() -> Vec<serde_json::Value> {
    vec![
        rule(
            "group",
            "(self.kind == 'ModelRoute') == (self.group == 'sluice.dev')",
            "group does not go with kind; use group sluice.dev for a ModelRoute and the empty group for a Namespace",
        ),
        rule(
            "sectionName",
            "!has(self.sectionName) || self.kind == 'ModelRoute'",
            "sectionName names a target of a ModelRoute and a Namespace has none; remove it",
        ),
    ]
}

string_enum! {
    /// API groups that a policy can name.
    pub enum TargetGroup {
        Sluice = "sluice.dev",
        Core = "",
    }
}

string_enum! {
    /// Kinds that a policy can name.
    pub enum TargetKind {
        ModelRoute = "ModelRoute",
        Namespace = "Namespace",
    }
}

string_enum! {
    /// Whether decisions are carried out, or reported only.
    #[derive(Default)]
    pub enum Mode {
        #[default]
        Enforce = "Enforce",
        Observe = "Observe",
    }
}
