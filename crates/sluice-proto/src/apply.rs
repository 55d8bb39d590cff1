//! An agent's side of a snapshot, as a state machine without a socket: the agent feeds it what came and swaps
//! in the [`PolicySet`] that it returns.
//!
//! Why per object: one bad route among fifty must not freeze the other forty-nine, and must not be taken
//! away either: the version that worked goes on working until a better one comes.
//!
//! For each route, in this order:
//! 1. *held* by the control plane, and the agent has one → it stays exactly as it is;
//! 2. decodes → it replaces what was there (an equal one keeps its place in memory);
//! 3. does not decode → rejected with the reason; what was there stays;
//! 4. named neither among the routes nor among the held → deleted, always.
//!
//! Secrets are not versioned with the policies: the newest set replaces the one before, so a deleted Secret
//! blocks at once. One that is held, since the control plane can't read it now, stays as the agent has it: a control
//! plane that has just started takes nothing away that works. One that is out of bounds is left out, and its target goes
//! without a credential.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use sluice_core::policy::{ObjectKind, ObjectRef, RoutePolicy, SecretKey, SecretValue};
use sluice_core::target_id::TargetId;
use zeroize::Zeroize as _;

use crate::decode::{self, InvalidField};
use crate::report::{Ack, Rejection, cut, target_id};
use crate::{bounds, v1};

/// A route's name within its namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteName {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl RouteName {
    #[must_use]
    pub fn of(route: &RoutePolicy) -> Self {
        Self { namespace: Arc::clone(&route.namespace), name: Arc::clone(&route.name) }
    }

    #[must_use]
    pub fn encode(&self) -> v1::RouteName {
        v1::RouteName { namespace: self.namespace.to_string(), name: self.name.to_string() }
    }

    fn read(wire: &v1::RouteName) -> Self {
        Self { namespace: wire.namespace.as_str().into(), name: wire.name.as_str().into() }
    }
}

impl fmt::Display for RouteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Everything an agent serves from. Immutable: an exchange loads it once and keeps it to its end.
#[derive(Debug, Clone, Default)]
pub struct PolicySet {
    /// Of the snapshot it came from; empty before the first.
    pub version: Arc<str>,
    /// Ordered by namespace and name.
    pub routes: Arc<[Arc<RoutePolicy>]>,
    /// Routes that stay as they are because the control plane cannot compile them now.
    pub held: Arc<[RouteName]>,
    /// What was kept from this agent: route and feature.
    pub withheld: Arc<[(RouteName, Arc<str>)]>,
    pub secrets: Arc<BTreeMap<SecretKey, Secret>>,
    /// Agents that share each target, all counted. A target that is not named has not been counted yet.
    pub agents: Arc<BTreeMap<TargetId, u32>>,
}

impl PolicySet {
    /// The value of a credential; `None`: missing, so its target is passed over.
    #[must_use]
    pub fn secret(&self, key: &SecretKey) -> Option<&SecretValue> {
        self.secrets.get(key).map(|secret| &secret.value)
    }
}

/// One version of one key of a Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Secret {
    pub uid: Arc<str>,
    pub resource_version: Arc<str>,
    pub value: SecretValue,
}

/// What an agent has applied so far.
#[derive(Debug, Default)]
pub struct Applied {
    current: Arc<PolicySet>,
}

impl Applied {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What the agent serves from now.
    #[must_use]
    pub fn current(&self) -> Arc<PolicySet> {
        Arc::clone(&self.current)
    }

    /// Takes a snapshot, object by object, and answers it.
    pub fn apply(&mut self, snapshot: v1::Snapshot) -> (Arc<PolicySet>, Ack) {
        let mut intake = Intake::new(&self.current, &snapshot.held);
        for (index, route) in snapshot.routes.into_iter().enumerate() {
            intake.take(index, route);
        }
        let Intake { routes, held, accepted, rejected, .. } = intake;
        let version: Arc<str> = snapshot.version.into();
        self.current = Arc::new(PolicySet {
            version: Arc::clone(&version),
            routes: routes.into_values().collect(),
            held: held.into_iter().collect(),
            withheld: withheld(&snapshot.withheld),
            secrets: snapshot.secrets.map(|set| secrets(set, &self.current.secrets)).unwrap_or_default(),
            agents: snapshot.agents.map(|agents| counts(&agents)).unwrap_or_default(),
        });
        let ack = Ack { nonce: snapshot.nonce.into(), version, accepted, rejected };
        (self.current(), ack)
    }

    /// Takes a new set of secrets; the policies stay.
    pub fn rotate(&mut self, set: v1::SecretSet) -> Arc<PolicySet> {
        let secrets = secrets(set, &self.current.secrets);
        self.current = Arc::new(PolicySet { secrets, ..PolicySet::clone(&self.current) });
        self.current()
    }

    /// Takes new numbers of agents; the policies stay.
    pub fn count(&mut self, agents: &v1::AgentCounts) -> Arc<PolicySet> {
        self.current = Arc::new(PolicySet { agents: counts(agents), ..PolicySet::clone(&self.current) });
        self.current()
    }
}

/// Names a feature that was kept from an agent.
#[must_use]
pub fn encode_withheld(route: &RouteName, feature: &str) -> v1::Withheld {
    v1::Withheld { route: Some(route.encode()), feature: feature.to_owned() }
}

/// One snapshot on its way in.
struct Intake {
    before: BTreeMap<RouteName, Arc<RoutePolicy>>,
    /// What the control plane holds and this agent has.
    held: BTreeSet<RouteName>,
    seen: BTreeSet<RouteName>,
    routes: BTreeMap<RouteName, Arc<RoutePolicy>>,
    accepted: Vec<ObjectRef>,
    rejected: Vec<Rejection>,
}

impl Intake {
    fn new(current: &PolicySet, held: &[v1::RouteName]) -> Self {
        let before: BTreeMap<_, _> =
            current.routes.iter().map(|route| (RouteName::of(route), Arc::clone(route))).collect();
        let held: BTreeSet<_> =
            held.iter().map(RouteName::read).filter(|name| before.contains_key(name)).collect();
        let kept = held.iter().filter_map(|name| Some((name.clone(), Arc::clone(before.get(name)?))));
        let routes = kept.collect();
        Self { before, held, seen: BTreeSet::new(), routes, accepted: Vec::new(), rejected: Vec::new() }
    }

    fn take(&mut self, index: usize, wire: v1::RoutePolicy) {
        let name = RouteName { namespace: wire.namespace.as_str().into(), name: wire.name.as_str().into() };
        if self.held.contains(&name) {
            return;
        }
        let object = answered_object(&wire);
        if !self.seen.insert(name.clone()) {
            // The first of two stays; answering for it again would count it twice.
            return self.reject(object, "the snapshot names this route twice".to_owned());
        }
        if index >= bounds::ROUTES {
            let error =
                format!("the snapshot has more than {} routes: use fewer per namespace", bounds::ROUTES);
            self.keep(&name);
            return self.reject(object, error);
        }
        match decode::route(wire) {
            Ok(route) => {
                let unchanged = self.before.get(&name).filter(|before| ***before == route).map(Arc::clone);
                self.accepted.extend(route.sources.first().cloned());
                self.routes.insert(name, unchanged.unwrap_or_else(|| Arc::new(route)));
            }
            Err(error) => {
                self.keep(&name);
                self.reject(object, error.to_string());
            }
        }
    }

    /// The last good version stays, if there is one.
    fn keep(&mut self, name: &RouteName) {
        if let Some(before) = self.before.get(name) {
            self.routes.insert(name.clone(), Arc::clone(before));
        }
    }

    fn reject(&mut self, object: ObjectRef, error: String) {
        // The list must stay within what the control plane reads.
        if self.rejected.len() < bounds::ROUTES {
            self.rejected.push(Rejection { object, error: cut(error) });
        }
    }
}

/// What an answer about a route names: its ModelRoute, even when the route cannot be read.
fn answered_object(wire: &v1::RoutePolicy) -> ObjectRef {
    let name = |text: &str| -> Arc<str> {
        if text.is_empty() { "?".into() } else { text[..text.floor_char_boundary(bounds::NAME_BYTES)].into() }
    };
    let generation = wire.sources.first().map_or(0, |source| source.generation);
    ObjectRef {
        kind: ObjectKind::ModelRoute,
        namespace: name(&wire.namespace),
        name: name(&wire.name),
        generation: generation.clamp(0, bounds::EXACT_INTEGER.cast_signed()),
    }
}

fn withheld(wire: &[v1::Withheld]) -> Arc<[(RouteName, Arc<str>)]> {
    wire.iter()
        .filter_map(|withheld| {
            Some((RouteName::read(withheld.route.as_ref()?), withheld.feature.as_str().into()))
        })
        .collect()
}

fn secrets(set: v1::SecretSet, before: &BTreeMap<SecretKey, Secret>) -> Arc<BTreeMap<SecretKey, Secret>> {
    let held = set.held.into_iter().take(bounds::SECRETS).filter_map(|key| decode::secret_key(key).ok());
    let kept = held.filter_map(|key| before.get_key_value(&key));
    let kept = kept.map(|(key, secret)| (key.clone(), secret.clone()));
    let sent = set.secrets.into_iter().take(bounds::SECRETS).filter_map(|wire| secret(wire).ok());
    // What is sent of a key rules over what is kept of it.
    Arc::new(kept.chain(sent).collect())
}

fn secret(mut wire: v1::Secret) -> Result<(SecretKey, Secret), InvalidField> {
    let key = decode::secret_key(decode::present(wire.key.take(), "secrets.key")?)?;
    if wire.value.len() > bounds::SECRET_BYTES {
        let (field, length, max) = ("secrets.value", wire.value.len(), bounds::SECRET_BYTES);
        return Err(InvalidField::TooLong { field, length, max });
    }
    let secret = Secret {
        uid: decode::text(std::mem::take(&mut wire.uid), "secrets.uid", bounds::NAME_BYTES)?,
        resource_version: decode::text(
            std::mem::take(&mut wire.resource_version),
            "secrets.resourceVersion",
            bounds::NAME_BYTES,
        )?,
        value: SecretValue::new(std::mem::take(&mut wire.value)),
    };
    Ok((key, secret))
}

fn counts(wire: &v1::AgentCounts) -> Arc<BTreeMap<TargetId, u32>> {
    let most = bounds::ROUTES * bounds::TARGETS;
    let valid = wire.by_target_id.iter().filter_map(|(id, count)| Some((target_id(id).ok()?, *count)));
    Arc::new(valid.take(most).collect())
}

/// A secret on the wire is wiped like every other copy.
impl Drop for v1::Secret {
    fn drop(&mut self) {
        self.value.zeroize();
    }
}
