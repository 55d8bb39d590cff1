//! What a run serves, and how it ends.

use http::StatusCode;
use sluice_provider::scenario::Stall;
use sluice_provider::{Behaviour, Provider, Scenario};

use crate::client::Client;
use crate::command::{Run, eventually};
use crate::manifests::{Manifests, route};

/// To each agent: two of each format, and one for the models.
const CALLS: usize = 5;

async fn serves_the_quickstart(agents: usize) {
    let manifests = Manifests::quickstart();
    let run = Run::start(&manifests.path(), &["--provider", "--agents", &agents.to_string()]).await;
    assert_eq!((run.agents.len(), run.admins.len()), (agents, agents));
    let serving = run.line(&[" serving "]).await;
    assert!(serving.contains(&format!("http://{}/v1 agents={agents}", run.agents[0])), "{serving}");
    let client = Client::new();
    for (number, (agent, admin)) in run.agents.iter().zip(&run.admins).enumerate() {
        let answer = client.chat(*agent, "gpt-4o").await;
        assert_eq!((answer.status, answer.served_by()), (StatusCode::OK, "primary"), "{answer:?}");
        assert!(answer.json()["choices"][0]["message"]["content"].is_string(), "{answer:?}");
        let stream = client.chat_stream(*agent, "gpt-4o").await;
        assert_eq!(stream.status, StatusCode::OK);
        let read = stream.rest().await;
        assert!(read.trim_end().ends_with("data: [DONE]"), "{read}");
        let answer = client.message(*agent, "claude-sonnet").await;
        assert_eq!(answer.json()["type"], "message", "{answer:?}");
        let read = client.message_stream(*agent, "claude-sonnet").await.rest().await;
        assert!(read.contains("event: message_start") && read.contains("event: message_stop"), "{read}");

        let models = client.get(*agent, "/v1/models").await;
        assert!(models.body.contains("gpt-4o"), "{models:?}");
        for path in ["/livez", "/readyz"] {
            assert_eq!(client.get(*admin, path).await.status, StatusCode::OK, "{path}");
        }
        assert!(client.get(*admin, "/metrics").await.body.contains("llm_circuit_breaker_state"));
        // The last settlement comes after the last byte.
        let state = eventually("everything settled", async || {
            let state = client.get(*admin, "/state").await.json();
            (state["exchanges"]["unsettled"] == 0 && state["exchanges"]["inFlight"] == 0).then_some(state)
        })
        .await;
        assert_eq!(state["agent"], format!("agent-{}", number + 1));
        assert_eq!(state["exchanges"]["total"], CALLS, "{state}");
    }
    let lines = run.end().await;
    let calls = CALLS * agents;
    let last = lines.last().unwrap();
    assert!(last.contains(&format!("admitted={calls} failed-over=0 refused=0")), "{last}");
}

#[tokio::test]
async fn one_agent_serves_both_formats_and_shows_itself() {
    serves_the_quickstart(1).await;
}

#[tokio::test]
async fn three_agents_serve_each_on_ports_of_its_own() {
    serves_the_quickstart(3).await;
}

/// Says three tokens and then nothing until it is released.
pub(crate) fn pausing() -> Scenario {
    Scenario::of(Behaviour {
        tokens: Some(6),
        stall: Some(Stall { after: 3, lasts: None }),
        ..Behaviour::default()
    })
}

#[tokio::test]
async fn at_its_end_a_running_stream_finishes() {
    let provider = Provider::start(pausing()).await.unwrap();
    let manifests = Manifests::empty();
    manifests.write("chat.yaml", &route("chat", "gpt-4o", &[("primary", provider.addr())]));
    let run = Run::start(&manifests.path(), &["--grace", "60s"]).await;
    let mut stream = Client::new().chat_stream(run.agents[0], "gpt-4o").await;
    stream.until("\"content\":").await;
    run.terminate().await;
    let agent = run.agents[0];
    eventually("the agent to take no new connection", async || {
        tokio::net::TcpStream::connect(agent).await.is_err().then_some(())
    })
    .await;
    provider.release();
    let read = stream.rest().await;
    assert!(read.trim_end().ends_with("data: [DONE]") && !read.contains("error"), "{read}");
    run.ended().await;
    provider.shutdown().await;
}

#[tokio::test]
async fn after_the_grace_period_a_stream_ends_with_an_error_event() {
    let provider = Provider::start(pausing()).await.unwrap();
    let manifests = Manifests::empty();
    manifests.write("chat.yaml", &route("chat", "gpt-4o", &[("primary", provider.addr())]));
    let run = Run::start(&manifests.path(), &["--grace", "100ms"]).await;
    let mut stream = Client::new().chat_stream(run.agents[0], "gpt-4o").await;
    stream.until("\"content\":").await;
    run.terminate().await;
    let read = stream.rest().await;
    let last = read.trim_end().rsplit("data: ").find(|event| event.starts_with('{')).unwrap();
    let last: serde_json::Value = serde_json::from_str(last.trim_end()).unwrap();
    assert!(last["error"]["message"].is_string(), "{read}");
    run.ended().await;
    provider.shutdown().await;
}

#[tokio::test]
async fn an_anthropic_route_alone_is_tried_in_its_own_format_and_https_is_not_played() {
    let manifests = Manifests::quickstart();
    let path = manifests.path();
    std::fs::remove_file(path.join("chat.yaml")).unwrap();
    let text = std::fs::read_to_string(path.join("claude.yaml")).unwrap();
    let (before, after) = text.rsplit_once("http://").unwrap();
    manifests.write("claude.yaml", &format!("{before}https://{after}"));
    let run = Run::start(&path, &["--provider"]).await;
    let line = run.line(&[" try ", "/v1/messages", "\"max_tokens\":", "anthropic-version"]).await;
    assert!(!line.contains("chat/completions"), "{line}");
    run.line(&["provider", "https://127.0.0.1", "is not played"]).await;
    let answer = Client::new().message(run.agents[0], "claude-sonnet").await;
    assert_eq!(answer.status, StatusCode::OK);
    run.end().await;
}
