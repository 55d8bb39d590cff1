//! The newest snapshot for each audience, by content hash.
//!
//! Why watch channels: a channel that queues lets one slow agent decide how much memory the control plane
//! uses; a watch channel holds one value, so a slow agent skips what came between and ends on the newest.
//!
//! An *audience* is a scope and the features that its agents know: replicas of one workload share one snapshot,
//! compiled and hashed once. The version is a hash of what the audience gets, so an edit that changes
//! nothing for it is not sent. Secrets and agent counts change on their own and are outside of the hash.
//! Before the first publication there is no value: an agent that connects then waits, since an empty
//! snapshot would delete what it serves from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prost::Message as _;
use sha2::{Digest as _, Sha256};
use sluice_core::policy::{ObjectRef, SecretKey};
use sluice_core::target_id::{TargetId, short_name};
use sluice_proto::apply::{RouteName, encode_withheld};
use sluice_proto::feature::{self, Feature};
use sluice_proto::{MAX_MESSAGE_BYTES, encode, v1};
use tokio::sync::watch;

use crate::compile::{Compiled, Scope, SecretVersion};

/// Audiences at a time. Each costs a hash per publication.
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
    routes: Arc<[v1::RoutePolicy]>,
    held: BTreeSet<RouteName>,
    withheld: Vec<(RouteName, Feature)>,
    pub secrets: Arc<BTreeMap<SecretKey, SecretVersion>>,
    pub agents: Arc<BTreeMap<TargetId, u32>>,
    /// What the routes were compiled from and where they go, for reading the answers.
    pub contents: Arc<BTreeMap<RouteName, Contents>>,
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
    agents: Arc<BTreeMap<TargetId, u32>>,
    audiences: BTreeMap<Audience, watch::Sender<Option<Arc<Published>>>>,
    /// Audiences that get nothing newer, and why.
    too_large: BTreeMap<Audience, TooLarge>,
}

impl Publisher {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes this the newest. Audiences for which it is the same are not woken.
    #[tracing::instrument(skip_all)]
    pub fn publish(&self, compiled: Arc<Compiled>) -> Vec<TooLarge> {
        let mut inner = self.lock();
        inner.compiled = Some(compiled);
        inner.send()
    }

    /// Sets how many agents share each target. Wakes the audiences that have such a target.
    pub fn count_agents(&self, agents: BTreeMap<TargetId, u32>) {
        let mut inner = self.lock();
        if *inner.agents != agents {
            inner.agents = Arc::new(agents);
            inner.send();
        }
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
        let compiled = inner.compiled.clone();
        let first = compiled.map(|compiled| Published::new(&compiled, &audience, &inner.agents)).transpose();
        let first = first.unwrap_or_else(|error| {
            inner.too_large.insert(audience.clone(), error);
            None
        });
        let (sender, receiver) = watch::channel(first.map(Arc::new));
        inner.audiences.insert(audience, sender);
        Ok(receiver)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn send(&mut self) -> Vec<TooLarge> {
        self.forget_the_left();
        let Some(compiled) = &self.compiled else { return Vec::new() };
        self.too_large.clear();
        for (audience, sender) in &self.audiences {
            match Published::new(compiled, audience, &self.agents) {
                Ok(published) => {
                    sender.send_if_modified(|newest| {
                        let changed = newest.as_deref() != Some(&published);
                        if changed {
                            *newest = Some(Arc::new(published));
                        }
                        changed
                    });
                }
                Err(error) => {
                    self.too_large.insert(audience.clone(), error);
                }
            }
        }
        let by_namespace = self.too_large.values().map(|error| (Arc::clone(&error.namespace), error.clone()));
        by_namespace.collect::<BTreeMap<_, _>>().into_values().collect()
    }

    /// Audiences that nobody listens to any more.
    fn forget_the_left(&mut self) {
        self.audiences.retain(|_, sender| sender.receiver_count() > 0);
        let audiences = &self.audiences;
        self.too_large.retain(|audience, _| audiences.contains_key(audience));
    }
}

impl Published {
    fn new(
        compiled: &Compiled,
        audience: &Audience,
        agents: &BTreeMap<TargetId, u32>,
    ) -> Result<Self, TooLarge> {
        let policies = compiled.scope(&audience.scope);
        let mut withheld = Vec::new();
        let mut contents = BTreeMap::new();
        let mut routes = Vec::with_capacity(policies.routes.len());
        for route in &policies.routes {
            let mut route = route.as_ref().clone();
            let name = RouteName::of(&route);
            let features = feature::withhold(&mut route, &audience.features);
            withheld.extend(features.into_iter().map(|feature| (name.clone(), feature)));
            let targets = route.targets.iter().map(|target| target.id.clone()).collect();
            routes.push(encode::route(&route));
            contents.insert(name, Contents { sources: route.sources, targets });
        }
        let targets: BTreeSet<&TargetId> = contents.values().flat_map(|contents| &contents.targets).collect();
        let agents = agents.iter().filter(|(target, _)| targets.contains(target));
        let mut published = Self {
            version: "".into(),
            routes: routes.into(),
            held: policies.held,
            withheld,
            secrets: Arc::new(policies.secrets),
            agents: Arc::new(agents.map(|(target, count)| (target.clone(), *count)).collect()),
            contents: Arc::new(contents),
        };
        published.version = published.hash().into();
        let bytes = published.snapshot("").encoded_len();
        let max = MAX_MESSAGE_BYTES - 1_024;
        if bytes > max {
            return Err(TooLarge { namespace: Arc::clone(&audience.scope.namespace), bytes, max });
        }
        Ok(published)
    }

    /// The message for one stream.
    #[must_use]
    pub fn snapshot(&self, nonce: &str) -> v1::Snapshot {
        v1::Snapshot {
            version: self.version.to_string(),
            nonce: nonce.to_owned(),
            secrets: Some(self.secret_set()),
            agents: Some(self.agent_counts()),
            ..self.versioned()
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
        v1::SecretSet { secrets: self.secrets.iter().map(secret).collect() }
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

    /// What the version is a hash of.
    fn versioned(&self) -> v1::Snapshot {
        let withheld = self.withheld.iter().map(|(route, feature)| encode_withheld(route, feature.as_str()));
        v1::Snapshot {
            routes: self.routes.to_vec(),
            held: self.held.iter().map(RouteName::encode).collect(),
            withheld: withheld.collect(),
            ..v1::Snapshot::default()
        }
    }

    fn hash(&self) -> String {
        short_name(&Sha256::digest(self.versioned().encode_to_vec()))
    }
}
