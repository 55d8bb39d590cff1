//! Anthropic's APIs.

use http::Method;
use serde_json::{Value, json};

use crate::support::{post, provider, read, request, send};

fn ask(stream: bool) -> Value {
    json!({"model": "claude-sonnet-4-5", "max_tokens": 50, "stream": stream,
        "messages": [{"role": "user", "content": "hi"}]})
}

#[tokio::test]
async fn streams_are_typed_and_usage_is_cumulative() {
    let provider = provider("default: {tokens: 4, reasoningTokens: 1, inputTokens: 9}").await;
    let answer = post(&provider, "/v1/messages", &ask(true)).await;
    let names: Vec<&str> = answer.text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(
        names,
        [
            "message_start",
            "ping",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
    let events = answer.events();
    assert!(events.iter().zip(&names).all(|(event, name)| event["type"] == *name));
    assert_eq!(events[0]["message"]["usage"]["input_tokens"], 9);
    assert_eq!(events[3]["delta"]["type"], "thinking_delta");
    assert_eq!(events[4]["delta"]["type"], "signature_delta");
    assert_eq!((&events[7]["delta"]["type"], &events[7]["index"]), (&json!("text_delta"), &json!(1)));
    assert_eq!(events[11]["usage"]["output_tokens"], 4);
    assert_eq!(events[11]["delta"]["stop_reason"], "end_turn");
    assert_eq!(answer.header("request-id"), "req_000000000001");
}

#[tokio::test]
async fn plain_answers_and_tool_use() {
    let provider = provider("default: {tokens: 4, reasoningTokens: 1}").await;
    let plain = post(&provider, "/v1/messages", &ask(false)).await.json();
    assert_eq!(plain["type"], "message");
    assert_eq!(plain["content"][0]["type"], "thinking");
    assert_eq!(plain["content"][1]["type"], "text");
    assert_eq!(plain["usage"]["output_tokens"], 4);

    provider.set(sluice_provider::Scenario::from_yaml("default: {toolCall: {}}").unwrap());
    let mut with_tools = ask(true);
    with_tools["tools"] = json!([{"name": "weather", "input_schema": {"type": "object"}}]);
    let stream = post(&provider, "/v1/messages", &with_tools).await;
    let start = stream.events().into_iter().find(|event| event["type"] == "content_block_start").unwrap();
    assert_eq!(
        (&start["content_block"]["type"], &start["content_block"]["name"]),
        (&json!("tool_use"), &json!("weather"))
    );
    let fragments: String =
        stream.events().iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&fragments).unwrap()["city"], "Paris");
    with_tools["stream"] = false.into();
    let plain = post(&provider, "/v1/messages", &with_tools).await.json();
    assert_eq!(plain["content"][0]["input"]["city"], "Paris");
    assert_eq!(plain["stop_reason"], "tool_use");
}

#[tokio::test]
async fn token_counts_models_and_errors() {
    let provider = provider("default: {inputTokens: 33}").await;
    let count = post(&provider, "/v1/messages/count_tokens", &ask(false)).await;
    assert_eq!(count.json(), json!({"input_tokens": 33}));
    let list = request(Method::GET, "/v1/models", &[("anthropic-version", "2023-06-01")], "");
    let list = read(send(&provider, list).await.unwrap()).await.json();
    assert_eq!((&list["data"][0]["type"], &list["has_more"]), (&json!("model"), &json!(false)));
    provider.set(sluice_provider::Scenario::from_yaml("default: {error: overloaded}").unwrap());
    let error = post(&provider, "/v1/messages", &ask(true)).await;
    assert_eq!(error.status, 529);
    assert_eq!(error.json()["error"]["type"], "overloaded_error");
    let error = post(&provider, "/v1/chat/completions", &ask(true)).await;
    assert_eq!(error.status, 503);
    assert_eq!(error.json()["error"]["code"], "overloaded");
}
