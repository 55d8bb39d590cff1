//! What agents give the store and what they get.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sluice_core::admission::{AdmitReply, BreakerState, Draw, Nonce, SettleReply, Settlement, Transition};
use sluice_core::outcome::Verdict;
use sluice_core::policy::TargetPolicy;
use sluice_core::target_id::TargetId;

use crate::clock::Clock;
use crate::embedded::EmbeddedHome;
use crate::error::{StoreError, StoreErrorKind};
use crate::home::HomeKind;
use crate::redis_home::{RedisConfig, ServerFacts};

/// Where the shared state lives.
#[derive(Clone)]
pub enum Shared {
    Redis(RedisConfig),
    /// In this process: `sluice run`, tests, the simulator.
    Embedded(Arc<EmbeddedHome>),
}

pub struct StoreConfig {
    pub shared: Shared,
    /// A name of this agent, such as its pod's; signs publications, hashed.
    pub agent: String,
    /// With the name, of every random choice of the store: a run can be replayed. Must not repeat when an agent
    /// restarts under its name.
    pub seed: u64,
    /// The time that the agent's own home goes by while the shared one is away.
    pub clock: Arc<dyn Clock>,
}

/// The answer to an admission, and where it has to be settled.
#[derive(Debug, Clone)]
pub struct Admission {
    pub reply: AdmitReply,
    pub home: HomeKind,
    /// Not the one that was asked with, when that one's reply was lost.
    pub nonce: Nonce,
    /// Why the shared home did not answer, when it did not.
    pub degraded: Option<StoreErrorKind>,
    /// How long the shared home took, or was waited for; `None`: it was not asked.
    pub took: Option<Duration>,
}

impl Admission {
    /// What a settlement needs of it.
    #[must_use]
    pub fn ticket(&self) -> Ticket {
        Ticket { home: self.home, nonce: self.nonce, epoch: self.reply.epoch }
    }
}

/// Names an admission that was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    pub home: HomeKind,
    pub nonce: Nonce,
    pub epoch: u64,
}

/// What an attempt meant and used, on its way to the home that admitted it.
#[derive(Debug)]
pub struct SettleJob {
    pub target: Arc<TargetPolicy>,
    pub admission: Ticket,
    pub tenant: Option<Arc<str>>,
    /// `None`: only the tokens (the verdict came earlier).
    pub verdict: Option<Verdict>,
    pub tokens: Settlement,
    /// The pause that a 429 asked for.
    pub pause: Option<Duration>,
    pub draw: Draw,
    pub traceparent: Option<Arc<str>>,
    /// Dropped without a reply when the settlement was dropped.
    pub told: Option<Told>,
}

/// Who is told a settlement's reply: a call, so that waiting for it takes no task. Whatever the call owns lives
/// until then.
pub struct Told(Box<dyn FnOnce(SettleReply) + Send>);

impl Told {
    pub fn new(tell: impl FnOnce(SettleReply) + Send + 'static) -> Self {
        Self(Box::new(tell))
    }

    pub(super) fn tell(self, reply: SettleReply) {
        (self.0)(reply);
    }
}

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Told")
    }
}

/// The last state of a target that this agent has seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    pub state: BreakerState,
    pub epoch: u64,
    /// How long this agent will not ask: until the breaker's own time, and its own jitter.
    pub open_for: Duration,
    /// Open, but its time is over: the next exchange probes.
    pub awaiting_probe: bool,
    /// The traceparent of the exchange that opened it.
    pub opened_by: Option<Arc<str>>,
    /// Where it was seen.
    pub home: HomeKind,
}

/// A transition, told once per agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransitionEvent {
    pub target: TargetId,
    pub transition: Transition,
    pub open_for: Duration,
    pub opened_by: Option<Arc<str>>,
    /// Made by a call of this agent, not heard of.
    pub made_here: bool,
    pub home: HomeKind,
}

/// Whether the shared state answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreHealth {
    pub reachable: bool,
    /// Why not, at the last failure.
    pub error: Option<(StoreErrorKind, String)>,
    /// Transitions of other agents are heard at once, not by polling.
    pub subscribed: bool,
    /// The server's eviction policy, when it may evict the state of breakers.
    pub unsafe_eviction: Option<String>,
}

impl StoreHealth {
    /// Before anything was asked.
    pub(crate) fn new(reachable: bool) -> Self {
        Self { reachable, error: None, subscribed: reachable, unsafe_eviction: None }
    }

    /// A connection is there.
    pub(crate) fn reached(&mut self, facts: ServerFacts) {
        if let Some(policy) = &facts.unsafe_eviction {
            tracing::warn!(%policy, "redis may evict breakers and quotas: set maxmemory-policy noeviction");
        }
        self.reachable = true;
        self.error = None;
        self.unsafe_eviction = facts.unsafe_eviction;
    }

    /// The connection is of no use; whether that is news.
    pub(crate) fn lost(&mut self, error: &StoreError) -> bool {
        let said = Some((error.kind, error.detail.clone()));
        let news = self.reachable || self.error != said;
        self.reachable = false;
        self.error = said;
        news
    }
}

/// Counters since the start, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreStats {
    /// Admissions that the shared home answered.
    pub admits: u64,
    /// Their round trips, together.
    pub admit_micros: u64,
    /// Admissions that failed there.
    pub admit_errors: u64,
    /// Admissions answered by the agent's own home instead.
    pub fallbacks: u64,
    /// Admissions refused because the policy says FailClosed.
    pub refused: u64,
    /// Admissions answered from what was known, without asking.
    pub skipped: u64,
    /// Settlements that took effect.
    pub settles: u64,
    pub settle_errors: u64,
    /// Settlements given up: the queue was full, or their record's time was over.
    pub settles_dropped: u64,
    /// Settlements waiting now.
    pub settles_waiting: u64,
    /// Tokens used beyond what a bucket's debt holds.
    pub tokens_forgiven: u64,
    /// Times that the server had lost a script.
    pub noscript: u64,
    /// Connections made to the shared home.
    pub connections: u64,
}
