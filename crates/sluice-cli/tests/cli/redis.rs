//! Three agents that share their state through a real Redis, with it and without.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::StatusCode;
use sluice_provider::{Behaviour, Provider, Scenario};
use sluice_testkit::RedisServer;
use tokio::task::JoinSet;

use crate::client::Client;
use crate::command::{Run, eventually};
use crate::manifests::{Manifests, SENSITIVE, route};

#[tokio::test]
async fn agents_learn_of_an_outage_together_and_survive_redis() {
    let mut redis = RedisServer::start().unwrap();
    let down = Provider::start(Scenario::of(Behaviour::status(500))).await.unwrap();
    let well =
        Provider::start(Scenario::of(Behaviour { tokens: Some(2), ..Behaviour::default() })).await.unwrap();
    let manifests = Manifests::empty();
    manifests
        .write("chat.yaml", &route("chat", "gpt-4o", &[("primary", down.addr()), ("fallback", well.addr())]));
    manifests.write("policy.yaml", SENSITIVE);
    let run = Run::start(&manifests.path(), &["--agents", "3", "--redis", &redis.url()]).await;
    assert!(run.line(&[" serving "]).await.contains("store=redis"));
    let client = Client::new();

    // The first agent alone opens the breaker, and its clients see nothing of it.
    eventually("the breaker to open", async || {
        let answer = client.chat(run.agents[0], "gpt-4o").await;
        assert_eq!((answer.status, answer.served_by()), (StatusCode::OK, "fallback"), "{answer:?}");
        let opened = run.lines_with(&[" breaker ", "primary", "closed->open", "agent=agent-1"]);
        (!opened.is_empty()).then_some(())
    })
    .await;
    for admin in &run.admins {
        eventually("every agent to know", async || {
            let state = client.get(*admin, "/state").await.json();
            let targets = state["routes"][0]["targets"].as_array().unwrap().clone();
            targets
                .iter()
                .any(|target| target["name"] == "primary" && target["breaker"]["state"] == "open")
                .then_some(())
        })
        .await;
    }
    let asked = down.stats().total.started;
    for agent in &run.agents {
        assert_eq!(client.chat(*agent, "gpt-4o").await.served_by(), "fallback");
    }
    assert_eq!(down.stats().total.started, asked, "nobody asks the target that is down");
    assert_eq!(run.lines_with(&[" breaker "]).len(), 1, "one transition, told once: {:?}", run.lines());

    // Redis goes and comes while all three are called.
    let stop = Arc::new(AtomicBool::new(false));
    let mut calling = JoinSet::new();
    for agent in run.agents.clone() {
        let (client, stop) = (client.clone(), stop.clone());
        calling.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let answer = client.chat(agent, "gpt-4o").await;
                assert_eq!((answer.status, answer.served_by()), (StatusCode::OK, "fallback"), "{answer:?}");
            }
        });
    }
    redis.kill();
    run.line(&[" store ", "warning: redis unreachable"]).await;
    eventually("every agent to go on alone", async || {
        let mut alone = 0;
        for admin in &run.admins {
            alone += i32::from(client.get(*admin, "/state").await.json()["store"]["reachable"] == false);
        }
        (alone == 3).then_some(())
    })
    .await;
    redis.restart().unwrap();
    run.line(&[" store ", "redis is reachable again"]).await;
    stop.store(true, Ordering::Relaxed);
    calling.join_all().await;
    assert_eq!(down.stats().total.started, asked, "what was open stays open without Redis");
    run.end().await;
}

#[tokio::test]
async fn a_redis_that_is_not_there_is_said_at_the_start_and_stops_nothing() {
    let manifests = Manifests::quickstart();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("redis://:hunter2@{nobody}");
    let run = Run::start(&manifests.path(), &["--provider", "--redis", &url]).await;
    run.line(&[" store ", "warning: redis unreachable, each decides alone: "]).await;
    assert_eq!(Client::new().chat(run.agents[0], "gpt-4o").await.status, StatusCode::OK);
    let lines = run.end().await;
    assert!(!lines.concat().contains("hunter2"), "{lines:?}");
}
