//! Facts of streamed answers, with texts that try to pass for something else.
#![allow(clippy::unwrap_used, clippy::panic)]

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use serde_json::{Value, json};
use sluice_core::sse::Event;
use sluice_core::wire::{Delta, Fact, Operation, StreamReader, Usage};

fn event<'a>(name: Option<&'a str>, data: &'a str) -> Event<'a> {
    Event { event: name.map(str::as_bytes), data: data.as_bytes(), start: 0, end: 1 }
}

fn one(operation: Operation, data: &Value) -> Fact {
    StreamReader::new(operation).read(event(None, &data.to_string()))
}

fn chunk(delta: &Value) -> Fact {
    one(
        Operation::ChatCompletions,
        &json!({"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": null}], "usage": null}),
    )
}

/// Texts that look like parts of an event.
const TRICKS: [&str; 9] = [
    "usage",
    "\"usage\": {\"prompt_tokens\": 1}",
    "\"error\":{\"type\":\"overloaded_error\"}",
    "\",\"error\":{\"type\":\"x\"},\"y\":\"",
    "[DONE]",
    "data: [DONE]\n\n",
    "\\",
    "\\\"",
    "}}]}",
];

#[test]
fn what_is_a_token_in_a_chat_chunk() {
    for (delta, want) in [
        (json!({"role": "assistant", "content": ""}), Delta::None),
        (json!({"role": "assistant", "content": null}), Delta::None),
        (json!({}), Delta::None),
        (json!({"content": "a"}), Delta::Token),
        (json!({"refusal": "no"}), Delta::Token),
        (
            json!({"content": null, "tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}),
            Delta::Token,
        ),
        (json!({"tool_calls": []}), Delta::None),
        (json!({"function_call": {"name": "f", "arguments": ""}}), Delta::Token),
        (json!({"reasoning_content": "hm", "content": null}), Delta::Reasoning),
        (json!({"reasoning": "hm"}), Delta::Reasoning),
        (json!({"reasoning_content": "hm", "content": "a"}), Delta::Token),
    ] {
        assert_eq!(chunk(&delta).delta, want, "{delta}");
    }
    let logprobs = json!({"choices": [{"delta": {}, "logprobs": {"content": [{"token": "a"}]}}]});
    assert_eq!(one(Operation::ChatCompletions, &logprobs).delta, Delta::None);
    assert_eq!(one(Operation::Completions, &json!({"choices": [{"text": "a"}]})).delta, Delta::Token);
    assert_eq!(one(Operation::Completions, &json!({"choices": [{"text": ""}]})).delta, Delta::None);
    let two = json!({"choices": [{"delta": {"content": "a"}}, {"delta": {"content": "b"}}]});
    assert_eq!(one(Operation::ChatCompletions, &two).deltas, 2);
}

#[test]
fn text_is_text_whatever_it_says() {
    for text in TRICKS {
        let facts = [
            chunk(&json!({"content": text})),
            chunk(&json!({"tool_calls": [{"function": {"arguments": text}}]})),
            one(Operation::Completions, &json!({"choices": [{"text": text}]})),
            one(Operation::Responses, &json!({"type": "response.output_text.delta", "delta": text})),
            one(
                Operation::Messages,
                &json!({"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}),
            ),
        ];
        for fact in facts {
            assert_eq!(fact, Fact { delta: Delta::Token, deltas: 1, ..Fact::default() }, "{text:?}");
        }
    }
}

#[test]
fn the_end_of_a_chat_stream() {
    let mut reader = StreamReader::new(Operation::ChatCompletions);
    let finish =
        reader.read(event(None, r#"{"choices":[{"delta":{},"finish_reason":"stop"}],"usage":null}"#));
    assert!(finish.finish && !finish.terminal && !finish.usage_chunk);
    let usage = reader.read(event(
        None,
        r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":3}}}"#,
    ));
    assert!(usage.usage_chunk);
    assert_eq!(usage.usage, Some(Usage { input: 5, output: 7, cached_input: 3, reasoning: 0 }));
    assert!(reader.read(event(None, "[DONE]")).terminal);
    assert_eq!(reader.usage().map(Usage::total), Some(12));
}

#[test]
fn only_the_extra_chunk_is_the_usage_chunk() {
    let with_choice = json!({"choices": [{"delta": {"content": "a"}}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}});
    let fact = one(Operation::ChatCompletions, &with_choice);
    assert!(fact.usage.is_some() && !fact.usage_chunk, "a server that reports usage in each chunk");
    let azure = json!({"choices": [], "prompt_filter_results": [{}], "usage": null});
    assert!(!one(Operation::ChatCompletions, &azure).usage_chunk);
    let inner = json!({"choices": [], "x": {"usage": {"prompt_tokens": 1}}});
    assert_eq!(one(Operation::ChatCompletions, &inner).usage, None);
}

#[test]
fn errors_in_chat_streams() {
    let error = |data: Value| one(Operation::ChatCompletions, &data).error;
    let got = error(json!({"error": {"message": "m", "type": "server_error", "code": null}})).unwrap();
    assert_eq!((got.kind.as_deref(), got.status), (Some("server_error"), 500));
    assert_eq!(error(json!({"error": {"code": 429}})).map(|e| e.status), Some(429));
    assert_eq!(error(json!({"error": "boom"})).map(|e| e.status), Some(500));
    assert_eq!(error(json!({"error": null, "choices": []})), None);
    assert_eq!(error(json!({"choices": [{"error": {"x": 1}}]})), None, "not outermost");
    let cut = StreamReader::new(Operation::ChatCompletions).read(event(None, r#"{"error":{"type":"overl"#));
    assert_eq!(cut.error.map(|e| e.status), Some(500), "broken, but surely an error");
}

#[test]
fn an_anthropic_stream() {
    let mut reader = StreamReader::new(Operation::Messages);
    let mut read = |name: &str, data: &str| reader.read(event(Some(name), data));
    let start = read(
        "message_start",
        r#"{"type":"message_start","message":{"id":"m","content":[],"stop_reason":null,"usage":{"input_tokens":25,"cache_read_input_tokens":75,"output_tokens":1}}}"#,
    );
    assert_eq!((start.delta, start.finish), (Delta::None, false), "message_start is no token");
    assert_eq!(start.usage.map(|u| (u.input, u.output)), Some((100, 1)));
    let open = r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#;
    assert_eq!(read("content_block_start", open).delta, Delta::None);
    assert!(read("ping", r#"{"type":"ping"}"#).ping);
    for (data, want) in [
        (
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}"#,
            Delta::Reasoning,
        ),
        (
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"s"}}"#,
            Delta::Reasoning,
        ),
        (r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":""}}"#, Delta::None),
        (
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}"#,
            Delta::Token,
        ),
        (
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":""}}"#,
            Delta::None,
        ),
        (
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"type\":"}}"#,
            Delta::Token,
        ),
    ] {
        assert_eq!(read("content_block_delta", data).delta, want, "{data}");
    }
    let tool = r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}"#;
    assert_eq!(read("content_block_start", tool).delta, Delta::Token);
    for (output, total) in [(5, 105), (15, 115)] {
        let data = format!(
            r#"{{"type":"message_delta","delta":{{"stop_reason":"end_turn"}},"usage":{{"output_tokens":{output}}}}}"#
        );
        let fact = read("message_delta", &data);
        assert!(fact.finish && !fact.terminal);
        assert_eq!(fact.usage.map(Usage::total), Some(total), "cumulative: the last report, not the sum");
    }
    assert!(read("message_stop", r#"{"type":"message_stop"}"#).terminal);
}

#[test]
fn an_anthropic_error_event() {
    let fact = one(
        Operation::Messages,
        &json!({"type": "error", "error": {"type": "overloaded_error", "message": "m"}}),
    );
    assert!(fact.terminal);
    assert_eq!(fact.error.map(|error| error.status), Some(529));
    let bare = StreamReader::new(Operation::Messages).read(event(Some("error"), "overloaded"));
    assert!(bare.error.is_some(), "the event's name is enough");
}

#[test]
fn a_responses_stream() {
    let mut reader = StreamReader::new(Operation::Responses);
    let mut read = |data: Value| reader.read(event(None, &data.to_string()));
    assert_eq!(
        read(json!({"type": "response.created", "response": {"error": null, "usage": null}})),
        Fact::default()
    );
    assert_eq!(
        read(json!({"type": "response.reasoning_summary_text.delta", "delta": "hm"})).delta,
        Delta::Reasoning
    );
    assert_eq!(read(json!({"type": "response.output_text.delta", "delta": ""})).delta, Delta::None);
    assert_eq!(
        read(json!({"type": "response.function_call_arguments.delta", "delta": "{"})).delta,
        Delta::Token
    );
    let item =
        json!({"type": "response.output_item.done", "item": {"type": "mcp_call", "error": {"type": "x"}}});
    assert_eq!(read(item).error, None, "a tool's error is no error of the model");
    let done = read(json!({"type": "response.completed", "response": {
        "error": null, "output": [{"content": [{"text": "\"error\":{}"}]}],
        "usage": {"input_tokens": 3, "output_tokens": 4, "output_tokens_details": {"reasoning_tokens": 1}},
    }}));
    assert!(done.terminal && done.error.is_none());
    assert_eq!(done.usage, Some(Usage { input: 3, output: 4, cached_input: 0, reasoning: 1 }));
}

#[test]
fn a_responses_stream_that_fails() {
    for (data, status) in [
        (
            json!({"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded", "message": "m"}}}),
            429,
        ),
        (json!({"type": "response.failed", "response": {}}), 500),
        (json!({"type": "error", "code": "server_error", "message": "m", "param": null}), 500),
        (json!({"type": "error", "error": {"type": "overloaded_error"}}), 529),
        (json!({"type": "error", "code": "insufficient_quota"}), 429),
    ] {
        let fact = one(Operation::Responses, &data);
        assert!(fact.terminal, "{data}");
        assert_eq!(fact.error.map(|error| error.status), Some(status), "{data}");
    }
    let incomplete = json!({"type": "response.incomplete", "response": {"incomplete_details": {"reason": "max_output_tokens"}}});
    let fact = one(Operation::Responses, &incomplete);
    assert!(fact.terminal && fact.error.is_none(), "a limit that was reached is an answer");
}

#[test]
fn operations_without_streams_have_no_facts() {
    assert_eq!(one(Operation::Embeddings, &json!({"error": {"type": "x"}})), Fact::default());
}

/// A failure's seed is printed and kept in a file beside this one, and is run first from then on.
fn cases(cases: u32) -> ProptestConfig {
    let kept = FileFailurePersistence::WithSource("regressions");
    ProptestConfig { cases, failure_persistence: Some(Box::new(kept)), ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn any_text_is_one_token(text in prop_oneof![any::<String>(), prop::sample::select(&TRICKS[..]).prop_map(str::to_owned)]) {
        prop_assume!(!text.is_empty());
        let token = Fact { delta: Delta::Token, deltas: 1, ..Fact::default() };
        prop_assert_eq!(chunk(&json!({"content": &text})), token.clone());
        let delta = json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": &text}});
        prop_assert_eq!(one(Operation::Messages, &delta), token.clone());
        prop_assert_eq!(one(Operation::Responses, &json!({"type": "response.output_text.delta", "delta": &text})), token);
    }

    #[test]
    fn no_bytes_make_it_panic(data in prop::collection::vec(any::<u8>(), 0..120), which in 0_usize..4) {
        let operation = [Operation::ChatCompletions, Operation::Completions, Operation::Responses, Operation::Messages][which];
        let _ = StreamReader::new(operation).read(Event { event: None, data: &data, start: 0, end: 0 });
    }
}
