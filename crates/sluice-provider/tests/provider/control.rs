//! The control endpoints.

use http::Method;
use serde_json::json;

use crate::support::{Answer, get, post_chat, provider, read, request, send};
use sluice_provider::Provider;

async fn put(provider: &Provider, kind: &str, body: &str) -> Answer {
    let call = request(Method::PUT, "/control/scenario", &[("content-type", kind)], body.to_owned());
    read(send(provider, call).await.unwrap()).await
}

#[tokio::test]
async fn the_scenario_is_changed_and_read() {
    let provider = provider("{}").await;
    assert_eq!(put(&provider, "application/yaml", "default: {status: 503, ttft: 250ms}").await.status, 200);
    assert_eq!(post_chat(&provider, true).await.status, 503);
    let text = get(&provider, "/control/scenario").await.text;
    assert!(text.contains("status: 503") && text.contains("ttft: 250ms"), "{text}");
    // What was read can be set again.
    assert_eq!(put(&provider, "application/yaml", &text).await.status, 200);
    let json = json!({"default": {"content": "quote \" and \u{1F30A}"}}).to_string();
    assert_eq!(put(&provider, "application/json", &json).await.status, 200);
    assert_eq!(post_chat(&provider, true).await.chat_text(), "quote \" and \u{1F30A}");
    let bad = put(&provider, "application/yaml", "default: {ttft: 10}").await;
    assert_eq!(bad.status, 400);
    let error = bad.json()["error"].as_str().unwrap().to_owned();
    assert!(error.contains("default.ttft") && error.contains("`10`") && error.contains("10ms"), "{error}");
    assert_eq!(post_chat(&provider, true).await.status, 200, "the last good one stays");
}

#[tokio::test]
async fn counts_and_calls_and_reset() {
    let provider = provider("default: {tokens: 2}").await;
    post_chat(&provider, true).await;
    post_chat(&provider, false).await;
    let stats = get(&provider, "/control/stats").await.json();
    assert_eq!(stats["total"]["completed"], 2);
    assert_eq!(stats["total"]["outputTokens"], 4);
    assert_eq!(stats["total"]["byStatus"]["200"], 2);
    assert_eq!(stats["models"]["gpt-4o"]["started"], 2);
    let calls = get(&provider, "/control/calls?last=1").await.json();
    assert_eq!(calls.as_array().unwrap().len(), 1);
    assert_eq!(
        (&calls[0]["seq"], &calls[0]["outcome"], &calls[0]["stream"]),
        (&json!(2), &json!("completed"), &json!(false))
    );
    let reset = request(Method::POST, "/control/reset", &[], "");
    assert_eq!(read(send(&provider, reset).await.unwrap()).await.status, 200);
    assert_eq!(get(&provider, "/control/stats").await.json()["total"]["started"], 0);
    assert_eq!(get(&provider, "/healthz").await.text, "ok\n");
    let unknown = get(&provider, "/control/nothing").await;
    assert_eq!(unknown.status, 404);
    assert!(unknown.text.contains("/control/scenario"));
    assert_eq!(provider.stats().total.started, 0, "none of these is a call");
}

#[tokio::test]
async fn the_answer_that_cuts_all_connections_still_arrives() {
    let provider = provider("{}").await;
    assert_eq!(put(&provider, "application/yaml", "connections: close").await.status, 200);
    let call = request(Method::GET, "/healthz", &[], "");
    assert!(send(&provider, call).await.is_err());
}
