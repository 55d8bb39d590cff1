//! What agents say: hello, acknowledgements, and reports, both ways.
//!
//! Decoding holds everything to [`bounds`]: an agent is
//! another party, and its message must not cost the control plane more than it is worth. Lists beyond their
//! bound are refused whole; texts for people are cut.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use sluice_core::admission::{BreakerState, Transition, TransitionReason, WindowCounts};
use sluice_core::classify::CredentialFault;
use sluice_core::policy::ObjectRef;
use sluice_core::target_id::TargetId;

use crate::decode::{self, Field, InvalidField, name, present, text};
use crate::encode;
use crate::enums::WireEnum as _;
use crate::feature::Feature;
use crate::{bounds, v1};

/// The first message of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    pub agent_id: Arc<str>,
    pub namespace: Arc<str>,
    pub pod: Arc<str>,
    /// Heard by `sluice run` alone.
    pub labels: BTreeMap<String, String>,
    /// Features that the reader does not know are left out.
    pub features: BTreeSet<Feature>,
    pub build: Arc<str>,
    /// Of the snapshot that the agent serves from; empty: none yet.
    pub applied_version: Arc<str>,
}

/// The answer to one snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ack {
    pub nonce: Arc<str>,
    pub version: Arc<str>,
    /// The routes, by their resource.
    pub accepted: Vec<ObjectRef>,
    pub rejected: Vec<Rejection>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    pub object: ObjectRef,
    pub error: String,
}

/// What an agent saw and did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    pub transitions: Vec<TargetTransition>,
    pub targets: Vec<TargetAggregate>,
    /// `None`: unchanged.
    pub store: Option<StoreHealth>,
}

/// A transition of one target's breaker; target and epoch name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetTransition {
    pub target: TargetId,
    pub transition: Transition,
}

/// One target as one agent sees it. Counters count since the agent started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetAggregate {
    pub target: TargetId,
    pub in_flight: u32,
    pub limit: u32,
    pub admitted: u64,
    pub refused: u64,
    pub failed_over: u64,
    /// `None`: it has not asked yet.
    pub breaker: Option<BreakerSeen>,
    /// What the provider last said against the target's own credential.
    pub credential: Option<CredentialFault>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerSeen {
    pub state: BreakerState,
    pub epoch: u64,
    pub open_for: Duration,
}

/// Whether the shared state answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreHealth {
    Shared,
    /// There is none by choice.
    Embedded,
    Unreachable {
        reason: String,
    },
}

impl Hello {
    #[must_use]
    pub fn encode(&self) -> v1::Hello {
        v1::Hello {
            agent_id: self.agent_id.to_string(),
            namespace: self.namespace.to_string(),
            pod: self.pod.to_string(),
            labels: self.labels.clone(),
            features: self.features.iter().map(|feature| feature.as_str().to_owned()).collect(),
            build: self.build.to_string(),
            applied_version: self.applied_version.to_string(),
        }
    }

    /// # Errors
    /// [`InvalidField`] for what is missing or out of bounds.
    pub fn decode(wire: v1::Hello) -> Result<Self, InvalidField> {
        if wire.labels.len() > bounds::LABELS {
            let (field, count, max) = ("labels", wire.labels.len(), bounds::LABELS);
            return Err(InvalidField::Count { field, count, min: 0, max });
        }
        for label in wire.labels.iter().flat_map(|(key, value)| [key, value]) {
            text(label.clone(), "labels", 2 * bounds::NAME_BYTES)?;
        }
        Ok(Self {
            agent_id: name(wire.agent_id, "agentId")?,
            namespace: name(wire.namespace, "namespace")?,
            pod: text(wire.pod, "pod", bounds::NAME_BYTES)?,
            labels: wire.labels,
            features: Field("features")
                .entries(wire.features, 0..=bounds::FEATURES)?
                .iter()
                .filter_map(|feature| Feature::parse(feature))
                .collect(),
            build: text(wire.build, "build", bounds::NAME_BYTES)?,
            applied_version: text(wire.applied_version, "appliedVersion", bounds::NAME_BYTES)?,
        })
    }
}

impl Ack {
    #[must_use]
    pub fn encode(&self) -> v1::Ack {
        let rejection = |rejection: &Rejection| v1::Rejection {
            object: Some(encode::object(&rejection.object)),
            error: rejection.error.clone(),
        };
        v1::Ack {
            nonce: self.nonce.to_string(),
            version: self.version.to_string(),
            accepted: self.accepted.iter().map(encode::object).collect(),
            rejected: self.rejected.iter().map(rejection).collect(),
        }
    }

    /// # Errors
    /// [`InvalidField`] for what is missing or out of bounds.
    pub fn decode(wire: v1::Ack) -> Result<Self, InvalidField> {
        let rejection = |wire: v1::Rejection| {
            Ok(Rejection {
                object: decode::object(present(wire.object, "rejected.object")?)?,
                error: cut(wire.error),
            })
        };
        Ok(Self {
            nonce: text(wire.nonce, "nonce", bounds::NAME_BYTES)?,
            version: text(wire.version, "version", bounds::NAME_BYTES)?,
            accepted: Field("accepted")
                .entries(wire.accepted, 0..=bounds::ROUTES)?
                .into_iter()
                .map(decode::object)
                .collect::<Result<_, _>>()?,
            rejected: Field("rejected")
                .entries(wire.rejected, 0..=bounds::ROUTES)?
                .into_iter()
                .map(rejection)
                .collect::<Result<_, InvalidField>>()?,
        })
    }
}

impl Report {
    #[must_use]
    pub fn encode(&self) -> v1::Report {
        v1::Report {
            transitions: self.transitions.iter().map(TargetTransition::encode).collect(),
            targets: self.targets.iter().map(TargetAggregate::encode).collect(),
            store: self.store.as_ref().map(StoreHealth::encode),
        }
    }

    /// # Errors
    /// [`InvalidField`] for what is missing or out of bounds.
    pub fn decode(wire: v1::Report) -> Result<Self, InvalidField> {
        Ok(Self {
            transitions: Field("transitions")
                .entries(wire.transitions, 0..=bounds::TRANSITIONS)?
                .iter()
                .map(TargetTransition::decode)
                .collect::<Result<_, _>>()?,
            targets: Field("targets")
                .entries(wire.targets, 0..=bounds::REPORTED_TARGETS)?
                .iter()
                .map(TargetAggregate::decode)
                .collect::<Result<_, _>>()?,
            store: wire.store.map(StoreHealth::decode).transpose()?,
        })
    }
}

impl TargetTransition {
    pub(crate) fn encode(&self) -> v1::Transition {
        let Transition { from, to, reason, epoch, counts } = &self.transition;
        v1::Transition {
            target_id: self.target.as_str().to_owned(),
            from: from.number(),
            to: to.number(),
            reason: reason.number(),
            epoch: *epoch,
            calls: counts.calls,
            failures: counts.failures,
            slow: counts.slow,
            stalls: counts.stalls,
        }
    }

    pub(crate) fn decode(wire: &v1::Transition) -> Result<Self, InvalidField> {
        Ok(Self {
            target: target_id(&wire.target_id)?,
            transition: Transition {
                from: BreakerState::read(wire.from, "transitions.from")?,
                to: BreakerState::read(wire.to, "transitions.to")?,
                reason: TransitionReason::read(wire.reason, "transitions.reason")?,
                epoch: epoch(wire.epoch)?,
                counts: WindowCounts {
                    calls: wire.calls,
                    failures: wire.failures,
                    slow: wire.slow,
                    stalls: wire.stalls,
                },
            },
        })
    }
}

impl TargetAggregate {
    fn encode(&self) -> v1::TargetAggregate {
        v1::TargetAggregate {
            target_id: self.target.as_str().to_owned(),
            in_flight: self.in_flight,
            limit: self.limit,
            admitted: self.admitted,
            refused: self.refused,
            failed_over: self.failed_over,
            breaker: self.breaker.as_ref().map(BreakerSeen::encode),
            credential: self.credential.map(CredentialFault::number),
        }
    }

    fn decode(wire: &v1::TargetAggregate) -> Result<Self, InvalidField> {
        Ok(Self {
            target: target_id(&wire.target_id)?,
            in_flight: wire.in_flight,
            limit: wire.limit,
            admitted: wire.admitted,
            refused: wire.refused,
            failed_over: wire.failed_over,
            breaker: wire.breaker.as_ref().map(BreakerSeen::decode).transpose()?,
            credential: wire
                .credential
                .map(|fault| CredentialFault::read(fault, "targets.credential"))
                .transpose()?,
        })
    }
}

impl BreakerSeen {
    pub(crate) fn encode(&self) -> v1::BreakerSeen {
        v1::BreakerSeen {
            state: self.state.number(),
            epoch: self.epoch,
            open_for: Some(encode::duration(self.open_for)),
        }
    }

    pub(crate) fn decode(wire: &v1::BreakerSeen) -> Result<Self, InvalidField> {
        Ok(Self {
            state: BreakerState::read(wire.state, "targets.breaker.state")?,
            epoch: epoch(wire.epoch)?,
            open_for: Field("targets.breaker.openFor").duration(wire.open_for)?,
        })
    }
}

impl StoreHealth {
    fn encode(&self) -> v1::StoreHealth {
        let (state, reason) = match self {
            Self::Shared => (v1::StoreState::Shared, ""),
            Self::Embedded => (v1::StoreState::Embedded, ""),
            Self::Unreachable { reason } => (v1::StoreState::Unreachable, reason.as_str()),
        };
        v1::StoreHealth { state: state as i32, reason: reason.to_owned() }
    }

    fn decode(wire: v1::StoreHealth) -> Result<Self, InvalidField> {
        match v1::StoreState::try_from(wire.state) {
            Ok(v1::StoreState::Shared) => Ok(Self::Shared),
            Ok(v1::StoreState::Embedded) => Ok(Self::Embedded),
            Ok(v1::StoreState::Unreachable) => Ok(Self::Unreachable { reason: cut(wire.reason) }),
            Ok(v1::StoreState::Unspecified) => Err(InvalidField::Missing { field: "store.state" }),
            Err(_) => Err(InvalidField::Unknown { field: "store.state", value: wire.state }),
        }
    }
}

pub(crate) fn target_id(id: &str) -> Result<TargetId, InvalidField> {
    TargetId::parse(id).map_err(|id| Field("targetId").malformed(&id, "26 characters of lower-case base32"))
}

fn epoch(epoch: u64) -> Result<u64, InvalidField> {
    Field("epoch").within_u64(epoch, 0..=bounds::EXACT_INTEGER)
}

/// Cuts a text for people at [`bounds::ERROR_BYTES`], between characters.
pub(crate) fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(bounds::ERROR_BYTES));
    text
}
