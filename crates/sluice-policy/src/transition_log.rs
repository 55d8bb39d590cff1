//! The breaker transitions that were heard of lately, each once, for whoever has to tell of them.
//!
//! Why a log and not a channel: the replica that tells of transitions may change at any moment, and the next one begins
//! with those of the last minutes. Agents, the shared state and other replicas all tell of the same ones; target and
//! epoch name a transition.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sluice_core::target_id::TargetId;
use sluice_proto::report::TargetTransition;
use tokio::sync::watch;
use tokio::time::Instant;

/// For how long transitions are remembered: far longer than a change of hands takes, and shorter than API servers
/// keep Events, whose names tell that one is there already.
pub const REMEMBERED_FOR: Duration = Duration::from_mins(10);
/// How many are remembered.
const REMEMBERED: usize = 4_096;

/// A reader's place in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Place(u64);

#[derive(Debug)]
pub struct TransitionLog {
    inner: Mutex<Inner>,
    end: watch::Sender<Place>,
}

#[derive(Debug, Default)]
struct Inner {
    entries: VecDeque<(Instant, TargetTransition)>,
    names: BTreeSet<(TargetId, u64)>,
    /// Of the first entry.
    first: Place,
}

/// What a reader gets.
#[derive(Debug, PartialEq, Eq)]
pub struct Read {
    pub transitions: Vec<TargetTransition>,
    /// Where to go on.
    pub next: Place,
    /// Those that were forgotten before they were read.
    pub missed: u64,
}

impl Default for TransitionLog {
    fn default() -> Self {
        Self { inner: Mutex::default(), end: watch::channel(Place::default()).0 }
    }
}

impl TransitionLog {
    /// Takes one up. Whether it is news.
    pub fn take(&self, transition: TargetTransition, now: Instant) -> bool {
        let mut inner = self.lock();
        if !inner.names.insert(name(&transition)) {
            return false;
        }
        inner.entries.push_back((now, transition));
        inner.forget(now);
        self.end.send_replace(inner.end());
        true
    }

    /// At most so many, from a place on.
    #[must_use]
    pub fn read(&self, from: Place, most: usize, now: Instant) -> Read {
        let mut inner = self.lock();
        inner.forget(now);
        let begin = from.max(inner.first);
        let skip = usize::try_from(begin.0 - inner.first.0).unwrap_or(usize::MAX);
        let entries = inner.entries.iter().skip(skip).take(most);
        let transitions: Vec<_> = entries.map(|(_, transition)| transition.clone()).collect();
        let next = Place(begin.0 + transitions.len() as u64);
        // A reader that begins has missed nothing.
        let missed = if from == Place::default() { 0 } else { begin.0 - from.0 };
        Read { transitions, next, missed }
    }

    /// Changes with each one that is taken up.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Place> {
        self.end.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn end(&self) -> Place {
        Place(self.first.0 + self.entries.len() as u64)
    }

    fn forget(&mut self, now: Instant) {
        while let Some((at, _)) = self.entries.front()
            && (self.entries.len() > REMEMBERED || now >= *at + REMEMBERED_FOR)
        {
            if let Some((_, transition)) = self.entries.pop_front() {
                self.names.remove(&name(&transition));
                self.first.0 += 1;
            }
        }
    }
}

fn name(transition: &TargetTransition) -> (TargetId, u64) {
    (transition.target.clone(), transition.transition.epoch)
}

#[cfg(test)]
mod tests {
    use sluice_core::admission::{BreakerState, Transition, TransitionReason, WindowCounts};

    use super::*;

    #[allow(clippy::disallowed_methods, reason = "some moment to count from")]
    fn start() -> Instant {
        Instant::now()
    }

    fn transition(epoch: u64) -> TargetTransition {
        let (from, to) = (BreakerState::Closed, BreakerState::Open);
        let (reason, counts) = (TransitionReason::FailureRate, WindowCounts::default());
        TargetTransition {
            target: TargetId::of("ns", "d", "https://x", ""),
            transition: Transition { from, to, reason, epoch, counts },
        }
    }

    fn epochs(read: &Read) -> Vec<u64> {
        read.transitions.iter().map(|told| told.transition.epoch).collect()
    }

    #[test]
    fn each_is_read_once_however_often_it_is_told() {
        let (log, now) = (TransitionLog::default(), start());
        let mut end = log.watch();
        assert!(log.take(transition(1), now) && log.take(transition(2), now));
        assert!(!log.take(transition(1), now), "it was told before");
        assert!(end.has_changed().unwrap());
        end.mark_unchanged();
        let first = log.read(Place::default(), 1, now);
        assert_eq!((epochs(&first), first.missed), (vec![1], 0));
        let second = log.read(first.next, 10, now);
        assert_eq!(epochs(&second), [2]);
        assert_eq!(epochs(&log.read(second.next, 10, now)), [0; 0]);
        assert!(log.take(transition(3), now) && end.has_changed().unwrap());
        assert_eq!(epochs(&log.read(second.next, 10, now)), [3]);
        assert_eq!(epochs(&log.read(Place::default(), 10, now)), [1, 2, 3], "another reader");
    }

    #[test]
    fn what_is_old_is_forgotten_and_a_slow_reader_hears_how_many() {
        let (log, now) = (TransitionLog::default(), start());
        log.take(transition(1), now);
        let first = log.read(Place::default(), 10, now);
        log.take(transition(2), now);
        log.take(transition(3), now + REMEMBERED_FOR);
        let late = log.read(first.next, 10, now + REMEMBERED_FOR);
        assert_eq!((epochs(&late), late.missed), (vec![3], 1));
        assert!(log.take(transition(1), now + REMEMBERED_FOR), "by then it is forgotten");

        let full = TransitionLog::default();
        for epoch in 0..REMEMBERED as u64 + 10 {
            full.take(transition(epoch), now);
        }
        let read = full.read(Place::default(), usize::MAX, now);
        assert_eq!((read.transitions.len(), read.missed), (REMEMBERED, 0));
    }
}
