//! Every rule of compilation, without a cluster, a socket or a clock.
#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub)]

mod resources;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use resources::{NOW_MS, broken_route, index, key, policy, policy_of, route, route_of, route_spec, secret};
use sluice_core::policy::{
    Concurrency, Lane, Mode, ModelPattern, ObjectKind, RoutePolicy, Rules, SecretKey, WireFormat,
};
use sluice_policy::compile::{AncestorReport, Compiled, Scope};
use sluice_policy::conditions::{Draft, Status};
use sluice_policy::{Index, compile};

fn compiled(index: &Index, name: &str) -> Arc<RoutePolicy> {
    find(&compile(index), name).unwrap_or_else(|| panic!("{name} is not compiled"))
}

fn find(compiled: &Compiled, name: &str) -> Option<Arc<RoutePolicy>> {
    let routes = &compiled.namespaces.get("ns")?.routes;
    routes.iter().find(|route| &*route.policy.name == name).map(|route| Arc::clone(&route.policy))
}

fn rules(index: &Index, route: &str, target: &str) -> Rules {
    let route = compiled(index, route);
    route.targets.iter().find(|t| &*t.name == target).unwrap().rules.clone()
}

fn held(compiled: &Compiled) -> Vec<String> {
    compiled.namespaces["ns"].held.iter().map(|name| name.name.to_string()).collect()
}

fn said(draft: &Draft) -> (Status, &'static str) {
    (draft.status, draft.reason)
}

/// The standing of a policy that names one object.
fn standing(index: &Index, policy: &str) -> AncestorReport {
    let compiled = compile(index);
    let [ancestor] = &compiled.policies[&key(policy)].ancestors[..] else {
        panic!("{:?}", compiled.policies[&key(policy)])
    };
    ancestor.clone()
}

const CHAT: &[&str] = &["ModelRoute/chat"];

#[test]
fn without_a_policy_the_built_in_rules() {
    let index = index(vec![route("chat", 1)], vec![]);
    assert_eq!(rules(&index, "chat", "primary"), Rules::default());
    let report = &compile(&index).routes[&key("chat")];
    assert_eq!(said(&report.accepted), (Status::True, "Accepted"));
    assert_eq!(report.programmed, None, "the agents say");
}

#[test]
fn the_most_specific_policy_that_has_a_group_gives_it_whole() {
    let index = index(
        vec![route("chat", 9), route("other", 9)],
        vec![
            policy(
                "everywhere",
                8,
                &["Namespace/ns"],
                "deadlines: {total: 100s}\nretries: {maxAttempts: 5}\nquota: {tokensPerMinute: 1}",
            ),
            policy("route", 7, CHAT, "deadlines: {total: 200s}\nbreaker: {minimumCalls: 33}"),
            policy("target", 6, &["ModelRoute/chat/primary"], "deadlines: {total: 50s, stall: 5s}"),
        ],
    );
    let primary = rules(&index, "chat", "primary");
    assert_eq!(primary.deadlines.rules.total, Duration::from_secs(50));
    assert_eq!(primary.deadlines.rules.first_token, Duration::from_secs(10), "the schema's, not the route's");
    assert_eq!(primary.breaker.rules.minimum_calls, 33);
    assert_eq!(primary.retries.rules.max_attempts, 5);
    assert_eq!(primary.deadlines.source.unwrap().name.as_ref(), "target");
    assert_eq!(primary.queue.source, None, "built in");

    let secondary = rules(&index, "chat", "secondary");
    assert_eq!(secondary.deadlines.rules.total, Duration::from_secs(200));
    assert_eq!(rules(&index, "other", "primary").deadlines.rules.total, Duration::from_secs(100));

    let sources: Vec<_> =
        compiled(&index, "chat").sources.iter().map(|s| (s.kind, s.name.to_string())).collect();
    assert_eq!(sources[0], (ObjectKind::ModelRoute, "chat".to_owned()));
    assert_eq!(
        sources[1..].iter().map(|s| s.1.as_str()).collect::<Vec<_>>(),
        ["everywhere", "route", "target"]
    );
}

#[test]
fn a_policy_that_is_overridden_everywhere_says_so_and_is_no_conflict() {
    let index = index(
        vec![route("chat", 9)],
        vec![
            policy("namespace", 8, &["Namespace/ns"], "deadlines: {total: 100s}"),
            policy("route", 7, CHAT, "deadlines: {total: 200s}"),
        ],
    );
    let standing = standing(&index, "namespace");
    assert_eq!(said(&standing.accepted), (Status::True, "Accepted"));
    assert_eq!(said(&standing.programmed.clone().unwrap()), (Status::False, "Overridden"));
    assert_eq!(standing.programmed.unwrap().message, "deadlines is ruled by ReliabilityPolicy ns/route");
}

#[test]
fn of_two_at_one_level_the_older_wins_and_the_younger_names_its_groups() {
    let older = policy("older", 8, CHAT, "deadlines: {total: 100s}\nbreaker: {minimumCalls: 20}");
    let same = policy("same", 7, CHAT, "deadlines: {total: 200s}");
    let more = policy("more", 6, CHAT, "deadlines: {total: 250s}\nretries: {maxAttempts: 7}");
    let mut index = index(vec![route("chat", 9)], vec![same, more, older]);
    assert_eq!(rules(&index, "chat", "primary").deadlines.rules.total, Duration::from_secs(100));
    assert_eq!(rules(&index, "chat", "primary").retries.rules.max_attempts, 7);

    let same = standing(&index, "same");
    assert_eq!(said(&same.accepted), (Status::False, "Conflicted"));
    assert_eq!(same.accepted.message, "deadlines is ruled by ReliabilityPolicy ns/older");
    assert_eq!(same.programmed, None, "what is not accepted is not asked about");
    let more = standing(&index, "more");
    assert_eq!(said(&more.accepted), (Status::True, "Accepted"));
    assert_eq!(said(&more.programmed.clone().unwrap()), (Status::False, "PartiallyProgrammed"));
    assert!(more.programmed.unwrap().message.contains("deadlines is ruled by ReliabilityPolicy ns/older"));
    assert_eq!(said(&standing(&index, "older").accepted), (Status::True, "Accepted"));

    let before = rules(&index, "chat", "primary").revision;
    index.delete_policy(&key("older"), NOW_MS);
    let after = rules(&index, "chat", "primary");
    assert_eq!(after.deadlines.rules.total, Duration::from_secs(200), "the next in age takes over");
    assert_eq!(after.breaker.rules, Rules::default().breaker.rules);
    assert!(after.revision > before, "{} > {before}", after.revision);
    assert_eq!(said(&standing(&index, "same").accepted), (Status::True, "Accepted"));
}

#[test]
fn equal_ages_are_told_apart_by_name() {
    let index = index(
        vec![route("chat", 9)],
        vec![
            policy("b", 8, CHAT, "retries: {maxAttempts: 2}"),
            policy("a", 8, CHAT, "retries: {maxAttempts: 1}"),
        ],
    );
    assert_eq!(rules(&index, "chat", "primary").retries.rules.max_attempts, 1);
}

#[test]
fn a_target_that_is_missing_appears_and_goes_again() {
    let mut index = index(vec![], vec![policy("p", 5, CHAT, "retries: {maxAttempts: 2}")]);
    let missing = |index: &Index| {
        let standing = standing(index, "p");
        assert_eq!(said(&standing.accepted), (Status::False, "TargetNotFound"));
        assert!(standing.accepted.message.contains("ModelRoute ns/chat"), "{}", standing.accepted.message);
    };
    missing(&index);
    index.apply_route(route("chat", 1), NOW_MS);
    let there = standing(&index, "p");
    assert_eq!(said(&there.accepted), (Status::True, "Accepted"));
    assert_eq!(there.programmed, None);
    assert!(there.routes.contains(&key("chat")));
    assert_eq!(rules(&index, "chat", "primary").retries.rules.max_attempts, 2);
    index.delete_route(&key("chat"));
    missing(&index);
    assert!(
        find(&compile(&index), "chat").is_none() && held(&compile(&index)).is_empty(),
        "deleted is not held"
    );
}

#[test]
fn a_section_that_is_missing_says_what_there_is() {
    let gone = policy("gone", 5, &["ModelRoute/chat/tertiary"], "retries: {maxAttempts: 2}");
    let half = policy(
        "half",
        4,
        &["ModelRoute/chat/tertiary", "ModelRoute/chat/primary"],
        "retries: {maxAttempts: 3}",
    );
    let index = index(vec![route("chat", 9)], vec![gone, half]);
    let gone = standing(&index, "gone");
    assert_eq!(said(&gone.accepted), (Status::False, "TargetNotFound"));
    assert!(gone.accepted.message.contains("has no target tertiary: it has primary, secondary"));
    let half = standing(&index, "half");
    assert_eq!(said(&half.accepted), (Status::True, "Accepted"));
    assert_eq!(said(&half.programmed.unwrap()), (Status::False, "PartiallyProgrammed"));
    assert_eq!(rules(&index, "chat", "primary").retries.rules.max_attempts, 3);
}

#[test]
fn a_policy_rules_its_own_namespace_only() {
    let index = index(
        vec![route("chat", 9)],
        vec![policy("p", 5, &["Namespace/other"], "retries: {maxAttempts: 2}")],
    );
    assert_eq!(said(&standing(&index, "p").accepted), (Status::False, "TargetNotFound"));
    assert_eq!(rules(&index, "chat", "primary"), Rules::default());
}

#[test]
fn fifty_valid_are_served_beside_one_that_is_not() {
    let mut routes: Vec<_> = (0..50).map(|n| route(&format!("route-{n}"), n)).collect();
    routes.push(broken_route("bad", 0, 1));
    let mut index = index(routes, vec![]);
    let first = compile(&index);
    assert_eq!(first.namespaces["ns"].routes.len(), 50);
    assert_eq!(held(&first), ["bad"]);
    let report = &first.routes[&key("bad")];
    assert_eq!(said(&report.accepted), (Status::False, "Invalid"));
    assert!(report.accepted.message.contains("ftp://one.example"), "{}", report.accepted.message);
    assert_eq!(said(report.programmed.as_ref().unwrap()), (Status::False, "Held"));

    index.apply_route(route("bad", 0), NOW_MS);
    let fixed = compile(&index);
    assert_eq!(fixed.namespaces["ns"].routes.len(), 51);
    assert!(held(&fixed).is_empty());
}

#[test]
fn a_broken_edit_keeps_the_last_good_and_says_which() {
    let mut index = index(vec![route("chat", 9)], vec![]);
    index.apply_route(broken_route("chat", 9, 2), NOW_MS);
    let after = compile(&index);
    let kept = find(&after, "chat").unwrap();
    assert_eq!(kept.targets[0].endpoint.as_ref(), "https://one.example/v1");
    assert_eq!(kept.sources[0].generation, 1);
    assert!(held(&after).is_empty(), "the control plane knows the last good itself");
    let report = &after.routes[&key("chat")];
    assert_eq!(report.object.generation, 2, "the status is about the newest");
    assert_eq!(said(&report.accepted), (Status::False, "Invalid"));
    assert_eq!(report.programmed.as_ref().unwrap().message, "generation 1 stays in use");
}

#[test]
fn what_cannot_even_be_parsed_is_held_too() {
    let mut index = index(vec![route("chat", 9)], vec![]);
    index.hold(ObjectKind::ModelRoute, &key("chat"), "line 3: no YAML");
    index.hold(ObjectKind::ModelRoute, &key("never-seen"), "line 3: no YAML");
    let after = compile(&index);
    assert!(find(&after, "chat").is_some());
    assert_eq!(held(&after), ["never-seen"]);
    assert_eq!(after.routes[&key("chat")].accepted.message, "line 3: no YAML");
}

#[test]
fn a_broken_policy_keeps_its_last_good_or_holds_what_it_names() {
    let good = policy("p", 5, CHAT, "retries: {maxAttempts: 2}");
    let mut bad = policy_of("p", 5, 2, CHAT, "concurrency: {type: Fixed, fixed: {limit: 3}}");
    bad.spec.concurrency.as_mut().unwrap().fixed = None;

    let mut known = index(vec![route("chat", 9), route("other", 9)], vec![good]);
    known.apply_policy(bad.clone(), NOW_MS);
    assert_eq!(rules(&known, "chat", "primary").retries.rules.max_attempts, 2);
    let report = standing(&known, "p");
    assert_eq!(said(&report.accepted), (Status::False, "Invalid"));
    assert!(report.accepted.message.contains("concurrency.fixed is missing"));
    assert_eq!(said(report.programmed.as_ref().unwrap()), (Status::False, "Held"));

    let unknown = index(vec![route("chat", 9), route("other", 9)], vec![bad]);
    let after = compile(&unknown);
    assert_eq!(held(&after), ["chat"], "agents keep the version with the policy");
    assert!(find(&after, "chat").is_some(), "agents that have none get one without it");
}

#[test]
fn a_policy_of_which_nothing_is_known_holds_its_namespace() {
    let mut index = index(vec![route("a", 9), route("b", 9)], vec![]);
    index.hold(ObjectKind::ReliabilityPolicy, &key("p"), "no YAML");
    assert_eq!(held(&compile(&index)), ["a", "b"]);
    index.delete_policy(&key("p"), NOW_MS);
    assert!(held(&compile(&index)).is_empty());
}

#[test]
fn zeros_are_zeros_and_bursts_are_one_minute() {
    let index = index(
        vec![route("chat", 9)],
        vec![
            policy(
                "zero",
                5,
                &["ModelRoute/chat/primary"],
                "quota: {tokensPerMinute: 0, requestsPerMinute: 0, tenants: [{name: a, reservedPercent: 0}]}\nretries: {budgetPercent: 0}\nbreaker: {ramp: {duration: 0s}}",
            ),
            policy("burst", 5, &["ModelRoute/chat/secondary"], "quota: {tokensPerMinute: 6000}"),
        ],
    );
    let zero = rules(&index, "chat", "primary");
    let quota = zero.quota.unwrap().rules;
    assert_eq!(
        (quota.tokens_per_minute, quota.requests_per_minute, quota.burst_tokens),
        (Some(0), Some(0), 0)
    );
    assert_eq!(quota.tenants[0].reserved_percent, 0);
    assert_eq!(zero.retries.rules.budget_percent, 0);
    assert_eq!(zero.breaker.rules.ramp.duration, Duration::ZERO);
    let burst = rules(&index, "chat", "secondary").quota.unwrap().rules;
    assert_eq!((burst.burst_tokens, burst.requests_per_minute), (6_000, None));
}

#[test]
fn a_mode_goes_with_its_groups_and_unlisted_lanes_stay_built_in() {
    let observe = "mode: Observe\nqueue: {lanes: [{name: Background, sharePercent: 0, maxLength: 7}]}";
    let index = index(vec![route("chat", 9)], vec![policy("p", 5, CHAT, observe)]);
    let rules = rules(&index, "chat", "primary");
    assert_eq!((rules.queue.mode, rules.breaker.mode), (Mode::Observe, Mode::Enforce));
    let lanes: Vec<_> =
        rules.queue.rules.lanes.iter().map(|l| (l.lane, l.share_percent, l.max_length)).collect();
    assert_eq!(lanes, [(Lane::Interactive, 60, 100), (Lane::Agent, 30, 100), (Lane::Background, 0, 7)]);
}

#[test]
fn what_is_not_written_gives_way_to_what_is() {
    let quota = |group: &str| {
        let index = index(vec![route("chat", 9)], vec![policy("p", 5, CHAT, &format!("quota: {{{group}}}"))]);
        rules(&index, "chat", "primary").quota.unwrap().rules
    };
    let pauses = |group: &str| {
        let pushback = quota(group).pushback;
        (pushback.default_pause.as_secs(), pushback.max_pause.as_secs())
    };
    assert_eq!(pauses(""), (5, 300));
    assert_eq!(pauses("pushback: {maxPause: 2s}"), (2, 2));
    assert_eq!(pauses("pushback: {maxPause: 9s}"), (5, 9));
    assert_eq!(pauses("pushback: {maxPause: 9s, defaultPause: 7s}"), (7, 9));
    assert_eq!(pauses("pushback: {defaultPause: 10m}"), (600, 600));
    // A rate of nothing admits nothing, not one bucket full of it.
    for group in ["tokensPerMinute: 0", "tokensPerMinute: 0, burstTokens: 1000"] {
        let quota = quota(group);
        assert_eq!((quota.tokens_per_minute, quota.burst_tokens), (Some(0), 0), "{group}");
    }
}

#[test]
fn without_any_threshold_slow_is_what_is_built_in() {
    let slow = |group: &str| {
        let group = format!("breaker: {{slow: {{{group}}}}}");
        let index = index(vec![route("chat", 9)], vec![policy("p", 5, CHAT, &group)]);
        let slow = rules(&index, "chat", "primary").breaker.rules.slow;
        (slow.percent, slow.ttft.map(|ttft| ttft.as_secs()), slow.relative_percent)
    };
    assert_eq!(slow("percent: 80"), (80, Some(5), None));
    assert_eq!(slow("relativePercent: 300"), (60, None, Some(300)));
    assert_eq!(slow("ttft: 9s"), (60, Some(9), None));
}

#[test]
fn a_route_without_a_format_speaks_what_its_targets_speak() {
    let claude = "models: [m]\ntargets: [{name: primary, provider: Anthropic, endpoint: https://one.example/v1, credential: {type: None}}]";
    let index = index(vec![route("chat", 9), route_of("claude", 9, 1, claude)], Vec::new());
    let format = |name| compiled(&index, name).format;
    assert_eq!((format("chat"), format("claude")), (WireFormat::OpenAi, WireFormat::Anthropic));
}

#[test]
fn what_is_not_carried_out_yet_is_said() {
    let groups = "concurrency: {type: Vegas, vegas: {initial: 20}}\nvalidation: {type: JSON}\ntaskBudget: {maxSteps: 3}";
    let index = index(vec![route("chat", 9)], vec![policy("p", 5, CHAT, groups)]);
    assert_eq!(rules(&index, "chat", "primary").concurrency.rules, Concurrency::Fixed { limit: 20 });
    let programmed = standing(&index, "p").programmed.unwrap();
    assert_eq!(said(&programmed), (Status::False, "UnsupportedField"));
    assert!(programmed.message.starts_with("concurrency.vegas, validation, taskBudget are not carried out"));
}

const WITH_SECRET: &str = "models: [m]
targets:
- {name: primary, provider: OpenAI, endpoint: https://one.example/v1, credential: {type: SecretRef, secretRef: {name: keys, key: openai}}}
- {name: secondary, provider: OpenAI, endpoint: https://two.example/v1, credential: {type: Passthrough}}
";

#[test]
fn a_secret_is_missing_lacks_the_key_is_unusable_and_comes() {
    let mut index = index(vec![route_of("chat", 9, 1, WITH_SECRET)], vec![]);
    let resolved = |index: &Index| compile(index).routes[&key("chat")].resolved_refs.clone().unwrap();
    let secrets = |index: &Index| compile(index).namespaces["ns"].secrets.clone();

    assert_eq!(said(&resolved(&index)), (Status::False, "SecretNotFound"));
    assert!(
        resolved(&index).message.contains("target \"primary\" is passed over: Secret ns/keys does not exist")
    );
    assert_eq!(compiled(&index, "chat").targets.len(), 2, "the other target serves");
    assert!(secrets(&index).is_empty());

    index.apply_secret(secret("keys", 1, &[("anthropic", "sk-a")]));
    assert_eq!(said(&resolved(&index)), (Status::False, "SecretKeyNotFound"));
    assert!(resolved(&index).message.contains("has no key \"openai\""));

    index.apply_secret(secret("keys", 2, &[("openai", "sk-very-secret\n")]));
    assert_eq!(said(&resolved(&index)), (Status::False, "SecretInvalid"));
    assert!(resolved(&index).message.contains("line break") && !resolved(&index).message.contains("sk-very"));

    index.apply_secret(secret("keys", 3, &[("openai", "sk-very-secret")]));
    assert_eq!(said(&resolved(&index)), (Status::True, "ResolvedRefs"));
    let known = secrets(&index);
    let version = &known[&SecretKey { name: "keys".into(), key: "openai".into() }];
    assert_eq!((version.value.expose(), &*version.resource_version), (&b"sk-very-secret"[..], "3"));
    assert!(!format!("{:?}", compile(&index)).contains("sk-very"), "never shown");

    index.delete_secret(&key("keys"));
    assert_eq!(said(&resolved(&index)), (Status::False, "SecretNotFound"));
    assert!(secrets(&index).is_empty());
}

#[test]
fn agents_get_the_secrets_of_their_own_routes_only() {
    let mine = format!("workloads: {{matchLabels: {{app: mine}}}}\n{WITH_SECRET}");
    let mut index = index(vec![route_of("chat", 9, 1, &mine), route("other", 9)], vec![]);
    index.apply_secret(secret("keys", 1, &[("openai", "sk-1")]));
    let compiled = compile(&index);
    assert_eq!(compiled.scope(&scope("ns", &[("app", "mine")])).secrets.len(), 1);
    assert!(compiled.scope(&scope("ns", &[("app", "other")])).secrets.is_empty());
}

fn scope(namespace: &str, labels: &[(&str, &str)]) -> Scope {
    let labels: BTreeMap<_, _> = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Scope { namespace: namespace.into(), labels }
}

#[test]
fn workloads_select_agents() {
    let selecting = |name: &str, selector: &str| {
        route_of(name, 1, 1, &format!("workloads: {selector}\n{}", route_spec(name)))
    };
    let index = index(
        vec![
            route("all", 1),
            selecting("labels", "{matchLabels: {app: a}}"),
            selecting("in", "{matchExpressions: [{key: tier, operator: In, values: [x, y]}]}"),
            selecting("not-in", "{matchExpressions: [{key: tier, operator: NotIn, values: [x]}]}"),
            selecting("exists", "{matchExpressions: [{key: tier, operator: Exists}]}"),
            selecting(
                "absent",
                "{matchLabels: {app: a}, matchExpressions: [{key: tier, operator: DoesNotExist}]}",
            ),
        ],
        vec![],
    );
    let compiled = compile(&index);
    let names = |scope: &Scope| {
        compiled.scope(scope).routes.iter().map(|route| route.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&scope("ns", &[])), ["all", "not-in"]);
    assert_eq!(names(&scope("ns", &[("app", "a")])), ["absent", "all", "labels", "not-in"]);
    assert_eq!(names(&scope("ns", &[("app", "a"), ("tier", "x")])), ["all", "exists", "in", "labels"]);
    assert!(names(&scope("elsewhere", &[("app", "a")])).is_empty());
}

fn dependent(name: &str, age: i64, endpoint: &str) -> sluice_api::ModelRoute {
    let target = format!(
        "{{name: t, provider: OpenAI, endpoint: {endpoint}, dependency: shared, credential: {{type: None}}}}"
    );
    route_of(name, age, 1, &format!("models: [{name}]\ntargets: [{target}]\n"))
}

#[test]
fn targets_of_one_dependency_share_their_id_and_must_agree() {
    let index_of = |policies| {
        let routes = vec![
            dependent("younger", 1, "https://one.example/v1"),
            dependent("older", 9, "https://one.example/v1"),
        ];
        index(routes, policies)
    };
    let index = index_of(vec![]);
    assert_eq!(compiled(&index, "older").targets[0].id, compiled(&index, "younger").targets[0].id);

    let index = index_of(vec![policy("p", 5, &["ModelRoute/younger"], "quota: {tokensPerMinute: 5}")]);
    let after = compile(&index);
    assert!(find(&after, "older").is_some());
    assert_eq!(held(&after), ["younger"]);
    let accepted = &after.routes[&key("younger")].accepted;
    assert_eq!(said(accepted), (Status::False, "DependencyMismatch"));
    assert!(accepted.message.contains("with another quota than the older older/t"), "{}", accepted.message);

    let both = index_of(vec![policy("p", 5, &["Namespace/ns"], "quota: {tokensPerMinute: 5}")]);
    assert!(held(&compile(&both)).is_empty());
}

#[test]
fn a_dependency_at_another_endpoint_is_a_mismatch_too() {
    let routes = vec![
        dependent("younger", 1, "https://two.example/v1"),
        dependent("older", 9, "https://one.example/v1"),
    ];
    let after = compile(&index(routes, vec![]));
    assert!(after.routes[&key("younger")].accepted.message.contains("another endpoint"));
    assert_eq!(held(&after), ["younger"]);
}

#[test]
fn overlapping_models_name_the_older_route() {
    let index = index(
        vec![route_of("new", 1, 1, &route_spec("gpt-4o")), route_of("old", 9, 1, &route_spec("gpt-4o"))],
        vec![],
    );
    let compiled = compile(&index);
    assert_eq!(compiled.routes[&key("old")].accepted.message, "");
    let new = &compiled.routes[&key("new")].accepted;
    assert_eq!(said(new), (Status::True, "Accepted"));
    assert_eq!(new.message, "model gpt-4o is served by the older ModelRoute ns/old");
    let created = |name| find(&compiled, name).unwrap().created_ms;
    assert!(created("old") < created("new"), "agents break the tie the same way");
    assert_eq!(find(&compiled, "old").unwrap().models, [ModelPattern::Exact("gpt-4o".into())]);
}

#[test]
fn revisions_grow_with_every_edit_and_stay_exact() {
    let with = |generation, groups: &str| policy_of("p", 5, generation, CHAT, groups);
    let mut index = index(
        vec![route("chat", 9)],
        vec![
            policy("old", 500, &["Namespace/ns"], "breaker: {minimumCalls: 2}"),
            with(1, "breaker: {minimumCalls: 3}"),
        ],
    );
    let mut last = rules(&index, "chat", "primary").revision;
    let mut grew = |index: &Index, what: &str| {
        let revision = rules(index, "chat", "primary").revision;
        assert!(revision > last && revision < 1 << 53, "{what}: {revision} after {last}");
        last = revision;
    };
    index.apply_policy(with(2, "breaker: {minimumCalls: 4}"), NOW_MS);
    grew(&index, "an edit");
    index.apply_policy(with(3, "breaker: {minimumCalls: 5}"), NOW_MS);
    grew(&index, "another within the same millisecond");
    index.apply_policy(with(4, "retries: {maxAttempts: 2}"), NOW_MS + 1);
    grew(&index, "a group that goes, so that a much older policy rules");
    assert_eq!(rules(&index, "chat", "primary").breaker.rules.minimum_calls, 2);
    index.apply_policy(policy_of("p", 5, 5, &["ModelRoute/else"], "retries: {maxAttempts: 2}"), NOW_MS + 2);
    grew(&index, "a reference that goes");
    index.delete_policy(&key("old"), NOW_MS + 3);
    grew(&index, "a deletion");
    let before = rules(&index, "chat", "primary");
    index.apply_policy(policy_of("p", 5, 5, &["ModelRoute/else"], "retries: {maxAttempts: 2}"), NOW_MS + 9);
    index.apply_route(route("chat", 9), NOW_MS + 9);
    assert_eq!(rules(&index, "chat", "primary"), before, "the same again is no edit");
}
