//! The facade that agents use: one admission and one settlement per attempt, whatever state Redis is in.
//!
//! ```text
//! admit ─ known to be open? ─ yes ─▶ refused, nothing asked
//!           │ no
//!         store breaker up? ─ yes ─▶ shared home, 20 ms ─▶ answered
//!           │ no                          │ failed, or the reply was lost
//!           └────────────────▶ own home (LocalFallback, FailOpen) or an error (FailClosed)
//! settle ─ granted by the own home ─▶ own home, at once
//!        └ granted by the shared one ─▶ bounded queue ─▶ shared home, 250 ms, again while its record lives
//! ```
//!
//! An admission whose reply was lost may have been granted: it is cancelled later, by a settlement under its
//! nonce, and the exchange goes on in the own home under a new one. The same when an exchange is dropped
//! while it waits for its admission.

mod admit;
mod connection;
mod known;
mod settle;
mod settle_queue;
mod stats;
mod transitions;
mod types;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sluice_core::admission::{AdmitAsk, TargetView};
use sluice_core::policy::TargetPolicy;
use sluice_core::target_id::TargetId;
use tokio::sync::{Notify, broadcast, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use types::{
    Admission, Known, SettleJob, Shared, StoreConfig, StoreHealth, StoreStats, Ticket, Told, TransitionEvent,
};

pub(crate) use self::connection::trial_target;
use self::known::KnownTargets;
use self::settle_queue::SettleQueue;
use self::stats::Counters;
use crate::agent_tag::AgentTag;
use crate::clock;
use crate::embedded::EmbeddedHome;
use crate::error::StoreError;
use crate::home::{Home as _, HomeKind};
use crate::random::Random;
use crate::redis_home::RedisHome;
use crate::store_breaker::StoreBreaker;

/// Transitions that a slow listener may lag behind.
const TRANSITIONS: usize = 1_024;

/// The state of all targets, as one agent reaches it. Cheap to clone; the last clone ends its tasks.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
    _tasks: Arc<DropGuard>,
}

struct Inner {
    tag: AgentTag,
    random: Random,
    shared: SharedHome,
    local: EmbeddedHome,
    breaker: Mutex<StoreBreaker>,
    /// Told whenever the store breaker changes.
    breaker_changed: Notify,
    /// Numbers the times that the shared home was away.
    outage: AtomicU64,
    local_revision: AtomicU64,
    known: Mutex<KnownTargets>,
    queue: SettleQueue,
    transitions: broadcast::Sender<TransitionEvent>,
    health: watch::Sender<StoreHealth>,
    counters: Counters,
}

enum SharedHome {
    Redis(Box<RedisHome>),
    Embedded(Arc<EmbeddedHome>),
}

impl Store {
    /// Starts the store's tasks; call it inside a Tokio runtime. Nothing is waited for: see
    /// [`Self::connected`].
    ///
    /// # Errors
    /// Kind `config` when the configuration can't work, `other` when the interpreter can't be made.
    pub fn new(config: StoreConfig) -> Result<Self, StoreError> {
        let tag = AgentTag::new(&config.agent, config.seed);
        let (transitions, _) = broadcast::channel(TRANSITIONS);
        let mut breaker = StoreBreaker::new(clock::now());
        let shared = match config.shared {
            Shared::Redis(redis) => SharedHome::Redis(Box::new(RedisHome::new(&redis)?)),
            Shared::Embedded(home) => {
                breaker.recovered();
                SharedHome::Embedded(home)
            }
        };
        let (health, _) = watch::channel(StoreHealth::new(breaker.is_up()));
        let inner = Arc::new(Inner {
            tag,
            random: Random::seeded(&config.agent, config.seed),
            shared,
            local: EmbeddedHome::with_clock(config.clock)?,
            breaker: Mutex::new(breaker),
            breaker_changed: Notify::new(),
            outage: AtomicU64::new(1),
            local_revision: AtomicU64::new(1),
            known: Mutex::default(),
            queue: SettleQueue::default(),
            transitions,
            health,
            counters: Counters::default(),
        });
        let stop = CancellationToken::new();
        inner.start_tasks(&stop);
        Ok(Self { inner, _tasks: Arc::new(stop.drop_guard()) })
    }

    /// Asks for leave to send one attempt.
    ///
    /// # Errors
    /// Only for a target whose policy says `FailClosed`, while the shared state is away.
    pub async fn admit(&self, target: &Arc<TargetPolicy>, ask: AdmitAsk) -> Result<Admission, StoreError> {
        self.inner.admit(target, ask).await
    }

    /// Says what an attempt meant and used. Never blocks: it is carried out at once in this process, or queued
    /// for the shared home; when that queue is full the settlement is dropped and counted.
    pub fn settle(&self, job: SettleJob) {
        self.inner.settle(job);
    }

    /// The last state seen of a target; `None`: never asked for.
    #[must_use]
    pub fn known(&self, id: &TargetId) -> Option<Known> {
        self.inner.known.lock().known(id, clock::now())
    }

    /// Every transition from now on, made by this agent or heard of, each once.
    #[must_use]
    pub fn transitions(&self) -> broadcast::Receiver<TransitionEvent> {
        self.inner.transitions.subscribe()
    }

    #[must_use]
    pub fn health(&self) -> watch::Receiver<StoreHealth> {
        self.inner.health.subscribe()
    }

    #[must_use]
    pub fn stats(&self) -> StoreStats {
        self.inner.stats()
    }

    /// The targets whose transitions this agent is to hear of before it asks for them: those of its policies.
    pub fn listen<'a>(&self, targets: impl IntoIterator<Item = &'a Arc<TargetPolicy>>) {
        let now = clock::now();
        let mut known = self.inner.known.lock();
        for target in targets {
            known.entry(target, now);
        }
    }

    /// How many agents serve a target, counted by the control plane; before the first count the policy's
    /// `assumedAgents` holds.
    pub fn set_agents(&self, id: &TargetId, agents: u32) {
        self.inner.known.lock().set_agents(id, agents);
    }

    /// Reads a target's state from the shared home, or from this agent's own while that is away.
    ///
    /// # Errors
    /// What the home refused.
    pub async fn view(&self, target: &Arc<TargetPolicy>) -> Result<TargetView, StoreError> {
        self.inner.view(target).await
    }

    /// Waits until the shared home was reached, at most for `within`; says whether it was.
    pub async fn connected(&self, within: Duration) -> bool {
        let mut health = self.inner.health.subscribe();
        tokio::time::timeout(within, health.wait_for(|health| health.reachable))
            .await
            .is_ok_and(|seen| seen.is_ok())
    }

    /// Waits until every settlement was delivered, at most for `within`; returns how many were not.
    pub async fn drain(&self, within: Duration) -> usize {
        let emptied = async {
            loop {
                let emptied = self.inner.queue.emptied.notified();
                if self.inner.queue.len() == 0 {
                    return;
                }
                emptied.await;
            }
        };
        let _ = tokio::time::timeout(within, emptied).await;
        self.inner.queue.len()
    }
}

impl Inner {
    fn start_tasks(self: &Arc<Self>, stop: &CancellationToken) {
        match &self.shared {
            SharedHome::Embedded(home) => {
                let heard = home.publications();
                tokio::spawn(stop.clone().run_until_cancelled_owned(Arc::clone(self).hear_embedded(heard)));
            }
            SharedHome::Redis(_) => {
                tokio::spawn(stop.clone().run_until_cancelled_owned(Arc::clone(self).keep_connected()));
                tokio::spawn(stop.clone().run_until_cancelled_owned(Arc::clone(self).keep_listening()));
                tokio::spawn(stop.clone().run_until_cancelled_owned(Arc::clone(self).poll_unheard()));
                tokio::spawn(stop.clone().run_until_cancelled_owned(Arc::clone(self).deliver_settlements()));
            }
        }
    }

    async fn view(&self, target: &Arc<TargetPolicy>) -> Result<TargetView, StoreError> {
        if !self.breaker.lock().is_up() {
            let local = self.local_policy(target);
            return self.local.view_now(&local);
        }
        let view = match &self.shared {
            SharedHome::Redis(home) => home.view(target).await?,
            SharedHome::Embedded(home) => home.view(target).await?,
        };
        self.note_view(target, &view, HomeKind::Shared);
        Ok(view)
    }

    /// The target's policy for the own home, made anew when the target's own or the number of agents changes.
    fn local_policy(&self, target: &Arc<TargetPolicy>) -> Arc<TargetPolicy> {
        let mut known = self.known.lock();
        let entry = known.entry(target, clock::now());
        let agents = entry.agents.unwrap_or(target.rules.state_store.rules.assumed_agents);
        if let Some((of, with, local)) = &entry.local
            && Arc::ptr_eq(of, target)
            && *with == agents
        {
            return Arc::clone(local);
        }
        let revision = self.local_revision.fetch_add(1, Ordering::Relaxed);
        let local = Arc::new(crate::local_share::local_policy(target, agents, revision));
        entry.local = Some((Arc::clone(target), agents, Arc::clone(&local)));
        local
    }
}
