//! What one call gets. Absent fields come from the behaviour below, and from the built-in defaults at the bottom.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::scenario::{ScenarioError, invalid};
use crate::units::{self, HeaderText};

macro_rules! behaviour {
    ($($(#[$meta:meta])* $name:ident : $type:ty,)*) => {
        /// What one call gets; see the crate's first page for how the fields play together.
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
        pub struct Behaviour {
            /// `false`: starts from the built-in defaults instead of the behaviour below. Default true.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub inherit: Option<bool>,
            /// Added to the answer; a `content-type` here replaces the usual one. Layers add up by name.
            #[serde(skip_serializing_if = "BTreeMap::is_empty")]
            pub headers: BTreeMap<String, HeaderText>,
            $($(#[$meta])* #[serde(skip_serializing_if = "Option::is_none")] pub $name: Option<$type>,)*
        }

        impl Behaviour {
            /// This behaviour laid over another: what is set here wins.
            #[must_use]
            pub fn over(&self, base: &Self) -> Self {
                if self.inherit == Some(false) {
                    return self.clone();
                }
                let mut headers = base.headers.clone();
                headers.extend(self.headers.clone());
                Self { inherit: base.inherit, headers, $($name: self.$name.clone().or_else(|| base.$name.clone()),)* }
            }
        }
    };
}

behaviour! {
    /// What happens instead of any answer, before the headers.
    connection: Connection,
    /// HTTP status. From 400 on the body is the vendor's error, unless `body` is set. Default 200.
    status: u16,
    /// A vendor's error by kind; it sets the status unless `status` is set.
    error: ErrorKind,
    /// Replaces the error's usual message.
    message: String,
    /// Replaces the whole body.
    body: String,
    /// `Retry-After`, as it is written.
    retry_after: HeaderText,
    /// `retry-after-ms`, as it is written.
    retry_after_ms: HeaderText,
    /// Odd answers with status 200.
    answer: Answer,

    /// From arrival to the headers. Default 0.
    #[serde(with = "units::duration")]
    headers_delay: Duration,
    /// From arrival to the first token; a plain answer also waits `perToken` for each further token. Default 0.
    #[serde(with = "units::duration")]
    ttft: Duration,
    /// `ttft` by the number of the call within its step; the last value goes on.
    #[serde(with = "units::durations")]
    ttft_by_call: Vec<Duration>,
    /// `ttft` by the second since the step began; the last value goes on.
    #[serde(with = "units::durations")]
    ttft_by_second: Vec<Duration>,
    /// Between tokens. Default 0.
    #[serde(with = "units::duration")]
    per_token: Duration,
    /// Seeded spread of `ttft` and `perToken` by ± so many percent. Default 0.
    jitter_percent: f64,

    /// Output tokens, reasoning included; never more than the request's maximum. Default: that maximum, or 20.
    tokens: u64,
    /// Of these, reasoning tokens, which come first. Default 0.
    reasoning_tokens: u64,
    /// Input tokens reported. Default: a quarter of the body's bytes, rounded up.
    input_tokens: u64,
    /// Which words. Default `plain`.
    text: TextKind,
    /// The whole text, cut into tokens before each blank; `tokens` cuts it short.
    content: String,
    /// Pads each text token to so many bytes.
    token_bytes: usize,
    /// A tool call instead of text, when the request offers tools.
    tool_call: ToolCall,
    /// Whether usage is reported. Default: as the API does.
    usage: UsageReport,

    /// Keep-alives while the stream waits for a token: Anthropic's `ping`, elsewhere a comment. Default: none.
    #[serde(with = "units::duration")]
    ping_every: Duration,
    /// Silence after some tokens.
    stall: Stall,
    /// The end after some tokens.
    cut: Cut,
    /// An error event after some tokens.
    stream_error: StreamError,
    /// A broken event after some tokens.
    malformed: Malformed,
    /// How the events are written.
    framing: Framing,
    /// Goes on producing when the client has left, as providers do that bill abandoned calls. Default false.
    keep_generating: bool,
}

/// What happens instead of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Connection {
    /// The request is read and the connection closed.
    Close,
    /// The request is read and the connection reset (TCP RST; a stream reset on HTTP/2).
    Reset,
    /// The request is read and not answered, until [`crate::Provider::release`].
    Hang,
    /// As usual; for a layer over one that says otherwise.
    Serve,
}

/// Odd answers with status 200.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// What the API says.
    Normal,
    /// A page of HTML, as from a proxy in between.
    Html,
    /// No body at all.
    EmptyBody,
    /// The headers of a stream, and its end.
    EmptyStream,
    /// A stream that starts, sends keep-alives (each second unless `pingEvery` says otherwise) and never a token.
    KeepAlivesOnly,
    /// A stream with all that belongs to it, but no token.
    NoTokens,
}

/// A vendor's errors, in the words of the API that was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ErrorKind {
    /// 400.
    BadRequest,
    /// 400, the prompt is too long.
    ContextLength,
    /// 401.
    Authentication,
    /// 403.
    Permission,
    /// 404.
    NotFound,
    /// 408.
    Timeout,
    /// 413.
    TooLarge,
    /// 422.
    Unprocessable,
    /// 429, for a moment.
    RateLimit,
    /// 429, for good: the account's spend cap.
    SpendCap,
    /// 500.
    Server,
    /// 502.
    BadGateway,
    /// 503.
    Unavailable,
    /// 504.
    GatewayTimeout,
    /// 529 from Anthropic, 503 elsewhere.
    Overloaded,
}

/// Which words the tokens are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TextKind {
    /// English words.
    #[default]
    Plain,
    /// Words with characters of two, three and four bytes.
    Utf8,
}

/// A tool call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ToolCall {
    /// Which tool. Default: the first that the request offers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The arguments, as JSON text. Default `{"city":"Paris","unit":"celsius"}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
    /// Also when the request offers no tools. Default false.
    pub always: bool,
}

/// Whether usage is reported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum UsageReport {
    /// As the API does: OpenAI's chat streams only on request.
    #[default]
    Report,
    /// Never.
    Omit,
}

/// Silence after some tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Stall {
    /// After so many tokens (0: before the first). A plain answer stops halfway through its body.
    pub after: u64,
    /// For so long; absent: until [`crate::Provider::release`].
    #[serde(rename = "for", with = "units::duration", skip_serializing_if = "Option::is_none")]
    pub lasts: Option<Duration>,
}

/// The end after some tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Cut {
    /// After so many tokens; with as many as the answer has, all that is missing is the terminator.
    pub after: u64,
    /// In which way. Default `close`.
    pub how: CutHow,
}

/// In which way a stream is cut.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CutHow {
    /// The connection is closed without the last HTTP chunk (a stream reset on HTTP/2).
    #[default]
    Close,
    /// The connection is reset (TCP RST; a stream reset on HTTP/2).
    Reset,
    /// Half of the next event is written, and the connection closed.
    MidEvent,
    /// HTTP ends as it should, the event stream doesn't: no terminator.
    Eof,
}

/// An error event after some tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct StreamError {
    /// After so many tokens.
    pub after: u64,
    /// Which error. Default `overloaded`.
    pub kind: ErrorKind,
    /// OpenAI's `[DONE]` follows, as some servers do. Default false: HTTP ends as it should, right after the error.
    pub done: bool,
}

impl Default for StreamError {
    fn default() -> Self {
        Self { after: 0, kind: ErrorKind::Overloaded, done: false }
    }
}

/// A broken event after some tokens; the stream goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Malformed {
    /// After so many tokens.
    pub after: u64,
    /// The event's data. Default: a chunk that lacks its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
}

/// How the events are written. All of these are the same stream to a reader that knows the standard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Framing {
    /// What ends a line. Default `lf`.
    pub line_end: LineEnd,
    /// A space after the colon. Default true.
    pub space: bool,
    /// A comment before each event. Default false.
    pub comments: bool,
    /// A byte order mark at the very start. Default false.
    pub bom: bool,
    /// Each byte in a write of its own. Default false.
    pub byte_per_write: bool,
    /// JSON split over two `data:` lines. Default false.
    pub split_data: bool,
    /// The line ends after the last event. Default true.
    pub final_blank: bool,
}

impl Default for Framing {
    fn default() -> Self {
        Self {
            line_end: LineEnd::Lf,
            space: true,
            comments: false,
            bom: false,
            byte_per_write: false,
            split_data: false,
            final_blank: true,
        }
    }
}

/// What ends a line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LineEnd {
    /// `\n`.
    #[default]
    Lf,
    /// `\r\n`.
    Crlf,
    /// `\r`.
    Cr,
}

impl Behaviour {
    /// An answer with this status.
    pub fn status(status: u16) -> Self {
        Self { status: Some(status), ..Self::default() }
    }

    /// A vendor's error.
    pub fn error(kind: ErrorKind) -> Self {
        Self { error: Some(kind), ..Self::default() }
    }

    /// A first token after this long.
    pub fn ttft(ttft: Duration) -> Self {
        Self { ttft: Some(ttft), ..Self::default() }
    }

    /// Silence after so many tokens, until [`crate::Provider::release`].
    pub fn stall(after: u64) -> Self {
        Self { stall: Some(Stall { after, lasts: None }), ..Self::default() }
    }

    /// The end after so many tokens.
    pub fn cut(after: u64, how: CutHow) -> Self {
        Self { cut: Some(Cut { after, how }), ..Self::default() }
    }

    /// An error event after so many tokens.
    pub fn stream_error(after: u64, kind: ErrorKind) -> Self {
        Self { stream_error: Some(StreamError { after, kind, done: false }), ..Self::default() }
    }

    /// The request is read and not answered, until [`crate::Provider::release`].
    pub fn hang() -> Self {
        Self { connection: Some(Connection::Hang), ..Self::default() }
    }

    /// With so many output tokens.
    #[must_use]
    pub fn with_tokens(mut self, tokens: u64) -> Self {
        self.tokens = Some(tokens);
        self
    }

    /// With this long between tokens.
    #[must_use]
    pub fn with_per_token(mut self, per_token: Duration) -> Self {
        self.per_token = Some(per_token);
        self
    }

    /// With this header on the answer.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), HeaderText(value.into()));
        self
    }

    pub(crate) fn validate(&self, field: &str) -> Result<(), ScenarioError> {
        let at = |name: &str| format!("{field}.{name}");
        if let Some(status) = self.status.filter(|status| !(200..=599).contains(status)) {
            return Err(invalid(&at("status"), status, "an HTTP status from 200 to 599"));
        }
        if let Some(percent) = self.jitter_percent.filter(|percent| !(0.0..=100.0).contains(percent)) {
            return Err(invalid(&at("jitterPercent"), percent, "from 0 to 100"));
        }
        if self.ping_every == Some(Duration::ZERO) {
            return Err(invalid(&at("pingEvery"), "0s", "longer than 0, or leave it out for no pings"));
        }
        for (name, list) in [("ttftByCall", &self.ttft_by_call), ("ttftBySecond", &self.ttft_by_second)] {
            if list.as_ref().is_some_and(Vec::is_empty) {
                return Err(invalid(&at(name), "[]", "at least one duration, or leave it out"));
            }
        }
        let mut headers: Vec<_> = self.headers.iter().map(|(name, value)| (name.as_str(), value)).collect();
        headers.extend(self.retry_after.as_ref().map(|value| ("retry-after", value)));
        headers.extend(self.retry_after_ms.as_ref().map(|value| ("retry-after-ms", value)));
        for (name, value) in headers {
            if http::HeaderName::try_from(name).is_err() || http::HeaderValue::try_from(&value.0).is_err() {
                let shown = format!("{name}: {}", value.0);
                return Err(invalid(
                    &at("headers"),
                    shown.escape_debug(),
                    "a header name and value that HTTP allows",
                ));
            }
        }
        let arguments = self.tool_call.as_ref().and_then(|tool| tool.arguments.as_deref());
        if arguments == Some("") {
            return Err(invalid(
                &at("toolCall.arguments"),
                "",
                "JSON text, or leave it out for the usual arguments",
            ));
        }
        Ok(())
    }
}
