//! Deadlines: the first token, silence, the whole, and the caller's own.

use crate::harness::{INPUT, World, chat, counts, ms, once, provider, target};

#[tokio::test]
async fn pings_do_not_hold_off_the_first_token_deadline() {
    let primary = provider("default: {answer: keepAlivesOnly, pingEvery: 10ms}").await;
    let mut only = once(target("primary", &primary, 0));
    only.rules.deadlines.rules.first_token = ms(200);
    let world = World::openai(vec![only]).await;
    let answer = world.stream().await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["error"]["code"].as_str()),
        (504, Some("upstream_timeout"))
    );
    let stats =
        primary.wait_for(|stats| stats.total.cancelled() == 1, crate::harness::PATIENCE).await.unwrap();
    assert_eq!(stats.total.in_flight, 0, "the call is cancelled, not left running");
    world.until_idle().await;
    let target = world.target("primary").await;
    assert_eq!(counts(&target.verdicts), [("failure", 1)].into());
    assert_eq!(target.tokens_charged, INPUT, "the request was sent, so its input is charged");
}

#[tokio::test]
async fn an_attempt_that_was_slow_before_its_deadline_stays_slow() {
    let primary = provider("default: {ttft: 60s}").await;
    let mut only = once(target("primary", &primary, 0));
    only.rules.deadlines.rules.first_token = ms(200);
    only.rules.breaker.rules.slow.ttft = Some(ms(50));
    let world = World::openai(vec![only]).await;
    assert_eq!(world.stream().await.status, 504);
    world.until_idle().await;
    let target = world.target("primary").await;
    assert_eq!(counts(&target.verdicts), [("slow", 1)].into());
    assert_eq!((target.breaker.calls, target.breaker.slow, target.breaker.failures), (1, 1, 0));
}

#[tokio::test]
async fn slowness_is_told_when_it_is_certain_and_not_when_the_call_ends() {
    let primary = provider("default: {stall: {after: 0}, tokens: 3}").await;
    let mut only = target("primary", &primary, 0);
    only.rules.breaker.rules.slow.ttft = Some(ms(50));
    let world = World::openai(vec![only]).await;
    let answer = async { world.stream().await };
    let watch = async {
        let state =
            world.until("slow is settled", |state| state.routes[0].targets[0].breaker.slow == 1).await;
        assert_eq!(state.exchanges.unsettled, 1, "while the attempt goes on");
        primary.release();
    };
    let (answer, ()) = tokio::join!(answer, watch);
    assert_eq!(answer.status, 200);
    assert!(answer.text().ends_with("data: [DONE]\n\n"));
    world.until_idle().await;
    let target = world.target("primary").await;
    assert_eq!((target.breaker.calls, counts(&target.verdicts)), (1, [("slow", 1)].into()));
}

#[tokio::test]
async fn slow_calls_count_as_failures_where_the_policy_says_so() {
    let primary = provider("default: {ttft: 60ms, tokens: 3}").await;
    let mut only = target("primary", &primary, 0);
    only.rules.breaker.rules.slow.ttft = Some(ms(20));
    only.rules.breaker.rules.slow.count_as = sluice_core::policy::SlowCounts::Failure;
    let world = World::openai(vec![only]).await;
    assert_eq!(world.stream().await.status, 200);
    world.until_idle().await;
    let breaker = world.target("primary").await.breaker;
    assert_eq!((breaker.calls, breaker.failures, breaker.slow), (1, 1, 0));
}

#[tokio::test]
async fn a_plain_call_that_takes_too_long_is_slow_by_duration() {
    let primary = provider("default: {ttft: 60ms}").await;
    let mut only = target("primary", &primary, 0);
    only.rules.breaker.rules.slow.duration = Some(ms(20));
    let world = World::openai(vec![only]).await;
    assert_eq!(world.chat().await.status, 200);
    world.until_idle().await;
    assert_eq!(counts(&world.target("primary").await.verdicts), [("slow", 1)].into());
}

#[tokio::test]
async fn the_total_deadline_ends_a_stream_with_an_event_of_its_format() {
    let primary = provider("default: {tokens: 20, perToken: 100ms}").await;
    let mut only = target("primary", &primary, 0);
    only.rules.deadlines.rules.total = ms(400);
    let world = World::openai(vec![only]).await;
    let answer = world.stream().await;
    assert_eq!(answer.status, 200);
    assert!(answer.text().contains("deadline_exceeded"), "{}", answer.text());
    assert!(!answer.text().contains("[DONE]"), "an unfinished answer never looks finished");
    primary.wait_for(|stats| stats.total.cancelled() == 1, crate::harness::PATIENCE).await.unwrap();
    world.until_idle().await;
    assert_eq!(counts(&world.target("primary").await.verdicts), [("ignored", 1)].into());
}

#[tokio::test]
async fn the_total_deadline_bounds_a_plain_call() {
    let primary = provider("default: {ttft: 60s}").await;
    let mut only = target("primary", &primary, 0);
    only.rules.deadlines.rules.total = ms(200);
    let world = World::openai(vec![only]).await;
    let answer = world.chat().await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["error"]["code"].as_str()),
        (504, Some("upstream_timeout"))
    );
    world.until_idle().await;
    assert_eq!(counts(&world.target("primary").await.verdicts), [("failure", 1)].into());
}

#[tokio::test]
async fn the_callers_own_deadline_says_nothing_of_the_provider() {
    for (header, value, stream) in [
        ("x-sluice-timeout-ms", "200", false),
        ("x-sluice-timeout-ms", "200", true),
        ("x-stainless-timeout", "0.2", false),
    ] {
        let primary = provider("default: {ttft: 60s}").await;
        let fallback = provider("default: {ttft: 60s}").await;
        let world =
            World::openai(vec![target("primary", &primary, 0), target("fallback", &fallback, 1)]).await;
        let answer = world.ask("/v1/chat/completions", &[(header, value)], &chat(stream)).await;
        if stream {
            // Before the first token it is the first-token deadline that is cut to the caller's.
            assert_eq!(answer.status, 504, "{header}");
        } else {
            assert_eq!(answer.status, 504);
            let error = answer.json()["error"].clone();
            assert_eq!(
                (error["code"].as_str(), error["sluice"]["received_deadline_ms"].as_u64()),
                (Some("deadline_exceeded"), Some(200))
            );
            assert_eq!(answer.header("x-should-retry"), Some("false"));
        }
        world.until_idle().await;
        assert_eq!(
            counts(&world.target("primary").await.verdicts),
            [("ignored", 1)].into(),
            "{header} {stream}"
        );
        assert_eq!(fallback.stats().total.started, 0, "no time is left for another target");
    }
}

#[tokio::test]
async fn an_sdks_read_timeout_bounds_the_first_token_of_a_stream_and_not_its_length() {
    let primary = provider("default: {tokens: 30, perToken: 20ms}").await;
    let world = World::openai(vec![target("primary", &primary, 0)]).await;
    let answer = world.ask("/v1/chat/completions", &[("x-stainless-timeout", "0.3")], &chat(true)).await;
    assert!(answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
}

#[tokio::test]
async fn what_remains_goes_upstream_where_the_policy_says_so() {
    let primary = provider("{}").await;
    let mut only = target("primary", &primary, 0);
    only.rules.streaming.rules.propagate_deadline = true;
    let world = World::openai(vec![only]).await;
    world.ask("/v1/chat/completions", &[("x-sluice-timeout-ms", "5000")], &chat(false)).await;
    let sent: u64 = primary.calls()[0].header("x-sluice-timeout-ms").unwrap().parse().unwrap();
    assert!((1..=5_000).contains(&sent), "{sent}");
}

#[tokio::test]
async fn a_first_token_that_never_came_shrinks_the_limit() {
    let primary = provider("default: {headersDelay: 60s}").await;
    let mut only = once(target("primary", &primary, 0));
    only.rules.deadlines.rules.first_token = ms(100);
    let aimd = sluice_core::policy::Aimd { ttft_target: ms(20), ..Default::default() };
    only.rules.concurrency.rules = sluice_core::policy::Concurrency::Aimd(aimd);
    let world = World::openai(vec![only]).await;
    for _ in 0..2 {
        assert_eq!(world.stream().await.status, 504);
    }
    world.until_idle().await;
    assert_eq!(world.target("primary").await.limit, 29, "once per interval");
}

#[tokio::test]
async fn a_deadline_that_is_no_time_is_the_callers_to_mend() {
    let primary = provider("{}").await;
    let world = World::openai(vec![target("primary", &primary, 0)]).await;
    for value in ["0", "-1", "soon", "", "NaN", "Infinity", "1e999", "0x10"] {
        let answer = world.ask("/v1/chat/completions", &[("x-sluice-timeout-ms", value)], &chat(false)).await;
        assert_eq!(answer.status, 400, "{value:?}");
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        for part in ["x-sluice-timeout-ms", &format!("`{value}`"), "1 or more"] {
            assert!(message.contains(part), "{value:?}: {message}");
        }
        assert_eq!(answer.header("x-should-retry"), Some("false"));
    }
    let body = chat(false).to_string();
    let mut bytes =
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nx-sluice-timeout-ms: \xff\r\n".to_vec();
    bytes.extend_from_slice(format!("content-length: {}\r\n\r\n{body}", body.len()).as_bytes());
    let answer = world.raw(&bytes).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert_eq!(primary.stats().total.started, 0);
    // What an SDK adds by itself is a hint: garbage in it is nobody's wish.
    let hints = [("x-stainless-timeout", "NOT_GIVEN"), ("x-stainless-read-timeout", "-1")];
    assert_eq!(world.ask("/v1/chat/completions", &hints, &chat(false)).await.status, 200);
}

#[tokio::test]
async fn evidence_shows_the_deadline_that_was_received_and_what_is_left_of_it() {
    for (headers, stream, received) in [
        ([("x-stainless-timeout", "0.001")], true, 1),
        ([("x-stainless-timeout", "0.05")], true, 50),
        ([("x-stainless-read-timeout", "0.05")], false, 50),
        ([("x-sluice-timeout-ms", "50")], true, 50),
        ([("x-sluice-timeout-ms", "50")], false, 50),
    ] {
        let primary = provider("default: {ttft: 60s}").await;
        let world = World::openai(vec![once(target("primary", &primary, 0))]).await;
        let answer = world.ask("/v1/chat/completions", &headers, &chat(stream)).await;
        assert_eq!(answer.status, 504, "{headers:?}");
        let error = &answer.json()["error"];
        assert_eq!(error["code"], "deadline_exceeded", "the caller's own");
        let sluice = &error["sluice"];
        assert_eq!(
            (sluice["received_deadline_ms"].as_u64(), sluice["remaining_ms"].as_u64()),
            (Some(received), Some(0)),
            "{headers:?} {stream}"
        );
    }
}
