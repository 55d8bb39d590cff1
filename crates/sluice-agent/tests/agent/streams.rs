//! Streams: bytes are the provider's own in every framing, usage is right, and a stream that does not end in order
//! never looks as if it had.

use serde_json::{Value, json};
use sluice_core::policy::{TargetPolicy, WireFormat};
use sluice_provider::Provider;

use crate::harness::{Answer, INPUT, World, chat, counts, message, ms, provider, route, target, target_at};

const FRAMINGS: [&str; 9] = [
    "{}",
    "{lineEnd: crlf}",
    "{lineEnd: cr}",
    "{bom: true}",
    "{comments: true, space: false}",
    "{splitData: true}",
    "{finalBlank: false}",
    "{lineEnd: crlf, bytePerWrite: true, comments: true, bom: true}",
    "{lineEnd: cr, finalBlank: false, splitData: true, bytePerWrite: true}",
];

fn asking_for_usage() -> Value {
    let mut body = chat(true);
    body["stream_options"] = json!({ "include_usage": true });
    body
}

/// The answer that a provider's own client gets.
async fn direct(url: &str, path: &str, body: &Value) -> Answer {
    let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
        .build_http::<http_body_util::Full<bytes::Bytes>>();
    let request = http::Request::post(format!("{url}{path}"))
        .header("content-type", "application/json")
        .header("anthropic-version", "2023-06-01")
        .body(http_body_util::Full::from(body.to_string()))
        .unwrap();
    crate::harness::read(client.request(request).await.unwrap()).await
}

/// Whether an answer through an agent is byte for byte the provider's. Two providers with one scenario: ids count
/// from the first call of each.
async fn identical(scenario: &str, format: WireFormat, path: &str, body: &Value) -> (World, Answer) {
    let (alone, behind) = (provider(scenario).await, provider(scenario).await);
    let world = World::new(vec![route(format, vec![target("primary", &behind, 0)])]).await;
    let (theirs, ours) = (direct(&alone.base_url(), path, body).await, world.ask(path, &[], body).await);
    assert_eq!(theirs.status, 200, "{scenario}");
    assert!(ours.body == theirs.body, "{scenario} {path}:\n{:?}\n{:?}", ours.text(), theirs.text());
    assert!(ours.whole);
    world.until_idle().await;
    (world, ours)
}

#[tokio::test]
async fn every_framing_arrives_byte_for_byte_with_its_usage() {
    for framing in FRAMINGS {
        let scenario = format!(
            "default: {{tokens: 7, reasoningTokens: 2, inputTokens: 11, text: utf8, framing: {framing}}}"
        );
        let paths = [
            (WireFormat::OpenAi, "/v1/chat/completions", asking_for_usage()),
            (WireFormat::OpenAi, "/v1/responses", json!({"model": "m", "input": "hello", "stream": true})),
            (WireFormat::Anthropic, "/v1/messages", message(true)),
        ];
        for (format, path, body) in paths {
            let (world, _) = identical(&scenario, format, path, &body).await;
            let target = world.target("primary").await;
            assert_eq!(target.tokens_charged, 18, "{framing} {path}");
            assert_eq!(target.tokens_estimated, 0, "{framing} {path}");
            assert_eq!(counts(&target.verdicts), [("success", 1)].into(), "{framing} {path}");
        }
    }
}

#[tokio::test]
async fn huge_lines_pass() {
    // Below the bound of a frame, and above it: those are relayed but not decoded.
    for bytes in [300_000, 1_500_000] {
        let scenario = format!("default: {{tokens: 3, inputTokens: 11, tokenBytes: {bytes}}}");
        let (world, answer) =
            identical(&scenario, WireFormat::OpenAi, "/v1/chat/completions", &asking_for_usage()).await;
        assert!(answer.body.len() > 3 * bytes);
        assert_eq!(world.target("primary").await.tokens_charged, 14, "{bytes}");
    }
}

#[tokio::test]
async fn tools_and_broken_events_pass() {
    let mut body = asking_for_usage();
    body["tools"] = json!([{"type": "function", "function": {"name": "lookup"}}]);
    let tools = "default: {inputTokens: 11, toolCall: {name: lookup, arguments: '{\"q\": 1}'}}";
    identical(tools, WireFormat::OpenAi, "/v1/chat/completions", &body).await;
    let malformed = "default: {tokens: 7, inputTokens: 11, malformed: {after: 3, data: '{\"broken'}}";
    let (world, _) =
        identical(malformed, WireFormat::OpenAi, "/v1/chat/completions", &asking_for_usage()).await;
    assert_eq!(world.target("primary").await.tokens_charged, 18, "a broken event ends no accounting");
}

#[tokio::test]
async fn the_usage_chunk_that_nobody_asked_for_stays_behind() {
    for framing in FRAMINGS {
        let scenario = format!("default: {{tokens: 5, inputTokens: 11, framing: {framing}}}");
        let (alone, behind) = (provider(&scenario).await, provider(&scenario).await);
        let world = World::openai(vec![target("primary", &behind, 0)]).await;
        let theirs = direct(&alone.base_url(), "/v1/chat/completions", &asking_for_usage()).await.text();
        let ours = world.stream().await.text();
        assert!(!ours.contains("prompt_tokens"), "{framing}: {ours}");
        // What is missing is one piece, the chunk with the usage.
        let common = ours.bytes().zip(theirs.bytes()).take_while(|(a, b)| a == b).count();
        let cut = theirs.len() - ours.len();
        assert_eq!(ours[common..], theirs[common + cut..], "{framing}");
        assert!(theirs[common..common + cut].contains("prompt_tokens"), "{framing}");
        world.until_idle().await;
        assert_eq!(world.target("primary").await.tokens_charged, 16, "{framing}: counted all the same");
    }
}

#[tokio::test]
async fn without_any_usage_the_deltas_are_counted_and_marked() {
    let primary = provider("default: {tokens: 6, usage: omit}").await;
    let world = World::openai(vec![target("primary", &primary, 0)]).await;
    assert!(world.stream().await.text().ends_with("data: [DONE]\n\n"));
    world.until_idle().await;
    let target = world.target("primary").await;
    assert_eq!((target.tokens_charged, target.tokens_estimated), (INPUT + 6, INPUT + 6));
}

#[tokio::test]
async fn no_chunk_waits_for_another() {
    let primary = provider("default: {tokens: 9, stall: {after: 3}}").await;
    let world = World::openai(vec![target("primary", &primary, 0)]).await;
    let mut socket = world.connect().await;
    tokio::io::AsyncWriteExt::write_all(
        &mut socket,
        &crate::harness::request_bytes("/v1/chat/completions", "", &chat(true)),
    )
    .await
    .unwrap();
    // Three tokens and the role chunk are here while the provider is silent.
    let mut seen = String::new();
    while seen.matches("\"delta\"").count() < 4 {
        seen += &crate::harness::read_until(&mut socket, "\n\n").await;
    }
    assert_eq!(primary.stats().total.stalled, 1);
    primary.release();
    crate::harness::read_until(&mut socket, "[DONE]").await;
    world.until_idle().await;
}

fn stalling(mut target: TargetPolicy) -> TargetPolicy {
    target.rules.deadlines.rules.stall = ms(250);
    target
}

/// A stream that was cut short ends with one error event of the client's own format.
fn ends_with_error(answer: &Answer, format: WireFormat, what: &str) {
    assert_eq!(answer.status, 200, "{what}");
    let text = answer.text();
    let last = text.trim_end().rsplit("\n\n").next().unwrap();
    let data = last.rsplit("data: ").next().unwrap();
    let event: Value = serde_json::from_str(data).unwrap_or_else(|_| panic!("{what}: {text}"));
    assert!(event["error"]["message"].as_str().unwrap().contains("not complete"), "{what}: {event}");
    match format {
        WireFormat::OpenAi => assert_eq!(event["error"]["type"], "server_error", "{what}"),
        WireFormat::Anthropic => {
            assert!(last.starts_with("event: error\n"), "{what}: {last}");
            assert_eq!(event["type"], "error", "{what}");
        }
    }
    assert!(!text.contains("[DONE]") && !text.contains("message_stop"), "{what}: {text}");
}

const FORMATS: [(WireFormat, &str); 2] =
    [(WireFormat::OpenAi, "/v1/chat/completions"), (WireFormat::Anthropic, "/v1/messages")];

fn body_of(format: WireFormat) -> Value {
    if format == WireFormat::OpenAi { chat(true) } else { message(true) }
}

#[tokio::test]
async fn a_stall_is_ended_told_and_counted() {
    for (format, path) in FORMATS {
        let primary = provider("default: {tokens: 9, inputTokens: 11, stall: {after: 3}}").await;
        let fallback = provider("{}").await;
        let targets = vec![stalling(target("primary", &primary, 0)), target("fallback", &fallback, 1)];
        let world = World::new(vec![route(format, targets)]).await;
        let answer = world.ask(path, &[], &body_of(format)).await;
        ends_with_error(&answer, format, path);
        primary
            .wait_for(|stats| stats.total.cancelled_mid_stream == 1, crate::harness::PATIENCE)
            .await
            .unwrap();
        world.until_idle().await;
        let primary = world.target("primary").await;
        assert_eq!(counts(&primary.verdicts), [("stall", 1)].into());
        assert_eq!((primary.breaker.stalls, primary.retries, primary.failovers), (1, 0, 0));
        assert_eq!(primary.tokens_charged, INPUT + 3, "{path}");
        assert_eq!(fallback.stats().total.started, 0);
    }
}

#[tokio::test]
async fn a_cut_stream_never_ends_as_if_complete() {
    for how in ["close", "reset", "midEvent", "eof"] {
        for (format, path) in FORMATS {
            let primary =
                provider(&format!("default: {{tokens: 9, inputTokens: 11, cut: {{after: 3, how: {how}}}}}"))
                    .await;
            let world = World::new(vec![route(format, vec![target("primary", &primary, 0)])]).await;
            let answer = world.ask(path, &[], &body_of(format)).await;
            ends_with_error(&answer, format, how);
            assert!(answer.whole, "the client's connection is in order");
            world.until_idle().await;
            let target = world.target("primary").await;
            assert_eq!(counts(&target.verdicts), [("stall", 1)].into(), "{how} {path}");
            assert_eq!(target.tokens_charged, INPUT + 3, "{how} {path}");
        }
    }
}

#[tokio::test]
async fn a_stream_cut_inside_an_event_too_large_to_hold_still_ends_with_an_event_of_its_own() {
    let scenario = "default: {tokens: 9, tokenBytes: 3000000, cut: {after: 1, how: midEvent}}";
    let primary = provider(scenario).await;
    let world = World::openai(vec![target("primary", &primary, 0)]).await;
    ends_with_error(&world.stream().await, WireFormat::OpenAi, scenario);
}

#[tokio::test]
async fn a_plain_answer_that_is_cut_behind_the_buffer_is_cut_for_the_client() {
    let primary = provider("default: {tokens: 20, tokenBytes: 100000, cut: {after: 1, how: close}}").await;
    let world = World::openai(vec![target("primary", &primary, 0)]).await;
    let answer = world.chat().await;
    assert!(answer.status == 200 && !answer.whole, "{} bytes", answer.body.len());
    world.until_idle().await;
    assert_eq!(counts(&world.target("primary").await.verdicts), [("stall", 1)].into());
}

#[tokio::test]
async fn silent_thinking_lives_within_the_silence() {
    // Reasoning deltas reset the stall timer; so do pings.
    let reasoning = "default: {tokens: 20, reasoningTokens: 15, perToken: 60ms}";
    let pings = "default: {tokens: 4, stall: {after: 1, for: 900ms}, pingEvery: 50ms}";
    for scenario in [reasoning, pings] {
        let primary = provider(scenario).await;
        let world = World::openai(vec![stalling(target("primary", &primary, 0))]).await;
        let answer = world.stream().await;
        assert!(answer.text().ends_with("data: [DONE]\n\n"), "{scenario}: {}", answer.text());
    }
}

#[tokio::test]
async fn pings_alone_do_not_live_for_ever() {
    let primary = provider("default: {tokens: 4, stall: {after: 1}, pingEvery: 20ms}").await;
    let mut only = stalling(target("primary", &primary, 0));
    only.rules.deadlines.rules.max_silence = ms(400);
    let world = World::openai(vec![only]).await;
    ends_with_error(&world.stream().await, WireFormat::OpenAi, "silence");
    world.until_idle().await;
    assert_eq!(counts(&world.target("primary").await.verdicts), [("stall", 1)].into());
}

/// A provider that keeps its connection open behind the last event, byte by byte.
#[tokio::test]
async fn the_last_event_ends_the_stream_whatever_the_connection_does() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let events = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"}}]}\n\ndata: [DONE]\n\n";
    let served = tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut buffer = [0; 4096];
        let _ = socket.read(&mut buffer).await.unwrap();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        socket.write_all(format!("{head}{:x}\r\n{events}\r\n", events.len()).as_bytes()).await.unwrap();
        // No last chunk; the agent leaves.
        while socket.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
    });
    let world = World::openai(vec![target_at("primary", &url, 0)]).await;
    let answer = world.stream().await;
    assert_eq!((answer.text().as_str(), answer.whole), (events, true));
    world.until_idle().await;
    assert_eq!(counts(&world.target("primary").await.verdicts), [("success", 1)].into());
    served.await.unwrap();
}

/// A provider that announces the length of its stream.
#[tokio::test]
async fn a_length_that_no_longer_holds_is_not_repeated() {
    let (alone, behind): (Provider, Provider) = (provider("{}").await, provider("{}").await);
    let events = direct(&alone.base_url(), "/v1/chat/completions", &asking_for_usage()).await.text();
    let scenario = json!({ "default": { "body": events } }).to_string();
    behind.set(sluice_provider::Scenario::from_yaml(&scenario).unwrap());
    let world = World::openai(vec![target("primary", &behind, 0)]).await;
    let answer = world.stream().await;
    assert!(
        answer.whole && !answer.text().contains("prompt_tokens") && answer.text().ends_with("[DONE]\n\n")
    );
    world.until_idle().await;
}
