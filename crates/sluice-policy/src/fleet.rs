//! What the connected agents said: which version each works by, what it rejects, what it saw and did.
//!
//! One entry per stream, gone when the stream ends: nothing here outlives the agents, and a reconnecting agent
//! tells everything anew. Transitions go out through a bounded channel, each once: the shared state makes a
//! transition in exactly one call, but an agent that lost its stream may repeat its last report, and
//! agents on their own state may report epochs that others reported too.

mod stream;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_api::status::BreakerStatus;
use sluice_core::policy::ObjectRef;
use sluice_core::target_id::TargetId;
use sluice_proto::apply::RouteName;
pub use sluice_proto::replica::AgentFacts;
use sluice_proto::replica::BreakerSaid;
use sluice_proto::report::{Ack, BreakerSeen, Report, StoreHealth, TargetTransition};
use tokio::sync::mpsc;

use crate::index::Key;
use crate::metrics::StreamCounts;
use crate::publish::{Newest, Published};
use crate::said::{Said, breaker_status};
use stream::{Alike, Answer, Stream};

pub(crate) use stream::Joining;

/// Transitions that wait for their reader; more are dropped and counted.
const TRANSITION_QUEUE: usize = 1_024;
/// Transitions that are remembered so that none is told twice.
const REMEMBERED: usize = 8_192;

/// One agent: bound to namespace and pod by its credential, told apart within them by its own id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AgentName {
    pub namespace: Arc<str>,
    pub pod: Arc<str>,
    pub agent_id: Arc<str>,
}

impl AgentName {
    fn pod(&self) -> Key {
        Key { namespace: Arc::clone(&self.namespace), name: Arc::clone(&self.pod) }
    }
}

/// Names a stream within this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(u64);

/// One target over all connected agents. Counters fall when an agent leaves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TargetSum {
    pub agents: u32,
    pub in_flight: u64,
    pub limit: u64,
    pub admitted: u64,
    pub refused: u64,
    pub failed_over: u64,
    /// Of the highest epoch that any of them has seen.
    pub breaker: Option<BreakerSeen>,
}

/// Connected agents by how far they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sync {
    pub in_sync: usize,
    /// The newest is not answered yet.
    pub behind: usize,
    /// They refused some of the newest.
    pub rejecting: usize,
}

/// The connected agents.
#[derive(Debug)]
pub struct Fleet {
    inner: Mutex<Inner>,
    counts: StreamCounts,
    transitions: mpsc::Sender<TargetTransition>,
}

#[derive(Debug, Default)]
struct Inner {
    streams: BTreeMap<StreamId, Stream>,
    /// From the oldest to the youngest.
    by_pod: BTreeMap<Key, BTreeSet<StreamId>>,
    next: u64,
    told: BTreeSet<(TargetId, u64)>,
    told_in_order: VecDeque<(TargetId, u64)>,
    /// The last transition of each target, for as long as agents have it or there is room.
    last: BTreeMap<TargetId, TargetTransition>,
    dropped: u64,
    /// Counts what may change what agents see of breakers: looking at each of them is not for every second.
    breakers_changed: u64,
    breakers_said: Option<(u64, BTreeMap<TargetId, BreakerSaid>)>,
}

impl Fleet {
    /// A fleet without agents, and where its transitions come out, each once.
    #[must_use]
    pub fn new() -> (Self, mpsc::Receiver<TargetTransition>) {
        let (transitions, receiver) = mpsc::channel(TRANSITION_QUEUE);
        (Self { inner: Mutex::default(), counts: StreamCounts::default(), transitions }, receiver)
    }

    /// Takes up a stream. An older stream of the same agent is ended: it is one whose end was not heard of. So is the
    /// oldest of a pod that has more than `most`.
    pub(crate) fn join(&self, joining: Joining, most: usize) -> StreamId {
        let mut inner = self.lock();
        let (agent, pod) = (&joining.agent, joining.agent.pod());
        let of_pod: Vec<StreamId> = inner.by_pod.get(&pod).into_iter().flatten().copied().collect();
        let (same, others): (Vec<_>, Vec<_>) = of_pod
            .into_iter()
            .partition(|id| inner.streams.get(id).is_some_and(|stream| stream.agent == *agent));
        let too_many = (others.len() + 1).saturating_sub(most);
        for id in same.iter().chain(others.iter().take(too_many)) {
            inner.end(*id);
        }
        inner.next += 1;
        inner.breakers_changed += 1;
        let id = StreamId(inner.next);
        inner.streams.insert(id, Stream::new(joining));
        inner.by_pod.entry(pod).or_default().insert(id);
        id
    }

    pub(crate) fn leave(&self, id: StreamId) {
        let mut inner = self.lock();
        inner.forget(id);
        inner.breakers_changed += 1;
    }

    pub(crate) fn sent(&self, id: StreamId, nonce: String, published: Arc<Published>) {
        if let Some(stream) = self.lock().streams.get_mut(&id) {
            stream.sent = Some((nonce, published));
        }
    }

    /// The labels of a pod are these now: its streams go on with what they select.
    pub fn relabel(&self, pod: &Key, uid: &str, labels: &BTreeMap<String, String>) {
        for (_, stream) in self.lock().of_pod(pod, uid) {
            stream.labels.send_if_modified(|known| {
                let news = known != labels;
                if news {
                    known.clone_from(labels);
                }
                news
            });
        }
    }

    /// A pod is gone: its streams end.
    pub fn end(&self, pod: &Key, uid: &str) {
        let mut inner = self.lock();
        let gone: Vec<StreamId> = inner.of_pod(pod, uid).map(|(id, _)| id).collect();
        for id in gone {
            inner.end(id);
        }
        inner.breakers_changed += 1;
    }

    /// A stream gets something else from now on.
    pub(crate) fn moved(&self, id: StreamId, newest: Newest) {
        if let Some(stream) = self.lock().streams.get_mut(&id) {
            stream.newest = newest;
        }
    }

    /// Takes an answer; one to anything but the last snapshot of the stream says nothing any more.
    pub(crate) fn answer(&self, id: StreamId, ack: Ack) {
        let mut inner = self.lock();
        let Some(stream) = inner.streams.get_mut(&id) else { return };
        let Some((nonce, published)) = &stream.sent else { return };
        if *nonce != *ack.nonce || published.version != ack.version {
            return;
        }
        let name = |object: &ObjectRef| RouteName {
            namespace: Arc::clone(&object.namespace),
            name: Arc::clone(&object.name),
        };
        self.counts.answered(ack.rejected.len());
        let rejected =
            ack.rejected.into_iter().map(|rejection| (name(&rejection.object), rejection.error)).collect();
        stream.answered = Some(Answer { version: ack.version, rejected });
    }

    /// Takes a report. An agent speaks of targets that it was given; the rest is ignored.
    pub(crate) fn report(&self, id: StreamId, report: Report) {
        let mut inner = self.lock();
        let Some(stream) = inner.streams.get_mut(&id) else { return };
        let given = stream.given_targets();
        let before = stream.targets.len();
        let mut changed = false;
        stream.store = report.store.or(stream.store.take());
        for aggregate in report.targets.into_iter().filter(|aggregate| given.contains(&aggregate.target)) {
            let seen = aggregate.breaker;
            let known = stream.targets.insert(aggregate.target.clone(), aggregate);
            changed |= known.is_none_or(|known| known.breaker != seen);
        }
        stream.targets.retain(|target, _| given.contains(target));
        if changed || stream.targets.len() != before || !report.transitions.is_empty() {
            inner.breakers_changed += 1;
        }
        for transition in report.transitions.into_iter().filter(|told| given.contains(&told.target)) {
            inner.tell(transition, &self.transitions);
        }
    }

    /// What the agents say of a route.
    #[must_use]
    pub fn facts(&self, route: &RouteName) -> AgentFacts {
        let mut facts = AgentFacts::default();
        for stream in self.lock().streams.values() {
            let newest = stream.newest.borrow();
            let Some(newest) = newest.as_ref() else { continue };
            stream.says_of(newest, |name| name == route, &mut |_, of_stream| facts.add(&of_stream));
        }
        facts
    }

    /// What the agents say, by route. A route without agents is not there.
    ///
    /// Agents of one audience that say the same count together: a fleet costs as much as it has audiences.
    #[must_use]
    pub fn facts_by_route(&self) -> BTreeMap<RouteName, AgentFacts> {
        let mut facts: BTreeMap<RouteName, AgentFacts> = BTreeMap::new();
        let mut alike: BTreeMap<Alike, (Arc<Published>, u32)> = BTreeMap::new();
        let mut say = |route: &RouteName, said: AgentFacts| match facts.get_mut(route) {
            Some(sum) => sum.add(&said),
            None => {
                facts.insert(route.clone(), said);
            }
        };
        for stream in self.lock().streams.values() {
            let Some(newest) = stream.newest.borrow().clone() else { continue };
            match stream.alike(&newest) {
                Some(kind) => alike.entry(kind).or_insert((newest, 0)).1 += 1,
                None => stream.says_of(&newest, |_| true, &mut say),
            }
        }
        for (kind, (newest, agents)) in alike {
            for (route, _) in newest.contents.iter() {
                say(route, kind.facts(&newest, route, agents));
            }
        }
        facts
    }

    /// Streams that are connected.
    #[must_use]
    pub fn connected(&self) -> usize {
        self.lock().streams.len()
    }

    /// How far the connected agents are.
    #[must_use]
    pub fn sync(&self) -> Sync {
        let mut sync = Sync::default();
        for stream in self.lock().streams.values() {
            let newest = stream.newest.borrow().as_ref().map(|newest| newest.version.clone());
            match &stream.answered {
                Some(answer) if Some(&answer.version) == newest.as_ref() => {
                    let of = if answer.rejected.is_empty() { &mut sync.in_sync } else { &mut sync.rejecting };
                    *of += 1;
                }
                _ => sync.behind += 1,
            }
        }
        sync
    }

    pub(crate) fn counts(&self) -> &StreamCounts {
        &self.counts
    }

    /// Agents per target, by what each of them gets.
    #[must_use]
    pub fn agents_by_target(&self) -> BTreeMap<TargetId, u32> {
        let mut counts = BTreeMap::new();
        for stream in self.lock().streams.values() {
            if let Some(newest) = stream.newest.borrow().as_ref() {
                for target in newest.targets.iter() {
                    *counts.entry(target.clone()).or_default() += 1;
                }
            }
        }
        counts
    }

    /// Sums over all agents, by target.
    #[must_use]
    pub fn sums(&self) -> BTreeMap<TargetId, TargetSum> {
        let mut sums: BTreeMap<TargetId, TargetSum> = BTreeMap::new();
        for aggregate in self.lock().streams.values().flat_map(|stream| stream.targets.values()) {
            let sum = sums.entry(aggregate.target.clone()).or_default();
            sum.agents += 1;
            sum.in_flight += u64::from(aggregate.in_flight);
            sum.limit += u64::from(aggregate.limit);
            sum.admitted = sum.admitted.saturating_add(aggregate.admitted);
            sum.refused = sum.refused.saturating_add(aggregate.refused);
            sum.failed_over = sum.failed_over.saturating_add(aggregate.failed_over);
            let newer = aggregate.breaker.filter(|seen| {
                sum.breaker.is_none_or(|known| (known.epoch, known.open_for) < (seen.epoch, seen.open_for))
            });
            sum.breaker = newer.or(sum.breaker);
        }
        sums
    }

    /// The breakers as the agents see them, for where there is no shared state to read them from.
    #[must_use]
    pub fn breakers(&self) -> BTreeMap<TargetId, BreakerStatus> {
        self.breakers_said().into_iter().map(|(target, said)| (target, breaker_status(&said))).collect()
    }

    /// Everything that they say.
    #[must_use]
    pub fn said(&self) -> Said {
        Said { routes: self.facts_by_route(), breakers: self.breakers_said() }
    }

    fn breakers_said(&self) -> BTreeMap<TargetId, BreakerSaid> {
        let generation = self.lock().breakers_changed;
        if let Some((of, said)) = self.lock().breakers_said.as_ref()
            && *of == generation
        {
            return said.clone();
        }
        let sums = self.sums();
        let mut inner = self.lock();
        let seen = sums.into_iter().filter_map(|(target, sum)| Some((target, sum.breaker?)));
        let said: BTreeMap<_, _> = seen
            .map(|(target, seen)| {
                let last = inner.last.get(&target).filter(|last| last.transition.epoch == seen.epoch);
                let reason = last.map(|last| last.transition.reason);
                (target, BreakerSaid { seen, reason })
            })
            .collect();
        inner.breakers_said = Some((generation, said.clone()));
        said
    }

    /// The worst that agents say of the shared state; `None`: none has said anything.
    #[must_use]
    pub fn store(&self) -> Option<StoreHealth> {
        let inner = self.lock();
        let said = inner.streams.values().filter_map(|stream| stream.store.clone());
        said.max_by_key(|health| match health {
            StoreHealth::Embedded => 0,
            StoreHealth::Shared => 1,
            StoreHealth::Unreachable { .. } => 2,
        })
    }

    /// Transitions that found the channel full. Zero while its reader keeps up.
    #[must_use]
    pub fn dropped_transitions(&self) -> u64 {
        self.lock().dropped
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn of_pod(&self, pod: &Key, uid: &str) -> impl Iterator<Item = (StreamId, &Stream)> {
        let ids = self.by_pod.get(pod).into_iter().flatten();
        let streams = ids.filter_map(|id| Some((*id, self.streams.get(id)?)));
        streams.filter(move |(_, stream)| *stream.uid == *uid)
    }

    /// Lets a stream know that it is to end.
    fn end(&mut self, id: StreamId) {
        if let Some(stream) = self.forget(id) {
            stream.end.cancel();
        }
    }

    fn forget(&mut self, id: StreamId) -> Option<Stream> {
        let stream = self.streams.remove(&id)?;
        if let Entry::Occupied(mut of_pod) = self.by_pod.entry(stream.agent.pod()) {
            of_pod.get_mut().remove(&id);
            if of_pod.get().is_empty() {
                of_pod.remove();
            }
        }
        Some(stream)
    }

    fn tell(&mut self, transition: TargetTransition, to: &mpsc::Sender<TargetTransition>) {
        let name = (transition.target.clone(), transition.transition.epoch);
        if !self.told.insert(name.clone()) {
            return;
        }
        self.told_in_order.push_back(name);
        if self.told_in_order.len() > REMEMBERED
            && let Some(oldest) = self.told_in_order.pop_front()
        {
            self.told.remove(&oldest);
        }
        if self.last.len() >= REMEMBERED {
            let given: Vec<_> = self.streams.values().map(Stream::given_targets).collect();
            self.last.retain(|target, _| given.iter().any(|given| given.contains(target)));
        }
        let newer = |last: &TargetTransition| last.transition.epoch < transition.transition.epoch;
        if self.last.get(&transition.target).is_none_or(newer) {
            self.last.insert(transition.target.clone(), transition.clone());
        }
        if to.try_send(transition).is_err() {
            self.dropped += 1;
        }
    }
}
