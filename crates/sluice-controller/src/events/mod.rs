//! Events: breaker transitions on each route that has the target, what is wrong with routes and policies, and pods
//! without an agent. Written by the holder of the Lease.
//!
//! | module | what it does |
//! |---|---|
//! | [`notice`] | what is told, and under which name |
//! | [`queue`] | what is next, and what is tried again |
//! | [`pace`] | how fast |
//!
//! Transitions come from a log that every replica keeps, so a new holder tells what the one before may not have told;
//! what it has told is refused by name. The rest comes as it is found, and more than fits into a bounded queue is
//! dropped: conditions say it all the same.
//!
//! What was written is told, and nothing else is: one that an API server did not take, or that a lost lease cut off, is
//! tried again.

pub(crate) mod notice;
mod pace;
mod queue;

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
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::clock;
use crate::injection::missing::MissingAgents;
use crate::lease::{Tenure, held, holds, over, within_tenure};
use crate::plane::Newest;
use notice::{About, Notice};
use pace::Pace;
use queue::{AGAIN, Outcome, Queue, TRIES, Told};

/// Notices that wait to be taken up.
pub(crate) const WAITING: usize = 1_024;
/// Transitions that are taken up at once.
const AT_ONCE: usize = 64;
/// An API server that takes no Event is given this long.
const WRITE_WITHIN: Duration = Duration::from_secs(10);

pub(crate) struct EventWriter {
    pub(crate) client: Client,
    pub(crate) index: Arc<Mutex<Index>>,
    pub(crate) newest: Newest,
    pub(crate) tenure: Tenure,
    pub(crate) pod: Arc<str>,
}

impl EventWriter {
    /// Tells of transitions, each once, while this replica holds the lease. Runs until it is dropped.
    pub(crate) async fn tell_transitions(&self, log: &TransitionLog) {
        let (mut tenure, mut told, mut pace) =
            (self.tenure.clone(), Told::default(), Pace::new(clock::now()));
        while held(&mut tenure).await {
            self.tell_log(log, &mut told, &mut pace).await;
        }
    }

    /// Until the tenure is over. It begins with what is remembered: nobody may have told it.
    async fn tell_log(&self, log: &TransitionLog, told: &mut Told, pace: &mut Pace) {
        let (mut news, mut tenure, mut newest) = (log.watch(), self.tenure.clone(), self.newest.clone());
        let seen = tokio::select! {
            seen = newest.wait_for(Option::is_some) => seen.is_ok(),
            () = over(&mut tenure) => false,
        };
        let mut place = Place::default();
        while seen && holds(&tenure, clock::now()) {
            news.mark_unchanged();
            let read = log.read(place, AT_ONCE, clock::now());
            if read.missed > 0 {
                tracing::warn!(transitions = read.missed, "Events could not be written fast enough");
            }
            place = read.next;
            for transition in &read.transitions {
                if self.tell_transition(transition, told, pace).await == Outcome::Over {
                    return;
                }
            }
            if read.transitions.len() < AT_ONCE {
                tokio::select! {
                    _ = news.changed() => {}
                    () = over(&mut tenure) => {}
                }
            }
        }
    }

    async fn tell_transition(
        &self,
        transition: &TargetTransition,
        told: &mut Told,
        pace: &mut Pace,
    ) -> Outcome {
        let compiled = self.newest.borrow().clone().unwrap_or_default();
        for (key, target) in routes_with(&compiled, transition) {
            let uid = {
                let index = self.index.lock();
                let route = index.routes().get(&key).and_then(|entry| entry.newest.as_ref());
                route.and_then(|route| route.metadata.uid.clone())
            };
            let kind = ObjectKind::ModelRoute;
            let route = About { kind, key: &key, uid: uid.as_deref(), generation: 0 };
            let notice = Notice::transition(&route, &target, transition);
            if told.has(&notice, clock::now()) {
                continue;
            }
            for _ in 0..TRIES {
                match self.write(&notice, pace).await {
                    Outcome::Done => {
                        told.remember(&notice, clock::now());
                        break;
                    }
                    Outcome::Failed => tokio::time::sleep(AGAIN).await,
                    Outcome::Over => return Outcome::Over,
                }
            }
        }
        Outcome::Done
    }

    /// Tells what comes, while this replica holds the lease. Runs until it is dropped.
    pub(crate) async fn tell_notices(
        &self,
        mut notices: mpsc::Receiver<Notice>,
        missing: Option<MissingAgents>,
    ) {
        let (mut queue, mut pace) = (Queue::default(), Pace::new(clock::now()));
        // Without injection nobody asks for an agent.
        let mut missing = missing.unwrap_or_else(|| watch::channel(BTreeMap::new()).1);
        loop {
            tokio::select! {
                // Taking up costs nothing, and those who tell don't wait.
                biased;
                Some(notice) = notices.recv(), if queue.has_room() => queue.take(notice, clock::now()),
                Ok(()) = missing.changed() => {
                    let missing = missing.borrow_and_update();
                    queue.set_pods(missing.values().map(Notice::missing_agent), clock::now());
                }
                () = self.may_tell(queue.due()) => {
                    if let Some(waiting) = queue.next(clock::now()) {
                        let outcome = self.write(&waiting.notice, &mut pace).await;
                        queue.tried(waiting, outcome, clock::now());
                    }
                }
            }
        }
    }

    /// Until it is time, and this replica holds the lease; with nothing to tell, for ever.
    async fn may_tell(&self, due: Option<Instant>) {
        let Some(due) = due else { return std::future::pending().await };
        tokio::time::sleep_until(due).await;
        if !held(&mut self.tenure.clone()).await {
            std::future::pending::<()>().await;
        }
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
            None => Outcome::Over,
            Some(Ok(Ok(_))) => Outcome::Done,
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

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sluice_policy::compile::compile;

    use super::notice::tests::{missing, of_route, told};
    use super::*;
    use crate::api_server::{ApiServer, Fault};

    const EVENTS: &str = "apis/events.k8s.io/v1/events";
    /// Of a clock that stands still while anything is done.
    const BOUND: Duration = Duration::from_mins(10);

    struct World {
        server: ApiServer,
        tenure: watch::Sender<Option<Instant>>,
        writer: Arc<EventWriter>,
    }

    /// A holder of the lease, and a route whose target is `x`.
    fn world() -> World {
        let (server, mut index) = (ApiServer::default(), Index::default());
        let route = json!({
            "apiVersion": "sluice.dev/v1alpha1", "kind": "ModelRoute",
            "metadata": {"namespace": "ns", "name": "chat", "uid": "u", "generation": 1},
            "spec": {"models": ["*"], "targets": [{"name": "primary", "provider": "OpenAI", "endpoint": "https://x",
                "dependency": "x", "credential": {"type": "None"}}]},
        });
        index.apply_route(serde_json::from_value(route).unwrap(), 0);
        let compiled = Arc::new(compile(&index));
        let (tenure, receiver) = watch::channel(Some(clock::now() + BOUND));
        let writer = EventWriter {
            client: server.client(),
            index: Arc::new(Mutex::new(index)),
            newest: watch::channel(Some(compiled)).1,
            tenure: receiver,
            pod: "pod".into(),
        };
        World { server, tenure, writer: Arc::new(writer) }
    }

    impl World {
        /// Tells notices for as long as the set lives.
        fn tell_notices(
            &self,
            missing: Option<MissingAgents>,
        ) -> (mpsc::Sender<Notice>, tokio::task::JoinSet<()>) {
            let ((to, notices), writer) = (mpsc::channel(WAITING), self.writer.clone());
            let mut tasks = tokio::task::JoinSet::new();
            tasks.spawn(async move { writer.tell_notices(notices, missing).await });
            (to, tasks)
        }

        /// What the Events that there are regard, in the order of their making.
        fn regarded(&self) -> Vec<String> {
            let events = self.server.written(EVENTS).into_iter();
            events.map(|event| event["regarding"]["name"].as_str().unwrap().to_owned()).collect()
        }

        async fn until(&self, what: &str, reached: impl Fn(&Self) -> bool) {
            let waiting = async {
                while !reached(self) {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            };
            assert!(tokio::time::timeout(BOUND, waiting).await.is_ok(), "waited in vain: {what}");
        }

        /// The deadline passes without a renewal, in the middle of a write that is never answered, and then the lease
        /// is renewed.
        async fn lose_the_lease_for_a_moment(&self) {
            let met = self.server.faults_met();
            self.until("a write is on its way", |world| world.server.faults_met() > met).await;
            self.tenure.send_replace(Some(clock::now()));
            tokio::time::sleep(Duration::from_millis(5)).await;
            self.server.mend(EVENTS);
            self.tenure.send_replace(Some(clock::now() + BOUND));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_an_api_server_did_not_take_is_told_when_it_does_and_once() {
        let world = world();
        let (notices, _tasks) = world.tell_notices(None);
        world.server.spoil(EVENTS, Fault::Fails);
        notices.send(of_route("a")).await.unwrap();
        world.until("it is tried again", |world| world.server.faults_met() > 2).await;
        world.server.mend(EVENTS);
        world.until("it is told", |world| world.regarded() == ["a"]).await;
        notices.send(of_route("a")).await.unwrap();
        notices.send(of_route("b")).await.unwrap();
        world.until("the next one is told", |world| world.regarded() == ["a", "b"]).await;
        assert_eq!(world.server.conflicts(), 0, "it was not offered again");
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_lost_lease_cut_off_is_told_when_it_is_held_again() {
        let world = world();
        let (notices, _tasks) = world.tell_notices(None);
        world.server.spoil(EVENTS, Fault::Vanishes);
        let losing = world.lose_the_lease_for_a_moment();
        let (sent, ()) = tokio::join!(notices.send(of_route("a")), losing);
        sent.unwrap();
        world.until("it is told", |world| world.regarded() == ["a"]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn pods_without_an_agent_keep_nothing_else_waiting() {
        let (world, routes, pods) = (world(), 100, 1_000);
        let without = (0..pods).map(|n| missing(&format!("pod-{n}"))).map(|pod| (pod.uid.clone(), pod));
        let (found, missing) = watch::channel(BTreeMap::new());
        let (notices, _tasks) = world.tell_notices(Some(missing));
        found.send_replace(without.collect());
        for n in 0..routes {
            notices.send(of_route(&format!("route-{n}"))).await.unwrap();
        }
        let of_routes =
            |world: &World| world.regarded().iter().filter(|name| name.starts_with("route")).count();
        world.until("routes are told of", |world| of_routes(world) == routes).await;
        assert!(world.regarded().len() <= 2 * routes + 1, "{}", world.regarded().len());
        world.until("pods are too", |world| world.server.writes_of(EVENTS) == routes + pods).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_transition_that_a_lost_lease_cut_off_is_told_when_it_is_held_again() {
        let (world, log) = (world(), Arc::new(TransitionLog::default()));
        let (writer, of_writer) = (world.writer.clone(), log.clone());
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move { writer.tell_transitions(&of_writer).await });
        log.take(told("x", 1), clock::now());
        world.until("the first is told", |world| world.regarded().len() == 1).await;
        world.server.spoil(EVENTS, Fault::Vanishes);
        let losing = world.lose_the_lease_for_a_moment();
        let taking = async { log.take(told("x", 2), clock::now()) };
        tokio::join!(taking, losing);
        world.until("the second is told", |world| world.regarded().len() == 2).await;
        assert_eq!(world.server.conflicts(), 0, "the first was not offered again");
    }
}
