//! What an edit costs: its own namespace, and no more.
#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub, dead_code)]

mod resources;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use resources::{NOW_MS, broken_route, policy, route, route_of};
use sluice_api::{ModelRoute, ReliabilityPolicy};
use sluice_policy::compile::{Compiled, Scope, compile_again};
use sluice_policy::index::Key;
use sluice_policy::publish::{Audience, Newest, Publisher};
use sluice_policy::{Index, compile};

const NAMESPACES: [&str; 3] = ["a", "ns", "z"];

#[derive(Debug, Clone)]
enum Edit {
    Route(usize, usize, bool),
    Policy(usize, usize),
    DeleteRoute(usize, usize),
    DeletePolicy(usize, usize),
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        (0..3_usize, 0..3_usize, any::<bool>()).prop_map(|(ns, n, good)| Edit::Route(ns, n, good)),
        (0..3_usize, 0..3_usize).prop_map(|(ns, n)| Edit::Policy(ns, n)),
        (0..3_usize, 0..3_usize).prop_map(|(ns, n)| Edit::DeleteRoute(ns, n)),
        (0..3_usize, 0..3_usize).prop_map(|(ns, n)| Edit::DeletePolicy(ns, n)),
    ]
}

fn route_in(namespace: &str, mut route: ModelRoute) -> ModelRoute {
    route.metadata.namespace = Some(namespace.to_owned());
    route
}

fn policy_in(namespace: &str, mut policy: ReliabilityPolicy) -> ReliabilityPolicy {
    policy.metadata.namespace = Some(namespace.to_owned());
    policy
}

/// Carries an edit out; gives its namespace.
fn carry_out(index: &mut Index, edit: &Edit, round: i64) -> Arc<str> {
    let now_ms = NOW_MS + round.unsigned_abs();
    let key = |ns: usize, name: String| Key::new(NAMESPACES[ns], &name);
    match edit {
        Edit::Route(ns, n, good) => {
            let name = format!("route-{n}");
            let spec = resources::route_spec(&format!("model-{}", round % 2));
            let object = if *good { route_of(&name, 9, round, &spec) } else { broken_route(&name, 9, round) };
            index.apply_route(route_in(NAMESPACES[*ns], object), now_ms);
            NAMESPACES[*ns].into()
        }
        Edit::Policy(ns, n) => {
            let object =
                policy(&format!("policy-{n}"), 5, &["ModelRoute/route-1"], "retries: {maxAttempts: 2}");
            index.apply_policy(policy_in(NAMESPACES[*ns], object), now_ms);
            NAMESPACES[*ns].into()
        }
        Edit::DeleteRoute(ns, n) => {
            index.delete_route(&key(*ns, format!("route-{n}")));
            NAMESPACES[*ns].into()
        }
        Edit::DeletePolicy(ns, n) => {
            index.delete_policy(&key(*ns, format!("policy-{n}")), now_ms);
            NAMESPACES[*ns].into()
        }
    }
}

proptest! {
    #[test]
    fn compiling_what_changed_is_compiling_everything(edits in proptest::collection::vec(edit(), 1..30), every in 1..4_usize) {
        let (mut index, mut compiled) = (Index::default(), Compiled::default());
        let mut changed = BTreeSet::new();
        for (round, edit) in edits.iter().enumerate() {
            changed.insert(carry_out(&mut index, edit, i64::try_from(round).unwrap() + 1));
            if round % every == 0 {
                let before = compiled.clone();
                compiled = compile_again(&index, &before, &std::mem::take(&mut changed));
                prop_assert_eq!(&compiled, &compile(&index));
            }
        }
    }
}

fn subscribe(publisher: &Publisher, namespace: &str, labels: &[(&str, &str)]) -> Newest {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let scope = Scope { namespace: namespace.into(), labels: labels.collect() };
    publisher.subscribe(Audience { scope, features: BTreeSet::new() }).unwrap()
}

#[test]
fn agents_for_which_the_same_is_selected_share_it_and_others_are_left_alone() {
    let mine = format!("workloads: {{matchLabels: {{app: mine}}}}\n{}", resources::route_spec("mine"));
    let mut index = Index::default();
    index.apply_route(route_in("a", route("chat", 9)), NOW_MS);
    index.apply_route(route_in("a", route_of("mine", 9, 1, &mine)), NOW_MS);
    index.apply_route(route_in("z", route("chat", 9)), NOW_MS);
    let publisher = Publisher::new();
    let first = compile(&index);
    publisher.publish(Arc::new(first.clone()));
    let mut one = subscribe(&publisher, "a", &[("app", "other"), ("pod", "1")]);
    let mut two = subscribe(&publisher, "a", &[("app", "other"), ("pod", "2")]);
    let mut of_mine = subscribe(&publisher, "a", &[("app", "mine")]);
    let mut elsewhere = subscribe(&publisher, "z", &[]);
    let newest = |newest: &mut Newest| newest.borrow_and_update().clone().unwrap();
    assert!(Arc::ptr_eq(&newest(&mut one), &newest(&mut two)));
    assert!(!Arc::ptr_eq(&newest(&mut one), &newest(&mut of_mine)));
    let (before, there) = (newest(&mut one), newest(&mut elsewhere));

    // An edit that concerns one workload.
    index.apply_route(route_in("a", route_of("mine", 9, 2, &mine.replace("primary", "first"))), NOW_MS);
    let second = compile_again(&index, &first, &BTreeSet::from(["a".into()]));
    publisher.publish(Arc::new(second.clone()));
    assert!(
        of_mine.has_changed().unwrap() && !one.has_changed().unwrap() && !elsewhere.has_changed().unwrap()
    );
    assert!(Arc::ptr_eq(&newest(&mut one), &before), "what is equal stays the same");
    assert!(Arc::ptr_eq(&newest(&mut two), &before));

    // One that concerns all of the namespace, and agents that are counted.
    index.apply_route(route_in("a", route("third", 9)), NOW_MS);
    let third = compile_again(&index, &second, &BTreeSet::from(["a".into()]));
    publisher.publish(Arc::new(third.clone()));
    assert!(one.has_changed().unwrap() && two.has_changed().unwrap() && !elsewhere.has_changed().unwrap());
    assert!(Arc::ptr_eq(&newest(&mut one), &newest(&mut two)));
    let target = third.namespaces["z"].routes[0].policy.targets[0].id.clone();
    publisher.count_agents_of(BTreeMap::from([(target.clone(), 7)]));
    assert!(elsewhere.has_changed().unwrap() && !one.has_changed().unwrap());
    let counted = newest(&mut elsewhere);
    assert_eq!((counted.agents.get(&target), &counted.version), (Some(&7), &there.version));
    publisher.count_agents_of(BTreeMap::from([(target.clone(), 7)]));
    assert!(!elsewhere.has_changed().unwrap(), "the same again");
    publisher.count_agents_of(BTreeMap::from([(target, 0)]));
    assert!(newest(&mut elsewhere).agents.is_empty());
    // One that comes later shares it too.
    assert!(Arc::ptr_eq(&newest(&mut subscribe(&publisher, "a", &[("pod", "3")])), &newest(&mut one)));
}
