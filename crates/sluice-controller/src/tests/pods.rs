//! Pods whose labels change while their agents are connected.

use serde_json::json;

use super::fleet::{Agent, World, spec};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_agent_gets_follows_the_labels_of_its_pod_and_ends_with_it() {
    let world = World::new();
    world.route("all", 1, &spec("all"));
    let mut mine = spec("mine");
    mine["workloads"] = json!({"matchLabels": {"app": "mine"}});
    world.route("mine", 1, &mine);
    world.pod("app-1");
    world.pod("app-2");
    let (replica, at) = world.replica(1, None).await;
    let (mut one, other) = (Agent::connect(at, "app-1").await, Agent::connect(at, "app-2").await);
    one.until("the route for all", |set| set.routes.len() == 1).await;
    for (label, routes) in [(json!("mine"), 2), (json!("else"), 1)] {
        world.server.change("api/v1/pods", "team", "app-1", |pod| {
            pod["metadata"]["labels"]["app"] = label.clone();
        });
        one.until("what its labels select", |set| set.routes.len() == routes).await;
        let counted = |world: &World| world.status("mine")["agents"]["connected"] == json!(routes - 1);
        world.until("its status counts it", counted).await;
    }
    assert!(one.is_connected() && other.is_connected());
    world.server.remove("api/v1/pods", "team", "app-1");
    one.ended().await;
    assert!(other.is_connected());
    replica.stop().await;
}
