//! OpenAI's responses.

use serde_json::{Value, json};

use crate::content::{Finish, Piece};
use crate::json::escape;
use crate::scenario::ErrorKind;
use crate::sse::Sink;
use crate::wire::{BROKEN, CREATED, Dialect, Reply, errors};

pub(crate) struct ResponseStream {
    reply: Reply,
    sequence: u64,
    item: Option<Item>,
    /// The number of the open item.
    index: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Item {
    Reasoning,
    Message,
    Tool,
}

impl ResponseStream {
    pub(crate) fn new(reply: Reply) -> Self {
        Self { reply, sequence: 0, item: None, index: 0 }
    }

    fn event(&mut self, name: &'static str, mut value: Value, sink: &mut Sink) {
        value["type"] = name.into();
        value["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        sink.event(Some(name), &[value.to_string().as_bytes()]);
    }

    fn switch_to(&mut self, item: Item, sink: &mut Sink) {
        if self.item == Some(item) {
            return;
        }
        self.end_item(sink);
        self.item = Some(item);
        let index = self.index;
        let added = json!({"output_index": index, "item": self.item_value(item, false)});
        self.event("response.output_item.added", added, sink);
        let part = match item {
            Item::Message => {
                ("response.content_part.added", json!({"content_index": 0, "part": text_part("")}))
            }
            Item::Reasoning => {
                let part = json!({"type": "summary_text", "text": ""});
                ("response.reasoning_summary_part.added", json!({"summary_index": 0, "part": part}))
            }
            Item::Tool => return,
        };
        let value = self.of_item(item, part.1);
        self.event(part.0, value, sink);
    }

    fn end_item(&mut self, sink: &mut Sink) {
        let Some(item) = self.item.take() else { return };
        let done = match item {
            Item::Message => {
                let text = self.reply.content.text();
                let whole = json!({"content_index": 0, "text": text, "logprobs": []});
                let part = json!({"content_index": 0, "part": text_part(&text)});
                vec![("response.output_text.done", whole), ("response.content_part.done", part)]
            }
            Item::Reasoning => {
                let text = self.reply.content.reasoning_text();
                let part = json!({"summary_index": 0, "part": {"type": "summary_text", "text": text}});
                let whole = json!({"summary_index": 0, "text": text});
                vec![
                    ("response.reasoning_summary_text.done", whole),
                    ("response.reasoning_summary_part.done", part),
                ]
            }
            Item::Tool => {
                let whole =
                    json!({"name": self.reply.content.tool(), "arguments": self.reply.content.text()});
                vec![("response.function_call_arguments.done", whole)]
            }
        };
        for (name, value) in done {
            let value = self.of_item(item, value);
            self.event(name, value, sink);
        }
        let whole = json!({"output_index": self.index, "item": self.item_value(item, true)});
        self.event("response.output_item.done", whole, sink);
        self.index += 1;
    }

    /// Adds which item an event belongs to.
    fn of_item(&self, item: Item, mut value: Value) -> Value {
        value["item_id"] = item_id(&self.reply, item).into();
        value["output_index"] = self.index.into();
        value
    }

    fn item_value(&self, item: Item, whole: bool) -> Value {
        item_value(&self.reply, item, whole)
    }

    fn delta(&mut self, name: &str, item: Item, extra: &str, text: &str, sink: &mut Sink) {
        let head = format!(
            r#"{{"type":"{name}","sequence_number":{},"item_id":"{}","output_index":{},{extra}"delta":""#,
            self.sequence,
            item_id(&self.reply, item),
            self.index
        );
        self.sequence += 1;
        sink.event(Some(name), &[head.as_bytes(), escape(text).as_bytes(), br#""}"#]);
    }
}

impl Dialect for ResponseStream {
    fn open(&mut self, sink: &mut Sink) {
        for name in ["response.created", "response.in_progress"] {
            let response = response(&self.reply, "in_progress", &json!([]), &Value::Null);
            self.event(name, json!({"response": response}), sink);
        }
    }

    fn token(&mut self, index: u64, sink: &mut Sink) {
        let item = match self.reply.content.piece(index) {
            Piece::Reasoning(_) => Item::Reasoning,
            Piece::Text(_) => Item::Message,
            Piece::Tool(_) => Item::Tool,
        };
        self.switch_to(item, sink);
        let text = match self.reply.content.piece(index) {
            Piece::Reasoning(text) | Piece::Text(text) => text.into_owned(),
            Piece::Tool(fragment) => fragment.to_owned(),
        };
        let (name, extra) = match item {
            Item::Reasoning => ("response.reasoning_summary_text.delta", r#""summary_index":0,"#),
            Item::Message => ("response.output_text.delta", r#""content_index":0,"logprobs":[],"#),
            Item::Tool => ("response.function_call_arguments.delta", ""),
        };
        self.delta(name, item, extra, &text, sink);
    }

    fn close(&mut self, sink: &mut Sink) {
        self.end_item(sink);
        let response = plain(&self.reply);
        let name = match self.reply.content.finish {
            Finish::Length => "response.incomplete",
            Finish::Stop | Finish::Tool => "response.completed",
        };
        self.event(name, json!({"response": response}), sink);
    }

    fn malformed(&self, data: Option<&str>, sink: &mut Sink) {
        sink.event(Some("response.output_text.delta"), &[data.unwrap_or(BROKEN).as_bytes()]);
    }

    fn error(&self, kind: ErrorKind, message: Option<&str>, sink: &mut Sink) {
        let event = json!({
            "type": "error",
            "sequence_number": self.sequence,
            "code": errors::openai_code(kind),
            "message": message.unwrap_or_else(|| errors::message(kind)),
            "param": null,
        });
        sink.event(Some("error"), &[event.to_string().as_bytes()]);
    }

    fn total(&self) -> u64 {
        self.reply.content.total
    }
}

pub(crate) fn plain(reply: &Reply) -> Value {
    let content = &reply.content;
    let mut output = Vec::new();
    if content.reasoning > 0 {
        output.push(item_value(reply, Item::Reasoning, true));
    }
    if content.tool().is_some() {
        output.push(item_value(reply, Item::Tool, true));
    } else if content.total > content.reasoning {
        output.push(item_value(reply, Item::Message, true));
    }
    let status = if content.finish == Finish::Length { "incomplete" } else { "completed" };
    let usage = if reply.reports_usage() {
        json!({
            "input_tokens": reply.input_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": content.total,
            "output_tokens_details": {"reasoning_tokens": content.reasoning},
            "total_tokens": reply.input_tokens + content.total,
        })
    } else {
        Value::Null
    };
    response(reply, status, &output.into(), &usage)
}

fn response(reply: &Reply, status: &str, output: &Value, usage: &Value) -> Value {
    let incomplete = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
    json!({
        "id": format!("resp_{:012}", reply.seq),
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "background": false,
        "error": null,
        "incomplete_details": incomplete,
        "instructions": null,
        "max_output_tokens": null,
        "model": reply.model,
        "output": output,
        "parallel_tool_calls": true,
        "previous_response_id": null,
        "reasoning": {"effort": null, "summary": null},
        "store": false,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": usage,
        "user": null,
        "metadata": {},
    })
}

fn item_value(reply: &Reply, item: Item, whole: bool) -> Value {
    let status = if whole { "completed" } else { "in_progress" };
    let id = item_id(reply, item);
    match item {
        Item::Message => {
            let content = if whole { json!([text_part(&reply.content.text())]) } else { json!([]) };
            json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": content})
        }
        Item::Reasoning => {
            let text = json!([{"type": "summary_text", "text": reply.content.reasoning_text()}]);
            json!({"id": id, "type": "reasoning", "summary": if whole { text } else { json!([]) }})
        }
        Item::Tool => json!({
            "id": id,
            "type": "function_call",
            "status": status,
            "call_id": format!("call_{:012}", reply.seq),
            "name": reply.content.tool(),
            "arguments": if whole { reply.content.text() } else { String::new() },
        }),
    }
}

fn item_id(reply: &Reply, item: Item) -> String {
    let prefix = match item {
        Item::Reasoning => "rs",
        Item::Message => "msg",
        Item::Tool => "fc",
    };
    format!("{prefix}_{:012}", reply.seq)
}

fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}
