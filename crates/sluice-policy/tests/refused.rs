//! What cannot be used says so in its own status, and nothing else is touched.
#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub, dead_code)]

mod resources;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use resources::{NOW_MS, index, key, policy, route, route_of, secret};
use serde_json::json;
use sluice_api::status::{BreakerState, BreakerStatus};
use sluice_core::policy::{ObjectKind, SecretKey};
use sluice_policy::compile::{Compiled, Scope};
use sluice_policy::conditions::Status;
use sluice_policy::fleet::AgentFacts;
use sluice_policy::index::{SecretScope, Unread};
use sluice_policy::publish::{Audience, Publisher};
use sluice_policy::status::{RouteKnown, StateStore, policy_status, route_status};
use sluice_policy::{Index, compile};
use sluice_proto::apply::RouteName;

fn at(seconds: i64) -> Time {
    Time(Timestamp::from_second(seconds).unwrap())
}

fn unread(name: &str, target_refs: Option<&serde_json::Value>) -> Unread {
    unread_of(name, &json!({"targetRefs": target_refs}))
}

fn unread_of(name: &str, spec: &serde_json::Value) -> Unread {
    let meta = ObjectMeta {
        namespace: Some("ns".to_owned()),
        name: Some(name.to_owned()),
        generation: Some(7),
        ..ObjectMeta::default()
    };
    Unread::of(meta, json!({"spec": spec, "status": null}))
}

fn held(compiled: &Compiled) -> Vec<&str> {
    compiled.namespaces["ns"].held.iter().map(|name| &*name.name).collect()
}

#[test]
fn of_fifty_routes_that_are_served_one_cannot_be_read() {
    let names: Vec<String> = (0..50).map(|n| format!("route-{n:02}")).collect();
    let mut index = index(names.iter().map(|name| route(name, 9)).collect(), vec![]);
    index.hold_unread(ObjectKind::ModelRoute, unread("newer", None), "spec.format: unknown variant");
    let compiled = compile(&index);
    assert_eq!(compiled.namespaces["ns"].routes.len(), 50);
    assert_eq!(held(&compiled), ["newer"], "agents that have it keep it");
    let report = &compiled.routes[&key("newer")];
    assert_eq!((report.accepted.status, report.object.generation), (Status::False, 7));
    let (agents, breakers) = (AgentFacts::default(), BTreeMap::new());
    let status = route_status(report, &RouteKnown::of(&agents, &breakers), None, &at(1));
    let accepted = &status.conditions[0];
    assert_eq!((accepted.type_.as_str(), accepted.status.as_str()), ("Accepted", "False"));
    assert_eq!((accepted.reason.as_str(), accepted.observed_generation), ("Invalid", Some(7)));
    assert!(accepted.message.contains("unknown variant"));

    // It had been read before: that version stays.
    index.hold_unread(ObjectKind::ModelRoute, unread("route-00", None), "unknown variant");
    let compiled = compile(&index);
    assert_eq!(compiled.namespaces["ns"].routes.len(), 50);
    let report = &compiled.routes[&key("route-00")];
    assert_eq!(report.programmed.as_ref().unwrap().message, "generation 1 stays in use");
    // It is mended.
    index.apply_route(route_of("newer", 9, 8, &resources::route_spec("newer")), NOW_MS);
    let compiled = compile(&index);
    assert!(held(&compiled).is_empty());
    assert_eq!(compiled.routes[&key("newer")].accepted.status, Status::True);
}

#[test]
fn a_policy_that_cannot_be_read_speaks_of_what_it_names_and_holds_no_more() {
    let mut index = index(vec![route("chat", 9), route("other", 9)], vec![]);
    let refs = json!([{"group": "sluice.dev", "kind": "ModelRoute", "name": "chat"}]);
    index.hold_unread(ObjectKind::ReliabilityPolicy, unread("p", Some(&refs)), "mode: unknown variant");
    let compiled = compile(&index);
    assert_eq!(held(&compiled), ["chat"]);
    let status = policy_status(&compiled.policies[&key("p")], |_| AgentFacts::default(), None, &at(1));
    assert_eq!(status.ancestors.len(), 1);
    assert_eq!(status.ancestors[0].ancestor_ref.name, "chat");
    assert_eq!(status.ancestors[0].conditions[0].reason, "Invalid");

    // Not even that can be read: everything that it might rule stays, and it says so of its namespace.
    index.hold_unread(ObjectKind::ReliabilityPolicy, unread("p", None), "spec: unknown");
    let compiled = compile(&index);
    assert_eq!(held(&compiled), ["chat", "other"]);
    let status = policy_status(&compiled.policies[&key("p")], |_| AgentFacts::default(), None, &at(1));
    let ancestor = &status.ancestors[0].ancestor_ref;
    assert_eq!((ancestor.kind.as_str(), ancestor.name.as_str()), ("Namespace", "ns"));

    index.apply_policy(policy("p", 5, &["ModelRoute/chat"], "retries: {maxAttempts: 2}"), NOW_MS);
    assert!(held(&compile(&index)).is_empty());
}

const WITH_SECRET: &str = "models: [chat]
targets:
- name: primary
  provider: OpenAI
  endpoint: https://one.example/v1
  credential: {type: SecretRef, secretRef: {name: key, key: token}}
";

fn resolved(index: &Index) -> (String, String) {
    let compiled = compile(index);
    let draft = compiled.routes[&key("chat")].resolved_refs.clone().unwrap();
    (draft.reason.to_owned(), draft.message)
}

#[test]
fn a_secret_that_may_not_be_read_is_not_said_to_be_missing() {
    let mut index = index(vec![route_of("chat", 9, 1, WITH_SECRET)], vec![]);
    assert_eq!(resolved(&index).0, "SecretNotFound");
    index.set_secret_scope(SecretScope::Only(BTreeSet::from(["elsewhere".into()])));
    let (reason, message) = resolved(&index);
    assert_eq!(reason, "SecretNotReadable");
    assert!(message.contains("add ns to the chart's watchNamespaces"), "{message}");

    index.set_secret_scope(SecretScope::Only(BTreeSet::from(["ns".into()])));
    assert_eq!(resolved(&index).0, "SecretNotFound");
    index.forbid_secrets(Some("ns"), true);
    let (reason, message) = resolved(&index);
    assert_eq!(reason, "SecretNotReadable");
    assert!(message.contains("has no right to list, watch and get Secrets of namespace ns"), "{message}");
    index.forbid_secrets(Some("ns"), false);
    index.fail_secret(&key("key"), "no answer within 2 s");
    let (reason, message) = resolved(&index);
    assert_eq!(reason, "SecretNotReadable");
    assert!(message.contains("can't be read yet: no answer within 2 s"), "{message}");
    index.apply_secret(secret("key", 1, &[("token", "abc")]));
    assert_eq!(resolved(&index).0, "ResolvedRefs");
    // A version that was read stays in use while a newer one can't be.
    index.fail_secret(&key("key"), "no answer within 2 s");
    assert_eq!(resolved(&index).0, "ResolvedRefs");
}

/// What nobody can look at now may be good; what is known to be gone or unusable is not.
#[test]
fn agents_keep_a_secret_that_cannot_be_read_now_and_no_other() {
    let key_of_secret = SecretKey { name: "key".into(), key: "token".into() };
    let mut index = index(vec![route_of("chat", 9, 1, WITH_SECRET), route("other", 9)], vec![]);
    let scope = Scope { namespace: "ns".into(), labels: [].into() };
    let is_held = |index: &Index| {
        let held = compile(index).scope(&scope).held_secrets;
        assert!(held.is_empty() || held == BTreeSet::from([key_of_secret.clone()]), "{held:?}");
        !held.is_empty()
    };
    assert!(!is_held(&index), "it does not exist");
    index.forbid_secrets(None, true);
    assert!(is_held(&index));
    assert!(resolved(&index).1.contains("by agents that have no value of it yet"), "{:?}", resolved(&index));
    index.forbid_secrets(None, false);
    index.fail_secret(&key("key"), "no answer within 2 s");
    assert!(is_held(&index));
    assert!(resolved(&index).1.contains("by agents that have no value of it yet"), "{:?}", resolved(&index));
    index.apply_secret(secret("key", 1, &[("token", "abc")]));
    assert!(!is_held(&index), "it is sent");
    for unusable in [secret("key", 2, &[("other", "abc")]), secret("key", 3, &[("token", "abc\n")])] {
        index.apply_secret(unusable);
        assert!(!is_held(&index));
    }
    index.fail_secret(&key("key"), "no answer within 2 s");
    index.delete_secret(&key("key"));
    assert!(!is_held(&index), "it is gone");
    index.set_secret_scope(SecretScope::Only(BTreeSet::from(["elsewhere".into()])));
    assert!(!is_held(&index), "nobody would hear of its end");

    // A route that agents keep in an earlier version needs its own.
    index.set_secret_scope(SecretScope::Everywhere);
    let invalid = WITH_SECRET.replace("https:", "ftp:");
    index.delete_route(&key("chat"));
    index.apply_route(route_of("chat", 9, 2, &invalid), NOW_MS);
    assert_eq!((held(&compile(&index)), is_held(&index)), (vec!["chat"], false));
    index.fail_secret(&key("key"), "no answer within 2 s");
    assert!(is_held(&index));
}

/// A control plane that has just started and can't even parse a route: agents that keep it need its credentials.
#[test]
fn the_secrets_of_a_route_that_cannot_be_parsed_are_known_all_the_same() {
    let target = |credential: serde_json::Value| json!({"name": 1, "credential": credential});
    let spec = json!({"format": "Later", "targets": [
        target(json!({"type": "SecretRef", "secretRef": {"name": "key", "key": "token"}})),
        target(json!({"type": "Later", "secretRef": {"name": "key"}})), target(json!("none")), 7,
    ]});
    let mut index = Index::default();
    index.hold_unread(ObjectKind::ModelRoute, unread_of("chat", &spec), "unknown variant");
    index.apply_secret(secret("key", 1, &[("token", "abc"), ("other", "def")]));
    let scope = Scope { namespace: "ns".into(), labels: [].into() };
    let named = SecretKey { name: "key".into(), key: "token".into() };
    let sent = compile(&index).scope(&scope).secrets;
    assert_eq!(sent.keys().collect::<Vec<_>>(), [&named]);
    index.delete_secret(&key("key"));
    index.fail_secret(&key("key"), "no answer within 2 s");
    assert_eq!(compile(&index).scope(&scope).held_secrets, BTreeSet::from([named]));
    // Nothing of it is as it should be.
    index.hold_unread(ObjectKind::ModelRoute, unread_of("chat", &json!(["what"])), "unknown variant");
    assert!(compile(&index).scope(&scope).held_secrets.is_empty());
}

#[test]
fn a_namespace_that_waits_for_a_secret_stays_as_it_was() {
    let before = compile(&index(vec![route("chat", 9)], vec![]));
    let mut now = compile(&index(vec![route("chat", 9), route("new", 8)], vec![]));
    let after = now.clone();
    now.keep(&before, &BTreeSet::from(["elsewhere".into()]));
    assert_eq!(now, after, "another one waits");
    now.keep(&before, &BTreeSet::from(["ns".into()]));
    assert_eq!(now, before);
    now = after;
    now.keep(&Compiled::default(), &BTreeSet::from(["ns".into()]));
    assert_eq!(now, Compiled::default(), "it was not there yet");
}

#[test]
fn what_is_too_large_for_some_agents_is_known_by_route() {
    let mine = format!("workloads: {{matchLabels: {{app: mine}}}}\n{}", resources::route_spec("mine"));
    let publisher = Publisher::new();
    let audience = |app: &str| Audience {
        scope: Scope { namespace: "ns".into(), labels: [("app".to_owned(), app.to_owned())].into() },
        features: BTreeSet::new(),
    };
    let small = compile(&index(vec![route("chat", 9), route_of("mine", 9, 1, &mine)], vec![]));
    publisher.publish(Arc::new(small));
    let _mine = publisher.subscribe(audience("mine")).unwrap();
    assert!(publisher.too_large().is_empty());

    // Static answers of 64 KiB each, for the agents of one workload.
    let large = |n: usize| {
        let text = "x".repeat(60_000);
        let spec = format!("{mine}degraded: {{type: Static, static: {{text: {text}}}}}\n");
        route_of(&format!("large-{n:03}"), 8, 1, &spec)
    };
    let mut routes: Vec<_> = (0..300).map(large).collect();
    routes.push(route("chat", 9));
    let mut all: BTreeSet<_> = sluice_proto::feature::Feature::ALL.into();
    let knowing = Audience { features: std::mem::take(&mut all), ..audience("mine") };
    let newest = publisher.subscribe(knowing.clone()).unwrap();
    let other = publisher.subscribe(Audience { scope: audience("other").scope, ..knowing }).unwrap();
    let errors = publisher.publish(Arc::new(compile(&index(routes, vec![]))));
    assert_eq!(errors.len(), 1);
    let stuck = publisher.too_large();
    let name = |name: &str| RouteName { namespace: "ns".into(), name: name.into() };
    assert!(stuck.contains_key(&name("large-000")) && stuck.contains_key(&name("chat")));
    assert_eq!(newest.borrow().as_ref().unwrap().contents.len(), 2, "they keep what they have");
    assert_eq!(other.borrow().as_ref().unwrap().contents.len(), 1, "others get theirs");

    let compiled = compile(&index(vec![route("chat", 9)], vec![]));
    let (agents, breakers) =
        (AgentFacts { connected: 1, in_sync: 1, ..AgentFacts::default() }, BTreeMap::new());
    let known = RouteKnown { too_large: stuck.get(&name("chat")), ..RouteKnown::of(&agents, &breakers) };
    let status = route_status(&compiled.routes[&key("chat")], &known, None, &at(1));
    let programmed = status.conditions.iter().find(|condition| condition.type_ == "Programmed").unwrap();
    assert_eq!((programmed.status.as_str(), programmed.reason.as_str()), ("False", "TooLarge"));
    assert!(programmed.message.contains("use fewer or smaller routes"), "{}", programmed.message);
    // The agents leave, and with them the reason.
    drop((newest, other));
    publisher.publish(Arc::new(compiled));
    assert!(publisher.too_large().is_empty());
}

#[test]
fn the_shared_state_is_said_by_those_who_need_it() {
    let compiled = compile(&index(vec![route("chat", 9)], vec![]));
    let breakers = BTreeMap::new();
    let said = |cut_off: u32, connected: u32, state_store: &StateStore, present: Option<&_>| {
        let agents = AgentFacts { connected, in_sync: connected, cut_off, ..AgentFacts::default() };
        let known = RouteKnown { state_store, ..RouteKnown::of(&agents, &breakers) };
        let status = route_status(&compiled.routes[&key("chat")], &known, present, &at(1));
        let found = status.conditions.iter().find(|condition| condition.type_ == "StateStoreReady").cloned();
        (found.map(|found| (found.status, found.reason)), status)
    };
    let is = |status: &str, reason: &str| Some((status.to_owned(), reason.to_owned()));
    let seen = StateStore::Seen { unsafe_eviction: None };
    let unsafe_ = StateStore::Seen { unsafe_eviction: Some("allkeys-lru".to_owned()) };
    let away = StateStore::Away("timeout".to_owned());
    assert_eq!(said(0, 2, &StateStore::None, None).0, None);
    assert_eq!(said(1, 2, &StateStore::None, None).0, is("False", "Unreachable"));
    let (ready, status) = said(0, 2, &seen, None);
    assert_eq!(ready, is("True", "Ready"));
    assert_eq!(said(1, 2, &seen, None).0, is("False", "Unreachable"), "agents need it, not we");
    assert_eq!(said(0, 2, &unsafe_, None).0, is("False", "MayEvict"));
    assert_eq!(said(0, 2, &away, None).0, is("Unknown", "Unreachable"));
    assert_eq!(said(0, 0, &away, None).0, is("False", "Unreachable"));
    assert_eq!(said(0, 2, &StateStore::Unknown, None).0, None);
    let (unchanged, again) = said(0, 2, &StateStore::Unknown, Some(&status));
    assert_eq!((unchanged, again), (is("True", "Ready"), status), "for a moment it stays as it was");
}

#[test]
fn a_reason_that_nobody_remembers_stays_for_as_long_as_the_state_does() {
    let compiled = compile(&index(vec![route("chat", 9)], vec![]));
    let report = &compiled.routes[&key("chat")];
    let agents = AgentFacts::default();
    let status = |state: BreakerState, since: Option<i64>, reason: Option<&str>, present: Option<&_>| {
        let breaker = BreakerStatus { state, since: since.map(at), reason: reason.map(str::to_owned) };
        let breakers = BTreeMap::from([(report.targets[0].id.clone(), breaker)]);
        route_status(report, &RouteKnown::of(&agents, &breakers), present, &at(1))
    };
    let open = BreakerState::Open;
    let told = status(open, Some(100), Some("slow-rate"), None);
    let said = |status: &sluice_api::status::ModelRouteStatus| {
        let breaker = status.targets[0].breaker.clone();
        (breaker.since.map(|since| since.0.as_second()), breaker.reason)
    };
    let slow = Some("slow-rate".to_owned());
    assert_eq!(said(&status(open, Some(100), None, Some(&told))), (Some(100), slow.clone()));
    assert_eq!(said(&status(BreakerState::AwaitingProbe, Some(100), None, Some(&told))), (Some(100), slow));
    let again = said(&status(open, Some(200), None, Some(&told)));
    assert_eq!(again, (Some(200), None), "it opened again, for another reason");

    let closed = BreakerState::Closed;
    let told = status(closed, Some(300), Some("probes-succeeded"), None);
    let idle = said(&status(closed, None, None, Some(&told)));
    assert_eq!(idle, (Some(300), Some("probes-succeeded".to_owned())), "nobody has called it for long");
    let again = said(&status(closed, Some(400), None, Some(&told)));
    assert_eq!(again, (Some(300), Some("probes-succeeded".to_owned())), "called again, it is what it was");
    let between = said(&status(closed, Some(400), Some("probes-succeeded"), Some(&told)));
    assert_eq!(between, (Some(400), Some("probes-succeeded".to_owned())), "it was open in between");
    let never = status(closed, None, None, None);
    assert_eq!(said(&never), (None, None));
    assert_eq!(
        said(&status(closed, Some(500), None, Some(&never))),
        (None, None),
        "called for the first time"
    );
}
