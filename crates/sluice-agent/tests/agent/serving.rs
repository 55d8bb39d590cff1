//! Answers reach the client as the provider sent them, and the books balance.

use crate::harness::{PATIENCE, World, counts, provider, target};

#[tokio::test]
async fn a_plain_answer_is_the_providers_own() {
    let provider = provider("default: {tokens: 7, inputTokens: 11}").await;
    let world = World::openai(vec![target("primary", &provider, 0)]).await;
    let answer = world.chat().await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("x-sluice-served-by"), Some("primary"));
    assert_eq!(answer.json()["usage"]["completion_tokens"], 7);
    world.until_idle().await;
    let target = world.target("primary").await;
    assert_eq!(target.tokens_charged, 18);
    assert_eq!(counts(&target.verdicts), [("success", 1)].into());
}

#[tokio::test]
async fn a_stream_comes_through_and_its_usage_chunk_stays_behind() {
    let provider = provider("default: {tokens: 5, inputTokens: 9}").await;
    let world = World::openai(vec![target("primary", &provider, 0)]).await;
    let answer = world.stream().await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
    assert!(!answer.text().contains("prompt_tokens"), "the client did not ask for usage: {}", answer.text());
    world.until_idle().await;
    assert_eq!(world.target("primary").await.tokens_charged, 14, "the provider's own count");
}

/// A provider closes idle connections; the call that would have met one goes out on a new one and counts once.
#[tokio::test]
async fn a_connection_that_was_closed_while_idle_costs_nothing() {
    let provider = provider("{}").await;
    let world = World::openai(vec![target("primary", &provider, 0)]).await;
    for _ in 0..5 {
        assert_eq!(world.chat().await.status, 200);
        provider.disconnect_all();
        provider.wait_for(|stats| stats.open_connections == 0, PATIENCE).await.unwrap();
    }
    world.until_idle().await;
    let target = world.target("primary").await;
    assert_eq!((target.attempts, target.retries), (5, 0));
    assert_eq!(counts(&target.verdicts), [("success", 5)].into());
    assert_eq!(provider.stats().total.started, 5);
}
