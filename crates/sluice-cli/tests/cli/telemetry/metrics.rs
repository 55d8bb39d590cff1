//! A real Prometheus scrapes a run, and its numbers are those that the providers counted.

use std::net::SocketAddr;

use sluice_provider::{Behaviour, Counts, Provider, Scenario};
use sluice_testkit::{Prometheus, RedisServer, prometheus};

use super::incident::{Callers, QUICK};
use crate::client::Client;
use crate::command::{Run, eventually};
use crate::manifests::{Manifests, route};

fn well() -> Behaviour {
    Behaviour { tokens: Some(5), input_tokens: Some(40), ..Behaviour::default() }
}

async fn until_settled(run: &Run) {
    for admin in &run.admins {
        eventually("everything settled", async || {
            let state = Client::new().get(*admin, "/state").await.json();
            let idle = state["exchanges"]["unsettled"] == 0
                && state["exchanges"]["inFlight"] == 0
                && state["store"]["settlesWaiting"] == 0;
            idle.then_some(())
        })
        .await;
    }
}

/// Where the control plane shows its metrics.
fn control_plane(run: &Run) -> SocketAddr {
    let lines = run.lines_with(&["/metrics of the control plane"]);
    let address = lines[0].split("http://").nth(1).unwrap().split([',', ' ', '/']).next().unwrap();
    address.parse().unwrap()
}

/// What Prometheus is asked, and what was counted: by the callers, by the two providers, by the printed lines.
fn books(calls: u64, first: &Counts, second: &Counts, transitions: u64) -> Vec<(String, u64)> {
    let of_primary = "name='default/chat/primary'";
    vec![
        // Each call was one exchange; each asked the primary, unless its breaker said no.
        ("sluice_exchanges_total".to_owned(), calls),
        (format!("sluice_attempts_total{{{of_primary}}}"), first.started),
        (format!("llm_circuit_breaker_rejections_total{{{of_primary}}}"), calls - first.started),
        (format!("sluice_failovers_total{{{of_primary}}}"), second.started),
        ("sluice_exchanges_failed_over_total".to_owned(), second.started),
        ("sluice_attempts_total{name='default/chat/fallback'}".to_owned(), second.started),
        (format!("sluice_verdicts_total{{{of_primary},verdict='failure'}}"), first.status(500)),
        (format!("sluice_verdicts_total{{{of_primary}}}"), first.started),
        // The GenAI conventions' histograms count the same calls and the same tokens.
        (format!("gen_ai_client_operation_duration_seconds_count{{{of_primary}}}"), first.started),
        (
            format!(
                "gen_ai_client_operation_duration_seconds_count{{{of_primary},error_type='server-error'}}"
            ),
            first.status(500),
        ),
        (
            "gen_ai_client_token_usage_sum{gen_ai_token_type='input'}".to_owned(),
            first.input_tokens + second.input_tokens,
        ),
        (
            "gen_ai_client_token_usage_sum{gen_ai_token_type='output'}".to_owned(),
            first.output_tokens + second.output_tokens,
        ),
        (
            "sluice_tokens_charged_total{basis='reported'}".to_owned(),
            first.input_tokens + second.input_tokens + first.output_tokens + second.output_tokens,
        ),
        ("sluice_tokens_charged_total{basis='estimated'}".to_owned(), 0),
        ("sluice_tokens_after_disconnect_total".to_owned(), 0),
        // Three agents, each transition once.
        ("llm_circuit_breaker_transitions_total".to_owned(), transitions),
        ("llm_circuit_breaker_transitions_total{from='closed',to='open'}".to_owned(), 1),
        ("llm_circuit_breaker_transitions_total{from='half-open',to='closed'}".to_owned(), 1),
        (format!("llm_circuit_breaker_state{{{of_primary}}}"), 0),
        // Nothing is left over.
        ("sluice_admissions_unsettled".to_owned(), 0),
        ("sluice_settlements_waiting".to_owned(), 0),
        ("sluice_settlements_total{outcome='dropped'}".to_owned(), 0),
        ("sluice_in_flight".to_owned(), 0),
        ("sluice_exchanges_in_flight".to_owned(), 0),
        ("sluice_store_reachable{home='redis'}".to_owned(), 3),
        ("sluice_refusals_total".to_owned(), 0),
        ("sluice_control_plane_agents{state='in-sync'}".to_owned(), 3),
        ("sluice_control_plane_rejected_routes_total".to_owned(), 0),
    ]
}

/// An outage from its beginning to its end, told by all three agents together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_books_balance() {
    let redis = RedisServer::start().unwrap();
    let (primary, fallback) = (
        Provider::start(Scenario::of(well())).await.unwrap(),
        Provider::start(Scenario::of(well())).await.unwrap(),
    );
    let manifests = Manifests::empty();
    let targets = [("primary", primary.addr()), ("fallback", fallback.addr())];
    manifests.write("chat.yaml", &route("chat", "gpt-4o", &targets));
    manifests.write("policy.yaml", QUICK);
    let run = Run::start(&manifests.path(), &["--agents", "3", "--redis", &redis.url()]).await;
    let control_plane = control_plane(&run);
    let ports: Vec<u16> = run.admins.iter().chain([&control_plane]).map(SocketAddr::port).collect();
    let prometheus = Prometheus::start(&ports).unwrap();
    prometheus.wait_for_sum("up", |up| up as usize == ports.len()).unwrap();

    let callers = Callers::start(&run.agents);
    eventually("some calls that went well", async || (primary.stats().total.completed >= 12).then_some(()))
        .await;
    primary.set_behaviour(Behaviour::status(500));
    run.line(&[" breaker ", "primary", "closed->open"]).await;
    prometheus
        .wait_for_sum("max(llm_circuit_breaker_state{name='default/chat/primary'})", |state| state >= 1.0)
        .unwrap();
    primary.set_behaviour(well());
    run.line(&[" breaker ", "primary", "half-open->closed"]).await;
    let calls = callers.stopped().await;
    until_settled(&run).await;

    let (first, second) = (primary.stats().total, fallback.stats().total);
    let transitions = run.lines_with(&[" breaker "]).len() as u64;
    assert!(first.status(500) >= 3 && second.completed > 0 && transitions >= 3, "{first:?} {second:?}");
    for (query, counted) in books(calls, &first, &second, transitions) {
        let found = prometheus.wait_for_sum(&query, |sum| sum.round() as u64 == counted);
        found.unwrap_or_else(|error| panic!("{query} is not {counted}: {error:#}"));
    }
    // Open for a cool-down of a second at least, as each of the agents saw it.
    let open = "min(llm_circuit_breaker_open_time_seconds_total{name='default/chat/primary'})";
    prometheus.wait_for_sum(open, |seconds| seconds > 0.5).unwrap();
    run.end().await;
}

#[tokio::test]
async fn promtool_finds_nothing_to_complain_of() {
    let manifests = Manifests::quickstart();
    let run = Run::start(&manifests.path(), &["--provider"]).await;
    let client = Client::new();
    for model in ["gpt-4o", "claude-sonnet"] {
        let answer = if model == "gpt-4o" {
            client.chat_stream(run.agents[0], model).await.rest().await
        } else {
            client.message_stream(run.agents[0], model).await.rest().await
        };
        assert!(!answer.is_empty());
    }
    assert_eq!(client.chat(run.agents[0], "unknown").await.status, 404);
    until_settled(&run).await;
    for address in [run.admins[0], control_plane(&run)] {
        let page = client.get(address, "/metrics").await;
        assert_eq!(page.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
        prometheus::check_metrics(&page.body).unwrap();
    }
    run.end().await;
}

/// 1,000 models, tenants and headers of requests make no series.
#[tokio::test]
async fn what_clients_send_makes_no_series() {
    let provider = Provider::start(Scenario::of(well())).await.unwrap();
    let manifests = Manifests::empty();
    let chat = route("chat", "gpt-4o", &[("primary", provider.addr())]);
    let chat = chat.replace(
        "models: [gpt-4o]",
        "models: [gpt-4o, 'gpt-*']\n  tenant: {type: Header, header: x-tenant, default: shared}",
    );
    manifests.write("chat.yaml", &chat);
    manifests.write("policy.yaml", QUICK);
    let run = Run::start(&manifests.path(), &[]).await;
    let (client, agent) = (Client::new(), run.agents[0]);
    let series = async || {
        until_settled(&run).await;
        let page = client.get(run.admins[0], "/metrics").await.body;
        let series = page.lines().filter(|line| !line.starts_with('#'));
        let mut series: Vec<String> =
            series.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect();
        series.sort();
        series
    };
    // One of each kind: a name of the route, one that fits its pattern, one of no route, a path that is none.
    let ask = async |number: usize| {
        let headers = [
            ("x-tenant", format!("tenant-{number}")),
            ("x-sluice-target", format!("target-{number}")),
            (&*format!("x-planted-{number}"), format!("value-{number}")),
        ];
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
        let known = [("x-tenant", headers[0].1)];
        client.chat_with(agent, "gpt-4o", &known).await;
        client.chat_with(agent, &format!("gpt-{number}"), &known).await;
        client.chat_with(agent, &format!("gpt-{number}"), &headers).await;
        client.chat_with(agent, &format!("model-{number}"), &headers).await;
        client.get(agent, &format!("/v1/path-{number}")).await;
    };
    ask(0).await;
    let before = series().await;
    for number in 1..=1_000 {
        ask(number).await;
    }
    assert_eq!(series().await, before);
    run.end().await;
}
