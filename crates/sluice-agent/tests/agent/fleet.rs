//! Several agents before one Redis: worked case 8, and what an exchange costs there.

use std::time::Duration;

use sluice_core::policy::{TargetPolicy, WireFormat};
use sluice_state::RedisConfig;
use sluice_state::store::Shared;
use sluice_testkit::RedisServer;
use tokio::io::AsyncWriteExt as _;

use crate::harness::{PATIENCE, World, chat, ms, once, policy_set, provider, request_bytes, route, target};

pub fn shared(redis: &RedisServer) -> Shared {
    Shared::Redis(RedisConfig { url: redis.url(), ..RedisConfig::default() })
}

async fn agent(redis: &RedisServer, name: &str, targets: Vec<TargetPolicy>) -> World {
    let policies = policy_set(vec![route(WireFormat::OpenAi, targets)]);
    let world = World::start(policies, shared(redis), |config| {
        name.clone_into(&mut config.identity.name);
        config.seed = None;
    })
    .await;
    world.until("connected", |state| state.store.reachable).await;
    world
}

fn fragile(mut target: TargetPolicy) -> TargetPolicy {
    target.rules.deadlines.rules.first_token = ms(60_000);
    let breaker = &mut target.rules.breaker.rules;
    breaker.slow.ttft = None;
    breaker.consecutive_failures = 1;
    breaker.cooldown.base = ms(300);
    breaker.cooldown.jitter_percent = 0;
    once(target)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_clients_at_the_end_of_a_cooldown_make_one_probe() {
    let redis = RedisServer::start().unwrap();
    let primary = provider(
        "steps: [{calls: 1, behaviour: {inherit: false, status: 500}}]\ndefault: {connection: hang}",
    )
    .await;
    let mut worlds = Vec::new();
    for number in 0..5 {
        worlds.push(
            agent(&redis, &format!("agent-{number}"), vec![fragile(target("primary", &primary, 0))]).await,
        );
    }
    assert_eq!(worlds[0].chat().await.status, 500);
    for world in &worlds {
        let heard = |state: &sluice_agent::state::AgentState| {
            state.routes[0].targets[0].breaker.state == "awaiting-probe"
        };
        world.until("every agent has heard, and the cool-down is over", heard).await;
    }
    let path = "/v1/chat/completions";
    let mut clients = Vec::new();
    for client in 0..50 {
        let mut socket = worlds[client % 5].connect().await;
        socket.write_all(&request_bytes(path, "", &chat(true))).await.unwrap();
        clients.push(socket);
    }
    let mut refused = 0;
    for world in &worlds {
        let answered = |state: &sluice_agent::state::AgentState| {
            state.exchanges.refused + state.exchanges.in_flight >= 10
        };
        refused += world.until("all are answered or on their way", answered).await.exchanges.refused;
    }
    // What is in flight may still be refused.
    for world in &worlds {
        let state = world
            .until("the rest is refused", |state| state.exchanges.unsettled == state.exchanges.in_flight)
            .await;
        refused = refused.max(state.exchanges.refused);
    }
    assert_eq!(primary.stats().total.started, 2, "the one that opened it, and one probe");
    let total: u64 = {
        let mut total = 0;
        for world in &worlds {
            total += world.state().await.exchanges.refused;
        }
        total
    };
    assert_eq!(total, 49, "{refused}");
    drop(clients);
    for world in &worlds {
        world.until_idle().await;
    }
}

/// The agent that holds the permit dies with its runtime: nothing settles for it.
#[test]
fn the_holder_of_a_probe_dies_and_exactly_one_more_goes_out_behind_its_lease() {
    let survivors =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let holder = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let redis = RedisServer::start().unwrap();
    let provider = survivors.block_on(provider(
        "steps: [{calls: 1, behaviour: {inherit: false, status: 500}}]\ndefault: {connection: hang}",
    ));
    let targets = || {
        let mut only = fragile(target("primary", &provider, 0));
        // The lease: this and ten seconds.
        only.rules.deadlines.rules.first_token = ms(500);
        vec![only]
    };
    let waiting = |state: &sluice_agent::state::AgentState| {
        state.routes[0].targets[0].breaker.state == "awaiting-probe"
    };
    let (doomed, client) = holder.block_on(async {
        let mut targets = targets();
        // It must be the death that ends the attempt, not the deadline.
        targets[0].rules.deadlines.rules.first_token = ms(1_500);
        let world = agent(&redis, "doomed", targets).await;
        assert_eq!(world.chat().await.status, 500);
        world.until("awaiting", waiting).await;
        let mut client = world.connect().await;
        client.write_all(&request_bytes("/v1/chat/completions", "", &chat(true))).await.unwrap();
        (world, client)
    });
    survivors.block_on(provider.wait_for(|stats| stats.total.stalled == 1, PATIENCE)).unwrap();
    let died = std::thread::spawn(move || {
        holder.shutdown_background();
        drop((doomed, client));
    });
    died.join().unwrap();
    survivors.block_on(async {
        let world = agent(&redis, "survivor", targets()).await;
        let lease = Duration::from_secs(15);
        let probed = tokio::time::timeout(lease, async {
            loop {
                let asking = (0..20).map(|_| world.stream());
                let answers = futures_util::future::join_all(asking).await;
                if answers.iter().any(|answer| answer.status == 504) {
                    return answers;
                }
                assert!(answers.iter().all(|answer| answer.header("x-sluice-refused").is_some()));
                tokio::time::sleep(ms(50)).await;
            }
        });
        let answers = probed.await.unwrap();
        assert_eq!(answers.iter().filter(|answer| answer.status == 504).count(), 1, "exactly one more");
        assert_eq!(provider.stats().total.started, 3);
        world.until_idle().await;
    });
}

/// On a machine that is too busy for Redis' deadline an agent decides alone; what is counted then is not what the
/// test is about, and it is measured again.
async fn undisturbed<T>(measure: impl AsyncFn() -> (T, u64)) -> T {
    for _ in 0..10 {
        let (measured, alone) = measure().await;
        if alone == 0 {
            return measured;
        }
    }
    panic!("ten times the machine was too slow for Redis' deadline")
}

async fn alone(worlds: &[World]) -> u64 {
    let mut alone = 0;
    for world in worlds {
        alone += world.until_idle().await.store.fallback_admissions;
    }
    alone
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_is_one_for_all_agents() {
    let served = undisturbed(async || {
        let redis = RedisServer::start().unwrap();
        let primary = provider("default: {tokens: 20, inputTokens: 11}").await;
        let mut only = once(target("primary", &primary, 0));
        let mut quota = crate::harness::quota(1);
        quota.rules.burst_tokens = 310;
        only.rules.quota = Some(quota);
        let mut worlds = Vec::new();
        for name in ["a", "b", "c"] {
            worlds.push(agent(&redis, name, vec![only.clone()]).await);
        }
        let mut served = 0;
        for round in 0..30 {
            served += u64::from(worlds[round % 3].chat().await.status == 200);
        }
        (served, alone(&worlds).await)
    })
    .await;
    assert_eq!(served, 10, "of thirty-one tokens each");
}

/// In rounds of fifty, so that a pause of the machine costs one round.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_exchanges_cost_one_script_call_each_way() {
    let redis = RedisServer::start().unwrap();
    let primary = provider("default: {tokens: 2}").await;
    let world = agent(&redis, "test", vec![target("primary", &primary, 0)]).await;
    assert_eq!(world.chat().await.status, 200, "scripts are loaded");
    let (mut undisturbed, mut disturbed) = (0, 0);
    while undisturbed < 20 {
        world.until("connected", |state| state.store.reachable && state.store.settles_waiting == 0).await;
        let alone = world.until_idle().await.store.fallback_admissions;
        redis.command(&["CONFIG", "RESETSTAT"]).unwrap();
        for _ in 0..25 {
            assert_eq!(world.chat().await.status, 200);
            assert_eq!(world.stream().await.status, 200);
        }
        // The last settlements may still be on their way; a look at the agent's state would be a script call too.
        let settled = async {
            while redis.calls("evalsha").unwrap() < 100 {
                tokio::time::sleep(ms(2)).await;
            }
        };
        let settled = tokio::time::timeout(Duration::from_secs(2), settled).await;
        let counted = ["evalsha", "eval", "script|load"].map(|command| redis.calls(command).unwrap());
        if world.state().await.store.fallback_admissions > alone {
            disturbed += 1;
            assert!(disturbed < 200, "the machine is too slow for Redis' deadline");
            continue;
        }
        assert!(settled.is_ok(), "{counted:?}");
        assert_eq!(counted, [100, 0, 0]);
        undisturbed += 1;
    }
    world.until_idle().await;
}
