//! How telemetry is set up, as its users meet it.

use sluice_provider::{Provider, Scenario};
use sluice_testkit::{Collector, Mood};

use crate::client::Client;

use crate::command::{Run, output, sluice};
use crate::manifests::{Manifests, route};

#[tokio::test]
async fn a_variable_that_cannot_be_used_ends_the_start_and_names_the_fix() {
    let manifests = Manifests::quickstart();
    for (variable, value, fix) in [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "set it to http/protobuf or grpc"),
        ("OTEL_TRACES_SAMPLER", "sometimes", "always_on"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "from 1 to 1000000"),
    ] {
        let mut command = sluice();
        command.arg("run").arg("-f").arg(manifests.path()).args(["--for", "1s"]);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318").env(variable, value);
        command.env("OTEL_TRACES_SAMPLER_ARG", "1");
        let output = output(&mut command).await;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success());
        assert!(told.contains(variable) && told.contains(value) && told.contains(fix), "{told}");
    }
}

/// One process, one service per agent and one for the control plane, in all three signals.
#[tokio::test]
async fn every_agent_and_the_control_plane_speak_for_themselves() {
    let collector = Collector::start(Mood::Takes).await.unwrap();
    let provider = Provider::start(Scenario::default()).await.unwrap();
    let manifests = Manifests::empty();
    manifests.write("chat.yaml", &route("chat", "gpt-4o", &[("primary", provider.addr())]));
    let mut command = sluice();
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint);
    let run = Run::start_by(command, &manifests.path(), &["--agents", "2"]).await;
    for agent in &run.agents {
        assert_eq!(Client::new().chat(*agent, "gpt-4o").await.status, 200);
    }
    // Nothing was due before the end: what came, came at the shutdown.
    run.end().await;
    let holds = |body: &[u8], text: &str| body.windows(text.len()).any(|window| window == text.as_bytes());
    for (signal, instance, told) in [
        ("traces", "control-plane", "compile"),
        ("traces", "control-plane", "push"),
        ("traces", "agent-1", "POST"),
        ("traces", "agent-2", "POST"),
        ("metrics", "control-plane", "sluice.control_plane.pushes"),
        ("metrics", "agent-1", "gen_ai.client.token.usage"),
        ("metrics", "agent-2", "llm.circuit_breaker.state"),
    ] {
        let received = collector.received(signal);
        let came = received.iter().any(|one| holds(&one.body, instance) && holds(&one.body, told));
        assert!(came, "{told} of {instance} in {signal}");
    }
}

#[tokio::test]
async fn a_collector_that_hangs_holds_up_neither_calls_nor_the_end() {
    let collector = Collector::start(Mood::Hangs).await.unwrap();
    let manifests = Manifests::quickstart();
    let mut command = sluice();
    command
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint)
        .env("OTEL_BSP_SCHEDULE_DELAY", "10")
        .env("OTEL_BSP_MAX_QUEUE_SIZE", "8")
        .env("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8");
    let run = Run::start_by(command, &manifests.path(), &["--provider"]).await;
    let client = Client::new();
    for _ in 0..30 {
        assert_eq!(client.chat(run.agents[0], "gpt-4o").await.status, 200);
    }
    let page = client.get(run.admins[0], "/metrics").await.body;
    let dropped = "sluice_telemetry_dropped_total{signal=\"traces\",reason=\"queue_full\"}";
    let dropped = page.lines().find_map(|line| line.strip_prefix(dropped)).unwrap();
    assert_ne!(dropped, " 0", "what did not fit is counted");
    run.end().await;
}
