//! One line of evidence per exchange that was refused or failed.

use super::{Bench, Told};
use crate::harness::{chat, once, provider, quota, target};

/// What one exchange leaves in the log; the attempt's end is awaited.
async fn told(scenario: &str, tune: impl FnOnce(&mut sluice_core::policy::TargetPolicy)) -> Told {
    let primary = provider(scenario).await;
    let mut bench = Bench::start(&[]).await;
    let mut only = once(target("primary", &primary, 0));
    only.rules.revision = 7;
    tune(&mut only);
    let world = bench.openai(vec![only]).await;
    let headers = [("x-tenant", "acme"), ("x-sluice-timeout-ms", "5000")];
    world.ask("/v1/chat/completions", &headers, &chat(false)).await;
    bench.end().await
}

#[tokio::test]
async fn a_refusal_has_its_evidence() {
    let told = told("{}", |only| only.rules.quota = Some(quota(10))).await;
    let [line] = &told.records[..] else { panic!("{:#?}", told.records) };
    assert_eq!((&*line.name, &*line.severity), ("sluice.refusal", "INFO"));
    for (key, value) in [
        ("sluice.refusal.stage", "estimate"),
        ("sluice.refusal.reason", "never_fits"),
        ("http.response.status_code", "400"),
        ("sluice.tenant", "acme"),
        ("sluice.lane", "interactive"),
        ("sluice.route", "default/chat"),
        ("sluice.targets", "primary=never-fits"),
        ("sluice.policy.version", "test"),
        ("sluice.limit.version", "7"),
        ("sluice.in_flight", "0"),
        ("sluice.limit", "32"),
        ("sluice.deadline.received_ms", "5000"),
        ("sluice.retryable", "false"),
        ("sluice.attempted", "false"),
    ] {
        assert_eq!(line.tag(key), value, "{key}: {line:#?}");
    }
    let remaining: u64 = line.tag("sluice.deadline.remaining_ms").parse().unwrap();
    assert!((1..=5_000).contains(&remaining));
    let (_, operation, _) = told.exchange();
    assert_eq!((&line.trace, &line.span), (&operation.trace, &operation.id));
    assert_eq!(operation.tag("sluice.tenant"), "_other", "spans name the tenants of policy alone");
}

#[tokio::test]
async fn a_refusal_that_passes_says_when_to_come_back() {
    let primary = provider("{}").await;
    let mut bench = Bench::start(&[]).await;
    let mut only = once(target("primary", &primary, 0));
    only.rules.quota = Some(quota(60));
    let world = bench.openai(vec![only]).await;
    assert_eq!(world.chat().await.status, 200);
    world.until_idle().await;
    while world.chat().await.status == 200 {}
    let told = bench.end().await;
    let [line] = &told.records[..] else { panic!("{:#?}", told.records) };
    assert_eq!(line.tag("sluice.refusal.reason"), "tokens_exhausted");
    assert_eq!(line.tag("sluice.retryable"), "true");
    assert!(line.tag("sluice.retry_after_ms").parse::<u64>().unwrap() > 0);
}

#[tokio::test]
async fn a_failure_is_a_warning() {
    for (scenario, reason, status, attempted) in [
        ("default: {status: 500}", "server-error", "500", "primary=server-error"),
        ("default: {connection: reset}", "upstream_unreachable", "502", "primary=reset"),
        ("default: {error: rateLimit, retryAfter: '70'}", "throttled", "429", "primary=throttled"),
    ] {
        let told = told(scenario, |_| {}).await;
        let [line] = &told.records[..] else { panic!("{scenario}: {:#?}", told.records) };
        assert_eq!((&*line.name, &*line.severity), ("sluice.failure", "WARN"), "{scenario}");
        assert_eq!(line.tag("sluice.refusal.stage"), "attempt");
        assert_eq!(line.tag("sluice.refusal.reason"), reason, "{scenario}");
        assert_eq!(line.tag("http.response.status_code"), status, "{scenario}");
        assert_eq!(line.tag("sluice.targets"), attempted, "{scenario}");
        assert_eq!(line.tag("sluice.attempted"), "true");
    }
}

#[tokio::test]
async fn what_went_well_and_what_is_the_callers_fault_have_none() {
    for scenario in ["{}", "default: {status: 400}", "default: {status: 422}"] {
        assert!(told(scenario, |_| {}).await.records.is_empty(), "{scenario}");
    }
}
