//! What one replica tells another, over real sockets, with agents on both.
#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub, dead_code)]

mod agent;
mod resources;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use agent::{Agent, Plane, eventually, hello, name};
use resources::{NOW_MS, index, route};
use sluice_core::admission::{BreakerState, Transition, TransitionReason, WindowCounts};
use sluice_core::target_id::TargetId;
use sluice_policy::fleet::AgentFacts;
use sluice_policy::replicas::Replicas;
use sluice_policy::said::Said;
use sluice_policy::service::Settings;
use sluice_proto::replica::{BreakerSaid, ReplicaSaid};
use sluice_proto::report::{BreakerSeen, Report, StoreHealth, TargetAggregate, TargetTransition};
use sluice_proto::v1;
use tokio::time::Instant;
use tonic::{Code, Streaming};

const BOUND: Duration = Duration::from_mins(1);

#[allow(clippy::disallowed_methods, reason = "nothing here depends on the time")]
fn now() -> Instant {
    Instant::now()
}

/// The writer's side of one stream.
struct Ear {
    stream: Streaming<v1::ReplicaSaid>,
    replicas: Replicas,
    transitions: Vec<TargetTransition>,
}

impl Ear {
    async fn to(plane: &Plane) -> Self {
        let stream = plane.ask(Some("replica")).await.unwrap();
        let mut replicas = Replicas::default();
        replicas.set_live(&BTreeSet::from([Arc::from("other")]));
        replicas.began("other");
        Self { stream, replicas, transitions: Vec::new() }
    }

    fn said(&self) -> Said {
        let mut sum = Said::default();
        self.replicas.add_to(&mut sum, now());
        sum
    }

    async fn until(&mut self, reached: impl Fn(&Self) -> bool) {
        while !reached(self) {
            let message = tokio::time::timeout(BOUND, self.stream.message()).await.expect("nothing is told");
            let said = ReplicaSaid::decode(message.unwrap().expect("the stream ended")).unwrap();
            self.replicas.heard("other", &said);
            self.transitions.extend(said.transitions);
        }
    }
}

fn target(plane: &Plane) -> TargetId {
    plane.fleet.agents_by_target().into_keys().next().unwrap()
}

fn aggregate(target: &TargetId, breaker: Option<BreakerSeen>) -> TargetAggregate {
    TargetAggregate {
        target: target.clone(),
        in_flight: 0,
        limit: 1,
        admitted: 1,
        refused: 0,
        failed_over: 0,
        breaker,
        credential: None,
    }
}

#[tokio::test]
async fn another_replica_hears_everything_then_what_changes_and_a_farewell() {
    let mut plane = Plane::start(Settings::default()).await;
    let mut index = index(vec![route("chat", 9)], vec![]);
    plane.publish(&index);
    let mut agent = Agent::connect(&plane, hello("a")).await;
    let first = agent.snapshot().await;
    agent.apply(first).await;
    eventually(|| plane.fleet.facts(&name("chat")).in_sync == 1).await;

    let mut ear = Ear::to(&plane).await;
    ear.until(|ear| ear.replicas.have_all_reported()).await;
    assert_eq!(ear.said(), plane.fleet.said());
    assert_eq!(ear.said().routes[&name("chat")].in_sync, 1);

    // A breaker opens, and the agent loses the shared state.
    let target = target(&plane);
    let seen = BreakerSeen { state: BreakerState::Open, epoch: 7, open_for: Duration::from_secs(9) };
    let transition = Transition {
        from: BreakerState::Closed,
        to: BreakerState::Open,
        reason: TransitionReason::FailureRate,
        epoch: 7,
        counts: WindowCounts::default(),
    };
    let told = TargetTransition { target: target.clone(), transition };
    let store = Some(StoreHealth::Unreachable { reason: "no route to host".to_owned() });
    let targets = vec![aggregate(&target, Some(seen))];
    agent.report(Report { transitions: vec![told.clone()], targets, store }).await;
    plane.log.take(plane.transitions.recv().await.unwrap(), now());
    let said = BreakerSaid { seen, reason: Some(TransitionReason::FailureRate) };
    ear.until(|ear| ear.said().breakers.get(&target) == Some(&said)).await;
    ear.until(|ear| ear.transitions == [told.clone()]).await;
    ear.until(|ear| ear.said().routes[&name("chat")].cut_off == 1).await;

    // A route goes, another one comes.
    index.delete_route(&resources::key("chat"));
    index.apply_route(route("other", 8), NOW_MS);
    plane.publish(&index);
    ear.until(|ear| ear.said().routes.keys().eq([&name("other")])).await;
    assert!(ear.said().breakers.contains_key(&target), "it has not answered: it still has the target");

    // Another one that asks hears the transition as well.
    let mut late = Ear::to(&plane).await;
    late.until(|late| late.replicas.have_all_reported()).await;
    assert_eq!(late.transitions, [told]);

    plane.shutdown.cancel();
    while let Some(message) = ear.stream.message().await.unwrap() {
        ear.replicas.heard("other", &ReplicaSaid::decode(message).unwrap());
    }
}

#[tokio::test]
async fn who_is_no_replica_is_told_nothing_and_only_so_many_are() {
    let plane = Plane::start(Settings::default()).await;
    for word in [None, Some("agent")] {
        assert_eq!(plane.ask(word).await.unwrap_err().code(), Code::Unauthenticated);
    }
    let mut streams = Vec::new();
    let refused = loop {
        assert!(streams.len() < 100, "there is no bound");
        match plane.ask(Some("replica")).await {
            Ok(stream) => streams.push(stream),
            Err(status) => break status,
        }
    };
    assert_eq!(refused.code(), Code::ResourceExhausted);
    // One leaves: there is room again.
    streams.pop();
    while plane.ask(Some("replica")).await.is_err() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn counting_alike_agents_together_counts_each_of_them() {
    let plane = Plane::start(Settings::default()).await;
    plane.publish(&index(vec![route("chat", 9), route("other", 9)], vec![]));
    let mut agents = Vec::new();
    for n in 0..6 {
        agents.push(Agent::connect(&plane, hello(&n.to_string())).await);
    }
    // One has not answered, one rejects a route, one is cut off, one's credential is refused.
    for (n, agent) in agents.iter_mut().enumerate().skip(1) {
        let mut snapshot = agent.snapshot().await;
        if n == 1 {
            snapshot.routes[0].targets[0].provider = 99;
        }
        agent.apply(snapshot).await;
    }
    let target = target(&plane);
    let store = Some(StoreHealth::Unreachable { reason: "x".to_owned() });
    agents[2].report(Report { store, ..Report::default() }).await;
    let credential = Some(sluice_core::classify::CredentialFault::Refused);
    let targets = vec![TargetAggregate { credential, ..aggregate(&target, None) }];
    agents[3].report(Report { targets, ..Report::default() }).await;
    let complete = |facts: &AgentFacts| facts.in_sync + facts.rejecting == 5 && facts.cut_off == 1;
    eventually(|| complete(&plane.fleet.facts(&name("chat")))).await;
    eventually(|| plane.fleet.facts_by_route().values().any(|facts| !facts.credentials.is_empty())).await;

    let together = plane.fleet.facts_by_route();
    for route in ["chat", "other"] {
        assert_eq!(together[&name(route)], plane.fleet.facts(&name(route)), "{route}");
        assert_eq!(together[&name(route)].connected, 6);
    }
    assert_eq!(together.values().map(|facts| facts.rejecting).sum::<u32>(), 1);
}
