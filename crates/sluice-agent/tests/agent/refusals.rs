//! Answers that Sluice makes itself: in the client's format, with when to come back and what they are based on.

use serde_json::{Value, json};
use sluice_core::policy::{ModelPattern, RoutePolicy, TargetPolicy, WireFormat};
use sluice_provider::Provider;

use crate::harness::{Answer, World, chat, message, ms, once, provider, quota, route, target};

/// Opens at the first failure, for this long.
fn fragile(mut target: TargetPolicy, open_ms: u64) -> TargetPolicy {
    let breaker = &mut target.rules.breaker.rules;
    breaker.consecutive_failures = 1;
    breaker.cooldown.base = ms(open_ms);
    breaker.cooldown.jitter_percent = 0;
    once(target)
}

async fn open(world: &World, provider: &Provider, path: &str, body: &Value) {
    world.ask(path, &[], body).await;
    world.until_idle().await;
    provider.reset();
}

#[tokio::test]
async fn an_open_breaker_refuses_in_the_clients_format() {
    for (format, path, body, kind) in [
        (WireFormat::OpenAi, "/v1/chat/completions", chat(false), "server_error"),
        (WireFormat::OpenAi, "/v1/chat/completions", chat(true), "server_error"),
        (WireFormat::Anthropic, "/v1/messages", message(false), "overloaded_error"),
        (WireFormat::Anthropic, "/v1/messages", message(true), "overloaded_error"),
    ] {
        let primary = provider("default: {status: 500}").await;
        let only = fragile(target("primary", &primary, 0), 30_000);
        let world = World::new(vec![route(format, vec![only])]).await;
        open(&world, &primary, path, &body).await;
        let answer = world.ask(path, &[("x-tenant", "team-a"), ("x-sluice-timeout-ms", "7000")], &body).await;
        assert_eq!(answer.status, 503);
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.header("x-sluice-refused"), Some("admit/circuit_open"));
        let exact: u64 = answer.header("retry-after-ms").unwrap().parse().unwrap();
        assert!((25_000..=30_000).contains(&exact), "{exact}");
        assert_eq!(answer.header("retry-after"), Some(exact.div_ceil(1_000).to_string().as_str()));
        assert_eq!(answer.header("x-should-retry"), None, "coming back helps");
        let error = &answer.json()["error"];
        assert_eq!(error["type"], kind);
        evidence(&error["sluice"]);
        assert_eq!(primary.stats().total.started, 0, "no upstream attempt");
    }
}

fn evidence(sluice: &Value) {
    assert_eq!(sluice["tenant"], "team-a");
    assert_eq!(sluice["lane"], "interactive");
    assert_eq!(sluice["route"], "default/chat");
    assert_eq!(sluice["targets"], json!([{ "name": "primary", "why": "open" }]));
    assert_eq!(sluice["policy_version"], "test");
    assert_eq!(sluice["limit_version"], 1);
    assert_eq!((sluice["in_flight"].as_u64(), sluice["limit"].as_u64()), (Some(0), Some(32)));
    assert_eq!(sluice["received_deadline_ms"], 7_000);
    assert!((1..=7_000).contains(&sluice["remaining_ms"].as_u64().unwrap()));
    assert_eq!(sluice["stage"], "admit");
    assert_eq!(sluice["upstream_attempt"], false);
    assert!(sluice["retry_after_ms"].as_u64().unwrap() > 0);
}

#[tokio::test]
async fn the_soonest_probe_of_all_targets_is_when_to_come_back() {
    let (primary, fallback) =
        (provider("default: {status: 500}").await, provider("default: {status: 500}").await);
    let mut late = fragile(target("primary", &primary, 0), 50_000);
    late.rules.retries.rules.max_attempts = 2;
    late.rules.revision = 4;
    let mut soon = fragile(target("fallback", &fallback, 1), 9_000);
    soon.rules.revision = 5;
    let world = World::openai(vec![late, soon]).await;
    open(&world, &primary, "/v1/chat/completions", &chat(false)).await;
    let answer = world.chat().await;
    let exact: u64 = answer.header("retry-after-ms").unwrap().parse().unwrap();
    assert!((5_000..=9_000).contains(&exact), "{exact}");
    let sluice = &answer.json()["error"]["sluice"];
    assert_eq!(sluice["targets"].as_array().unwrap().len(), 2);
    assert_eq!(sluice["limit_version"], 5, "of the target that decides");
}

#[tokio::test]
async fn a_wait_beyond_a_minute_tells_sdks_not_to_come() {
    let primary = provider("default: {status: 500}").await;
    let world = World::openai(vec![fragile(target("primary", &primary, 0), 90_000)]).await;
    open(&world, &primary, "/v1/chat/completions", &chat(false)).await;
    let answer = world.chat().await;
    assert_eq!((answer.status.as_u16(), answer.header("x-should-retry")), (503, Some("false")));
    assert!(answer.header("retry-after").is_some());
}

#[tokio::test]
async fn what_never_fits_is_the_callers_to_change() {
    let primary = provider("{}").await;
    let mut only = target("primary", &primary, 0);
    only.rules.quota = Some(quota(100));
    let world = World::openai(vec![only]).await;
    let mut body = chat(false);
    body["max_tokens"] = 4_000.into();
    let answer = world.ask("/v1/chat/completions", &[], &body).await;
    assert_eq!((answer.status.as_u16(), answer.json()["error"]["code"].as_str()), (400, Some("never_fits")));
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("lower its maximum output"));
    assert_eq!((answer.header("x-should-retry"), answer.header("retry-after")), (Some("false"), None));
    assert_eq!(primary.stats().total.started, 0);
}

#[tokio::test]
async fn an_unknown_model_or_path_is_not_found() {
    let primary = provider("{}").await;
    let mut only = route(WireFormat::OpenAi, vec![target("primary", &primary, 0)]);
    only.models = vec![ModelPattern::Exact("gpt-4o".into())];
    let world = World::new(vec![only]).await;
    let mut body = chat(false);
    body["model"] = "gpt-5".into();
    let answer = world.ask("/v1/chat/completions", &[], &body).await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["error"]["code"].as_str()),
        (404, Some("model_not_found"))
    );
    // Anthropic's clients have no route here at all.
    let answer = world.ask("/v1/messages", &[], &message(false)).await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["error"]["type"].as_str()),
        (404, Some("not_found_error"))
    );
    let answer = world.ask("/v1/files", &[], &json!({})).await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["error"]["code"].as_str()),
        (404, Some("unknown_path"))
    );
    // Nor is there a largest body where there is no route at all.
    let answer = World::new(Vec::new()).await.ask("/v1/chat/completions", &[], &chat(false)).await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["error"]["code"].as_str()),
        (404, Some("model_not_found"))
    );
}

#[tokio::test]
async fn a_body_that_cannot_be_read_names_the_field() {
    let primary = provider("{}").await;
    let world = World::openai(vec![target("primary", &primary, 0)]).await;
    let wrong = [
        (r#"{"messages": []}"#, "model"),
        (r#"{"model": 7, "messages": []}"#, "model"),
        (r#"{"model": "gpt-4o", "stream": "yes"}"#, "stream"),
        (r#"{"model": "gpt-4o", "max_tokens": -1}"#, "max_tokens"),
        (r#"{"model": "gpt-4o", "#, "JSON"),
        ("", "JSON"),
    ];
    for (body, field) in wrong {
        let request = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = world.raw(request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{body}: {answer}");
        assert!(answer.contains(field), "{body}: {answer}");
    }
    assert_eq!(primary.stats().total.started, 0);
}

#[tokio::test]
async fn a_limiter_that_is_full_tells_when_a_slot_is_expected() {
    let primary = provider("rules: [{match: {scenario: hold}, behaviour: {stall: {after: 0}}}]").await;
    let mut only = target("primary", &primary, 0);
    only.rules.concurrency.rules = sluice_core::policy::Concurrency::Fixed { limit: 1 };
    let world = World::openai(vec![only]).await;
    assert_eq!(world.chat().await.status, 200);
    world.until_idle().await;
    let path = "/v1/chat/completions";
    let (held, body) = ([("x-scenario", "hold")], chat(true));
    let holding = world.ask(path, &held, &body);
    let refused = async {
        primary.wait_for(|stats| stats.total.stalled == 1, crate::harness::PATIENCE).await.unwrap();
        let answer = world.chat().await;
        primary.release();
        answer
    };
    let (held, refused): (Answer, Answer) = tokio::join!(holding, refused);
    assert_eq!(held.status, 200);
    assert_eq!(
        (refused.status.as_u16(), refused.json()["error"]["code"].as_str()),
        (429, Some("limiter_full"))
    );
    assert!(refused.header("retry-after").is_some());
    let sluice = &refused.json()["error"]["sluice"];
    assert_eq!((sluice["in_flight"].as_u64(), sluice["limit"].as_u64()), (Some(1), Some(1)));
}

#[tokio::test]
async fn an_agent_without_policies_says_so() {
    let world = World::start(
        sluice_proto::apply::PolicySet::default(),
        sluice_state::store::Shared::Embedded(std::sync::Arc::new(
            sluice_state::EmbeddedHome::new().unwrap(),
        )),
        |_| {},
    )
    .await;
    let answer = world.chat().await;
    assert_eq!((answer.status.as_u16(), answer.json()["error"]["code"].as_str()), (503, Some("no_policy")));
    assert!(answer.header("retry-after").is_some());
}

#[tokio::test]
async fn a_degraded_answer_is_marked_and_in_format() {
    for (format, path, bodies) in [
        (WireFormat::OpenAi, "/v1/chat/completions", [chat(false), chat(true)]),
        (WireFormat::Anthropic, "/v1/messages", [message(false), message(true)]),
    ] {
        let primary = provider("default: {status: 503}").await;
        let mut only = route(format, vec![once(target("primary", &primary, 0))]);
        only.degraded = sluice_core::policy::Degraded::Static { text: "we are back soon".into() };
        let world = World::new(vec![only]).await;
        for body in bodies {
            let answer = world.ask(path, &[], &body).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.header("x-sluice-degraded"), Some("static"));
            assert_eq!(answer.header("x-sluice-served-by"), Some("sluice"));
            let streamed = body["stream"] == true;
            let expected = if streamed { "text/event-stream" } else { "application/json" };
            assert_eq!(answer.header("content-type"), Some(expected));
            assert!(answer.text().contains("we are back soon"));
        }
        primary.set(sluice_provider::Scenario::from_yaml("default: {status: 400}").unwrap());
        assert_eq!(
            world
                .ask(path, &[], &if format == WireFormat::OpenAi { chat(false) } else { message(false) })
                .await
                .status,
            400,
            "a caller's error is not made up for"
        );
    }
}

fn to_backend(format: WireFormat, targets: Vec<TargetPolicy>, backend: &str) -> RoutePolicy {
    let mut route = route(format, targets);
    route.degraded = sluice_core::policy::Degraded::Backend { endpoint: backend.into() };
    route
}

#[tokio::test]
async fn another_backend_gets_the_request_as_it_came() {
    for (format, path, bodies) in [
        (WireFormat::OpenAi, "/v1/chat/completions", [chat(false), chat(true)]),
        (WireFormat::Anthropic, "/v1/messages", [message(false), message(true)]),
    ] {
        let primary = provider("default: {status: 503}").await;
        let backend = provider("default: {tokens: 3}").await;
        let mut only = once(target("primary", &primary, 0));
        only.model = Some("small".into());
        let world = World::new(vec![to_backend(format, vec![only], &backend.openai_url())]).await;
        for body in bodies {
            let headers = [("authorization", "Bearer theirs"), ("x-kept", "1"), ("idempotency-key", "k")];
            let answer = world.ask(path, &headers, &body).await;
            assert_eq!((answer.status.as_u16(), answer.whole), (200, true), "{}", answer.text());
            assert_eq!(answer.header("x-sluice-degraded"), Some("backend"));
            assert_eq!(answer.header("x-sluice-served-by"), Some("backend"));
            assert!(answer.header("x-sluice-exchange-id").is_some());
            let call = backend.calls().last().unwrap().clone();
            assert_eq!(call.path, path);
            assert_eq!(Some(call.model.as_str()), body["model"].as_str(), "as the client asked");
            assert_eq!((call.header("authorization"), call.header("x-kept")), (None, Some("1")));
        }
        // What the request itself is guilty of is said, and not tried elsewhere.
        primary.set(sluice_provider::Scenario::from_yaml("default: {status: 400}").unwrap());
        let before = backend.stats().total.started;
        let body = if format == WireFormat::OpenAi { chat(false) } else { message(false) };
        assert_eq!(world.ask(path, &[], &body).await.status, 400);
        assert_eq!(backend.stats().total.started, before);
        world.until_idle().await;
    }
}

#[tokio::test]
async fn a_backend_that_fails_too_leaves_the_honest_error() {
    let primary = provider("default: {status: 503}").await;
    let down = provider("default: {status: 500}").await;
    let silent = provider("default: {ttft: 60s}").await;
    let nobody = "http://127.0.0.1:9/v1".to_owned();
    for backend in [down.openai_url(), silent.openai_url(), nobody] {
        let only = fragile(target("primary", &primary, 0), 30_000);
        let world = World::new(vec![to_backend(WireFormat::OpenAi, vec![only], &backend)]).await;
        let headers = [("x-sluice-timeout-ms", "400")];
        let answer = world.ask("/v1/chat/completions", &headers, &chat(false)).await;
        assert_eq!((answer.status.as_u16(), answer.header("x-sluice-degraded")), (503, None), "{backend}");
        world.until_idle().await;
        let answer = world.ask("/v1/chat/completions", &headers, &chat(false)).await;
        assert_eq!(answer.header("x-sluice-refused"), Some("admit/circuit_open"), "{backend}");
    }
    assert_eq!(silent.stats().total.in_flight, 0, "its call ends with the deadline");
}

#[tokio::test]
async fn a_client_that_leaves_cancels_the_backends_call() {
    use tokio::io::AsyncWriteExt as _;
    let primary = provider("default: {status: 503}").await;
    let backend = provider("default: {stall: {after: 2}}").await;
    let only = once(target("primary", &primary, 0));
    let world = World::new(vec![to_backend(WireFormat::OpenAi, vec![only], &backend.openai_url())]).await;
    let mut client = world.connect().await;
    let request = crate::harness::request_bytes("/v1/chat/completions", "", &chat(true));
    client.write_all(&request).await.unwrap();
    crate::harness::read_until(&mut client, "x-sluice-degraded: backend").await;
    backend.wait_for(|stats| stats.total.stalled == 1, crate::harness::PATIENCE).await.unwrap();
    drop(client);
    backend.wait_for(|stats| stats.total.cancelled() == 1, crate::harness::PATIENCE).await.unwrap();
    world.until_idle().await;
}

/// What a person reads in errors and logs never has a prompt, an answer or a key in it.
#[tokio::test]
async fn no_prompt_and_no_key_in_errors_and_logs() {
    let logs = crate::logs::capture();
    let primary = provider("default: {status: 500, message: echo of canary-answer}").await;
    let world = World::openai(vec![fragile(target("primary", &primary, 0), 30_000)]).await;
    let headers =
        [("authorization", "Bearer canary-key"), ("x-api-key", "canary-key"), ("cookie", "canary-key")];
    let mut body = chat(true);
    body["messages"][0]["content"] = "canary-prompt".into();
    let path = "/v1/chat/completions";
    let mut told = String::new();
    world.ask(path, &headers, &body).await;
    world.until_idle().await;
    told += &world.ask(path, &headers, &body).await.text();
    body["max_tokens"] = json!("canary-prompt");
    told += &world.ask(path, &headers, &body).await.text();
    body["model"] = json!({ "canary-prompt": 1 });
    told += &world.ask(path, &headers, &body).await.text();
    told += &serde_json::to_string(&world.state().await).unwrap();
    told += &world.agent.metrics();
    told += &logs.text();
    assert!(told.contains("circuit_open") && told.contains("breaker transition"), "{told}");
    for line in told.lines() {
        assert!(!line.contains("canary"), "{line}");
    }
}
