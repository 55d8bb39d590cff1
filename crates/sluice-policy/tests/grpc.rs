//! The service and an agent over real sockets.
#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub, dead_code)]

mod agent;
mod resources;

use std::collections::BTreeSet;
use std::time::Duration;

use agent::{Agent, Plane, eventually, hello, name};
use resources::{NOW_MS, broken_route, index, key, policy, route, route_of, secret};
use sluice_core::admission::{BreakerState, Transition, TransitionReason, WindowCounts};
use sluice_core::classify::CredentialFault;
use sluice_core::policy::SecretKey;
use sluice_core::target_id::TargetId;
use sluice_policy::service::{Counting, Settings};
use sluice_policy::status::{RouteKnown, policy_status, route_status};
use sluice_policy::{compile, fleet::AgentFacts};
use sluice_proto::feature::Feature;
use sluice_proto::report::{BreakerSeen, Hello, Report, TargetAggregate, TargetTransition};
use sluice_proto::v1;
use sluice_proto::v1::controller_message::Message as ToAgent;
use tonic::Code;

fn facts(connected: u32, in_sync: u32, rejecting: u32) -> AgentFacts {
    AgentFacts { connected, in_sync, rejecting, ..AgentFacts::default() }
}

#[tokio::test]
async fn an_agent_gets_a_version_answers_and_is_in_sync() {
    let plane = Plane::start(Settings::default()).await;
    let mut index = index(vec![route("chat", 9)], vec![]);
    plane.publish(&index);
    let mut agent = Agent::connect(&plane, hello("a")).await;
    let first = agent.snapshot().await;
    assert!(!first.version.is_empty() && !first.nonce.is_empty());
    assert_eq!(plane.fleet.facts(&name("chat")), facts(1, 0, 0), "sent is not applied");
    let set = agent.apply(first.clone()).await;
    assert_eq!(set.routes.len(), 1);
    eventually(|| plane.fleet.facts(&name("chat")) == facts(1, 1, 0)).await;

    // The same again is not sent: the next message is the one after it.
    plane.publish(&index);
    index.apply_route(route("other", 8), NOW_MS);
    plane.publish(&index);
    let second = agent.snapshot().await;
    assert_eq!(second.routes.len(), 2);
    assert!(second.version != first.version && second.nonce != first.nonce);
    assert_eq!(plane.fleet.facts(&name("chat")), facts(1, 0, 0), "in sync means with the newest");
    agent.apply(second).await;
    eventually(|| plane.fleet.facts(&name("other")) == facts(1, 1, 0)).await;
}

#[tokio::test]
async fn an_answer_to_an_older_snapshot_says_nothing() {
    let plane = Plane::start(Settings::default()).await;
    let mut index = index(vec![route("chat", 9)], vec![]);
    plane.publish(&index);
    let mut agent = Agent::connect(&plane, hello("a")).await;
    let first = agent.snapshot().await;
    index.apply_route(route("other", 8), NOW_MS);
    plane.publish(&index);
    let second = agent.snapshot().await;
    // Messages keep their order: when the second answer counts, the first has been read.
    agent.apply(first).await;
    let stale = v1::Snapshot { nonce: "made up".to_owned(), ..second.clone() };
    agent.apply(stale).await;
    agent
        .report(Report { store: Some(sluice_proto::report::StoreHealth::Embedded), ..Report::default() })
        .await;
    eventually(|| plane.fleet.store().is_some()).await;
    assert_eq!(plane.fleet.facts(&name("chat")), facts(1, 0, 0));
    agent.apply(second).await;
    eventually(|| plane.fleet.facts(&name("chat")) == facts(1, 1, 0)).await;
}

#[tokio::test]
async fn a_rejected_route_keeps_its_last_good_and_the_status_says_why() {
    let plane = Plane::start(Settings::default()).await;
    let rule = |n| policy("p", 5, &["ModelRoute/chat"], &format!("retries: {{maxAttempts: {n}}}"));
    let mut index = index(vec![route("chat", 9), route("other", 9)], vec![rule(2)]);
    plane.publish(&index);
    let mut agent = Agent::connect(&plane, hello("a")).await;
    let first = agent.snapshot().await;
    agent.apply(first).await;

    index.apply_policy(rule(3), NOW_MS);
    plane.publish(&index);
    let mut second = agent.snapshot().await;
    // As if this agent were older and did not know a number of this version.
    second.routes[0].targets[0].provider = 99;
    let set = agent.apply(second).await;
    assert_eq!(set.routes[0].targets[0].rules.retries.rules.max_attempts, 2, "the last good stays");
    eventually(|| plane.fleet.facts(&name("chat")).rejecting == 1).await;
    let said = plane.fleet.facts(&name("chat"));
    assert!(said.reason.as_ref().unwrap().contains("provider has the value number 99"), "{said:?}");
    assert_eq!(plane.fleet.facts(&name("other")), facts(1, 1, 0), "the others apply");

    let compiled = compile(&index);
    let now = agent::at(1);
    let breakers = plane.fleet.breakers();
    let known = RouteKnown::of(&said, &breakers);
    let status = route_status(&compiled.routes[&key("chat")], &known, None, &now);
    let programmed = status.conditions.iter().find(|c| c.type_ == "Programmed").unwrap();
    assert_eq!((programmed.status.as_str(), programmed.reason.as_str()), ("False", "PartiallyProgrammed"));
    assert!(programmed.message.starts_with("1 of 1 agents reject it"), "{}", programmed.message);
    assert_eq!(status.agents.as_ref().unwrap().rejecting, 1);
    let again = route_status(&compiled.routes[&key("chat")], &known, Some(&status), &agent::at(99));
    assert_eq!(again, status, "nothing changed, nothing to write");
    let of_policy = policy_status(&compiled.policies[&key("p")], |route| plane.facts(route), None, &now);
    let programmed = &of_policy.ancestors[0].conditions[1];
    assert_eq!(
        (programmed.type_.as_str(), programmed.reason.as_str()),
        ("Programmed", "PartiallyProgrammed")
    );

    index.apply_policy(rule(4), NOW_MS);
    plane.publish(&index);
    let third = agent.snapshot().await;
    let set = agent.apply(third).await;
    assert_eq!(set.routes[0].targets[0].rules.retries.rules.max_attempts, 4);
    eventually(|| plane.fleet.facts(&name("chat")) == facts(1, 1, 0)).await;
}

#[tokio::test]
async fn held_stays_and_deleted_goes() {
    let plane = Plane::start(Settings::default()).await;
    plane.publish(&index(vec![route("held", 9), route("gone", 9)], vec![]));
    let mut agent = Agent::connect(&plane, hello("a")).await;
    let first = agent.snapshot().await;
    agent.apply(first).await;
    // A control plane that has just started and has never seen a good version.
    let mut restarted = index(vec![broken_route("held", 9, 2)], vec![]);
    plane.publish(&restarted);
    let second = agent.snapshot().await;
    assert!(second.routes.is_empty());
    let set = agent.apply(second).await;
    assert_eq!(set.routes.iter().map(|route| &*route.name).collect::<Vec<_>>(), ["held"]);

    restarted.delete_route(&key("held"));
    plane.publish(&restarted);
    let third = agent.snapshot().await;
    assert!(agent.apply(third).await.routes.is_empty());
}

#[tokio::test]
async fn a_slow_agent_gets_only_the_newest() {
    let plane = Plane::start(Settings::default()).await;
    let large = |n: u32| {
        let text = format!("{n}-{}", "x".repeat(8_000));
        let routes = (0..30).map(|at| {
            let name = format!("route-{at}");
            let spec = format!(
                "{}degraded: {{type: Static, static: {{text: \"{text}\"}}}}\n",
                resources::route_spec(&name)
            );
            route_of(&name, 9, 1, &spec)
        });
        index(routes.collect(), vec![])
    };
    plane.publish(&large(0));
    let mut agent = Agent::connect(&plane, hello("a")).await;
    let first = agent.snapshot().await;
    for n in 1..=100 {
        plane.publish(&large(n));
        // Gives the service the chance to send, if it wants to.
        tokio::task::yield_now().await;
    }
    let newest = agent::newest_version(&large(100));
    let mut received = 0;
    let mut version = first.version;
    while version != newest {
        version = agent.snapshot().await.version;
        received += 1;
    }
    assert!(received < 20, "{received} of 100 snapshots of 240 kB were sent to an agent that reads nothing");
}

#[tokio::test]
async fn secrets_rotate_without_a_version() {
    let plane = Plane::start(Settings::default()).await;
    let spec = "models: [m]\ntargets: [{name: t, provider: OpenAI, endpoint: \"https://one.example/v1\", credential: {type: SecretRef, secretRef: {name: keys, key: k}}}]";
    let mut index = index(vec![route_of("chat", 9, 1, spec)], vec![]);
    index.apply_secret(secret("keys", 1, &[("k", "sk-1")]));
    plane.publish(&index);
    let mut agent = Agent::connect(&plane, hello("a")).await;
    let first = agent.snapshot().await;
    let before = agent.apply(first).await;
    let k = SecretKey { name: "keys".into(), key: "k".into() };
    assert_eq!(before.secret(&k).unwrap().expose(), b"sk-1");
    eventually(|| plane.fleet.facts(&name("chat")) == facts(1, 1, 0)).await;

    index.apply_secret(secret("keys", 2, &[("k", "sk-2")]));
    plane.publish(&index);
    let Some(ToAgent::Secrets(rotated)) = agent.message().await else { panic!("no rotation") };
    let after = agent.applied.rotate(rotated);
    assert_eq!(after.secret(&k).unwrap().expose(), b"sk-2");
    assert_eq!(after.version, before.version);
    assert_eq!(plane.fleet.facts(&name("chat")), facts(1, 1, 0), "still in sync");

    index.delete_secret(&key("keys"));
    plane.publish(&index);
    let Some(ToAgent::Secrets(gone)) = agent.message().await else { panic!("no rotation") };
    assert!(agent.applied.rotate(gone).secret(&k).is_none());
}

/// A control plane that has just started may be unable to read what the one before it gave out.
#[tokio::test]
async fn a_secret_that_cannot_be_read_now_is_kept_by_agents_that_know_how_and_said_of_the_others() {
    let spec = "models: [m]\ntargets: [{name: t, provider: OpenAI, endpoint: \"https://one.example/v1\", credential: {type: SecretRef, secretRef: {name: keys, key: k}}}]";
    let mut index = index(vec![route_of("chat", 9, 1, spec)], vec![]);
    let k = SecretKey { name: "keys".into(), key: "k".into() };
    let older = Hello { features: BTreeSet::new(), ..hello("older") };
    let (before, after) = (Plane::start(Settings::default()).await, Plane::start(Settings::default()).await);
    index.apply_secret(secret("keys", 1, &[("k", "sk-1")]));
    before.publish(&index);
    index.delete_secret(&key("keys"));
    index.fail_secret(&key("keys"), "no answer within 2 s");
    after.publish(&index);
    let mut agents = Vec::new();
    for (hello, kept) in [(hello("newer"), true), (older, false)] {
        let mut agent = Agent::connect(&before, hello.clone()).await;
        let first = agent.snapshot().await;
        assert!(agent.apply(first).await.secret(&k).is_some());
        let mut again = Agent::connect(&after, hello).await;
        again.applied = agent.applied;
        let second = again.snapshot().await;
        let secrets = second.secrets.as_ref().unwrap();
        assert_eq!((secrets.secrets.len(), secrets.held.len()), (0, usize::from(kept)));
        assert_eq!(again.apply(second).await.secret(&k).is_some(), kept);
        agents.push(again);
    }
    eventually(|| after.fleet.facts(&name("chat")).in_sync == 2).await;
    let said = after.fleet.facts(&name("chat"));
    assert_eq!(said.withheld, BTreeSet::from([Feature::HeldSecrets]), "of the older one");

    // It can be read after all, and the version that held is one that agents may keep again.
    let [newer, _] = &mut agents[..] else { panic!() };
    index.apply_secret(secret("keys", 2, &[("k", "sk-2")]));
    after.publish(&index);
    let Some(ToAgent::Secrets(rotated)) = newer.message().await else { panic!("no rotation") };
    assert_eq!(newer.applied.rotate(rotated).secret(&k).unwrap().expose(), b"sk-2");
    index.delete_secret(&key("keys"));
    index.fail_secret(&key("keys"), "no answer within 2 s");
    after.publish(&index);
    let Some(ToAgent::Secrets(held)) = newer.message().await else { panic!("no rotation") };
    assert_eq!(newer.applied.rotate(held).secret(&k).unwrap().expose(), b"sk-2");
    // Gone is gone.
    index.delete_secret(&key("keys"));
    after.publish(&index);
    let Some(ToAgent::Secrets(gone)) = newer.message().await else { panic!("no rotation") };
    assert!(newer.applied.rotate(gone).secret(&k).is_none());
}

#[tokio::test]
async fn nothing_is_sent_before_the_first_publication() {
    let plane = Plane::start(Settings::default()).await;
    let mut agent = Agent::connect(&plane, hello("a")).await;
    eventually(|| plane.fleet.connected() == 1).await;
    plane.publish(&index(vec![route("chat", 9)], vec![]));
    assert_eq!(agent.snapshot().await.routes.len(), 1, "the first snapshot is no empty one");
}

#[tokio::test]
async fn streams_are_recycled_and_agents_go_on() {
    let life = Settings { stream_life: Duration::from_millis(200), ..Settings::default() };
    let plane = Plane::start(life).await;
    plane.publish(&index(vec![route("chat", 9)], vec![]));
    let mut agent = Agent::connect(&plane, hello("a")).await;
    let first = agent.snapshot().await;
    agent.apply(first.clone()).await;
    assert_eq!(agent.end().await.code(), Code::Unavailable);
    eventually(|| plane.fleet.connected() == 0).await;
    assert_eq!(agent.applied.current().routes.len(), 1, "traffic flows on what there is");

    let mut again = Agent::connect(&plane, hello("a")).await;
    again.applied = agent.applied;
    let second = again.snapshot().await;
    assert_eq!(second.version, first.version);
    assert_ne!(second.nonce, first.nonce);
    again.apply(second).await;
    eventually(|| plane.fleet.facts(&name("chat")) == facts(1, 1, 0)).await;
}

#[tokio::test]
async fn a_reconnected_agent_counts_once_and_shutdown_ends_streams() {
    let plane = Plane::start(Settings::default()).await;
    plane.publish(&index(vec![route("chat", 9)], vec![]));
    let mut old = Agent::connect(&plane, hello("a")).await;
    old.snapshot().await;
    let mut new = Agent::connect(&plane, hello("a")).await;
    new.snapshot().await;
    assert_eq!(old.end().await.code(), Code::Unavailable);
    assert_eq!(plane.fleet.facts(&name("chat")).connected, 1);
    let mut other = Agent::connect(&plane, hello("b")).await;
    other.snapshot().await;
    assert_eq!(plane.fleet.facts(&name("chat")).connected, 2);
    plane.shutdown.cancel();
    assert_eq!(new.end().await.code(), Code::Unavailable);
    assert_eq!(other.end().await.code(), Code::Unavailable);
}

#[tokio::test]
async fn scopes_are_kept_apart() {
    let plane = Plane::start(Settings::default()).await;
    let mine = format!("workloads: {{matchLabels: {{app: mine}}}}\n{}", resources::route_spec("mine"));
    plane.publish(&index(vec![route("all", 9), route_of("mine", 9, 1, &mine)], vec![]));
    let mut labelled = hello("a");
    labelled.labels.insert("app".into(), "mine".into());
    let mut with = Agent::connect(&plane, labelled).await;
    let mut without = Agent::connect(&plane, hello("b")).await;
    let mut elsewhere = hello("c");
    elsewhere.namespace = "elsewhere".into();
    let mut elsewhere = Agent::connect(&plane, elsewhere).await;
    assert_eq!(with.snapshot().await.routes.len(), 2);
    assert_eq!(without.snapshot().await.routes.len(), 1);
    assert_eq!(elsewhere.snapshot().await.routes.len(), 0);
}

#[tokio::test]
async fn fields_that_an_agent_does_not_know_are_withheld_and_said() {
    let plane = Plane::start(Settings::default()).await;
    let relative = policy("p", 5, &["ModelRoute/chat"], "breaker: {slow: {relativePercent: 300}}");
    plane.publish(&index(vec![route("chat", 9)], vec![relative]));
    let mut old = hello("old");
    old.features = BTreeSet::from([Feature::ConcurrencyAimd]);
    let mut old = Agent::connect(&plane, old).await;
    let snapshot = old.snapshot().await;
    let slow = |snapshot: &v1::Snapshot| {
        let rules = snapshot.routes[0].targets[0].rules.as_ref().unwrap();
        rules.breaker.as_ref().unwrap().slow.unwrap().relative_percent
    };
    assert_eq!(slow(&snapshot), None);
    assert_eq!(snapshot.withheld[0].feature, "slow-relative");
    old.apply(snapshot.clone()).await;
    let mut new = Agent::connect(&plane, hello("new")).await;
    let full = new.snapshot().await;
    assert_eq!(slow(&full), Some(300));
    assert_ne!(full.version, snapshot.version);
    let said = plane.fleet.facts(&name("chat"));
    assert_eq!((said.connected, said.withheld), (2, BTreeSet::from([Feature::SlowRelative])));
}

fn transition(target: &TargetId, epoch: u64) -> TargetTransition {
    TargetTransition {
        target: target.clone(),
        transition: Transition {
            from: BreakerState::Closed,
            to: BreakerState::Open,
            reason: TransitionReason::FailureRate,
            epoch,
            counts: WindowCounts { calls: 10, failures: 8, ..WindowCounts::default() },
        },
    }
}

fn aggregate(target: &TargetId, admitted: u64, epoch: u64, open_for: Duration) -> TargetAggregate {
    let breaker = Some(BreakerSeen { state: BreakerState::Open, epoch, open_for });
    TargetAggregate {
        target: target.clone(),
        in_flight: 2,
        limit: 32,
        admitted,
        refused: 1,
        failed_over: 3,
        breaker,
        credential: None,
    }
}

#[tokio::test]
async fn transitions_come_once_and_aggregates_add_up() {
    let mut plane = Plane::start(Settings::default()).await;
    let index = index(vec![route("chat", 9)], vec![]);
    plane.publish(&index);
    let target = compile(&index).namespaces["ns"].routes[0].policy.targets[0].id.clone();
    let foreign = TargetId::of("elsewhere", "x", "y", "z");
    let mut agents = Vec::new();
    let since = 1_790_000_000_000;
    for (n, id) in ["a", "b"].into_iter().enumerate() {
        let mut agent = Agent::connect(&plane, hello(id)).await;
        let snapshot = agent.snapshot().await;
        agent.apply(snapshot).await;
        let open_for = Duration::from_secs(9);
        agent
            .report(Report {
                transitions: vec![
                    transition(&target, since),
                    transition(&foreign, 7),
                    transition(&target, since),
                ],
                targets: vec![
                    aggregate(&target, 100 + n as u64, since, open_for),
                    aggregate(&foreign, 1, 1, open_for),
                ],
                store: None,
            })
            .await;
        agents.push(agent);
    }
    eventually(|| plane.fleet.sums().get(&target).is_some_and(|sum| sum.agents == 2)).await;
    let sums = plane.fleet.sums();
    assert_eq!(sums.len(), 1, "an agent speaks of its own targets only");
    let sum = &sums[&target];
    assert_eq!((sum.in_flight, sum.limit, sum.admitted, sum.refused, sum.failed_over), (4, 64, 201, 2, 6));
    let breaker = &plane.fleet.breakers()[&target];
    assert_eq!((breaker.state.as_str(), breaker.reason.as_deref()), ("Open", Some("failure-rate")));
    assert_eq!(breaker.since, Some(agent::at(1_790_000_000)));

    agents[0].report(Report { transitions: vec![transition(&target, since + 5)], ..Report::default() }).await;
    assert_eq!(plane.transitions.recv().await.unwrap(), transition(&target, since));
    assert_eq!(plane.transitions.recv().await.unwrap(), transition(&target, since + 5));
    assert_eq!(plane.fleet.dropped_transitions(), 0);
}

/// What a provider says against a target's credential is a condition of the route, for as long as it says so.
#[tokio::test]
async fn a_refused_credential_is_a_condition_of_the_route() {
    let plane = Plane::start(Settings::default()).await;
    let index = index(vec![route("chat", 9), route("other", 8)], vec![]);
    plane.publish(&index);
    let compiled = compile(&index);
    let routes = &compiled.namespaces["ns"].routes;
    let chat = routes.iter().find(|route| &*route.policy.name == "chat").unwrap();
    let ids: Vec<TargetId> = chat.policy.targets.iter().map(|target| target.id.clone()).collect();
    let mut agent = Agent::connect(&plane, hello("a")).await;
    let snapshot = agent.snapshot().await;
    agent.apply(snapshot).await;
    let status = |route: &str| {
        let facts = plane.fleet.facts(&name(route));
        let breakers = plane.fleet.breakers();
        route_status(&compiled.routes[&key(route)], &RouteKnown::of(&facts, &breakers), None, &agent::at(1))
    };
    let said = |route: &str| {
        let conditions = status(route).conditions;
        conditions
            .into_iter()
            .find(|one| one.type_ == "CredentialsValid")
            .map(|c| (c.status, c.reason, c.message))
    };
    for (fault, reason, words) in [
        (Some(CredentialFault::Refused), "Rejected", "target primary refuses its credential"),
        (Some(CredentialFault::SpendCap), "QuotaExhausted", "target primary says that the account's"),
        (None, "", ""),
    ] {
        let told = TargetAggregate { credential: fault, ..aggregate(&ids[0], 1, 1, Duration::ZERO) };
        agent.report(Report { targets: vec![told], ..Report::default() }).await;
        eventually(|| plane.fleet.facts(&name("chat")).credentials.get(&ids[0]).copied() == fault).await;
        match said("chat") {
            Some((status, given, message)) => {
                assert_eq!((status.as_str(), given.as_str()), ("False", reason));
                assert!(message.contains(words), "{message}");
            }
            None => assert_eq!(fault, None),
        }
        assert_eq!(said("other"), None, "another route's targets");
    }
}

#[tokio::test]
async fn the_service_counts_the_agents_of_a_target() {
    let plane = Plane::start(Settings { counting: Counting::Streams, ..Settings::default() }).await;
    let index = index(vec![route("chat", 9)], vec![]);
    plane.publish(&index);
    let target = compile(&index).namespaces["ns"].routes[0].policy.targets[0].id.clone();
    let mut first = Agent::connect(&plane, hello("a")).await;
    let snapshot = first.snapshot().await;
    let version = first.apply(snapshot).await.version.clone();
    let second = Agent::connect(&plane, hello("b")).await;
    first.counts_until(&target, 2).await;
    drop(second);
    first.counts_until(&target, 1).await;
    assert_eq!(first.applied.current().version, version, "counts are outside of the version");
}
