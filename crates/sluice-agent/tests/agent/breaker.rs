//! The breaker as an application meets it, with the worked cases 2, 6 and 7.

use std::time::Duration;

use sluice_core::policy::TargetPolicy;

use crate::harness::{Answer, World, chat, counts, ms, once, provider, target};

async fn asked(world: &World, times: usize) -> Vec<Answer> {
    let mut answers = Vec::new();
    for _ in 0..times {
        answers.push(world.chat().await);
    }
    answers
}

fn quick(mut target: TargetPolicy) -> TargetPolicy {
    let breaker = &mut target.rules.breaker.rules;
    breaker.cooldown.base = ms(300);
    breaker.cooldown.jitter_percent = 0;
    breaker.ramp.duration = Duration::ZERO;
    once(target)
}

#[tokio::test]
async fn it_opens_at_its_rate_refuses_without_asking_and_closes_by_probes() {
    let primary = provider("default: {status: 500}").await;
    let world = World::openai(vec![quick(target("primary", &primary, 0))]).await;
    let answers = asked(&world, 10).await;
    assert!(answers.iter().all(|answer| answer.status == 500));
    world.until("open", |state| state.routes[0].targets[0].breaker.state == "open").await;
    assert_eq!(asked(&world, 5).await.iter().filter(|answer| answer.status == 503).count(), 5);
    assert_eq!(primary.stats().total.started, 10, "refused at once");
    primary.set(sluice_provider::Scenario::from_yaml("{}").unwrap());
    world.until("awaiting", |state| state.routes[0].targets[0].breaker.state == "awaiting-probe").await;
    for _ in 0..3 {
        assert_eq!(world.chat().await.status, 200);
        world.until_idle().await;
    }
    let target = world.target("primary").await;
    assert_eq!((target.breaker.state, target.breaker.calls), ("closed", 0), "three probes in a row");
    let transitions = |from: &str, to: &str, reason: &str| {
        format!(
            "llm_circuit_breaker_transitions_total{{name=\"default/chat/primary\",from=\"{from}\",to=\"{to}\",reason=\"{reason}\"}}"
        )
    };
    world.until_metric(&transitions("closed", "open", "failure-rate"), 1).await;
    world.until_metric(&transitions("open", "half-open", "cooldown-ended"), 1).await;
    world.until_metric(&transitions("half-open", "closed", "probes-succeeded"), 1).await;
    world.until_metric("llm_circuit_breaker_state{name=\"default/chat/primary\"}", 0).await;
}

/// Worked case 2, a twentieth of its times. A call that is slow for certain is not waited for: the first-token
/// deadline lies right behind the threshold, and the fallback serves it.
#[tokio::test]
async fn the_brown_out_trace() {
    let scenario = "default: {tokens: 2, ttftByCall: [20ms, 25ms, 450ms, 600ms, 750ms, 200ms, 20ms]}";
    let (primary, fallback) = (provider(scenario).await, provider("default: {tokens: 2}").await);
    let mut first = target("primary", &primary, 0);
    first.rules.deadlines.rules.first_token = ms(165);
    let breaker = &mut first.rules.breaker.rules;
    breaker.consecutive_failures = 3;
    breaker.slow.ttft = Some(ms(150));
    breaker.slow.count_as = sluice_core::policy::SlowCounts::Failure;
    breaker.cooldown.base = ms(500);
    breaker.cooldown.jitter_percent = 0;
    breaker.cooldown.growth_percent = 100;
    breaker.probes.successes = 1;
    breaker.ramp.duration = Duration::ZERO;
    let world = World::openai(vec![first, target("fallback", &fallback, 1)]).await;
    let mut served = Vec::new();
    while primary.stats().total.started < 7 {
        let answer = world.stream().await;
        assert_eq!(answer.status, 200);
        served.push(answer.header("x-sluice-served-by").unwrap().to_owned());
        world.until_idle().await;
    }
    assert_eq!(served[..2], ["primary", "primary"]);
    let last = served.len() - 1;
    assert!(served[2..last].iter().all(|name| name == "fallback"), "{served:?}");
    assert_eq!(served[last], "primary", "the second probe succeeds");
    let target = world.until_idle().await.routes[0].targets[0].clone();
    assert_eq!(target.breaker.state, "closed");
    assert_eq!(counts(&target.verdicts), [("success", 3), ("failure", 4)].into());
    // From the trip, a threshold behind the fifth call, to the probe: the cool-down. The same again.
    let at: Vec<u64> = primary.calls().iter().map(|call| call.at_ms).collect();
    assert!(at[5] >= at[4] + 650 && at[6] >= at[5] + 650, "{at:?}");
}

/// Worked case 6.
#[tokio::test]
async fn a_few_failures_at_night_trip_nothing() {
    for failures in [2, 3, 9] {
        let primary = provider("default: {status: 500}").await;
        let world = World::openai(vec![quick(target("primary", &primary, 0))]).await;
        asked(&world, failures).await;
        let state = world.until_idle().await;
        let breaker = &state.routes[0].targets[0].breaker;
        assert_eq!((breaker.state, breaker.failures as usize), ("closed", failures));
    }
}

/// Worked case 7.
#[tokio::test]
async fn a_buggy_caller_opens_nothing() {
    let scenario = "rules: [{match: {scenario: bad}, behaviour: {status: 400}}, {match: {scenario: worse}, behaviour: {status: 422}}]";
    let primary = provider(scenario).await;
    let world = World::openai(vec![quick(target("primary", &primary, 0))]).await;
    let path = "/v1/chat/completions";
    for _ in 0..50 {
        assert_eq!(world.ask(path, &[("x-scenario", "bad")], &chat(false)).await.status, 400);
        assert_eq!(world.ask(path, &[("x-scenario", "worse")], &chat(true)).await.status, 422);
    }
    let state = world.until_idle().await;
    let target = &state.routes[0].targets[0];
    assert_eq!((target.breaker.state, target.breaker.calls, target.retries), ("closed", 0, 0));
    assert_eq!(world.chat().await.status, 200);
}

#[tokio::test]
async fn a_429_on_a_probe_reopens_for_its_time() {
    let scenario = "steps: [{calls: 1, behaviour: {status: 500}}, {calls: 1, behaviour: {error: rateLimit, retryAfter: 20}}]";
    let primary = provider(scenario).await;
    let mut only = quick(target("primary", &primary, 0));
    only.rules.breaker.rules.consecutive_failures = 1;
    let world = World::openai(vec![only]).await;
    world.chat().await;
    world.until("awaiting", |state| state.routes[0].targets[0].breaker.state == "awaiting-probe").await;
    assert_eq!(world.chat().await.status, 429, "the provider's own answer");
    let state = world.until_idle().await;
    let breaker = &state.routes[0].targets[0].breaker;
    assert_eq!(breaker.state, "open");
    assert!((15_000..=20_000).contains(&breaker.open_for_ms), "{}", breaker.open_for_ms);
}

#[tokio::test]
async fn a_sibling_that_fails_opens_only_itself() {
    let primary = provider("default: {status: 500}").await;
    let fallback = provider("{}").await;
    let world = World::openai(vec![target("primary", &primary, 0), target("fallback", &fallback, 1)]).await;
    for answer in asked(&world, 30).await {
        assert_eq!(answer.header("x-sluice-served-by"), Some("fallback"));
    }
    world.until_idle().await;
    assert_eq!(world.target("primary").await.breaker.state, "open");
    assert_eq!(world.target("fallback").await.breaker.state, "closed");
    assert_eq!(primary.stats().total.started, 10);
}

#[tokio::test]
async fn routes_that_share_a_dependency_share_its_breaker() {
    use crate::harness::route;
    use sluice_core::policy::{ModelPattern, WireFormat};
    let primary = provider("default: {status: 500}").await;
    let mut one = route(WireFormat::OpenAi, vec![quick(target("primary", &primary, 0))]);
    let mut other = one.clone();
    one.models = vec![ModelPattern::Exact("gpt-4o".into())];
    other.name = "second".into();
    other.models = vec![ModelPattern::Exact("other".into())];
    let world = World::new(vec![one, other]).await;
    asked(&world, 10).await;
    world.until_idle().await;
    let mut body = chat(false);
    body["model"] = "other".into();
    assert_eq!(world.ask("/v1/chat/completions", &[], &body).await.status, 503);
    assert_eq!(primary.stats().total.started, 10);
    let state = world.state().await;
    assert_eq!([0, 1].map(|route| state.routes[route].targets[0].breaker.state), ["open", "open"]);
    assert_eq!([0, 1].map(|route| state.routes[route].targets[0].attempts), [10, 0]);
}
