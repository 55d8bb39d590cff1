//! Whose key reaches a provider.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_core::policy::{Credential, SecretKey, SecretValue, WireFormat};
use sluice_proto::apply::{PolicySet, Secret};
use sluice_provider::fingerprint;
use sluice_state::EmbeddedHome;
use sluice_state::store::Shared;

use crate::harness::{World, chat, counts, message, policy_set, provider, route, target};

const THEIRS: [(&str, &str); 4] = [
    ("authorization", "Bearer theirs"),
    ("x-api-key", "theirs"),
    ("api-key", "theirs"),
    ("cookie", "theirs"),
];

fn key() -> SecretKey {
    SecretKey { name: "provider".into(), key: "token".into() }
}

fn with_secret(mut set: PolicySet, value: &str) -> PolicySet {
    let secret =
        Secret { uid: "u".into(), resource_version: "1".into(), value: SecretValue::new(value.into()) };
    set.secrets = Arc::new(BTreeMap::from([(key(), secret)]));
    set
}

fn home() -> Shared {
    Shared::Embedded(Arc::new(EmbeddedHome::new().unwrap()))
}

#[tokio::test]
async fn ours_replaces_every_credential_of_the_caller() {
    let primary = provider("{}").await;
    let mut only = target("primary", &primary, 0);
    only.credential = Credential::Secret(key());
    let set = with_secret(policy_set(vec![route(WireFormat::OpenAi, vec![only])]), "ours\n");
    let world = World::start(set, home(), |_| {}).await;
    assert_eq!(world.ask("/v1/chat/completions", &THEIRS, &chat(false)).await.status, 200);
    let call = &primary.calls()[0];
    assert!(call.header("authorization").unwrap() == fingerprint("Bearer ours"), "{:?}", call.headers);
    for name in ["x-api-key", "api-key", "cookie"] {
        assert_eq!(call.header(name), None);
    }
}

#[tokio::test]
async fn anthropics_key_has_its_own_header() {
    let primary = provider("{}").await;
    let mut only = target("primary", &primary, 0);
    only.provider = sluice_core::policy::Provider::Anthropic;
    only.credential = Credential::Secret(key());
    let set = with_secret(policy_set(vec![route(WireFormat::Anthropic, vec![only])]), "ours");
    let world = World::start(set, home(), |_| {}).await;
    let headers =
        [("authorization", "Bearer theirs"), ("anthropic-version", "2023-06-01"), ("anthropic-beta", "x")];
    assert_eq!(world.ask("/v1/messages", &headers, &message(false)).await.status, 200);
    let call = &primary.calls()[0];
    assert_eq!(call.header("authorization"), None);
    assert!(call.header("x-api-key").is_some());
    assert_eq!(
        (call.header("anthropic-version"), call.header("anthropic-beta")),
        (Some("2023-06-01"), Some("x"))
    );
}

#[tokio::test]
async fn theirs_goes_through_only_where_the_route_says_so() {
    for (credential, forwarded) in [(Credential::Passthrough, true), (Credential::None, false)] {
        let primary = provider("{}").await;
        let mut only = target("primary", &primary, 0);
        only.credential = credential;
        let world = World::openai(vec![only]).await;
        world.ask("/v1/chat/completions", &THEIRS, &chat(false)).await;
        for (name, _) in THEIRS {
            assert_eq!(primary.calls()[0].header(name).is_some(), forwarded, "{name}");
        }
    }
}

#[tokio::test]
async fn a_target_without_its_secret_is_passed_over_and_a_new_secret_is_used_at_once() {
    let (primary, fallback) = (provider("{}").await, provider("{}").await);
    let mut first = target("primary", &primary, 0);
    first.credential = Credential::Secret(key());
    let with_fallback =
        policy_set(vec![route(WireFormat::OpenAi, vec![first.clone(), target("fallback", &fallback, 1)])]);
    let world = World::start(with_fallback.clone(), home(), |_| {}).await;
    assert_eq!(world.chat().await.header("x-sluice-served-by"), Some("fallback"));
    assert_eq!(world.state().await.exchanges.failed_over, 1);
    world.agent.use_policies(&with_secret(with_fallback, "ours"));
    assert_eq!(world.chat().await.header("x-sluice-served-by"), Some("primary"));
    world.use_routes(vec![route(WireFormat::OpenAi, vec![first])]);
    let answer = world.chat().await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["error"]["code"].as_str()),
        (503, Some("no_credential"))
    );
    assert_eq!(answer.header("x-should-retry"), Some("false"));
}

#[tokio::test]
async fn our_credential_refused_fails_over_and_is_told() {
    for (scenario, reason) in [
        ("default: {status: 401}", "refused"),
        ("default: {status: 403}", "refused"),
        ("default: {error: spendCap}", "spend-cap"),
    ] {
        let (refusing, fallback) = (provider(scenario).await, provider("{}").await);
        let mut first = target("primary", &refusing, 0);
        first.credential = Credential::Secret(key());
        let routes = vec![route(WireFormat::OpenAi, vec![first, target("fallback", &fallback, 1)])];
        let world = World::start(with_secret(policy_set(routes), "ours"), home(), |_| {}).await;
        let answer = world.chat().await;
        assert_eq!((answer.status.as_u16(), answer.header("x-sluice-served-by")), (200, Some("fallback")));
        world.until_idle().await;
        let primary = world.target("primary").await;
        assert_eq!(counts(&primary.verdicts), [("ignored", 1)].into());
        assert_eq!((primary.breaker.calls, primary.retries, primary.paused_for_ms), (0, 0, 0));
        let metric =
            format!("sluice_credential_faults_total{{name=\"default/chat/primary\",reason=\"{reason}\"}}");
        assert_eq!(world.metric(&metric), 1, "{reason}");
        assert_eq!(primary.credential, Some(reason));
        assert_eq!(world.target("fallback").await.credential, None);
        // It is said for as long as it is so.
        refusing.set(sluice_provider::Scenario::from_yaml("{}").unwrap());
        world.chat().await;
        assert_eq!(world.target("primary").await.credential, None);
    }
}

#[tokio::test]
async fn a_target_without_a_credential_that_is_refused_is_failed_over() {
    let (refusing, well) =
        (provider("default: {error: authentication}").await, provider("default: {tokens: 2}").await);
    let world = World::openai(vec![target("primary", &refusing, 0), target("fallback", &well, 1)]).await;
    let answer = world.chat().await;
    assert_eq!(answer.status, 200, "the caller's key was taken away: it cannot mend this: {}", answer.text());
    assert_eq!(answer.header("x-sluice-served-by"), Some("fallback"));
}

/// The caller's key was taken away, so no SDK may say that it is wrong.
#[tokio::test]
async fn our_credential_refused_everywhere_is_not_the_callers_fault() {
    for (format, path, body, kind) in [
        (WireFormat::OpenAi, "/v1/chat/completions", chat(false), "server_error"),
        (WireFormat::OpenAi, "/v1/chat/completions", chat(true), "server_error"),
        (WireFormat::Anthropic, "/v1/messages", message(true), "overloaded_error"),
    ] {
        for status in [401, 403] {
            let primary = provider(&format!("default: {{status: {status}}}")).await;
            let mut only = target("primary", &primary, 0);
            only.credential = Credential::Secret(key());
            let set = with_secret(policy_set(vec![route(format, vec![only])]), "canary-ours");
            let world = World::start(set, home(), |_| {}).await;
            let answer = world.ask(path, &THEIRS, &body).await;
            assert_eq!(answer.status, 503, "{status}");
            assert_eq!(answer.header("x-sluice-refused"), Some("attempt/credential_refused"));
            assert_eq!(
                (answer.header("x-should-retry"), answer.header("retry-after")),
                (Some("false"), None)
            );
            let error = &answer.json()["error"];
            assert_eq!(error["type"], kind);
            let message = error["message"].as_str().unwrap();
            for part in ["`primary`", &status.to_string(), "Secret `provider`", "`token`"] {
                assert!(message.contains(part), "{part}: {message}");
            }
            assert_eq!(error["sluice"]["upstream_attempt"], true);
            assert_eq!(error["sluice"]["targets"][0]["why"], "credential");
            assert!(!answer.text().contains("canary"), "no secret in an error");
            assert_eq!(primary.stats().total.started, 1);
        }
    }
}

#[tokio::test]
async fn the_callers_own_credential_refused_is_the_providers_word() {
    for status in [401, 403] {
        let primary = provider(&format!("default: {{status: {status}}}")).await;
        let mut only = target("primary", &primary, 0);
        only.credential = Credential::Passthrough;
        let world = World::openai(vec![only]).await;
        let answer = world.ask("/v1/chat/completions", &THEIRS, &chat(false)).await;
        assert_eq!((answer.status.as_u16(), answer.header("x-sluice-refused")), (status, None));
    }
    // Without any credential a 401 wants one of the target, while a 403 speaks of the request.
    for (status, told, refused) in [(401, 503, Some("attempt/credential_refused")), (403, 403, None)] {
        let primary = provider(&format!("default: {{status: {status}}}")).await;
        let world = World::openai(vec![target("primary", &primary, 0)]).await;
        let answer = world.chat().await;
        assert_eq!((answer.status.as_u16(), answer.header("x-sluice-refused")), (told, refused));
    }
}
