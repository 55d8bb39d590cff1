//! However an exchange ends, its spans do.

use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use sluice_core::policy::Degraded;
use tokio::io::AsyncWriteExt as _;

use super::{Bench, NOTHING, Told};
use crate::harness::{PATIENCE, chat, ms, once, provider, read_until, request_bytes, route, target};

/// A client that leaves at some point of an exchange with a provider that stops there.
async fn client_leaves(scenario: &str, after: &str, variables: &[(&str, &str)]) -> Told {
    let primary = provider(scenario).await;
    let mut bench = Bench::start(variables).await;
    let world = bench.openai(vec![target("primary", &primary, 0)]).await;
    let mut client = world.connect().await;
    client.write_all(&request_bytes("/v1/chat/completions", "", &chat(true))).await.unwrap();
    if !after.is_empty() {
        read_until(&mut client, after).await;
    }
    primary.wait_for(|stats| stats.total.stalled == 1, PATIENCE).await.unwrap();
    drop(client);
    primary.wait_for(|stats| stats.total.cancelled() == 1, PATIENCE).await.unwrap();
    world.until_idle().await;
    bench.end().await
}

#[tokio::test]
async fn of_a_client_that_leaves() {
    for (scenario, after) in [("default: {stall: {after: 0}}", ""), ("default: {stall: {after: 3}}", "\n\n")]
    {
        let told = client_leaves(scenario, after, &[]).await;
        let (server, operation, attempts) = told.exchange();
        for span in [server, operation, attempts[0]] {
            assert_eq!(span.tag("error.type"), "client-gone", "{scenario}: {span:#?}");
        }
        assert_eq!(attempts[0].tag("sluice.verdict"), "ignored");
        assert!(told.records.is_empty(), "it is nobody's failure: {:#?}", told.records);
    }
    let told = client_leaves("default: {stall: {after: 3}}", "\n\n", &NOTHING).await;
    assert!(told.spans.is_empty(), "nor a reason to keep the trace: {:#?}", told.spans);
}

#[tokio::test]
async fn of_a_client_that_leaves_a_stream_of_http2() {
    let primary = provider("default: {stall: {after: 3}}").await;
    let mut bench = Bench::start(&[]).await;
    let world = bench.openai(vec![target("primary", &primary, 0)]).await;
    let (mut client, connection) = h2::client::handshake(world.connect().await).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = http::Request::post(format!("{}/v1/chat/completions", world.base)).body(()).unwrap();
    let (response, mut body) = client.send_request(request, false).unwrap();
    body.send_data(chat(true).to_string().into(), true).unwrap();
    let mut answer = response.await.unwrap().into_body();
    answer.data().await.unwrap().unwrap();
    primary.wait_for(|stats| stats.total.stalled == 1, PATIENCE).await.unwrap();
    body.send_reset(h2::Reason::CANCEL);
    drop(answer);
    primary.wait_for(|stats| stats.total.cancelled() == 1, PATIENCE).await.unwrap();
    world.until_idle().await;
    drop(client);
    let told = bench.end().await;
    connection.abort();
    let (server, _, attempts) = told.exchange();
    assert_eq!((server.tag("error.type"), attempts[0].tag("error.type")), ("client-gone", "client-gone"));
}

#[tokio::test]
async fn of_an_answer_that_breaks_off() {
    for (scenario, tune, reason) in [
        ("default: {tokens: 20, cut: {after: 3}}", 0, "cut"),
        ("default: {tokens: 20, stall: {after: 3}}", 50, "stall"),
    ] {
        let primary = provider(scenario).await;
        let mut bench = Bench::start(&NOTHING).await;
        let mut only = target("primary", &primary, 0);
        if tune > 0 {
            only.rules.deadlines.rules.stall = ms(tune);
        }
        let world = bench.openai(vec![only]).await;
        assert_eq!(world.stream().await.status, 200);
        let told = bench.end().await;
        let (server, operation, attempts) = told.exchange();
        for span in [server, operation, attempts[0]] {
            assert!(span.failed);
            assert_eq!(span.tag("error.type"), reason);
        }
        assert_eq!(attempts[0].tag("sluice.verdict"), "stall");
        assert_eq!(server.tag("sluice.sampling.kept_for"), "error");
        assert_eq!(told.records("sluice.failure").len(), 1);
        assert_eq!(told.records.len(), 1);
        let line = &told.records[0];
        assert_eq!((&line.trace, &line.span), (&operation.trace, &operation.id));
        assert_eq!((line.tag("sluice.refusal.stage"), line.tag("sluice.refusal.reason")), ("relay", reason));
    }
}

/// An attempt that holds nothing but its place in a drained agent, and a stream that is told.
#[tokio::test]
async fn of_a_drain() {
    let scenario = "
        rules:
        - {match: {scenario: long}, behaviour: {tokens: 20, stall: {after: 3}}}
        - {match: {scenario: waiting}, behaviour: {ttft: 60s}}";
    let primary = provider(scenario).await;
    let mut bench = Bench::start(&[]).await;
    let world = bench.openai(vec![target("primary", &primary, 0)]).await;
    let mut clients = Vec::new();
    for kind in ["long", "waiting"] {
        let mut client = world.connect().await;
        let header = format!("x-scenario: {kind}\r\n");
        client.write_all(&request_bytes("/v1/chat/completions", &header, &chat(true))).await.unwrap();
        clients.push(client);
    }
    read_until(&mut clients[0], "\n\n").await;
    primary.wait_for(|stats| stats.total.started == 2, PATIENCE).await.unwrap();
    let told = bench.end().await;
    drop(clients);
    let exchanges = told.exchanges();
    assert_eq!(exchanges.len(), 2);
    for (server, operation, attempts) in exchanges {
        assert_eq!((server.tag("error.type"), operation.tag("error.type")), ("draining", "draining"));
        assert_eq!(attempts.len(), 1);
    }
    assert_eq!(told.records("sluice.failure").len(), 2);
    assert_eq!(told.records.len(), 2);
}

#[tokio::test]
async fn of_what_no_route_serves_and_of_what_is_no_request() {
    let primary = provider("{}").await;
    let mut bench = Bench::start(&[]).await;
    let mut only = route(sluice_core::policy::WireFormat::OpenAi, vec![target("primary", &primary, 0)]);
    only.models = vec![sluice_core::policy::ModelPattern::parse("gpt-4o")];
    let world = bench.routes(vec![only]).await;
    let path = "/v1/chat/completions";
    world.ask(path, &[], &serde_json::json!({ "model": "of-the-clients-making", "messages": [] })).await;
    world.ask(path, &[], &serde_json::json!({ "model": 7 })).await;
    world.raw(b"PLANTED /planted HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    world.raw(b"GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    let told = bench.end().await;
    let servers = told.of_kind(SpanKind::Server);
    assert_eq!((servers.len(), told.spans.len()), (4, 4));
    let mut errors: Vec<_> =
        servers.iter().map(|span| (span.name.as_str(), span.tag("error.type"))).collect();
    errors.sort_unstable();
    assert_eq!(
        errors,
        [
            ("GET /v1/models", ""),
            ("HTTP", "unknown_path"),
            ("POST /v1/chat/completions", "invalid_request"),
            ("POST /v1/chat/completions", "model_not_found"),
        ]
    );
    let other = servers.iter().find(|span| span.name == "HTTP").unwrap();
    assert_eq!((other.tag("http.request.method"), other.tag("url.path")), ("_OTHER", ""));
    assert_eq!(told.records("sluice.refusal").len(), 3);
}

#[tokio::test]
async fn of_an_answer_for_bad_times() {
    let (primary, backend) = (provider("default: {status: 500}").await, provider("{}").await);
    for (how, degraded) in [
        ("static", Degraded::Static { text: "later".into() }),
        ("backend", Degraded::Backend { endpoint: backend.openai_url().into() }),
    ] {
        let mut bench = Bench::start(&NOTHING).await;
        let mut only =
            route(sluice_core::policy::WireFormat::OpenAi, vec![once(target("primary", &primary, 0))]);
        only.degraded = degraded;
        let world = bench.routes(vec![only]).await;
        assert_eq!(world.chat().await.status, 200);
        let told = bench.end().await;
        let (server, operation, attempts) = told.exchange();
        assert_eq!((operation.tag("sluice.degraded"), operation.tag("sluice.attempts")), (how, "1"));
        assert!(!server.failed && attempts[0].failed);
        assert!(told.records.is_empty(), "{:#?}", told.records);
    }
}
