//! Resources in, policies and conditions out.
//!
//! Why one pure function: the same relations (which policy rules which target, what exists, what conflicts)
//! decide what agents get *and* what status says. Derived twice they drift apart; derived once, a condition can
//! only say what the agents were told. It is also the whole of the control plane's judgement, so it is tested
//! without a cluster, a socket or a clock.
//!
//! Mechanics, per namespace: order routes and policies by age; merge policies into each target
//! ([`merge`]); admit dependencies ([`dependency`]); look up secrets ([`secrets`]); then say what came of it
//! ([`report`]). The result depends on the objects and their ages alone, never on the order of arrival.
//!
//! Edge rules: an object whose newest version cannot be read is compiled from its last good version, or
//! listed as held where there is none. A policy without a good version holds the routes that it names
//! (all of its namespace, where not even that can be read): they are sent without it for agents that have
//! nothing, and agents that have a version with it keep that.

mod dependency;
mod groups;
mod merge;
mod report;
mod route;
mod secrets;
mod unwritten;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice_api::route::WorkloadSelector;
use sluice_core::policy::{Credential, ObjectKind, ObjectRef, RoutePolicy, SecretKey, TargetPolicy};
use sluice_proto::apply::RouteName;

pub use dependency::Mismatch;
pub use groups::{GroupName, Groups, InvalidPolicy};
pub use report::{AncestorReport, PolicyReport, RouteReport, TargetReport};
pub use route::{InvalidRoute, RouteDraft};
pub use secrets::SecretVersion;

use crate::index::{Index, Key, PolicyEntry, RouteEntry};
use dependency::Dependencies;
use merge::Merge;
use secrets::Unresolved;

/// What agents get and what status says.
///
/// Nothing of one namespace depends on another, so an edit compiles its own anew and shares the rest with what was
/// compiled before: who compares addresses knows what is unchanged.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Compiled {
    pub namespaces: BTreeMap<Arc<str>, Arc<NamespacePolicies>>,
    pub routes: BTreeMap<Key, Arc<RouteReport>>,
    pub policies: BTreeMap<Key, Arc<PolicyReport>>,
}

/// What the agents of one namespace get.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NamespacePolicies {
    /// By name.
    pub routes: Vec<ScopedRoute>,
    /// Routes that exist and whose newest version cannot be compiled: agents keep what they have.
    pub held: BTreeSet<RouteName>,
    pub secrets: BTreeMap<SecretKey, SecretVersion>,
    /// Keys whose value cannot be read now: agents keep what they have of them.
    pub held_secrets: BTreeSet<SecretKey>,
    /// Keys that held routes name, as far as that is known: agents that keep such a route need them.
    pub held_keys: BTreeSet<SecretKey>,
}

/// A route, and which agents get it.
#[derive(Debug, Clone, PartialEq)]
pub struct ScopedRoute {
    pub workloads: Option<WorkloadSelector>,
    pub policy: Arc<RoutePolicy>,
}

impl ScopedRoute {
    /// Whether agents of pods with these labels get it.
    #[must_use]
    pub fn is_for(&self, labels: &BTreeMap<String, String>) -> bool {
        self.workloads.as_ref().is_none_or(|selector| selector.selects(labels))
    }
}

/// Whose policies an agent gets: its namespace and its pod's labels.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope {
    pub namespace: Arc<str>,
    pub labels: BTreeMap<String, String>,
}

/// What the agents of one scope get.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ScopePolicies {
    pub routes: Vec<Arc<RoutePolicy>>,
    pub held: BTreeSet<RouteName>,
    /// Those that the routes and held routes name, and no others.
    pub secrets: BTreeMap<SecretKey, SecretVersion>,
    /// Of those the ones whose value cannot be read now.
    pub held_secrets: BTreeSet<SecretKey>,
}

impl Compiled {
    /// What the agents of a scope get.
    #[must_use]
    pub fn scope(&self, scope: &Scope) -> ScopePolicies {
        let Some(namespace) = self.namespaces.get(&scope.namespace) else { return ScopePolicies::default() };
        let selected = namespace.routes.iter().filter(|route| route.is_for(&scope.labels));
        let routes: Vec<_> = selected.map(|route| Arc::clone(&route.policy)).collect();
        let named = routes.iter().flat_map(|route| secret_keys(route));
        let named: BTreeSet<&SecretKey> = named.chain(&namespace.held_keys).collect();
        let secrets = namespace.secrets.iter().filter(|(key, _)| named.contains(key));
        let secrets = secrets.map(|(key, version)| (key.clone(), version.clone())).collect();
        let held_secrets = namespace.held_secrets.iter().filter(|key| named.contains(key));
        let held_secrets = held_secrets.cloned().collect();
        ScopePolicies { routes, held: namespace.held.clone(), secrets, held_secrets }
    }
}

impl Compiled {
    /// Leaves some namespaces as they were before; those that were not there are not there yet.
    pub fn keep(&mut self, before: &Self, namespaces: &BTreeSet<Arc<str>>) {
        for namespace in namespaces {
            self.forget(namespace);
            let policies = before.namespaces.get_key_value(namespace);
            self.namespaces.extend(policies.map(|(name, policies)| (name.clone(), policies.clone())));
            let reports = of_namespace(&before.routes, namespace);
            self.routes.extend(reports.map(|(key, report)| (key.clone(), report.clone())));
            let reports = of_namespace(&before.policies, namespace);
            self.policies.extend(reports.map(|(key, report)| (key.clone(), report.clone())));
        }
    }

    fn forget(&mut self, namespace: &Arc<str>) {
        self.namespaces.remove(namespace);
        let routes: Vec<Key> = of_namespace(&self.routes, namespace).map(|(key, _)| key.clone()).collect();
        for key in &routes {
            self.routes.remove(key);
        }
        let policies: Vec<Key> =
            of_namespace(&self.policies, namespace).map(|(key, _)| key.clone()).collect();
        for key in &policies {
            self.policies.remove(key);
        }
    }
}

/// What a map by name has of one namespace.
fn of_namespace<'a, T>(
    all: &'a BTreeMap<Key, T>,
    namespace: &'a Arc<str>,
) -> impl Iterator<Item = (&'a Key, &'a T)> {
    let first = Key { namespace: Arc::clone(namespace), name: "".into() };
    all.range(first..).take_while(move |(key, _)| key.namespace == *namespace)
}

pub(crate) fn secret_keys(route: &RoutePolicy) -> impl Iterator<Item = &SecretKey> {
    route.targets.iter().filter_map(|target| match &target.credential {
        Credential::Secret(key) => Some(key),
        Credential::Passthrough | Credential::None => None,
    })
}

/// Compiles everything.
#[must_use]
pub fn compile(index: &Index) -> Compiled {
    let keys = index.routes().keys().chain(index.policies().keys());
    let namespaces = keys.map(|key| Arc::clone(&key.namespace)).collect();
    compile_again(index, &Compiled::default(), &namespaces)
}

/// Compiles these namespaces; the others are as they were before.
#[must_use]
#[tracing::instrument(name = "compile", skip_all, fields(namespaces = namespaces.len(), routes = index.routes().len()))]
pub fn compile_again(index: &Index, before: &Compiled, namespaces: &BTreeSet<Arc<str>>) -> Compiled {
    let mut compiled = before.clone();
    for namespace in namespaces {
        compiled.forget(namespace);
        Namespace::new(index, namespace).compile(&mut compiled);
    }
    compiled
}

/// One namespace on its way through.
struct Namespace<'a> {
    index: &'a Index,
    /// From the oldest to the youngest.
    routes: Vec<&'a RouteEntry>,
    merge: Merge<'a>,
    dependencies: Dependencies,
    out: NamespacePolicies,
    reports: BTreeMap<Key, RouteReport>,
}

impl<'a> Namespace<'a> {
    fn new(index: &'a Index, namespace: &'a Arc<str>) -> Self {
        let mut routes: Vec<_> = of_namespace(index.routes(), namespace).map(|(_, route)| route).collect();
        routes.sort_by(|one, other| one.age.cmp(&other.age));
        let policies = of_namespace(index.policies(), namespace).map(|(_, policy)| policy);
        Self {
            index,
            routes,
            merge: Merge::new(policies.collect()),
            dependencies: Dependencies::default(),
            out: NamespacePolicies::default(),
            reports: BTreeMap::new(),
        }
    }

    fn compile(mut self, compiled: &mut Compiled) {
        let Some(namespace) = self.name() else { return };
        for entry in self.routes.clone() {
            let outcome = self.route(entry);
            let report = report::route(entry, outcome, &self.routes);
            self.reports.insert(entry.age.key.clone(), report);
        }
        self.hold_routes_of_unreadable_policies();
        self.out.routes.sort_by(|one, other| one.policy.name.cmp(&other.policy.name));
        for policy in &self.merge.policies {
            let report = report::policy(policy, &self.merge.standings, self.index.routes());
            compiled.policies.insert(policy.age.key.clone(), Arc::new(report));
        }
        let reports = self.reports.into_iter().map(|(key, report)| (key, Arc::new(report)));
        compiled.routes.extend(reports);
        compiled.namespaces.insert(namespace, Arc::new(self.out));
    }

    fn name(&self) -> Option<Arc<str>> {
        let first = self.routes.first().map(|route| &route.age);
        let first = first.or_else(|| self.merge.policies.first().map(|policy| &policy.age));
        first.map(|age| Arc::clone(&age.key.namespace))
    }

    /// Compiles one route. Routes come from the oldest to the youngest.
    fn route(&mut self, entry: &RouteEntry) -> RouteOutcome {
        let key = &entry.age.key;
        let Some(good) = &entry.good else {
            let named = secrets::named_by_newest(entry);
            self.hold(key, named.iter().map(|(_, key)| key));
            secrets::resolve(self.index, &key.namespace, &named, &mut self.out);
            return RouteOutcome::Held;
        };
        let policy = self.ruled(key, &good.meaning.policy);
        let named = secrets::named_by(&policy);
        let unresolved = secrets::resolve(self.index, &key.namespace, &named, &mut self.out);
        if let Err(mismatch) = self.dependencies.admit(&policy, &good.meaning.dependencies) {
            self.hold(key, named.iter().map(|(_, key)| key));
            return RouteOutcome::Mismatch(mismatch);
        }
        let policy = Arc::new(policy);
        let workloads = good.meaning.workloads.clone();
        self.out.routes.push(ScopedRoute { workloads, policy: Arc::clone(&policy) });
        RouteOutcome::Compiled { policy, unresolved }
    }

    fn hold<'k>(&mut self, key: &Key, secrets: impl Iterator<Item = &'k SecretKey>) {
        self.out.held.insert(route_name(key));
        self.out.held_keys.extend(secrets.cloned());
    }

    /// The route with what rules its targets.
    fn ruled(&mut self, key: &Key, draft: &RoutePolicy) -> RoutePolicy {
        let revision = self.index.revision(key, self.merge.naming(key));
        let mut policies: BTreeSet<ObjectRef> = BTreeSet::new();
        let mut targets: Vec<TargetPolicy> = Vec::with_capacity(draft.targets.len());
        for target in &draft.targets {
            let (rules, sources) = self.merge.rules(key, &target.name, revision);
            policies.extend(sources);
            targets.push(TargetPolicy { rules, ..target.clone() });
        }
        let sources = draft.sources.iter().cloned().chain(policies).collect();
        RoutePolicy { sources, targets, ..draft.clone() }
    }

    fn hold_routes_of_unreadable_policies(&mut self) {
        let unreadable = self.merge.policies.iter().filter(|policy| policy.good.is_none());
        for policy in unreadable.copied().collect::<Vec<&PolicyEntry>>() {
            let held = self.routes.iter().map(|route| &route.age.key).filter(|key| {
                let refs = policy.newest.as_ref().map(|newest| &newest.spec.target_refs);
                let refs = refs.or_else(|| policy.unread.as_ref()?.target_refs.as_ref());
                refs.is_none_or(|refs| refs.iter().any(|reference| merge::names(reference, key)))
            });
            self.out.held.extend(held.map(route_name));
        }
    }
}

/// What became of a route.
enum RouteOutcome {
    Compiled {
        policy: Arc<RoutePolicy>,
        unresolved: Vec<Unresolved>,
    },
    /// There is no version that can be compiled.
    Held,
    Mismatch(Mismatch),
}

fn route_name(key: &Key) -> RouteName {
    RouteName { namespace: Arc::clone(&key.namespace), name: Arc::clone(&key.name) }
}

/// What a report is about.
fn newest_ref<T, M>(entry: &crate::index::Entry<T, M>, kind: ObjectKind) -> ObjectRef {
    ObjectRef { generation: entry.generation, ..entry.object_ref(kind) }
}
