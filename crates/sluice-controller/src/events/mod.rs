//! Events: breaker transitions on each route that has the target, what is wrong with routes and policies, and pods
//! without an agent. Written by the holder of the Lease.
//!
//! | module | what it does |
//! |---|---|
//! | [`notice`] | what is told, and under which name |
//! | [`pace`] | how fast |
//!
//! Transitions come from a log that every replica keeps, so a new holder tells what the one before may not have told;
//! what it has told is refused by name. The rest comes as it is found, and more than fits into a bounded queue is
//! dropped: conditions say it all the same.

pub(crate) mod notice;
mod pace;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::events::v1::Event;
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use sluice_core::policy::ObjectKind;
use sluice_policy::compile::Compiled;
use sluice_policy::index::{Index, Key};
use sluice_policy::transition_log::{Place, TransitionLog};
use sluice_proto::report::TargetTransition;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::clock;
use crate::injection::missing::MissingAgents;
use crate::lease::{Tenure, holds, over, within_tenure};
use crate::plane::Newest;
use notice::{About, Notice};
use pace::Pace;

/// Notices that wait for their turn.
pub(crate) const WAITING: usize = 1_024;
/// Transitions that are taken up at once.
const AT_ONCE: usize = 64;
/// How long a name is remembered, so that it is not offered again: for as long as API servers keep Events.
const TOLD_FOR: Duration = Duration::from_hours(1);
/// Names that are remembered.
const TOLD: usize = 8_192;
/// An API server that takes no Event is given this long.
const WRITE_WITHIN: Duration = Duration::from_secs(10);
/// A transition's Event is tried so often, and again after this.
const TRIES: u32 = 30;
const AGAIN: Duration = Duration::from_secs(1);

pub(crate) struct EventWriter {
    pub(crate) client: Client,
    pub(crate) index: Arc<Mutex<Index>>,
    pub(crate) newest: Newest,
    pub(crate) tenure: Tenure,
    pub(crate) pod: Arc<str>,
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It is told, or is not to be told by this replica.
    Done,
    Failed,
}

/// Names that have been told lately.
#[derive(Debug, Default)]
struct Told(BTreeMap<String, Instant>);

impl Told {
    /// Whether it is to be told.
    fn is_news(&mut self, notice: &Notice, now: Instant) -> bool {
        if self.0.len() >= TOLD {
            self.0.retain(|_, at| now < *at + TOLD_FOR);
        }
        if self.0.len() >= TOLD {
            // The API server knows the names too.
            self.0.clear();
        }
        let name = format!("{}/{}", notice.namespace(), notice.name());
        let told = self.0.insert(name, now);
        told.is_none_or(|at| now >= at + TOLD_FOR)
    }
}

impl EventWriter {
    /// Tells of transitions, each once, while this replica holds the lease. Runs until it is dropped.
    pub(crate) async fn tell_transitions(&self, log: &TransitionLog) {
        let (mut news, mut tenure) = (log.watch(), self.tenure.clone());
        let mut pace = Pace::new(clock::now());
        loop {
            // A new tenure begins with what is remembered: nobody may have told it.
            let mut place = Place::default();
            while holds(&tenure, clock::now()) {
                news.mark_unchanged();
                let read = log.read(place, AT_ONCE, clock::now());
                if read.missed > 0 {
                    tracing::warn!(transitions = read.missed, "Events could not be written fast enough");
                }
                place = read.next;
                let everything = read.transitions.len() < AT_ONCE;
                for told in &read.transitions {
                    self.tell_transition(told, &mut pace).await;
                }
                if everything {
                    tokio::select! {
                        changed = news.changed() => if changed.is_err() { return },
                        () = over(&mut tenure) => {}
                    }
                }
            }
            if tenure.changed().await.is_err() {
                return;
            }
        }
    }

    async fn tell_transition(&self, told: &TargetTransition, pace: &mut Pace) {
        let Some(compiled) = self.newest.borrow().clone() else { return };
        for (key, target) in routes_with(&compiled, told) {
            let uid = {
                let index = self.index.lock();
                let route = index.routes().get(&key).and_then(|entry| entry.newest.as_ref());
                route.and_then(|route| route.metadata.uid.clone())
            };
            let kind = ObjectKind::ModelRoute;
            let route = About { kind, key: &key, uid: uid.as_deref(), generation: 0 };
            let notice = Notice::transition(&route, &target, told);
            // An API server that is away for a moment is no reason to keep it to oneself.
            for _ in 0..TRIES {
                if self.write(&notice, pace).await != Outcome::Failed {
                    break;
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
    }

    /// Tells what comes, while this replica holds the lease. Runs until it is dropped.
    pub(crate) async fn tell_notices(
        &self,
        mut notices: mpsc::Receiver<Notice>,
        missing: Option<MissingAgents>,
    ) {
        let (mut told, mut pace) = (Told::default(), Pace::new(clock::now()));
        // Without injection nobody asks for an agent.
        let (nobody, of_nobody) = tokio::sync::watch::channel(BTreeMap::new());
        let mut missing = missing.unwrap_or(of_nobody);
        loop {
            let found: Vec<Notice> = tokio::select! {
                Some(notice) = notices.recv() => vec![notice],
                Ok(()) = missing.changed() => {
                    missing.borrow_and_update().values().map(Notice::missing_agent).collect()
                }
                else => break,
            };
            for notice in found {
                if holds(&self.tenure, clock::now()) && told.is_news(&notice, clock::now()) {
                    self.write(&notice, &mut pace).await;
                }
            }
        }
        drop(nobody);
    }

    async fn write(&self, notice: &Notice, pace: &mut Pace) -> Outcome {
        let events = Api::<Event>::namespaced(self.client.clone(), notice.namespace());
        let at = pace.next(clock::now());
        let writing = async {
            tokio::time::sleep_until(at).await;
            let event = notice.event(&self.pod, clock::micro_time());
            tokio::time::timeout(WRITE_WITHIN, events.create(&PostParams::default(), &event)).await
        };
        let (name, namespace) = (notice.name(), notice.namespace());
        match within_tenure(&self.tenure, writing).await {
            Some(Ok(Ok(_))) | None => Outcome::Done,
            // Its name is there: it has been told.
            Some(Ok(Err(kube::Error::Api(status)))) if status.code == 409 => Outcome::Done,
            // Asking again would be answered the same.
            Some(Ok(Err(kube::Error::Api(status))))
                if (400..500).contains(&status.code) && status.code != 429 =>
            {
                tracing::warn!(name, namespace, error = %status, "an Event was refused");
                Outcome::Done
            }
            Some(Ok(Err(error))) => {
                tracing::warn!(name, namespace, %error, "an Event was not written");
                Outcome::Failed
            }
            Some(Err(_)) => {
                tracing::warn!(name, namespace, "an Event was not written in time");
                Outcome::Failed
            }
        }
    }
}

/// The routes that have the target, and what they call it.
fn routes_with(compiled: &Compiled, told: &TargetTransition) -> Vec<(Key, String)> {
    let routes = compiled.routes.iter();
    let found = routes.filter_map(|(key, report)| {
        let target = report.targets.iter().find(|target| target.id == told.target)?;
        Some((key.clone(), target.name.to_string()))
    });
    found.collect()
}
