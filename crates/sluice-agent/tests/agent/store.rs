//! The shared state goes away: no exchange fails for it, unless the policy says so.

use sluice_core::policy::{OnUnreachable, TargetPolicy, WireFormat};
use sluice_testkit::RedisServer;

use crate::fleet::shared;
use crate::harness::{World, chat, ms, once, policy_set, provider, route, target};

async fn world(redis: &RedisServer, only: TargetPolicy) -> World {
    let policies = policy_set(vec![route(WireFormat::OpenAi, vec![only])]);
    let world = World::start(policies, shared(redis), |_| {}).await;
    world.until("connected", |state| state.store.reachable).await;
    world
}

/// Asks all the time while something happens.
async fn under_load(world: &World, during: impl Future<Output = ()>) -> u64 {
    let stop = std::sync::atomic::AtomicBool::new(false);
    let asked = std::sync::atomic::AtomicU64::new(0);
    let load = (0..4).map(|_| async {
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            let answer = world
                .ask(
                    "/v1/chat/completions",
                    &[],
                    &chat(asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed).is_multiple_of(2)),
                )
                .await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert!(answer.whole);
        }
    });
    let stopping = async {
        during.await;
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    };
    tokio::join!(futures_util::future::join_all(load), stopping);
    asked.into_inner()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_fails_while_redis_is_killed_and_comes_back() {
    let mut redis = RedisServer::start().unwrap();
    let primary = provider("default: {tokens: 2}").await;
    let world = world(&redis, target("primary", &primary, 0)).await;
    let asked = under_load(&world, async {
        world.until("some were served", |state| state.exchanges.total > 50).await;
        redis.kill();
        world.until("alone", |state| !state.store.reachable && state.store.fallback_admissions > 20).await;
        let reason = world.state().await.store.reason;
        assert!(reason.is_some(), "said why");
        redis.restart().unwrap();
        let back = world.until("back", |state| state.store.reachable).await.exchanges.total;
        world.until("some were served again", |state| state.exchanges.total > back + 50).await;
    })
    .await;
    world.until_idle().await;
    let state = world.state().await;
    assert_eq!((state.exchanges.total, state.exchanges.refused), (asked, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_fails_while_redis_hangs() {
    let redis = RedisServer::start().unwrap();
    let primary = provider("default: {tokens: 2}").await;
    let world = world(&redis, target("primary", &primary, 0)).await;
    under_load(&world, async {
        world.until("some were served", |state| state.exchanges.total > 50).await;
        redis.pause().unwrap();
        world.until("alone", |state| state.store.fallback_admissions > 100).await;
        redis.resume().unwrap();
        world.until("back", |state| state.store.reachable).await;
    })
    .await;
    world.until_idle().await;
    assert_eq!(world.state().await.store.settles_dropped, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_scripts_cost_nothing_but_a_load() {
    let redis = RedisServer::start().unwrap();
    let primary = provider("default: {tokens: 2}").await;
    let world = world(&redis, target("primary", &primary, 0)).await;
    under_load(&world, async {
        for round in 1..=5 {
            world.until("some were served", |state| state.exchanges.total > 30 * round).await;
            redis.command(&["SCRIPT", "FLUSH"]).unwrap();
        }
    })
    .await;
    let state = world.until_idle().await;
    assert_eq!(state.store.settles_dropped, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_fails_closed_refuses() {
    let mut redis = RedisServer::start().unwrap();
    let (primary, fallback) = (provider("{}").await, provider("{}").await);
    let mut closed = target("primary", &primary, 0);
    closed.rules.state_store.rules.on_unreachable = OnUnreachable::FailClosed;
    let targets = vec![closed.clone(), target("fallback", &fallback, 1)];
    let both =
        World::start(policy_set(vec![route(WireFormat::OpenAi, targets)]), shared(&redis), |_| {}).await;
    let alone = world(&redis, closed).await;
    both.until("connected", |state| state.store.reachable).await;
    redis.kill();
    let answer = alone.chat().await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["error"]["code"].as_str()),
        (503, Some("store_unavailable"))
    );
    assert!(answer.header("retry-after").is_some());
    assert_eq!(answer.json()["error"]["sluice"]["upstream_attempt"], false);
    let answer = both.chat().await;
    assert_eq!(answer.header("x-sluice-served-by"), Some("fallback"), "a target that stays open serves");
    assert_eq!(primary.stats().total.started, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_breaker_stays_open_while_redis_is_away() {
    let mut redis = RedisServer::start().unwrap();
    let primary = provider("default: {status: 500}").await;
    let mut only = once(target("primary", &primary, 0));
    only.rules.breaker.rules.consecutive_failures = 1;
    let world = world(&redis, only).await;
    assert_eq!(world.chat().await.status, 500);
    world.until("open", |state| state.routes[0].targets[0].breaker.state == "open").await;
    redis.kill();
    assert_eq!(world.chat().await.header("x-sluice-refused"), Some("admit/circuit_open"));
    assert_eq!(primary.stats().total.started, 1);
}

/// A provider's breaker works on while the agent is alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_alone_has_a_breaker_and_a_quota_of_its_own() {
    let mut redis = RedisServer::start().unwrap();
    let primary = provider("default: {status: 500}").await;
    let mut only = once(target("primary", &primary, 0));
    only.rules.breaker.rules.cooldown.base = ms(60_000);
    let world = world(&redis, only).await;
    redis.kill();
    for _ in 0..10 {
        assert_eq!(world.chat().await.status, 500);
    }
    // What cannot be delivered to Redis waits; what was granted here is settled here.
    world.until("settled at home", |state| state.exchanges.unsettled == 0).await;
    assert_eq!(world.chat().await.status, 503);
    assert_eq!(primary.stats().total.started, 10);
}
