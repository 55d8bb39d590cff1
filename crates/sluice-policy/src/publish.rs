//! The newest snapshot for each audience, by content hash.
//!
//! Why watch channels: a channel that queues lets one slow agent decide how much memory the control plane
//! uses; a watch channel holds one value, so a slow agent skips what came between and ends on the newest.
//!
//! An *audience* is a scope and the features that its agents know: replicas of one workload share one. Audiences for
//! which the same routes are selected get the same snapshot, made and hashed once, however many labels tell their pods
//! apart. The version is a hash of what the audience gets, so an edit that changes nothing for it is not sent. Secrets
//! and agent counts change on their own and are outside of the hash. An edit costs what its own namespace costs.
//! Before the first publication there is no value: an agent that connects then waits, since an empty
//! snapshot would delete what it serves from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use prost::Message as _;
use sha2::{Digest as _, Sha256};
use sluice_core::policy::{ObjectRef, SecretKey};
use sluice_core::target_id::{TargetId, short_name};
use sluice_proto::apply::{RouteName, encode_withheld};
use sluice_proto::feature::{self, Feature};
use sluice_proto::{MAX_MESSAGE_BYTES, encode, sent, v1};
use tokio::sync::watch;

use crate::compile::{Compiled, Scope, SecretVersion, secret_keys};

/// Audiences at a time.
pub const MAX_AUDIENCES: usize = 10_000;

/// Agents that get the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Audience {
    pub scope: Scope,
    pub features: BTreeSet<Feature>,
}

/// What one audience gets.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    pub version: Arc<str>,
    /// Routes, held and withheld as they travel: what the version is a hash of.
    policies: Bytes,
    withheld: Vec<(RouteName, Feature)>,
    pub secrets: Arc<BTreeMap<SecretKey, SecretVersion>>,
    /// Those that agents keep as they have them.
    pub held_secrets: Arc<BTreeSet<SecretKey>>,
    pub agents: Arc<BTreeMap<TargetId, u32>>,
    /// What the routes were compiled from and where they go, for reading the answers.
    pub contents: Arc<BTreeMap<RouteName, Contents>>,
    /// The targets of all of them.
    pub targets: Arc<BTreeSet<TargetId>>,
}

/// Audiences that get the same: which of the namespace's routes, and what they know.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    namespace: Arc<str>,
    selected: Vec<bool>,
    features: BTreeSet<Feature>,
}

/// What a published route consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    pub sources: Vec<ObjectRef>,
    pub targets: Vec<TargetId>,
}

/// A snapshot that would not fit into a message. The audience keeps the one before.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the policies of namespace {namespace} are {bytes} bytes for one agent, more than {max}: \
     use fewer or smaller routes, or give them workloads"
)]
pub struct TooLarge {
    pub namespace: Arc<str>,
    pub bytes: usize,
    pub max: usize,
}

/// There are too many different audiences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_AUDIENCES} different sets of labels are connected: try again later")]
pub struct TooManyAudiences;

/// The newest value of an audience; `None` before the first publication.
pub type Newest = watch::Receiver<Option<Arc<Published>>>;

/// Holds the newest of everything.
#[derive(Debug, Default)]
pub struct Publisher {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    compiled: Option<Arc<Compiled>>,
    agents: BTreeMap<TargetId, u32>,
    audiences: BTreeMap<Audience, watch::Sender<Option<Arc<Published>>>>,
    /// What was made of the newest, for as long as somebody gets it.
    made: BTreeMap<Group, Result<Arc<Published>, TooLarge>>,
    /// Audiences that get nothing newer, and why.
    too_large: BTreeMap<Audience, TooLarge>,
}

impl Publisher {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes this the newest. Audiences for which it is the same are not woken; namespaces that it shares with the one
    /// before ([`crate::compile::compile_again`]) are not looked at.
    #[tracing::instrument(skip_all)]
    pub fn publish(&self, compiled: Arc<Compiled>) -> Vec<TooLarge> {
        let mut inner = self.lock();
        let (now, before) = (Arc::clone(&compiled), inner.compiled.replace(compiled));
        let same = |namespace: &Arc<str>| {
            let of = |compiled: &Compiled| compiled.namespaces.get(namespace).map(Arc::as_ptr);
            before.as_ref().is_some_and(|before| of(before) == of(&now))
        };
        inner.made.retain(|group, _| same(&group.namespace));
        inner.send(|audience| !same(&audience.scope.namespace));
        inner.stuck()
    }

    /// Sets how many agents share each target. Wakes the audiences that have such a target.
    pub fn count_agents(&self, agents: BTreeMap<TargetId, u32>) {
        let mut inner = self.lock();
        let gone = inner.agents.keys().filter(|target| !agents.contains_key(*target));
        let gone: Vec<_> = gone.map(|target| (target.clone(), 0)).collect();
        inner.count(gone.into_iter().chain(agents).collect());
    }

    /// Sets how many agents share some targets; those without one are forgotten. The others stay as they are.
    pub fn count_agents_of(&self, agents: BTreeMap<TargetId, u32>) {
        self.lock().count(agents);
    }

    /// Routes that do not get to some of their agents, since what these would get is too large for a message.
    #[must_use]
    pub fn too_large(&self) -> BTreeMap<RouteName, TooLarge> {
        let inner = self.lock();
        let Some(compiled) = &inner.compiled else { return BTreeMap::new() };
        let mut stuck = BTreeMap::new();
        for (audience, error) in &inner.too_large {
            let routes = compiled.scope(&audience.scope).routes;
            stuck.extend(routes.iter().map(|route| (RouteName::of(route), error.clone())));
        }
        stuck
    }

    /// The newest for an audience, now and from now on.
    ///
    /// # Errors
    /// [`TooManyAudiences`] when a new audience would be one too many.
    pub fn subscribe(&self, audience: Audience) -> Result<Newest, TooManyAudiences> {
        let mut inner = self.lock();
        if let Some(sender) = inner.audiences.get(&audience) {
            return Ok(sender.subscribe());
        }
        inner.forget_the_left();
        if inner.audiences.len() >= MAX_AUDIENCES {
            return Err(TooManyAudiences);
        }
        let first = match inner.make(&audience) {
            Some((_, Ok(published))) => Some(published),
            Some((_, Err(error))) => {
                inner.too_large.insert(audience.clone(), error);
                None
            }
            None => None,
        };
        let (sender, receiver) = watch::channel(first);
        inner.audiences.insert(audience, sender);
        Ok(receiver)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// The newest for an audience. `None`: there has been no publication.
    fn make(&mut self, audience: &Audience) -> Option<(Group, Result<Arc<Published>, TooLarge>)> {
        let compiled = self.compiled.as_ref()?;
        let group = Group::of(compiled, audience);
        if let Some(made) = self.made.get(&group) {
            let made = made.clone();
            return Some((group, made));
        }
        let made = Published::new(compiled, audience, &self.agents).map(Arc::new);
        self.made.insert(group.clone(), made.clone());
        Some((group, made))
    }

    /// Gives audiences what is new for them.
    fn send(&mut self, concerned: impl Fn(&Audience) -> bool) {
        self.forget_the_left();
        let audiences: Vec<Audience> =
            self.audiences.keys().filter(|audience| concerned(audience)).cloned().collect();
        for audience in audiences {
            let Some((group, made)) = self.make(&audience) else { return };
            match made {
                Ok(published) => {
                    self.too_large.remove(&audience);
                    let Some(sender) = self.audiences.get(&audience) else { continue };
                    let present = sender.borrow().clone().filter(|newest| newest.is_same(&published));
                    match present {
                        // What it has goes on to be shared.
                        Some(present) => drop(self.made.insert(group, Ok(present))),
                        None => drop(sender.send_replace(Some(published))),
                    }
                }
                Err(error) => {
                    self.too_large.insert(audience, error);
                }
            }
        }
    }

    fn count(&mut self, agents: BTreeMap<TargetId, u32>) {
        let mut changed = BTreeSet::new();
        for (target, count) in agents {
            let before = if count == 0 {
                self.agents.remove(&target)
            } else {
                self.agents.insert(target.clone(), count)
            };
            if before.unwrap_or(0) != count {
                changed.insert(target);
            }
        }
        if changed.is_empty() {
            return;
        }
        let concerned =
            |published: &Published| changed.iter().any(|target| published.targets.contains(target));
        for made in self.made.values_mut().flatten() {
            if concerned(made) {
                *made = Arc::new(made.with_agents(&self.agents));
            }
        }
        let concerned: BTreeSet<Audience> = self
            .audiences
            .iter()
            .filter(|(_, sender)| sender.borrow().as_ref().is_some_and(|newest| concerned(newest)))
            .map(|(audience, _)| audience.clone())
            .collect();
        self.send(|audience| concerned.contains(audience));
    }

    /// One error per namespace.
    fn stuck(&self) -> Vec<TooLarge> {
        let by_namespace = self.too_large.values().map(|error| (Arc::clone(&error.namespace), error.clone()));
        by_namespace.collect::<BTreeMap<_, _>>().into_values().collect()
    }

    /// Audiences that nobody listens to any more, and what was made for them alone.
    fn forget_the_left(&mut self) {
        self.audiences.retain(|_, sender| sender.receiver_count() > 0);
        let audiences = &self.audiences;
        self.too_large.retain(|audience, _| audiences.contains_key(audience));
        self.made.retain(|_, made| made.as_ref().is_ok_and(|made| Arc::strong_count(made) > 1));
    }
}

impl Group {
    fn of(compiled: &Compiled, audience: &Audience) -> Self {
        let Audience { scope, features } = audience;
        let routes =
            compiled.namespaces.get(&scope.namespace).into_iter().flat_map(|policies| &policies.routes);
        Self {
            namespace: Arc::clone(&scope.namespace),
            selected: routes.map(|route| route.is_for(&scope.labels)).collect(),
            features: features.clone(),
        }
    }
}

impl Published {
    fn new(
        compiled: &Compiled,
        audience: &Audience,
        agents: &BTreeMap<TargetId, u32>,
    ) -> Result<Self, TooLarge> {
        let policies = compiled.scope(&audience.scope);
        let holds = audience.features.contains(&Feature::HeldSecrets);
        let mut withheld = Vec::new();
        let mut contents = BTreeMap::new();
        let mut routes = Vec::with_capacity(policies.routes.len());
        for route in &policies.routes {
            let mut route = route.as_ref().clone();
            let name = RouteName::of(&route);
            let features = feature::withhold(&mut route, &audience.features);
            withheld.extend(features.into_iter().map(|feature| (name.clone(), feature)));
            if !holds && secret_keys(&route).any(|key| policies.held_secrets.contains(key)) {
                withheld.push((name.clone(), Feature::HeldSecrets));
            }
            let targets = route.targets.iter().map(|target| target.id.clone()).collect();
            routes.push(encode::route(&route));
            contents.insert(name, Contents { sources: route.sources, targets });
        }
        let targets: BTreeSet<TargetId> =
            contents.values().flat_map(|contents| contents.targets.iter().cloned()).collect();
        let encoded = v1::Snapshot {
            routes,
            held: policies.held.iter().map(RouteName::encode).collect(),
            withheld: withheld
                .iter()
                .map(|(route, feature)| encode_withheld(route, feature.as_str()))
                .collect(),
            ..v1::Snapshot::default()
        };
        let encoded = Bytes::from(encoded.encode_to_vec());
        let published = Self {
            version: short_name(&Sha256::digest(&encoded)).into(),
            policies: encoded,
            withheld,
            secrets: Arc::new(policies.secrets),
            held_secrets: Arc::new(if holds { policies.held_secrets } else { BTreeSet::new() }),
            agents: Arc::new(counts_of(&targets, agents)),
            contents: Arc::new(contents),
            targets: Arc::new(targets),
        };
        let bytes = published.policies.len() + published.own("").encoded_len();
        let max = MAX_MESSAGE_BYTES - 1_024;
        if bytes > max {
            return Err(TooLarge { namespace: Arc::clone(&audience.scope.namespace), bytes, max });
        }
        Ok(published)
    }

    fn with_agents(&self, agents: &BTreeMap<TargetId, u32>) -> Self {
        Self { agents: Arc::new(counts_of(&self.targets, agents)), ..self.clone() }
    }

    /// Whether an agent that has the one has the other. The version stands for routes, held and withheld.
    fn is_same(&self, other: &Self) -> bool {
        let secrets = self.secrets == other.secrets && self.held_secrets == other.held_secrets;
        self.version == other.version && secrets && self.agents == other.agents
    }

    /// A [`v1::Snapshot`] for one stream, encoded.
    #[must_use]
    pub fn snapshot(&self, nonce: &str) -> Bytes {
        sent::snapshot(&self.policies, &self.own(nonce))
    }

    /// What is beside the policies.
    fn own(&self, nonce: &str) -> v1::Snapshot {
        v1::Snapshot {
            version: self.version.to_string(),
            nonce: nonce.to_owned(),
            secrets: Some(self.secret_set()),
            agents: Some(self.agent_counts()),
            ..v1::Snapshot::default()
        }
    }

    /// The secrets alone, for when the policies are the same.
    #[must_use]
    pub fn secret_set(&self) -> v1::SecretSet {
        let secret = |(key, version): (&SecretKey, &SecretVersion)| v1::Secret {
            key: Some(encode::secret_key(key)),
            uid: version.uid.to_string(),
            resource_version: version.resource_version.to_string(),
            value: version.value.expose().to_vec(),
        };
        v1::SecretSet {
            secrets: self.secrets.iter().map(secret).collect(),
            held: self.held_secrets.iter().map(encode::secret_key).collect(),
        }
    }

    /// The counts alone, for when the policies are the same.
    #[must_use]
    pub fn agent_counts(&self) -> v1::AgentCounts {
        let counts = self.agents.iter().map(|(target, count)| (target.to_string(), *count));
        v1::AgentCounts { by_target_id: counts.collect() }
    }

    /// Features that were taken out of a route.
    pub fn withheld_from(&self, route: &RouteName) -> impl Iterator<Item = Feature> {
        self.withheld.iter().filter(move |(name, _)| name == route).map(|(_, feature)| *feature)
    }
}

fn counts_of(targets: &BTreeSet<TargetId>, agents: &BTreeMap<TargetId, u32>) -> BTreeMap<TargetId, u32> {
    targets.iter().filter_map(|target| Some((target.clone(), *agents.get(target)?))).collect()
}
