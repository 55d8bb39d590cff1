//! What came of each object, as drafts of its conditions.
//!
//! Compilation knows `Accepted` and `ResolvedRefs` for certain. `Programmed` is for the agents to say, unless
//! compilation already knows that it cannot be true; then the draft is here and agents are not asked.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice_api::conditions::{ACCEPTED, PROGRAMMED, RESOLVED_REFS, reason};
use sluice_api::policy::{TargetGroup, TargetKind, TargetRef};
use sluice_api::route::WorkloadSelector;
use sluice_api::status::AncestorRef;
use sluice_core::policy::{ObjectKind, ObjectRef, RoutePolicy};
use sluice_core::target_id::TargetId;

use super::groups::GroupName;
use super::merge::{Ancestor, Standing, Standings};
use super::secrets::Unresolved;
use super::{RouteOutcome, newest_ref};
use crate::conditions::{Draft, Status};
use crate::index::{Entry, Key, PolicyEntry, RouteEntry};

/// What came of a route.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteReport {
    /// At its newest generation.
    pub object: ObjectRef,
    pub accepted: Draft,
    pub resolved_refs: Option<Draft>,
    /// `None`: the agents say.
    pub programmed: Option<Draft>,
    /// In the order of the resource; empty when no version can be compiled.
    pub targets: Vec<TargetReport>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetReport {
    pub name: Arc<str>,
    pub id: TargetId,
    pub priority: u32,
}

/// What came of a policy.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyReport {
    /// At its newest generation.
    pub object: ObjectRef,
    /// One per object that it names, at most 16.
    pub ancestors: Vec<AncestorReport>,
}

/// A policy's standing with one object.
#[derive(Debug, Clone, PartialEq)]
pub struct AncestorReport {
    pub ancestor: AncestorRef,
    pub accepted: Draft,
    /// `None`: the agents of `routes` say.
    pub programmed: Option<Draft>,
    /// Routes that it rules here.
    pub routes: BTreeSet<Key>,
}

/// Says what came of a route. `all` are the namespace's routes from the oldest to the youngest.
pub(super) fn route(entry: &RouteEntry, outcome: RouteOutcome, all: &[&RouteEntry]) -> RouteReport {
    let object = newest_ref(entry, ObjectKind::ModelRoute);
    let refused = |reason, message: String, kept: &str| RouteReport {
        object: object.clone(),
        accepted: Draft::new(ACCEPTED, Status::False, reason, message),
        resolved_refs: None,
        programmed: Some(Draft::new(PROGRAMMED, Status::False, reason::HELD, kept)),
        targets: Vec::new(),
    };
    match outcome {
        RouteOutcome::Held => refused(reason::INVALID, problem(entry), KEPT_BY_AGENTS),
        RouteOutcome::Mismatch(mismatch) => {
            refused(reason::DEPENDENCY_MISMATCH, mismatch.to_string(), KEPT_BY_AGENTS)
        }
        RouteOutcome::Compiled { policy, unresolved } => {
            let held = entry.problem.as_ref().map(|problem| {
                let generation = entry.good.as_ref().map_or(0, |good| good.generation);
                let kept = format!("generation {generation} stays in use");
                refused(reason::INVALID, problem.clone(), &kept)
            });
            let base = held.unwrap_or_else(|| RouteReport {
                object: object.clone(),
                accepted: Draft::new(ACCEPTED, Status::True, reason::ACCEPTED, overlaps(entry, all)),
                resolved_refs: None,
                programmed: None,
                targets: Vec::new(),
            });
            RouteReport { resolved_refs: Some(resolved_refs(unresolved)), targets: targets(&policy), ..base }
        }
    }
}

const KEPT_BY_AGENTS: &str = "agents that have an earlier version keep it";

fn problem<T, M>(entry: &Entry<T, M>) -> String {
    entry.problem.clone().unwrap_or_else(|| "the object cannot be read".to_owned())
}

fn targets(policy: &RoutePolicy) -> Vec<TargetReport> {
    let report = |target: &sluice_core::policy::TargetPolicy| TargetReport {
        name: Arc::clone(&target.name),
        id: target.id.clone(),
        priority: target.priority,
    };
    policy.targets.iter().map(report).collect()
}

fn resolved_refs(unresolved: Vec<Unresolved>) -> Draft {
    let Some(first) = unresolved.first().map(|unresolved| unresolved.reason) else {
        return Draft::new(RESOLVED_REFS, Status::True, reason::RESOLVED_REFS, "");
    };
    let messages: Vec<String> = unresolved.into_iter().map(|unresolved| unresolved.message).collect();
    Draft::new(RESOLVED_REFS, Status::False, first, messages.join("; "))
}

/// Models that an older route serves, for all the agents that would get them from this one.
fn overlaps(entry: &RouteEntry, all: &[&RouteEntry]) -> String {
    let Some(good) = &entry.good else { return String::new() };
    let older = all.iter().take_while(|other| other.age != entry.age);
    let mut taken = Vec::new();
    for other in older {
        let Some(other_good) = &other.good else { continue };
        if !covers(other_good.meaning.workloads.as_ref(), good.meaning.workloads.as_ref()) {
            continue;
        }
        let models = good.meaning.policy.models.iter();
        for model in models.filter(|model| other_good.meaning.policy.models.contains(model)) {
            taken.push(format!("model {model} is served by the older ModelRoute {}", other.age.key));
        }
    }
    taken.join("; ")
}

/// Whether one selector certainly selects every pod that another does.
fn covers(one: Option<&WorkloadSelector>, other: Option<&WorkloadSelector>) -> bool {
    let everything = WorkloadSelector::default();
    let (one, other) = (one.unwrap_or(&everything), other.unwrap_or(&everything));
    *one == everything || one == other
}

/// Says what came of a policy.
pub(super) fn policy(
    entry: &PolicyEntry,
    standings: &Standings,
    routes: &BTreeMap<Key, RouteEntry>,
) -> PolicyReport {
    let object = newest_ref(entry, ObjectKind::ReliabilityPolicy);
    let refs = target_refs(entry);
    let ancestors: BTreeSet<Ancestor> = refs.iter().map(Ancestor::of).collect();
    let ancestors = ancestors.into_iter().map(|ancestor| {
        let sections = refs.iter().filter(|reference| Ancestor::of(reference) == ancestor);
        let sections = sections.filter_map(|reference| reference.section_name.as_deref()).collect();
        ancestor_report(entry, &ancestor, &Named { sections, standings, routes })
    });
    PolicyReport { object, ancestors: ancestors.collect() }
}

/// What it names now, as far as that can be read, or else what its last good version names. Of a policy of which nothing
/// can be read, every route of the namespace is held: so that is what its status is about.
fn target_refs(entry: &PolicyEntry) -> Cow<'_, [TargetRef]> {
    let newest = entry.newest.as_ref().map(|policy| &policy.spec.target_refs);
    let unread = || entry.unread.as_ref()?.target_refs.as_ref();
    let good = || Some(&entry.good.as_ref()?.object.spec.target_refs);
    if let Some(refs) = newest.or_else(unread).or_else(good) {
        return Cow::Borrowed(refs);
    }
    let namespace = entry.age.key.namespace.to_string();
    let all = TargetRef {
        group: TargetGroup::Core,
        kind: TargetKind::Namespace,
        name: namespace,
        section_name: None,
    };
    Cow::Owned(entry.unread.is_some().then_some(all).into_iter().collect())
}

/// What one ancestor is judged by.
struct Named<'a> {
    /// Targets that the policy names in it.
    sections: Vec<&'a str>,
    standings: &'a Standings,
    routes: &'a BTreeMap<Key, RouteEntry>,
}

fn ancestor_report(entry: &PolicyEntry, ancestor: &Ancestor, named: &Named<'_>) -> AncestorReport {
    let key = &entry.age.key;
    let nothing = Standing::default();
    let standing = named.standings.get(&(key.clone(), ancestor.clone())).unwrap_or(&nothing);
    let (accepted, programmed) = judge(entry, ancestor, standing, named);
    AncestorReport {
        ancestor: ancestor_ref(key, ancestor),
        accepted,
        programmed,
        routes: standing.routes.clone(),
    }
}

fn ancestor_ref(policy: &Key, ancestor: &Ancestor) -> AncestorRef {
    let (kind, group, name, namespace) = match ancestor {
        Ancestor::Route(name) => {
            (TargetKind::ModelRoute, sluice_api::GROUP, name, Some(policy.namespace.to_string()))
        }
        Ancestor::Namespace(name) => (TargetKind::Namespace, "", name, None),
    };
    AncestorRef {
        group: group.to_owned(),
        kind: kind.as_str().to_owned(),
        namespace,
        name: name.clone(),
        section_name: None,
    }
}

fn judge(
    entry: &PolicyEntry,
    ancestor: &Ancestor,
    standing: &Standing,
    named: &Named<'_>,
) -> (Draft, Option<Draft>) {
    let accepted = |status, reason, message: String| Draft::new(ACCEPTED, status, reason, message);
    let programmed = |reason, message: String| Some(Draft::new(PROGRAMMED, Status::False, reason, message));
    if entry.problem.is_some() {
        let kept = entry.good.as_ref().map_or_else(
            || "routes that it names stay as agents have them".to_owned(),
            |good| format!("generation {} stays in use", good.generation),
        );
        return (accepted(Status::False, reason::INVALID, problem(entry)), programmed(reason::HELD, kept));
    }
    let missing = missing(&entry.age.key, ancestor, named);
    if let Missing::Everything(message) = missing {
        return (accepted(Status::False, reason::TARGET_NOT_FOUND, message), None);
    }
    if standing.won.is_empty() && !standing.conflicted.is_empty() {
        return (accepted(Status::False, reason::CONFLICTED, losses(&standing.conflicted)), None);
    }
    let fine = accepted(Status::True, reason::ACCEPTED, String::new());
    if standing.won.is_empty() && !standing.overridden.is_empty() {
        return (fine, programmed(reason::OVERRIDDEN, losses(&standing.overridden)));
    }
    let mut partly: Vec<String> = Vec::new();
    if !standing.conflicted.is_empty() {
        partly.push(losses(&standing.conflicted));
    }
    if let Missing::Sections(message) = missing {
        partly.push(message);
    }
    let not_enforced = entry.good.as_ref().map_or(&[][..], |good| &good.meaning.not_enforced[..]);
    let unsupported = (!not_enforced.is_empty())
        .then(|| format!("{} not carried out by this version: agents do not get it", are(not_enforced)));
    let reason = if partly.is_empty() { reason::UNSUPPORTED_FIELD } else { reason::PARTIALLY_PROGRAMMED };
    partly.extend(unsupported);
    let draft =
        (!partly.is_empty()).then(|| Draft::new(PROGRAMMED, Status::False, reason, partly.join("; ")));
    (fine, draft)
}

enum Missing {
    Nothing,
    Sections(String),
    Everything(String),
}

fn missing(policy: &Key, ancestor: &Ancestor, named: &Named<'_>) -> Missing {
    let route = match ancestor {
        Ancestor::Namespace(name) if **name == *policy.namespace => return Missing::Nothing,
        Ancestor::Namespace(name) => {
            return Missing::Everything(format!(
                "Namespace {name} is not the policy's own: name {}",
                policy.namespace
            ));
        }
        Ancestor::Route(name) => Key::new(&policy.namespace, name),
    };
    let Some(entry) = named.routes.get(&route) else {
        return Missing::Everything(format!("ModelRoute {route} does not exist: create it, or name another"));
    };
    // Of a route that cannot be read nobody knows the targets.
    let Some(good) = &entry.good else { return Missing::Nothing };
    let targets: Vec<&str> = good.meaning.policy.targets.iter().map(|target| &*target.name).collect();
    let gone: Vec<&str> =
        named.sections.iter().copied().filter(|section| !targets.contains(section)).collect();
    if gone.is_empty() {
        return Missing::Nothing;
    }
    let message =
        format!("ModelRoute {route} has no target {}: it has {}", gone.join(", "), targets.join(", "));
    let attached = named.standings.keys().any(|(key, of)| key == policy && of == ancestor);
    if attached { Missing::Sections(message) } else { Missing::Everything(message) }
}

/// `breaker, quota: ruled by ns/older`, by the policy that rules.
fn losses(lost: &BTreeMap<GroupName, Key>) -> String {
    let mut by_winner: BTreeMap<&Key, Vec<&str>> = BTreeMap::new();
    for (group, winner) in lost {
        by_winner.entry(winner).or_default().push(group.as_str());
    }
    let said = by_winner
        .into_iter()
        .map(|(winner, groups)| format!("{} ruled by ReliabilityPolicy {winner}", are(&groups)));
    said.collect::<Vec<_>>().join("; ")
}

fn are(words: &[&str]) -> String {
    format!("{} {}", words.join(", "), if words.len() == 1 { "is" } else { "are" })
}
