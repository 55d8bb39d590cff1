//! The resources as they are now, and the last good version of each.
//!
//! Why both: an edit that cannot be compiled must change nothing but its own status. The index reads every
//! object once, when it arrives; where reading fails, the version before stays in use and `compile` reports
//! the failure. Where there is no version before (the control plane has just started), `compile` lists
//! the object as *held*, and the agents, which may still have one, keep theirs.
//!
//! It also dates every edit. Agents with different settings meet in the shared state, and the settings with the
//! higher *revision* rule there, so a revision must grow with every edit that changes what rules a target, also
//! when that edit is the deletion of a policy and a much older one takes over. No field of the remaining
//! objects says so; the index remembers it ([`Index::revision`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sluice_api::policy::{TargetKind, TargetRef};
use sluice_api::{ModelRoute, ReliabilityPolicy};
use sluice_core::policy::{ObjectKind, ObjectRef, SecretKey};
use sluice_proto::bounds::{self, EXACT_INTEGER};

use crate::compile::{Groups, RouteDraft};

/// Namespace and name of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl Key {
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// An object without a namespace counts to `default`, as kubectl does.
    #[must_use]
    pub fn of(meta: &ObjectMeta) -> Self {
        let namespace = meta.namespace.as_deref().filter(|namespace| !namespace.is_empty());
        Self::new(namespace.unwrap_or("default"), meta.name.as_deref().unwrap_or_default())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Who is older: by creation, then by name, as GEP-713 breaks ties. An object without a time of creation is
/// younger than all that have one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Age {
    pub created_ms: u64,
    pub key: Key,
}

/// An object that could be read: what came, and what it means.
#[derive(Debug, Clone)]
pub struct Good<T, M> {
    pub object: Arc<T>,
    pub meaning: Arc<M>,
    pub generation: i64,
}

/// One object.
#[derive(Debug, Clone)]
pub struct Entry<T, M> {
    pub age: Age,
    /// Of the newest version, as far as it is known.
    pub generation: i64,
    /// The newest version that could be read.
    pub good: Option<Good<T, M>>,
    /// Why the newest version could not be read; `None`: it could, and is `good`.
    pub problem: Option<String>,
    /// The newest version as it came, where it parsed at all: what it points at is known even when it is bad.
    pub newest: Option<Arc<T>>,
    /// What is known of a newest version that could not be parsed.
    pub unread: Option<Arc<Unread>>,
    /// When this object last changed, milliseconds since 1970.
    edited_ms: u64,
}

/// An object that an API server accepted and that could not be parsed here (it may be of a newer version): what is
/// known of it all the same, so that its own status can say so.
#[derive(Debug, Clone, PartialEq)]
pub struct Unread {
    pub meta: ObjectMeta,
    /// As it came.
    pub status: serde_json::Value,
    /// What a policy names, as far as that can be read.
    pub target_refs: Option<Vec<TargetRef>>,
    /// The credentials that a route names, as far as that can be read: agents that keep an earlier version need theirs.
    pub secret_keys: BTreeSet<SecretKey>,
}

impl Unread {
    /// What can be read of an object: `object` is all but its metadata.
    #[must_use]
    pub fn of(meta: ObjectMeta, mut object: serde_json::Value) -> Self {
        let mut part = |name: &str| object.get_mut(name).map(serde_json::Value::take).unwrap_or_default();
        let (spec, status) = (part("spec"), part("status"));
        let targets = spec["targets"].as_array().into_iter().flatten();
        let references = targets.map(|target| &target["credential"]["secretRef"]);
        let secret_keys = references.filter_map(|reference| {
            let text = |field: &str| reference[field].as_str().map(Arc::from);
            Some(SecretKey { name: text("name")?, key: text("key")? })
        });
        Self {
            meta,
            status,
            target_refs: serde_json::from_value(spec["targetRefs"].clone()).ok(),
            secret_keys: secret_keys.take(bounds::SECRETS).collect(),
        }
    }
}

impl<T, M> Entry<T, M> {
    /// The version in use, as conditions and acknowledgements name it.
    #[must_use]
    pub fn object_ref(&self, kind: ObjectKind) -> ObjectRef {
        ObjectRef {
            kind,
            namespace: Arc::clone(&self.age.key.namespace),
            name: Arc::clone(&self.age.key.name),
            generation: self.good.as_ref().map_or(self.generation, |good| good.generation),
        }
    }
}

pub type RouteEntry = Entry<ModelRoute, RouteDraft>;
pub type PolicyEntry = Entry<ReliabilityPolicy, Groups>;

/// Why Secrets can't be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretsUnreadable {
    /// The control plane was not told to.
    NotWatched,
    /// It was, and has no right to.
    Forbidden,
}

/// Whose Secrets may be read. Of the others nobody knows whether they exist.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SecretScope {
    #[default]
    Everywhere,
    Only(BTreeSet<Arc<str>>),
}

/// Resources by name. All methods are synchronous and read nothing; `now_ms` is milliseconds since 1970.
#[derive(Debug, Default, Clone)]
pub struct Index {
    routes: BTreeMap<Key, RouteEntry>,
    policies: BTreeMap<Key, PolicyEntry>,
    secrets: BTreeMap<Key, Arc<Secret>>,
    /// Those that exist and can't be read now, and why.
    failed_secrets: BTreeMap<Key, String>,
    secret_scope: SecretScope,
    /// Namespaces in the scope where reading is refused all the same.
    secrets_forbidden: BTreeSet<Arc<str>>,
    /// Routes whose policies were edited or deleted while we watched, and when.
    touched: BTreeMap<Key, u64>,
}

impl Index {
    pub fn apply_route(&mut self, route: ModelRoute, now_ms: u64) {
        let meaning = RouteDraft::read(&route).map_err(|error| error.to_string());
        let meta = route.metadata.clone();
        let same = |old: &ModelRoute, new: &ModelRoute| old.spec == new.spec;
        put(&mut self.routes, &meta, route, meaning, same, now_ms);
    }

    pub fn apply_policy(&mut self, policy: ReliabilityPolicy, now_ms: u64) {
        let meaning = Groups::read(&policy.spec).map_err(|error| error.to_string());
        let (key, meta) = (Key::of(&policy.metadata), policy.metadata.clone());
        let before = self.routes_of_policy(&key);
        let same = |old: &ReliabilityPolicy, new: &ReliabilityPolicy| old.spec == new.spec;
        let edited = put(&mut self.policies, &meta, policy, meaning, same, now_ms);
        if edited {
            // Routes that it no longer names, too: something older rules them now.
            let after = self.routes_of_policy(&key);
            self.touch(before.into_iter().chain(after), now_ms);
        }
    }

    /// The newest version of a Secret; one without data has no keys.
    pub fn apply_secret(&mut self, secret: Secret) {
        let key = Key::of(&secret.metadata);
        self.failed_secrets.remove(&key);
        self.secrets.insert(key, Arc::new(secret));
    }

    /// A Secret exists and can't be read now; a version that was read before stays in use.
    pub fn fail_secret(&mut self, key: &Key, why: &str) {
        self.failed_secrets.insert(key.clone(), why.to_owned());
    }

    /// Why a Secret can't be read now.
    #[must_use]
    pub fn failed_secret(&self, key: &Key) -> Option<&str> {
        self.failed_secrets.get(key).map(String::as_str)
    }

    /// The object exists and its newest version could not even be parsed.
    pub fn hold(&mut self, kind: ObjectKind, key: &Key, problem: &str) {
        match kind {
            ObjectKind::ModelRoute => hold(&mut self.routes, key, problem),
            ObjectKind::ReliabilityPolicy => hold(&mut self.policies, key, problem),
        }
    }

    /// The object exists, and its newest version could not be parsed.
    pub fn hold_unread(&mut self, kind: ObjectKind, unread: Unread, problem: &str) {
        match kind {
            ObjectKind::ModelRoute => hold_unread(&mut self.routes, unread, problem),
            ObjectKind::ReliabilityPolicy => hold_unread(&mut self.policies, unread, problem),
        }
    }

    /// Whose Secrets may be read; everyone's before this is called.
    pub fn set_secret_scope(&mut self, scope: SecretScope) {
        self.secret_scope = scope;
    }

    /// Reading the Secrets of a namespace is refused, or not any more; `None`: of any namespace. Whether that is news.
    pub fn forbid_secrets(&mut self, namespace: Option<&str>, forbidden: bool) -> bool {
        let namespace: Arc<str> = namespace.unwrap_or_default().into();
        if forbidden {
            self.secrets_forbidden.insert(namespace)
        } else {
            self.secrets_forbidden.remove(&namespace)
        }
    }

    /// Why the Secrets of a namespace can't be read; `None`: they can.
    #[must_use]
    pub fn secrets_unreadable(&self, namespace: &str) -> Option<SecretsUnreadable> {
        let in_scope = match &self.secret_scope {
            SecretScope::Everywhere => true,
            SecretScope::Only(namespaces) => namespaces.contains(namespace),
        };
        let forbidden = self.secrets_forbidden.contains(namespace) || self.secrets_forbidden.contains("");
        if in_scope {
            forbidden.then_some(SecretsUnreadable::Forbidden)
        } else {
            Some(SecretsUnreadable::NotWatched)
        }
    }

    pub fn delete_route(&mut self, key: &Key) {
        self.routes.remove(key);
        self.touched.remove(key);
    }

    pub fn delete_policy(&mut self, key: &Key, now_ms: u64) {
        let routes = self.routes_of_policy(key);
        self.policies.remove(key);
        self.touch(routes, now_ms);
    }

    pub fn delete_secret(&mut self, key: &Key) {
        self.failed_secrets.remove(key);
        self.secrets.remove(key);
    }

    /// All routes there are: what is not among them is deleted.
    pub fn reset_routes(&mut self, routes: Vec<ModelRoute>, now_ms: u64) {
        let keys: Vec<Key> = routes.iter().map(|route| Key::of(&route.metadata)).collect();
        for gone in self.routes.keys().filter(|key| !keys.contains(key)).cloned().collect::<Vec<_>>() {
            self.delete_route(&gone);
        }
        for route in routes {
            self.apply_route(route, now_ms);
        }
    }

    /// All policies there are: what is not among them is deleted.
    pub fn reset_policies(&mut self, policies: Vec<ReliabilityPolicy>, now_ms: u64) {
        let keys: Vec<Key> = policies.iter().map(|policy| Key::of(&policy.metadata)).collect();
        for gone in self.policies.keys().filter(|key| !keys.contains(key)).cloned().collect::<Vec<_>>() {
            self.delete_policy(&gone, now_ms);
        }
        for policy in policies {
            self.apply_policy(policy, now_ms);
        }
    }

    /// All Secrets there are.
    pub fn reset_secrets(&mut self, secrets: Vec<Secret>) {
        self.secrets.clear();
        for secret in secrets {
            self.apply_secret(secret);
        }
    }

    #[must_use]
    pub fn routes(&self) -> &BTreeMap<Key, RouteEntry> {
        &self.routes
    }

    #[must_use]
    pub fn policies(&self) -> &BTreeMap<Key, PolicyEntry> {
        &self.policies
    }

    #[must_use]
    pub fn secret(&self, key: &Key) -> Option<&Secret> {
        self.secrets.get(key).map(AsRef::as_ref)
    }

    /// Which edit of its policies a route is ruled by; `policies` are all that name it, at any level.
    ///
    /// The milliseconds of the newest edit (creation, an update that the API server recorded, an update or
    /// deletion that this index saw) times 2,048, plus the generation modulo 2,048 of the object that it was
    /// made to: API servers record whole seconds, and of two edits within one second the generation tells.
    /// Below 2^53 until the year 2109. Replicas date an edit by their own clocks and so differ a little; that
    /// is harmless, as the same settings under another revision are the same settings.
    pub fn revision<'a>(&self, route: &Key, policies: impl Iterator<Item = &'a PolicyEntry>) -> u64 {
        let edits = policies.map(|policy| (policy.edited_ms, policy.generation.unsigned_abs() % STEP));
        let touched = self.touched.get(route).map(|ms| (*ms, 0));
        edits
            .chain(touched)
            .max()
            .map_or(0, |(ms, generation)| ms.min(EXACT_INTEGER / STEP - 1) * STEP + generation)
    }

    /// Routes that the newest version of a policy names and that exist.
    fn routes_of_policy(&self, key: &Key) -> Vec<Key> {
        let Some(policy) = self.policies.get(key) else { return Vec::new() };
        let versions = [policy.newest.as_deref(), policy.good.as_ref().map(|good| good.object.as_ref())];
        let unread = policy.unread.iter().filter_map(|unread| unread.target_refs.as_ref());
        let refs = versions.into_iter().flatten().map(|policy| &policy.spec.target_refs);
        let refs: Vec<_> = refs.chain(unread).flatten().collect();
        let namespace_wide =
            refs.is_empty() || refs.iter().any(|target| target.kind == TargetKind::Namespace);
        self.routes
            .keys()
            .filter(|route| route.namespace == key.namespace)
            .filter(|route| namespace_wide || refs.iter().any(|target| *target.name == *route.name))
            .cloned()
            .collect()
    }

    fn touch(&mut self, routes: impl IntoIterator<Item = Key>, now_ms: u64) {
        for route in routes {
            let touched = self.touched.entry(route).or_default();
            *touched = now_ms.max(*touched + 1);
        }
    }
}

/// Generations that one millisecond has room for in a revision.
const STEP: u64 = 2_048;

/// Takes a new version. Whether it edits one that was known.
fn put<T, M>(
    entries: &mut BTreeMap<Key, Entry<T, M>>,
    meta: &ObjectMeta,
    object: T,
    meaning: Result<M, String>,
    same: impl Fn(&T, &T) -> bool,
    now_ms: u64,
) -> bool {
    let (key, object) = (Key::of(meta), Arc::new(object));
    let generation = meta.generation.unwrap_or(0);
    let created_ms = created_ms(meta);
    let before = entries.remove(&key);
    let edited = before.as_ref().is_some_and(|before| {
        before.newest.as_ref().is_none_or(|old| !same(old, &object)) || before.generation != generation
    });
    let edited_ms = match &before {
        Some(before) if edited => now_ms.max(before.edited_ms + 1),
        Some(before) => before.edited_ms,
        None => first_seen_ms(meta),
    };
    let (good, problem) = match meaning {
        Ok(meaning) => {
            (Some(Good { object: Arc::clone(&object), meaning: Arc::new(meaning), generation }), None)
        }
        Err(problem) => (before.and_then(|before| before.good), Some(problem)),
    };
    let age = Age { created_ms, key: key.clone() };
    entries
        .insert(key, Entry { age, generation, good, problem, newest: Some(object), unread: None, edited_ms });
    edited
}

fn hold<T, M>(entries: &mut BTreeMap<Key, Entry<T, M>>, key: &Key, problem: &str) {
    let entry = entries.entry(key.clone()).or_insert_with(|| Entry {
        age: Age { created_ms: EXACT_INTEGER, key: key.clone() },
        generation: 0,
        good: None,
        problem: None,
        newest: None,
        unread: None,
        edited_ms: 0,
    });
    entry.problem = Some(problem.to_owned());
    entry.newest = None;
    entry.unread = None;
}

fn hold_unread<T, M>(entries: &mut BTreeMap<Key, Entry<T, M>>, unread: Unread, problem: &str) {
    let key = Key::of(&unread.meta);
    hold(entries, &key, problem);
    if let Some(entry) = entries.get_mut(&key) {
        entry.age.created_ms = created_ms(&unread.meta);
        entry.generation = unread.meta.generation.unwrap_or(0);
        entry.unread = Some(Arc::new(unread));
    }
}

/// When an object was created; one that does not say is younger than all others.
pub(crate) fn created_ms(meta: &ObjectMeta) -> u64 {
    meta.creation_timestamp.as_ref().map_or(EXACT_INTEGER, |time| millis(time.0))
}

/// When an object that is new to this index last changed: what the API server recorded of writes to
/// anything but its status, or else its creation.
fn first_seen_ms(meta: &ObjectMeta) -> u64 {
    let writes = meta.managed_fields.iter().flatten();
    let writes = writes.filter(|write| write.subresource.as_deref().unwrap_or_default().is_empty());
    let times = writes.filter_map(|write| write.time.as_ref()).chain(&meta.creation_timestamp);
    times.map(|time| millis(time.0)).max().unwrap_or(0)
}

fn millis(time: k8s_openapi::jiff::Timestamp) -> u64 {
    u64::try_from(time.as_millisecond()).unwrap_or(0)
}
