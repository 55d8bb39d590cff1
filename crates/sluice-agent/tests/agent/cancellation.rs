//! Clients that leave: the provider sees it at once, what was used is charged, and nothing is left behind.

use sluice_core::policy::{Concurrency, WireFormat};
use tokio::io::AsyncWriteExt as _;

use crate::harness::{
    INPUT, PATIENCE, World, chat, counts, message, ms, provider, read_until, request_bytes, route, target,
};

#[tokio::test]
async fn leaving_before_the_first_token_cancels_the_call() {
    let primary = provider("default: {stall: {after: 0}, inputTokens: 11}").await;
    let world = World::openai(vec![target("primary", &primary, 0)]).await;
    let mut client = world.connect().await;
    client.write_all(&request_bytes("/v1/chat/completions", "", &chat(true))).await.unwrap();
    primary.wait_for(|stats| stats.total.stalled == 1, PATIENCE).await.unwrap();
    drop(client);
    primary.wait_for(|stats| stats.total.cancelled() == 1, PATIENCE).await.unwrap();
    let state = world.until_idle().await;
    assert_eq!(state.exchanges.cancelled, 1);
    let target = world.target("primary").await;
    assert_eq!(counts(&target.verdicts), [("ignored", 1)].into(), "it says nothing of the provider");
    assert_eq!((target.tokens_charged, target.breaker.calls), (INPUT, 0));
}

#[tokio::test]
async fn leaving_behind_the_slow_threshold_says_that_it_was_slow() {
    let primary = provider("default: {ttft: 60s}").await;
    let mut only = target("primary", &primary, 0);
    only.rules.breaker.rules.slow.ttft = Some(ms(30));
    let world = World::openai(vec![only]).await;
    let mut client = world.connect().await;
    client.write_all(&request_bytes("/v1/chat/completions", "", &chat(true))).await.unwrap();
    world.until("slow", |state| state.routes[0].targets[0].breaker.slow == 1).await;
    drop(client);
    primary.wait_for(|stats| stats.total.cancelled() == 1, PATIENCE).await.unwrap();
    world.until_idle().await;
    assert_eq!(counts(&world.target("primary").await.verdicts), [("slow", 1)].into());
}

#[tokio::test]
async fn leaving_mid_stream_charges_what_was_produced() {
    for (format, path, body) in [
        (WireFormat::OpenAi, "/v1/chat/completions", chat(true)),
        (WireFormat::Anthropic, "/v1/messages", message(true)),
    ] {
        let primary = provider("default: {stall: {after: 3}, inputTokens: 11}").await;
        let world = World::new(vec![route(format, vec![target("primary", &primary, 0)])]).await;
        let mut client = world.connect().await;
        client.write_all(&request_bytes(path, "", &body)).await.unwrap();
        read_until(&mut client, "\n\n").await;
        primary.wait_for(|stats| stats.total.stalled == 1, PATIENCE).await.unwrap();
        drop(client);
        let stats = primary.wait_for(|stats| stats.total.cancelled_mid_stream == 1, PATIENCE).await.unwrap();
        assert_eq!(stats.total.tokens_after_cancel, 0);
        world.until_idle().await;
        let target = world.target("primary").await;
        assert_eq!(target.tokens_charged, stats.total.input_tokens + stats.total.output_tokens, "{path}");
        assert_eq!(counts(&target.verdicts), [("ignored", 1)].into(), "{path}");
    }
}

#[tokio::test]
async fn leaving_a_plain_call_cancels_it() {
    let primary = provider("default: {ttft: 60s}").await;
    let world = World::openai(vec![target("primary", &primary, 0)]).await;
    let mut client = world.connect().await;
    client.write_all(&request_bytes("/v1/chat/completions", "", &chat(false))).await.unwrap();
    primary.wait_for(|stats| stats.total.in_flight == 1, PATIENCE).await.unwrap();
    drop(client);
    primary.wait_for(|stats| stats.total.cancelled_before_headers == 1, PATIENCE).await.unwrap();
    let state = world.until_idle().await;
    assert_eq!(state.exchanges.cancelled, 1);
}

/// A client that ends its sending side cannot be told from one that is gone, so the call is not left running.
#[tokio::test]
async fn ending_the_sending_side_is_leaving() {
    for (scenario, stream) in [("default: {stall: {after: 0}}", true), ("default: {ttft: 60s}", false)] {
        let primary = provider(scenario).await;
        let world = World::openai(vec![target("primary", &primary, 0)]).await;
        let mut client = world.connect().await;
        client.write_all(&request_bytes("/v1/chat/completions", "", &chat(stream))).await.unwrap();
        primary.wait_for(|stats| stats.total.in_flight == 1, PATIENCE).await.unwrap();
        client.shutdown().await.unwrap();
        primary.wait_for(|stats| stats.total.cancelled() == 1, PATIENCE).await.unwrap();
        assert_eq!(world.until_idle().await.exchanges.cancelled, 1);
    }
}

/// SDKs close their connection at `[DONE]`, without waiting for the end of the body.
#[tokio::test]
async fn leaving_behind_the_last_event_is_a_success() {
    let primary = provider("default: {tokens: 4, inputTokens: 11}").await;
    let world = World::openai(vec![target("primary", &primary, 0)]).await;
    for _ in 0..20 {
        let mut client = world.connect().await;
        client.write_all(&request_bytes("/v1/chat/completions", "", &chat(true))).await.unwrap();
        read_until(&mut client, "[DONE]").await;
        drop(client);
    }
    let state = world.until_idle().await;
    let target = world.target("primary").await;
    assert_eq!(counts(&target.verdicts), [("success", 20)].into());
    assert_eq!((target.tokens_charged, state.exchanges.cancelled), (20 * 15, 0));
}

#[tokio::test]
async fn a_probe_whose_client_leaves_gives_its_permit_back() {
    let primary =
        provider("steps: [{calls: 1, behaviour: {status: 500}}, {calls: 1, behaviour: {stall: {after: 0}}}]")
            .await;
    let mut only = crate::harness::once(target("primary", &primary, 0));
    let breaker = &mut only.rules.breaker.rules;
    breaker.consecutive_failures = 1;
    breaker.cooldown.base = ms(100);
    breaker.cooldown.jitter_percent = 0;
    breaker.probes.successes = 1;
    let world = World::openai(vec![only]).await;
    assert_eq!(world.chat().await.status, 500);
    world.until("awaiting", |state| state.routes[0].targets[0].breaker.state == "awaiting-probe").await;
    let mut client = world.connect().await;
    client.write_all(&request_bytes("/v1/chat/completions", "", &chat(true))).await.unwrap();
    primary.wait_for(|stats| stats.total.stalled == 1, PATIENCE).await.unwrap();
    assert_eq!(world.target("primary").await.breaker.probes_out, 1);
    drop(client);
    world.until_idle().await;
    let target = world.target("primary").await;
    assert_eq!((target.breaker.state, target.breaker.probes_out), ("half-open", 0));
    assert_eq!(counts(&target.verdicts), [("failure", 1), ("cancelled", 1)].into());
    assert_eq!(world.chat().await.status, 200, "the next one probes");
    world.until("closed", |state| state.routes[0].targets[0].breaker.state == "closed").await;
}

/// A thousand clients that leave: a third during the wait, a third mid-stream, a third on plain calls. Then nothing
/// is outstanding, and the tokens charged are exactly the provider's own count. Only the input of a plain call that
/// was never answered is counted when it was sent here, and when it is answered there.
#[tokio::test]
async fn a_thousand_clients_that_leave_leave_nothing_behind() {
    const EACH: u64 = 333;
    let scenario = "
        default: {inputTokens: 11}
        rules:
        - {match: {scenario: waiting}, behaviour: {stall: {after: 0}}}
        - {match: {scenario: talking}, behaviour: {stall: {after: 3}}}
        - {match: {scenario: plain}, behaviour: {ttft: 600s}}";
    let primary = provider(scenario).await;
    let mut only = target("primary", &primary, 0);
    only.rules.concurrency.rules = Concurrency::Fixed { limit: 2_000 };
    only.rules.deadlines.rules.first_token = ms(60_000);
    only.rules.breaker.rules.slow.ttft = None;
    let world = World::openai(vec![only]).await;
    let mut clients = Vec::new();
    for (kind, stream) in [("waiting", true), ("talking", true), ("plain", false)] {
        for _ in 0..EACH {
            let mut client = world.connect().await;
            let header = format!("x-scenario: {kind}\r\n");
            client.write_all(&request_bytes("/v1/chat/completions", &header, &chat(stream))).await.unwrap();
            clients.push((client, kind));
        }
    }
    primary
        .wait_for(|stats| stats.total.stalled == 2 * EACH && stats.total.in_flight == 3 * EACH, PATIENCE)
        .await
        .unwrap();
    for (client, kind) in &mut clients {
        if *kind == "talking" {
            read_until(client, "\n\n").await;
        }
    }
    let busy = world.state().await;
    assert_eq!((busy.exchanges.in_flight, busy.exchanges.unsettled), (3 * EACH, 3 * EACH));
    drop(clients);
    let stats = primary.wait_for(|stats| stats.total.cancelled() == 3 * EACH, PATIENCE).await.unwrap();
    let state = world.until_idle().await;
    assert_eq!(state.exchanges.cancelled, 3 * EACH);
    let target = world.target("primary").await;
    assert_eq!(stats.total.output_tokens, 3 * EACH);
    assert_eq!(
        target.tokens_charged,
        stats.total.input_tokens + stats.total.output_tokens + EACH * INPUT,
        "{stats:?}"
    );
    assert_eq!((stats.total.tokens_after_cancel, target.breaker.calls, target.in_flight), (0, 0, 0));
    assert_eq!(world.chat().await.status, 200);
}
