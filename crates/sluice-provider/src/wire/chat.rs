//! OpenAI's chat completions.

use crate::content::{Finish, Piece};
use crate::json::escape;
use crate::scenario::ErrorKind;
use crate::sse::Sink;
use crate::wire::{BROKEN, CREATED, Dialect, Reply, errors};

pub(crate) struct ChatStream {
    reply: Reply,
    /// A chunk up to its delta.
    head: String,
    /// A chunk after its delta, while the model goes on.
    tail: &'static str,
    tool_begun: bool,
}

impl ChatStream {
    pub(crate) fn new(reply: Reply) -> Self {
        let head = format!(
            r#"{{"id":"{}","object":"chat.completion.chunk","created":{CREATED},"model":"{}","service_tier":"default","system_fingerprint":"fp_scripted","choices":[{{"index":0,"delta":"#,
            id(&reply),
            escape(&reply.model)
        );
        // Asked for usage, OpenAI adds a null to every other chunk.
        let tail = if reply.include_usage && reply.reports_usage() {
            r#","logprobs":null,"finish_reason":null}],"usage":null}"#
        } else {
            r#","logprobs":null,"finish_reason":null}]}"#
        };
        Self { reply, head, tail, tool_begun: false }
    }

    fn delta(&self, before: &str, text: &str, after: &str, sink: &mut Sink) {
        sink.event(
            None,
            &[
                self.head.as_bytes(),
                before.as_bytes(),
                escape(text).as_bytes(),
                after.as_bytes(),
                self.tail.as_bytes(),
            ],
        );
    }
}

impl Dialect for ChatStream {
    fn open(&mut self, sink: &mut Sink) {
        let content = if self.reply.content.tool().is_some() { "null" } else { "\"\"" };
        self.delta(r#"{"role":"assistant","content":"#, "", &format!(r#"{content},"refusal":null}}"#), sink);
    }

    fn token(&mut self, index: u64, sink: &mut Sink) {
        if self.reply.content.tool().is_some() && index >= self.reply.content.reasoning && !self.tool_begun {
            self.tool_begun = true;
            let begin = format!(
                r#"{{"tool_calls":[{{"index":0,"id":"call_{:012}","type":"function","function":{{"name":""#,
                self.reply.seq
            );
            let name = self.reply.content.tool().unwrap_or_default();
            self.delta(&begin, name, r#"","arguments":""}}]}"#, sink);
        }
        match self.reply.content.piece(index) {
            Piece::Text(text) => self.delta(r#"{"content":""#, &text, r#""}"#, sink),
            Piece::Reasoning(text) => self.delta(r#"{"reasoning_content":""#, &text, r#""}"#, sink),
            Piece::Tool(fragment) => {
                self.delta(
                    r#"{"tool_calls":[{"index":0,"function":{"arguments":""#,
                    fragment,
                    r#""}}]}"#,
                    sink,
                );
            }
        }
    }

    fn close(&mut self, sink: &mut Sink) {
        let last = self.tail.replace(
            r#""finish_reason":null"#,
            &format!(r#""finish_reason":"{}""#, finish(self.reply.content.finish)),
        );
        sink.event(None, &[self.head.as_bytes(), b"{}", last.as_bytes()]);
        if self.reply.include_usage && self.reply.reports_usage() {
            let head = self.head.split(r#""choices""#).next().unwrap_or_default();
            let usage = usage(&self.reply);
            sink.event(None, &[head.as_bytes(), br#""choices":[],"usage":"#, usage.as_bytes(), b"}"]);
        }
        self.done(sink);
    }

    fn malformed(&self, data: Option<&str>, sink: &mut Sink) {
        sink.event(None, &[data.unwrap_or(BROKEN).as_bytes()]);
    }

    fn error(&self, kind: ErrorKind, message: Option<&str>, sink: &mut Sink) {
        sink.event(None, &[errors::openai(kind, message).to_string().as_bytes()]);
    }

    fn total(&self) -> u64 {
        self.reply.content.total
    }
}

/// Written by hand, as benches ask for nothing else.
pub(crate) fn plain(reply: &Reply) -> String {
    let content = &reply.content;
    let text = content.text();
    let said = match content.tool() {
        None => format!(r#""content":"{}""#, escape(&text)),
        Some(name) => format!(
            r#""content":null,"tool_calls":[{{"id":"call_{:012}","type":"function","function":{{"name":"{}","arguments":"{}"}}}}]"#,
            reply.seq,
            escape(name),
            escape(&text)
        ),
    };
    let reasoning = if content.reasoning > 0 {
        format!(r#","reasoning_content":"{}""#, escape(&content.reasoning_text()))
    } else {
        String::new()
    };
    let usage = if reply.reports_usage() { format!(r#","usage":{}"#, usage(reply)) } else { String::new() };
    format!(
        r#"{{"id":"{}","object":"chat.completion","created":{CREATED},"model":"{}","service_tier":"default","system_fingerprint":"fp_scripted","choices":[{{"index":0,"message":{{"role":"assistant","refusal":null,"annotations":[],{said}{reasoning}}},"logprobs":null,"finish_reason":"{}"}}]{usage}}}"#,
        id(reply),
        escape(&reply.model),
        finish(content.finish)
    )
}

fn id(reply: &Reply) -> String {
    format!("chatcmpl-{:012}", reply.seq)
}

pub(crate) fn finish(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::Tool => "tool_calls",
    }
}

/// The usage object of this API and of the text completions.
pub(crate) fn usage(reply: &Reply) -> String {
    let (input, output) = (reply.input_tokens, reply.content.total);
    format!(
        r#"{{"prompt_tokens":{input},"completion_tokens":{output},"total_tokens":{},"prompt_tokens_details":{{"cached_tokens":0,"audio_tokens":0}},"completion_tokens_details":{{"reasoning_tokens":{},"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}}}"#,
        input + output,
        reply.content.reasoning
    )
}
