//! Clients that stop reading: the provider is slowed down, then let go, and nobody else notices.

use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use sluice_core::policy::TargetPolicy;
use sluice_provider::Provider;
use tokio::io::AsyncWriteExt as _;

use crate::harness::{PATIENCE, World, chat, ms, provider, read_until, request_bytes, target};

/// An answer that is larger than all buffers between a provider and a client that does not read.
const FLOOD: &str = "default: {tokens: 100000, tokenBytes: 10000}";

fn impatient(mut target: TargetPolicy) -> TargetPolicy {
    target.rules.streaming.rules.slow_client = ms(400);
    target
}

fn flood() -> serde_json::Value {
    let mut body = chat(true);
    body["max_tokens"] = 100_000.into();
    body
}

async fn let_go(provider: &Provider, world: &World) {
    let stats = provider.wait_for(|stats| stats.total.cancelled() == 1, PATIENCE).await.unwrap();
    // Sockets' buffers and the agent's: megabytes, of the gigabyte that was on its way.
    assert!(stats.total.output_tokens < 5_000, "{}", stats.total.output_tokens);
    world.until_idle().await;
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_closed() {
    let primary = provider(FLOOD).await;
    let world = World::openai(vec![impatient(target("primary", &primary, 0))]).await;
    let mut client = world.connect().await;
    client.write_all(&request_bytes("/v1/chat/completions", "", &flood())).await.unwrap();
    read_until(&mut client, "\n\n").await;
    let_go(&primary, &world).await;
}

#[tokio::test]
async fn a_client_that_reads_slowly_is_not() {
    let primary = provider("default: {tokens: 300, tokenBytes: 10000}").await;
    let world = World::openai(vec![impatient(target("primary", &primary, 0))]).await;
    let mut body = chat(true);
    body["max_tokens"] = 300.into();
    let mut response = world.send("/v1/chat/completions", &[], &body).await;
    let mut bytes = 0;
    while let Some(frame) = response.body_mut().frame().await {
        bytes += frame.unwrap().into_data().map_or(0, |data| data.len());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(bytes > 3_000_000, "{bytes}");
    world.until_idle().await;
}

#[tokio::test]
async fn over_http2_one_stream_is_let_go_and_the_others_live() {
    let primary = provider(&format!(
        "{FLOOD}\nrules: [{{match: {{scenario: small}}, behaviour: {{tokens: 3, tokenBytes: 0}}}}]"
    ))
    .await;
    let world = World::openai(vec![impatient(target("primary", &primary, 0))]).await;
    let client = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .http2_initial_stream_window_size(100_000)
        .build_http::<Full<bytes::Bytes>>();
    let ask = |scenario: &str| {
        let request = http::Request::post(format!("{}/v1/chat/completions", world.base))
            .header("content-type", "application/json")
            .header("x-scenario", scenario)
            .body(Full::from(flood().to_string()))
            .unwrap();
        client.request(request)
    };
    let mut stuck = ask("flood").await.unwrap();
    assert_eq!(stuck.status(), 200);
    primary.wait_for(|stats| stats.total.cancelled() == 1, PATIENCE).await.unwrap();
    let small = tokio::time::timeout(PATIENCE, ask("small")).await.unwrap().unwrap();
    let small =
        tokio::time::timeout(PATIENCE, small.into_body().collect()).await.unwrap().unwrap().to_bytes();
    assert!(small.ends_with(b"data: [DONE]\n\n"), "the same connection serves on");
    world.until_idle().await;
    // What was in the window comes, and then no clean end.
    let ended = loop {
        match tokio::time::timeout(PATIENCE, stuck.body_mut().frame()).await.unwrap() {
            Some(Ok(_)) => {}
            other => break other,
        }
    };
    assert!(matches!(ended, Some(Err(_))), "it never ends as if complete");
}
