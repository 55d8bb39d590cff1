//! Retries: one layer, within a budget, when the provider says.

use std::time::Duration;

use sluice_core::policy::{TargetPolicy, Throttling};

use crate::harness::{World, chat, counts, ms, provider, target};

fn quick(mut target: TargetPolicy) -> TargetPolicy {
    target.rules.retries.rules.backoff_base = ms(1);
    target
}

#[tokio::test]
async fn a_failure_with_no_other_target_is_retried_once() {
    let primary = provider("steps: [{calls: 1, behaviour: {status: 503}}]").await;
    let world = World::openai(vec![quick(target("primary", &primary, 0))]).await;
    assert_eq!(world.chat().await.status, 200);
    world.until_idle().await;
    let target = world.target("primary").await;
    assert_eq!((target.attempts, target.retries, target.failovers), (2, 1, 0));
    assert_eq!(counts(&target.verdicts), [("failure", 1), ("success", 1)].into(), "each attempt counts");
    assert_eq!(world.state().await.exchanges.failed_over, 0);
}

#[tokio::test]
async fn the_budget_is_a_tenth_of_first_attempts() {
    let primary = provider("default: {status: 503}").await;
    let mut only = quick(target("primary", &primary, 0));
    only.rules.breaker.rules.minimum_calls = 10_000;
    let world = World::openai(vec![only]).await;
    for _ in 0..100 {
        assert_eq!(world.chat().await.status, 503);
    }
    let target = world.target("primary").await;
    assert_eq!(primary.stats().total.started, target.attempts);
    // Retries that are not first attempts do not earn more retries.
    assert!((1..=11).contains(&target.retries), "{}", target.retries);
}

/// Worked case 5: three layers that retry three times each would make 27 calls.
#[tokio::test]
async fn an_sdk_that_retries_in_front_makes_three_calls_and_the_budgets_one() {
    let scenario = "default: {status: 503}";
    let (primary, fallback) = (provider(scenario).await, provider(scenario).await);
    let targets = vec![quick(target("primary", &primary, 0)), quick(target("fallback", &fallback, 1))];
    let world = World::openai(targets).await;
    for retry in ["0", "1", "2"] {
        let answer =
            world.ask("/v1/chat/completions", &[("x-stainless-retry-count", retry)], &chat(false)).await;
        assert_eq!(answer.status, 503);
    }
    let calls = [primary.stats().total.started, fallback.stats().total.started];
    assert_eq!(calls, [4, 3], "per target its three, and one of the budget's");
}

#[tokio::test]
async fn the_latest_retry_after_is_the_one_that_is_waited_for() {
    let scenario = "
        rules: [{match: {path: /v1/embeddings}}]
        steps:
        - {calls: 1, behaviour: {error: rateLimit, retryAfterMs: 100}}
        - {calls: 1, behaviour: {error: rateLimit, retryAfterMs: 600}}";
    let primary = provider(scenario).await;
    let mut only = quick(target("primary", &primary, 0));
    // Two retries in one window.
    only.rules.retries.rules.budget_percent = 100;
    let world = World::openai(vec![only]).await;
    // Another first attempt for the budget, which the scenario's steps do not see.
    let warm_up = serde_json::json!({ "model": "gpt-4o", "input": "x" });
    assert_eq!(world.ask("/v1/embeddings", &[], &warm_up).await.status, 200);
    let answer = world.chat().await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let at: Vec<u64> =
        primary.calls().iter().filter(|call| call.path.contains("chat")).map(|call| call.at_ms).collect();
    assert!(at[1] - at[0] >= 100 && at[2] - at[1] >= 600, "{at:?}");
}

#[tokio::test]
async fn a_retry_after_beyond_the_deadline_is_not_waited_for() {
    for scenario in
        ["default: {error: rateLimit, retryAfter: 30}", "default: {error: unavailable, retryAfter: 3600}"]
    {
        let primary = provider(scenario).await;
        let world = World::openai(vec![quick(target("primary", &primary, 0))]).await;
        let headers = [("x-sluice-timeout-ms", "5000")];
        let answer = world.ask("/v1/chat/completions", &headers, &chat(false)).await;
        assert!(answer.header("retry-after").is_some(), "the provider's own answer and guidance");
        assert_eq!(primary.stats().total.started, 1);
    }
}

#[tokio::test]
async fn garbage_in_retry_after_is_as_if_absent() {
    for garbage in ["soon", "-1", "''"] {
        let scenario =
            format!("steps: [{{calls: 1, behaviour: {{error: unavailable, retryAfter: {garbage}}}}}]");
        let primary = provider(&scenario).await;
        let world = World::openai(vec![quick(target("primary", &primary, 0))]).await;
        assert_eq!(world.chat().await.status, 200, "{garbage}: retried after the usual backoff");
    }
}

#[tokio::test]
async fn three_attempts_are_all() {
    let scenario = "default: {status: 500}";
    let providers = [
        provider(scenario).await,
        provider(scenario).await,
        provider(scenario).await,
        provider(scenario).await,
    ];
    let names = ["a", "b", "c", "d"];
    let targets = (0..4).map(|i| quick(target(names[i], &providers[i], i as u32))).collect();
    let world = World::openai(targets).await;
    assert_eq!(world.chat().await.status, 500);
    let calls = providers.each_ref().map(|provider| provider.stats().total.started);
    assert_eq!(calls, [1, 1, 1, 0]);
}

#[tokio::test]
async fn grpc_throttling_stops_retries_at_half() {
    let primary = provider("default: {status: 503}").await;
    let mut only = quick(target("primary", &primary, 0));
    only.rules.retries.rules.budget_percent = 100;
    only.rules.retries.rules.max_attempts = 9;
    only.rules.breaker.rules.minimum_calls = 10_000;
    only.rules.retries.rules.throttling = Some(Throttling { max_tokens: 4, token_ratio_percent: 10 });
    let world = World::openai(vec![only]).await;
    for _ in 0..10 {
        world.chat().await;
    }
    let target = world.target("primary").await;
    assert_eq!(target.retries, 1, "the second failure leaves half of four tokens");
    assert_eq!(target.attempts, 11);
}

#[tokio::test]
async fn adaptive_throttling_refuses_what_a_failing_provider_would_not_take() {
    let primary = provider("default: {status: 503}").await;
    let mut only = target("primary", &primary, 0);
    only.rules.retries.rules.max_attempts = 1;
    only.rules.retries.rules.adaptive_k_percent = Some(200);
    only.rules.breaker.rules.minimum_calls = 10_000;
    let world = World::openai(vec![only]).await;
    let mut refused = 0;
    for _ in 0..200 {
        let answer = world.chat().await;
        if answer.header("x-sluice-refused") == Some("admit/throttled") {
            assert_eq!(answer.status, 503);
            let wait: u64 = answer.header("retry-after-ms").unwrap().parse().unwrap();
            assert!((1..=120_000).contains(&wait), "{wait}");
            assert!(answer.header("retry-after").is_some());
            refused += 1;
        }
    }
    // None is accepted, so the n-th is let through with probability 1/n: about six of two hundred.
    assert!(refused > 150, "{refused}");
    assert_eq!(primary.stats().total.started, 200 - refused);
    assert_eq!(
        counts(&world.target("primary").await.rejections),
        [].into(),
        "the shared state was not even asked"
    );
}

#[tokio::test]
async fn attempts_carry_fresh_ids_under_one_exchange_id() {
    let primary = provider("steps: [{calls: 1, behaviour: {status: 503}}]").await;
    let world = World::openai(vec![quick(target("primary", &primary, 0))]).await;
    let headers = [("idempotency-key", "k-1"), ("x-sluice-exchange-id", "spoofed")];
    let answer = world.ask("/v1/chat/completions", &headers, &chat(false)).await;
    let calls = primary.calls();
    let [first, second] = [&calls[0], &calls[1]].map(|call| {
        (
            call.header("x-sluice-exchange-id"),
            call.header("x-sluice-attempt-id"),
            call.header("idempotency-key"),
        )
    });
    assert_eq!(first.0, answer.header("x-sluice-exchange-id"));
    assert_eq!(first.0, second.0);
    assert_ne!(first.1, second.1);
    assert_eq!((first.2, second.2), (Some("k-1"), Some("k-1")));
}

#[tokio::test]
async fn an_idempotency_key_stays_with_its_provider() {
    let first =
        provider("steps: [{calls: 1, behaviour: {status: 503}}, {calls: 1, behaviour: {status: 503}}]").await;
    let other = provider("{}").await;
    // Two models of one provider, then another provider.
    let world =
        World::openai(vec![target("a", &first, 0), target("b", &first, 1), target("c", &other, 2)]).await;
    let headers = [("idempotency-key", "k-1")];
    assert_eq!(world.ask("/v1/chat/completions", &headers, &chat(false)).await.status, 200);
    let keys = |calls: Vec<sluice_provider::Call>| -> Vec<Option<String>> {
        calls.iter().map(|call| call.header("idempotency-key").map(str::to_owned)).collect()
    };
    assert_eq!(keys(first.calls()), vec![Some("k-1".to_owned()), Some("k-1".to_owned())]);
    assert_eq!(keys(other.calls()), vec![None]);
}

#[tokio::test]
async fn a_client_that_leaves_while_a_retry_waits_takes_it_along() {
    let primary = provider("default: {error: unavailable, retryAfter: 20}").await;
    let world = World::openai(vec![target("primary", &primary, 0)]).await;
    let asking = tokio::time::timeout(Duration::from_millis(300), world.chat());
    assert!(asking.await.is_err(), "it waits for the provider's time");
    let state = world.until_idle().await;
    assert_eq!(state.exchanges.cancelled, 1);
    assert_eq!(primary.stats().total.started, 1);
}
