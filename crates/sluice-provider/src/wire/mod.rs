//! The wire formats: the same tokens in each provider's words.

mod anthropic;
mod chat;
mod completions;
pub(crate) mod errors;
mod responses;
pub(crate) mod simple;

use bytes::Bytes;

use crate::content::Content;
use crate::request::{Api, Ask};
use crate::scenario::{ErrorKind, UsageReport};
use crate::sse::Sink;

/// When everything was made, so that answers repeat byte for byte (seconds since 1970).
pub(crate) const CREATED: u64 = 1_760_000_000;

/// What an answer says, whatever the format.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) seq: u64,
    pub(crate) model: String,
    pub(crate) content: Content,
    pub(crate) input_tokens: u64,
    pub(crate) usage: UsageReport,
    pub(crate) include_usage: bool,
}

impl Reply {
    pub(crate) fn new(seq: u64, ask: &Ask, content: Content, input_tokens: u64, usage: UsageReport) -> Self {
        Self { seq, model: ask.model.clone(), content, input_tokens, usage, include_usage: ask.include_usage }
    }

    fn reports_usage(&self) -> bool {
        self.usage == UsageReport::Report
    }
}

/// A stream in one API's words. Each method adds events to the sink.
pub(crate) trait Dialect: Send {
    /// What comes before the first token.
    fn open(&mut self, sink: &mut Sink);
    /// Token `index` of the content.
    fn token(&mut self, index: u64, sink: &mut Sink);
    /// What comes after the last token, up to the terminator.
    fn close(&mut self, sink: &mut Sink);
    /// A keep-alive.
    fn ping(&self, sink: &mut Sink) {
        sink.comment("keep-alive");
    }
    /// An event with data that is not JSON.
    fn malformed(&self, data: Option<&str>, sink: &mut Sink);
    /// An error in the stream.
    fn error(&self, kind: ErrorKind, message: Option<&str>, sink: &mut Sink);
    /// The terminator alone.
    fn done(&self, sink: &mut Sink) {
        sink.event(None, &[b"[DONE]"]);
    }
    fn total(&self) -> u64;
}

/// The stream of an API that generates; the others have none, and get chat's.
pub(crate) fn stream(api: Api, reply: Reply) -> Box<dyn Dialect> {
    match api {
        Api::Completions => Box::new(completions::CompletionStream::new(reply)),
        Api::Responses => Box::new(responses::ResponseStream::new(reply)),
        Api::Messages => Box::new(anthropic::MessageStream::new(reply)),
        _ => Box::new(chat::ChatStream::new(reply)),
    }
}

/// The plain answer of an API that generates.
pub(crate) fn plain(api: Api, reply: &Reply) -> Bytes {
    let text = match api {
        Api::Completions => completions::plain(reply),
        Api::Responses => responses::plain(reply).to_string(),
        Api::Messages => anthropic::plain(reply).to_string(),
        _ => chat::plain(reply),
    };
    Bytes::from(text)
}

/// A chunk that lacks its end.
const BROKEN: &str = r#"{"id":"broken","choices":[{"delta":{"content":"#;
