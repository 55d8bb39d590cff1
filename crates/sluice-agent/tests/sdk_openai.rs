//! The official OpenAI SDK, unmodified but for its base URL, before a real agent: `e2e/sdk/openai_*.py`.
#![allow(clippy::unwrap_used, clippy::panic)]

mod harness;
mod sdk;

use sdk::{SdkWorld, TARGETS_KEY};
use sluice_core::policy::WireFormat;
use sluice_provider::fingerprint;

#[tokio::test]
async fn answers_streams_tools_and_the_other_endpoints() {
    let sdk = SdkWorld::of_answers(WireFormat::OpenAi, &["gpt-4o", "text-embedding-3-small"]).await;
    sdk.run("openai_cases.py").await;
    sdk.world.until_idle().await;
    let calls = sdk.primary.calls();
    let ours = fingerprint(&format!("Bearer {TARGETS_KEY}"));
    assert!(!calls.is_empty());
    for call in &calls {
        assert_eq!(call.header("authorization"), Some(ours.as_str()), "{} {}", call.method, call.path);
        assert_eq!(call.header("x-stainless-retry-count"), Some("0"), "an SDK saw an error: {}", call.path);
    }
    assert!(calls.iter().all(|call| call.path != "/v1/models"), "the list of models is the routes'");
    assert_eq!(sdk.primary.stats().total.cancelled(), 0, "what an SDK reads to its end is not cancelled");
}

#[tokio::test]
async fn refusals_faults_and_the_sdks_own_retries() {
    let sdk = SdkWorld::of_faults(WireFormat::OpenAi, "gpt-4o").await;
    let played = sdk.play("openai_errors.py").await;
    played.assert_nothing_outstanding();
    let primary = played.primary.stats();
    assert_eq!(primary.model("play-closed").cancelled_mid_stream, 1, "the stream that was closed early");
    let hung = primary.model("play-hang");
    assert_eq!(
        (hung.started, hung.cancelled_before_headers),
        (2, 2),
        "the SDK's timeout reaches the provider"
    );
    let down = played.calls("play-down");
    assert!((3..=4).contains(&down), "{down}: the SDK's three and the budget's one, not nine");
    for model in ["play-context", "play-permission", "play-missing", "play-unprocessable", "play-spend-cap"] {
        assert_eq!(played.calls(model), 1, "{model}");
    }
    assert_eq!(played.calls("nobody-serves-this"), 0);
    let fallback = played.fallback.stats();
    for (model, calls) in [("moved", 2), ("moved-stream-error", 1)] {
        assert_eq!((played.calls(model), fallback.model(model).started), (calls, calls), "{model}");
    }
}
