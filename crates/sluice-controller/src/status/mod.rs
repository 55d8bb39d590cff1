//! Writes the status of both resources, while this replica holds the lease.
//!
//! What is to be said is compared with what the API server last showed: an object whose status says it already is not
//! written, so a quiet cluster sees no write at all. An object is written at most once in [`Paces::between_writes`]; what changes
//! meanwhile is said then. Every write ends with the tenure, and names the version of the object that it was made from,
//! so a replica that was suspended in mid-write can't overwrite what its successor wrote.
//!
//! A new holder does not know what agents of other replicas say before those have told it, nor do agents of a replica
//! that has just started come at once: until then, or for [`Paces::settle`], what only agents know stays as it was
//! written. So it does when this replica was not the holder for a moment: what others said is forgotten with each
//! tenure, however short the gap, see [`Others::add_to`].

mod object;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::json;
use sluice_api::status::{BreakerStatus, ModelRouteStatus};
use sluice_api::{ModelRoute, ReliabilityPolicy};
use sluice_core::policy::ObjectKind;
use sluice_core::target_id::TargetId;
use sluice_policy::compile::{Compiled, RouteReport};
use sluice_policy::fleet::Fleet;
use sluice_policy::index::{Entry, Index, Key};
use sluice_policy::publish::Publisher;
use sluice_proto::apply::RouteName;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::breakers::{Answer, Breakers};
use crate::clock;
use crate::config::Paces;
use crate::events::notice::Notice;
use crate::lease::{Tenure, holds, within_tenure};
use crate::peers::Others;
use crate::plane::Newest;
use object::{Facts, Inputs, Write, policy, route};

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
    /// Since when this replica has served agents.
    served_since: Option<Instant>,
    /// What the statuses were made of that need no write. Looking at ten thousand routes every second would be most of
    /// what a quiet controller does.
    rested: BTreeMap<Key, Inputs>,
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
                continue;
            }
            let facts = self.facts(now);
            let writes = self.due(&compiled, &facts);
            self.write(writes).await;
        }
    }

    fn facts(&self, now: Instant) -> Facts {
        let Sources { fleet, others, breakers, publisher } = &self.sources;
        let served = self.memory.served_since.is_some_and(|since| now >= since + self.paces.settle);
        let mut said = fleet.said();
        let told = others.add_to(&mut said, self.paces.settle, now);
        Facts {
            agents_breakers: said.breaker_statuses(),
            said,
            too_large: publisher.too_large(),
            state_store: breakers.state_store(now),
            settled: served && told,
            now,
            time: clock::time(),
        }
    }

    /// What is to be written now.
    fn due(&mut self, compiled: &Compiled, facts: &Facts) -> Vec<Write> {
        self.memory.written.retain(|_, at| facts.now < *at + self.paces.between_writes);
        let mut rested = std::mem::take(&mut self.memory.rested);
        rested.retain(|key, _| compiled.routes.contains_key(key));
        let written = &self.memory.written;
        let index = self.index.lock();
        let mut writes = Vec::new();
        for (key, report) in &compiled.routes {
            let due = !written.contains_key(&(ObjectKind::ModelRoute, key.clone()));
            let Some(entry) = index.routes().get(key).filter(|_| due) else { continue };
            let inputs = self.inputs(report, entry, facts);
            if rested.get(key).is_some_and(|before| before.are(&inputs)) {
                continue;
            }
            match route(report, entry, &inputs, facts) {
                Some(write) => writes.push(write),
                None => drop(rested.insert(key.clone(), inputs)),
            }
        }
        for (key, report) in &compiled.policies {
            let due = !written.contains_key(&(ObjectKind::ReliabilityPolicy, key.clone()));
            if due && let Some(entry) = index.policies().get(key) {
                writes.extend(policy(report, entry, facts));
            }
        }
        drop(index);
        self.memory.rested = rested;
        writes.truncate(PER_LOOK);
        writes
    }

    /// What a route's status is made of now.
    fn inputs<M>(&self, report: &Arc<RouteReport>, entry: &Entry<ModelRoute, M>, facts: &Facts) -> Inputs {
        let key = &entry.age.key;
        let name = RouteName { namespace: key.namespace.clone(), name: key.name.clone() };
        let too_large = facts.too_large.get(&name).cloned();
        let mut agents = facts.said.routes.get(&name).cloned().unwrap_or_default();
        if too_large.is_some() {
            // They are in sync with what they got before.
            agents.in_sync = 0;
        }
        let before = entry.newest.as_ref().and_then(|route| route.status.as_ref());
        Inputs {
            report: report.clone(),
            newest: entry.newest.clone(),
            agents,
            breakers: self.breakers(report, before, facts),
            too_large,
            state_store: facts.state_store.clone(),
            settled: facts.settled,
        }
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

#[cfg(test)]
mod tests {
    use sluice_core::admission::{BreakerState, TransitionReason};
    use sluice_policy::compile::compile;
    use sluice_proto::replica::{AgentFacts, BreakerSaid, ReplicaSaid};
    use sluice_proto::report::BreakerSeen;

    use super::*;
    use crate::api_server::ApiServer;

    const SETTLE: Duration = Duration::from_secs(15);

    /// The writer of a replica without agents, which has served for long.
    fn writer(others: &Arc<Others>, now: Instant) -> (StatusWriter, Arc<Compiled>) {
        let mut index = Index::default();
        index.apply_route(route_with(None), 0);
        let compiled = Arc::new(compile(&index));
        let (_, tenure) = tokio::sync::watch::channel(Some(now + Duration::from_hours(1)));
        let writer = StatusWriter {
            client: ApiServer::default().client(),
            index: Arc::new(Mutex::new(index)),
            newest: tokio::sync::watch::channel(Some(compiled.clone())).1,
            sources: Sources {
                fleet: Arc::new(Fleet::new().0),
                others: others.clone(),
                breakers: Arc::new(Breakers::new(None)),
                publisher: Arc::new(Publisher::new()),
            },
            tenure,
            notices: mpsc::channel(1).0,
            paces: Paces { settle: SETTLE, ..Paces::default() },
            memory: Memory { served_since: Some(now), ..Memory::default() },
        };
        (writer, compiled)
    }

    fn route_with(status: Option<&serde_json::Value>) -> ModelRoute {
        serde_json::from_value(json!({
            "apiVersion": "sluice.dev/v1alpha1", "kind": "ModelRoute",
            "metadata": {"namespace": "team", "name": "chat", "uid": "u", "generation": 1},
            "spec": {"models": ["*"], "targets": [{"name": "primary", "provider": "OpenAI",
                "endpoint": "https://primary.example/v1", "credential": {"type": "None"}}]},
            "status": status,
        }))
        .unwrap()
    }

    /// One agent, and an open breaker.
    fn everything() -> ReplicaSaid {
        let name = RouteName { namespace: "team".into(), name: "chat".into() };
        let facts = AgentFacts { connected: 1, in_sync: 1, ..AgentFacts::default() };
        let target = TargetId::of("team", "chat/primary", "https://primary.example/v1", "");
        let (state, open_for) = (BreakerState::Open, Duration::from_hours(1));
        let seen = BreakerSeen { state, epoch: 1_800_000_000_000, open_for };
        let breaker = BreakerSaid { seen, reason: Some(TransitionReason::Consecutive) };
        ReplicaSaid {
            routes: [(name, facts)].into(),
            breakers: [(target, Some(breaker))].into(),
            transitions: Vec::new(),
            whole: true,
        }
    }

    #[tokio::test]
    async fn a_lease_that_was_lost_for_a_moment_takes_nothing_back_that_others_said() {
        let (others, start) = (Arc::new(Others::none()), clock::now());
        let (mut writer, compiled) = writer(&others, start);
        let due = |writer: &mut StatusWriter, now: Instant| {
            let facts = writer.facts(now);
            writer.due(&compiled, &facts)
        };
        let begin = |now: Instant| {
            others.begin(now);
            others.set_live(&["other".into()].into());
        };
        begin(start);
        others.tell("other", &everything());
        let mut now = start + 10 * SETTLE;
        let written = due(&mut writer, now).remove(0).status;
        assert_eq!(written["summary"]["agents"], "1/1");
        assert_eq!(written["targets"][0]["breaker"]["state"], "Open");
        writer.index.lock().apply_route(route_with(Some(&written)), 0);
        assert_eq!(due(&mut writer, now), [], "it is written");

        // Between two looks: what was said is gone, and the lease is held again.
        others.forget();
        assert_eq!(due(&mut writer, now), [], "nobody is asked");
        now += Duration::from_secs(1);
        begin(now);
        assert_eq!(due(&mut writer, now), [], "it has not told");
        others.tell("other", &everything());
        assert_eq!(due(&mut writer, now), []);
        // It tells nothing any more, and time goes by.
        begin(now);
        let before = now + SETTLE.saturating_sub(Duration::from_secs(1));
        assert_eq!(due(&mut writer, before), [], "it has time");
        let after = due(&mut writer, now + SETTLE).remove(0).status;
        assert_eq!(after["summary"]["agents"], "0/0");
        assert_eq!(after["targets"][0]["breaker"]["state"], "Closed");
    }
}
