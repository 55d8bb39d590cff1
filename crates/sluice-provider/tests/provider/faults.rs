//! Each fault that a scenario can ask for.

use std::io::ErrorKind;

use http_body_util::BodyExt;
use serde_json::json;
use sluice_provider::scenario::{Connections, CutHow};
use sluice_provider::{Behaviour, Outcome, Scenario};
use tokio::net::TcpStream;

use crate::support::{
    LONG, chat, get, post, post_chat, provider, raw, raw_chat, read, request, send, send_h2, send_on,
};

#[tokio::test]
async fn statuses_headers_and_bodies() {
    let provider = provider(
        "
default: {status: 429, retryAfter: 7, retryAfterMs: '6500', headers: {x-ratelimit-remaining-tokens: -1}}
rules:
- match: {scenario: cap}
  behaviour: {inherit: false, error: spendCap}
- match: {scenario: page}
  behaviour: {inherit: false, status: 502, body: '<html>bad</html>', headers: {content-type: text/html}}
- match: {scenario: error-in-200}
  behaviour: {inherit: false, status: 200, error: overloaded, message: busy}
",
    )
    .await;
    let answer = post_chat(&provider, true).await;
    assert_eq!(answer.status, 429);
    assert_eq!((answer.header("retry-after"), answer.header("retry-after-ms")), ("7", "6500"));
    assert_eq!(answer.header("x-ratelimit-remaining-tokens"), "-1");
    assert_eq!(answer.json()["error"]["code"], "rate_limit_exceeded");
    let named = async |name: &'static str| {
        let body = chat(false).to_string();
        let call = request(http::Method::POST, "/v1/chat/completions", &[("x-scenario", name)], body);
        read(send(&provider, call).await.unwrap()).await
    };
    let cap = named("cap").await;
    assert_eq!((cap.status.as_u16(), &cap.json()["error"]["code"]), (429, &json!("insufficient_quota")));
    assert_eq!(cap.header("retry-after"), "");
    let page = named("page").await;
    assert_eq!(
        (page.status.as_u16(), page.header("content-type"), page.text.as_str()),
        (502, "text/html", "<html>bad</html>")
    );
    let error = named("error-in-200").await;
    assert_eq!((error.status.as_u16(), &error.json()["error"]["message"]), (200, &json!("busy")));
    let stats = provider.stats();
    assert_eq!((stats.total.status(429), stats.total.status(502), stats.total.completed), (2, 1, 4));
}

#[tokio::test]
async fn odd_answers_with_status_200() {
    let provider = provider("default: {answer: html}").await;
    let answer = post_chat(&provider, true).await;
    assert_eq!((answer.status.as_u16(), answer.header("content-type")), (200, "text/html; charset=utf-8"));
    assert!(answer.text.starts_with("<!doctype html>"));
    for (odd, kind) in
        [("emptyBody", "application/json"), ("emptyStream", "text/event-stream; charset=utf-8")]
    {
        provider.set(Scenario::from_yaml(&format!("default: {{answer: {odd}}}")).unwrap());
        let answer = post_chat(&provider, true).await;
        assert_eq!((answer.status.as_u16(), answer.header("content-type")), (200, kind));
        assert_eq!((answer.text.as_str(), answer.whole), ("", true));
    }
    provider.set(Scenario::from_yaml("default: {answer: noTokens}").unwrap());
    let answer = post_chat(&provider, true).await;
    assert_eq!((answer.chat_text().as_str(), answer.data().last()), ("", Some(&"[DONE]")));
    assert_eq!(provider.stats().total.output_tokens, 0);
}

#[tokio::test]
async fn cuts_of_every_kind() {
    let provider = provider("{}").await;
    for (how, whole) in
        [(CutHow::Close, false), (CutHow::MidEvent, false), (CutHow::Reset, false), (CutHow::Eof, true)]
    {
        provider.set_behaviour(Behaviour::cut(3, how).with_tokens(9));
        let answer = post_chat(&provider, true).await;
        assert_eq!((answer.status.as_u16(), answer.whole), (200, whole), "{how:?}");
        assert!(!answer.text.contains("[DONE]"), "{how:?}");
        if how == CutHow::MidEvent {
            assert!(!answer.text.ends_with('\n'), "half an event: {}", answer.text);
        } else if how != CutHow::Reset {
            // A reset may overtake what the client hasn't read.
            assert_eq!(answer.events().len(), 4, "{how:?}: a role and three tokens");
        }
    }
    let stats = provider.stats();
    assert_eq!((stats.total.cut, stats.total.output_tokens, stats.total.completed), (4, 12, 0));
    assert!(provider.calls().iter().all(|call| call.outcome == Outcome::Cut && call.tokens == 3));
    // All tokens and no terminator.
    provider.set_behaviour(Behaviour::cut(2, CutHow::Eof).with_tokens(2));
    let answer = post_chat(&provider, true).await;
    assert_eq!((answer.events().len(), answer.text.contains("finish_reason\":\"")), (3, false));
}

#[tokio::test]
async fn a_reset_is_a_tcp_reset() {
    let provider = provider("default: {cut: {after: 1, how: reset}}").await;
    let (bytes, error) = raw(&provider, &raw_chat(true)).await;
    assert!(bytes.starts_with(b"HTTP/1.1 200 OK") || bytes.is_empty());
    assert_eq!(error, Some(ErrorKind::ConnectionReset));
    provider.set(Scenario::from_yaml("default: {connection: reset}").unwrap());
    assert_eq!(raw(&provider, &raw_chat(true)).await, (vec![], Some(ErrorKind::ConnectionReset)));
    provider.set(Scenario::from_yaml("default: {connection: close}").unwrap());
    assert_eq!(raw(&provider, &raw_chat(true)).await, (vec![], None));
    assert_eq!(provider.stats().total.cut, 3);
}

#[tokio::test]
async fn plain_answers_are_cut_too() {
    let provider = provider("default: {cut: {after: 1}}").await;
    let answer = post_chat(&provider, false).await;
    assert!(!answer.whole && !answer.text.is_empty());
    provider.set(Scenario::from_yaml("default: {cut: {after: 1, how: eof}}").unwrap());
    let answer = post_chat(&provider, false).await;
    assert!(answer.whole && serde_json::from_str::<serde_json::Value>(&answer.text).is_err());
    provider.set(Scenario::from_yaml("default: {malformed: {}}").unwrap());
    let answer = post_chat(&provider, false).await;
    assert!(answer.whole && serde_json::from_str::<serde_json::Value>(&answer.text).is_err());
}

#[tokio::test]
async fn http2_streams_are_reset_and_the_connection_lives() {
    let provider = provider("default: {cut: {after: 2}}").await;
    let call = || request(http::Method::POST, "/v1/chat/completions", &[], chat(true).to_string());
    let answer = read(send_h2(&provider, call()).await.unwrap()).await;
    assert_eq!((answer.whole, answer.events().len()), (false, 3));
    provider.set(Scenario::from_yaml("default: {connection: reset}").unwrap());
    assert!(send_h2(&provider, call()).await.is_err());
}

#[tokio::test]
async fn errors_in_the_stream() {
    let provider = provider("default: {streamError: {after: 2, kind: rateLimit}, message: slow down}").await;
    let answer = post_chat(&provider, true).await;
    assert_eq!((answer.whole, answer.text.contains("[DONE]")), (true, false));
    assert_eq!(answer.events().last().unwrap()["error"]["message"], "slow down");
    let ask = json!({"model": "m", "max_tokens": 9, "stream": true, "messages": []});
    let answer = post(&provider, "/v1/messages", &ask).await;
    assert!(answer.text.contains("event: error\n"));
    assert_eq!(answer.events().last().unwrap()["error"]["type"], "rate_limit_error");
    let answer = post(&provider, "/v1/responses", &json!({"model": "m", "stream": true})).await;
    assert_eq!(answer.events().last().unwrap()["type"], "error");
    provider.set(Scenario::from_yaml("default: {streamError: {done: true}}").unwrap());
    let answer = post_chat(&provider, true).await;
    assert_eq!(answer.data().last(), Some(&"[DONE]"));
    assert_eq!(answer.events().last().unwrap()["error"]["code"], "overloaded");
    assert_eq!(provider.stats().total.stream_errors, 4);
    assert_eq!(provider.calls()[0].outcome, Outcome::StreamError);
}

#[tokio::test]
async fn a_broken_event_among_good_ones() {
    let provider = provider("default: {tokens: 3, malformed: {after: 1}}").await;
    let answer = post_chat(&provider, true).await;
    let bad =
        answer.data().iter().filter(|data| serde_json::from_str::<serde_json::Value>(data).is_err()).count();
    assert_eq!(bad, 2, "the broken one and [DONE]");
    assert_eq!(answer.data().last(), Some(&"[DONE]"));
}

#[tokio::test]
async fn a_stall_keeps_the_connection_open() {
    let provider = provider("default: {tokens: 9, stall: {after: 2}}").await;
    let call = request(http::Method::POST, "/v1/chat/completions", &[], chat(true).to_string());
    let mut response = send(&provider, call).await.unwrap();
    provider.wait_for(|stats| stats.total.stalled == 1, LONG).await.unwrap();
    let mut text = Vec::new();
    while text.windows(2).filter(|pair| pair == b"\n\n").count() < 3 {
        text.extend_from_slice(&response.body_mut().frame().await.unwrap().unwrap().into_data().unwrap());
    }
    assert_eq!(provider.stats().total.in_flight, 1);
    drop(response);
    let stats = provider.wait_for(|stats| stats.total.cancelled_mid_stream == 1, LONG).await.unwrap();
    assert_eq!((stats.total.in_flight, stats.total.tokens_after_cancel), (0, 0));
}

#[tokio::test]
async fn silent_calls_go_on_when_told_to() {
    for behaviour in [
        "{tokens: 4, stall: {after: 2}}",
        "{tokens: 4, stall: {after: 0}, pingEvery: 1ms}",
        "{tokens: 4, connection: hang}",
    ] {
        let provider = provider(&format!("default: {behaviour}")).await;
        for stream in [true, false] {
            let waiting = {
                let provider = provider.clone();
                tokio::spawn(async move { post_chat(&provider, stream).await })
            };
            provider.wait_for(|stats| stats.total.stalled == 1, LONG).await.unwrap();
            provider.release();
            let answer = waiting.await.unwrap();
            assert!(answer.whole && answer.status == 200);
        }
        let stats = provider.stats();
        assert_eq!((stats.total.completed, stats.total.output_tokens, stats.total.stalled), (2, 8, 0));
    }
}

#[tokio::test]
async fn keep_alives_and_never_a_token() {
    let provider = provider("default: {answer: keepAlivesOnly, pingEvery: 1ms}").await;
    for (path, ping) in [("/v1/chat/completions", ": keep-alive\n\n"), ("/v1/messages", "event: ping\n")] {
        let call = request(http::Method::POST, path, &[], chat(true).to_string());
        let mut response = send(&provider, call).await.unwrap();
        let mut text = String::new();
        while text.matches(ping).count() < 5 {
            let data = response.body_mut().frame().await.unwrap().unwrap().into_data().unwrap();
            text.push_str(std::str::from_utf8(&data).unwrap());
        }
        assert!(text.contains("role"), "the stream starts as usual");
    }
    assert_eq!(provider.stats().total.output_tokens, 0);
}

#[tokio::test]
async fn connections_closed_reset_hung_and_refused() {
    let provider = provider("{}").await;
    post_chat(&provider, true).await;
    let set = |connections| provider.set(Scenario { connections, ..Scenario::default() });
    // A pooled connection goes away with the server.
    let pooled = TcpStream::connect(provider.addr()).await.unwrap();
    provider.wait_for(|stats| stats.open_connections == 1, LONG).await.unwrap();
    set(Connections::Refuse);
    provider.wait_for(|stats| stats.open_connections == 0, LONG).await.unwrap();
    drop(pooled);
    // The socket is closed a moment after the change.
    let refused = async {
        loop {
            match TcpStream::connect(provider.addr()).await {
                Ok(_) => tokio::task::yield_now().await,
                Err(error) => return error.kind(),
            }
        }
    };
    assert_eq!(refused.await, ErrorKind::ConnectionRefused);
    set(Connections::Hang);
    let hung = async {
        loop {
            if let Ok(stream) = TcpStream::connect(provider.addr()).await {
                return stream;
            }
            tokio::task::yield_now().await;
        }
    };
    let hung = hung.await;
    provider.wait_for(|stats| stats.open_connections == 1, LONG).await.unwrap();
    set(Connections::Accept);
    assert_eq!(get(&provider, "/healthz").await.text, "ok\n");
    set(Connections::Reset);
    let call = request(http::Method::GET, "/healthz", &[], "");
    assert!(send_on(hung, call).await.is_err());
    let (bytes, _) = raw(&provider, &raw_chat(true)).await;
    assert!(bytes.is_empty());
    set(Connections::Close);
    assert!(raw(&provider, &raw_chat(true)).await.0.is_empty());
    set(Connections::Accept);
    provider.disconnect_all();
    assert_eq!(post_chat(&provider, true).await.status, 200);
}
