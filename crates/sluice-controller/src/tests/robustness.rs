//! An API server that restarts, forgets, refuses, or lets through what this version can't read.

use serde_json::json;

use super::fleet::{Agent, EVENTS, POLICIES, ROUTES, World, condition, spec};

/// What an API server with a newer schema lets through.
fn newer() -> serde_json::Value {
    json!({"models": ["other"], "format": "Gemini", "targets": spec("other")["targets"]})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_route_that_cannot_be_read_says_so_and_fifty_are_served() {
    let world = World::new();
    for n in 0..50 {
        world.route(&format!("route-{n:02}"), 1, &spec(&format!("model-{n}")));
    }
    world.route("newer", 3, &newer());
    world.pod("app-1");
    let (replica, at) = world.replica(1, None).await;
    let _agent = Agent::connect(at, "app-1").await;
    let programmed = |world: &World| {
        (0..50).all(|n| world.condition(&format!("route-{n:02}"), "Programmed") == "True Programmed")
    };
    world.until("fifty are programmed", programmed).await;
    world
        .until("one says why it is not", |world| world.condition("newer", "Accepted") == "False Invalid")
        .await;
    let accepted = world.status("newer")["conditions"][0].clone();
    assert_eq!(accepted["observedGeneration"], 3);
    assert!(accepted["message"].as_str().unwrap().contains("unknown variant `Gemini`"), "{accepted}");
    world.until("it is told", |world| world.events() == ["Invalid"]).await;
    assert_eq!(world.server.written(EVENTS)[0]["regarding"]["name"], "newer");

    // A policy of which not even the kinds that it names are known.
    let policy = json!({"apiVersion": "sluice.dev/v1alpha1", "kind": "ReliabilityPolicy",
        "metadata": {"name": "p", "namespace": "team", "uid": "uid-p", "generation": 1},
        "spec": {"targetRefs": [{"group": "", "kind": "Cluster", "name": "all"}]}});
    world.server.put(POLICIES, policy);
    let says = |world: &World| {
        let status = world.server.get(POLICIES, "team", "p").unwrap()["status"].clone();
        condition(&status["ancestors"][0]["conditions"], "Accepted") == "False Invalid"
    };
    world.until("the policy says so", says).await;

    // Mended.
    world.server.change(ROUTES, "team", "newer", |route| {
        route["spec"] = spec("other");
        route["metadata"]["generation"] = json!(4);
    });
    world.until("it is accepted", |world| world.condition("newer", "Accepted") == "True Accepted").await;
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_changed_while_no_watch_was_on_is_found_and_agents_keep_their_streams() {
    let world = World::new();
    for name in ["stays", "goes", "again"] {
        world.route(name, 1, &spec(name));
    }
    world.pod("app-1");
    let (replica, at) = world.replica(1, None).await;
    let agent = Agent::connect(at, "app-1").await;
    let accepted =
        |name: &'static str| move |world: &World| world.condition(name, "Accepted") == "True Accepted";
    for name in ["stays", "goes", "again"] {
        world.until(name, accepted(name)).await;
    }
    let programmed = |world: &World| world.condition("stays", "Programmed") == "True Programmed";
    world.until("it is programmed", programmed).await;

    // The API server is away. Meanwhile one is deleted, one is made, and one is made anew with the same generation.
    world.server.set_down(true);
    world.server.remove(ROUTES, "team", "goes");
    world.server.remove(ROUTES, "team", "again");
    world.route("comes", 1, &spec("comes"));
    let mut anew = spec("again");
    anew["models"] = json!(["something-else"]);
    world.route("again", 1, &anew);
    world.server.change(ROUTES, "team", "again", |route| route["metadata"]["uid"] = json!("another"));
    assert!(agent.is_connected(), "traffic goes on");
    // When it is back, it does not know what was told before.
    world.server.expire();
    world.server.set_down(false);
    world.until("the new one is served", accepted("comes")).await;
    world.until("the one that was made anew is too", accepted("again")).await;
    let in_sync = |world: &World| world.status("comes")["summary"]["agents"] == "1/1";
    world.until("agents have it", in_sync).await;
    assert!(agent.is_connected());
    assert_eq!(replica.connected_agents(), 1);
    // Watches that merely expire.
    world.server.expire();
    world.route("last", 1, &spec("last"));
    world.until("it goes on", accepted("last")).await;
    replica.stop().await;
}
