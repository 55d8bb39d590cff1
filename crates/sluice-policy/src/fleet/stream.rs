//! One stream, and what its agent says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice_core::classify::CredentialFault;
use sluice_core::target_id::TargetId;
use sluice_proto::apply::RouteName;
use sluice_proto::replica::AgentFacts;
use sluice_proto::report::{StoreHealth, TargetAggregate};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::AgentName;
use crate::publish::{Newest, Published};

/// A stream that takes part from now on.
#[derive(Debug)]
pub(crate) struct Joining {
    pub(crate) agent: AgentName,
    /// Of its pod.
    pub(crate) uid: Arc<str>,
    pub(crate) labels: watch::Sender<BTreeMap<String, String>>,
    pub(crate) newest: Newest,
    pub(crate) end: CancellationToken,
}

/// One that is connected.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) agent: AgentName,
    pub(super) uid: Arc<str>,
    pub(super) labels: watch::Sender<BTreeMap<String, String>>,
    pub(super) newest: Newest,
    /// The last snapshot, with its nonce.
    pub(super) sent: Option<(String, Arc<Published>)>,
    pub(super) answered: Option<Answer>,
    pub(super) targets: BTreeMap<TargetId, TargetAggregate>,
    pub(super) store: Option<StoreHealth>,
    pub(super) end: CancellationToken,
}

/// To the last snapshot.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) version: Arc<str>,
    pub(super) rejected: BTreeMap<RouteName, String>,
}

/// What agents have in common that say the same of every route: the newest that they are to have, and whether they work
/// by it and reach the shared state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Alike {
    /// Where it lies in memory, for as long as it is held.
    newest: usize,
    in_sync: bool,
    cut_off: bool,
}

impl Alike {
    pub(super) fn facts(self, newest: &Published, route: &RouteName, agents: u32) -> AgentFacts {
        AgentFacts {
            connected: agents,
            in_sync: if self.in_sync { agents } else { 0 },
            cut_off: if self.cut_off { agents } else { 0 },
            withheld: newest.withheld_from(route).collect(),
            ..AgentFacts::default()
        }
    }
}

impl Stream {
    pub(super) fn new(joining: Joining) -> Self {
        let Joining { agent, uid, labels, newest, end } = joining;
        let (sent, answered, targets, store) = (None, None, BTreeMap::new(), None);
        Self { agent, uid, labels, newest, sent, answered, targets, store, end }
    }

    /// `None`: it has something of its own to say.
    pub(super) fn alike(&self, newest: &Arc<Published>) -> Option<Alike> {
        let answer = self.answered.as_ref().filter(|answer| answer.version == newest.version);
        let rejects = answer.is_some_and(|answer| !answer.rejected.is_empty());
        if rejects || self.targets.values().any(|aggregate| aggregate.credential.is_some()) {
            return None;
        }
        let address = Arc::as_ptr(newest).addr();
        Some(Alike { newest: address, in_sync: answer.is_some(), cut_off: self.is_cut_off() })
    }

    fn is_cut_off(&self) -> bool {
        matches!(self.store, Some(StoreHealth::Unreachable { .. }))
    }

    /// What this agent says of the routes that it is to have.
    pub(super) fn says_of(
        &self,
        newest: &Published,
        of: impl Fn(&RouteName) -> bool,
        say: &mut impl FnMut(&RouteName, AgentFacts),
    ) {
        let answer = self.answered.as_ref().filter(|answer| answer.version == newest.version);
        for (route, contents) in newest.contents.iter().filter(|(route, _)| of(route)) {
            let rejected = answer.and_then(|answer| answer.rejected.get(route));
            let facts = AgentFacts {
                connected: 1,
                in_sync: u32::from(answer.is_some() && rejected.is_none()),
                rejecting: u32::from(rejected.is_some()),
                reason: rejected.cloned(),
                withheld: newest.withheld_from(route).collect(),
                cut_off: u32::from(self.is_cut_off()),
                credentials: self.credentials(contents.targets.iter()),
            };
            say(route, facts);
        }
    }

    fn credentials<'a>(&self, of: impl Iterator<Item = &'a TargetId>) -> BTreeMap<TargetId, CredentialFault> {
        of.filter_map(|id| Some((id.clone(), self.targets.get(id)?.credential?))).collect()
    }

    pub(super) fn given_targets(&self) -> Arc<BTreeSet<TargetId>> {
        self.sent.as_ref().map(|(_, published)| Arc::clone(&published.targets)).unwrap_or_default()
    }
}
