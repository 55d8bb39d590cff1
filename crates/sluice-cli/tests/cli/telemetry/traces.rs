//! A real Jaeger receives an incident from three agents that share a Redis.

use std::collections::BTreeMap;

use sluice_telemetry::names::{attribute as a, event, value};
use sluice_testkit::{Jaeger, JaegerSpan, RedisServer};

use super::incident::{BROWNOUT, Callers, QUICK};
use crate::client::Client;
use crate::command::{Run, eventually, sluice};
use crate::manifests::Manifests;

/// (from, to, epoch) of each transition that a span tells, with the span.
type Told<'a> = Vec<((String, String, String), &'a JaegerSpan)>;

fn told(spans: &[JaegerSpan]) -> Told<'_> {
    let events = spans.iter().flat_map(|span| span.events.iter().map(move |event| (event, span)));
    let transitions =
        events.filter(|(told, _)| told.get("event").is_some_and(|name| name == event::BREAKER_TRANSITION));
    let text = |event: &BTreeMap<String, String>, key: &str| event.get(key).cloned().unwrap_or_default();
    transitions
        .map(|(event, span)| {
            let key =
                (text(event, a::BREAKER_FROM), text(event, a::BREAKER_TO), text(event, a::BREAKER_EPOCH));
            (key, span)
        })
        .collect()
}

fn made<'a>(told: &Told<'a>, from: &str, to: &str) -> Vec<&'a JaegerSpan> {
    told.iter()
        .filter(|((f, t, _), _)| (f.as_str(), t.as_str()) == (from, to))
        .map(|(_, span)| *span)
        .collect()
}

fn root<'a>(spans: &'a [JaegerSpan], of: &JaegerSpan) -> &'a JaegerSpan {
    spans.iter().find(|span| span.trace_id == of.trace_id && span.parent.is_none()).unwrap()
}

struct Incident {
    /// Of the agents.
    spans: Vec<JaegerSpan>,
    /// The transitions that the run printed, as (from, to).
    printed: Vec<(String, String)>,
    calls: u64,
    /// Calls of Redis without a reply in time. A transition in such a reply is told by a log record, not by a span.
    lost: usize,
}

/// Calls of Redis that failed, over all agents.
async fn lost_replies(client: &Client, run: &Run) -> usize {
    let mut lost = 0;
    for admin in &run.admins {
        let page = client.get(*admin, "/metrics").await.body;
        let of_errors = page.lines().filter(|line| line.starts_with("sluice_store_errors_total"));
        let counts = of_errors.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        lost += counts.sum::<f64>() as usize;
    }
    lost
}

/// Plays the incident with a sampler.
async fn incident(sampler: &[(&str, &str)]) -> Incident {
    let (redis, jaeger) = (RedisServer::start().unwrap(), Jaeger::start().unwrap());
    let manifests = Manifests::quickstart();
    manifests.replace("reliability.yaml", QUICK);
    let scenario = manifests.beside("brownout.yaml");
    std::fs::write(&scenario, BROWNOUT).unwrap();
    let mut command = sluice();
    command
        .env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", jaeger.grpc_endpoint())
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        .env("OTEL_BSP_SCHEDULE_DELAY", "200")
        .envs(sampler.iter().copied());
    let url = redis.url();
    let arguments =
        ["--provider", "--agents", "3", "--redis", &url, "--scenario", scenario.to_str().unwrap()];
    let run = Run::start_by(command, &manifests.path(), &arguments).await;
    // The scenario's load goes to the first agent; the others are called here.
    let callers = Callers::start(&run.agents[1..]);
    run.line(&[" breaker ", "chat/primary", "closed->open"]).await;
    // Whoever names a target that is open is refused, by every agent.
    let client = Client::new();
    for agent in &run.agents {
        eventually("a refusal by the breaker", async || {
            let answer = client.chat_with(*agent, "gpt-4o", &[("x-sluice-target", "primary")]).await;
            answer.body.contains("circuit_open").then_some(())
        })
        .await;
    }
    run.line(&[" breaker ", "chat/primary", "half-open->closed"]).await;
    let calls = callers.stopped().await;
    let printed = run.lines_with(&[" breaker ", "chat/primary"]);
    let printed: Vec<(String, String)> = printed
        .iter()
        .map(|line| {
            let arrow = line.split_whitespace().find(|word| word.contains("->")).unwrap();
            let (from, to) = arrow.split_once("->").unwrap();
            (from.to_owned(), to.to_owned())
        })
        .collect();
    let lost = lost_replies(&client, &run).await;
    let last = run.end().await;
    // The exporters sent everything before the run ended.
    let spans = jaeger
        .wait_for_spans("sluice-agent", "the transition that closed the breaker", |spans| {
            let told = told(spans);
            told.len() + lost >= printed.len() && !made(&told, "half-open", "closed").is_empty()
        })
        .unwrap();
    assert!(last.last().unwrap().contains("clients-failed=0"), "{last:?}");
    Incident { spans, printed, calls, lost }
}

fn assert_the_incident_is_told(incident: &Incident) {
    let (spans, lost) = (&incident.spans, incident.lost);
    let told = told(spans);
    // Each transition once over three agents.
    let mut epochs: Vec<_> = told.iter().map(|(key, _)| key.clone()).collect();
    epochs.sort();
    epochs.dedup();
    assert_eq!(epochs.len(), told.len(), "one was told twice: {told:#?}");
    // What the run had printed by then; more may have come before its end.
    let mut arrived: Vec<_> = told.iter().map(|((from, to, _), _)| (from.clone(), to.clone())).collect();
    let mut missing = incident.printed.clone();
    missing.retain(|transition| match arrived.iter().position(|one| one == transition) {
        Some(place) => {
            arrived.swap_remove(place);
            false
        }
        None => true,
    });
    assert!(missing.len() <= lost, "{missing:?} were not told, {lost} replies were lost: {told:#?}");

    // The attempt that caused it: a client span inside an exchange. (A busy machine's slow calls may open it again once
    // it has closed.)
    let opened = made(&told, "closed", "open");
    assert!(!opened.is_empty());
    for opened in &opened {
        let (kind, route, target) = (opened.tag("span.kind"), opened.tag(a::ROUTE), opened.tag(a::TARGET));
        assert_eq!((kind, route, target), ("client", "default/chat", "primary"), "{opened:#?}");
        let server = root(spans, opened);
        assert_eq!(server.tag("span.kind"), "server");
        assert_ne!(server.span_id, opened.span_id);
    }

    // Exchanges that the breaker refused name what opened it, on every agent.
    let refused: Vec<_> =
        spans.iter().filter(|span| span.tag(a::ERROR_TYPE) == value::CIRCUIT_OPEN).collect();
    let reopened = made(&told, "half-open", "open");
    let openings = opened.iter().chain(&reopened).map(|span| (span.trace_id.clone(), span.span_id.clone()));
    let openings: Vec<_> = openings.collect();
    let linked = refused.iter().filter(|span| span.links.iter().any(|link| openings.contains(link)));
    let mut agents: Vec<_> = linked.map(|span| &span.resource["service.instance.id"]).collect();
    agents.sort();
    agents.dedup();
    assert_eq!(agents, ["agent-1", "agent-2", "agent-3"], "{refused:#?}");

    // Probes are marked, and it is they that half-open and close.
    for (from, to) in [("open", "half-open"), ("half-open", "closed")] {
        let spans = made(&told, from, to);
        assert!(!spans.is_empty(), "{from} → {to}");
        assert!(spans.iter().all(|span| span.tag(a::PROBE) == "true"), "{spans:#?}");
    }
    let closed = made(&told, "half-open", "closed").len();
    let (least, most) = (opened.len().saturating_sub(1 + lost), opened.len() + lost);
    assert!((least..=most).contains(&closed), "{closed} of {}", opened.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_incident_is_told_by_its_traces() {
    let incident = incident(&[]).await;
    assert_the_incident_is_told(&incident);
    let Incident { spans, calls, .. } = incident;
    let servers = spans.iter().filter(|span| span.parent.is_none()).count() as u64;
    assert!(servers >= calls, "{servers} of {calls} exchanges");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_one_percent_nothing_of_the_incident_is_missing() {
    let sampler = [("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "0.01")];
    let incident = incident(&sampler).await;
    assert_the_incident_is_told(&incident);
    let Incident { spans, calls, .. } = incident;
    let roots = spans.iter().filter(|span| span.parent.is_none());
    let sampled = roots.filter(|span| span.tag(a::SAMPLING_KEPT_FOR).is_empty()).count() as u64;
    assert!(sampled * 5 < calls, "{sampled} of {calls} exchanges came by the ratio");
}
