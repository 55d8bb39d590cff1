//! Tokens: reserved before, settled after, on every path; refused with the time when they are there again.

use sluice_core::policy::TargetPolicy;

use crate::harness::{INPUT, World, chat, counts, ms, once, provider, quota, target};

fn limited(mut target: TargetPolicy, tokens_per_minute: u64) -> TargetPolicy {
    target.rules.quota = Some(quota(tokens_per_minute));
    once(target)
}

#[tokio::test]
async fn the_reservation_is_returned_on_every_path() {
    let paths = [
        ("default: {tokens: 5, inputTokens: 11}", true, INPUT + 5),
        ("default: {tokens: 5, inputTokens: 11}", false, INPUT + 5),
        ("default: {status: 500}", false, 0),
        ("default: {error: rateLimit}", true, 0),
        ("default: {connection: reset}", false, 0),
        ("connections: refuse", true, 0),
        ("default: {headersDelay: 60s}", true, INPUT),
        ("default: {stall: {after: 2}, inputTokens: 11}", true, INPUT + 2),
        ("default: {cut: {after: 2, how: reset}, inputTokens: 11}", true, INPUT + 2),
        ("default: {streamError: {after: 2, kind: overloaded}}", true, INPUT + 2),
        ("default: {answer: html}", false, 0),
    ];
    for (scenario, stream, used) in paths {
        let primary = provider(scenario).await;
        let mut only = limited(target("primary", &primary, 0), 1_000);
        only.rules.deadlines.rules.first_token = ms(100);
        only.rules.deadlines.rules.stall = ms(100);
        let world = World::openai(vec![only]).await;
        if stream {
            world.stream().await
        } else {
            world.chat().await
        };
        world.until_idle().await;
        let target = world.target("primary").await;
        assert_eq!((target.tokens_reserved, target.tokens_charged), (INPUT + 20, used), "{scenario}");
        // The bucket refills by sixteen a second meanwhile.
        let left = u64::try_from(target.tokens_left.unwrap()).unwrap();
        assert!((1_000 - used..=1_000).contains(&left), "{scenario}: {left}");
        assert!(used < 14 || left < 1_000, "{scenario}: {left}");
    }
}

#[tokio::test]
async fn spent_tokens_are_refused_with_the_time_of_their_return() {
    let primary = provider("default: {tokens: 20, inputTokens: 100}").await;
    let world = World::openai(vec![limited(target("primary", &primary, 0), 120)]).await;
    assert_eq!(world.chat().await.status, 200);
    world.until_idle().await;
    let answer = world.chat().await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["error"]["code"].as_str()),
        (429, Some("tokens_exhausted"))
    );
    assert_eq!(answer.json()["error"]["type"], "rate_limit_error");
    // Thirty-one tokens at two a second, less what came back since.
    let exact: u64 = answer.header("retry-after-ms").unwrap().parse().unwrap();
    assert!((10_000..=15_500).contains(&exact), "{exact}");
    assert_eq!(answer.header("retry-after"), Some(exact.div_ceil(1_000).to_string().as_str()));
    assert_eq!(primary.stats().total.started, 1);
    assert_eq!(counts(&world.target("primary").await.rejections), [("tokens-exhausted", 1)].into());
}

#[tokio::test]
async fn spent_requests_are_refused_too() {
    let primary = provider("{}").await;
    let mut only = limited(target("primary", &primary, 0), 1_000_000);
    only.rules.quota.as_mut().unwrap().rules.requests_per_minute = Some(2);
    let world = World::openai(vec![only]).await;
    let statuses = [world.chat().await.status, world.chat().await.status].map(|status| status.as_u16());
    assert_eq!(statuses, [200, 200]);
    let answer = world.chat().await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["error"]["code"].as_str()),
        (429, Some("requests_exhausted"))
    );
    let exact: u64 = answer.header("retry-after-ms").unwrap().parse().unwrap();
    assert!((25_000..=30_000).contains(&exact), "{exact}");
}

#[tokio::test]
async fn a_spent_target_is_passed_over() {
    let (primary, fallback) = (provider("{}").await, provider("{}").await);
    let world =
        World::openai(vec![limited(target("primary", &primary, 0), 40), target("fallback", &fallback, 1)])
            .await;
    assert_eq!(world.chat().await.header("x-sluice-served-by"), Some("primary"));
    assert_eq!(world.chat().await.header("x-sluice-served-by"), Some("fallback"));
    let state = world.until_idle().await;
    assert_eq!((state.exchanges.failed_over, state.exchanges.refused), (1, 0));
    assert_eq!(world.target("primary").await.failovers, 1);
}

/// What the gateways of today let through: concurrent calls that name their maximum `max_completion_tokens`.
#[tokio::test]
async fn concurrent_calls_cannot_overdraw() {
    let primary = provider("default: {inputTokens: 11, stall: {after: 5}, tokens: 89}").await;
    let world = World::openai(vec![limited(target("primary", &primary, 0), 1_000)]).await;
    let mut body = chat(true);
    body.as_object_mut().unwrap().remove("max_tokens");
    body["max_completion_tokens"] = 89.into();
    let calls =
        (0..30).map(|_| async { world.ask("/v1/chat/completions", &[], &body).await.status.as_u16() });
    let asking = futures_util::future::join_all(calls);
    let releasing = async {
        world.until("twenty are refused", |state| state.exchanges.refused == 20).await;
        primary.wait_for(|stats| stats.total.stalled == 10, crate::harness::PATIENCE).await.unwrap();
        primary.release();
    };
    let (statuses, ()) = tokio::join!(asking, releasing);
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 10, "a hundred tokens each");
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 20);
    world.until_idle().await;
}

#[tokio::test]
async fn a_tenant_has_its_share() {
    let primary = provider("default: {tokens: 20, inputTokens: 11}").await;
    let mut only = limited(target("primary", &primary, 0), 100);
    only.rules.quota.as_mut().unwrap().rules.tenants =
        vec![sluice_core::policy::TenantShare { name: "paying".into(), reserved_percent: 50, weight: 1 }];
    let world = World::openai(vec![only]).await;
    let ask = async |tenant| {
        world.ask("/v1/chat/completions", &[("x-tenant", tenant)], &chat(false)).await.status.as_u16()
    };
    assert_eq!((ask("free").await, ask("free").await), (200, 429), "thirty-one of fifty, and no more");
    assert_eq!(ask("paying").await, 200);
}

/// A rate of nothing admits nothing, and says so: it is no fault of the request, and no wait mends it.
#[tokio::test]
async fn a_quota_of_nothing_says_that_it_admits_nothing() {
    let mut requests = quota(1_000_000);
    requests.rules.requests_per_minute = Some(0);
    let limits = [
        ("tokens_exhausted", "tokensPerMinute", quota(0)),
        ("requests_exhausted", "requestsPerMinute", requests),
    ];
    for (code, field, limit) in limits {
        let primary = provider("{}").await;
        let mut only = target("primary", &primary, 0);
        only.rules.quota = Some(limit);
        let world = World::openai(vec![only.clone()]).await;
        let answer = world.chat().await;
        assert_eq!((answer.status.as_u16(), answer.json()["error"]["code"].as_str()), (429, Some(code)));
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(&format!("admits nothing, so raise its `{field}`")), "{message}");
        assert_eq!((answer.header("x-should-retry"), answer.header("retry-after")), (Some("false"), None));
        // With another target it is passed over like any other.
        let well = provider("{}").await;
        let world = World::openai(vec![only, target("fallback", &well, 1)]).await;
        assert_eq!(world.chat().await.header("x-sluice-served-by"), Some("fallback"));
        assert_eq!(primary.stats().total.started, 0);
    }
}

/// The bar at the view is full when nothing is spent, whatever tenants have reserved.
#[tokio::test]
async fn what_tenants_reserve_is_not_shown_as_spent() {
    let primary = provider("{}").await;
    let mut only = target("primary", &primary, 0);
    let mut rules = quota(10_000);
    let share = |name: &str, percent| sluice_core::policy::TenantShare {
        name: name.into(),
        reserved_percent: percent,
        weight: 1,
    };
    rules.rules.tenants = vec![share("a", 30), share("b", 25)];
    only.rules.quota = Some(rules);
    let world = World::openai(vec![only]).await;
    let state = world.target("primary").await;
    assert_eq!((state.tokens_left, state.burst_tokens), (Some(4_500), Some(4_500)));
    world.chat().await;
    world.until_idle().await;
    let state = world.target("primary").await;
    assert!(state.tokens_left.is_some_and(|left| left < 4_500), "{state:?}");
}
