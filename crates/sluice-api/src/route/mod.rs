//! `ModelRoute`: the model names that clients ask for, and the ordered targets that can serve them.
#![allow(clippy::duplicated_attributes, reason = "printer columns have the same `type_`")]

mod workloads;

pub use workloads::*;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::enums::string_enum;
use crate::rule::{bounds, endpoint, not_a_credential_header, rule, union};
use crate::status::ModelRouteStatus;

/// What clients ask for and which targets can serve it.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "sluice.dev",
    version = "v1alpha1",
    kind = "ModelRoute",
    plural = "modelroutes",
    namespaced,
    shortname = "mr",
    category = "sluice",
    status = "ModelRouteStatus",
    derive = "PartialEq",
    doc = "A ModelRoute says which model names clients ask for and which targets, in which order, can serve them.",
    printcolumn(
        name = "Models",
        type_ = "string",
        json_path = ".spec.models",
        description = "Model names that clients ask for"
    ),
    printcolumn(
        name = "Targets",
        type_ = "string",
        json_path = ".status.summary.targets",
        description = "Targets in the order of their priority"
    ),
    printcolumn(
        name = "Breaker",
        type_ = "string",
        json_path = ".status.summary.breaker",
        description = "The worst breaker of the targets"
    ),
    printcolumn(
        name = "Agents",
        type_ = "string",
        json_path = ".status.summary.agents",
        description = "Agents in sync / connected"
    ),
    printcolumn(
        name = "Accepted",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Accepted")].status"#,
        description = "Whether the route is valid and in use"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = spec_rules()))]
pub struct ModelRouteSpec {
    /// Model names that clients ask for, exact or with a `*` as the last character (`chat-*`; `*` alone is
    /// every name). Where routes overlap, an exact name rules over the longest prefix, and that over the
    /// older route.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = bounds::NAME)))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub models: Vec<String>,

    /// Which pods' agents get this route; absent or empty: every agent of the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workloads: Option<WorkloadSelector>,

    /// What the clients speak; absent: what the targets speak. Every target must speak it too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<WireFormat>,

    /// Whom an exchange is accounted to; absent: the workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Tenant>,

    /// The dependencies that can serve this route, at least one. Tried by `priority`, within one priority by
    /// `weight`.
    #[schemars(length(min = 1, max = 16))]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub targets: Vec<Target>,

    /// The lane (priority class) of an exchange; absent: `Interactive` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lanes: Option<Lanes>,

    /// What a client gets when no target can serve; absent: an honest error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub degraded: Option<Degraded>,

    /// What happens to paths of the provider's API that Sluice does not know: refused with 404, or passed
    /// through to the first target as they are, unmetered.
    #[serde(default)]
    pub other_paths: OtherPaths,

    /// Whether a caller may name a target in the header `x-sluice-target`, for fallback drills and evaluation.
    #[serde(default)]
    pub target_header: TargetHeader,
}

fn spec_rules() -> Vec<serde_json::Value> {
    vec![
        rule(
            "models",
            r"self.models.all(m, m.matches('^[^*[:space:]]*[*]?$'))",
            "models may contain * as the last character only and no white space; write chat-* or an exact name",
        ),
        rule(
            "targets",
            "self.targets.all(t, (t.provider == 'Anthropic') == ((has(self.format) ? self.format : \
             self.targets[0].provider) == 'Anthropic'))",
            "every target must speak the format of the route; set format to Anthropic if and only if the \
             providers are Anthropic, or make one route per format",
        ),
    ]
}

string_enum! {
    /// What the clients of a route speak.
    pub enum WireFormat {
        OpenAi = "OpenAI",
        Anthropic = "Anthropic",
    }
}

string_enum! {
    /// Whose API a target is.
    pub enum Provider {
        OpenAi = "OpenAI",
        Anthropic = "Anthropic",
        AzureOpenAi = "AzureOpenAI",
        /// Anything that speaks the OpenAI format: vLLM, llama.cpp, Ollama, …
        OpenAiCompatible = "OpenAICompatible",
    }
}

string_enum! {
    /// What happens to paths that Sluice does not know.
    #[derive(Default)]
    pub enum OtherPaths {
        #[default]
        Refuse = "Refuse",
        PassThrough = "PassThrough",
    }
}

string_enum! {
    /// What `x-sluice-target` of a caller does.
    #[derive(Default)]
    pub enum TargetHeader {
        #[default]
        Ignore = "Ignore",
        Allow = "Allow",
    }
}

string_enum! {
    /// A priority class.
    #[derive(Default)]
    pub enum Lane {
        /// Someone waits for the answer.
        #[default]
        Interactive = "Interactive",
        /// A program waits, many calls make one task.
        Agent = "Agent",
        /// Nobody waits; shed first.
        Background = "Background",
    }
}

/// Whom an exchange is accounted to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = tenant_rules()))]
pub struct Tenant {
    /// `Workload`: everything of a pod is one tenant, the workload. `Header`: the value of `header`.
    #[serde(rename = "type")]
    pub type_: TenantType,

    /// With type `Header`: the header whose value names the tenant. It must be set by something you trust: a
    /// sidecar's headers are what its own app says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = bounds::HEADER), regex(pattern = bounds::HEADER_PATTERN))]
    pub header: Option<String>,

    /// With type `Header`: the tenant of requests without the header; absent: the workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = bounds::NAME))]
    pub default: Option<String>,
}

fn tenant_rules() -> Vec<serde_json::Value> {
    let mut rules = union(&[("Header", Some("header")), ("Workload", None)]);
    rules.push(rule(
        "default",
        "!has(self.default) || self.type == 'Header'",
        "default belongs to type Header; remove it or set type to Header",
    ));
    rules.push(not_a_credential_header("header"));
    rules
}

string_enum! {
    /// Where the tenant's name comes from.
    pub enum TenantType {
        Header = "Header",
        Workload = "Workload",
    }
}

/// One dependency: provider + endpoint + model + region + credential, with one breaker and one quota.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = endpoint("endpoint")))]
pub struct Target {
    /// Name of the target within the route: policies name it as `sectionName`, metrics as `target`.
    #[schemars(length(min = 1, max = bounds::LABEL), regex(pattern = bounds::LABEL_PATTERN))]
    pub name: String,

    /// Whose API this is.
    pub provider: Provider,

    /// Base URL with the version segment and without a trailing slash, whatever the provider:
    /// `https://api.openai.com/v1`, `https://api.anthropic.com/v1`,
    /// `https://NAME.openai.azure.com/openai/v1`. The agent appends `/chat/completions`, `/messages` and so on.
    #[schemars(length(min = 1, max = bounds::URL))]
    pub endpoint: String,

    /// The model's name upstream; absent: as the client asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = bounds::NAME))]
    pub model: Option<String>,

    /// A free label for metrics and reports, such as `us-east`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = bounds::LABEL))]
    pub region: Option<String>,

    /// Targets of the namespace with the same `dependency` share one breaker and one quota. They must have the
    /// same settings: of two that differ, the younger is refused with `DependencyMismatch`. Absent: its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = bounds::LABEL), regex(pattern = bounds::LABEL_PATTERN))]
    pub dependency: Option<String>,

    /// What the provider is shown: the value of a Secret, what the caller sent, or nothing. Required, so that
    /// nobody's key goes anywhere by omission.
    pub credential: Credential,

    /// Lower first.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1000))]
    pub priority: u32,

    /// Share among targets of one priority; 0: only when all others are passed over.
    #[serde(default = "default_weight")]
    #[schemars(range(min = 0, max = 1000))]
    pub weight: u32,

    /// Prices, for spend in metrics and task budgets; absent: not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Price>,
}

const fn default_weight() -> u32 {
    sluice_core::defaults::route::TARGET_WEIGHT
}

/// Where the credential of a target comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = credential_rules()))]
pub struct Credential {
    /// `SecretRef`: the value of a Secret's key; what the caller sent is taken away. `Passthrough`: what the
    /// caller sent. `None`: nothing; what the caller sent is taken away.
    #[serde(rename = "type")]
    pub type_: CredentialType,

    /// With type `SecretRef`: a key of a Secret in the route's own namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretKeyRef>,
}

fn credential_rules() -> Vec<serde_json::Value> {
    union(&[("SecretRef", Some("secretRef")), ("Passthrough", None), ("None", None)])
}

string_enum! {
    /// Where a credential comes from.
    pub enum CredentialType {
        SecretRef = "SecretRef",
        Passthrough = "Passthrough",
        None = "None",
    }
}

/// A key of a Secret in the same namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// The Secret's name.
    #[schemars(length(min = 1, max = bounds::NAME), regex(pattern = bounds::NAME_PATTERN))]
    pub name: String,

    /// The key in its data.
    #[schemars(length(min = 1, max = bounds::NAME), regex(pattern = bounds::KEY_PATTERN))]
    pub key: String,
}

/// Prices per million tokens, as decimal strings in any one currency.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Price {
    /// Per million input tokens, such as `"2.50"`.
    #[schemars(length(min = 1, max = bounds::MONEY), regex(pattern = bounds::MONEY_PATTERN))]
    pub input_per_million: String,

    /// Per million output tokens.
    #[schemars(length(min = 1, max = bounds::MONEY), regex(pattern = bounds::MONEY_PATTERN))]
    pub output_per_million: String,
}

/// Reads an amount of money into millionths: `2.50` is 2,500,000. `None` when it is no decimal string of at
/// most six digits on either side of the point.
#[must_use]
pub fn money_micros(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| (1..=6).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let fraction = format!("{fraction:0<6}");
    Some(whole.parse::<u64>().ok()? * 1_000_000 + fraction.parse::<u64>().ok()?)
}

/// The lane of an exchange: the first rule that matches, or the default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Lanes {
    /// The lane of exchanges that no rule matches.
    #[serde(default)]
    pub default: Lane,

    /// Tried in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub rules: Vec<LaneRule>,
}

/// A header with a value puts an exchange into a lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [not_a_credential_header("header")]))]
pub struct LaneRule {
    /// The header's name.
    #[schemars(length(min = 1, max = bounds::HEADER), regex(pattern = bounds::HEADER_PATTERN))]
    pub header: String,

    /// The header's whole value.
    #[schemars(length(min = 1, max = bounds::NAME))]
    pub value: String,

    /// The lane of exchanges with this value.
    pub lane: Lane,
}

/// What a client gets when no target can serve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = degraded_rules()))]
pub struct Degraded {
    /// `Reject`: an honest error. `Static`: a fixed text in the client's format. `Backend`: another backend
    /// gets the request as it came.
    #[serde(rename = "type")]
    pub type_: DegradedType,

    /// With type `Static`: the answer.
    #[serde(default, rename = "static", skip_serializing_if = "Option::is_none")]
    pub static_: Option<StaticAnswer>,

    /// With type `Backend`: who gets the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<DegradedBackend>,
}

fn degraded_rules() -> Vec<serde_json::Value> {
    union(&[("Static", Some("static")), ("Backend", Some("backend")), ("Reject", None)])
}

string_enum! {
    /// How a route degrades.
    pub enum DegradedType {
        Static = "Static",
        Backend = "Backend",
        Reject = "Reject",
    }
}

/// A fixed answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StaticAnswer {
    /// The text, sent as the model's answer, streamed or not, and marked by `x-sluice-degraded`.
    #[schemars(length(min = 1, max = 8192))]
    pub text: String,
}

/// A backend that serves when no target can: a retrieval endpoint, an asynchronous queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = endpoint("endpoint")))]
pub struct DegradedBackend {
    /// Base URL; the path of the request is appended.
    #[schemars(length(min = 1, max = bounds::URL))]
    pub endpoint: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_read_exactly() {
        for (text, micros) in [
            ("0", 0),
            ("2.50", 2_500_000),
            ("10", 10_000_000),
            ("0.000001", 1),
            ("999999.999999", 999_999_999_999),
        ] {
            assert_eq!(money_micros(text), Some(micros), "{text}");
        }
        for text in ["", ".", "1.", ".5", "-1", "1,5", "1.2.3", "1234567", "0.1234567", "1e3", " 1"] {
            assert_eq!(money_micros(text), None, "{text}");
        }
    }
}
