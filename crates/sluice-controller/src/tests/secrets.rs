//! Secrets that are rotated, deleted, made anew and out of reach, while replicas come and go.

use std::sync::Arc;

use serde_json::json;
use sluice_core::policy::{SecretKey, SecretValue};
use sluice_proto::apply::PolicySet;

use super::fleet::{Agent, ROUTES, SECRETS, World, spec};
use crate::api_server::Fault;

fn put(world: &World, uid: &str, token: &str) {
    let token = data_encoding::BASE64.encode(token.as_bytes());
    world.server.put(
        SECRETS,
        json!({"metadata": {"name": "provider", "namespace": "team", "uid": uid}, "data": {"token": token}}),
    );
}

fn with_secret(model: &str) -> serde_json::Value {
    let mut spec = spec(model);
    spec["targets"][0]["credential"] =
        json!({"type": "SecretRef", "secretRef": {"name": "provider", "key": "token"}});
    spec
}

/// Whether the credential is this one.
fn has(token: Option<&'static str>) -> impl Fn(&Arc<PolicySet>) -> bool {
    move |set| {
        let key = SecretKey { name: "provider".into(), key: "token".into() };
        !set.routes.is_empty() && set.secret(&key).map(SecretValue::expose) == token.map(str::as_bytes)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_starts_and_cannot_read_a_secret_takes_it_from_nobody() {
    let world = World::new();
    world.route("chat", 1, &with_secret("gpt"));
    put(&world, "one", "sk-1");
    world.pod("app-1");
    let (first, at) = world.replica(1, None).await;
    let mut agent = Agent::connect(at, "app-1").await;
    agent.until("its credential", has(Some("sk-1"))).await;
    first.stop().await;
    let applied = agent.ended().await;

    world.forget(1);
    world.server.spoil(SECRETS, Fault::ReadsFail);
    let (second, at) = world.replica(2, None).await;
    let mut newcomer = Agent::connect(at, "app-1").await;
    newcomer.until("the route, without a credential", has(None)).await;
    drop(newcomer);
    let mut agent = Agent::connect_with(at, "app-1", applied).await;
    // An edit tells that what this replica sends has come.
    world.server.change(ROUTES, "team", "chat", |route| {
        route["spec"]["models"] = json!(["gpt", "more"]);
        route["metadata"]["generation"] = json!(2);
    });
    let edited = |set: &Arc<PolicySet>| set.routes.first().is_some_and(|route| route.models.len() == 2);
    agent.until("the edit", edited).await;
    agent.until("the credential that it had", has(Some("sk-1"))).await;
    let says = |world: &World| world.condition("chat", "ResolvedRefs") == "False SecretNotReadable";
    world.until("the status tells the truth", says).await;

    // It can be read, and has been rotated meanwhile.
    let token = data_encoding::BASE64.encode(b"sk-2");
    world.server.change(SECRETS, "team", "provider", |secret| secret["data"]["token"] = json!(token));
    world.server.mend(SECRETS);
    agent.until("the rotated one", has(Some("sk-2"))).await;
    world.until("resolved", |world| world.condition("chat", "ResolvedRefs") == "True ResolvedRefs").await;
    world.server.remove(SECRETS, "team", "provider");
    agent.until("gone is gone", has(None)).await;
    put(&world, "two", "sk-3");
    agent.until("made anew", has(Some("sk-3"))).await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edit_that_drops_a_secret_which_is_being_read_is_served() {
    let world = World::new();
    world.route("chat", 1, &spec("gpt"));
    world.pod("app-1");
    let (replica, at) = world.replica(1, None).await;
    let mut agent = Agent::connect(at, "app-1").await;
    agent.until("the route", |set| !set.routes.is_empty()).await;
    // From now on a Secret of the namespace is being read, and is deleted when the route does not name it any more.
    world.server.spoil(SECRETS, Fault::ReadsFail);
    put(&world, "one", "sk-1");
    let edit = |generation: i64, spec: serde_json::Value| {
        world.server.change(ROUTES, "team", "chat", |route| {
            route["spec"] = spec;
            route["metadata"]["generation"] = json!(generation);
        });
    };
    let met = world.server.faults_met();
    edit(2, with_secret("gpt"));
    world.until("it is being read", |world| world.server.faults_met() > met).await;
    edit(3, spec("other"));
    world.server.remove(SECRETS, "team", "provider");
    let served = |set: &Arc<PolicySet>| {
        set.routes.first().is_some_and(|route| route.sources[0].generation == 3 && set.secrets.is_empty())
    };
    agent.until("the edit", served).await;
    world.until("its status", |world| world.condition("chat", "ResolvedRefs") == "True ResolvedRefs").await;
    replica.stop().await;
}
