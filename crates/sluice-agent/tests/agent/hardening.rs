//! Requests that no client sends in good faith: the right status, a closed connection, and nobody else hurt.

use std::time::Duration;

use sluice_core::policy::WireFormat;
use tokio::io::AsyncWriteExt as _;

use crate::harness::{
    PATIENCE, World, chat, counts, ms, policy_set, provider, request_bytes, route, target, target_at,
};
use crate::other_paths::fixed;

async fn world() -> (World, sluice_provider::Provider) {
    let primary = provider("{}").await;
    let world = World::openai(vec![target("primary", &primary, 0)]).await;
    (world, primary)
}

fn head(headers: &str) -> String {
    format!("POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n{headers}\r\n")
}

#[tokio::test]
async fn smuggling_is_refused_and_the_connection_closed() {
    let (world, primary) = world().await;
    let body = chat(false).to_string();
    let length = body.len();
    let chunked = format!("{length:x}\r\n{body}\r\n0\r\n\r\n");
    let huge = format!("x-huge: {}\r\n", "x".repeat(65 * 1024));
    let many: String = ["x-n: 1\r\n"; 120].concat();
    let cases = [
        (
            "CL+TE",
            head(&format!("content-length: {length}\r\ntransfer-encoding: chunked\r\n")) + &chunked,
            "400",
        ),
        (
            "TE+CL",
            head(&format!("transfer-encoding: chunked\r\ncontent-length: {length}\r\n")) + &chunked,
            "400",
        ),
        ("+3", head("content-length: +3\r\n") + "abc", "400"),
        ("two lengths", head(&format!("content-length: {length}\r\ncontent-length: 3\r\n")) + &body, "400"),
        (
            "equal lengths",
            head(&format!("content-length: {length}\r\ncontent-length: {length}\r\n")) + &body,
            "400",
        ),
        ("obs-fold", head(&format!("x-a: 1\r\n folded\r\ncontent-length: {length}\r\n")) + &body, "400"),
        ("space before the colon", head(&format!("content-length : {length}\r\n")) + &body, "400"),
        (
            "Connection: authorization",
            head(&format!("connection: authorization\r\ncontent-length: {length}\r\n")) + &body,
            "400",
        ),
        ("65 KiB of headers", head(&huge), "431"),
        ("120 headers", head(&many), "431"),
    ];
    for (what, request, status) in cases {
        // Returns when the connection is closed.
        let answer = world.raw(request.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{what}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{what}: nothing is answered twice");
    }
    assert_eq!(primary.stats().total.started, 0);
    assert_eq!(world.chat().await.status, 200);
}

#[tokio::test]
async fn a_body_beyond_the_bound_is_refused_and_other_streams_live() {
    let (world, primary) = world().await;
    primary.set(sluice_provider::Scenario::from_yaml("default: {tokens: 9, stall: {after: 3}}").unwrap());
    let asking = world.stream();
    let flooding = async {
        primary.wait_for(|stats| stats.total.stalled == 1, PATIENCE).await.unwrap();
        // Announced, and not announced: a hundred megabytes each.
        let announced = flood(&world, "content-length: 100000000\r\n", false).await;
        let unannounced = flood(&world, "transfer-encoding: chunked\r\n", true).await;
        primary.release();
        [announced, unannounced]
    };
    let (stream, answers) = tokio::join!(asking, flooding);
    for answer in answers {
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
        assert!(answer.contains("body_too_large") && answer.contains("33554432"), "{answer}");
    }
    assert!(stream.text().ends_with("[DONE]\n\n"));
    assert_eq!(primary.stats().total.started, 1);
    world.until_idle().await;
}

async fn flood(world: &World, framing: &str, chunked: bool) -> String {
    use tokio::io::AsyncReadExt as _;
    let socket = world.connect().await;
    let (mut read, mut write) = socket.into_split();
    let request = head(framing);
    let sending = tokio::spawn(async move {
        let block = vec![b'x'; 1_000_000];
        let _ = write.write_all(request.as_bytes()).await;
        for _ in 0..100 {
            let sent = if chunked {
                let _ = write.write_all(format!("{:x}\r\n", block.len()).as_bytes()).await;
                let _ = write.write_all(&block).await;
                write.write_all(b"\r\n").await
            } else {
                write.write_all(&block).await
            };
            if sent.is_err() {
                break;
            }
        }
        write
    });
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, read.read_to_end(&mut answer)).await.unwrap();
    drop(sending.await.unwrap());
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn headers_that_do_not_come_close_the_connection() {
    let primary = provider("{}").await;
    let policies = policy_set(vec![route(
        sluice_core::policy::WireFormat::OpenAi,
        vec![target("primary", &primary, 0)],
    )]);
    let home = std::sync::Arc::new(sluice_state::EmbeddedHome::new().unwrap());
    let shared = sluice_state::store::Shared::Embedded(home);
    let world = World::start(policies, shared, |config| config.header_timeout = ms(200)).await;
    let answer = world.raw(b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nx-slow: ").await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert_eq!(world.chat().await.status, 200);
}

/// CVE-2023-44487: ten thousand streams that are opened and reset.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rapid_resets_are_bounded() {
    let (world, primary) = world().await;
    primary.set(sluice_provider::Scenario::from_yaml("default: {tokens: 9, stall: {after: 3}}\nrules: [{match: {scenario: reset}, behaviour: {ttft: 60s}}]").unwrap());
    let asking = world.stream();
    let resetting = async {
        primary.wait_for(|stats| stats.total.stalled == 1, PATIENCE).await.unwrap();
        let mut opened = 0;
        while opened < 10_000 {
            opened += reset_streams(&world, 10_000 - opened).await;
        }
        primary.release();
    };
    let (stream, ()) = tokio::join!(asking, resetting);
    assert!(stream.text().ends_with("[DONE]\n\n"), "the stream of another client goes on");
    let state = world.until_idle().await;
    assert_eq!(state.exchanges.in_flight, 0);
    assert_eq!(world.target("primary").await.in_flight, 0);
}

/// Opens and resets streams until the server has had enough; returns how many.
async fn reset_streams(world: &World, most: usize) -> usize {
    let socket = world.connect().await;
    let (mut client, connection) = h2::client::handshake(socket).await.unwrap();
    let driving = tokio::spawn(async move { connection.await.is_err() });
    let mut opened = 0;
    let body = bytes::Bytes::from(chat(true).to_string());
    while opened < most {
        let Ok(Ok(ready)) = tokio::time::timeout(Duration::from_secs(5), client.clone().ready()).await else {
            break;
        };
        client = ready;
        let request = http::Request::post("http://a/v1/chat/completions")
            .header("x-scenario", "reset")
            .body(())
            .unwrap();
        let Ok((_, mut stream)) = client.send_request(request, false) else { break };
        let _ = stream.send_data(body.clone(), true);
        stream.send_reset(h2::Reason::CANCEL);
        opened += 1;
    }
    drop(client);
    let _ = tokio::time::timeout(PATIENCE, driving).await.unwrap();
    opened.max(1)
}

#[tokio::test]
async fn over_http2_too_many_headers_are_refused() {
    let (world, _) = world().await;
    let (client, connection) = h2::client::handshake(world.connect().await).await.unwrap();
    tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let mut request = http::Request::post("http://a/v1/chat/completions");
    for number in 0..120 {
        request = request.header(format!("x-{number}"), "1");
    }
    let (response, _) = client.send_request(request.body(()).unwrap(), true).unwrap();
    assert_eq!(response.await.unwrap().status(), 431);
}

#[tokio::test]
async fn a_compressed_bomb_is_only_bytes() {
    let (world, primary) = world().await;
    // A megabyte of zeros behind a gzip header: the agent inflates nothing and cannot read a model's name.
    let mut bomb = vec![0x1f, 0x8b, 8, 0];
    bomb.resize(1_000_000, 0);
    let mut request =
        head(&format!("content-encoding: gzip\r\nconnection: close\r\ncontent-length: {}\r\n", bomb.len()))
            .into_bytes();
    request.extend(bomb);
    let answer = world.raw(&request).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert_eq!(primary.stats().total.started, 0);
}

#[tokio::test]
async fn hop_by_hop_headers_stay_on_their_hop() {
    let primary = provider(
        "default: {headers: {keep-alive: timeout=5, proxy-authenticate: Basic, x-kept: both, connection: 'x-hop', x-hop: one}}",
    )
    .await;
    let world = World::openai(vec![target("primary", &primary, 0)]).await;
    let headers = [
        ("connection", "keep-alive, x-hop"),
        ("x-hop", "one"),
        ("te", "trailers"),
        ("keep-alive", "timeout=5"),
        ("proxy-authorization", "Basic eA=="),
        ("upgrade", "h2c"),
        ("x-kept", "both"),
        ("x-sluice-timeout-ms", "5000"),
        ("baggage", "a=b"),
        ("expect", "100-continue"),
    ];
    let answer = world.ask("/v1/chat/completions", &headers, &chat(false)).await;
    assert_eq!(answer.status, 200);
    let call = &primary.calls()[0];
    for (name, _) in headers.iter().filter(|(name, _)| *name != "x-kept") {
        assert_eq!(call.header(name), None, "{name} went upstream");
    }
    assert_eq!(call.header("x-kept"), Some("both"));
    for name in ["keep-alive", "proxy-authenticate", "x-hop", "connection"] {
        assert_eq!(answer.header(name), None, "{name} came back");
    }
    assert_eq!(answer.header("x-kept"), Some("both"));
}

#[tokio::test]
async fn a_client_that_stops_in_the_middle_of_its_body_leaves_nothing() {
    let (world, primary) = world().await;
    let mut socket = world.connect().await;
    let request = request_bytes("/v1/chat/completions", "", &chat(false));
    socket.write_all(&request[..request.len() - 5]).await.unwrap();
    world.until("it is being read", |state| state.exchanges.in_flight == 1).await;
    drop(socket);
    let state = world.until_idle().await;
    assert_eq!(state.exchanges.total, 1);
    assert_eq!(primary.stats().total.started, 0);
    assert_eq!(counts(&world.target("primary").await.verdicts), [].into());
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let (world, primary) = world().await;
    let mut requests = request_bytes("/v1/chat/completions", "x-n: 1\r\n", &chat(false));
    requests.extend(request_bytes("/v1/chat/completions", "x-n: 2\r\nconnection: close\r\n", &chat(false)));
    let answer = world.raw(&requests).await;
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 2, "{answer}");
    let order: Vec<_> = primary.calls().iter().map(|call| call.header("x-n").unwrap().to_owned()).collect();
    assert_eq!(order, ["1", "2"]);
}

/// The body's real length is what the client must be told, or it reads the next answer as the rest of this one.
#[tokio::test]
async fn an_answer_of_two_lengths_reaches_the_client_with_its_own() {
    let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\ntransfer-encoding: chunked\r\n\r\n15\r\n{\"object\": \"message\"}\r\n0\r\n\r\n";
    let (url, served) = fixed(answer).await;
    let world = World::openai(vec![target_at("primary", &url, 0)]).await;
    let answer = world.ask("/v1/chat/completions", &[], &chat(false)).await;
    assert_eq!((answer.status.as_u16(), answer.header("content-length")), (200, Some("21")));
    served.abort();
}

#[tokio::test]
async fn a_switch_of_protocols_that_nobody_asked_for_is_a_failure() {
    let (url, served) =
        fixed("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n").await;
    let fallback = provider("{}").await;
    let world = World::openai(vec![target_at("primary", &url, 0), target("fallback", &fallback, 1)]).await;
    let answer = world.ask("/v1/chat/completions", &[], &chat(false)).await;
    assert_eq!((answer.status.as_u16(), answer.header("x-sluice-served-by")), (200, Some("fallback")));
    assert_eq!(counts(&world.target("primary").await.verdicts), [("failure", 1)].into());
    served.abort();
}

#[tokio::test]
async fn a_target_that_is_the_agent_itself_is_a_loop_told_once() {
    let provider = provider("default: {}").await;
    let world = World::openai(vec![target("primary", &provider, 0)]).await;
    let itself = target_at("itself", &format!("{}/v1", world.base), 0);
    world.use_routes(vec![route(WireFormat::OpenAi, vec![itself])]);
    let answer = world.chat().await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.text().contains("leads back to it"), "{}", answer.text());
    let state = world.until_idle().await;
    assert_eq!(state.exchanges.total, 2, "the client's, and the one that came back");
}
