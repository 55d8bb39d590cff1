//! Compilation depends on the objects and their ages, and on nothing else; and it merges as the rule says.
#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub, dead_code)]

mod resources;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::subsequence;
use resources::{NOW_MS, broken_route, policy, route};
use sluice_api::policy::TargetKind;
use sluice_api::{ModelRoute, ReliabilityPolicy};
use sluice_policy::index::{Age, Key};
use sluice_policy::{Index, compile};

const ROUTES: [&str; 3] = ["one", "two", "three"];
const REFS: [&str; 8] = [
    "Namespace/ns",
    "ModelRoute/one",
    "ModelRoute/two",
    "ModelRoute/nowhere",
    "ModelRoute/one/primary",
    "ModelRoute/one/secondary",
    "ModelRoute/two/primary",
    "ModelRoute/two/nothing",
];
const GROUPS: [&str; 4] = [
    "retries: {maxAttempts: N}",
    "breaker: {minimumCalls: N}",
    "quota: {tokensPerMinute: N}",
    "deadlines: {total: Ns, firstToken: 1s, stall: 1s}",
];

/// Policies `p0`, `p1`, …; few ages, so that ties occur.
fn policies() -> impl Strategy<Value = Vec<ReliabilityPolicy>> {
    let one = (0..4_i64, subsequence(&REFS[..], 1..4), subsequence(&GROUPS[..], 1..=4), 2..9_u32);
    vec(one, 0..6).prop_map(|policies| {
        let named = policies.into_iter().enumerate();
        named
            .map(|(at, (age, refs, groups, n))| {
                policy(&format!("p{at}"), age, &refs, &groups.join("\n").replace('N', &n.to_string()))
            })
            .collect()
    })
}

fn routes() -> impl Strategy<Value = Vec<ModelRoute>> {
    subsequence(&ROUTES[..], 0..=3).prop_flat_map(|names| {
        let count = names.len();
        (Just(names), vec((0..3_i64, prop::bool::weighted(0.1)), count)).prop_map(|(names, kinds)| {
            let made = names.into_iter().zip(kinds);
            made.map(
                |(name, (age, broken))| if broken { broken_route(name, age, 1) } else { route(name, age) },
            )
            .collect()
        })
    })
}

fn arrive(routes: &[ModelRoute], policies: &[ReliabilityPolicy], order: &[usize]) -> Index {
    let mut index = Index::default();
    for at in order {
        match at.checked_sub(routes.len()) {
            None => index.apply_route(routes[*at].clone(), NOW_MS),
            Some(at) => index.apply_policy(policies[at].clone(), NOW_MS),
        }
    }
    index
}

fn age(policy: &ReliabilityPolicy) -> Age {
    let created = policy.metadata.creation_timestamp.as_ref().unwrap().0.as_millisecond();
    Age { created_ms: created.unsigned_abs(), key: Key::of(&policy.metadata) }
}

/// The rule, said once more and as plainly as possible: the smallest of (level, age) among those that have it.
fn expected_attempts(policies: &[ReliabilityPolicy], route: &str, target: &str) -> u32 {
    let level = |policy: &ReliabilityPolicy| {
        let levels = policy.spec.target_refs.iter().filter_map(|reference| {
            match (reference.kind, reference.section_name.as_deref()) {
                (TargetKind::Namespace, _) => Some(2),
                (TargetKind::ModelRoute, None) if reference.name == route => Some(1),
                (TargetKind::ModelRoute, Some(s)) if reference.name == route && s == target => Some(0),
                _ => None,
            }
        });
        levels.min()
    };
    let with_group = policies.iter().filter_map(|policy| {
        let retries = policy.spec.retries.as_ref()?;
        Some(((level(policy)?, age(policy)), retries.max_attempts))
    });
    with_group.min().map_or(3, |(_, attempts)| attempts)
}

proptest! {
    #[test]
    fn the_order_of_arrival_does_not_matter(
        (routes, policies, order) in (routes(), policies()).prop_flat_map(|(routes, policies)| {
            let all: Vec<usize> = (0..routes.len() + policies.len()).collect();
            (Just(routes), Just(policies), Just(all).prop_shuffle())
        })
    ) {
        let straight: Vec<usize> = (0..order.len()).collect();
        let one = compile(&arrive(&routes, &policies, &straight));
        let other = compile(&arrive(&routes, &policies, &order));
        prop_assert_eq!(&one, &other);
        prop_assert_eq!(&one, &compile(&arrive(&routes, &policies, &straight)), "and it is deterministic");
    }

    #[test]
    fn groups_merge_as_the_rule_says(routes in routes(), policies in policies()) {
        let order: Vec<usize> = (0..routes.len() + policies.len()).collect();
        let compiled = compile(&arrive(&routes, &policies, &order));
        for route in compiled.namespaces.get("ns").into_iter().flat_map(|namespace| &namespace.routes) {
            for target in &route.policy.targets {
                let expected = expected_attempts(&policies, &route.policy.name, &target.name);
                prop_assert_eq!(target.rules.retries.rules.max_attempts, expected);
                prop_assert!(target.rules.revision < 1 << 53);
            }
        }
    }

    /// Every policy is reported once per object that it names, and every route once.
    #[test]
    fn nothing_goes_unsaid(routes in routes(), policies in policies()) {
        let order: Vec<usize> = (0..routes.len() + policies.len()).collect();
        let compiled = compile(&arrive(&routes, &policies, &order));
        prop_assert_eq!(compiled.routes.len(), routes.len());
        prop_assert_eq!(compiled.policies.len(), policies.len());
        for report in compiled.policies.values() {
            prop_assert!(!report.ancestors.is_empty() && report.ancestors.len() <= 16);
        }
        let served: usize = compiled.namespaces.values().map(|n| n.routes.len() + n.held.len()).sum();
        prop_assert_eq!(served, routes.len(), "each route is served or held");
    }
}
