//! Quotas, slots and keys.

use http::Method;
use sluice_provider::{Provider, Scenario};

use crate::support::{LONG, chat, get, post, post_chat, provider, read, request, send};

async fn with_key(provider: &Provider, name: &str, value: &str) -> u16 {
    let call = request(Method::POST, "/v1/chat/completions", &[(name, value)], chat(false).to_string());
    read(send(provider, call).await.unwrap()).await.status.as_u16()
}

#[tokio::test]
async fn a_spent_quota_is_a_429_that_says_when() {
    let provider =
        provider("{quota: {tokensPerMinute: 1000, count: hold}, default: {inputTokens: 100}}").await;
    let mut ask = chat(false);
    ask["max_tokens"] = 500.into();
    assert_eq!(post(&provider, "/v1/chat/completions", &ask).await.status, 200);
    let refused = post(&provider, "/v1/chat/completions", &ask).await;
    assert_eq!(refused.status, 429);
    // 200 tokens are missing, of 1,000 a minute; what refilled since is a matter of milliseconds.
    let seconds: u64 = refused.header("retry-after").parse().unwrap();
    let millis: u64 = refused.header("retry-after-ms").parse().unwrap();
    assert!((1..=12).contains(&seconds) && millis <= 12_000 && millis.div_ceil(1000) == seconds);
    assert_eq!(refused.header("x-ratelimit-limit-tokens"), "1000");
    assert!(refused.header("x-ratelimit-remaining-tokens").parse::<u64>().unwrap() >= 400);
    assert!(refused.json()["error"]["message"].as_str().unwrap().contains("1000 tokens"));
    // The small ones still fit.
    ask["max_tokens"] = 10.into();
    assert_eq!(post(&provider, "/v1/chat/completions", &ask).await.status, 200);
    assert_eq!(get(&provider, "/v1/models").await.status, 200, "what generates nothing costs nothing");
    provider.reset();
    ask["max_tokens"] = 900.into();
    assert_eq!(post(&provider, "/v1/chat/completions", &ask).await.status, 200);
}

#[tokio::test]
async fn reserved_tokens_come_back_however_the_call_ends() {
    let yaml = "{quota: {tokensPerMinute: 1000}, default: {inputTokens: 0, tokens: 0}}";
    let provider = provider(yaml).await;
    let mut ask = chat(false);
    ask["max_tokens"] = 1000.into();
    for _ in 0..3 {
        assert_eq!(post(&provider, "/v1/chat/completions", &ask).await.status, 200);
    }
    let hang = "{quota: {tokensPerMinute: 1000}, default: {inputTokens: 0, stall: {after: 0}, tokens: 5}}";
    provider.set(Scenario::from_yaml(hang).unwrap());
    ask["stream"] = true.into();
    for cancelled in 1..=3 {
        let call = request(Method::POST, "/v1/chat/completions", &[], ask.to_string());
        let response = send(&provider, call).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(post(&provider, "/v1/chat/completions", &ask).await.status, 429);
        drop(response);
        provider.wait_for(|stats| stats.total.cancelled() == cancelled, LONG).await.unwrap();
    }
}

#[tokio::test]
async fn a_rule_has_a_quota_of_its_own() {
    let yaml = "rules: [{match: {model: gpt-4o}, quota: {requestsPerMinute: 1}}]";
    let provider = provider(yaml).await;
    assert_eq!(post_chat(&provider, false).await.status, 200);
    let refused = post_chat(&provider, false).await;
    assert_eq!((refused.status.as_u16(), refused.header("x-ratelimit-limit-requests")), (429, "1"));
    let mut other = chat(false);
    other["model"] = "gpt-4o-mini".into();
    assert_eq!(post(&provider, "/v1/chat/completions", &other).await.status, 200);
}

#[tokio::test]
async fn slots_bound_what_is_worked_on() {
    let provider = provider("{slots: 1, engine: {kvCachePercent: 40}, default: {stall: {after: 1}}}").await;
    let call = || request(Method::POST, "/v1/chat/completions", &[], chat(true).to_string());
    let first = send(&provider, call()).await.unwrap();
    let second = {
        let (provider, call) = (provider.clone(), call());
        tokio::spawn(async move { send(&provider, call).await })
    };
    provider.wait_for(|stats| stats.total.in_flight == 2, LONG).await.unwrap();
    let page = get(&provider, "/metrics").await.text;
    for line in
        ["num_requests_running{model_name=\"gpt-4o\"} 1", "num_requests_waiting{model_name=\"gpt-4o\"} 1"]
    {
        assert!(page.contains(line), "{page}");
    }
    assert!(page.contains("kv_cache_usage_perc{model_name=\"gpt-4o\"} 0.4"), "{page}");
    assert!(!second.is_finished());
    drop(first);
    assert_eq!(second.await.unwrap().unwrap().status(), 200);
}

#[tokio::test]
async fn only_the_listed_keys() {
    let provider = provider("apiKeys: [sk-good]").await;
    assert_eq!(with_key(&provider, "authorization", "Bearer sk-good").await, 200);
    assert_eq!(with_key(&provider, "x-api-key", "sk-good").await, 200);
    assert_eq!(with_key(&provider, "api-key", "sk-good").await, 200);
    assert_eq!(with_key(&provider, "authorization", "Bearer sk-bad").await, 401);
    assert_eq!(post_chat(&provider, false).await.json()["error"]["code"], "invalid_api_key");
    assert!(!get(&provider, "/control/scenario").await.text.contains("sk-good"));
}
