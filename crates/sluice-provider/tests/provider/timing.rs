//! Delays, exactly, under virtual time over in-memory streams.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use sluice_provider::{Call, Provider, Scenario};
use tokio::time::Instant;

use crate::support::{chat, request};

/// When headers and frames came, in ms, and the text.
struct Heard {
    headers: u128,
    frames: Vec<(u128, String)>,
}

#[allow(clippy::disallowed_methods, reason = "virtual time")]
async fn hear(provider: &Provider, path: &str, stream: bool) -> Heard {
    let (near, far) = tokio::io::duplex(64 * 1024);
    provider.serve_stream(far);
    let (mut sender, connection) = http1::handshake::<_, Full<Bytes>>(TokioIo::new(near)).await.unwrap();
    tokio::spawn(connection);
    let start = Instant::now();
    let call = request(http::Method::POST, path, &[], chat(stream).to_string());
    let mut response = sender.send_request(call).await.unwrap();
    let headers = (Instant::now() - start).as_millis();
    let mut frames = Vec::new();
    while let Some(frame) = response.body_mut().frame().await {
        let data = frame.unwrap().into_data().unwrap();
        frames.push(((Instant::now() - start).as_millis(), String::from_utf8(data.to_vec()).unwrap()));
    }
    Heard { headers, frames }
}

impl Heard {
    /// When the events that contain this came.
    fn times(&self, part: &str) -> Vec<u128> {
        self.frames.iter().filter(|(_, text)| text.contains(part)).map(|(at, _)| *at).collect()
    }
}

fn detached(yaml: &str) -> Provider {
    Provider::detached(Scenario::from_yaml(yaml).unwrap())
}

const CHAT: &str = "/v1/chat/completions";
const TOKEN: &str = "delta\":{\"content\"";

#[tokio::test(start_paused = true)]
async fn tokens_come_when_they_are_due() {
    let provider = detached("default: {tokens: 3, headersDelay: 100ms, ttft: 1s, perToken: 250ms}");
    let heard = hear(&provider, CHAT, true).await;
    assert_eq!(heard.headers, 100);
    assert_eq!(heard.times("assistant"), [100]);
    assert_eq!(heard.times(TOKEN), [1000, 1250, 1500]);
    assert_eq!(heard.times("[DONE]"), [1500]);
    let Call { headers_ms, first_token_ms, ended_ms, .. } = provider.calls()[0].clone();
    assert_eq!((headers_ms, first_token_ms, ended_ms), (Some(100), Some(1000), Some(1500)));
    let plain = hear(&provider, CHAT, false).await;
    assert_eq!((plain.headers, plain.frames[0].0), (1500, 1500));
    assert_eq!(provider.calls()[1].at_ms, 1500);
}

#[tokio::test(start_paused = true)]
async fn pings_fill_the_waits() {
    let provider = detached("default: {tokens: 2, ttft: 1s, perToken: 250ms, pingEvery: 400ms}");
    let heard = hear(&provider, CHAT, true).await;
    assert_eq!(heard.times(": keep-alive"), [400, 800]);
    assert_eq!(heard.times(TOKEN), [1000, 1250]);
    let provider = detached("default: {tokens: 2, stall: {after: 1, for: 1s}, pingEvery: 400ms}");
    let heard = hear(&provider, "/v1/messages", true).await;
    assert_eq!(heard.times("event: ping"), [0, 400, 800], "the first belongs to the opening");
    assert_eq!(heard.times("text_delta"), [0, 1000]);
}

#[tokio::test(start_paused = true)]
async fn a_stall_then_the_rest_or_the_end() {
    let provider = detached("default: {tokens: 3, perToken: 10ms, stall: {after: 2, for: 30s}}");
    assert_eq!(hear(&provider, CHAT, true).await.times(TOKEN), [0, 10, 30_010]);
    let provider = detached("default: {tokens: 3, stall: {after: 2, for: 30s}, cut: {after: 2, how: eof}}");
    let heard = hear(&provider, CHAT, true).await;
    assert_eq!((heard.times(TOKEN), heard.times("[DONE]")), (vec![0, 0], vec![]));
    let provider = detached("default: {tokens: 3, stall: {for: 30s}}");
    assert_eq!(hear(&provider, CHAT, false).await.frames.last().unwrap().0, 30_000);
}

#[tokio::test(start_paused = true)]
async fn a_brown_out_by_call_and_by_second() {
    let provider = detached("default: {tokens: 1, ttftByCall: [400ms, 9s, 0.5s]}");
    let mut heard = Vec::new();
    for _ in 0..4 {
        heard.push(hear(&provider, CHAT, true).await.times(TOKEN)[0]);
    }
    assert_eq!(heard, [400, 9000, 500, 500]);
    let provider = detached("default: {tokens: 1, ttftBySecond: [400ms, 9s, 500ms]}");
    let mut heard = Vec::new();
    for _ in 0..4 {
        heard.push(hear(&provider, CHAT, true).await.times(TOKEN)[0]);
        tokio::time::sleep(Duration::from_millis(600)).await;
    }
    assert_eq!(heard, [400, 9000, 500, 500], "at 0.0 s, 1.0 s, 10.6 s and 11.7 s");
}

#[tokio::test(start_paused = true)]
async fn steps_by_time() {
    let provider = detached("{default: {tokens: 1}, steps: [{for: 10s, behaviour: {ttft: 4s}}]}");
    let mut heard = Vec::new();
    for _ in 0..4 {
        heard.push(hear(&provider, CHAT, true).await.times(TOKEN)[0]);
    }
    assert_eq!(heard, [4000, 4000, 4000, 0]);
    let provider =
        detached("{startsAt: firstCall, default: {tokens: 1}, steps: [{for: 10s, behaviour: {ttft: 4s}}]}");
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(hear(&provider, CHAT, true).await.times(TOKEN), [4000]);
}

#[tokio::test(start_paused = true)]
async fn jitter_is_seeded_and_bounded() {
    let times = async |seed: u64| {
        let yaml = format!(
            "{{seed: {seed}, default: {{tokens: 30, ttft: 1s, perToken: 100ms, jitterPercent: 50}}}}"
        );
        hear(&detached(&yaml), CHAT, true).await.times(TOKEN)
    };
    let first = times(1).await;
    assert_eq!(first, times(1).await);
    assert_ne!(first, times(2).await);
    assert!((500..=1500).contains(&first[0]));
    assert!(first.windows(2).all(|pair| (49..=151).contains(&(pair[1] - pair[0]))), "{first:?}");
}

#[tokio::test(start_paused = true)]
async fn a_saturated_server_makes_calls_wait() {
    let provider = detached("{slots: 2, default: {tokens: 1, ttft: 1s}}");
    let calls = (0..6).map(|_| hear(&provider, CHAT, true));
    let mut times: Vec<_> =
        futures_util::future::join_all(calls).await.iter().map(|heard| heard.times(TOKEN)[0]).collect();
    times.sort_unstable();
    assert_eq!(times, [1000, 1000, 2000, 2000, 3000, 3000]);
}

#[tokio::test(start_paused = true)]
async fn quotas_refill() {
    let yaml = "{quota: {tokensPerMinute: 600, count: hold}, default: {inputTokens: 0, tokens: 300}}";
    let provider = detached(yaml);
    for _ in 0..2 {
        assert_eq!(hear(&provider, CHAT, true).await.times("[DONE]").len(), 1);
    }
    assert!(hear(&provider, CHAT, true).await.frames[0].1.contains("600 tokens per minute"));
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(hear(&provider, CHAT, true).await.times("[DONE]").len(), 1);
}
