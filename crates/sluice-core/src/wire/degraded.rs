//! A route's static answer: a whole answer in the client's format, plain or streamed, so that an SDK cannot
//! tell it from a model's except by its text and the `x-sluice-degraded` header.

use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};

use super::Operation;
use super::errors::{frame, json_bytes};

/// What a static answer is made of.
#[derive(Debug, Clone, Copy)]
pub struct StaticAnswer<'a> {
    /// Unique; the exchange's id does.
    pub id: &'a str,
    /// The model that was asked for.
    pub model: &'a str,
    pub text: &'a str,
    /// Seconds since 1970.
    pub created: u64,
    /// Whether the client asked for the usage chunk.
    pub include_usage: bool,
}

/// The answer as one body; `None` for operations that a text cannot answer (embeddings, counting).
#[must_use]
pub fn static_answer(operation: Operation, answer: &StaticAnswer<'_>) -> Option<Bytes> {
    let StaticAnswer { id, model, text, created, .. } = *answer;
    Some(json_bytes(&match operation {
        Operation::ChatCompletions => json!({
            "id": format!("chatcmpl-{id}"), "object": "chat.completion", "created": created, "model": model,
            "choices": [{
                "index": 0, "message": { "role": "assistant", "content": text, "refusal": null },
                "logprobs": null, "finish_reason": "stop",
            }],
            "usage": openai_usage(),
        }),
        Operation::Completions => json!({
            "id": format!("cmpl-{id}"), "object": "text_completion", "created": created, "model": model,
            "choices": [{ "index": 0, "text": text, "logprobs": null, "finish_reason": "stop" }],
            "usage": openai_usage(),
        }),
        Operation::Responses => response(answer, "completed"),
        Operation::Messages => message(answer, Some("end_turn")),
        _ => return None,
    }))
}

/// The answer as a whole event stream; `None` as for [`static_answer`].
#[must_use]
pub fn static_stream(operation: Operation, answer: &StaticAnswer<'_>) -> Option<Bytes> {
    let frames = match operation {
        Operation::ChatCompletions => chat_chunks(answer),
        Operation::Completions => completion_chunks(answer),
        Operation::Responses => response_events(answer),
        Operation::Messages => message_events(answer),
        _ => return None,
    };
    let mut stream = BytesMut::new();
    for bytes in frames {
        stream.extend_from_slice(&bytes);
    }
    Some(stream.freeze())
}

fn openai_usage() -> Value {
    json!({ "prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0 })
}

fn done() -> Bytes {
    Bytes::from_static(b"data: [DONE]\n\n")
}

fn chat_chunks(answer: &StaticAnswer<'_>) -> Vec<Bytes> {
    let chunk = |choices: Value, usage: Value| {
        let mut chunk = json!({
            "id": format!("chatcmpl-{}", answer.id), "object": "chat.completion.chunk",
            "created": answer.created, "model": answer.model, "choices": choices,
        });
        if answer.include_usage {
            chunk["usage"] = usage;
        }
        frame(None, &chunk)
    };
    let choice = |delta: Value, finish: Value| json!([{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish }]);
    let mut chunks = vec![
        chunk(choice(json!({ "role": "assistant", "content": "" }), Value::Null), Value::Null),
        chunk(choice(json!({ "content": answer.text }), Value::Null), Value::Null),
        chunk(choice(json!({}), json!("stop")), Value::Null),
    ];
    if answer.include_usage {
        chunks.push(chunk(json!([]), openai_usage()));
    }
    chunks.push(done());
    chunks
}

fn completion_chunks(answer: &StaticAnswer<'_>) -> Vec<Bytes> {
    let chunk = |choices: Value, usage: Value| {
        let mut chunk = json!({
            "id": format!("cmpl-{}", answer.id), "object": "text_completion",
            "created": answer.created, "model": answer.model, "choices": choices,
        });
        if answer.include_usage {
            chunk["usage"] = usage;
        }
        frame(None, &chunk)
    };
    let choice = json!([{ "index": 0, "text": answer.text, "logprobs": null, "finish_reason": "stop" }]);
    let mut chunks = vec![chunk(choice, Value::Null)];
    if answer.include_usage {
        chunks.push(chunk(json!([]), openai_usage()));
    }
    chunks.push(done());
    chunks
}

fn output_text(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [] })
}

fn output_item(answer: &StaticAnswer<'_>, status: &str, content: Value) -> Value {
    let mut item = json!({ "type": "message", "id": format!("msg_{}", answer.id), "status": status, "role": "assistant" });
    item["content"] = content;
    item
}

fn response(answer: &StaticAnswer<'_>, status: &str) -> Value {
    let completed = status == "completed";
    let output = if completed {
        json!([output_item(answer, "completed", json!([output_text(answer.text)]))])
    } else {
        json!([])
    };
    let usage = completed.then(|| {
        json!({
            "input_tokens": 0, "input_tokens_details": { "cached_tokens": 0 },
            "output_tokens": 0, "output_tokens_details": { "reasoning_tokens": 0 }, "total_tokens": 0,
        })
    });
    json!({
        "id": format!("resp_{}", answer.id), "object": "response", "created_at": answer.created,
        "status": status, "error": null, "incomplete_details": null, "instructions": null, "metadata": {},
        "model": answer.model, "output": output, "parallel_tool_calls": true, "temperature": null,
        "tool_choice": "auto", "tools": [], "top_p": null, "usage": usage,
    })
}

fn response_events(answer: &StaticAnswer<'_>) -> Vec<Bytes> {
    let item_id = format!("msg_{}", answer.id);
    let at = |kind: &str, rest: Value| {
        let mut event = json!({ "type": kind, "item_id": item_id, "output_index": 0, "content_index": 0 });
        if let (Some(event), Value::Object(rest)) = (event.as_object_mut(), rest) {
            event.extend(rest);
        }
        event
    };
    let events = [
        json!({ "type": "response.created", "response": response(answer, "in_progress") }),
        json!({ "type": "response.in_progress", "response": response(answer, "in_progress") }),
        json!({ "type": "response.output_item.added", "output_index": 0,
            "item": output_item(answer, "in_progress", json!([])) }),
        at("response.content_part.added", json!({ "part": output_text("") })),
        at("response.output_text.delta", json!({ "delta": answer.text, "logprobs": [] })),
        at("response.output_text.done", json!({ "text": answer.text, "logprobs": [] })),
        at("response.content_part.done", json!({ "part": output_text(answer.text) })),
        json!({ "type": "response.output_item.done", "output_index": 0,
            "item": output_item(answer, "completed", json!([output_text(answer.text)])) }),
        json!({ "type": "response.completed", "response": response(answer, "completed") }),
    ];
    events
        .into_iter()
        .enumerate()
        .map(|(number, mut event)| {
            event["sequence_number"] = number.into();
            let kind = event["type"].as_str().unwrap_or_default().to_owned();
            frame(Some(&kind), &event)
        })
        .collect()
}

fn message(answer: &StaticAnswer<'_>, stop_reason: Option<&str>) -> Value {
    let content =
        if stop_reason.is_some() { json!([{ "type": "text", "text": answer.text }]) } else { json!([]) };
    json!({
        "id": format!("msg_{}", answer.id), "type": "message", "role": "assistant", "model": answer.model,
        "content": content, "stop_reason": stop_reason, "stop_sequence": null,
        "usage": { "input_tokens": 0, "output_tokens": 0 },
    })
}

fn message_events(answer: &StaticAnswer<'_>) -> Vec<Bytes> {
    [
        ("message_start", json!({ "message": message(answer, None) })),
        ("content_block_start", json!({ "index": 0, "content_block": { "type": "text", "text": "" } })),
        ("content_block_delta", json!({ "index": 0, "delta": { "type": "text_delta", "text": answer.text } })),
        ("content_block_stop", json!({ "index": 0 })),
        (
            "message_delta",
            json!({ "delta": { "stop_reason": "end_turn", "stop_sequence": null }, "usage": { "output_tokens": 0 } }),
        ),
        ("message_stop", json!({})),
    ]
    .into_iter()
    .map(|(kind, mut event)| {
        event["type"] = kind.into();
        frame(Some(kind), &event)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sse::{Decoded, Decoder};
    use crate::wire::{StreamReader, read_answer};

    const ANSWER: StaticAnswer<'_> = StaticAnswer {
        id: "1",
        model: "m",
        text: "Try \"later\".\r\n\r\nデータ",
        created: 7,
        include_usage: true,
    };
    const GENERATING: [Operation; 4] =
        [Operation::ChatCompletions, Operation::Completions, Operation::Responses, Operation::Messages];

    #[test]
    fn streams_are_whole() {
        for operation in GENERATING {
            let mut reader = StreamReader::new(operation);
            let (mut tokens, mut finished, mut terminal) = (0, false, 0);
            Decoder::new(1 << 20).push(&static_stream(operation, &ANSWER).unwrap(), |decoded| {
                let Decoded::Event(event) = decoded else { panic!("{decoded:?}") };
                let fact = reader.read(event);
                assert!(fact.error.is_none());
                tokens += fact.deltas;
                finished |= fact.finish;
                terminal += u32::from(fact.terminal);
            });
            assert_eq!((tokens, finished, terminal), (1, true, 1), "{operation:?}");
            assert_eq!(reader.usage().map(super::super::Usage::total), Some(0), "{operation:?}");
        }
    }

    #[test]
    fn bodies_are_whole() {
        for operation in GENERATING {
            let body = static_answer(operation, &ANSWER).unwrap();
            let facts = read_answer(operation, 200, Some("application/json"), &body);
            assert!(!facts.empty && !facts.not_json && facts.error.is_none(), "{operation:?}");
        }
        assert!(static_answer(Operation::Embeddings, &ANSWER).is_none());
        assert!(static_stream(Operation::CountTokens, &ANSWER).is_none());
    }
}
