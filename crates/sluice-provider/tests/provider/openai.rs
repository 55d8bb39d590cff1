//! OpenAI's APIs, over real sockets.

use crate::support::{chat, get, post, post_chat, provider, read, request, send_h2};
use serde_json::json;

#[tokio::test]
async fn chat_streams_tokens_and_ends_with_done() {
    let provider = provider("default: {tokens: 3, inputTokens: 11}").await;
    let answer = post_chat(&provider, true).await;
    assert_eq!(answer.status, 200);
    assert!(answer.header("content-type").starts_with("text/event-stream"));
    assert!(answer.whole);
    let events = answer.events();
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(events[0]["choices"][0]["delta"]["content"], "");
    assert_eq!(events[1]["object"], "chat.completion.chunk");
    assert_eq!(events.len(), 5, "a role, three tokens, a finish");
    assert_eq!(events[4]["choices"][0]["finish_reason"], "stop");
    assert!(events.iter().all(|event| event.get("usage").is_none()), "usage only on request");
    assert_eq!(answer.data().last(), Some(&"[DONE]"));
    let stats = provider.stats();
    assert_eq!((stats.total.completed, stats.total.output_tokens, stats.total.input_tokens), (1, 3, 11));
    assert_eq!(stats.model("gpt-4o").status(200), 1);
}

#[tokio::test]
async fn usage_comes_in_a_chunk_of_its_own_when_asked_for() {
    let provider = provider("default: {tokens: 3, inputTokens: 11, reasoningTokens: 1}").await;
    let mut ask = chat(true);
    ask["stream_options"] = json!({"include_usage": true});
    let answer = post(&provider, "/v1/chat/completions", &ask).await;
    let events = answer.events();
    let (last, others) = events.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["prompt_tokens"], 11);
    assert_eq!(last["usage"]["completion_tokens"], 3);
    assert_eq!(last["usage"]["total_tokens"], 14);
    assert_eq!(last["usage"]["completion_tokens_details"]["reasoning_tokens"], 1);
    assert!(others.iter().all(|event| event["usage"].is_null() && event.get("usage").is_some()));
    assert!(others.iter().any(|event| event["choices"][0]["delta"]["reasoning_content"].is_string()));

    provider.set(sluice_provider::Scenario::from_yaml("default: {usage: omit}").unwrap());
    let answer = post(&provider, "/v1/chat/completions", &ask).await;
    assert!(answer.events().iter().all(|event| event.get("usage").is_none()));
}

#[tokio::test]
async fn plain_chat_says_what_the_stream_says() {
    let provider = provider("default: {tokens: 9}").await;
    let plain = post_chat(&provider, false).await.json();
    let message = &plain["choices"][0]["message"];
    assert_eq!(plain["object"], "chat.completion");
    assert_eq!(plain["usage"]["completion_tokens"], 9);
    assert_eq!(message["content"], post_chat(&provider, true).await.chat_text());
}

#[tokio::test]
async fn the_maximum_is_honoured() {
    let provider = provider("{}").await;
    let mut ask = chat(false);
    ask["max_completion_tokens"] = 5.into();
    let answer = post(&provider, "/v1/chat/completions", &ask).await.json();
    assert_eq!(answer["usage"]["completion_tokens"], 5);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    provider.set(sluice_provider::Scenario::from_yaml("default: {tokens: 50}").unwrap());
    let answer = post(&provider, "/v1/chat/completions", &ask).await.json();
    assert_eq!(answer["usage"]["completion_tokens"], 5);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(provider.calls()[0].max_tokens, Some(5));
}

#[tokio::test]
async fn tools_are_called_when_offered() {
    let provider = provider(r#"default: {toolCall: {arguments: '{"q":"tides"}'}}"#).await;
    let mut ask = chat(true);
    ask["tools"] = json!([{"type": "function", "function": {"name": "search", "parameters": {}}}]);
    let answer = post(&provider, "/v1/chat/completions", &ask).await;
    let calls: Vec<_> =
        answer.events().iter().map(|event| event["choices"][0]["delta"]["tool_calls"][0].clone()).collect();
    let first = calls.iter().find(|call| call["id"].is_string()).unwrap();
    assert_eq!(first["function"]["name"], "search");
    let arguments: String = calls.iter().filter_map(|call| call["function"]["arguments"].as_str()).collect();
    assert_eq!(arguments, r#"{"q":"tides"}"#);
    assert_eq!(answer.events().last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
    ask["stream"] = false.into();
    let plain = post(&provider, "/v1/chat/completions", &ask).await.json();
    assert_eq!(plain["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], r#"{"q":"tides"}"#);
    assert!(plain["choices"][0]["message"]["content"].is_null());
    assert!(post_chat(&provider, false).await.json()["choices"][0]["message"]["content"].is_string());
}

#[tokio::test]
async fn completions() {
    let provider = provider("default: {tokens: 4}").await;
    let ask =
        json!({"model": "m", "prompt": "hi", "stream": true, "stream_options": {"include_usage": true}});
    let answer = post(&provider, "/v1/completions", &ask).await;
    let text: String =
        answer.events().iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(answer.events().last().unwrap()["usage"]["completion_tokens"], 4);
    assert_eq!(answer.data().last(), Some(&"[DONE]"));
    let plain = post(&provider, "/v1/completions", &json!({"model": "m", "prompt": "hi"})).await.json();
    assert_eq!(plain["choices"][0]["text"], text);
}

#[tokio::test]
async fn responses_are_typed_events() {
    let provider = provider("default: {tokens: 4, reasoningTokens: 1, inputTokens: 7}").await;
    let answer =
        post(&provider, "/v1/responses", &json!({"model": "m", "input": "hi", "stream": true})).await;
    let events = answer.events();
    let names: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(names[..3], ["response.created", "response.in_progress", "response.output_item.added"]);
    assert_eq!(names.iter().filter(|name| **name == "response.output_text.delta").count(), 3);
    assert_eq!(names.iter().filter(|name| **name == "response.reasoning_summary_text.delta").count(), 1);
    assert!(events.iter().enumerate().all(|(at, event)| event["sequence_number"] == at));
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    assert_eq!(last["response"]["usage"]["total_tokens"], 11);
    assert_eq!(last["response"]["output"][1]["content"][0]["type"], "output_text");
    assert!(!answer.text.contains("[DONE]"));
    let ask = json!({"model": "m", "input": "hi", "max_output_tokens": 2});
    let plain = post(&provider, "/v1/responses", &ask).await.json();
    assert_eq!(plain["status"], "incomplete");
    assert_eq!(plain["incomplete_details"]["reason"], "max_output_tokens");
}

#[tokio::test]
async fn embeddings_models_and_the_echo() {
    let provider = provider("models: [a, b]").await;
    let ask = json!({"model": "e", "input": ["x", "y"], "dimensions": 3});
    let answer = post(&provider, "/v1/embeddings", &ask).await.json();
    assert_eq!(answer["data"][1]["embedding"].as_array().unwrap().len(), 3);
    assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() > 0);
    assert_eq!(get(&provider, "/v1/models").await.json()["data"][1]["id"], "b");
    assert_eq!(get(&provider, "/v1/models/a").await.json()["object"], "model");
    assert_eq!(get(&provider, "/v1/models/c").await.status, 404);
    let headers = [("authorization", "Bearer sk-1"), ("x-team", "blue")];
    let echo = request(http::Method::POST, "/v1/files?x=1", &headers, "12345");
    let echo = read(crate::support::send(&provider, echo).await.unwrap()).await;
    let value = echo.json();
    assert_eq!(
        (&value["method"], &value["path"], &value["bodyBytes"]),
        (&json!("POST"), &json!("/v1/files?x=1"), &json!(5))
    );
    assert_eq!(value["headers"]["x-team"], "blue");
    assert!(!echo.text.contains("sk-1"));
}

#[tokio::test]
async fn http2_without_tls() {
    let provider = provider("default: {tokens: 3}").await;
    let body = chat(true).to_string();
    let answer = read(
        send_h2(&provider, request(http::Method::POST, "/v1/chat/completions", &[], body)).await.unwrap(),
    )
    .await;
    assert_eq!(answer.data().last(), Some(&"[DONE]"));
    assert_eq!(provider.calls()[0].version, "HTTP/2.0");
}

#[tokio::test]
async fn bodies_that_can_not_be_read_are_refused() {
    let provider = provider("{}").await;
    let answer = post(&provider, "/v1/chat/completions", &json!({"messages": []})).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.json()["error"]["type"]),
        (400, &json!("invalid_request_error"))
    );
    let answer = post(&provider, "/v1/messages", &json!([])).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["type"]), (400, &json!("error")));
}
