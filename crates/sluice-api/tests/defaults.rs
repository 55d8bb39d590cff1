//! The schema's defaults are sluice-core's constants, all of them and nothing else.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use sluice_api::crd::Kind;
use sluice_core::defaults as d;
use sluice_core::units::format_duration;

fn text(duration: Duration) -> Value {
    json!(format_duration(duration))
}

/// Every field with a default that is no object or list.
fn leaves(path: &str, schema: &Value, out: &mut BTreeMap<String, Value>) {
    let default = &schema["default"];
    if !(default.is_null() || default.is_object() || default.is_array()) {
        out.insert(path.to_owned(), default.clone());
    }
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        let child_path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        leaves(&child_path, child, out);
    }
    if schema["items"].is_object() {
        leaves(&format!("{path}[]"), &schema["items"], out);
    }
}

fn spec(kind: Kind) -> BTreeMap<String, Value> {
    let mut out = BTreeMap::new();
    leaves("", &kind.schema()["properties"]["spec"], &mut out);
    out
}

fn expect(found: &BTreeMap<String, Value>, wanted: &[(&str, Value)]) {
    let wanted: BTreeMap<String, Value> =
        wanted.iter().map(|(path, value)| ((*path).to_owned(), value.clone())).collect();
    assert_eq!(*found, wanted);
}

#[test]
fn of_routes() {
    expect(
        &spec(Kind::ModelRoute),
        &[
            ("lanes.default", json!("Interactive")),
            ("otherPaths", json!("Refuse")),
            ("targetHeader", json!("Ignore")),
            ("targets[].priority", json!(0)),
            ("targets[].weight", json!(d::route::TARGET_WEIGHT)),
        ],
    );
}

fn protection() -> Vec<(&'static str, Value)> {
    vec![
        ("mode", json!("Enforce")),
        ("breaker.failurePercent", json!(d::breaker::FAILURE_PERCENT)),
        ("breaker.slow.percent", json!(d::breaker::SLOW_PERCENT)),
        ("breaker.slow.countAs", json!("Slow")),
        ("breaker.stallPercent", json!(d::breaker::STALL_PERCENT)),
        ("breaker.consecutiveFailures", json!(d::breaker::CONSECUTIVE_FAILURES)),
        ("breaker.cooldown.jitterPercent", json!(d::breaker::COOLDOWN_JITTER_PERCENT)),
        ("breaker.cooldown.growthPercent", json!(d::breaker::COOLDOWN_GROWTH_PERCENT)),
        ("breaker.probes.concurrency", json!(d::breaker::PROBE_CONCURRENCY)),
        ("breaker.probes.successes", json!(d::breaker::PROBE_SUCCESSES)),
        ("breaker.ramp.duration", text(d::breaker::RAMP)),
        ("breaker.ramp.initialPercent", json!(d::breaker::RAMP_INITIAL_PERCENT)),
        ("quota.defaultMaxOutputTokens", json!(d::quota::MAX_OUTPUT_TOKENS)),
        ("quota.tenants[].reservedPercent", json!(0)),
        ("quota.tenants[].weight", json!(d::quota::TENANT_WEIGHT)),
        ("quota.pushback.shrinkPercent", json!(d::quota::SHRINK_PERCENT)),
        ("quota.pushback.floorPercent", json!(d::quota::FLOOR_PERCENT)),
        ("quota.pushback.recoveryPercentPerSecond", json!(d::quota::RECOVERY_PERCENT_PER_SECOND)),
        ("quota.pushback.recoveryDelay", text(d::quota::RECOVERY_DELAY)),
    ]
}

fn traffic() -> Vec<(&'static str, Value)> {
    vec![
        ("concurrency.fixed.limit", json!(d::concurrency::FIXED_LIMIT)),
        ("concurrency.aimd.ttftTarget", text(d::concurrency::TTFT_TARGET)),
        ("concurrency.aimd.decreasePercent", json!(d::concurrency::DECREASE_PERCENT)),
        ("concurrency.aimd.decreaseInterval", text(d::concurrency::DECREASE_INTERVAL)),
        ("concurrency.gradient.tolerancePercent", json!(d::concurrency::GRADIENT_TOLERANCE_PERCENT)),
        ("concurrency.gradient.smoothingPercent", json!(d::concurrency::GRADIENT_SMOOTHING_PERCENT)),
        ("queue.lanes[].maxLength", json!(d::queue::MAX_LENGTH)),
        ("queue.lanes[].maxWait", text(d::queue::MAX_WAIT)),
        ("retries.maxAttempts", json!(d::retries::MAX_ATTEMPTS)),
        ("retries.budgetPercent", json!(d::retries::BUDGET_PERCENT)),
        ("retries.retryAfterMax", text(d::retries::RETRY_AFTER_MAX)),
        ("retries.throttling.maxTokens", json!(d::retries::THROTTLING_MAX_TOKENS)),
        ("retries.throttling.tokenRatioPercent", json!(d::retries::THROTTLING_TOKEN_RATIO_PERCENT)),
        ("retries.adaptive.kPercent", json!(d::retries::ADAPTIVE_K_PERCENT)),
        ("streaming.bufferBytes", json!(d::streaming::BUFFER_BYTES)),
        ("streaming.slowClientTimeout", text(d::streaming::SLOW_CLIENT)),
        ("streaming.bodyBytes", json!(d::streaming::BODY_BYTES)),
        ("streaming.deadlinePropagation", json!("None")),
        ("streaming.tracePropagation", json!("None")),
        ("stateStore.onUnreachable", json!("LocalFallback")),
        ("stateStore.assumedAgents", json!(d::state_store::ASSUMED_AGENTS)),
        ("validation.repairs", json!(d::validation::REPAIRS)),
        ("validation.onFailure", json!("Degrade")),
        ("taskBudget.maxIdenticalCalls", json!(d::task_budget::MAX_IDENTICAL_CALLS)),
    ]
}

#[test]
fn of_policies() {
    expect(&spec(Kind::ReliabilityPolicy), &[protection(), traffic()].concat());
}

/// Defaults that give way to what is written are not in the schema: an API server would store them as if written.
/// Their descriptions say them.
fn that_give_way() -> Vec<(String, Value)> {
    let ranges = ["aimd", "gradient", "vegas"].into_iter().flat_map(|limiter| {
        [("initial", d::concurrency::INITIAL), ("min", d::concurrency::MIN), ("max", d::concurrency::MAX)]
            .map(|(field, default)| (format!("concurrency.{limiter}.{field}"), json!(default)))
    });
    let others = [
        ("deadlines.firstToken", text(d::deadlines::FIRST_TOKEN)),
        ("deadlines.total", text(d::deadlines::TOTAL)),
        ("deadlines.stall", text(d::deadlines::STALL)),
        ("deadlines.maxSilence", text(d::deadlines::MAX_SILENCE)),
        ("breaker.window.time.span", text(d::breaker::WINDOW)),
        ("breaker.window.time.buckets", json!(d::breaker::WINDOW_BUCKETS)),
        ("breaker.window.count.calls", json!(d::breaker::WINDOW_CALLS)),
        ("breaker.minimumCalls", json!(d::breaker::MINIMUM_CALLS)),
        ("breaker.slow.ttft", text(d::breaker::SLOW_TTFT)),
        ("breaker.cooldown.base", text(d::breaker::COOLDOWN)),
        ("breaker.cooldown.max", text(d::breaker::COOLDOWN_MAX)),
        ("quota.pushback.maxPause", text(d::quota::PAUSE_MAX)),
        ("quota.pushback.defaultPause", text(d::quota::PAUSE)),
        ("concurrency.vegas.alpha", json!(d::concurrency::VEGAS_ALPHA)),
        ("concurrency.vegas.beta", json!(d::concurrency::VEGAS_BETA)),
        ("retries.backoff.base", text(d::retries::BACKOFF_BASE)),
        ("retries.backoff.max", text(d::retries::BACKOFF_MAX)),
    ];
    ranges.chain(others.map(|(path, default)| (path.to_owned(), default))).collect()
}

#[test]
fn that_give_way_are_told_and_not_stored() {
    let spec = &Kind::ReliabilityPolicy.schema()["properties"]["spec"];
    let field = |path: &str| path.split('.').fold(spec, |schema, name| &schema["properties"][name]);
    for (path, default) in that_give_way() {
        assert_eq!(field(&path)["default"], Value::Null, "{path}");
        let said = field(&path)["description"].as_str().unwrap_or_else(|| panic!("{path} is no field"));
        let default = default.as_str().map_or_else(|| default.to_string(), str::to_owned);
        assert!(said.contains(&format!("absent: {default}, or ")), "{path}: {default}: {said}");
    }
    let share = &field("queue.lanes")["items"]["properties"]["sharePercent"];
    assert_eq!(share["default"], Value::Null);
    let said = share["description"].as_str().unwrap();
    for (lane, default) in [
        ("Interactive", d::queue::INTERACTIVE_PERCENT),
        ("Agent", d::queue::AGENT_PERCENT),
        ("Background", d::queue::BACKGROUND_PERCENT),
    ] {
        assert!(said.contains(&format!("{default} for {lane}")), "{said}");
    }
}

/// The defaults of whole objects are those of their fields. What must agree with something else in the group has
/// none, or a later edit would meet what nobody wrote.
#[test]
fn of_objects() {
    let spec = &Kind::ReliabilityPolicy.schema()["properties"]["spec"]["properties"];
    for (group, without) in [("breaker", "window"), ("breaker", "slow"), ("queue", "lanes")] {
        assert_eq!(spec[group]["properties"][without]["default"], Value::Null, "{group}.{without}");
    }
    for (group, object) in [
        ("breaker", "cooldown"),
        ("breaker", "probes"),
        ("breaker", "ramp"),
        ("quota", "pushback"),
        ("retries", "backoff"),
    ] {
        let schema = &spec[group]["properties"][object];
        let fields: serde_json::Map<String, Value> = schema["properties"]
            .as_object()
            .unwrap()
            .iter()
            .filter(|(_, field)| !field["default"].is_null())
            .map(|(name, field)| (name.clone(), field["default"].clone()))
            .collect();
        assert_eq!(schema["default"], Value::Object(fields), "{object}");
    }
}
