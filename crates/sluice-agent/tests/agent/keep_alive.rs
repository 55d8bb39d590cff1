//! Comments to a client whose provider thinks silently.

use sluice_core::policy::TargetPolicy;

use crate::harness::{World, counts, ms, once, provider, target};

const COMMENT: &str = ": keep-alive\n\n";

fn chatty(mut target: TargetPolicy) -> TargetPolicy {
    target.rules.streaming.rules.keep_alive = Some(ms(60));
    target
}

#[tokio::test]
async fn comments_fill_the_wait_and_the_answer_follows() {
    let primary = provider("default: {tokens: 3, headersDelay: 400ms}").await;
    let world = World::openai(vec![chatty(target("primary", &primary, 0))]).await;
    let text = world.stream().await.text();
    assert!(text.starts_with(COMMENT) && text.matches(COMMENT).count() >= 3, "{text}");
    assert!(text.ends_with("data: [DONE]\n\n"));
    let state = world.until_idle().await;
    assert_eq!((state.exchanges.cancelled, state.exchanges.refused), (0, 0));
    assert_eq!(counts(&world.target("primary").await.verdicts), [("success", 1)].into());
}

#[tokio::test]
async fn a_quick_answer_has_none() {
    let primary = provider("default: {tokens: 3}").await;
    let mut only = target("primary", &primary, 0);
    only.rules.streaming.rules.keep_alive = Some(ms(10_000));
    let world = World::openai(vec![only]).await;
    let answer = world.stream().await;
    assert!(!answer.text().contains(COMMENT));
    assert_eq!(answer.header("x-sluice-served-by"), Some("primary"));
}

#[tokio::test]
async fn failover_behind_a_comment_is_invisible_still() {
    let primary = provider("default: {status: 503, headersDelay: 200ms}").await;
    let fallback = provider("default: {tokens: 3}").await;
    let world =
        World::openai(vec![chatty(target("primary", &primary, 0)), target("fallback", &fallback, 1)]).await;
    let text = world.stream().await.text();
    assert!(
        text.starts_with(COMMENT) && text.ends_with("data: [DONE]\n\n") && !text.contains("error"),
        "{text}"
    );
}

#[tokio::test]
async fn an_error_behind_a_comment_is_an_event() {
    for (scenario, word) in [
        ("default: {status: 503, headersDelay: 200ms}", "status 503"),
        ("default: {answer: html, headersDelay: 200ms}", "status 200"),
        ("default: {connection: close, headersDelay: 200ms}", "upstream_unreachable"),
    ] {
        let primary = provider(scenario).await;
        let world = World::openai(vec![once(chatty(target("primary", &primary, 0)))]).await;
        let answer = world.stream().await;
        let text = answer.text();
        assert_eq!((answer.status.as_u16(), answer.whole), (200, true));
        assert!(text.starts_with(COMMENT) && text.contains("\"error\"") && text.contains(word), "{text}");
        assert!(!text.contains("[DONE]") && !text.contains("<html"), "{text}");
        world.until_idle().await;
    }
}

#[tokio::test]
async fn comments_go_on_inside_the_stream() {
    let primary = provider("default: {tokens: 4, stall: {after: 2, for: 300ms}}").await;
    let world = World::openai(vec![chatty(target("primary", &primary, 0))]).await;
    let text = world.stream().await.text();
    assert!(text.contains(COMMENT) && text.ends_with("data: [DONE]\n\n"), "{text}");
    for event in text.split("\n\n").filter(|event| !event.is_empty()) {
        assert!(
            event == ": keep-alive" || event.starts_with("data: "),
            "a comment lies between events: {event}"
        );
    }
}

#[tokio::test]
async fn leaving_behind_a_comment_cancels_the_call() {
    use tokio::io::AsyncWriteExt as _;
    let primary = provider("default: {ttft: 60s}").await;
    let world = World::openai(vec![chatty(target("primary", &primary, 0))]).await;
    let mut client = world.connect().await;
    client
        .write_all(&crate::harness::request_bytes("/v1/chat/completions", "", &crate::harness::chat(true)))
        .await
        .unwrap();
    crate::harness::read_until(&mut client, "keep-alive").await;
    drop(client);
    primary.wait_for(|stats| stats.total.cancelled() == 1, crate::harness::PATIENCE).await.unwrap();
    assert_eq!(world.until_idle().await.exchanges.cancelled, 1);
}
