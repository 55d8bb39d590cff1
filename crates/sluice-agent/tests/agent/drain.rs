//! The end of an agent: what runs may finish for a grace period, then it is told, and everything is settled.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::harness::{PATIENCE, World, chat, policy_set, provider, read_until, request_bytes, route, target};

#[tokio::test]
async fn streams_finish_or_are_told() {
    let scenario = "
        default: {inputTokens: 11}
        rules:
        - {match: {scenario: short}, behaviour: {tokens: 10, perToken: 30ms}}
        - {match: {scenario: long}, behaviour: {tokens: 20, stall: {after: 3}}}
        - {match: {scenario: waiting}, behaviour: {ttft: 60s}}";
    let primary = provider(scenario).await;
    let world = World::openai(vec![target("primary", &primary, 0)]).await;
    let agent = world.agent.clone();
    let addr = world.addr;
    let mut clients = Vec::new();
    for (kind, count) in [("short", 10), ("long", 10), ("waiting", 5)] {
        for _ in 0..count {
            let mut client = world.connect().await;
            let header = format!("x-scenario: {kind}\r\n");
            client.write_all(&request_bytes("/v1/chat/completions", &header, &chat(true))).await.unwrap();
            clients.push((kind, client));
        }
    }
    primary.wait_for(|stats| stats.total.stalled == 10 && stats.total.started == 25, PATIENCE).await.unwrap();
    let idle = world.connect().await;
    let draining = tokio::spawn(world.drain());
    // The socket is closed at once, while streams go on.
    tokio::time::timeout(PATIENCE, async {
        while TcpStream::connect(addr).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    for (kind, mut client) in clients {
        let mut answer = String::new();
        tokio::time::timeout(PATIENCE, client.read_to_string(&mut answer)).await.unwrap().unwrap();
        match kind {
            "short" => assert!(answer.contains("[DONE]") && !answer.contains("draining"), "{answer}"),
            "long" => {
                assert!(
                    answer.starts_with("HTTP/1.1 200") && answer.contains("\"code\":\"draining\""),
                    "{answer}"
                );
                assert!(answer.ends_with("0\r\n\r\n"), "in order, as HTTP has it: {answer}");
                assert!(!answer.contains("[DONE]"));
            }
            _ => assert!(
                answer.starts_with("HTTP/1.1 503") && answer.contains("\"code\":\"draining\""),
                "{answer}"
            ),
        }
    }
    tokio::time::timeout(PATIENCE, draining).await.unwrap().unwrap();
    drop(idle);
    primary.wait_for(|stats| stats.total.in_flight == 0, PATIENCE).await.unwrap();
    let state = agent.state().await;
    assert_eq!(
        (state.exchanges.in_flight, state.exchanges.unsettled, state.store.settles_waiting),
        (0, 0, 0)
    );
    let target = &state.routes[0].targets[0];
    assert_eq!(
        (target.in_flight, target.breaker.failures, target.breaker.stalls),
        (0, 0, 0),
        "none of it is the provider's fault"
    );
    // 10 short ones whole, 10 long ones of three tokens, 5 that waited: the inputs and what was produced.
    assert_eq!(target.tokens_charged, 10 * 21 + 10 * 14 + 5 * 11);
}

#[tokio::test]
async fn a_client_that_does_not_read_does_not_hold_up_the_end() {
    let primary = provider("default: {tokens: 100000, tokenBytes: 10000}").await;
    let world = World::openai(vec![target("primary", &primary, 0)]).await;
    let mut body = chat(true);
    body["max_tokens"] = 100_000.into();
    let mut client = world.connect().await;
    client.write_all(&request_bytes("/v1/chat/completions", "", &body)).await.unwrap();
    read_until(&mut client, "\n\n").await;
    let agent = world.agent.clone();
    // The grace, two seconds to write a last event, and the cut.
    tokio::time::timeout(PATIENCE, world.drain()).await.unwrap();
    primary.wait_for(|stats| stats.total.cancelled() == 1, PATIENCE).await.unwrap();
    assert_eq!(agent.state().await.exchanges.unsettled, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_settled_at_the_end_reaches_redis() {
    let redis = sluice_testkit::RedisServer::start().unwrap();
    let primary = provider("default: {tokens: 20, inputTokens: 11, stall: {after: 3}}").await;
    let mut only = target("primary", &primary, 0);
    only.rules.quota = Some(crate::harness::quota(10_000));
    let policies = policy_set(vec![route(sluice_core::policy::WireFormat::OpenAi, vec![only])]);
    let world = World::start(policies.clone(), crate::fleet::shared(&redis), |config| {
        config.grace = crate::harness::ms(100);
    })
    .await;
    world.until("connected", |state| state.store.reachable).await;
    let asking = tokio::spawn({
        let mut client = world.connect().await;
        async move {
            client.write_all(&request_bytes("/v1/chat/completions", "", &chat(true))).await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            answer
        }
    });
    primary.wait_for(|stats| stats.total.stalled == 1, PATIENCE).await.unwrap();
    world.drain().await;
    assert!(asking.await.unwrap().contains("draining"));
    let other = World::start(policies, crate::fleet::shared(&redis), |_| {}).await;
    other.until("connected", |state| state.store.reachable).await;
    let left = other.target("primary").await.tokens_left.unwrap();
    assert!((9_986..=10_000).contains(&left), "{left}: fourteen used, seventeen returned");
}

#[tokio::test]
async fn a_lame_duck_is_unready_and_still_serves() {
    let primary = provider("{}").await;
    let policies = policy_set(vec![route(
        sluice_core::policy::WireFormat::OpenAi,
        vec![target("primary", &primary, 0)],
    )]);
    let home = || {
        let home = sluice_state::EmbeddedHome::new().unwrap();
        sluice_state::store::Shared::Embedded(std::sync::Arc::new(home))
    };
    let mut world = World::start(policies.clone(), home(), |config| config.lame_duck = PATIENCE * 100).await;
    world.until_readyz(200, "ok").await;
    let ended = world.begin_drain();
    world.until_readyz(503, "draining").await;
    let mut fresh = world.connect().await;
    fresh.write_all(&request_bytes("/v1/chat/completions", "", &chat(false))).await.unwrap();
    let mut answer = String::new();
    tokio::time::timeout(PATIENCE, fresh.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(
        answer.to_ascii_lowercase().contains("\r\nconnection: close\r\n"),
        "clients go elsewhere: {answer}"
    );
    ended.abort();

    let world = World::start(policies, home(), |config| {
        config.lame_duck = crate::harness::ms(50);
        config.grace = PATIENCE * 100;
    })
    .await;
    let addr = world.addr;
    let idle = world.connect().await;
    tokio::time::timeout(PATIENCE, world.drain())
        .await
        .expect("with nothing open the end does not wait for the grace");
    assert!(TcpStream::connect(addr).await.is_err());
    drop(idle);
}
