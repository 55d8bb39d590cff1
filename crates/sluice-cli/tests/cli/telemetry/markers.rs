//! What must not be in any signal: prompts, answers, keys, values of headers.

use std::process::Stdio;

use sluice_provider::{Behaviour, Provider, Scenario};
use sluice_testkit::{Collector, Mood};

use crate::client::Client;

use super::incident::QUICK;
use crate::command::{Run, eventually, sluice};
use crate::manifests::{Manifests, route};

const PROMPT: &str = "planted-in-the-prompt";
const ANSWER: &str = "planted-in-the-answer";
const ERROR: &str = "planted-in-the-providers-error";
const HEADER: &str = "planted-in-a-header";
const BAGGAGE: &str = "planted-in-the-baggage";
const CLIENTS_KEY: &str = "sk-planted-by-the-client";
const OUR_KEY: &str = "sk-planted-in-the-secret";
const QUERY: &str = "planted-in-the-query";
const ALL: [&str; 8] = [PROMPT, ANSWER, ERROR, HEADER, BAGGAGE, CLIENTS_KEY, OUR_KEY, QUERY];

fn assert_clean(signal: &str, bytes: &[u8]) {
    for marker in ALL {
        let at = bytes.windows(marker.len()).position(|window| window == marker.as_bytes());
        let around = at.map(|at| {
            let (from, to) = (at.saturating_sub(200), (at + 200).min(bytes.len()));
            String::from_utf8_lossy(&bytes[from..to]).into_owned()
        });
        assert!(around.is_none(), "{signal} holds {marker}: {}", around.unwrap_or_default());
    }
}

async fn ask(client: &Client, agent: std::net::SocketAddr, target: &str) {
    let authorization = format!("Bearer {CLIENTS_KEY}");
    let headers = [
        ("authorization", &*authorization),
        ("x-private", HEADER),
        ("cookie", HEADER),
        ("baggage", BAGGAGE),
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("x-sluice-target", target),
    ];
    let body = serde_json::json!({
        "model": "gpt-4o", "max_tokens": 30, "stream": target != "fallback", "user": PROMPT,
        "messages": [{"role": "system", "content": PROMPT}, {"role": "user", "content": PROMPT}],
    });
    client.post(agent, &format!("/v1/chat/completions?q={QUERY}"), &headers, &body).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_signal_holds_a_prompt_an_answer_a_key_or_a_header() {
    let collector = Collector::start(Mood::Takes).await.unwrap();
    let answers = Behaviour { content: Some(ANSWER.to_owned()), ..Behaviour::default() };
    let fails = Behaviour { message: Some(format!("{ERROR} {OUR_KEY}")), ..Behaviour::status(500) };
    let refuses = Behaviour { message: Some(format!("{ERROR} {OUR_KEY}")), ..Behaviour::status(401) };
    let primary = Provider::start(Scenario::of(answers.clone())).await.unwrap();
    let fallback = Provider::start(Scenario::of(answers.clone())).await.unwrap();
    let manifests = Manifests::empty();
    let targets = [("primary", primary.addr()), ("fallback", fallback.addr())];
    let keyed = "{type: SecretRef, secretRef: {name: keys, key: provider}}";
    let chat = route("chat", "gpt-4o", &targets).replace("{type: None}", keyed);
    manifests.write("chat.yaml", &chat.replace("  targets:", "  targetHeader: Allow\n  targets:"));
    manifests.write("policy.yaml", QUICK);
    manifests.write(
        "secret.yaml",
        &format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: keys}}\nstringData: {{provider: {OUR_KEY}}}\n"
        ),
    );
    let log = manifests.beside("run.log");
    let mut command = sluice();
    command
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint)
        .env("OTEL_BSP_SCHEDULE_DELAY", "100")
        .env("OTEL_METRIC_EXPORT_INTERVAL", "300")
        // All that Sluice itself has to say.
        .env("RUST_LOG", "info,sluice=trace")
        .stderr(Stdio::piped());
    let arguments = ["--log", log.to_str().unwrap(), "--log-format", "json"];
    let run = Run::start_by(command, &manifests.path(), &arguments).await;
    let (client, agent) = (Client::new(), run.agents[0]);

    // Served, failed, refused by the provider, refused by the breaker, to nobody.
    for target in ["primary", "fallback"] {
        ask(&client, agent, target).await;
    }
    primary.set_behaviour(refuses);
    ask(&client, agent, "primary").await;
    primary.set_behaviour(fails);
    eventually("the breaker to open", async || {
        ask(&client, agent, "primary").await;
        (!run.lines_with(&[" breaker ", "closed->open"]).is_empty()).then_some(())
    })
    .await;
    ask(&client, agent, "primary").await;
    primary.set_behaviour(answers);
    eventually("the breaker to close", async || {
        ask(&client, agent, "primary").await;
        (!run.lines_with(&[" breaker ", "half-open->closed"]).is_empty()).then_some(())
    })
    .await;
    ask(&client, agent, PROMPT).await;
    for page in ["/metrics", "/state", "/readyz"] {
        assert_clean(page, client.get(run.admins[0], page).await.body.as_bytes());
    }
    assert_clean("standard output", run.end().await.join("\n").as_bytes());

    let logged = std::fs::read(&log).unwrap();
    assert!(String::from_utf8_lossy(&logged).contains("breaker transition"), "the log is there");
    assert_clean("the log", &logged);
    for signal in ["traces", "metrics", "logs"] {
        let received = collector.received(signal);
        assert!(!received.is_empty(), "no {signal} came");
        for one in &received {
            assert_clean(signal, &one.body);
        }
    }
    // The markers are what they are thought to be: the provider saw the prompt and the key.
    assert!(primary.stats().total.started > 3 && fallback.stats().total.started > 0);
}
