//! One call over HTTP, read as a careful client reads it.

use http::{Request, Response, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use serde_json::json;
use sluice_core::sse::{Decoded, Decoder};
use sluice_core::wire::{Operation, StreamReader};
use tokio::time::Instant;

use super::schedule::Ask;
use super::tally::{CallResult, Ending};
use super::{HttpClient, LoadConfig};
use crate::clock;

/// Answers are small; one that is not is a failure of this client, not a reason to grow.
const LARGEST_ANSWER: usize = 4 * 1_024 * 1_024;
const LARGEST_EVENT: usize = 256 * 1_024;

/// Makes the call; every way it can end is a [`CallResult`].
pub(super) async fn make(client: &HttpClient, config: &LoadConfig, ask: &Ask, sent: Instant) -> CallResult {
    let call = async {
        let request = request(config, ask)?;
        let response = client.request(request).await.ok()?;
        Some(read(response, ask.stream, sent).await)
    };
    let nothing = CallResult { ending: Ending::Failed, ttft: None };
    tokio::time::timeout(config.timeout, call).await.ok().flatten().unwrap_or(nothing)
}

fn request(config: &LoadConfig, ask: &Ask) -> Option<Request<Full<Bytes>>> {
    let body = json!({
        "model": config.model,
        "stream": ask.stream,
        "max_tokens": ask.max_tokens,
        "messages": [{"role": "user", "content": ask.prompt}],
    });
    Request::post(format!("{}/chat/completions", config.base_url))
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body.to_string())))
        .ok()
}

async fn read(response: Response<Incoming>, stream: bool, sent: Instant) -> CallResult {
    let (head, body) = response.into_parts();
    let has = |name: &str| head.headers.contains_key(name);
    let (refused, degraded) = (has("x-sluice-refused"), has("x-sluice-degraded"));
    let (whole, ttft) = if stream && head.status == 200 {
        let read = read_stream(body).await;
        (read.whole, read.first_token.map(|at| at - sent))
    } else {
        (Limited::new(body, LARGEST_ANSWER).collect().await.is_ok(), None)
    };
    CallResult { ending: Ending::of(head.status.as_u16(), refused, degraded, whole), ttft }
}

#[derive(Default)]
struct StreamRead {
    first_token: Option<Instant>,
    /// It came to its terminal event and said nothing of an error.
    whole: bool,
}

async fn read_stream(mut body: Incoming) -> StreamRead {
    let mut decoder = Decoder::new(LARGEST_EVENT);
    let mut reader = StreamReader::new(Operation::ChatCompletions);
    let (mut read, mut terminal, mut failed) = (StreamRead::default(), false, false);
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return read };
        let Some(chunk) = frame.data_ref() else { continue };
        let now = clock::now();
        decoder.push(chunk, |decoded| {
            if let Decoded::Event(event) = decoded {
                let fact = reader.read(event);
                if fact.is_token() {
                    read.first_token.get_or_insert(now);
                }
                terminal |= fact.terminal;
                failed |= fact.error.is_some();
            }
        });
    }
    read.whole = terminal && !failed;
    read
}
