//! Two replicas and one writer: what all agents say, which breakers are open, and each thing told once.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use sluice_core::admission::{
    AdmitAsk, BreakerState, Draw, Nonce, Settlement, Transition, TransitionReason, WindowCounts,
};
use sluice_core::outcome::Verdict;
use sluice_core::policy::{Credential, Provider, Rules, TargetPolicy};
use sluice_proto::report::{BreakerSeen, Report, StoreHealth, TargetAggregate, TargetTransition};
use sluice_state::clock::SystemClock;
use sluice_state::{RedisConfig, SettleJob, Shared, Store, StoreConfig};
use sluice_testkit::RedisServer;

use super::fleet::{Agent, EVENTS, LEASES, ROUTES, World, spec, target};
use crate::api_server::Fault;

fn redis(server: &RedisServer) -> RedisConfig {
    // A busy machine misses the usual 20 ms.
    let patience = Duration::from_secs(10);
    RedisConfig {
        url: server.url(),
        admit_deadline: patience,
        settle_deadline: patience,
        ..RedisConfig::default()
    }
}

fn policy(route: &str) -> Arc<TargetPolicy> {
    Arc::new(TargetPolicy {
        name: "primary".into(),
        id: target(route),
        provider: Provider::OpenAi,
        endpoint: "https://primary.example/v1".into(),
        model: None,
        region: "".into(),
        credential: Credential::None,
        priority: 0,
        weight: 1,
        price: None,
        rules: Rules::default(),
    })
}

/// Calls that fail until the fleet's breaker opens. Nobody but the shared state tells of it.
async fn trip(server: &RedisServer, route: &str) {
    let config = StoreConfig {
        shared: Shared::Redis(redis(server)),
        agent: "somebody".to_owned(),
        seed: 1,
        clock: Arc::new(SystemClock::start()),
    };
    let (store, policy) = (Store::new(config).unwrap(), policy(route));
    assert!(store.connected(Duration::from_secs(30)).await);
    for nonce in 1..=30_u128 {
        let ask = AdmitAsk {
            nonce: Nonce(nonce),
            tokens: 1,
            tenant: None,
            lease: Duration::from_secs(10),
            record_ttl: Duration::from_mins(1),
            draw: Draw::new(0),
            traceparent: None,
        };
        let admission = store.admit(&policy, ask).await.unwrap();
        if !admission.reply.answer.granted() {
            return;
        }
        store.settle(SettleJob {
            target: policy.clone(),
            admission: admission.ticket(),
            tenant: None,
            verdict: Some(Verdict::Failure),
            tokens: Settlement::Used(1),
            pause: None,
            draw: Draw::new(0),
            traceparent: None,
            told: None,
        });
        assert_eq!(store.drain(Duration::from_secs(30)).await, 0);
    }
    panic!("it never opens");
}

fn breaker(world: &World, route: &str) -> (String, Option<String>) {
    let breaker = world.status(route)["targets"][0]["breaker"].clone();
    let text = |name: &str| breaker[name].as_str().map(str::to_owned);
    (text("state").unwrap_or_default(), text("reason"))
}

fn holder(world: &World) -> String {
    let lease = world.server.get(LEASES, "sluice-system", "sluice-controller").unwrap();
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_holder_writes_what_the_agents_of_all_replicas_say_and_the_next_one_goes_on() {
    let (world, server) = (World::new(), RedisServer::start().unwrap());
    world.route("chat", 1, &spec("gpt-4o"));
    world.pod("app-1");
    world.pod("app-2");
    let (one, at_one) = world.replica(1, Some(redis(&server))).await;
    world.until("the first is the holder", |world| holder_is(world, "replica-1")).await;
    let (two, at_two) = world.replica(2, Some(redis(&server))).await;
    let agent_1 = Agent::connect(at_one, "app-1").await;
    let _agent_2 = Agent::connect(at_two, "app-2").await;
    world.until("both agents are counted", |world| world.status("chat")["summary"]["agents"] == "2/2").await;
    world.until("it is programmed", |world| world.condition("chat", "Programmed") == "True Programmed").await;
    world
        .until("the state is read", |world| world.condition("chat", "StateStoreReady") == "True Ready")
        .await;

    // The fleet's breaker opens, and no agent tells.
    trip(&server, "chat").await;
    let open = ("Open".to_owned(), Some("failure-rate".to_owned()));
    world.until("the breaker is shown", |world| breaker(world, "chat") == open).await;
    world.until("it is told", |world| world.events() == ["BreakerOpened"]).await;

    // The holder goes in order: the other one takes over, tells nothing twice, and knows why.
    one.stop().await;
    world.forget(1);
    world.until("the second is the holder", |world| holder_is(world, "replica-2")).await;
    drop(agent_1);
    world.until("one agent is left", |world| world.status("chat")["summary"]["agents"] == "1/1").await;
    assert_eq!(breaker(&world, "chat"), open);
    let agent_1 = Agent::connect(at_two, "app-1").await;
    world.until("it is back", |world| world.status("chat")["summary"]["agents"] == "2/2").await;
    assert_eq!(world.events(), ["BreakerOpened"]);
    assert!(agent_1.is_connected());
    two.stop().await;
}

fn holder_is(world: &World, name: &str) -> bool {
    world.server.get(LEASES, "sluice-system", "sluice-controller").is_some() && holder(world) == name
}

/// What an agent without a shared state tells of a breaker that opened.
fn opened(route: &str) -> (TargetTransition, TargetAggregate) {
    let epoch = 1_800_000_000_000;
    let (from, to) = (BreakerState::Closed, BreakerState::Open);
    let counts = WindowCounts { calls: 20, failures: 15, ..WindowCounts::default() };
    let transition = Transition { from, to, reason: TransitionReason::Consecutive, epoch, counts };
    let aggregate = TargetAggregate {
        target: target(route),
        in_flight: 0,
        limit: 1,
        admitted: 20,
        refused: 0,
        failed_over: 0,
        breaker: Some(BreakerSeen { state: to, epoch, open_for: Duration::from_mins(1) }),
        credential: None,
    };
    (TargetTransition { target: target(route), transition }, aggregate)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_shared_state_what_agents_of_any_replica_see_is_shown_and_told_once() {
    let world = World::new();
    world.route("chat", 1, &spec("gpt-4o"));
    world.pod("app-1");
    let (one, _) = world.replica(1, None).await;
    world.until("the first is the holder", |world| holder_is(world, "replica-1")).await;
    let (two, at_two) = world.replica(2, None).await;
    let agent = Agent::connect(at_two, "app-1").await;
    world.until("it is in sync", |world| world.status("chat")["summary"]["agents"] == "1/1").await;
    assert_eq!(world.condition("chat", "StateStoreReady"), "");

    let (told, aggregate) = opened("chat");
    let store = Some(StoreHealth::Embedded);
    agent
        .report(Report { transitions: vec![told.clone(), told.clone()], targets: vec![aggregate], store })
        .await;
    let open = ("Open".to_owned(), Some("consecutive-failures".to_owned()));
    world.until("the breaker is shown", |world| breaker(world, "chat") == open).await;
    world.until("it is told", |world| world.events() == ["BreakerOpened"]).await;
    assert_eq!(world.status("chat")["targets"][0]["breaker"]["since"], "2027-01-15T08:00:00Z");
    agent.report(Report { transitions: vec![told], ..Report::default() }).await;

    // An agent that has lost its shared state.
    let store = Some(StoreHealth::Unreachable { reason: "no route to host".to_owned() });
    agent.report(Report { store, ..Report::default() }).await;
    let cut_off = "False Unreachable";
    world.until("it is cut off", |world| world.condition("chat", "StateStoreReady") == cut_off).await;

    one.stop().await;
    world.forget(1);
    world.until("the second is the holder", |world| holder_is(world, "replica-2")).await;
    agent.report(Report { store: Some(StoreHealth::Embedded), ..Report::default() }).await;
    world.until("it is not", |world| world.condition("chat", "StateStoreReady").is_empty()).await;
    assert_eq!((breaker(&world, "chat"), world.events()), (open, vec!["BreakerOpened".to_owned()]));
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_without_its_lease_finishes_nothing_and_a_quiet_cluster_sees_no_write() {
    let world = World::new();
    world.route("chat", 1, &spec("gpt-4o"));
    let (one, _) = world.replica(1, None).await;
    world.until("it is written", |world| !world.condition("chat", "Accepted").is_empty()).await;
    tokio::time::sleep(super::fleet::paces().settle).await;
    let (statuses, events) = (world.server.writes_of(ROUTES), world.server.writes_of(EVENTS));

    // The Lease can't be renewed any more, in the middle of a write.
    world.server.spoil(ROUTES, Fault::Waits);
    world.server.spoil(LEASES, Fault::Waits);
    let broken = json!({"models": ["gpt-4o"], "targets": [{"name": "primary", "provider": "OpenAI",
        "endpoint": "https://primary.example/v1", "credential": {"type": "SecretRef", "secretRef": {"name": "k", "key": "k"}}}]});
    world.server.change(ROUTES, "team", "chat", |route| {
        route["spec"] = broken;
        route["metadata"]["generation"] = json!(2);
    });
    // By then the deadline is over, whatever else is going on.
    tokio::time::sleep(2 * super::fleet::paces().lease_duration).await;
    world.server.mend(ROUTES);
    tokio::time::sleep(super::fleet::paces().lease_retry * 2).await;
    let edit = 1;
    assert_eq!(world.server.writes_of(ROUTES), statuses + edit, "the write took effect after the deadline");
    assert_eq!(world.server.writes_of(EVENTS), events);
    assert_eq!(world.condition("chat", "ResolvedRefs"), "True ResolvedRefs");

    // It is the holder again, and says what there is to say, once.
    world.server.mend(LEASES);
    world
        .until("it is written", |world| world.condition("chat", "ResolvedRefs") == "False SecretNotFound")
        .await;
    world.until("it is told", |world| world.events() == ["SecretNotFound"]).await;
    let quiet = world.server.writes_of(ROUTES);
    tokio::time::sleep(4 * super::fleet::paces().between_writes).await;
    assert_eq!(world.server.writes_of(ROUTES), quiet, "nothing changed");
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_could_not_renew_for_a_moment_takes_nothing_back_that_others_said() {
    let mut world = World::new();
    // A busy machine is to hear the others within that.
    world.paces.settle = Duration::from_secs(6);
    world.route("chat", 1, &spec("gpt-4o"));
    world.pod("app-1");
    let (one, _) = world.replica(1, None).await;
    world.until("the first is the holder", |world| holder_is(world, "replica-1")).await;
    let (two, at_two) = world.replica(2, None).await;
    let agent = Agent::connect(at_two, "app-1").await;
    world.until("it is in sync", |world| world.status("chat")["summary"]["agents"] == "1/1").await;
    let (told, aggregate) = opened("chat");
    let targets = vec![aggregate];
    agent.report(Report { transitions: vec![told], targets: targets.clone(), ..Report::default() }).await;
    let open = ("Open".to_owned(), Some("consecutive-failures".to_owned()));
    world.until("the breaker is shown", |world| breaker(world, "chat") == open).await;
    // Everyone has had the time to tell.
    tokio::time::sleep(world.paces.settle).await;

    let (before, renewed) = (world.server.writes_of(ROUTES), renewal(&world));
    world.server.spoil(LEASES, Fault::Waits);
    tokio::time::sleep(world.paces.lease_give_up + Duration::from_millis(50)).await;
    world.server.mend(LEASES);
    world.until("it is renewed", |world| renewal(world) != renewed).await;
    // What others say is heard again.
    let store = Some(StoreHealth::Unreachable { reason: "no route to host".to_owned() });
    agent.report(Report { store, targets, ..Report::default() }).await;
    let cut_off = "False Unreachable";
    world.until("it is cut off", |world| world.condition("chat", "StateStoreReady") == cut_off).await;
    for route in &world.server.written(ROUTES)[before..] {
        let status = &route["status"];
        assert_eq!(
            (&status["summary"]["agents"], &status["targets"][0]["breaker"]["state"]),
            (&json!("1/1"), &json!("Open"))
        );
    }
    tokio::join!(one.stop(), two.stop());
}

fn renewal(world: &World) -> serde_json::Value {
    let lease = world.server.get(LEASES, "sluice-system", "sluice-controller").unwrap();
    lease["spec"]["renewTime"].clone()
}
