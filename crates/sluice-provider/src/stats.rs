//! What is counted and remembered, as data.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Serialize;

/// Counts over all calls, and by model. Every call that started is either in flight or in exactly one of
/// completed, cut, stream errors, cancelled before headers, cancelled mid-stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stats {
    /// All calls together.
    pub total: Counts,
    /// By the model that was asked for.
    pub models: BTreeMap<String, Counts>,
    /// Connections accepted since the last reset.
    pub connections: u64,
    /// Of these, open now.
    pub open_connections: u64,
}

/// Counts of calls and tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Calls that arrived.
    pub started: u64,
    /// Calls being answered now.
    pub in_flight: u64,
    /// The most calls that were in flight at once.
    pub max_in_flight: u64,
    /// Calls that are silent now because of a `stall` or a `hang`.
    pub stalled: u64,
    /// Answered to the end, error statuses included.
    pub completed: u64,
    /// Cut, closed or reset because the scenario says so.
    pub cut: u64,
    /// Ended by an error event because the scenario says so.
    pub stream_errors: u64,
    /// The client left before the headers were sent.
    pub cancelled_before_headers: u64,
    /// The client left after the headers and before the end.
    pub cancelled_mid_stream: u64,
    /// Input tokens of the calls that were answered with status 200.
    pub input_tokens: u64,
    /// Output tokens produced.
    pub output_tokens: u64,
    /// Of these, after the client had left.
    pub tokens_after_cancel: u64,
    /// Answers by HTTP status.
    pub by_status: BTreeMap<u16, u64>,
}

impl Counts {
    /// Calls whose client left.
    pub fn cancelled(&self) -> u64 {
        self.cancelled_before_headers + self.cancelled_mid_stream
    }

    /// Answers with this status.
    pub fn status(&self, status: u16) -> u64 {
        self.by_status.get(&status).copied().unwrap_or(0)
    }
}

impl Stats {
    /// The counts of one model; zeros for a model that was never asked for.
    pub fn model(&self, model: &str) -> Counts {
        self.models.get(model).cloned().unwrap_or_default()
    }
}

/// How a call ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// It hasn't.
    #[default]
    InFlight,
    /// Answered to the end.
    Completed,
    /// Cut, closed or reset by the scenario.
    Cut,
    /// Ended with an error event by the scenario.
    StreamError,
    /// The client left before the headers.
    CancelledBeforeHeaders,
    /// The client left after the headers.
    CancelledMidStream,
}

/// A remembered call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// Order of arrival, from 1; it goes on over resets.
    pub seq: u64,
    /// The connection that it came by, from 1.
    pub connection: u64,
    /// Arrival in ms since the start or the last reset.
    pub at_ms: u64,
    /// From arrival to the headers, in ms.
    pub headers_ms: Option<u64>,
    /// From arrival to the first token, in ms.
    pub first_token_ms: Option<u64>,
    /// From arrival to the end, in ms.
    pub ended_ms: Option<u64>,
    /// `HTTP/1.1` or `HTTP/2.0`.
    pub version: String,
    /// The method.
    pub method: String,
    /// Path and query; credentials in the query are replaced.
    pub path: String,
    /// Names in lower case; several values joined by `, `; credentials replaced by their
    /// [`crate::fingerprint`].
    pub headers: BTreeMap<String, String>,
    /// The model asked for; empty where the API has none.
    pub model: String,
    /// Whether a stream was asked for.
    pub stream: bool,
    /// The maximum of output tokens asked for.
    pub max_tokens: Option<u64>,
    /// Size of the body.
    pub body_bytes: u64,
    /// The body as text, when the scenario says `recordBodies`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The name of the rule or step that was used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The status of the answer.
    pub status: Option<u16>,
    /// How it ended.
    pub outcome: Outcome,
    /// Output tokens produced.
    pub tokens: u64,
}

impl Call {
    /// A header of the request, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(crate) fn keep_body(&mut self, body: &Bytes) {
        self.body = Some(String::from_utf8_lossy(body).into_owned());
    }
}
