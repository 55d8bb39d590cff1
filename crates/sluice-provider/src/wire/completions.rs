//! OpenAI's text completions.

use crate::content::Piece;
use crate::json::escape;
use crate::scenario::ErrorKind;
use crate::sse::Sink;
use crate::wire::{BROKEN, CREATED, Dialect, Reply, chat, errors};

pub(crate) struct CompletionStream {
    reply: Reply,
    /// A chunk up to its text.
    head: String,
}

impl CompletionStream {
    pub(crate) fn new(reply: Reply) -> Self {
        let head = format!(
            r#"{{"id":"{}","object":"text_completion","created":{CREATED},"model":"{}","choices":[{{"index":0,"logprobs":null,"text":""#,
            id(&reply),
            escape(&reply.model)
        );
        Self { reply, head }
    }

    fn chunk(&self, text: &str, finish: &str, sink: &mut Sink) {
        let usage = if self.asked() { r#"],"usage":null}"# } else { "]}" };
        sink.event(
            None,
            &[
                self.head.as_bytes(),
                escape(text).as_bytes(),
                br#"","finish_reason":"#,
                finish.as_bytes(),
                b"}",
                usage.as_bytes(),
            ],
        );
    }

    fn asked(&self) -> bool {
        self.reply.include_usage && self.reply.reports_usage()
    }
}

impl Dialect for CompletionStream {
    /// This API has nothing before its first token.
    fn open(&mut self, _sink: &mut Sink) {}

    fn token(&mut self, index: u64, sink: &mut Sink) {
        match self.reply.content.piece(index) {
            Piece::Text(text) | Piece::Reasoning(text) => self.chunk(&text, "null", sink),
            Piece::Tool(fragment) => self.chunk(fragment, "null", sink),
        }
    }

    fn close(&mut self, sink: &mut Sink) {
        self.chunk("", &format!("\"{}\"", chat::finish(self.reply.content.finish)), sink);
        if self.asked() {
            let head = self.head.split(r#""choices""#).next().unwrap_or_default();
            let usage = chat::usage(&self.reply);
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

pub(crate) fn plain(reply: &Reply) -> String {
    let text = reply.content.reasoning_text() + &reply.content.text();
    let usage =
        if reply.reports_usage() { format!(r#","usage":{}"#, chat::usage(reply)) } else { String::new() };
    format!(
        r#"{{"id":"{}","object":"text_completion","created":{CREATED},"model":"{}","choices":[{{"index":0,"text":"{}","logprobs":null,"finish_reason":"{}"}}]{usage}}}"#,
        id(reply),
        escape(&reply.model),
        escape(&text),
        chat::finish(reply.content.finish)
    )
}

fn id(reply: &Reply) -> String {
    format!("cmpl-{:012}", reply.seq)
}
