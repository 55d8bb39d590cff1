//! The spans of an exchange, and which is inside which.

use sluice_core::policy::{ModelPattern, WireFormat};

use super::{Bench, NOTHING};
use crate::harness::{PATIENCE, chat, message, ms, once, provider, route, target};

const CALLERS: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const PATH: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_plain_exchange_is_three_spans() {
    let primary = provider("default: {inputTokens: 11, tokens: 7}").await;
    let mut bench = Bench::start(&[]).await;
    let mut only = route(WireFormat::OpenAi, vec![target("primary", &primary, 0)]);
    only.models = vec![ModelPattern::parse("gpt-*"), ModelPattern::parse("gpt-4o")];
    let world = bench.routes(vec![only]).await;
    let answer = world.chat().await;
    let told = bench.end().await;
    let (server, operation, attempts) = told.exchange();
    assert_eq!(server.name, "POST /v1/chat/completions");
    assert_eq!(server.parent, "");
    for (key, value) in [
        ("http.request.method", "POST"),
        ("http.route", PATH),
        ("url.path", PATH),
        ("url.scheme", "http"),
        ("http.response.status_code", "200"),
    ] {
        assert_eq!(server.tag(key), value, "{server:#?}");
    }
    assert_eq!(operation.name, "chat gpt-4o");
    for (key, value) in [
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.request.model", "gpt-4o"),
        ("gen_ai.request.stream", "false"),
        ("gen_ai.provider.name", "openai"),
        ("sluice.exchange", answer.header("x-sluice-exchange-id").unwrap()),
        ("sluice.route", "default/chat"),
        ("sluice.lane", "interactive"),
        ("sluice.tenant", "shared"),
        ("sluice.policy.version", "test"),
        ("sluice.target", "primary"),
        ("sluice.attempts", "1"),
    ] {
        assert_eq!(operation.tag(key), value, "{operation:#?}");
    }
    let [attempt] = attempts[..] else { panic!("{attempts:#?}") };
    assert_eq!(attempt.name, "chat gpt-4o");
    let port = primary.openai_url().rsplit_once(':').unwrap().1.trim_end_matches("/v1").to_owned();
    for (key, value) in [
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.provider.name", "openai"),
        ("gen_ai.request.model", "gpt-4o"),
        ("gen_ai.usage.input_tokens", "11"),
        ("gen_ai.usage.output_tokens", "7"),
        ("http.response.status_code", "200"),
        ("server.address", "127.0.0.1"),
        ("server.port", &port),
        ("sluice.breaker.state", "closed"),
        ("sluice.route", "default/chat"),
        ("sluice.target", "primary"),
        ("sluice.verdict", "success"),
        ("http.request.resend_count", ""),
        ("sluice.probe", ""),
    ] {
        assert_eq!(attempt.tag(key), value, "{key}: {attempt:#?}");
    }
    for span in [server, operation, attempt] {
        assert!(!span.failed && span.tag("error.type").is_empty(), "{span:#?}");
    }
    assert!(told.records.is_empty(), "{:#?}", told.records);
}

#[tokio::test]
async fn a_streamed_exchange_tells_its_first_token() {
    for (format, path, body, kind) in [
        (WireFormat::OpenAi, PATH, chat(true), "chat"),
        (WireFormat::Anthropic, "/v1/messages", message(true), "chat"),
    ] {
        let primary = provider("default: {tokens: 7, ttft: 20ms}").await;
        let mut bench = Bench::start(&[]).await;
        let world = bench.routes(vec![route(format, vec![target("primary", &primary, 0)])]).await;
        assert!(world.ask(path, &[], &body).await.whole);
        let told = bench.end().await;
        let (server, operation, attempts) = told.exchange();
        assert_eq!(server.name, format!("POST {path}"));
        assert_eq!(operation.name, format!("{kind} *"), "the route takes any model: so it is written");
        assert_eq!(attempts[0].tag("gen_ai.request.stream"), "true");
        let first: f64 = attempts[0].tag("gen_ai.response.time_to_first_chunk").parse().unwrap();
        assert!(first >= 0.015, "in seconds: {first}");
        assert_eq!(attempts[0].tag("gen_ai.usage.output_tokens"), "7");
        assert_eq!(attempts[0].tag("sluice.verdict"), "success");
    }
}

#[tokio::test]
async fn a_failed_over_exchange_has_a_span_for_each_attempt_and_is_kept() {
    let (primary, fallback) = (provider("default: {status: 500}").await, provider("{}").await);
    let mut bench = Bench::start(&NOTHING).await;
    let mut second = target("fallback", &fallback, 1);
    second.model = Some("gpt-4o-mini".into());
    let world = bench.openai(vec![target("primary", &primary, 0), second]).await;
    assert_eq!(world.chat().await.status, 200);
    let told = bench.end().await;
    let (server, operation, attempts) = told.exchange();
    assert_eq!(server.tag("sluice.sampling.kept_for"), "failover error");
    assert!(!server.failed && !operation.failed, "the client got an answer");
    assert_eq!(operation.tag("sluice.failed_over"), "true");
    assert_eq!((operation.tag("sluice.target"), operation.tag("sluice.attempts")), ("fallback", "2"));
    let [failed, served] = attempts[..] else { panic!("{attempts:#?}") };
    assert!(failed.failed);
    assert_eq!((failed.tag("error.type"), failed.tag("sluice.target")), ("server-error", "primary"));
    assert_eq!((failed.tag("http.response.status_code"), failed.tag("sluice.verdict")), ("500", "failure"));
    assert_eq!(served.name, "chat gpt-4o-mini", "what the target asks for");
    assert_eq!((served.tag("http.request.resend_count"), served.tag("sluice.target")), ("1", "fallback"));
}

#[tokio::test]
async fn a_retried_exchange_has_a_span_for_each_attempt() {
    let scenario = "steps: [{calls: 1, behaviour: {inherit: false, status: 503}}]";
    let primary = provider(scenario).await;
    let mut bench = Bench::start(&NOTHING).await;
    let world = bench.openai(vec![target("primary", &primary, 0)]).await;
    assert_eq!(world.chat().await.status, 200);
    let told = bench.end().await;
    let (server, operation, attempts) = told.exchange();
    assert_eq!(server.tag("sluice.sampling.kept_for"), "error");
    assert_eq!((operation.tag("sluice.attempts"), operation.tag("sluice.failed_over")), ("2", ""));
    let counts: Vec<_> = attempts.iter().map(|attempt| attempt.tag("http.request.resend_count")).collect();
    assert_eq!(counts, ["", "1"]);
    assert!(attempts.iter().all(|attempt| attempt.tag("sluice.target") == "primary"));
    assert!(attempts[0].failed && !attempts[1].failed);
}

#[tokio::test]
async fn a_provider_that_is_not_there_has_a_span() {
    let gone = {
        let primary = provider("{}").await;
        once(target("primary", &primary, 0))
    };
    let mut bench = Bench::start(&NOTHING).await;
    let world = bench.openai(vec![gone]).await;
    assert_eq!(world.chat().await.status, 502);
    let told = bench.end().await;
    let (server, operation, attempts) = told.exchange();
    assert_eq!((attempts[0].tag("error.type"), attempts[0].tag("sluice.verdict")), ("connect", "failure"));
    for span in [server, operation] {
        assert!(span.failed);
        assert_eq!(span.tag("error.type"), "upstream_unreachable");
        assert_eq!(span.tag("sluice.refusal.stage"), "attempt");
    }
}

#[tokio::test]
async fn a_target_without_a_slot_is_passed_over() {
    let (primary, fallback) = (provider("default: {connection: hang}").await, provider("{}").await);
    let mut bench = Bench::start(&NOTHING).await;
    let mut first = target("primary", &primary, 0);
    first.rules.concurrency.rules = sluice_core::policy::Concurrency::Fixed { limit: 1 };
    let world = bench.openai(vec![first, target("fallback", &fallback, 1)]).await;
    let body = chat(false);
    let hanging = world.ask(PATH, &[], &body);
    let served = async {
        primary.wait_for(|stats| stats.total.started == 1, PATIENCE).await.unwrap();
        let answer = world.chat().await;
        primary.release();
        answer
    };
    let (_, answer) = tokio::join!(hanging, served);
    assert_eq!(answer.header("x-sluice-served-by"), Some("fallback"));
    let told = bench.end().await;
    let exchanges = told.exchanges();
    let (server, operation, attempts) = exchanges
        .iter()
        .find(|(_, operation, _)| !operation.events("sluice.target.passed_over").is_empty())
        .unwrap();
    let passed_over = operation.events("sluice.target.passed_over")[0];
    assert_eq!(passed_over["sluice.target"], "primary");
    assert_eq!(passed_over["sluice.passed_over_for"], "limiter-full");
    assert_eq!((attempts.len(), server.tag("sluice.sampling.kept_for")), (1, "failover"));
}

#[tokio::test]
async fn a_callers_trace_is_continued_and_an_invalid_one_starts_anew() {
    let primary = provider("{}").await;
    let mut bench = Bench::start(&[]).await;
    let world = bench.openai(vec![target("primary", &primary, 0)]).await;
    let invalid = CALLERS.to_uppercase();
    for headers in [
        [("traceparent", CALLERS), ("tracestate", "vendor=1")],
        [("traceparent", &invalid), ("tracestate", "vendor=1")],
    ] {
        assert_eq!(world.ask(PATH, &headers, &chat(false)).await.status, 200);
    }
    let told = bench.end().await;
    let exchanges = told.exchanges();
    let (continued, anew): (Vec<_>, Vec<_>) =
        exchanges.iter().partition(|(server, ..)| server.trace == "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!((continued.len(), anew.len()), (1, 1));
    let (server, operation, attempts) = continued[0];
    assert_eq!(server.parent, "00f067aa0ba902b7");
    assert!([*server, *operation, attempts[0]].iter().all(|span| span.state == "vendor=1"));
    assert_eq!((&*anew[0].0.parent, &*anew[0].0.state), ("", ""));
}

#[tokio::test]
async fn providers_are_told_the_trace_where_the_policy_says_so() {
    let (quiet, telling) = (provider("{}").await, provider("{}").await);
    let mut bench = Bench::start(&[]).await;
    let mut second = target("telling", &telling, 0);
    second.rules.streaming.rules.propagate_trace = true;
    let world = bench.openai(vec![target("quiet", &quiet, 0), second]).await;
    for name in ["quiet", "telling"] {
        let headers = [
            ("traceparent", CALLERS),
            ("tracestate", "vendor=1"),
            ("baggage", "user=1"),
            ("x-sluice-target", name),
        ];
        assert_eq!(world.ask(PATH, &headers, &chat(false)).await.status, 200);
    }
    let told = bench.end().await;
    let names = ["traceparent", "tracestate", "baggage"];
    assert!(names.iter().all(|name| quiet.calls()[0].header(name).is_none()));
    let exchanges = told.exchanges();
    let attempts = exchanges.iter().flat_map(|(_, _, attempts)| attempts);
    let attempt = attempts.into_iter().find(|attempt| attempt.tag("sluice.target") == "telling").unwrap();
    let call = &telling.calls()[0];
    assert_eq!(call.header("traceparent").unwrap(), format!("00-{}-{}-01", attempt.trace, attempt.id));
    assert_eq!(call.header("tracestate"), Some("vendor=1"));
    assert_eq!(call.header("baggage"), None);
}

/// An agent that makes no spans is no gap in its caller's trace.
#[tokio::test]
async fn without_a_tracer_the_callers_own_trace_goes_on() {
    let primary = provider("{}").await;
    let mut only = target("primary", &primary, 0);
    only.rules.streaming.rules.propagate_trace = true;
    let world = crate::harness::World::openai(vec![only]).await;
    world.ask(PATH, &[("traceparent", CALLERS)], &chat(false)).await;
    world.ask(PATH, &[("traceparent", "no trace")], &chat(false)).await;
    assert_eq!(primary.calls()[0].header("traceparent"), Some(CALLERS));
    assert_eq!(primary.calls()[1].header("traceparent"), None);
}

#[tokio::test]
async fn a_stream_that_began_with_comments_has_the_same_spans() {
    let primary = provider("default: {ttft: 100ms, tokens: 3}").await;
    let mut bench = Bench::start(&[]).await;
    let mut only = target("primary", &primary, 0);
    only.rules.streaming.rules.keep_alive = Some(ms(10));
    let world = bench.openai(vec![only]).await;
    let answer = world.stream().await;
    assert!(answer.text().starts_with(": keep-alive") && answer.text().ends_with("[DONE]\n\n"));
    let told = bench.end().await;
    let (server, _, attempts) = told.exchange();
    assert_eq!(server.tag("http.response.status_code"), "200");
    assert_eq!(attempts[0].tag("sluice.verdict"), "success");
    assert!(!server.failed && told.records.is_empty());
}
