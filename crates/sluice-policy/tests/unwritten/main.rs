//! A policy is refused for what it says, never for what it leaves unsaid: over every field of every group, as the
//! schema has them, and over every pair of fields of which one bounds the other.
#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub)]

mod fields;
mod oracle;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};
use sluice_api::ReliabilityPolicy;
use sluice_api::check::{self, Problem, Resource};
use sluice_policy::compile::Groups;

use fields::{Field, complete, write};
use oracle::{ORDERED, contradictions, hold};

/// The offline check's verdict: an API server's schema, defaults and rules.
fn checked(groups: &Value) -> Result<ReliabilityPolicy, Vec<Problem>> {
    let mut spec = groups.clone();
    spec["targetRefs"] = json!([{ "group": "", "kind": "Namespace", "name": "ns" }]);
    let manifest = json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "ReliabilityPolicy",
        "metadata": { "name": "p", "namespace": "ns" }, "spec": spec,
    });
    let document = check::read("p.yaml", &manifest.to_string()).remove(0);
    document.outcome.map(|resource| match resource {
        Resource::Policy(policy) => *policy,
        other => panic!("{other:?}"),
    })
}

/// What contradicts is refused at one of its fields, with the value and a fix; all else compiles and holds.
fn judge(groups: &Value) {
    let wrong = contradictions(groups);
    match checked(groups) {
        Ok(policy) => {
            assert!(wrong.is_empty(), "{wrong:?} contradict each other: {groups}");
            let compiled = Groups::read(&policy.spec).unwrap_or_else(|error| panic!("{error}: {groups}"));
            hold(groups, &compiled);
        }
        Err(problems) => {
            for problem in problems {
                let here = |fields: &Vec<String>| {
                    fields.iter().any(|field| problem.field == format!("spec.{field}"))
                };
                assert!(wrong.iter().any(here), "{problem}: {groups}");
                // A list has no one value that is wrong.
                let list = problem.field.ends_with("tenants") || problem.field.ends_with("lanes");
                assert!((problem.value.is_some() || list) && !problem.fix.is_empty(), "{problem}");
            }
        }
    }
}

fn alone(field: &Field, value: Value) -> Value {
    let mut groups = json!({});
    write(&mut groups, &field.path, value);
    complete(groups).unwrap()
}

/// An edit on top of what is stored: what the edit does not name stays, items of lists go by their names.
fn apply(stored: &mut Value, edit: &Value) {
    match (stored, edit) {
        (Value::Object(stored), Value::Object(edit)) => {
            for (name, value) in edit {
                apply(stored.entry(name).or_insert(Value::Null), value);
            }
        }
        (Value::Array(stored), Value::Array(edit)) => {
            for item in edit {
                match stored.iter_mut().find(|stored| stored["name"] == item["name"]) {
                    Some(stored) => apply(stored, item),
                    None => stored.push(item.clone()),
                }
            }
        }
        (stored, edit) => *stored = edit.clone(),
    }
}

#[test]
fn any_one_value_within_its_bounds_is_accepted() {
    let mut count = 0;
    for (_, fields) in fields::groups() {
        for field in fields {
            for value in field.bounds.telling() {
                let groups = alone(&field, value);
                assert_eq!(contradictions(&groups), Vec::<Vec<String>>::new(), "{groups}");
                judge(&groups);
            }
            count += 1;
        }
    }
    assert!(count > 80, "only {count} fields");
}

/// An API server stores the defaults beside what is written; they must not contradict what is written later.
#[test]
fn any_one_value_is_accepted_on_top_of_the_stored_defaults() {
    let mut groups_tried = 0;
    for (group, fields) in fields::groups() {
        // A union has no empty form.
        let Ok(policy) = checked(&json!({ group: {} })) else { continue };
        groups_tried += 1;
        let stored = serde_json::to_value(&policy.spec).unwrap();
        for field in fields {
            for value in field.bounds.telling() {
                let (mut edited, edit) = (stored.clone(), alone(&field, value));
                apply(&mut edited, &edit);
                if let Err(problems) = checked(&edited) {
                    panic!("{}: {edit} on top of {stored}", problems[0]);
                }
            }
        }
    }
    assert_eq!(groups_tried, 8, "all but concurrency and validation");
}

#[test]
fn every_contradicting_pair_is_refused_and_every_other_is_not() {
    let all: Vec<Field> = fields::groups().into_iter().flat_map(|(_, fields)| fields).collect();
    let field = |path: &str| all.iter().find(|field| field.path == path).unwrap_or_else(|| panic!("{path}?"));
    let others = [
        ("breaker.window.time.span", "breaker.window.time.buckets", 0),
        ("breaker.minimumCalls", "breaker.window.type", 0),
        ("quota.tokensPerMinute", "quota.burstTokens", 0),
        ("quota.tenants[a].reservedPercent", "quota.tenants[b].reservedPercent", 0),
        ("queue.lanes[Agent].sharePercent", "queue.lanes[Background].sharePercent", 0),
    ];
    for (one, other, _) in ORDERED.into_iter().chain(others) {
        let (mut refused, mut accepted) = (0, 0);
        for value in field(one).bounds.telling() {
            for second in field(other).bounds.telling() {
                let mut groups = json!({});
                write(&mut groups, one, value.clone());
                write(&mut groups, other, second);
                let groups = complete(groups).unwrap();
                judge(&groups);
                let count = if contradictions(&groups).is_empty() { &mut accepted } else { &mut refused };
                *count += 1;
            }
        }
        assert!(refused > 0 && accepted > 0, "{one}, {other}: {refused} refused, {accepted} accepted");
    }
}

/// Some fields of one group with any values. Of fields in different members of a union the first stays.
fn some_fields() -> impl Strategy<Value = Value> {
    let groups = fields::groups();
    let number = prop_oneof![Just(0), Just(u64::MAX), 0..40_u64, 0..20_000_u64, 0..100_000_000_u64];
    let picks = vec((any::<prop::sample::Index>(), number), 1..6);
    (0..groups.len(), picks).prop_map(move |(group, picks)| {
        picks.into_iter().fold(json!({}), |before, (index, number)| {
            let field = index.get(&groups[group].1);
            let mut after = before.clone();
            write(&mut after, &field.path, field.bounds.value(number));
            if complete(after.clone()).is_some() { after } else { before }
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn any_fields_of_a_group_are_judged_by_what_is_written(groups in some_fields()) {
        judge(&complete(groups).unwrap());
    }
}
