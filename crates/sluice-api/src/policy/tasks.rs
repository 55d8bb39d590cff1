//! Checks of answers, and budgets of tasks.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_core::defaults;

use crate::duration::DurationString;
use crate::enums::string_enum;
use crate::rule::{bounds, optional_between, union};

/// Checks the text of an answer, repairs it once, then degrades.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = validation_rules()))]
pub struct Validation {
    /// `JSON`: the answer must parse. `JSONSchema`: it must also match a schema.
    #[serde(rename = "type")]
    pub type_: ValidationType,

    /// With type `JSONSchema`: the schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json_schema: Option<AnswerSchema>,

    /// Times that an invalid answer goes back to the model with the error; 0: none.
    #[serde(default = "default_repairs")]
    #[schemars(range(min = 0, max = 3))]
    pub repairs: u32,

    /// After that: `Degrade` answers as the route's `degraded` says, `Reject` with an error, `Deliver` sends
    /// the invalid answer, marked.
    #[serde(default)]
    pub on_failure: OnInvalid,
}

const fn default_repairs() -> u32 {
    defaults::validation::REPAIRS
}

fn validation_rules() -> Vec<serde_json::Value> {
    union(&[("JSON", None), ("JSONSchema", Some("jsonSchema"))])
}

string_enum! {
    /// Kinds of validation.
    pub enum ValidationType {
        Json = "JSON",
        JsonSchema = "JSONSchema",
    }
}

string_enum! {
    /// What happens to an answer that stays invalid.
    #[derive(Default)]
    pub enum OnInvalid {
        #[default]
        Degrade = "Degrade",
        Reject = "Reject",
        Deliver = "Deliver",
    }
}

/// A JSON Schema for answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnswerSchema {
    /// The schema as JSON text.
    #[schemars(length(min = 2, max = 32_768))]
    pub schema: String,
}

/// What one task (`x-sluice-task`) of an AI agent may spend. An absent limit is none; 0 allows nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = task_rules()))]
pub struct TaskBudget {
    /// Model calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_steps: Option<u64>,

    /// Tokens, input and output together.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = bounds::TOKENS))]
    pub max_tokens: Option<u64>,

    /// Wall clock from the first call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_duration: Option<DurationString>,

    /// Spend in the currency of the targets' `price`, as a decimal string such as `"12.50"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = bounds::MONEY), regex(pattern = bounds::MONEY_PATTERN))]
    pub max_spend: Option<String>,

    /// Calls of any one tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_calls_per_tool: Option<u64>,

    /// Model calls per minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_calls_per_minute: Option<u64>,

    /// Tasks of one tenant at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_concurrent_tasks: Option<u64>,

    /// The same tool call with the same arguments this many times is a loop and ends the task; 0: off.
    #[schemars(range(min = 0, max = 100))]
    pub max_identical_calls: u32,
}

impl Default for TaskBudget {
    fn default() -> Self {
        Self {
            max_steps: None,
            max_tokens: None,
            max_duration: None,
            max_spend: None,
            max_calls_per_tool: None,
            max_calls_per_minute: None,
            max_concurrent_tasks: None,
            max_identical_calls: defaults::task_budget::MAX_IDENTICAL_CALLS,
        }
    }
}

fn task_rules() -> Vec<serde_json::Value> {
    vec![optional_between("maxDuration", Duration::ZERO, Duration::from_hours(7 * 24))]
}
