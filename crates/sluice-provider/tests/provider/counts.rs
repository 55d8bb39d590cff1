//! What is counted and remembered, above all when clients leave.

use std::time::Duration;

use http::Method;
use http_body_util::BodyExt;
use sluice_provider::{Outcome, Provider, Scenario, fingerprint};

use crate::support::{LONG, chat, post, post_chat, provider, read, request, send, send_h2};

async fn call_in_background(provider: &Provider, stream: bool, h2: bool) -> tokio::task::JoinHandle<()> {
    let call = request(Method::POST, "/v1/chat/completions", &[], chat(stream).to_string());
    let owned = provider.clone();
    let before = provider.stats().total.started;
    let task = tokio::spawn(async move {
        let sent = if h2 { send_h2(&owned, call).await } else { send(&owned, call).await };
        if let Ok(response) = sent {
            read(response).await;
        }
    });
    provider.wait_for(|stats| stats.total.started > before, LONG).await.unwrap();
    task
}

#[tokio::test]
async fn a_client_that_leaves_before_the_headers_is_seen() {
    for behaviour in ["headersDelay: 1h", "connection: hang", "ttft: 1h", "ttft: 1ms, perToken: 1h"] {
        let provider = provider(&format!("default: {{{behaviour}}}")).await;
        for h2 in [false, true] {
            call_in_background(&provider, false, h2).await.abort();
        }
        let stats = provider.wait_for(|stats| stats.total.in_flight == 0, LONG).await.unwrap();
        assert_eq!((stats.total.cancelled_before_headers, stats.total.completed), (2, 0), "{behaviour}");
        assert!(provider.calls().iter().all(|call| call.outcome == Outcome::CancelledBeforeHeaders));
    }
}

#[tokio::test]
async fn a_client_that_leaves_mid_stream_is_seen_and_nothing_more_is_produced() {
    let provider = provider("default: {tokens: 1000000, perToken: 1ms}").await;
    for h2 in [false, true] {
        let before = provider.stats().total.output_tokens;
        let call = call_in_background(&provider, true, h2).await;
        provider.wait_for(|stats| stats.total.output_tokens > before + 3, LONG).await.unwrap();
        call.abort();
        provider.wait_for(|stats| stats.total.in_flight == 0, LONG).await.unwrap();
    }
    let stats = provider.stats();
    assert_eq!((stats.total.cancelled_mid_stream, stats.total.cancelled()), (2, 2));
    assert!(stats.total.tokens_after_cancel <= 2, "{stats:?}");
    let calls = provider.calls();
    assert!(calls.iter().all(|call| call.outcome == Outcome::CancelledMidStream && call.tokens > 3));
    assert_eq!(calls.iter().map(|call| call.tokens).sum::<u64>(), stats.total.output_tokens);
}

#[tokio::test]
async fn a_provider_that_goes_on_generating_is_counted() {
    for stream in [true, false] {
        let provider =
            provider("default: {tokens: 40, ttft: 1ms, perToken: 1ms, keepGenerating: true}").await;
        let call = call_in_background(&provider, stream, false).await;
        provider.wait_for(|stats| stats.total.output_tokens > 0, LONG).await.unwrap();
        call.abort();
        let stats = provider.wait_for(|stats| stats.total.output_tokens == 40, LONG).await.unwrap();
        assert_eq!(stats.total.cancelled(), 1);
        assert!(stats.total.tokens_after_cancel > 0);
        assert_eq!(provider.calls()[0].tokens, 40);
    }
}

#[tokio::test]
async fn reading_one_frame_and_leaving() {
    let provider = provider("default: {tokens: 5, stall: {after: 5}}").await;
    let call = request(Method::POST, "/v1/chat/completions", &[], chat(true).to_string());
    let mut response = send(&provider, call).await.unwrap();
    response.body_mut().frame().await.unwrap().unwrap();
    provider.wait_for(|stats| stats.total.output_tokens == 5, LONG).await.unwrap();
    drop(response);
    let stats = provider.wait_for(|stats| stats.total.cancelled_mid_stream == 1, LONG).await.unwrap();
    assert_eq!((stats.total.output_tokens, stats.total.tokens_after_cancel), (5, 0));
}

#[tokio::test]
async fn concurrency_and_models() {
    let provider = provider("default: {stall: {after: 0}}").await;
    let mut calls = Vec::new();
    for _ in 0..5 {
        calls.push(call_in_background(&provider, true, false).await);
    }
    provider.wait_for(|stats| stats.total.in_flight == 5, LONG).await.unwrap();
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    provider.wait_for(|stats| stats.total.in_flight == 0, LONG).await.unwrap();
    provider.set(Scenario::default());
    let mut other = chat(false);
    other["model"] = "small".into();
    post(&provider, "/v1/chat/completions", &other).await;
    let stats = provider.stats();
    assert_eq!((stats.total.max_in_flight, stats.total.started), (5, 6));
    assert_eq!((stats.model("gpt-4o").max_in_flight, stats.model("gpt-4o").cancelled()), (5, 5));
    assert_eq!((stats.model("small").completed, stats.model("small").output_tokens), (1, 20));
    assert_eq!(stats.model("never").started, 0);
}

#[tokio::test]
async fn calls_are_remembered_in_order_and_bounded() {
    let provider = provider(
        "{record: 3, recordBodies: true, steps: [{name: first, calls: 1, behaviour: {status: 500}}]}",
    )
    .await;
    for max_tokens in 1..=5 {
        let mut ask = chat(false);
        ask["max_tokens"] = max_tokens.into();
        let headers = [("X-Team", "blue"), ("authorization", "Bearer sk-1"), ("idempotency-key", "k")];
        let call =
            request(Method::POST, "/v1/chat/completions?api-version=1&key=sk-2", &headers, ask.to_string());
        read(send(&provider, call).await.unwrap()).await;
        if max_tokens == 1 {
            assert_eq!(provider.calls()[0].step.as_deref(), Some("first"));
            assert_eq!(provider.calls()[0].status, Some(500));
        }
    }
    let calls = provider.calls();
    assert_eq!(
        calls.iter().map(|call| (call.seq, call.max_tokens.unwrap())).collect::<Vec<_>>(),
        [(3, 3), (4, 4), (5, 5)]
    );
    let last = &calls[2];
    assert_eq!(
        (last.method.as_str(), last.model.as_str(), last.version.as_str()),
        ("POST", "gpt-4o", "HTTP/1.1")
    );
    assert!(last.path.starts_with("/v1/chat/completions?api-version=1&key=redacted:"));
    assert_eq!((last.header("x-team"), last.header("idempotency-key")), (Some("blue"), Some("k")));
    assert_eq!(last.header("authorization"), Some(fingerprint("Bearer sk-1").as_str()));
    assert!(last.body.as_ref().unwrap().contains("\"max_tokens\":5"));
    assert_eq!(
        (last.outcome, last.tokens, last.status, last.step.as_deref()),
        (Outcome::Completed, 5, Some(200), None)
    );
    assert!(
        last.at_ms >= calls[0].at_ms && last.headers_ms.is_some() && last.ended_ms >= last.first_token_ms
    );
    assert!(!format!("{calls:?}").contains("sk-"));
    provider.reset();
    assert_eq!((provider.calls().len(), provider.stats().total.started), (0, 0));
    assert_eq!(post_chat(&provider, false).await.status, 500, "the steps begin anew");
}

#[tokio::test]
async fn waiting_ends_in_time_with_the_counts() {
    let provider = provider("{}").await;
    let error =
        provider.wait_for(|stats| stats.total.started == 1, Duration::from_millis(5)).await.unwrap_err();
    assert!(error.to_string().contains("started: 0"), "{error}");
    let waiting = {
        let provider = provider.clone();
        tokio::spawn(async move { provider.wait_for_calls(|calls| calls.len() == 1, LONG).await })
    };
    post_chat(&provider, true).await;
    assert_eq!(waiting.await.unwrap().unwrap()[0].model, "gpt-4o");
}

#[tokio::test]
async fn shutdown_ends_everything() {
    let provider = provider("default: {connection: hang}").await;
    let call = call_in_background(&provider, false, false).await;
    provider.shutdown().await;
    call.await.unwrap();
    assert_eq!(provider.stats().total.in_flight, 0);
    assert!(tokio::net::TcpStream::connect(provider.addr()).await.is_err());
}
