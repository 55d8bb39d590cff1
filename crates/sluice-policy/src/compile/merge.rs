//! Which policy rules which group of which target.
//!
//! Per group, the most specific policy that *has* the group gives it whole: target (`sectionName`) → route →
//! namespace → built-in. At one level the older wins; the younger is in *conflict*. A policy at a less
//! specific level is *overridden*, which is how an inherited policy is meant to work and no fault.

use std::collections::{BTreeMap, BTreeSet};

use sluice_api::policy::{TargetKind, TargetRef};
use sluice_core::policy::{Group, ObjectKind, ObjectRef, Rules};

use super::groups::{GroupName, Groups};
use crate::index::{Key, PolicyEntry};

/// How specifically a policy names a target; the smaller rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Target,
    Route,
    Namespace,
}

/// A policy's standing is reported per object that it names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ancestor {
    Route(String),
    /// Its own, or (wrongly) another one.
    Namespace(String),
}

impl Ancestor {
    pub(super) fn of(target: &TargetRef) -> Self {
        match target.kind {
            TargetKind::ModelRoute => Self::Route(target.name.clone()),
            TargetKind::Namespace => Self::Namespace(target.name.clone()),
        }
    }
}

/// What became of a policy's groups at one ancestor.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// Groups that rule at least one target.
    pub(super) won: BTreeSet<GroupName>,
    /// Groups that an older policy at the same level rules, with that policy.
    pub(super) conflicted: BTreeMap<GroupName, Key>,
    /// Groups that a more specific policy rules, with that policy.
    pub(super) overridden: BTreeMap<GroupName, Key>,
    /// Routes that have a target it names.
    pub(super) routes: BTreeSet<Key>,
}

pub(super) type Standings = BTreeMap<(Key, Ancestor), Standing>;

/// A policy as it names one target.
struct Attached<'a> {
    level: Level,
    policy: &'a PolicyEntry,
    groups: &'a Groups,
    ancestor: Ancestor,
}

/// The policies of a namespace, from the oldest to the youngest.
pub(super) struct Merge<'a> {
    pub(super) policies: Vec<&'a PolicyEntry>,
    pub(super) standings: Standings,
}

impl<'a> Merge<'a> {
    pub(super) fn new(mut policies: Vec<&'a PolicyEntry>) -> Self {
        policies.sort_by(|one, other| one.age.cmp(&other.age));
        Self { policies, standings: Standings::new() }
    }

    /// All policies that name a route, at whatever level.
    pub(super) fn naming(&self, route: &Key) -> impl Iterator<Item = &'a PolicyEntry> + use<'a, '_> {
        let route = route.clone();
        self.policies.iter().copied().filter(move |policy| {
            policy
                .good
                .as_ref()
                .is_some_and(|good| good.object.spec.target_refs.iter().any(|target| names(target, &route)))
        })
    }

    /// What rules one target, and which policies that came from.
    pub(super) fn rules(&mut self, route: &Key, target: &str, revision: u64) -> (Rules, BTreeSet<ObjectRef>) {
        let attached = self.attached(route, target);
        let mut ruling =
            Ruling { attached: &attached, standings: &mut self.standings, sources: BTreeSet::new() };
        let rules = Rules {
            deadlines: ruling
                .group(GroupName::Deadlines, |groups| groups.deadlines.clone())
                .unwrap_or_default(),
            breaker: ruling.group(GroupName::Breaker, |groups| groups.breaker.clone()).unwrap_or_default(),
            quota: ruling.group(GroupName::Quota, |groups| groups.quota.clone()),
            concurrency: ruling
                .group(GroupName::Concurrency, |groups| groups.concurrency.clone())
                .unwrap_or_default(),
            queue: ruling.group(GroupName::Queue, |groups| groups.queue.clone()).unwrap_or_default(),
            retries: ruling.group(GroupName::Retries, |groups| groups.retries.clone()).unwrap_or_default(),
            streaming: ruling
                .group(GroupName::Streaming, |groups| groups.streaming.clone())
                .unwrap_or_default(),
            state_store: ruling
                .group(GroupName::StateStore, |groups| groups.state_store.clone())
                .unwrap_or_default(),
            revision,
        };
        let sources = ruling.sources;
        for attached in &attached {
            self.standings.entry(attached.key()).or_default().routes.insert(route.clone());
        }
        (rules, sources)
    }

    /// The policies that name a target: the most specific first, then the oldest. Each counts once, at its
    /// most specific level.
    fn attached(&self, route: &Key, target: &str) -> Vec<Attached<'a>> {
        let mut attached: Vec<Attached<'a>> = self
            .policies
            .iter()
            .filter_map(|policy| {
                let good = policy.good.as_ref()?;
                let refs = good.object.spec.target_refs.iter().filter(|reference| names(reference, route));
                let levels = refs.filter_map(|reference| {
                    let level = match (reference.kind, reference.section_name.as_deref()) {
                        (TargetKind::Namespace, _) => Level::Namespace,
                        (TargetKind::ModelRoute, None) => Level::Route,
                        (TargetKind::ModelRoute, Some(section)) if section == target => Level::Target,
                        (TargetKind::ModelRoute, Some(_)) => return None,
                    };
                    Some((level, Ancestor::of(reference)))
                });
                let (level, ancestor) = levels.min()?;
                Some(Attached { level, policy, groups: &good.meaning, ancestor })
            })
            .collect();
        // Stable: at one level the order of age stays.
        attached.sort_by_key(|attached| attached.level);
        attached
    }
}

impl Attached<'_> {
    fn key(&self) -> (Key, Ancestor) {
        (self.policy.age.key.clone(), self.ancestor.clone())
    }
}

/// The decision about one target, group by group.
struct Ruling<'a, 'b> {
    attached: &'b [Attached<'a>],
    standings: &'b mut Standings,
    sources: BTreeSet<ObjectRef>,
}

impl Ruling<'_, '_> {
    fn group<T>(&mut self, name: GroupName, rules: impl Fn(&Groups) -> Option<T>) -> Option<Group<T>> {
        let mut with_group = self.attached.iter().filter(|attached| attached.groups.has(name));
        let winner = with_group.next()?;
        self.standings.entry(winner.key()).or_default().won.insert(name);
        for loser in with_group {
            let standing = self.standings.entry(loser.key()).or_default();
            let lost =
                if loser.level == winner.level { &mut standing.conflicted } else { &mut standing.overridden };
            lost.insert(name, winner.policy.age.key.clone());
        }
        let source = winner.policy.object_ref(ObjectKind::ReliabilityPolicy);
        self.sources.insert(source.clone());
        rules(winner.groups).map(|rules| Group { rules, mode: winner.groups.mode, source: Some(source) })
    }
}

/// Whether a reference of a policy in the route's namespace names the route, or a target of it.
pub(super) fn names(reference: &TargetRef, route: &Key) -> bool {
    match reference.kind {
        TargetKind::ModelRoute => *reference.name == *route.name,
        TargetKind::Namespace => *reference.name == *route.namespace,
    }
}
