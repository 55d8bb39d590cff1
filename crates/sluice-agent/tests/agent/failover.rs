//! The classification table (design: the pipeline's rules), row by row: what the client sees, what the breaker is
//! told, who is asked next, and what is charged.

use sluice_core::policy::{Credential, TargetPolicy};
use sluice_provider::Provider;

use crate::harness::{Answer, INPUT, World, chat, counts, ms, once, provider, target, target_at};

#[derive(Clone, Copy, Debug)]
enum Call {
    Plain,
    Stream,
    Both,
}

impl Call {
    fn kinds(self) -> &'static [bool] {
        match self {
            Self::Plain => &[false],
            Self::Stream => &[true],
            Self::Both => &[false, true],
        }
    }
}

/// What happens at the primary: its scenario, which calls it is about, the verdict, the tokens charged for it.
const HIDDEN: [(&str, Call, &str, u64); 21] = [
    ("default: {status: 500}", Call::Both, "failure", 0),
    ("default: {status: 502}", Call::Both, "failure", 0),
    ("default: {status: 503}", Call::Both, "failure", 0),
    ("default: {status: 504}", Call::Both, "failure", 0),
    ("default: {status: 529}", Call::Both, "failure", 0),
    ("default: {status: 408}", Call::Both, "failure", 0),
    ("default: {connection: close}", Call::Both, "failure", 0),
    ("default: {connection: reset}", Call::Both, "failure", 0),
    ("connections: refuse", Call::Both, "failure", 0),
    ("default: {error: rateLimit}", Call::Both, "throttled", 0),
    ("default: {error: spendCap}", Call::Both, "ignored", 0),
    ("default: {answer: html}", Call::Both, "failure", 0),
    ("default: {answer: emptyBody}", Call::Plain, "failure", 0),
    ("default: {malformed: {after: 0}}", Call::Plain, "failure", 0),
    ("default: {cut: {after: 0, how: close}}", Call::Plain, "failure", INPUT),
    ("default: {answer: emptyStream}", Call::Stream, "failure", 0),
    ("default: {streamError: {after: 0, kind: overloaded}}", Call::Stream, "failure", INPUT),
    ("default: {streamError: {after: 0, kind: rateLimit}}", Call::Stream, "throttled", INPUT),
    ("default: {cut: {after: 0, how: reset}}", Call::Stream, "failure", INPUT),
    ("default: {headersDelay: 60s}", Call::Stream, "failure", INPUT),
    ("default: {answer: keepAlivesOnly, pingEvery: 20ms}", Call::Stream, "failure", INPUT),
];

fn impatient(mut target: TargetPolicy) -> TargetPolicy {
    target.rules.deadlines.rules.first_token = ms(150);
    target
}

async fn ask(world: &World, stream: bool) -> Answer {
    if stream { world.stream().await } else { world.chat().await }
}

#[tokio::test]
async fn a_failure_before_the_first_token_is_invisible() {
    for (scenario, call, verdict, charged) in HIDDEN {
        for stream in call.kinds() {
            let what = format!("{scenario}, stream: {stream}");
            let primary = provider(scenario).await;
            invisible(&what, impatient(target("primary", &primary, 0)), *stream, verdict, charged).await;
            assert!(primary.stats().total.started <= 1, "{what}: asked once");
        }
    }
}

#[tokio::test]
async fn a_provider_that_cannot_be_reached_is_passed_by() {
    let plaintext = provider("{}").await;
    let tls = format!("https://{}/v1", plaintext.addr());
    for endpoint in ["http://no-such-provider.invalid/v1", tls.as_str()] {
        invisible(endpoint, target_at("primary", endpoint, 0), false, "failure", 0).await;
    }
}

async fn invisible(what: &str, primary: TargetPolicy, stream: bool, verdict: &'static str, charged: u64) {
    let fallback = provider("default: {tokens: 3, inputTokens: 11}").await;
    let world = World::openai(vec![primary, target("fallback", &fallback, 1)]).await;
    let answer = ask(&world, stream).await;
    assert_eq!(answer.status, 200, "{what}: {}", answer.text());
    assert_eq!(answer.header("x-sluice-served-by"), Some("fallback"), "{what}");
    assert!(answer.whole, "{what}");
    let state = world.until_idle().await;
    let [primary, fallback] = [world.target("primary").await, world.target("fallback").await];
    assert_eq!(counts(&primary.verdicts), [(verdict, 1)].into(), "{what}");
    assert_eq!((primary.attempts, primary.retries, primary.failovers), (1, 0, 1), "{what}");
    assert_eq!(primary.tokens_charged, charged, "{what}");
    assert_eq!(counts(&fallback.verdicts), [("success", 1)].into(), "{what}");
    assert_eq!((fallback.failovers, fallback.tokens_charged), (0, 14), "{what}");
    assert_eq!((state.exchanges.failed_over, state.exchanges.refused), (1, 0), "{what}");
}

#[tokio::test]
async fn with_no_target_left_the_providers_own_answer_goes_through() {
    for (scenario, call, ..) in HIDDEN {
        for stream in call.kinds() {
            let what = format!("{scenario}, stream: {stream}");
            // Twice the same provider: ids count from the first call of each.
            let (direct, behind) = (provider(scenario).await, provider(scenario).await);
            let mut body = chat(*stream);
            if *stream {
                body["stream_options"] = serde_json::json!({ "include_usage": true });
            }
            let Some(theirs) = direct_answer(&direct, &body).await else { continue };
            let world = World::openai(vec![once(impatient(target("primary", &behind, 0)))]).await;
            let ours = world.ask("/v1/chat/completions", &[], &body).await;
            assert_eq!((ours.status, ours.text()), (theirs.status, theirs.text()), "{what}");
            assert_eq!(ours.header("content-type"), theirs.header("content-type"), "{what}");
            assert_eq!(ours.header("retry-after"), theirs.header("retry-after"), "{what}");
            assert!(ours.whole, "{what}");
            world.until_idle().await;
        }
    }
}

/// What a provider says to its own client; `None`: nothing that could be passed on.
async fn direct_answer(provider: &Provider, body: &serde_json::Value) -> Option<Answer> {
    use http_body_util::Full;
    let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
        .build_http::<Full<bytes::Bytes>>();
    let request = http::Request::post(format!("{}/chat/completions", provider.openai_url()))
        .header("content-type", "application/json")
        .body(Full::from(body.to_string()))
        .unwrap();
    let answer = async { Some(crate::harness::read(client.request(request).await.ok()?).await) };
    let answer = tokio::time::timeout(ms(300), answer).await.ok()??;
    answer.whole.then_some(answer)
}

#[tokio::test]
async fn with_nothing_to_pass_on_the_error_is_ours() {
    let rows = [
        ("connections: refuse", false, 502, "upstream_unreachable"),
        ("default: {connection: reset}", true, 502, "upstream_unreachable"),
        ("default: {cut: {after: 0, how: close}}", true, 502, "upstream_invalid"),
        ("default: {headersDelay: 60s}", true, 504, "upstream_timeout"),
    ];
    for (scenario, stream, status, code) in rows {
        let primary = provider(scenario).await;
        let world = World::openai(vec![once(impatient(target("primary", &primary, 0)))]).await;
        let answer = ask(&world, stream).await;
        assert_eq!((answer.status.as_u16(), answer.json()["error"]["code"].as_str()), (status, Some(code)));
        assert_eq!(answer.json()["error"]["sluice"]["upstream_attempt"], true, "{scenario}");
        assert_eq!(answer.json()["error"]["sluice"]["targets"][0]["name"], "primary", "{scenario}");
        world.until_idle().await;
    }
}

#[tokio::test]
async fn the_callers_own_error_goes_nowhere_else() {
    for status in [400, 404, 409, 413, 422, 501] {
        for stream in [false, true] {
            let primary = provider(&format!("default: {{status: {status}, message: not like this}}")).await;
            let fallback = provider("{}").await;
            let world =
                World::openai(vec![target("primary", &primary, 0), target("fallback", &fallback, 1)]).await;
            let answer = ask(&world, stream).await;
            assert_eq!(answer.status, status);
            assert!(answer.text().contains("not like this"), "the provider's own words");
            assert_eq!(answer.header("x-sluice-served-by"), Some("primary"));
            world.until_idle().await;
            let primary = world.target("primary").await;
            assert_eq!(counts(&primary.verdicts), [("ignored", 1)].into(), "{status}");
            assert_eq!((primary.breaker.calls, primary.tokens_charged, primary.retries), (0, 0, 0));
            assert_eq!(fallback.stats().total.started, 0, "{status}");
        }
    }
}

#[tokio::test]
async fn a_credential_that_is_refused_fails_over_only_when_it_is_ours() {
    for status in [401, 403] {
        let primary = provider(&format!("default: {{status: {status}}}")).await;
        let fallback = provider("{}").await;
        let mut theirs = target("primary", &primary, 0);
        theirs.credential = Credential::Passthrough;
        let world = World::openai(vec![theirs, target("fallback", &fallback, 1)]).await;
        assert_eq!(world.chat().await.status, status);
        world.until_idle().await;
        let primary = world.target("primary").await;
        assert_eq!(counts(&primary.verdicts), [("ignored", 1)].into());
        assert_eq!(primary.retries, 0);
        assert_eq!(fallback.stats().total.started, 0, "another key would be no answer to the caller's");
    }
}

#[tokio::test]
async fn an_error_behind_the_first_token_goes_to_the_client_and_nowhere_else() {
    let scenario = "default: {tokens: 9, inputTokens: 11, streamError: {after: 3, kind: overloaded}}";
    let primary = provider(scenario).await;
    let fallback = provider("{}").await;
    let world = World::openai(vec![target("primary", &primary, 0), target("fallback", &fallback, 1)]).await;
    let answer = world.stream().await;
    assert_eq!(answer.status, 200);
    let events: Vec<&str> = answer.text().leak().split("\n\n").filter(|event| !event.is_empty()).collect();
    assert!(events.last().unwrap().contains("\"error\""), "{events:?}");
    assert_eq!(
        events.iter().filter(|event| event.contains("\"error\"")).count(),
        1,
        "one, the provider's own"
    );
    assert!(!answer.text().contains("sluice"), "{}", answer.text());
    world.until_idle().await;
    let primary = world.target("primary").await;
    assert_eq!(counts(&primary.verdicts), [("failure", 1)].into());
    assert_eq!((primary.attempts, primary.tokens_charged), (1, INPUT + 3));
    assert_eq!(fallback.stats().total.started, 0);
}

#[tokio::test]
async fn a_429_pauses_the_target_for_everyone() {
    let primary = provider("steps: [{calls: 1, behaviour: {error: rateLimit, retryAfterMs: 400}}]").await;
    let fallback = provider("{}").await;
    let world = World::openai(vec![target("primary", &primary, 0), target("fallback", &fallback, 1)]).await;
    assert_eq!(world.chat().await.header("x-sluice-served-by"), Some("fallback"));
    let paused = world.target("primary").await.paused_for_ms;
    assert!((1..=400).contains(&paused), "{paused}");
    let answer = world.chat().await;
    assert_eq!(answer.header("x-sluice-served-by"), Some("fallback"));
    assert_eq!(primary.stats().total.started, 1, "nobody asks it while it is paused");
    assert_eq!(counts(&world.target("primary").await.rejections), [("paused", 1)].into());
    world.until("the pause ends", |state| state.routes[0].targets[0].paused_for_ms == 0).await;
    assert_eq!(world.chat().await.header("x-sluice-served-by"), Some("primary"));
    assert_eq!(world.target("primary").await.breaker.calls, 1, "the 429 was not counted");
}

#[tokio::test]
async fn a_429_without_a_time_pauses_for_the_policys() {
    let primary = provider("default: {error: rateLimit}").await;
    let fallback = provider("{}").await;
    let world = World::openai(vec![target("primary", &primary, 0), target("fallback", &fallback, 1)]).await;
    world.chat().await;
    let paused = world.target("primary").await.paused_for_ms;
    assert!((4_000..=5_000).contains(&paused), "{paused}");
}

#[tokio::test]
async fn a_spend_cap_pauses_nobody_and_is_not_retried() {
    let primary = provider("default: {error: spendCap, retryAfter: 1}").await;
    let world = World::openai(vec![target("primary", &primary, 0)]).await;
    let answer = world.chat().await;
    assert_eq!(answer.status, 429);
    world.until_idle().await;
    let target = world.target("primary").await;
    assert_eq!((target.paused_for_ms, target.retries), (0, 0));
    assert_eq!(primary.stats().total.started, 1);
}

#[tokio::test]
async fn an_error_body_larger_than_any_buffer_goes_through_whole() {
    let body = "x".repeat(700_000);
    let primary = provider(&format!("default: {{status: 400, body: '{body}'}}")).await;
    let world = World::openai(vec![once(target("primary", &primary, 0))]).await;
    let answer = world.chat().await;
    assert_eq!((answer.status.as_u16(), answer.body.len(), answer.whole), (400, 700_000, true));
    world.until_idle().await;
}

#[tokio::test]
async fn what_an_earlier_target_said_is_kept_when_the_last_says_nothing() {
    let primary = provider("default: {status: 503, message: come back later}").await;
    let fallback = provider("connections: refuse").await;
    let mut first = target("primary", &primary, 0);
    first.rules.retries.rules.max_attempts = 2;
    let world = World::openai(vec![first, target("fallback", &fallback, 1)]).await;
    let answer = world.chat().await;
    assert_eq!(answer.status, 503);
    assert!(answer.text().contains("come back later"), "{}", answer.text());
}

#[tokio::test]
async fn a_named_target_is_asked_and_no_other() {
    let primary = provider("{}").await;
    let fallback = provider("default: {status: 503}").await;
    let world =
        World::openai(vec![target("primary", &primary, 0), once(target("fallback", &fallback, 1))]).await;
    let path = "/v1/chat/completions";
    let named = world.ask(path, &[("x-sluice-target", "fallback")], &chat(false)).await;
    assert_eq!(named.status, 503);
    assert_eq!(primary.stats().total.started, 0);
    let unknown = world.ask(path, &[("x-sluice-target", "elsewhere")], &chat(false)).await;
    assert_eq!(
        (unknown.status.as_u16(), unknown.json()["error"]["code"].as_str()),
        (404, Some("no_such_target"))
    );
}

/// Several targets fail, and one answer is given: the one that leaves the most hope.
#[tokio::test]
async fn the_most_hopeful_end_is_told() {
    const DOWN: &str = "default: {status: 503}";
    const EMPTY: &str = "default: {error: spendCap}";
    const HALF_AN_HOUR: &str = "default: {status: 429, retryAfter: 1800}";
    const WRONG: &str = "default: {status: 400}";
    const SILENT: &str = "default: {connection: reset}";
    for (first, second, status, retries) in [
        (DOWN, EMPTY, 503, true),
        (EMPTY, DOWN, 503, true),
        (DOWN, HALF_AN_HOUR, 503, true),
        (HALF_AN_HOUR, DOWN, 503, true),
        (SILENT, EMPTY, 502, true),
        (EMPTY, SILENT, 502, true),
        (EMPTY, HALF_AN_HOUR, 429, false),
        (EMPTY, EMPTY, 429, false),
        (DOWN, SILENT, 503, true),
        // The request itself is at fault, whoever else is down.
        (DOWN, WRONG, 400, true),
        (EMPTY, WRONG, 400, true),
    ] {
        let (one, two) = (provider(first).await, provider(second).await);
        let mut targets = vec![target("one", &one, 0), target("two", &two, 1)];
        for target in &mut targets {
            target.rules.retries.rules.max_attempts = 2;
        }
        let world = World::openai(targets).await;
        let answer = world.chat().await;
        let told = (answer.status.as_u16(), answer.header("x-should-retry") != Some("false"));
        assert_eq!(told, (status, retries), "{first}, then {second}: {}", answer.text());
    }
}

/// A target that was passed over and will be back soon is told of before an attempt that no wait mends.
#[tokio::test]
async fn a_target_that_comes_back_is_told_before_one_that_does_not() {
    let (one, two) = (provider("default: {status: 500}").await, provider("default: {error: spendCap}").await);
    let mut fragile = target("one", &one, 0);
    fragile.rules.breaker.rules.consecutive_failures = 1;
    fragile.rules.breaker.rules.cooldown.base = ms(30_000);
    fragile.rules.retries.rules.max_attempts = 2;
    let world = World::openai(vec![fragile, target("two", &two, 1)]).await;
    world.chat().await;
    world.until_idle().await;
    let answer = world.chat().await;
    assert_eq!(answer.header("x-sluice-refused"), Some("admit/circuit_open"), "{}", answer.text());
    assert!(answer.header("retry-after").is_some() && answer.header("x-should-retry").is_none());
    let sluice = &answer.json()["error"]["sluice"];
    assert_eq!(
        sluice["targets"],
        serde_json::json!([{ "name": "one", "why": "open" }, { "name": "two", "why": "spend-cap" }])
    );
    assert_eq!(sluice["upstream_attempt"], true);
}
