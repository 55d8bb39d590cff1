//! Several agents before one Redis: worked case 8, and what an exchange costs there.

use std::time::Duration;

use sluice_agent::state::AgentState;
use sluice_core::policy::{TargetPolicy, WireFormat};
use sluice_state::RedisConfig;
use sluice_state::store::Shared;
use sluice_testkit::RedisServer;
use tokio::io::AsyncWriteExt as _;

use crate::harness::{Answer, World, chat, ms, once, policy_set, provider, request_bytes, route, target};

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
    let (probes, refused) = undisturbed(herd).await;
    assert_eq!((probes, refused), (1, 49));
}

/// Fifty clients of five agents before a provider that hangs, at the end of its cool-down: probes and refusals, and
/// how many admissions were decided without Redis.
async fn herd() -> ((u64, u64), u64) {
    let redis = RedisServer::start().unwrap();
    let primary = provider(
        "steps: [{calls: 1, behaviour: {inherit: false, status: 500}}]\ndefault: {connection: hang}",
    )
    .await;
    let mut worlds = Vec::new();
    for number in 0..5 {
        let targets = vec![fragile(target("primary", &primary, 0))];
        worlds.push(agent(&redis, &format!("agent-{number}"), targets).await);
    }
    assert_eq!(worlds[0].chat().await.status, 500);
    for world in &worlds {
        world.until("every agent has heard, and the cool-down is over", awaiting_probe).await;
    }
    let mut clients = Vec::new();
    for client in 0..50 {
        let mut socket = worlds[client % 5].connect().await;
        socket.write_all(&request_bytes("/v1/chat/completions", "", &chat(true))).await.unwrap();
        clients.push(socket);
    }
    let (mut refused, mut alone) = (0, 0);
    for world in &worlds {
        // Each of an agent's ten is refused, or holds what it was granted.
        let decided = |state: &AgentState| state.exchanges.refused + state.exchanges.unsettled == 10;
        let state = world.until("all are decided", decided).await;
        refused += state.exchanges.refused;
        alone += state.store.fallback_admissions;
    }
    let probes = primary.stats().total.started - 1;
    assert!(probes <= 1 + alone, "{probes} probes, {alone} admissions decided alone");
    drop(clients);
    for world in &worlds {
        world.until("settled", |state| state.exchanges.unsettled == 0).await;
    }
    ((probes, refused), alone)
}

fn awaiting_probe(state: &AgentState) -> bool {
    state.routes[0].targets[0].breaker.state == "awaiting-probe"
}

/// The agent that holds the permit dies with its runtime: nothing settles for it.
#[test]
fn the_holder_of_a_probe_dies_and_exactly_one_more_goes_out_behind_its_lease() {
    for _ in 0..5 {
        let (probes, alone) = orphaned_probe();
        if alone == 0 {
            assert_eq!(probes, 1, "exactly one more");
            return;
        }
    }
    panic!("five times the machine was too slow for Redis' deadline")
}

/// Probes of a survivor behind the lease of the dead, and how many admissions were decided without Redis.
fn orphaned_probe() -> (u64, u64) {
    let survivors =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let holder = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let redis = RedisServer::start().unwrap();
    let provider = survivors.block_on(provider(
        "steps: [{calls: 1, behaviour: {inherit: false, status: 500}}]\ndefault: {connection: hang}",
    ));
    // The lease is this and ten seconds. The holder's is longer than its life: death ends the attempt.
    let targets = |first_token| {
        let mut only = fragile(target("primary", &provider, 0));
        only.rules.deadlines.rules.first_token = ms(first_token);
        vec![only]
    };
    let (doomed, client, alone) = holder.block_on(async {
        let world = agent(&redis, "doomed", targets(1_500)).await;
        assert_eq!(world.chat().await.status, 500);
        world.until("awaiting", awaiting_probe).await;
        let mut client = world.connect().await;
        client.write_all(&request_bytes("/v1/chat/completions", "", &chat(true))).await.unwrap();
        let alone = world.state().await.store.fallback_admissions;
        (world, client, alone)
    });
    let probing =
        survivors.block_on(provider.wait_for(|stats| stats.total.stalled == 1, Duration::from_secs(5)));
    if probing.is_err() {
        // Refused by the agent's own breaker: Redis did not answer in time.
        return (0, 1);
    }
    let died = std::thread::spawn(move || {
        holder.shutdown_background();
        drop((doomed, client));
    });
    died.join().unwrap();
    survivors.block_on(async {
        let world = agent(&redis, "survivor", targets(500)).await;
        assert_eq!(world.target("primary").await.breaker.probes_out, 1, "the dead one's permit");
        assert!(world.stream().await.header("x-sluice-refused").is_some(), "nobody else while it is out");
        world.until("the lease is over", |state| state.routes[0].targets[0].breaker.probes_out == 0).await;
        let answers = futures_util::future::join_all((0..20).map(|_| world.stream())).await;
        let probes = answers.iter().filter(|answer| answer.status == 504).count() as u64;
        let admission = |answer: &&Answer| {
            answer.header("x-sluice-refused").is_some_and(|refused| refused.starts_with("admit/"))
        };
        assert_eq!(answers.iter().filter(admission).count() as u64, 20 - probes);
        let alone = alone + world.state().await.store.fallback_admissions;
        assert_eq!(provider.stats().total.started, 2 + probes);
        world.until("settled", |state| state.exchanges.unsettled == 0).await;
        (probes, alone)
    })
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
