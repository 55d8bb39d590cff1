//! Anthropic's messages.

use serde_json::{Value, json};

use crate::content::{Finish, Piece};
use crate::json::escape;
use crate::scenario::ErrorKind;
use crate::sse::Sink;
use crate::wire::{BROKEN, Dialect, Reply, errors};

pub(crate) struct MessageStream {
    reply: Reply,
    block: Option<Block>,
    /// The number of the open block.
    index: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    Tool,
}

impl MessageStream {
    pub(crate) fn new(reply: Reply) -> Self {
        Self { reply, block: None, index: 0 }
    }

    fn event(name: &'static str, value: &Value, sink: &mut Sink) {
        sink.event(Some(name), &[value.to_string().as_bytes()]);
    }

    fn switch_to(&mut self, block: Block, sink: &mut Sink) {
        if self.block == Some(block) {
            return;
        }
        self.end_block(sink);
        self.block = Some(block);
        let content = match block {
            Block::Thinking => json!({"type": "thinking", "thinking": "", "signature": ""}),
            Block::Text => json!({"type": "text", "text": ""}),
            Block::Tool => json!({
                "type": "tool_use",
                "id": tool_id(&self.reply),
                "name": self.reply.content.tool(),
                "input": {},
            }),
        };
        let start = json!({"type": "content_block_start", "index": self.index, "content_block": content});
        Self::event("content_block_start", &start, sink);
    }

    fn end_block(&mut self, sink: &mut Sink) {
        let Some(block) = self.block.take() else { return };
        if block == Block::Thinking {
            let delta = json!({"type": "signature_delta", "signature": SIGNATURE});
            let event = json!({"type": "content_block_delta", "index": self.index, "delta": delta});
            Self::event("content_block_delta", &event, sink);
        }
        Self::event("content_block_stop", &json!({"type": "content_block_stop", "index": self.index}), sink);
        self.index += 1;
    }

    fn delta(&self, kind: &str, text: &str, sink: &mut Sink) {
        let head = format!(r#"{{"type":"content_block_delta","index":{},"delta":{{"type":"#, self.index);
        sink.event(
            Some("content_block_delta"),
            &[head.as_bytes(), kind.as_bytes(), escape(text).as_bytes(), br#""}}"#],
        );
    }
}

impl Dialect for MessageStream {
    fn open(&mut self, sink: &mut Sink) {
        let mut message = json!({
            "id": id(&self.reply),
            "type": "message",
            "role": "assistant",
            "model": self.reply.model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
        });
        if self.reply.reports_usage() {
            message["usage"] = usage(&self.reply, 1);
        }
        Self::event("message_start", &json!({"type": "message_start", "message": message}), sink);
        self.ping(sink);
    }

    fn token(&mut self, index: u64, sink: &mut Sink) {
        let block = match self.reply.content.piece(index) {
            Piece::Reasoning(_) => Block::Thinking,
            Piece::Text(_) => Block::Text,
            Piece::Tool(_) => Block::Tool,
        };
        self.switch_to(block, sink);
        match self.reply.content.piece(index) {
            Piece::Reasoning(text) => self.delta(r#""thinking_delta","thinking":""#, &text, sink),
            Piece::Text(text) => self.delta(r#""text_delta","text":""#, &text, sink),
            Piece::Tool(fragment) => self.delta(r#""input_json_delta","partial_json":""#, fragment, sink),
        }
    }

    fn close(&mut self, sink: &mut Sink) {
        self.end_block(sink);
        let delta = json!({"stop_reason": stop_reason(self.reply.content.finish), "stop_sequence": null});
        let mut event = json!({"type": "message_delta", "delta": delta});
        if self.reply.reports_usage() {
            event["usage"] = usage(&self.reply, self.reply.content.total);
        }
        Self::event("message_delta", &event, sink);
        self.done(sink);
    }

    fn ping(&self, sink: &mut Sink) {
        sink.event(Some("ping"), &[br#"{"type":"ping"}"#]);
    }

    fn malformed(&self, data: Option<&str>, sink: &mut Sink) {
        sink.event(Some("content_block_delta"), &[data.unwrap_or(BROKEN).as_bytes()]);
    }

    fn error(&self, kind: ErrorKind, message: Option<&str>, sink: &mut Sink) {
        Self::event("error", &errors::anthropic(kind, message, self.reply.seq), sink);
    }

    fn done(&self, sink: &mut Sink) {
        sink.event(Some("message_stop"), &[br#"{"type":"message_stop"}"#]);
    }

    fn total(&self) -> u64 {
        self.reply.content.total
    }
}

const SIGNATURE: &str = "c2NyaXB0ZWQ=";

pub(crate) fn plain(reply: &Reply) -> Value {
    let content = &reply.content;
    let mut blocks = Vec::new();
    if content.reasoning > 0 {
        blocks
            .push(json!({"type": "thinking", "thinking": content.reasoning_text(), "signature": SIGNATURE}));
    }
    if let Some(name) = content.tool() {
        // Arguments that were cut short, or are no JSON on purpose, can't be an object.
        let input = serde_json::from_str(&content.text()).unwrap_or_else(|_| json!({"raw": content.text()}));
        blocks.push(json!({"type": "tool_use", "id": tool_id(reply), "name": name, "input": input}));
    } else if content.total > content.reasoning {
        blocks.push(json!({"type": "text", "text": content.text()}));
    }
    let mut answer = json!({
        "id": id(reply),
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": blocks,
        "stop_reason": stop_reason(content.finish),
        "stop_sequence": null,
    });
    if reply.reports_usage() {
        answer["usage"] = usage(reply, content.total);
    }
    answer
}

fn usage(reply: &Reply, output: u64) -> Value {
    json!({
        "input_tokens": reply.input_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": output,
    })
}

fn stop_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "end_turn",
        Finish::Length => "max_tokens",
        Finish::Tool => "tool_use",
    }
}

fn id(reply: &Reply) -> String {
    format!("msg_{:012}", reply.seq)
}

fn tool_id(reply: &Reply) -> String {
    format!("toolu_{:012}", reply.seq)
}
