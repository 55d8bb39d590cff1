//! What an agent does with snapshots: accept, reject, hold, delete, rotate.
#![allow(clippy::unwrap_used, clippy::panic, clippy::wildcard_imports, unreachable_pub, dead_code)]

mod strategies;

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::strategy::{Strategy as _, ValueTree as _};
use sluice_core::policy::{Concurrency, Degraded, ObjectRef, RoutePolicy, SecretKey};
use sluice_proto::apply::{Applied, PolicySet};
use sluice_proto::feature::{self, Feature};
use sluice_proto::{encode, v1};

fn route(name: &str, generation: i64) -> RoutePolicy {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut route = strategies::route().new_tree(&mut runner).unwrap().current();
    (route.namespace, route.name) = ("ns".into(), name.into());
    let first = route.sources[0].clone();
    route.sources[0] = ObjectRef { namespace: "ns".into(), name: name.into(), generation, ..first };
    route
}

fn wire(name: &str, generation: i64) -> v1::RoutePolicy {
    encode::route(&route(name, generation))
}

/// A route that decoding refuses.
fn broken(name: &str, generation: i64) -> v1::RoutePolicy {
    let mut route = wire(name, generation);
    route.targets[0].rules.as_mut().unwrap().breaker.as_mut().unwrap().failure_percent = 101;
    route
}

fn snapshot(version: &str, routes: Vec<v1::RoutePolicy>) -> v1::Snapshot {
    v1::Snapshot { version: version.into(), nonce: format!("nonce-{version}"), routes, ..Default::default() }
}

fn generations(set: &PolicySet) -> Vec<(String, i64)> {
    set.routes.iter().map(|route| (route.name.to_string(), route.sources[0].generation)).collect()
}

fn secrets(version: &str, value: &[u8]) -> v1::SecretSet {
    let secret = v1::Secret {
        key: Some(v1::SecretKey { name: "keys".into(), key: "openai".into() }),
        uid: "uid".into(),
        resource_version: version.into(),
        value: value.to_vec(),
    };
    v1::SecretSet { secrets: vec![secret], ..v1::SecretSet::default() }
}

#[test]
fn answers_name_nonce_version_and_objects() {
    let (set, ack) = Applied::new().apply(snapshot("v1", vec![wire("a", 3), wire("b", 1)]));
    assert_eq!((&*ack.nonce, &*ack.version), ("nonce-v1", "v1"));
    assert_eq!(
        ack.accepted.iter().map(|o| (&*o.name, o.generation)).collect::<Vec<_>>(),
        [("a", 3), ("b", 1)]
    );
    assert!(ack.rejected.is_empty());
    assert_eq!(&*set.version, "v1");
}

#[test]
fn one_bad_among_fifty_keeps_its_last_good_and_the_others_apply() {
    let mut applied = Applied::new();
    let name = |n: usize| format!("route-{n:02}");
    applied.apply(snapshot("v1", (0..51).map(|n| wire(&name(n), 1)).collect()));
    let second = (0..51).map(|n| if n == 7 { broken(&name(n), 2) } else { wire(&name(n), 2) }).collect();
    let (set, ack) = applied.apply(snapshot("v2", second));
    assert_eq!(set.routes.len(), 51);
    for (at, (_, generation)) in generations(&set).into_iter().enumerate() {
        assert_eq!(generation, if at == 7 { 1 } else { 2 }, "route {at}");
    }
    assert_eq!(ack.accepted.len(), 50);
    let [rejection] = &ack.rejected[..] else { panic!("{ack:?}") };
    assert_eq!((&*rejection.object.name, rejection.object.generation), ("route-07", 2));
    assert!(rejection.error.contains("failurePercent is 101"), "{}", rejection.error);

    let (set, ack) = applied.apply(snapshot("v3", (0..51).map(|n| wire(&name(n), 3)).collect()));
    assert!(ack.rejected.is_empty() && generations(&set).iter().all(|(_, generation)| *generation == 3));
}

#[test]
fn a_bad_route_without_a_last_good_is_absent() {
    let (set, ack) = Applied::new().apply(snapshot("v1", vec![broken("a", 1), wire("b", 1)]));
    assert_eq!(generations(&set), [("b".to_owned(), 1)]);
    assert_eq!(ack.rejected.len(), 1);
}

#[test]
fn deletions_apply_also_beside_rejections_and_held_routes_stay() {
    let mut applied = Applied::new();
    applied.apply(snapshot("v1", vec![wire("bad", 1), wire("gone", 1), wire("held", 1)]));
    let held = vec![
        v1::RouteName { namespace: "ns".into(), name: "held".into() },
        v1::RouteName { namespace: "ns".into(), name: "unknown".into() },
    ];
    let (set, ack) = applied.apply(v1::Snapshot { held, ..snapshot("v2", vec![broken("bad", 2)]) });
    assert_eq!(generations(&set), [("bad".to_owned(), 1), ("held".to_owned(), 1)]);
    assert_eq!(ack.rejected.len(), 1);
    assert_eq!(set.held.len(), 1, "only what this agent has can be held");

    let (set, _) = applied.apply(snapshot("v3", vec![]));
    assert!(set.routes.is_empty() && set.held.is_empty());
}

#[test]
fn a_held_route_that_is_sent_is_for_agents_that_have_none() {
    let held = vec![v1::RouteName { namespace: "ns".into(), name: "a".into() }];
    let sent = v1::Snapshot { held, ..snapshot("v2", vec![wire("a", 9)]) };

    let (set, _) = Applied::new().apply(sent.clone());
    assert_eq!(generations(&set), [("a".to_owned(), 9)]);

    let mut applied = Applied::new();
    applied.apply(snapshot("v1", vec![wire("a", 1)]));
    let (set, _) = applied.apply(sent);
    assert_eq!(generations(&set), [("a".to_owned(), 1)]);
}

#[test]
fn a_route_named_twice_counts_once() {
    let (set, ack) = Applied::new().apply(snapshot("v1", vec![wire("a", 1), wire("a", 2)]));
    assert_eq!(generations(&set), [("a".to_owned(), 1)]);
    assert_eq!((ack.accepted.len(), ack.rejected.len()), (1, 1));
}

#[test]
fn an_unchanged_route_keeps_its_place_in_memory() {
    let mut applied = Applied::new();
    let (first, _) = applied.apply(snapshot("v1", vec![wire("a", 1), wire("b", 1)]));
    let (second, _) = applied.apply(snapshot("v2", vec![wire("a", 1), wire("b", 2)]));
    assert!(Arc::ptr_eq(&first.routes[0], &second.routes[0]));
    assert!(!Arc::ptr_eq(&first.routes[1], &second.routes[1]));
}

#[test]
fn secrets_rotate_and_go_without_touching_the_policies() {
    let key = SecretKey { name: "keys".into(), key: "openai".into() };
    let mut applied = Applied::new();
    let first = v1::Snapshot { secrets: Some(secrets("1", b"one")), ..snapshot("v1", vec![wire("a", 1)]) };
    let (before, _) = applied.apply(first);
    let after = applied.rotate(secrets("2", b"two"));
    assert_eq!(after.secret(&key).unwrap().expose(), b"two");
    assert_eq!(after.version, before.version);
    assert!(Arc::ptr_eq(&before.routes, &after.routes));
    assert_eq!(
        before.secret(&key).unwrap().expose(),
        b"one",
        "an exchange in flight finishes on what it loaded"
    );
    assert!(applied.rotate(v1::SecretSet::default()).secret(&key).is_none());
}

#[test]
fn a_held_secret_stays_as_the_agent_has_it_and_a_withdrawn_one_goes() {
    let key = SecretKey { name: "keys".into(), key: "openai".into() };
    let unknown = v1::SecretKey { name: "keys".into(), key: "unknown".into() };
    let held = || v1::SecretSet { held: vec![encode::secret_key(&key), unknown.clone()], secrets: vec![] };
    let value = |set: &PolicySet| set.secret(&key).map(|value| value.expose().to_vec());
    let mut applied = Applied::new();
    let (nothing, _) = applied.apply(v1::Snapshot { secrets: Some(held()), ..snapshot("v1", vec![]) });
    assert!(nothing.secrets.is_empty(), "it has none to keep");
    applied.rotate(secrets("1", b"one"));
    for (set, why) in [
        (applied.rotate(held()), "with the policies as they are"),
        (applied.apply(v1::Snapshot { secrets: Some(held()), ..snapshot("v2", vec![]) }).0, "with new ones"),
    ] {
        assert_eq!((value(&set), set.secrets.len()), (Some(b"one".to_vec()), 1), "{why}");
    }
    // A value that is sent rules, whatever else is said.
    let both = v1::SecretSet { held: held().held, ..secrets("2", b"two") };
    assert_eq!(value(&applied.rotate(both)), Some(b"two".to_vec()));
    assert_eq!(value(&applied.rotate(held())), Some(b"two".to_vec()));
    assert_eq!(value(&applied.rotate(v1::SecretSet::default())), None, "withdrawn");
    assert_eq!(value(&applied.rotate(held())), None, "what is gone does not come back");
}

#[test]
fn secrets_never_show() {
    let set = secrets("1", b"sk-very-secret");
    assert!(!format!("{set:?}").contains("sk-very") && !format!("{set:?}").contains("115, 107"));
    let mut applied = Applied::new();
    assert!(!format!("{:?}", applied.rotate(set)).contains("sk-very"));
}

#[test]
fn what_an_agent_does_not_know_is_taken_out_and_named() {
    let mut route = route("a", 1);
    route.degraded = Degraded::Static { text: "later".into() };
    for target in &mut route.targets {
        target.rules.concurrency.rules = Concurrency::default();
        target.rules.concurrency.source = Some(route.sources[0].clone());
        target.rules.breaker.rules.slow.relative_percent = None;
        target.rules.retries.rules.throttling = None;
        target.rules.retries.rules.adaptive_k_percent = None;
        target.rules.streaming.rules.propagate_trace = true;
    }
    let before = route.clone();
    assert_eq!(feature::withhold(&mut route, &Feature::ALL.into_iter().collect()), []);
    assert_eq!(route, before);
    let withheld = feature::withhold(&mut route, &BTreeSet::new());
    assert_eq!(withheld, [Feature::ConcurrencyAimd, Feature::DegradedStatic, Feature::TracePropagation]);
    assert!(route.targets.iter().all(|t| !t.rules.streaming.rules.propagate_trace));
    assert_eq!(route.degraded, Degraded::Reject);
    assert!(
        route.targets.iter().all(|t| matches!(t.rules.concurrency.rules, Concurrency::Fixed { limit: 32 }))
    );
}

#[test]
fn features_have_names_of_their_own() {
    for feature in Feature::ALL {
        assert_eq!(Feature::parse(feature.as_str()), Some(feature));
    }
    assert_eq!(Feature::parse("of-the-future"), None);
}
