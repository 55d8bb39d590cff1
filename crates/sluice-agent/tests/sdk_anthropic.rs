//! The official Anthropic SDK, unmodified but for its base URL, before a real agent: `e2e/sdk/anthropic_*.py`.
#![allow(clippy::unwrap_used, clippy::panic)]

mod harness;
mod sdk;

use sdk::{SdkWorld, TARGETS_KEY};
use sluice_core::policy::WireFormat;
use sluice_provider::fingerprint;

#[tokio::test]
async fn answers_streams_tools_and_the_other_endpoints() {
    let sdk = SdkWorld::of_answers(WireFormat::Anthropic, &["claude-x"]).await;
    sdk.run("anthropic_cases.py").await;
    sdk.world.until_idle().await;
    let calls = sdk.primary.calls();
    let ours = fingerprint(TARGETS_KEY);
    for call in &calls {
        assert_eq!(call.header("x-api-key"), Some(ours.as_str()), "{} {}", call.method, call.path);
        assert_eq!(call.header("authorization"), None, "the placeholder stays behind: {}", call.path);
        assert!(call.header("anthropic-version").is_some(), "{}", call.path);
        assert_eq!(call.header("x-stainless-retry-count"), Some("0"), "an SDK saw an error: {}", call.path);
    }
    let of = |model: &str| calls.iter().find(|call| call.model == model).unwrap();
    let headers = of("play-headers");
    assert_eq!(headers.header("anthropic-beta"), Some("context-1m-2025-08-07"));
    assert_eq!(headers.header("x-of-the-app"), Some("kept"));
    assert_eq!(of("play-bearer").header("x-api-key"), Some(ours.as_str()));
    assert!(calls.iter().all(|call| call.path != "/v1/models"), "the list of models is the routes'");
    assert_eq!(sdk.primary.stats().total.cancelled(), 0, "what an SDK reads to its end is not cancelled");
}

#[tokio::test]
async fn refusals_faults_and_the_sdks_own_retries() {
    let sdk = SdkWorld::of_faults(WireFormat::Anthropic, "claude-x").await;
    let played = sdk.play("anthropic_errors.py").await;
    played.assert_nothing_outstanding();
    let primary = played.primary.stats();
    assert_eq!(primary.model("play-closed").cancelled_mid_stream, 1, "the stream that was closed early");
    let hung = primary.model("play-hang");
    assert_eq!(
        (hung.started, hung.cancelled_before_headers),
        (2, 2),
        "the SDK's timeout reaches the provider"
    );
    let overloaded = played.calls("play-overloaded");
    assert!((3..=4).contains(&overloaded), "{overloaded}: the SDK's three and the budget's one, not nine");
    for model in ["play-context", "play-permission", "play-missing", "play-large"] {
        assert_eq!(played.calls(model), 1, "{model}");
    }
    assert_eq!(played.calls("nobody-serves-this"), 0);
    assert_eq!((played.calls("moved"), played.fallback.stats().model("moved").started), (2, 2));
}
