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
            ("format", json!("OpenAI")),
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
        ("deadlines.firstToken", text(d::deadlines::FIRST_TOKEN)),
        ("deadlines.total", text(d::deadlines::TOTAL)),
        ("deadlines.stall", text(d::deadlines::STALL)),
        ("deadlines.maxSilence", text(d::deadlines::MAX_SILENCE)),
        ("breaker.window.time.span", text(d::breaker::WINDOW)),
        ("breaker.window.time.buckets", json!(d::breaker::WINDOW_BUCKETS)),
        ("breaker.window.count.calls", json!(d::breaker::WINDOW_CALLS)),
        ("breaker.minimumCalls", json!(d::breaker::MINIMUM_CALLS)),
        ("breaker.failurePercent", json!(d::breaker::FAILURE_PERCENT)),
        ("breaker.slow.percent", json!(d::breaker::SLOW_PERCENT)),
        ("breaker.slow.countAs", json!("Slow")),
        ("breaker.stallPercent", json!(d::breaker::STALL_PERCENT)),
        ("breaker.consecutiveFailures", json!(d::breaker::CONSECUTIVE_FAILURES)),
        ("breaker.cooldown.base", text(d::breaker::COOLDOWN)),
        ("breaker.cooldown.jitterPercent", json!(d::breaker::COOLDOWN_JITTER_PERCENT)),
        ("breaker.cooldown.growthPercent", json!(d::breaker::COOLDOWN_GROWTH_PERCENT)),
        ("breaker.cooldown.max", text(d::breaker::COOLDOWN_MAX)),
        ("breaker.probes.concurrency", json!(d::breaker::PROBE_CONCURRENCY)),
        ("breaker.probes.successes", json!(d::breaker::PROBE_SUCCESSES)),
        ("breaker.ramp.duration", text(d::breaker::RAMP)),
        ("breaker.ramp.initialPercent", json!(d::breaker::RAMP_INITIAL_PERCENT)),
        ("quota.defaultMaxOutputTokens", json!(d::quota::MAX_OUTPUT_TOKENS)),
        ("quota.tenants[].reservedPercent", json!(0)),
        ("quota.tenants[].weight", json!(d::quota::TENANT_WEIGHT)),
        ("quota.pushback.maxPause", text(d::quota::PAUSE_MAX)),
        ("quota.pushback.shrinkPercent", json!(d::quota::SHRINK_PERCENT)),
        ("quota.pushback.floorPercent", json!(d::quota::FLOOR_PERCENT)),
        ("quota.pushback.recoveryPercentPerSecond", json!(d::quota::RECOVERY_PERCENT_PER_SECOND)),
        ("quota.pushback.recoveryDelay", text(d::quota::RECOVERY_DELAY)),
    ]
}

fn traffic() -> Vec<(&'static str, Value)> {
    vec![
        ("concurrency.aimd.initial", json!(d::concurrency::INITIAL)),
        ("concurrency.aimd.min", json!(d::concurrency::MIN)),
        ("concurrency.aimd.max", json!(d::concurrency::MAX)),
        ("concurrency.gradient.initial", json!(d::concurrency::INITIAL)),
        ("concurrency.gradient.min", json!(d::concurrency::MIN)),
        ("concurrency.gradient.max", json!(d::concurrency::MAX)),
        ("concurrency.vegas.initial", json!(d::concurrency::INITIAL)),
        ("concurrency.vegas.min", json!(d::concurrency::MIN)),
        ("concurrency.vegas.max", json!(d::concurrency::MAX)),
        ("concurrency.fixed.limit", json!(d::concurrency::FIXED_LIMIT)),
        ("concurrency.aimd.ttftTarget", text(d::concurrency::TTFT_TARGET)),
        ("concurrency.aimd.decreasePercent", json!(d::concurrency::DECREASE_PERCENT)),
        ("concurrency.aimd.decreaseInterval", text(d::concurrency::DECREASE_INTERVAL)),
        ("concurrency.gradient.tolerancePercent", json!(d::concurrency::GRADIENT_TOLERANCE_PERCENT)),
        ("concurrency.gradient.smoothingPercent", json!(d::concurrency::GRADIENT_SMOOTHING_PERCENT)),
        ("concurrency.vegas.alpha", json!(d::concurrency::VEGAS_ALPHA)),
        ("concurrency.vegas.beta", json!(d::concurrency::VEGAS_BETA)),
        ("queue.lanes[].maxLength", json!(d::queue::MAX_LENGTH)),
        ("queue.lanes[].maxWait", text(d::queue::MAX_WAIT)),
        ("retries.maxAttempts", json!(d::retries::MAX_ATTEMPTS)),
        ("retries.backoff.base", text(d::retries::BACKOFF_BASE)),
        ("retries.backoff.max", text(d::retries::BACKOFF_MAX)),
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

/// The defaults of whole objects are those of their fields, but for what has no default of its own.
#[test]
fn of_objects() {
    let spec = &Kind::ReliabilityPolicy.schema()["properties"]["spec"]["properties"];
    let breaker = &spec["breaker"]["properties"];
    assert_eq!(
        breaker["slow"]["default"],
        json!({ "percent": d::breaker::SLOW_PERCENT, "ttft": format_duration(d::breaker::SLOW_TTFT), "countAs": "Slow" })
    );
    assert_eq!(
        breaker["window"]["default"],
        json!({ "type": "Time", "time": { "span": format_duration(d::breaker::WINDOW), "buckets": d::breaker::WINDOW_BUCKETS } })
    );
    let lane = |name: &str, share: u32| {
        json!({
            "name": name, "sharePercent": share, "maxLength": d::queue::MAX_LENGTH,
            "maxWait": format_duration(d::queue::MAX_WAIT),
        })
    };
    assert_eq!(
        spec["queue"]["properties"]["lanes"]["default"],
        json!([
            lane("Interactive", d::queue::INTERACTIVE_PERCENT),
            lane("Agent", d::queue::AGENT_PERCENT),
            lane("Background", d::queue::BACKGROUND_PERCENT),
        ])
    );
    for object in ["cooldown", "probes", "ramp"] {
        let fields: serde_json::Map<String, Value> = breaker[object]["properties"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, field)| (name.clone(), field["default"].clone()))
            .collect();
        assert_eq!(breaker[object]["default"], Value::Object(fields), "{object}");
    }
}
