//! The scenario: what the provider does, as data. The crate's first page shows the file format.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use crate::behaviour::{
    Answer, Behaviour, Connection, Cut, CutHow, ErrorKind, Framing, LineEnd, Malformed, Stall, StreamError,
    TextKind, ToolCall, UsageReport,
};
use crate::units;

/// What a [`Scenario`] file can be wrong about.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file could not be read.
    #[error("scenario file {path}: {source}: give the path of a readable YAML file")]
    Read {
        /// The file named.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The text isn't YAML, or not YAML of this form; the message names the field, the value and what is allowed.
    #[error("scenario: {0}")]
    Parse(String),
    /// A value is of the right form and still makes no sense.
    #[error("scenario: {field}: `{value}`: {fix}")]
    Invalid {
        /// The path of the field.
        field: String,
        /// Its value.
        value: String,
        /// What to write instead.
        fix: String,
    },
}

/// What the provider does. Every field may be absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Scenario {
    /// Seed of the jitter. Default 0.
    pub seed: u64,
    /// How many calls are remembered for [`crate::Provider::calls`]. Default 10,000; 0 remembers none (benches).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<usize>,
    /// Whether the bodies of the remembered calls are kept as well. Default false.
    pub record_bodies: bool,
    /// What happens to new connections, before any byte of HTTP. Default: they are served. It also cuts off the
    /// control endpoints, as they share the port.
    pub connections: Connections,
    /// When the first step's time begins. Default: when the scenario is set.
    pub starts_at: StartsAt,
    /// Keys that are accepted (`Authorization: Bearer`, `x-api-key` or `api-key`); others get a 401. Default: any.
    pub api_keys: Vec<String>,
    /// What `/v1/models` lists. Default: `gpt-4o`, `gpt-4o-mini`, `claude-sonnet-4-5`.
    pub models: Vec<String>,
    /// What a call gets when no step or rule says otherwise; the base on which those are laid.
    #[serde(rename = "default")]
    pub base: Behaviour,
    /// Phases, in order; after the last one `default` alone applies.
    pub steps: Vec<Step>,
    /// Whether the steps start over after the last one. Default false.
    pub repeat: bool,
    /// The first rule that matches takes a call out of the steps.
    pub rules: Vec<Rule>,
    /// One quota over all calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
    /// How many calls are worked on at a time; the others wait, as in a saturated server. Default: no bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<usize>,
    /// What `GET /metrics` reports, in the form of vLLM's page.
    pub engine: Engine,
}

/// What happens to a new connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Connections {
    /// It is served.
    #[default]
    Accept,
    /// It is accepted and closed at once.
    Close,
    /// It is accepted and reset (TCP RST) at once.
    Reset,
    /// It is accepted and nothing is ever read or written.
    Hang,
    /// The listening socket is closed, so that the system refuses it.
    Refuse,
}

/// When the first step's time begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StartsAt {
    /// When the scenario is set or the provider reset.
    #[default]
    Set,
    /// With the first call that reaches these steps.
    FirstCall,
}

/// A phase: it ends after `calls` calls or after `for`, whichever is set; with neither it never ends.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Step {
    /// Shown in the recorded calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Ends after so many calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<u64>,
    /// Ends after so long.
    #[serde(rename = "for", with = "units::duration", skip_serializing_if = "Option::is_none")]
    pub lasts: Option<Duration>,
    /// Laid over the default (or the rule's) behaviour.
    pub behaviour: Behaviour,
}

/// A behaviour for some calls only.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Rule {
    /// Shown in the recorded calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Which calls; every condition given must hold.
    #[serde(rename = "match")]
    pub matches: Match,
    /// Laid over the default behaviour, unless it says `inherit: false`.
    pub behaviour: Behaviour,
    /// The rule's own phases, counted by the calls that match it.
    pub steps: Vec<Step>,
    /// Whether the rule's steps start over after the last one.
    pub repeat: bool,
    /// A quota of the rule's own, besides the scenario's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
}

/// Which calls a rule is for. `model` and `path` may end in `*`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Match {
    /// The value of the request's `x-scenario` header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scenario: Option<String>,
    /// The model asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The path asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Streams only, or plain calls only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// Headers that must have exactly this value; names in lower case.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, units::HeaderText>,
}

/// Tokens and requests per minute, a bucket that refills all the time. When it is spent the answer is a 429 with
/// `Retry-After`, `retry-after-ms` and `x-ratelimit-*`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Quota {
    /// Tokens per minute. 0: not bounded.
    pub tokens_per_minute: u64,
    /// The most tokens that can be saved up. Default: one minute's worth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u64>,
    /// Requests per minute. 0: not bounded.
    pub requests_per_minute: u64,
    /// What a call costs, and when. Default `reserve`.
    pub count: Counting,
}

/// What a call costs under a [`Quota`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Counting {
    /// Input plus the maximum output are taken at the start; what was not used comes back at the end.
    #[default]
    Reserve,
    /// Input plus the maximum output are taken at the start and never come back.
    Hold,
    /// The input is taken at the start, and the output when the call ends: concurrent calls can overdraw.
    Used,
}

/// What the metrics page says about the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Engine {
    /// Requests in the engine's own queue, besides those that wait for `slots`.
    pub waiting: u64,
    /// Use of the KV cache in percent.
    pub kv_cache_percent: f64,
}

impl Scenario {
    /// One behaviour for all calls.
    pub fn of(base: Behaviour) -> Self {
        Self { base, ..Self::default() }
    }

    /// The scenario for benches: no delays, nothing recorded.
    pub fn fast(tokens: u64) -> Self {
        Self {
            record: Some(0),
            base: Behaviour { tokens: Some(tokens), ..Behaviour::default() },
            ..Self::default()
        }
    }

    /// Adds a step that ends after `calls` calls.
    #[must_use]
    pub fn then_calls(mut self, calls: u64, behaviour: Behaviour) -> Self {
        self.steps.push(Step { calls: Some(calls), behaviour, ..Step::default() });
        self
    }

    /// Adds a step that ends after a time.
    #[must_use]
    pub fn then_for(mut self, lasts: Duration, behaviour: Behaviour) -> Self {
        self.steps.push(Step { lasts: Some(lasts), behaviour, ..Step::default() });
        self
    }

    /// Adds a rule for calls that name this model (which may end in `*`).
    #[must_use]
    pub fn for_model(mut self, model: &str, behaviour: Behaviour) -> Self {
        let matches = Match { model: Some(model.into()), ..Match::default() };
        self.rules.push(Rule { matches, behaviour, ..Rule::default() });
        self
    }

    /// Adds a rule for calls with the header `x-scenario: name`.
    #[must_use]
    pub fn named(mut self, name: &str, behaviour: Behaviour) -> Self {
        let matches = Match { scenario: Some(name.into()), ..Match::default() };
        self.rules.push(Rule { name: Some(name.into()), matches, behaviour, ..Rule::default() });
        self
    }

    /// Reads a scenario from YAML (or JSON, which is YAML).
    ///
    /// # Errors
    /// Unknown fields, wrong types and values that make no sense, each with field, value and fix.
    pub fn from_yaml(text: &str) -> Result<Self, ScenarioError> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let scenario: Self =
            serde_yaml::from_str(text).map_err(|error| ScenarioError::Parse(error.to_string()))?;
        scenario.validate()?;
        Ok(scenario)
    }

    /// Reads a scenario from JSON, with the same messages as [`Scenario::from_yaml`].
    ///
    /// # Errors
    /// As [`Scenario::from_yaml`].
    pub fn from_json(text: &[u8]) -> Result<Self, ScenarioError> {
        let parse = |message: String| ScenarioError::Parse(message);
        let value: serde_json::Value =
            serde_json::from_slice(text).map_err(|error| parse(error.to_string()))?;
        // By way of YAML: its reader names the path of a wrong field, serde_json's only a column.
        Self::from_yaml(&serde_yaml::to_string(&value).map_err(|error| parse(error.to_string()))?)
    }

    /// Reads a scenario file.
    ///
    /// # Errors
    /// As [`Scenario::from_yaml`], and when the file can't be read.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ScenarioError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path)
            .map_err(|source| ScenarioError::Read { path: path.display().to_string(), source })?;
        Self::from_yaml(&text)
    }

    /// The scenario as YAML, the form that [`Scenario::from_yaml`] reads.
    ///
    /// # Errors
    /// None that a scenario built from these types can cause.
    pub fn to_yaml(&self) -> Result<String, ScenarioError> {
        serde_yaml::to_string(self).map_err(|error| ScenarioError::Parse(error.to_string()))
    }

    /// Checks what types can't.
    ///
    /// # Errors
    /// The first value that makes no sense.
    pub fn validate(&self) -> Result<(), ScenarioError> {
        self.base.validate("default")?;
        validate_steps("steps", &self.steps)?;
        validate_quota("quota", self.quota.as_ref())?;
        if self.slots == Some(0) {
            return Err(invalid("slots", 0, "at least 1, or leave it out for no bound"));
        }
        for (index, rule) in self.rules.iter().enumerate() {
            let field = format!("rules[{index}]");
            if rule.matches == Match::default() {
                let fix = "name at least one of scenario, model, path, stream, headers; for all calls use `default`";
                return Err(invalid(&format!("{field}.match"), "{}", fix));
            }
            if let Some(name) = rule.matches.headers.keys().find(|name| name.chars().any(char::is_uppercase))
            {
                return Err(invalid(
                    &format!("{field}.match.headers"),
                    name,
                    "write header names in lower case",
                ));
            }
            rule.behaviour.validate(&format!("{field}.behaviour"))?;
            validate_steps(&format!("{field}.steps"), &rule.steps)?;
            validate_quota(&format!("{field}.quota"), rule.quota.as_ref())?;
        }
        Ok(())
    }
}

pub(crate) fn invalid(field: &str, value: impl std::fmt::Display, fix: &str) -> ScenarioError {
    ScenarioError::Invalid { field: field.into(), value: value.to_string(), fix: fix.into() }
}

fn validate_steps(field: &str, steps: &[Step]) -> Result<(), ScenarioError> {
    for (index, step) in steps.iter().enumerate() {
        let field = format!("{field}[{index}]");
        step.behaviour.validate(&format!("{field}.behaviour"))?;
        if step.calls.is_some() && step.lasts.is_some() {
            return Err(invalid(
                &field,
                "calls and for",
                "keep one of them: a step ends by calls or by time",
            ));
        }
        if step.calls == Some(0) {
            return Err(invalid(&format!("{field}.calls"), 0, "at least 1, or leave the step out"));
        }
        if step.lasts == Some(Duration::ZERO) {
            return Err(invalid(&format!("{field}.for"), "0s", "longer than 0, or leave the step out"));
        }
        let endless = step.calls.is_none() && step.lasts.is_none();
        if endless && index + 1 < steps.len() {
            return Err(invalid(
                &field,
                "no end",
                "give the step `calls` or `for`, or the steps after it never come",
            ));
        }
    }
    Ok(())
}

fn validate_quota(field: &str, quota: Option<&Quota>) -> Result<(), ScenarioError> {
    let Some(quota) = quota else { return Ok(()) };
    if quota.tokens_per_minute == 0 && quota.requests_per_minute == 0 {
        return Err(invalid(field, "unbounded", "set tokensPerMinute or requestsPerMinute above 0"));
    }
    if quota.burst == Some(0) {
        return Err(invalid(
            &format!("{field}.burst"),
            0,
            "at least 1, or leave it out for one minute's worth",
        ));
    }
    Ok(())
}
