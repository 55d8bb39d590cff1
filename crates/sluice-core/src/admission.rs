//! The vocabulary of `admit` and `settle`: what an agent asks of a target's shared state, and what it hears.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::outcome::Verdict;

/// Names one admission: 128 random bits, drawn by the agent.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Nonce(pub u128);

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A random number in [0, 2^31), drawn by the caller: jitter is decided where it can be replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw(u32);

impl Draw {
    pub const BOUND: u32 = 1 << 31;

    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value % Self::BOUND)
    }

    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Asks for leave to send one attempt.
#[derive(Debug, Clone)]
pub struct AdmitAsk {
    pub nonce: Nonce,
    /// Tokens to reserve: input estimate + maximum output.
    pub tokens: u64,
    /// A tenant that the quota names; everyone else shares the rest.
    pub tenant: Option<Arc<str>>,
    /// How long a probe may be without a verdict.
    pub lease: Duration,
    /// How long the record of this admission is kept: the total deadline + 60 s.
    pub record_ttl: Duration,
    pub draw: Draw,
    /// W3C trace context of the exchange; kept by the breaker it opens.
    pub traceparent: Option<Arc<str>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AdmitAnswer {
    Admitted,
    /// Admitted as a probe: it holds a permit until its verdict or its lease's end.
    Probe,
    Open,
    /// Half-open, and every probe permit is out.
    ProbesBusy,
    /// Closed a short while ago; the rate is still limited.
    Ramping,
    TokensExhausted,
    RequestsExhausted,
    /// The provider asked everyone to wait.
    Paused,
}

impl AdmitAnswer {
    pub const ALL: [Self; 8] = [
        Self::Admitted,
        Self::Probe,
        Self::Open,
        Self::ProbesBusy,
        Self::Ramping,
        Self::TokensExhausted,
        Self::RequestsExhausted,
        Self::Paused,
    ];

    #[must_use]
    pub const fn granted(self) -> bool {
        matches!(self, Self::Admitted | Self::Probe)
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Probe => "probe",
            Self::Open => "open",
            Self::ProbesBusy => "probes-busy",
            Self::Ramping => "ramping",
            Self::TokensExhausted => "tokens-exhausted",
            Self::RequestsExhausted => "requests-exhausted",
            Self::Paused => "paused",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BreakerState {
    Closed,
    HalfOpen,
    Open,
}

impl BreakerState {
    /// In the order of their codes, which are those of `llm_circuit_breaker_state`.
    pub const ALL: [Self; 3] = [Self::Closed, Self::HalfOpen, Self::Open];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half-open",
            Self::Open => "open",
        }
    }
}

/// A change of a breaker's state, heard by the one caller that made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    pub from: BreakerState,
    pub to: BreakerState,
    pub reason: TransitionReason,
    /// The epoch that begins with it.
    pub epoch: u64,
    /// What the window held at that moment.
    pub counts: WindowCounts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WindowCounts {
    pub calls: u32,
    pub failures: u32,
    pub slow: u32,
    pub stalls: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TransitionReason {
    FailureRate,
    SlowRate,
    StallRate,
    Consecutive,
    /// The cool-down ended and a probe was let through.
    CooldownEnded,
    /// A probe failed, was slow or stalled.
    ProbeFailed,
    /// A probe met a 429.
    ProbeThrottled,
    /// All required probes succeeded.
    ProbesSucceeded,
}

impl TransitionReason {
    pub const ALL: [Self; 8] = [
        Self::FailureRate,
        Self::SlowRate,
        Self::StallRate,
        Self::Consecutive,
        Self::CooldownEnded,
        Self::ProbeFailed,
        Self::ProbeThrottled,
        Self::ProbesSucceeded,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FailureRate => "failure-rate",
            Self::SlowRate => "slow-rate",
            Self::StallRate => "stall-rate",
            Self::Consecutive => "consecutive-failures",
            Self::CooldownEnded => "cooldown-ended",
            Self::ProbeFailed => "probe-failed",
            Self::ProbeThrottled => "probe-throttled",
            Self::ProbesSucceeded => "probes-succeeded",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmitReply {
    pub answer: AdmitAnswer,
    /// What a group in mode `Observe` would have refused with, had it been enforced.
    pub observed: Option<AdmitAnswer>,
    /// After a refusal: when to ask again, by the server's clock.
    pub retry_after: Duration,
    pub state: BreakerState,
    pub epoch: u64,
    /// How long the breaker stays open.
    pub open_for: Duration,
    /// Tokens left in the bucket that was asked; negative in debt; `None`: not limited.
    pub tokens_left: Option<i64>,
    /// The refill rate after pushback, in percent of the nominal one.
    pub rate_percent: u32,
    pub transition: Option<Transition>,
    /// The traceparent of the exchange that opened the breaker.
    pub opened_by: Option<Arc<str>>,
}

/// Returns what an admission took, and says what it meant.
#[derive(Debug, Clone)]
pub struct SettleAsk {
    pub nonce: Nonce,
    /// The epoch of the admission.
    pub epoch: u64,
    /// `None`: only the tokens are settled (the verdict came earlier).
    pub verdict: Option<Verdict>,
    pub tokens: Settlement,
    pub tenant: Option<Arc<str>>,
    /// A 429's pause, for everyone.
    pub pause: Option<Duration>,
    pub draw: Draw,
    pub traceparent: Option<Arc<str>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// The attempt goes on: its tokens are settled later.
    Later,
    /// What the provider counted, or what was estimated in its place.
    Used(u64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettleReply {
    pub state: BreakerState,
    pub epoch: u64,
    pub open_for: Duration,
    pub transition: Option<Transition>,
    /// Tokens used beyond what the bucket's debt can hold.
    pub forgiven: u64,
}

/// What a target's shared state looks like, for `/state` and for agents that (re)connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetView {
    pub state: BreakerState,
    pub epoch: u64,
    pub open_for: Duration,
    pub counts: WindowCounts,
    pub probes_out: u32,
    pub tokens_left: Option<i64>,
    pub paused_for: Duration,
    pub rate_percent: u32,
    /// Whether the breaker is in its ramp.
    pub ramping: bool,
    pub opened_by: Option<Arc<str>>,
}
