//! The breakers as the shared state has them, for status: read by the holder of the Lease.
//!
//! Why not as agents report them: the shared state is what rules the whole fleet, also when the agent that saw a change
//! is gone. Where there is none, or it is away, agents decide by themselves, and then what they say is the truth.
//!
//! Mechanics: every replica hears the transitions that scripts publish, so a new holder knows why a breaker is as it is.
//! The holder reads each target of its routes now and then, at a bounded pace: what is not closed more often, everything
//! more often while nothing is heard. [`Book`] is pure; [`Breakers::run`] carries it out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use sluice_api::status::BreakerStatus;
use sluice_core::admission::{BreakerState, TargetView, Transition, TransitionReason};
use sluice_core::policy::{RoutePolicy, TargetPolicy};
use sluice_core::target_id::TargetId;
use sluice_policy::compile::Compiled;
use sluice_policy::said::breaker_status;
use sluice_policy::status::StateStore;
use sluice_policy::transition_log::{Place, TransitionLog};
use sluice_proto::replica::BreakerSaid;
use sluice_proto::report::{BreakerSeen, TargetTransition};
use sluice_state::observer::Heard;
use sluice_state::{Observer, StoreError};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::clock;
use crate::lease::{Tenure, holds};
use crate::plane::Newest;

/// Between two rounds of reading.
const ROUND: Duration = Duration::from_millis(200);
/// Targets read per round: 500 a second, some hundredths of a core of Redis.
const PER_ROUND: usize = 100;
/// Reads at once.
const AT_ONCE: usize = 20;
/// A target is read again after this.
const AGAIN: Duration = Duration::from_secs(10);
/// One that is not closed, or any while transitions are not heard.
const SOON_AGAIN: Duration = Duration::from_secs(3);
/// A shared state that is away for less than this is taken to be as it was.
const AWAY: Duration = Duration::from_secs(5);
/// Targets whose last transition is remembered.
const REMEMBERED: usize = 50_000;

/// What is known of one breaker.
#[derive(Debug, Clone, Copy)]
struct Entry {
    state: BreakerState,
    epoch: u64,
    open_until: Instant,
    heard_at: Option<Instant>,
    read_at: Option<Instant>,
}

/// What has been read and heard.
#[derive(Debug, Default)]
struct Book {
    entries: BTreeMap<TargetId, Entry>,
    /// The last transition of each, for why.
    reasons: BTreeMap<TargetId, (u64, TransitionReason)>,
}

impl Book {
    /// A look that was asked for at `asked`. What was heard since then is newer.
    fn looked(&mut self, target: &TargetId, view: &TargetView, asked: Instant, now: Instant) {
        let before = self.entries.get(target);
        if let Some(entry) = before
            && entry.heard_at.is_some_and(|heard| heard > asked)
            && view.epoch < entry.epoch
        {
            return;
        }
        let heard_at = before.and_then(|entry| entry.heard_at);
        let open_until = now + view.open_for;
        let (state, epoch, read_at) = (view.state, view.epoch, Some(now));
        self.entries.insert(target.clone(), Entry { state, epoch, open_until, heard_at, read_at });
    }

    /// A transition that came from the shared state itself.
    fn heard(&mut self, target: &TargetId, transition: &Transition, open_for: Duration, now: Instant) {
        self.explain(target, transition);
        if let Some(entry) = self.entries.get_mut(target)
            && entry.epoch < transition.epoch
        {
            entry.state = transition.to;
            entry.epoch = transition.epoch;
            entry.open_until = now + open_for;
            entry.heard_at = Some(now);
        }
    }

    /// Remembers why, from wherever it was heard.
    fn explain(&mut self, target: &TargetId, transition: &Transition) {
        let known = self.reasons.get(target).map(|(epoch, _)| *epoch);
        if known.is_none() && self.reasons.len() >= REMEMBERED {
            // Rather none than all the memory there is: a status keeps the reason that it has.
            self.reasons.clear();
        }
        if known.is_none_or(|epoch| epoch < transition.epoch) {
            self.reasons.insert(target.clone(), (transition.epoch, transition.reason));
        }
    }

    /// What is to be read now, the one that waits longest first.
    fn due<'a>(
        &self,
        targets: impl Iterator<Item = &'a TargetId>,
        heard: bool,
        now: Instant,
    ) -> Vec<&'a TargetId> {
        let waits = |target: &TargetId| {
            let Some(entry) = self.entries.get(target) else { return Some(Duration::MAX) };
            let soon = !heard || entry.state != BreakerState::Closed;
            let after = if soon { SOON_AGAIN } else { AGAIN };
            let due = entry.read_at? + after;
            (due <= now).then(|| now - due)
        };
        let mut due: Vec<_> = targets.filter_map(|target| Some((waits(target)?, target))).collect();
        due.sort_by_key(|(waited, _)| std::cmp::Reverse(*waited));
        due.into_iter().take(PER_ROUND).map(|(_, target)| target).collect()
    }

    /// Forgets targets that no route has any more.
    fn retain(&mut self, targets: &BTreeMap<TargetId, Target>) {
        self.entries.retain(|target, _| targets.contains_key(target));
    }

    /// `None`: it has not been read yet.
    fn status(&self, target: &TargetId, now: Instant) -> Option<BreakerStatus> {
        let entry = self.entries.get(target)?;
        let reason = self.reasons.get(target).filter(|(epoch, _)| *epoch == entry.epoch);
        let open_for = match entry.state {
            BreakerState::Open => entry.open_until.saturating_duration_since(now),
            BreakerState::Closed | BreakerState::HalfOpen => Duration::ZERO,
        };
        let seen = BreakerSeen { state: entry.state, epoch: entry.epoch, open_for };
        Some(breaker_status(&BreakerSaid { seen, reason: reason.map(|(_, reason)| *reason) }))
    }
}

/// One target of a route: reading it needs its rules.
#[derive(Debug, Clone)]
struct Target(Arc<RoutePolicy>, usize);

impl Target {
    fn policy(&self) -> Option<&TargetPolicy> {
        self.0.targets.get(self.1)
    }
}

fn targets(compiled: &Compiled) -> BTreeMap<TargetId, Target> {
    let routes = compiled.namespaces.values().flat_map(|namespace| &namespace.routes);
    let targets = routes.flat_map(|route| {
        let ids = route.policy.targets.iter().map(|target| target.id.clone());
        ids.enumerate().map(|(at, id)| (id, Target(route.policy.clone(), at)))
    });
    targets.collect()
}

/// Where a status takes a breaker from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    Is(BreakerStatus),
    /// It has not been read yet: it is as it was.
    NotYet,
    /// The agents know.
    AskAgents,
}

/// The breakers, as far as this replica knows them.
pub(crate) struct Breakers {
    observer: Option<Observer>,
    book: Mutex<Book>,
    /// Since when the shared state has been away; it has never been there: since the start.
    away: Mutex<Option<Instant>>,
}

impl Breakers {
    pub(crate) fn new(observer: Option<Observer>) -> Self {
        Self { observer, book: Mutex::default(), away: Mutex::new(Some(clock::now())) }
    }

    /// Whether the shared state is what status shows, as of now.
    fn rules(&self, now: Instant) -> bool {
        self.observer.is_some() && self.away.lock().is_none_or(|since| now < since + AWAY)
    }

    pub(crate) fn answer(&self, target: &TargetId, now: Instant) -> Answer {
        if !self.rules(now) {
            return Answer::AskAgents;
        }
        self.book.lock().status(target, now).map_or(Answer::NotYet, Answer::Is)
    }

    /// What is to be said of the shared state itself.
    pub(crate) fn state_store(&self, now: Instant) -> StateStore {
        let Some(observer) = &self.observer else { return StateStore::None };
        let health = observer.health().borrow().clone();
        if health.reachable {
            StateStore::Seen { unsafe_eviction: health.unsafe_eviction }
        } else if self.rules(now) {
            StateStore::Unknown
        } else {
            StateStore::Away(health.error.map_or("no answer", |(kind, _)| kind.as_str()).to_owned())
        }
    }

    /// Takes up what the shared state publishes, for as long as it does. Every replica does, holder or not.
    pub(crate) async fn listen(self: Arc<Self>, mut heard: mpsc::Receiver<Heard>, log: Arc<TransitionLog>) {
        while let Some(heard) = heard.recv().await {
            let now = clock::now();
            self.book.lock().heard(&heard.target, &heard.transition, heard.open_for, now);
            log.take(TargetTransition { target: heard.target, transition: heard.transition }, now);
        }
    }

    /// Remembers why breakers are as they are, from whomever it was heard.
    pub(crate) async fn follow(self: Arc<Self>, log: Arc<TransitionLog>) {
        let (mut news, mut place) = (log.watch(), Place::default());
        loop {
            let read = log.read(place, usize::MAX, clock::now());
            place = read.next;
            for told in read.transitions {
                let TargetTransition { target, transition } = told;
                tracing::info!(
                    target_id = %target, from = transition.from.as_str(), to = transition.to.as_str(),
                    reason = transition.reason.as_str(), epoch = transition.epoch, "breaker transition"
                );
                self.book.lock().explain(&target, &transition);
            }
            if news.changed().await.is_err() {
                return;
            }
        }
    }

    /// Reads, while this replica holds the lease. Runs until it is dropped.
    pub(crate) async fn run(self: Arc<Self>, newest: Newest, tenure: Tenure) {
        let Some(observer) = &self.observer else { return std::future::pending().await };
        let (mut newest, health) = (newest, observer.health());
        let mut of_routes: BTreeMap<TargetId, Target> = BTreeMap::new();
        let mut round = tokio::time::interval(ROUND);
        round.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            round.tick().await;
            let now = clock::now();
            let (reachable, heard) = {
                let health = health.borrow();
                (health.reachable, health.subscribed)
            };
            {
                let mut away = self.away.lock();
                *away = if reachable { None } else { away.or(Some(now)) };
            }
            if newest.has_changed().unwrap_or(false) {
                of_routes =
                    newest.borrow_and_update().as_ref().map(|compiled| targets(compiled)).unwrap_or_default();
                self.book.lock().retain(&of_routes);
            }
            if !holds(&tenure, now) {
                // What is read later is newer than what was read before.
                self.book.lock().entries.clear();
            } else if reachable {
                self.read(observer, &of_routes, heard, now).await;
            }
        }
    }

    async fn read(
        &self,
        observer: &Observer,
        of_routes: &BTreeMap<TargetId, Target>,
        heard: bool,
        now: Instant,
    ) {
        let due: Vec<TargetId> =
            self.book.lock().due(of_routes.keys(), heard, now).into_iter().cloned().collect();
        let mut views = FuturesUnordered::new();
        for id in &due {
            if views.len() >= AT_ONCE {
                let read = views.next().await;
                if !self.note(read) {
                    return;
                }
            }
            let Some(target) = of_routes.get(id).and_then(Target::policy) else { continue };
            let asked = clock::now();
            views.push(async move { (id, asked, observer.view(target).await) });
        }
        while let Some(read) = views.next().await {
            if !self.note(Some(read)) {
                return;
            }
        }
    }

    /// Whether there is any use in going on.
    fn note(&self, read: Option<(&TargetId, Instant, Result<TargetView, StoreError>)>) -> bool {
        match read {
            Some((id, asked, Ok(view))) => {
                self.book.lock().looked(id, &view, asked, clock::now());
                true
            }
            Some((id, _, Err(error))) => {
                // The observer finds out itself whether the shared state is away.
                tracing::debug!(target_id = %id, kind = %error.kind, "a breaker could not be read");
                !error.kind.is_outage()
            }
            None => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_core::admission::WindowCounts;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const EPOCH: u64 = 1_800_000_000_000;

    fn target() -> TargetId {
        TargetId::of("ns", "d", "https://x", "")
    }

    fn view(state: BreakerState, epoch: u64, open_for: Duration) -> TargetView {
        TargetView {
            state,
            epoch,
            open_for,
            counts: WindowCounts::default(),
            probes_out: 0,
            tokens_left: None,
            paused_for: Duration::ZERO,
            rate_percent: 100,
            ramping: false,
            opened_by: None,
        }
    }

    fn transition(from: BreakerState, to: BreakerState, reason: TransitionReason, epoch: u64) -> Transition {
        Transition { from, to, reason, epoch, counts: WindowCounts::default() }
    }

    fn shown(book: &Book, now: Instant) -> Option<(&'static str, Option<i64>, Option<String>)> {
        let status = book.status(&target(), now)?;
        Some((status.state.as_str(), status.since.map(|since| since.0.as_second()), status.reason))
    }

    #[test]
    fn a_look_tells_the_state_and_what_was_heard_tells_why() {
        let (mut book, now) = (Book::default(), clock::now());
        assert_eq!(shown(&book, now), None, "it has not been read");
        let opened = transition(BreakerState::Closed, BreakerState::Open, TransitionReason::SlowRate, EPOCH);
        // Heard before this replica was the holder.
        book.explain(&target(), &opened);
        book.looked(&target(), &view(BreakerState::Open, EPOCH, 9 * SECOND), now, now);
        let why = Some("slow-rate".to_owned());
        assert_eq!(shown(&book, now), Some(("Open", Some(1_800_000_000), why.clone())));
        // Its time is over, and nobody has called.
        assert_eq!(shown(&book, now + 9 * SECOND), Some(("AwaitingProbe", Some(1_800_000_000), why)));
        let probing = transition(
            BreakerState::Open,
            BreakerState::HalfOpen,
            TransitionReason::CooldownEnded,
            EPOCH + 10_000,
        );
        book.heard(&target(), &probing, Duration::ZERO, now + 10 * SECOND);
        let why = Some("cooldown-ended".to_owned());
        assert_eq!(shown(&book, now + 10 * SECOND), Some(("HalfOpen", Some(1_800_000_010), why.clone())));
        // A look that was on its way meanwhile, and a publication that comes late.
        let old = view(BreakerState::Open, EPOCH, Duration::ZERO);
        book.looked(&target(), &old, now + 9 * SECOND, now + 11 * SECOND);
        book.heard(&target(), &opened, 9 * SECOND, now + 11 * SECOND);
        assert_eq!(shown(&book, now + 11 * SECOND), Some(("HalfOpen", Some(1_800_000_010), why)));
        // The shared state lost its memory: what it says now is what rules.
        let empty = view(BreakerState::Closed, 0, Duration::ZERO);
        book.looked(&target(), &empty, now + 12 * SECOND, now + 12 * SECOND);
        assert_eq!(shown(&book, now + 12 * SECOND), Some(("Closed", None, None)));
    }

    #[test]
    fn reading_is_paced_and_what_is_not_closed_goes_first() {
        let (mut book, now) = (Book::default(), clock::now());
        let targets: Vec<TargetId> =
            (0..250).map(|n| TargetId::of("ns", "d", "https://x", &n.to_string())).collect();
        for round in 0..4 {
            let due: Vec<TargetId> = book.due(targets.iter(), true, now).into_iter().cloned().collect();
            assert_eq!(due.len(), [100, 100, 50, 0][round]);
            for target in due {
                book.looked(&target, &view(BreakerState::Closed, 1, Duration::ZERO), now, now);
            }
        }
        book.looked(&targets[7], &view(BreakerState::Open, 2, 60 * SECOND), now, now);
        assert_eq!(book.due(targets.iter(), true, now + SOON_AGAIN), [&targets[7]]);
        assert_eq!(book.due(targets.iter(), false, now + SOON_AGAIN).len(), PER_ROUND, "nothing is heard");
        assert_eq!(book.due(targets.iter(), true, now + AGAIN).len(), PER_ROUND);
        assert_eq!(book.due(targets.iter(), true, now + AGAIN)[0], &targets[7], "it waits longest");
    }
}
