//! A breaker's life in traces: who opened it, who was refused by it, who closed it.

use std::collections::BTreeSet;
use std::time::Duration;

use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use sluice_core::policy::{TargetPolicy, WireFormat};
use sluice_provider::{Provider, Scenario};
use sluice_state::RedisConfig;
use sluice_state::store::Shared;
use sluice_testkit::{CountingProxy, ProxyMode, RedisServer};

use super::{Bench, NOTHING, RATIO, Told};
use crate::fleet::shared;
use crate::harness::{World, ms, once, provider, route, target};

const TRANSITION: &str = "sluice.breaker.transition";
/// A breaker's life of one outage.
const LIFE: [(&str, &str); 3] = [("closed", "open"), ("open", "half-open"), ("half-open", "closed")];

fn quick(mut target: TargetPolicy) -> TargetPolicy {
    let breaker = &mut target.rules.breaker.rules;
    breaker.cooldown.base = ms(300);
    breaker.cooldown.jitter_percent = 0;
    breaker.ramp.duration = Duration::ZERO;
    once(target)
}

async fn until(world: &World, state: &str) {
    world.until(state, |seen| seen.routes[0].targets[0].breaker.state == state).await;
}

/// Opens the breaker, has each agent refused twice, and closes it again by probes of all.
async fn outage(worlds: &[World], primary: &Provider) {
    while worlds[0].target("primary").await.breaker.state == "closed" {
        worlds[0].chat().await;
        worlds[0].until_idle().await;
    }
    for world in worlds {
        until(world, "open").await;
        for _ in 0..2 {
            assert_eq!(world.chat().await.status, 503);
        }
    }
    primary.set(Scenario::from_yaml("{}").unwrap());
    for world in worlds {
        until(world, "awaiting-probe").await;
    }
    let closed = async {
        loop {
            for world in worlds {
                world.chat().await;
                world.until_idle().await;
                if world.target("primary").await.breaker.state == "closed" {
                    return;
                }
            }
        }
    };
    tokio::time::timeout(crate::harness::PATIENCE, closed).await.unwrap();
}

/// Of `agents` agents, and whatever else happened.
fn assert_the_life_is_told(told: &Told, agents: usize) {
    let transitions = told.transitions();
    let life: Vec<_> = transitions.iter().map(|(from, to, _)| (*from, *to)).collect();
    assert_eq!(life.iter().copied().collect::<BTreeSet<_>>(), LIFE.into());
    assert_eq!(life.len(), 3, "each once: {life:?}");
    let cause = |from: &str| transitions.iter().find(|(of, ..)| *of == from).unwrap().2;
    // On the attempt that caused it.
    let opener = cause("closed");
    assert_eq!((opener.kind, opener.tag("error.type")), (SpanKind::Client, "server-error"));
    let event = opener.events(TRANSITION)[0];
    assert_eq!(event["sluice.breaker.reason"], "failure-rate");
    assert_eq!((&*event["sluice.breaker.calls"], &*event["sluice.breaker.failures"]), ("10", "10"));
    assert!(event["sluice.breaker.epoch"].parse::<u64>().unwrap() > 0);
    for from in ["open", "half-open"] {
        let probe = cause(from);
        assert_eq!((probe.kind, probe.tag("sluice.probe")), (SpanKind::Client, "true"));
        assert_eq!(probe.tag("sluice.breaker.state"), "half-open");
    }
    // Exchanges that were refused name it.
    let refused: Vec<_> = told
        .of_kind(SpanKind::Internal)
        .into_iter()
        .filter(|span| span.tag("error.type") == "circuit_open")
        .collect();
    assert!(refused.len() >= 2 * agents, "{refused:#?}");
    for span in &refused {
        assert_eq!(span.links, [(opener.trace.clone(), opener.id.clone())], "{span:#?}");
        assert!(span.failed);
        assert_eq!(span.tag("sluice.refusal.stage"), "admit");
        let server = told.spans.iter().find(|server| server.id == span.parent).unwrap();
        assert_eq!(
            (server.tag("error.type"), server.tag("http.response.status_code")),
            ("circuit_open", "503")
        );
    }
    // The same as log records, once each, in the attempt's scope.
    let records = told.records(TRANSITION);
    assert_eq!(records.len(), 3, "{records:#?}");
    for (from, to, span) in &transitions {
        let of = |record: &&&super::Record| record.tag("sluice.breaker.from") == *from;
        let record = records.iter().find(of).unwrap();
        assert_eq!(record.tag("sluice.breaker.to"), *to);
        assert_eq!((&record.trace, &record.span), (&span.trace, &span.id), "{record:#?}");
        assert_eq!((record.tag("sluice.route"), record.tag("sluice.target")), ("default/chat", "primary"));
    }
}

#[tokio::test]
async fn transitions_are_on_the_attempts_that_caused_them() {
    let primary = provider("default: {status: 500}").await;
    let mut bench = Bench::start(&[]).await;
    bench.openai(vec![quick(target("primary", &primary, 0))]).await;
    outage(&bench.worlds, &primary).await;
    let told = bench.end().await;
    assert_the_life_is_told(&told, 1);
    // 10 failures, 2 refusals, 3 probes.
    assert_eq!(told.exchanges().len(), 15);
    assert_eq!(told.of_kind(SpanKind::Client).len(), 13, "a refusal has no attempt");
    let probes: Vec<_> = told.spans.iter().filter(|span| span.tag("sluice.probe") == "true").collect();
    assert_eq!(probes.len(), 3);
}

#[tokio::test]
async fn at_a_small_ratio_all_that_matters_arrives() {
    let primary = provider("default: {status: 500}").await;
    let mut bench = Bench::start(&[RATIO, ("OTEL_TRACES_SAMPLER_ARG", "0.01")]).await;
    bench.openai(vec![quick(target("primary", &primary, 0))]).await;
    outage(&bench.worlds, &primary).await;
    let told = bench.end().await;
    assert_the_life_is_told(&told, 1);
    assert_eq!(told.exchanges().len(), 15, "each of them failed, was refused, or probed");
}

#[tokio::test]
async fn at_a_ratio_of_nothing_what_goes_well_is_left_out() {
    let primary = provider("{}").await;
    let mut bench = Bench::start(&NOTHING).await;
    let world = bench.openai(vec![quick(target("primary", &primary, 0))]).await;
    for _ in 0..20 {
        assert_eq!(world.chat().await.status, 200);
    }
    // A caller's own mistakes are no incident either.
    for path in ["/v1/chat/completions", "/v1/unknown"] {
        let status = world.ask(path, &[], &serde_json::json!({ "model": 7 })).await.status;
        assert!(status.is_client_error(), "{status}");
    }
    let told = bench.end().await;
    assert!(told.spans.is_empty(), "{:#?}", told.spans);
}

#[tokio::test]
async fn over_three_agents_each_transition_is_told_once() {
    let redis = RedisServer::start().unwrap();
    let primary = provider("default: {status: 500}").await;
    let mut bench = Bench::start(&[RATIO, ("OTEL_TRACES_SAMPLER_ARG", "0.01")]).await;
    for number in 1..=3 {
        let routes = vec![route(WireFormat::OpenAi, vec![quick(target("primary", &primary, 0))])];
        let world = bench
            .agent(routes, shared(&redis), |config| {
                config.identity.name = format!("agent-{number}");
                config.seed = None;
            })
            .await;
        world.until("connected", |state| state.store.reachable).await;
    }
    outage(&bench.worlds, &primary).await;
    // What its publication would tell a second time is told by then.
    tokio::time::sleep(ms(2_200)).await;
    let told = bench.end().await;
    assert_the_life_is_told(&told, 3);
}

/// The reply to the admission that half-opens the breaker comes too late for its exchange, which goes on with the
/// agent's own breaker. The publication is all that is left to tell of the shared one.
#[tokio::test]
async fn a_transition_whose_reply_is_lost_is_told_all_the_same() {
    let redis = RedisServer::start().unwrap();
    let proxy = CountingProxy::start(redis.port()).await.unwrap();
    let primary = provider("default: {status: 500}").await;
    let mut bench = Bench::start(&[("OTEL_BLRP_SCHEDULE_DELAY", "20")]).await;
    let routes = vec![route(WireFormat::OpenAi, vec![quick(target("primary", &primary, 0))])];
    let through = Shared::Redis(RedisConfig { url: proxy.url(), ..RedisConfig::default() });
    let world = bench.agent(routes, through, |_| {}).await;
    world.until("connected", |state| state.store.reachable).await;
    while world.target("primary").await.breaker.state == "closed" {
        world.chat().await;
        world.until_idle().await;
    }
    until(world, "awaiting-probe").await;
    proxy.set_mode(ProxyMode::Delay(ms(100)));
    world.chat().await;
    proxy.set_mode(ProxyMode::Pass);
    let half_open = |bench: &Bench| -> Vec<bool> {
        let records = bench.records();
        let to = records.iter().filter(|record| record.tag("sluice.breaker.to") == "half-open");
        to.map(|record| record.trace.is_empty()).collect()
    };
    let told = async {
        while !half_open(&bench).contains(&true) {
            tokio::time::sleep(ms(10)).await;
        }
    };
    tokio::time::timeout(crate::harness::PATIENCE, told).await.unwrap();
    let mut both = half_open(&bench);
    both.sort_unstable();
    assert_eq!(both, [false, true], "the own breaker's on its attempt, the shared one's without");
    bench.end().await;
}

#[tokio::test]
async fn failover_past_an_open_breaker_names_who_opened_it() {
    let (primary, fallback) = (provider("default: {status: 500}").await, provider("{}").await);
    let mut bench = Bench::start(&NOTHING).await;
    let mut first = quick(target("primary", &primary, 0));
    first.rules.breaker.rules.cooldown.base = Duration::from_mins(1);
    first.rules.retries.rules.max_attempts = 2;
    let world = bench.openai(vec![first, target("fallback", &fallback, 1)]).await;
    while world.target("primary").await.breaker.state == "closed" {
        assert_eq!(world.chat().await.status, 200);
        world.until_idle().await;
    }
    assert_eq!(world.chat().await.status, 200);
    let told = bench.end().await;
    let (_, _, opener) = told.transitions()[0];
    let exchanges = told.exchanges();
    let passing: Vec<_> = exchanges.iter().filter(|(_, operation, _)| !operation.links.is_empty()).collect();
    assert_eq!(passing.len(), 1);
    let (server, operation, attempts) = passing[0];
    assert_eq!(operation.links, [(opener.trace.clone(), opener.id.clone())]);
    assert!(!server.failed && !operation.failed && attempts.len() == 1);
    assert_eq!(server.tag("sluice.sampling.kept_for"), "failover");
    assert_eq!(operation.events("sluice.target.passed_over")[0]["sluice.passed_over_for"], "open");
}
