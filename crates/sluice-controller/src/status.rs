//! Writes the status of both resources, while this replica holds the lease.
//!
//! What is to be said is compared with what the API server last showed: an object whose status says it already is not
//! written, so a quiet cluster sees no write at all. An object is written at most once in [`BETWEEN`]; what changes
//! meanwhile is said then. Every write ends with the tenure that it began in.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sluice_api::conditions::{ACCEPTED, PROGRAMMED, RESOLVED_REFS};
use sluice_api::status::{ModelRouteStatus, ReliabilityPolicyStatus};
use sluice_api::{ModelRoute, ReliabilityPolicy};
use sluice_core::policy::ObjectKind;
use sluice_policy::compile::Compiled;
use sluice_policy::fleet::{AgentFacts, Fleet};
use sluice_policy::index::{Index, Key};
use sluice_policy::status::{policy_status, route_status};
use sluice_proto::apply::RouteName;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::lease::Tenure;
use crate::plane::Newest;

/// Who owns the fields.
pub const FIELD_MANAGER: &str = "sluice-controller";

/// Between two writes of one object.
const BETWEEN: Duration = Duration::from_secs(10);
/// Between two looks at what the agents say.
const LOOK: Duration = Duration::from_secs(1);
/// How long agents get to connect before a new writer counts them.
const SETTLE: Duration = Duration::from_secs(15);
/// Writes at once.
const AT_ONCE: usize = 8;

pub(crate) struct StatusWriter {
    pub(crate) client: Client,
    pub(crate) index: Arc<Mutex<Index>>,
    pub(crate) newest: Newest,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) tenure: Tenure,
    written: BTreeMap<(ObjectKind, Key), Instant>,
}

/// One object's new status.
#[derive(Debug, Clone, PartialEq)]
struct Write {
    kind: ObjectKind,
    key: Key,
    status: Value,
}

impl StatusWriter {
    pub(crate) fn new(
        client: Client,
        index: Arc<Mutex<Index>>,
        newest: Newest,
        fleet: Arc<Fleet>,
        tenure: Tenure,
    ) -> Self {
        Self { client, index, newest, fleet, tenure, written: BTreeMap::new() }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut since = None;
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = look.tick() => {}
            }
            let Some(until) = *self.tenure.borrow() else {
                since = None;
                continue;
            };
            let Some(compiled) = self.newest.borrow().clone() else { continue };
            let now = clock::now();
            let since = *since.get_or_insert(now);
            let writes = self.due(&compiled, now, now >= since + SETTLE);
            // A tenure that ends takes the writes on their way with it; the renewed one does the rest.
            let _ = tokio::time::timeout_at(until, self.write(writes)).await;
        }
    }

    /// What is to be written now.
    fn due(&mut self, compiled: &Compiled, now: Instant, settled: bool) -> Vec<Write> {
        let facts = self.fleet.facts_by_route();
        let breakers = self.fleet.breakers();
        let nobody = AgentFacts::default();
        let facts_of = |key: &Key| {
            let name = RouteName { namespace: key.namespace.clone(), name: key.name.clone() };
            facts.get(&name).unwrap_or(&nobody).clone()
        };
        let time = clock::time();
        let index = self.index.lock();
        let mut writes = Vec::new();
        for (key, report) in &compiled.routes {
            let Some(newest) = index.routes().get(key).and_then(|entry| entry.newest.as_ref()) else {
                continue;
            };
            let present = newest.status.as_ref();
            let mut status = route_status(report, &facts_of(key), &breakers, present, &time);
            if !settled && let Some(present) = present {
                keep_counts(&mut status, present);
            }
            if present != Some(&status) {
                writes.push(Write { kind: ObjectKind::ModelRoute, key: key.clone(), status: ours(&status) });
            }
        }
        for (key, report) in &compiled.policies {
            let Some(newest) = index.policies().get(key).and_then(|entry| entry.newest.as_ref()) else {
                continue;
            };
            let present = newest.status.as_ref();
            let mut status = policy_status(report, facts_of, present, &time);
            if !settled && let Some(present) = present {
                keep_programmed(&mut status, present);
            }
            if present.map_or(!status.ancestors.is_empty(), |present| *present != status) {
                writes.push(Write {
                    kind: ObjectKind::ReliabilityPolicy,
                    key: key.clone(),
                    status: json!(status),
                });
            }
        }
        drop(index);
        self.written.retain(|_, at| now < *at + BETWEEN);
        writes.retain(|write| !self.written.contains_key(&(write.kind, write.key.clone())));
        writes
    }

    async fn write(&mut self, writes: Vec<Write>) {
        let client = self.client.clone();
        let mut answers = futures_util::stream::iter(writes)
            .map(|write| {
                let client = client.clone();
                async move { (patch(client, &write).await, write) }
            })
            .buffer_unordered(AT_ONCE);
        while let Some((answer, write)) = answers.next().await {
            // Failed or not: what keeps failing is not tried in a loop.
            self.written.insert((write.kind, write.key.clone()), clock::now());
            match answer {
                Ok(()) => tracing::debug!(kind = write.kind.as_str(), object = %write.key, "status written"),
                Err(error) => {
                    tracing::warn!(kind = write.kind.as_str(), object = %write.key, %error, "a status was not written");
                }
            }
        }
    }
}

async fn patch(client: Client, write: &Write) -> kube::Result<()> {
    match write.kind {
        ObjectKind::ModelRoute => {
            apply(&Api::<ModelRoute>::namespaced(client, &write.key.namespace), "ModelRoute", write).await
        }
        ObjectKind::ReliabilityPolicy => {
            let policies = Api::<ReliabilityPolicy>::namespaced(client, &write.key.namespace);
            apply(&policies, "ReliabilityPolicy", write).await
        }
    }
}

async fn apply<K: Clone + DeserializeOwned + std::fmt::Debug>(
    objects: &Api<K>,
    kind: &str,
    write: &Write,
) -> kube::Result<()> {
    let object = json!({
        "apiVersion": sluice_api::API_VERSION,
        "kind": kind,
        "metadata": { "name": &*write.key.name },
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
    status
        .conditions
        .retain(|condition| [ACCEPTED, RESOLVED_REFS, PROGRAMMED].contains(&condition.type_.as_str()));
    json!(status)
}

/// What a new writer does not know yet stays as the one before wrote it.
fn keep_counts(status: &mut ModelRouteStatus, present: &ModelRouteStatus) {
    status.agents.clone_from(&present.agents);
    if let (Some(summary), Some(before)) = (&mut status.summary, &present.summary) {
        summary.agents.clone_from(&before.agents);
        summary.breaker.clone_from(&before.breaker);
    }
    for target in &mut status.targets {
        if let Some(before) = present.targets.iter().find(|before| before.name == target.name) {
            target.breaker = before.breaker.clone();
        }
    }
    keep(&mut status.conditions, &present.conditions);
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
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

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
    fn conditions_of_others_are_not_applied() {
        let status = ModelRouteStatus {
            conditions: vec![condition(ACCEPTED, "True"), condition("example.com/Audited", "True")],
            ..ModelRouteStatus::default()
        };
        let applied = ours(&status);
        assert_eq!(applied["conditions"].as_array().unwrap().len(), 1, "{applied}");
    }
}
