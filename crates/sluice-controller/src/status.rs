//! Writes the status of both resources, while this replica holds the lease.
//!
//! What is to be said is compared with what the API server last showed: an object whose status says it already is not
//! written, so a quiet cluster sees no write at all. An object is written at most once in [`Paces::between_writes`]; what changes
//! meanwhile is said then. Every write ends with the tenure, and names the version of the object that it was made from,
//! so a replica that was suspended in mid-write can't overwrite what its successor wrote.
//!
//! A new holder does not know what agents of other replicas say before those have told it, nor do agents of a replica
//! that has just started come at once: until then, or for [`Paces::settle`], what only agents know stays as it was written.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sluice_api::conditions::{ACCEPTED, CREDENTIALS_VALID, PROGRAMMED, RESOLVED_REFS, STATE_STORE_READY};
use sluice_api::status::{BreakerStatus, ModelRouteStatus, ReliabilityPolicyStatus};
use sluice_api::{ModelRoute, ReliabilityPolicy};
use sluice_core::policy::ObjectKind;
use sluice_core::target_id::TargetId;
use sluice_policy::compile::{Compiled, PolicyReport, RouteReport};
use sluice_policy::fleet::{AgentFacts, Fleet};
use sluice_policy::index::{Entry, Index, Key};
use sluice_policy::publish::{Publisher, TooLarge};
use sluice_policy::said::Said;
use sluice_policy::status::{
    CONDITIONS, CONTROLLER_NAME, RouteKnown, StateStore, policy_status, route_status,
};
use sluice_proto::apply::RouteName;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::breakers::{Answer, Breakers};
use crate::clock;
use crate::config::Paces;
use crate::events::notice::{About, Notice};
use crate::lease::{Tenure, holds, within_tenure};
use crate::peers::Others;
use crate::plane::Newest;

/// Who owns the fields.
pub const FIELD_MANAGER: &str = "sluice-controller";

/// Between two looks at what the agents say.
const LOOK: Duration = Duration::from_secs(1);
/// Writes at once.
const AT_ONCE: usize = 8;
/// Writes between two looks: what is written last is not to be old by then.
const PER_LOOK: usize = 1_000;
/// An API server that does not answer is given this long.
const WRITE_WITHIN: Duration = Duration::from_secs(10);

/// Where a status comes from, besides what compilation found.
pub(crate) struct Sources {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) others: Arc<Others>,
    pub(crate) breakers: Arc<Breakers>,
    pub(crate) publisher: Arc<Publisher>,
}

pub(crate) struct StatusWriter {
    pub(crate) client: Client,
    pub(crate) index: Arc<Mutex<Index>>,
    pub(crate) newest: Newest,
    pub(crate) sources: Sources,
    pub(crate) tenure: Tenure,
    pub(crate) notices: mpsc::Sender<Notice>,
    pub(crate) paces: Paces,
    pub(crate) memory: Memory,
}

/// What the writer remembers.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    written: BTreeMap<(ObjectKind, Key), Instant>,
    /// Since when this replica has served agents, and held the lease.
    served_since: Option<Instant>,
    held_since: Option<Instant>,
}

/// One object's new status.
#[derive(Debug, Clone, PartialEq)]
struct Write {
    kind: ObjectKind,
    key: Key,
    version: Option<String>,
    status: Value,
    /// What is told once it is written.
    notices: Vec<Notice>,
}

/// Everything that is known at one moment.
struct Facts {
    said: Said,
    agents_breakers: BTreeMap<TargetId, BreakerStatus>,
    too_large: BTreeMap<RouteName, TooLarge>,
    state_store: StateStore,
    /// Whether what agents say is everything that they say.
    settled: bool,
    now: Instant,
    time: Time,
}

impl StatusWriter {
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = look.tick() => {}
            }
            let Some(compiled) = self.newest.borrow().clone() else { continue };
            let now = clock::now();
            self.memory.served_since.get_or_insert(now);
            if !holds(&self.tenure, now) {
                self.memory.held_since = None;
                continue;
            }
            let held_since = *self.memory.held_since.get_or_insert(now);
            let facts = self.facts(now, held_since);
            let writes = self.due(&compiled, &facts);
            self.write(writes).await;
        }
    }

    fn facts(&self, now: Instant, held_since: Instant) -> Facts {
        let Sources { fleet, others, breakers, publisher } = &self.sources;
        let served = self.memory.served_since.is_some_and(|since| now >= since + self.paces.settle);
        let settled = now >= held_since + self.paces.settle || (served && others.have_reported());
        let mut said = fleet.said();
        others.add_to(&mut said);
        Facts {
            agents_breakers: said.breaker_statuses(),
            said,
            too_large: publisher.too_large(),
            state_store: breakers.state_store(now),
            settled,
            now,
            time: clock::time(),
        }
    }

    /// What is to be written now.
    fn due(&mut self, compiled: &Compiled, facts: &Facts) -> Vec<Write> {
        self.memory.written.retain(|_, at| facts.now < *at + self.paces.between_writes);
        let written = &self.memory.written;
        let index = self.index.lock();
        let mut writes = Vec::new();
        for (key, report) in &compiled.routes {
            let due = !written.contains_key(&(ObjectKind::ModelRoute, key.clone()));
            if due && let Some(entry) = index.routes().get(key) {
                writes.extend(self.route(report, entry, facts));
            }
        }
        for (key, report) in &compiled.policies {
            let due = !written.contains_key(&(ObjectKind::ReliabilityPolicy, key.clone()));
            if due && let Some(entry) = index.policies().get(key) {
                writes.extend(policy(report, entry, facts));
            }
        }
        writes.truncate(PER_LOOK);
        writes
    }

    fn route<M>(&self, report: &RouteReport, entry: &Entry<ModelRoute, M>, facts: &Facts) -> Option<Write> {
        let newest = entry.newest.as_deref();
        let (meta, present) = present(entry, newest.map(|route| (&route.metadata, route.status.as_ref())))?;
        let key = &entry.age.key;
        let name = RouteName { namespace: key.namespace.clone(), name: key.name.clone() };
        let too_large = facts.too_large.get(&name);
        let mut agents = facts.said.routes.get(&name).cloned().unwrap_or_default();
        if too_large.is_some() {
            // They are in sync with what they got before.
            agents.in_sync = 0;
        }
        let breakers = self.breakers(report, present.as_ref(), facts);
        let known =
            RouteKnown { agents: &agents, breakers: &breakers, state_store: &facts.state_store, too_large };
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
        let uid = meta.uid.as_deref();
        let about = About { kind: ObjectKind::ModelRoute, key, uid, generation: report.object.generation };
        let mut notices = news(&about, before, &status.conditions, &[ACCEPTED, RESOLVED_REFS]);
        notices.extend(rejection(&about, present.as_ref(), &status));
        Some(Write {
            kind: ObjectKind::ModelRoute,
            key: key.clone(),
            version: meta.resource_version.clone(),
            status: ours(&status),
            notices,
        })
    }

    fn breakers(
        &self,
        report: &RouteReport,
        present: Option<&ModelRouteStatus>,
        facts: &Facts,
    ) -> BTreeMap<TargetId, BreakerStatus> {
        let before = |name: &str| {
            let target = present?.targets.iter().find(|target| target.name == name)?;
            Some(target.breaker.clone())
        };
        let found = report.targets.iter().filter_map(|target| {
            let status = match self.sources.breakers.answer(&target.id, facts.now) {
                Answer::Is(status) => Some(status),
                Answer::AskAgents if facts.settled => facts.agents_breakers.get(&target.id).cloned(),
                Answer::NotYet | Answer::AskAgents => before(&target.name),
            };
            Some((target.id.clone(), status?))
        });
        found.collect()
    }

    async fn write(&mut self, writes: Vec<Write>) {
        let (client, tenure) = (self.client.clone(), self.tenure.clone());
        let mut answers = futures_util::stream::iter(writes)
            .map(|write| {
                let (client, tenure) = (client.clone(), tenure.clone());
                async move {
                    let writing = tokio::time::timeout(WRITE_WITHIN, patch(client, &write));
                    (within_tenure(&tenure, writing).await, write)
                }
            })
            .buffer_unordered(AT_ONCE);
        while let Some((answer, write)) = answers.next().await {
            let (kind, object) = (write.kind.as_str(), &write.key);
            match answer {
                // Not this replica's to write any more.
                None => continue,
                Some(Ok(Ok(()))) => {
                    tracing::debug!(kind, %object, "status written");
                    for notice in write.notices {
                        // Full: the conditions say it all the same.
                        let _ = self.notices.try_send(notice);
                    }
                }
                // It changed meanwhile: the watch tells how, and then it is looked at anew.
                Some(Ok(Err(kube::Error::Api(status)))) if status.code == 409 => continue,
                Some(Ok(Err(error))) => tracing::warn!(kind, %object, %error, "a status was not written"),
                Some(Err(_)) => tracing::warn!(kind, %object, "a status was not written in time"),
            }
            // Failed or not: what keeps failing is not tried in a loop.
            self.memory.written.insert((write.kind, write.key), clock::now());
        }
    }
}

fn policy<M>(report: &PolicyReport, entry: &Entry<ReliabilityPolicy, M>, facts: &Facts) -> Option<Write> {
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
async fn patch(client: Client, write: &Write) -> kube::Result<()> {
    let resource = match write.kind {
        ObjectKind::ModelRoute => ApiResource::erase::<ModelRoute>(&()),
        ObjectKind::ReliabilityPolicy => ApiResource::erase::<ReliabilityPolicy>(&()),
    };
    let objects = Api::<DynamicObject>::namespaced_with(client, &write.key.namespace, &resource);
    let object = json!({
        "apiVersion": sluice_api::API_VERSION,
        "kind": write.kind.as_str(),
        "metadata": { "name": &*write.key.name, "resourceVersion": write.version },
        "status": write.status,
    });
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    match objects.patch_status(&write.key.name, &parameters, &Patch::Apply(&object)).await {
        // It was deleted meanwhile.
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => other.map(|_| ()),
    }
}

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
