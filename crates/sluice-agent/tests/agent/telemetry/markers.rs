//! What must not be in any signal.

use serde_json::json;
use sluice_core::policy::{Credential, SecretKey};

use super::Bench;
use crate::harness::{chat, provider, target};

const MARKERS: [&str; 6] =
    ["planted-prompt", "planted-answer", "planted-error", "planted-header", "planted-key", "planted-model"];

#[tokio::test]
async fn no_prompt_answer_key_or_header_is_in_spans_and_records() {
    let scenario = "
        default: {content: planted-answer planted-answer, headers: {x-provider: planted-header}}
        rules:
        - {match: {scenario: fails}, behaviour: {inherit: false, status: 500, message: planted-error}}
        - {match: {scenario: refuses}, behaviour: {inherit: false, status: 400, message: planted-error}}
        - {match: {scenario: cut}, behaviour: {tokens: 20, cut: {after: 3}}}";
    let primary = provider(scenario).await;
    let mut bench = Bench::start(&[]).await;
    let first = target("primary", &primary, 0);
    let mut keyless = target("keyless", &primary, 1);
    keyless.credential = Credential::Secret(SecretKey { name: "planted".into(), key: "key".into() });
    let world = bench.openai(vec![first, keyless]).await;
    let mut kinds = vec!["well", "fails", "refuses", "cut"];
    // Enough to open the breaker.
    kinds.extend(["fails"; 12]);
    for kind in kinds {
        for stream in [true, false] {
            let mut body = chat(stream);
            body["messages"][0]["content"] = json!("planted-prompt");
            body["model"] = json!("planted-model");
            body["user"] = json!("planted-prompt");
            let headers = [
                ("x-scenario", kind),
                ("authorization", "Bearer planted-key"),
                ("x-api-key", "planted-key"),
                ("cookie", "planted-header"),
                ("baggage", "planted-header=1"),
                ("tracestate", "no pair of planted-header"),
                ("user-agent", "planted-header"),
                ("x-sluice-task", "planted-header"),
                ("idempotency-key", "planted-header"),
            ];
            world.ask("/v1/chat/completions?planted-header=1", &headers, &body).await;
        }
    }
    world.ask("/v1/planted-header", &[("x-sluice-target", "planted-header")], &chat(false)).await;
    world.ask("/v1/chat/completions", &[("x-sluice-target", "planted-header")], &chat(false)).await;
    world.ask("/v1/chat/completions", &[], &json!({ "model": { "planted-prompt": 1 } })).await;
    world.until_idle().await;
    let told = bench.end().await;
    assert!(told.spans.iter().any(|span| span.tag("error.type") == "circuit_open"));
    assert!(told.spans.len() > 40 && told.records.len() > 10);
    for marker in MARKERS {
        let found = told.bytes.windows(marker.len()).position(|window| window == marker.as_bytes());
        let around = found.map(|at| {
            let (from, to) = (at.saturating_sub(100), (at + 100).min(told.bytes.len()));
            String::from_utf8_lossy(&told.bytes[from..to]).into_owned()
        });
        assert_eq!(around, None, "{marker}");
    }
}
