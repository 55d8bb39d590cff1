//! What one object's status is to be, and what is told of it. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sluice_api::conditions::{ACCEPTED, CREDENTIALS_VALID, PROGRAMMED, RESOLVED_REFS, STATE_STORE_READY};
use sluice_api::status::{BreakerStatus, ModelRouteStatus, ReliabilityPolicyStatus};
use sluice_api::{ModelRoute, ReliabilityPolicy};
use sluice_core::policy::ObjectKind;
use sluice_core::target_id::TargetId;
use sluice_policy::compile::{PolicyReport, RouteReport};
use sluice_policy::fleet::AgentFacts;
use sluice_policy::index::{Entry, Key};
use sluice_policy::publish::TooLarge;
use sluice_policy::said::Said;
use sluice_policy::status::{
    CONDITIONS, CONTROLLER_NAME, RouteKnown, StateStore, policy_status, route_status,
};
use sluice_proto::apply::RouteName;
use tokio::time::Instant;

use crate::events::notice::{About, Notice};

/// One object's new status.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Write {
    pub(super) kind: ObjectKind,
    pub(super) key: Key,
    pub(super) version: Option<String>,
    pub(super) status: Value,
    /// What is told once it is written.
    pub(super) notices: Vec<Notice>,
}

/// Everything that is known at one moment.
pub(super) struct Facts {
    pub(super) said: Said,
    pub(super) agents_breakers: BTreeMap<TargetId, BreakerStatus>,
    pub(super) too_large: BTreeMap<RouteName, TooLarge>,
    pub(super) state_store: StateStore,
    /// Whether what agents say is everything that they say.
    pub(super) settled: bool,
    pub(super) now: Instant,
    pub(super) time: Time,
}

/// Everything that a route's status is made of.
#[derive(Debug)]
pub(super) struct Inputs {
    pub(super) report: Arc<RouteReport>,
    pub(super) newest: Option<Arc<ModelRoute>>,
    pub(super) agents: AgentFacts,
    pub(super) breakers: BTreeMap<TargetId, BreakerStatus>,
    pub(super) too_large: Option<TooLarge>,
    pub(super) state_store: StateStore,
    pub(super) settled: bool,
}

impl Inputs {
    /// Whether these are the same, so that the outcome is.
    pub(super) fn are(&self, other: &Self) -> bool {
        let same_object = match (&self.newest, &other.newest) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            // What can't be read is looked at each time.
            _ => false,
        };
        same_object
            && Arc::ptr_eq(&self.report, &other.report)
            && self.settled == other.settled
            && self.agents == other.agents
            && self.breakers == other.breakers
            && self.too_large == other.too_large
            && self.state_store == other.state_store
    }
}

pub(super) fn route<M>(
    report: &RouteReport,
    entry: &Entry<ModelRoute, M>,
    inputs: &Inputs,
    facts: &Facts,
) -> Option<Write> {
    let newest = entry.newest.as_deref();
    let (meta, present) = present(entry, newest.map(|route| (&route.metadata, route.status.as_ref())))?;
    let known = RouteKnown {
        agents: &inputs.agents,
        breakers: &inputs.breakers,
        state_store: &inputs.state_store,
        too_large: inputs.too_large.as_ref(),
    };
    let mut status = route_status(report, &known, present.as_ref(), &facts.time);
    if !facts.settled
        && let Some(present) = &present
    {
        keep_counts(&mut status, present);
    }
    if present.as_ref() == Some(&status) {
        return None;
    }
    let before = present.as_ref().map_or(&[][..], |status| &status.conditions);
    let (kind, key, uid) = (ObjectKind::ModelRoute, &entry.age.key, meta.uid.as_deref());
    let about = About { kind, key, uid, generation: report.object.generation };
    let mut notices = news(&about, before, &status.conditions, &[ACCEPTED, RESOLVED_REFS]);
    notices.extend(rejection(&about, present.as_ref(), &status));
    let version = meta.resource_version.clone();
    Some(Write { kind, key: key.clone(), version, status: ours(&status), notices })
}

pub(super) fn policy<M>(
    report: &PolicyReport,
    entry: &Entry<ReliabilityPolicy, M>,
    facts: &Facts,
) -> Option<Write> {
    let newest = entry.newest.as_deref();
    let (meta, present) = present(entry, newest.map(|policy| (&policy.metadata, policy.status.as_ref())))?;
    let agents = |key: &Key| {
        let name = RouteName { namespace: key.namespace.clone(), name: key.name.clone() };
        let facts_of = facts.said.routes.get(&name).cloned().unwrap_or_default();
        let stuck = facts.too_large.contains_key(&name);
        AgentFacts { in_sync: if stuck { 0 } else { facts_of.in_sync }, ..facts_of }
    };
    let mut status = policy_status(report, agents, present.as_ref(), &facts.time);
    if !facts.settled
        && let Some(present) = &present
    {
        keep_programmed(&mut status, present);
    }
    if present.as_ref().map_or(status.ancestors.is_empty(), |present| *present == status) {
        return None;
    }
    let key = &entry.age.key;
    let (kind, uid) = (ObjectKind::ReliabilityPolicy, meta.uid.as_deref());
    let about = About { kind, key, uid, generation: report.object.generation };
    let notices = policy_news(&about, report, present.as_ref(), &status);
    let version = meta.resource_version.clone();
    Some(Write { kind, key: key.clone(), version, status: json!(status), notices })
}

/// An object's metadata and status as the API server last showed them. `None`: nothing is known of it.
fn present<'a, T, M, S: DeserializeOwned + Clone>(
    entry: &'a Entry<T, M>,
    newest: Option<(&'a ObjectMeta, Option<&S>)>,
) -> Option<(&'a ObjectMeta, Option<S>)> {
    if let Some((meta, status)) = newest {
        return Some((meta, status.cloned()));
    }
    let unread = entry.unread.as_deref()?;
    Some((&unread.meta, serde_json::from_value(unread.status.clone()).ok()))
}

/// Conditions of these types that are false now, and were not or for other reasons.
fn news(about: &About<'_>, before: &[Condition], now: &[Condition], of: &[&str]) -> Vec<Notice> {
    let bad = now.iter().filter(|condition| of.contains(&&*condition.type_) && condition.status == "False");
    let news = bad.filter(|condition| {
        let before = before.iter().find(|before| before.type_ == condition.type_);
        let words = |condition: &Condition| {
            (condition.status.clone(), condition.reason.clone(), condition.message.clone())
        };
        before.map(words) != Some(words(condition))
    });
    news.map(|condition| Notice::condition(about, condition)).collect()
}

/// Of what is refused, and of what works only in part where compilation says so: what agents say of its routes is told
/// of the routes.
fn policy_news(
    about: &About<'_>,
    report: &PolicyReport,
    present: Option<&ReliabilityPolicyStatus>,
    status: &ReliabilityPolicyStatus,
) -> Vec<Notice> {
    let ours = status.ancestors.iter().filter(|ancestor| ancestor.controller_name == CONTROLLER_NAME);
    let news_of = ours.flat_map(|ancestor| {
        let present = present.map_or(&[][..], |present| &present.ancestors);
        let before = present.iter().find(|before| {
            before.ancestor_ref == ancestor.ancestor_ref && before.controller_name == CONTROLLER_NAME
        });
        let before = before.map_or(&[][..], |before| &before.conditions);
        let found = report.ancestors.iter().find(|found| found.ancestor == ancestor.ancestor_ref);
        let certain = found.is_some_and(|found| found.programmed.is_some());
        let of = if certain { &[ACCEPTED, PROGRAMMED][..] } else { &[ACCEPTED][..] };
        news(about, before, &ancestor.conditions, of)
    });
    news_of.collect()
}

/// Agents that reject a route, told once for each reason.
fn rejection(
    about: &About<'_>,
    present: Option<&ModelRouteStatus>,
    status: &ModelRouteStatus,
) -> Option<Notice> {
    let agents = status.agents.as_ref().filter(|agents| agents.rejecting > 0)?;
    let why = agents.reason.as_deref().unwrap_or("no reason given");
    let before = present.and_then(|present| present.agents.as_ref()?.reason.as_deref());
    (before != Some(why)).then(|| Notice::rejection(about, agents.rejecting, agents.connected, why))
}

/// The answer is not read as what it is: an object that can't be read here has a status as well.
/// A route's status without the conditions that others own: applying them would make them ours.
fn ours(status: &ModelRouteStatus) -> Value {
    let mut status = status.clone();
    status.conditions.retain(|condition| CONDITIONS.contains(&condition.type_.as_str()));
    json!(status)
}

/// What a new writer does not know yet stays as the one before wrote it.
fn keep_counts(status: &mut ModelRouteStatus, present: &ModelRouteStatus) {
    status.agents.clone_from(&present.agents);
    if let (Some(summary), Some(before)) = (&mut status.summary, &present.summary) {
        summary.agents.clone_from(&before.agents);
    }
    keep(&mut status.conditions, &present.conditions);
    for of_agents in [CREDENTIALS_VALID, STATE_STORE_READY] {
        let before = present.conditions.iter().find(|condition| condition.type_ == of_agents);
        status.conditions.retain(|condition| condition.type_ != of_agents);
        status.conditions.extend(before.cloned());
    }
    status.conditions.sort_by(|one, other| one.type_.cmp(&other.type_));
}

fn keep_programmed(status: &mut ReliabilityPolicyStatus, present: &ReliabilityPolicyStatus) {
    for ancestor in &mut status.ancestors {
        let before = present.ancestors.iter().find(|before| {
            before.ancestor_ref == ancestor.ancestor_ref && before.controller_name == ancestor.controller_name
        });
        if let Some(before) = before {
            keep(&mut ancestor.conditions, &before.conditions);
        }
    }
}

/// `Programmed` is what agents say, unless compilation has said that it is not.
fn keep(conditions: &mut [Condition], present: &[Condition]) {
    let before = present.iter().find(|condition| condition.type_ == PROGRAMMED);
    let now = conditions.iter_mut().find(|condition| condition.type_ == PROGRAMMED);
    if let (Some(before), Some(now)) = (before, now)
        && now.status == "Unknown"
    {
        *now = before.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(type_: &str, status: &str) -> Condition {
        Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: "Because".to_owned(),
            message: String::new(),
            observed_generation: Some(1),
            last_transition_time: Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH),
        }
    }

    #[test]
    fn a_new_writer_keeps_what_only_agents_know() {
        let before = [condition(ACCEPTED, "True"), condition(PROGRAMMED, "True")];
        let mut now = [condition(ACCEPTED, "False"), condition(PROGRAMMED, "Unknown")];
        keep(&mut now, &before);
        assert_eq!((now[0].status.as_str(), now[1].status.as_str()), ("False", "True"));
        // What compilation knows is said at once.
        let mut now = [condition(PROGRAMMED, "False")];
        keep(&mut now, &before);
        assert_eq!(now[0].status, "False");
    }

    #[test]
    fn a_new_writer_neither_takes_back_nor_makes_up_what_agents_said_of_credentials() {
        let present = ModelRouteStatus {
            conditions: vec![condition(ACCEPTED, "True"), condition(CREDENTIALS_VALID, "False")],
            ..ModelRouteStatus::default()
        };
        let mut status = ModelRouteStatus {
            conditions: vec![condition(ACCEPTED, "True"), condition(STATE_STORE_READY, "Unknown")],
            ..ModelRouteStatus::default()
        };
        keep_counts(&mut status, &present);
        assert_eq!(status, present);
    }

    #[test]
    fn conditions_of_others_are_not_applied() {
        let conditions = vec![
            condition(ACCEPTED, "True"),
            condition(CREDENTIALS_VALID, "False"),
            condition("example.com/Audited", "True"),
        ];
        let status = ModelRouteStatus { conditions, ..ModelRouteStatus::default() };
        let applied = ours(&status);
        assert_eq!(applied["conditions"].as_array().unwrap().len(), 2, "{applied}");
    }

    #[test]
    fn what_became_bad_is_told_and_what_stays_bad_is_not() {
        let key = Key::new("ns", "chat");
        let about = About { kind: ObjectKind::ModelRoute, key: &key, uid: None, generation: 1 };
        let tell = |before: &[Condition], now: &[Condition]| news(&about, before, now, &[ACCEPTED]).len();
        let (good, bad) = (condition(ACCEPTED, "True"), condition(ACCEPTED, "False"));
        assert_eq!(tell(&[], std::slice::from_ref(&good)), 0);
        assert_eq!(tell(&[], std::slice::from_ref(&bad)), 1);
        assert_eq!(tell(std::slice::from_ref(&good), std::slice::from_ref(&bad)), 1);
        let later = Condition { observed_generation: Some(2), ..bad.clone() };
        assert_eq!(tell(std::slice::from_ref(&bad), std::slice::from_ref(&later)), 0);
        let other = Condition { message: "something else".to_owned(), ..bad.clone() };
        assert_eq!(tell(std::slice::from_ref(&bad), std::slice::from_ref(&other)), 1);
        assert_eq!(tell(&[], &[condition(PROGRAMMED, "False")]), 0, "not asked for");
    }
}
