//! What replicas of the control plane tell one another, both ways.
//!
//! Counts per route and the newest look at each breaker: sums, so that their size goes with the routes and not with the
//! agents. Decoding holds them to [`bounds`] all the same: during an upgrade the other replica is another version.

use std::collections::{BTreeMap, BTreeSet};

use sluice_core::admission::TransitionReason;
use sluice_core::classify::CredentialFault;
use sluice_core::target_id::TargetId;

use crate::apply::RouteName;
use crate::decode::{Field, InvalidField, name, present, text};
use crate::enums::WireEnum as _;
use crate::feature::Feature;
use crate::report::{BreakerSeen, TargetTransition, target_id};
use crate::{bounds, v1};

/// What agents say of one route.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentFacts {
    /// Agents that the route is for.
    pub connected: u32,
    /// Those that work by its newest version.
    pub in_sync: u32,
    /// Those that refused it.
    pub rejecting: u32,
    /// Why the first of them refused it.
    pub reason: Option<String>,
    /// What some of them do not know.
    pub withheld: BTreeSet<Feature>,
    /// Those that can't reach the shared state.
    pub cut_off: u32,
    /// Targets whose own credential their provider refuses.
    pub credentials: BTreeMap<TargetId, CredentialFault>,
}

impl AgentFacts {
    /// Adds what other agents say.
    pub fn add(&mut self, other: &Self) {
        self.connected += other.connected;
        self.in_sync += other.in_sync;
        self.rejecting += other.rejecting;
        self.reason = self.reason.take().or_else(|| other.reason.clone());
        self.withheld.extend(&other.withheld);
        self.cut_off += other.cut_off;
        self.credentials.extend(other.credentials.iter().map(|(id, fault)| (id.clone(), *fault)));
    }
}

/// A breaker, as the agent that saw it last does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerSaid {
    pub seen: BreakerSeen,
    /// What began its epoch, where that was heard of.
    pub reason: Option<TransitionReason>,
}

/// One message; what it does not name is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplicaSaid {
    /// Without agents: none of them has the route any more.
    pub routes: BTreeMap<RouteName, AgentFacts>,
    /// `None`: none of them has seen it.
    pub breakers: BTreeMap<TargetId, Option<BreakerSaid>>,
    pub transitions: Vec<TargetTransition>,
    /// Everything that there was at the start of the stream has been told.
    pub whole: bool,
}

impl ReplicaSaid {
    #[must_use]
    pub fn encode(&self) -> v1::ReplicaSaid {
        v1::ReplicaSaid {
            routes: self.routes.iter().map(|(route, facts)| encode_route(route, facts)).collect(),
            targets: self
                .breakers
                .iter()
                .map(|(target, said)| encode_target(target, said.as_ref()))
                .collect(),
            transitions: self.transitions.iter().map(TargetTransition::encode).collect(),
            whole: self.whole,
        }
    }

    /// # Errors
    /// [`InvalidField`] for what is missing or out of bounds.
    pub fn decode(wire: v1::ReplicaSaid) -> Result<Self, InvalidField> {
        let routes = Field("routes").entries(wire.routes, 0..=bounds::REPLICA_ENTRIES)?;
        let targets = Field("targets").entries(wire.targets, 0..=bounds::REPLICA_ENTRIES)?;
        let transitions = Field("transitions").entries(wire.transitions, 0..=bounds::TRANSITIONS)?;
        Ok(Self {
            routes: routes.into_iter().map(decode_route).collect::<Result<_, _>>()?,
            breakers: targets.iter().map(decode_target).collect::<Result<_, _>>()?,
            transitions: transitions.iter().map(TargetTransition::decode).collect::<Result<_, _>>()?,
            whole: wire.whole,
        })
    }
}

fn encode_route(route: &RouteName, facts: &AgentFacts) -> v1::RouteSaid {
    let credential = |(target, fault): (&TargetId, &CredentialFault)| v1::RefusedCredential {
        target_id: target.as_str().to_owned(),
        fault: fault.number(),
    };
    v1::RouteSaid {
        route: Some(route.encode()),
        connected: facts.connected,
        in_sync: facts.in_sync,
        rejecting: facts.rejecting,
        reason: facts.reason.clone().unwrap_or_default(),
        withheld: facts.withheld.iter().map(|feature| feature.as_str().to_owned()).collect(),
        cut_off: facts.cut_off,
        credentials: facts.credentials.iter().take(bounds::TARGETS).map(credential).collect(),
    }
}

fn decode_route(wire: v1::RouteSaid) -> Result<(RouteName, AgentFacts), InvalidField> {
    let route = present(wire.route, "routes.route")?;
    let route = RouteName {
        namespace: name(route.namespace, "routes.route.namespace")?,
        name: name(route.name, "routes.route.name")?,
    };
    let credential = |wire: &v1::RefusedCredential| {
        let fault = CredentialFault::read(wire.fault, "routes.credentials.fault")?;
        Ok::<_, InvalidField>((target_id(&wire.target_id)?, fault))
    };
    let count = |field, count| Field(field).count(count);
    let withheld = Field("routes.withheld").entries(wire.withheld, 0..=bounds::FEATURES)?;
    let credentials = Field("routes.credentials").entries(wire.credentials, 0..=bounds::TARGETS)?;
    let reason = text(wire.reason, "routes.reason", bounds::ERROR_BYTES)?;
    let facts = AgentFacts {
        connected: count("routes.connected", wire.connected)?,
        in_sync: count("routes.inSync", wire.in_sync)?,
        rejecting: count("routes.rejecting", wire.rejecting)?,
        reason: (!reason.is_empty()).then(|| reason.to_string()),
        withheld: withheld.iter().filter_map(|feature| Feature::parse(feature)).collect(),
        cut_off: count("routes.cutOff", wire.cut_off)?,
        credentials: credentials.iter().map(credential).collect::<Result<_, _>>()?,
    };
    Ok((route, facts))
}

fn encode_target(target: &TargetId, said: Option<&BreakerSaid>) -> v1::TargetSaid {
    v1::TargetSaid {
        target_id: target.as_str().to_owned(),
        breaker: said.map(|said| said.seen.encode()),
        reason: said.and_then(|said| said.reason).map_or(0, TransitionReason::number),
    }
}

/// A reason that only a newer version knows is not known here.
fn decode_target(wire: &v1::TargetSaid) -> Result<(TargetId, Option<BreakerSaid>), InvalidField> {
    let reason = TransitionReason::read(wire.reason, "targets.reason").ok();
    let seen = wire.breaker.as_ref().map(BreakerSeen::decode).transpose()?;
    Ok((target_id(&wire.target_id)?, seen.map(|seen| BreakerSaid { seen, reason })))
}
