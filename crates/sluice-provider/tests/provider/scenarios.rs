//! Scenario files: reading them, and what is wrong with bad ones.

use std::time::Duration;

use sluice_provider::scenario::{ErrorKind, Quota, Scenario, Step};
use sluice_provider::{Behaviour, ScenarioError};

#[test]
fn a_scenario_written_is_the_scenario_read() {
    let scenario = Scenario {
        seed: 7,
        quota: Some(Quota { tokens_per_minute: 1000, ..Quota::default() }),
        steps: vec![Step { lasts: Some(Duration::from_millis(1500)), ..Step::default() }],
        ..Scenario::of(Behaviour::ttft(Duration::from_millis(250)).with_tokens(3).with_header("x-a", "b"))
    }
    .then_calls(4, Behaviour::error(ErrorKind::SpendCap))
    .for_model("gpt-*", Behaviour::stall(2))
    .named("slow", Behaviour::hang());
    let yaml = scenario.to_yaml().unwrap();
    assert_eq!(Scenario::from_yaml(&yaml).unwrap(), scenario, "{yaml}");
    let json = serde_json::to_vec(&scenario).unwrap();
    assert_eq!(Scenario::from_json(&json).unwrap(), scenario);
    assert_eq!(Scenario::from_yaml("  \n").unwrap(), Scenario::default());
}

#[test]
fn errors_name_field_value_and_fix() {
    for (yaml, parts) in [
        ("default: {ttft: 10}", ["default.ttft", "`10`", "10ms"]),
        ("default: {ttft: soon}", ["default.ttft", "`soon`", "250ms"]),
        ("default: {ttftByCall: [1s, 2]}", ["ttftByCall", "`2`", "2s"]),
        ("default: {tft: 1s}", ["default", "tft", "`ttft`"]),
        ("default: {status: 99}", ["default.status", "`99`", "200 to 599"]),
        ("default: {status: fine}", ["default.status", "fine", "u16"]),
        ("default: {answer: htm}", ["default.answer", "htm", "`html`"]),
        ("default: {jitterPercent: 120}", ["default.jitterPercent", "`120`", "0 to 100"]),
        ("default: {pingEvery: 0}", ["default.pingEvery", "0s", "longer than 0"]),
        ("default: {headers: {'a b': c}}", ["default.headers", "a b: c", "HTTP allows"]),
        ("default: {ttftBySecond: []}", ["default.ttftBySecond", "[]", "at least one"]),
        ("steps: [{calls: 0}]", ["steps[0].calls", "`0`", "at least 1"]),
        ("steps: [{calls: 1, for: 1s}]", ["steps[0]", "calls and for", "keep one"]),
        ("steps: [{for: 0}]", ["steps[0].for", "0s", "longer than 0"]),
        ("steps: [{}, {calls: 1}]", ["steps[0]", "no end", "`calls` or `for`"]),
        ("rules: [{behaviour: {}}]", ["rules[0].match", "{}", "`default`"]),
        ("rules: [{match: {headers: {X-A: b}}}]", ["rules[0].match.headers", "X-A", "lower case"]),
        (
            "rules: [{match: {model: a}, steps: [{behaviour: {status: 1000}}]}]",
            ["rules[0].steps[0].behaviour.status", "1000", "200 to 599"],
        ),
        ("quota: {}", ["quota", "unbounded", "tokensPerMinute"]),
        ("slots: 0", ["slots", "`0`", "at least 1"]),
    ] {
        let error = Scenario::from_yaml(yaml).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{yaml}: {error}: lacks {part}");
        }
    }
}

#[test]
fn a_file_that_is_not_there() {
    let error = Scenario::from_file("no/such.yaml").unwrap_err();
    assert!(matches!(&error, ScenarioError::Read { .. }) && error.to_string().contains("no/such.yaml"));
}
