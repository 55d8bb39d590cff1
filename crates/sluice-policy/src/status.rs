//! What is written back to the resources: what compilation found, what the agents say, and the fleet's
//! breakers.
//!
//! Pure, with `now` as an argument, and equal input gives an equal object: a writer compares and writes nothing
//! when nothing changed. What other writers put into a status (conditions of other types, ancestors of other
//! controllers) stays.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sluice_api::conditions::{
    ACCEPTED, CREDENTIALS_VALID, PROGRAMMED, RESOLVED_REFS, STATE_STORE_READY, reason,
};
use sluice_api::status::{
    AgentsStatus, BreakerState, BreakerStatus, MAX_ANCESTORS, ModelRouteStatus, PolicyAncestorStatus,
    ReliabilityPolicyStatus, RouteSummary, TargetStatus,
};
use sluice_core::classify::CredentialFault;
use sluice_core::target_id::TargetId;

use crate::compile::{AncestorReport, PolicyReport, RouteReport, TargetReport};
use crate::conditions::{Draft, Status, cut, join};
use crate::fleet::AgentFacts;
use crate::index::Key;
use crate::publish::TooLarge;

/// Conditions that are made here; those of other types are other writers'.
pub const CONDITIONS: [&str; 5] = [ACCEPTED, RESOLVED_REFS, PROGRAMMED, CREDENTIALS_VALID, STATE_STORE_READY];

/// Name of this controller in a policy's ancestors.
pub const CONTROLLER_NAME: &str = "sluice.dev/controller";

/// What is known of a route besides what compilation found.
#[derive(Debug, Clone, Copy)]
pub struct RouteKnown<'a> {
    pub agents: &'a AgentFacts,
    /// A target without one has never been called and is closed.
    pub breakers: &'a BTreeMap<TargetId, BreakerStatus>,
    pub state_store: &'a StateStore,
    /// Why some of its agents do not get it.
    pub too_large: Option<&'a TooLarge>,
}

impl<'a> RouteKnown<'a> {
    /// Where nothing else is known.
    #[must_use]
    pub const fn of(agents: &'a AgentFacts, breakers: &'a BTreeMap<TargetId, BreakerStatus>) -> Self {
        Self { agents, breakers, state_store: &StateStore::None, too_large: None }
    }
}

/// The shared state, as the control plane sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateStore {
    /// There is none by choice, or it is not looked at.
    None,
    /// It has not been reached yet, or is away for a moment.
    Unknown,
    /// It can be seen. It may evict breakers, by the policy that is named.
    Seen { unsafe_eviction: Option<String> },
    /// It can't be seen, and why.
    Away(String),
}

/// The status of a route. `present` is its status now.
#[must_use]
pub fn route_status(
    report: &RouteReport,
    known: &RouteKnown<'_>,
    present: Option<&ModelRouteStatus>,
    now: &Time,
) -> ModelRouteStatus {
    let facts = known.agents;
    let programmed = report.programmed.clone().or_else(|| known.too_large.map(too_large));
    let mut drafts = vec![report.accepted.clone(), programmed.unwrap_or_else(|| programmed_by(facts))];
    drafts.extend(report.resolved_refs.clone());
    drafts.extend(credentials(report, facts));
    drafts.extend(state_store(facts, known.state_store));
    let conditions = present.map_or(&[][..], |status| &status.conditions);
    let targets: Vec<TargetStatus> = report
        .targets
        .iter()
        .map(|target| TargetStatus {
            name: target.name.to_string(),
            breaker: breaker(target, known.breakers, present),
        })
        .collect();
    let mut conditions = join(conditions, drafts, &CONDITIONS, report.object.generation, now);
    if facts.cut_off == 0 && *known.state_store == StateStore::Unknown {
        // For a moment it stays as it was.
        let before = present.iter().flat_map(|status| &status.conditions);
        conditions.extend(before.filter(|condition| condition.type_ == STATE_STORE_READY).cloned());
        conditions.sort_by(|one, other| one.type_.cmp(&other.type_));
    }
    ModelRouteStatus {
        conditions,
        agents: Some(agents(facts)),
        summary: Some(summary(report, facts, &targets)),
        targets,
    }
}

/// What nobody here has heard is as the status has it for this very state: whoever wrote it knew. So it is with why a
/// breaker came to its state, and with all of one that is closed and was: its epoch begins anew when it is called for the
/// first time, or after nobody has called it for long, and nothing has happened.
fn breaker(
    target: &TargetReport,
    breakers: &BTreeMap<TargetId, BreakerStatus>,
    present: Option<&ModelRouteStatus>,
) -> BreakerStatus {
    let closed = || BreakerStatus { state: BreakerState::Closed, since: None, reason: None };
    let mut breaker = breakers.get(&target.id).cloned().unwrap_or_else(closed);
    let targets = present.map_or(&[][..], |status| &status.targets);
    let before = targets.iter().find(|before| *before.name == *target.name).map(|before| &before.breaker);
    let Some(before) = before else { return breaker };
    let closed = |status: &BreakerStatus| status.state == BreakerState::Closed;
    if closed(&breaker) && closed(before) && breaker.reason.is_none() {
        return before.clone();
    }
    if breaker.reason.is_none() && breaker.since.is_some() && breaker.since == before.since {
        breaker.reason.clone_from(&before.reason);
    }
    breaker
}

fn too_large(error: &TooLarge) -> Draft {
    Draft::new(PROGRAMMED, Status::False, reason::TOO_LARGE, format!("{error}; agents keep what they have"))
}

/// What agents say rules: it is they who need it. What it may do to the state is for the control plane to see.
fn state_store(facts: &AgentFacts, seen: &StateStore) -> Option<Draft> {
    let not_ready =
        |reason, message: String| Some(Draft::new(STATE_STORE_READY, Status::False, reason, message));
    if facts.cut_off > 0 {
        let AgentFacts { cut_off, connected, .. } = facts;
        return not_ready(
            reason::UNREACHABLE,
            format!("{cut_off} of {connected} agents can't reach the shared state and decide by themselves"),
        );
    }
    match seen {
        StateStore::Seen { unsafe_eviction: Some(policy) } => not_ready(
            reason::MAY_EVICT,
            format!("it may evict breakers and quotas (maxmemory-policy {policy}): set noeviction"),
        ),
        StateStore::Away(why) if facts.connected == 0 => {
            not_ready(reason::UNREACHABLE, format!("the controller can't reach the shared state ({why})"))
        }
        StateStore::Seen { unsafe_eviction: None } => {
            Some(Draft::new(STATE_STORE_READY, Status::True, reason::READY, ""))
        }
        StateStore::Away(why) => Some(Draft::new(
            STATE_STORE_READY,
            Status::Unknown,
            reason::UNREACHABLE,
            format!("the controller can't reach the shared state ({why}); no agent says that it can't"),
        )),
        StateStore::Unknown | StateStore::None => None,
    }
}

fn agents(facts: &AgentFacts) -> AgentsStatus {
    let AgentFacts { connected, in_sync, rejecting, .. } = *facts;
    AgentsStatus { connected, in_sync, rejecting, reason: facts.reason.clone().map(cut) }
}

/// Targets whose credential their provider refuses. There is no such condition while none is, as agents tell only of
/// refusals: a credential that nobody has used yet is not known to be good.
fn credentials(report: &RouteReport, facts: &AgentFacts) -> Option<Draft> {
    let refused = |target: &TargetReport| {
        let fault = *facts.credentials.get(&target.id)?;
        Some((target.name.clone(), fault))
    };
    let refused: Vec<_> = report.targets.iter().filter_map(refused).collect();
    let reason = match refused.first()?.1 {
        CredentialFault::Refused => reason::REJECTED,
        CredentialFault::SpendCap => reason::QUOTA_EXHAUSTED,
    };
    let said = refused.iter().map(|(name, fault)| match fault {
        CredentialFault::Refused => format!("the provider of target {name} refuses its credential: renew it"),
        CredentialFault::SpendCap => {
            format!("the provider of target {name} says that the account's money or quota is used up")
        }
    });
    let message = said.collect::<Vec<_>>().join("; ");
    Some(Draft::new(CREDENTIALS_VALID, Status::False, reason, message))
}

fn summary(report: &RouteReport, facts: &AgentFacts, targets: &[TargetStatus]) -> RouteSummary {
    let mut by_priority: Vec<_> = report.targets.iter().collect();
    by_priority.sort_by_key(|target| target.priority);
    let names: Vec<&str> = by_priority.into_iter().map(|target| &*target.name).collect();
    let worst = targets.iter().map(|target| target.breaker.state).max();
    RouteSummary {
        targets: cut(names.join(",")),
        breaker: worst.map_or_else(String::new, |state| state.as_str().to_owned()),
        agents: format!("{}/{}", facts.in_sync, facts.connected),
    }
}

/// The status of a policy. `facts` says what the agents say of a route.
#[must_use]
pub fn policy_status(
    report: &PolicyReport,
    facts: impl Fn(&Key) -> AgentFacts,
    present: Option<&ReliabilityPolicyStatus>,
    now: &Time,
) -> ReliabilityPolicyStatus {
    let present = present.map_or(&[][..], |status| &status.ancestors);
    let (ours, theirs): (Vec<_>, Vec<_>) =
        present.iter().partition(|ancestor| ancestor.controller_name == CONTROLLER_NAME);
    let mut ancestors: Vec<PolicyAncestorStatus> = theirs.into_iter().cloned().collect();
    for ancestor in &report.ancestors {
        let before = ours.iter().find(|status| status.ancestor_ref == ancestor.ancestor);
        let conditions = before.map_or(&[][..], |status| &status.conditions);
        let drafts = ancestor_drafts(ancestor, &facts);
        ancestors.push(PolicyAncestorStatus {
            ancestor_ref: ancestor.ancestor.clone(),
            controller_name: CONTROLLER_NAME.to_owned(),
            conditions: join(conditions, drafts, &CONDITIONS, report.object.generation, now),
        });
    }
    ancestors.truncate(MAX_ANCESTORS);
    ReliabilityPolicyStatus { ancestors }
}

/// A policy that is not accepted has no `Programmed` (GEP-713), unless its last good version stays in use.
fn ancestor_drafts(ancestor: &AncestorReport, facts: impl Fn(&Key) -> AgentFacts) -> Vec<Draft> {
    let mut drafts = vec![ancestor.accepted.clone()];
    match &ancestor.programmed {
        Some(programmed) => drafts.push(programmed.clone()),
        None if ancestor.accepted.status == Status::True => {
            drafts.push(programmed_by_routes(ancestor, facts));
        }
        None => {}
    }
    drafts
}

fn programmed_by_routes(ancestor: &AncestorReport, facts: impl Fn(&Key) -> AgentFacts) -> Draft {
    if ancestor.routes.is_empty() {
        return Draft::new(PROGRAMMED, Status::True, reason::PROGRAMMED, "there is no route to rule yet");
    }
    // Of several routes the worst speaks for all.
    let drafts = ancestor.routes.iter().map(|route| programmed_by(&facts(route)));
    let worst = drafts.max_by_key(|draft| match (draft.status, draft.reason) {
        (Status::False, _) => 3,
        (Status::Unknown, reason::RECONCILING) => 2,
        (Status::True, _) => 1,
        // A route without agents says nothing against those that have some.
        (Status::Unknown, _) => 0,
    });
    worst.unwrap_or_else(|| programmed_by(&AgentFacts::default()))
}

/// What the agents make of an object.
fn programmed_by(facts: &AgentFacts) -> Draft {
    let AgentFacts { connected, in_sync, rejecting, .. } = facts;
    let draft = |status, reason, message: String| Draft::new(PROGRAMMED, status, reason, message);
    if *connected == 0 {
        draft(Status::Unknown, reason::NO_AGENTS, "no agent is connected".to_owned())
    } else if *rejecting > 0 {
        let why = facts.reason.as_deref().unwrap_or("no reason given");
        let message = format!("{rejecting} of {connected} agents reject it and keep what they have: {why}");
        draft(Status::False, reason::PARTIALLY_PROGRAMMED, message)
    } else if in_sync < connected {
        let message = format!("{in_sync} of {connected} agents work by it");
        draft(Status::Unknown, reason::RECONCILING, message)
    } else if facts.withheld.is_empty() {
        draft(Status::True, reason::PROGRAMMED, String::new())
    } else {
        let features: Vec<&str> = facts.withheld.iter().map(|feature| feature.as_str()).collect();
        let message = format!("some agents do not know {}: upgrade them", features.join(", "));
        draft(Status::False, reason::UNSUPPORTED_FIELD, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(connected: u32, in_sync: u32, rejecting: u32) -> AgentFacts {
        AgentFacts { connected, in_sync, rejecting, ..AgentFacts::default() }
    }

    #[test]
    fn agents_decide_whether_an_object_is_programmed() {
        let said = |facts: &AgentFacts| {
            let draft = programmed_by(facts);
            (draft.status, draft.reason)
        };
        assert_eq!(said(&facts(0, 0, 0)), (Status::Unknown, reason::NO_AGENTS));
        assert_eq!(said(&facts(3, 2, 0)), (Status::Unknown, reason::RECONCILING));
        assert_eq!(said(&facts(3, 2, 1)), (Status::False, reason::PARTIALLY_PROGRAMMED));
        assert_eq!(said(&facts(3, 3, 0)), (Status::True, reason::PROGRAMMED));
        let withheld = [sluice_proto::feature::Feature::SlowRelative].into();
        let facts = AgentFacts { withheld, ..facts(3, 3, 0) };
        assert_eq!(said(&facts), (Status::False, reason::UNSUPPORTED_FIELD));
    }

    #[test]
    fn a_rejection_says_how_many_agents_and_why() {
        let facts = AgentFacts { reason: Some("breaker: too odd".to_owned()), ..facts(5, 3, 2) };
        assert_eq!(
            programmed_by(&facts).message,
            "2 of 5 agents reject it and keep what they have: breaker: too odd"
        );
    }
}
