//! Mode Observe: everything is decided and reported, nothing enforced.

use sluice_core::policy::{Concurrency, Mode};

use crate::harness::{World, counts, ms, provider, quota, route, target};

#[tokio::test]
async fn an_observed_breaker_opens_and_lets_everything_through() {
    let primary = provider("default: {status: 500}").await;
    let mut only = target("primary", &primary, 0);
    only.rules.breaker.mode = Mode::Observe;
    only.rules.retries.mode = Mode::Observe;
    let world = World::openai(vec![only]).await;
    for _ in 0..15 {
        assert_eq!(world.chat().await.status, 500, "the provider's own answer");
        world.until_idle().await;
    }
    let target = world.target("primary").await;
    assert_eq!((target.breaker.state, target.retries), ("open", 0));
    assert_eq!(primary.stats().total.started, 15);
    assert_eq!(world.metric("sluice_observed_total{name=\"default/chat/primary\",reason=\"open\"}"), 5);
}

#[tokio::test]
async fn an_observed_quota_is_counted_and_refuses_nobody() {
    let primary = provider("{}").await;
    let mut only = target("primary", &primary, 0);
    let mut observed = quota(50);
    observed.mode = Mode::Observe;
    only.rules.quota = Some(observed);
    let world = World::openai(vec![only]).await;
    for _ in 0..5 {
        assert_eq!(world.chat().await.status, 200);
    }
    let metric = "sluice_observed_total{name=\"default/chat/primary\",reason=\"tokens-exhausted\"}";
    assert!(world.metric(metric) >= 3);
    assert_eq!(counts(&world.target("primary").await.rejections), [].into());
}

#[tokio::test]
async fn an_observed_limit_refuses_nobody() {
    let primary = provider("{}").await;
    let mut only = target("primary", &primary, 0);
    only.rules.concurrency.rules = Concurrency::Fixed { limit: 0 };
    only.rules.concurrency.mode = Mode::Observe;
    let world = World::openai(vec![only]).await;
    assert_eq!(world.chat().await.status, 200);
    assert_eq!(
        world.metric("sluice_observed_total{name=\"default/chat/primary\",reason=\"limiter-full\"}"),
        1
    );
}

#[tokio::test]
async fn observed_deadlines_end_nothing() {
    let primary = provider("default: {tokens: 4, ttft: 200ms, stall: {after: 2, for: 200ms}}").await;
    let mut only = target("primary", &primary, 0);
    let deadlines = &mut only.rules.deadlines;
    deadlines.rules.first_token = ms(50);
    deadlines.rules.stall = ms(50);
    deadlines.rules.total = ms(100);
    deadlines.mode = Mode::Observe;
    let world = World::openai(vec![only]).await;
    assert!(world.stream().await.text().ends_with("data: [DONE]\n\n"));
    world.until_idle().await;
    assert_eq!(counts(&world.target("primary").await.verdicts), [("success", 1)].into());
    let metric = "sluice_observed_total{name=\"default/chat/primary\",reason=\"first-token-deadline\"}";
    assert_eq!(world.metric(metric), 1, "what it would have ended");
}

#[tokio::test]
async fn a_callers_own_deadline_stands_all_the_same() {
    let primary = provider("default: {ttft: 60s}").await;
    let mut only = target("primary", &primary, 0);
    only.rules.deadlines.mode = Mode::Observe;
    let world = World::openai(vec![only]).await;
    let headers = [("x-sluice-timeout-ms", "150")];
    assert_eq!(world.ask("/v1/chat/completions", &headers, &crate::harness::chat(true)).await.status, 504);
    world.until_idle().await;
}

/// Series of targets that no policy names are gone, however many come and go; one that comes back begins anew.
#[tokio::test]
async fn a_target_that_goes_takes_its_series_along() {
    let primary = provider("{}").await;
    let named = |name: &str| {
        let mut route = route(sluice_core::policy::WireFormat::OpenAi, vec![target(name, &primary, 0)]);
        let breaker = &mut route.targets[0].rules;
        breaker.deadlines.mode = Mode::Observe;
        breaker.deadlines.rules.first_token = ms(1);
        route
    };
    let world = World::new(vec![named("first")]).await;
    for number in 0..20 {
        let name = format!("target-{number}");
        world.use_routes(vec![named(&name)]);
        primary.set(sluice_provider::Scenario::from_yaml("default: {ttft: 20ms, tokens: 2}").unwrap());
        world.stream().await;
        world.until_idle().await;
        let page = world.agent.metrics();
        assert!(page.contains(&format!("sluice_observed_total{{name=\"default/chat/{name}\"")), "{page}");
        for line in page.lines().filter(|line| line.contains("name=\"")) {
            assert!(line.contains(&format!("name=\"default/chat/{name}\"")), "{line}");
        }
    }
    world.use_routes(vec![named("target-0")]);
    assert_eq!(world.metric("sluice_attempts_total{name=\"default/chat/target-0\"}"), 0, "anew");
}
