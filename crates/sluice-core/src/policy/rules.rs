//! The groups of a `ReliabilityPolicy` as they rule one target.

use std::sync::Arc;
use std::time::Duration;

use super::{Lane, ObjectRef};
use crate::defaults;
use crate::outcome::Verdict;

/// One group, with where it came from: the most specific policy that has the group gives it whole.
#[derive(Debug, Clone, PartialEq)]
pub struct Group<T> {
    pub rules: T,
    pub mode: Mode,
    /// `None`: built in.
    pub source: Option<ObjectRef>,
}

impl<T: Default> Default for Group<T> {
    fn default() -> Self {
        Self { rules: T::default(), mode: Mode::Enforce, source: None }
    }
}

/// Whether a group's decisions are carried out, or reported only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    #[default]
    Enforce,
    Observe,
}

/// Everything that rules one target.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rules {
    pub deadlines: Group<Deadlines>,
    pub breaker: Group<Breaker>,
    /// `None`: no limit.
    pub quota: Option<Group<Quota>>,
    pub concurrency: Group<Concurrency>,
    pub queue: Group<Queue>,
    pub retries: Group<Retries>,
    pub streaming: Group<Streaming>,
    pub state_store: Group<StateStore>,
    /// Which edit of the breaker's and quota's settings this is: of two different settings in the shared
    /// state the higher revision rules.
    pub revision: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deadlines {
    /// Streams: from the start of the attempt to its first token.
    pub first_token: Duration,
    /// From the arrival of the exchange to its last byte.
    pub total: Duration,
    /// Streams: between two signs of life, from the first token on.
    pub stall: Duration,
    /// Streams: without a token, however many pings and reasoning deltas arrive.
    pub max_silence: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        use defaults::deadlines as d;
        Self { first_token: d::FIRST_TOKEN, total: d::TOTAL, stall: d::STALL, max_silence: d::MAX_SILENCE }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breaker {
    pub window: Window,
    /// Calls in the window below which no rate trips.
    pub minimum_calls: u32,
    pub failure_percent: u32,
    pub slow: Slow,
    pub stall_percent: u32,
    /// Consecutive failures that trip whatever the minimum; 0: off.
    pub consecutive_failures: u32,
    pub cooldown: Cooldown,
    pub probes: Probes,
    pub ramp: Ramp,
    /// Before the built-in classification; the first match rules.
    pub classify: Vec<ClassifyRule>,
}

impl Default for Breaker {
    fn default() -> Self {
        use defaults::breaker as d;
        Self {
            window: Window::Time { span: d::WINDOW, buckets: d::WINDOW_BUCKETS },
            minimum_calls: d::MINIMUM_CALLS,
            failure_percent: d::FAILURE_PERCENT,
            slow: Slow::default(),
            stall_percent: d::STALL_PERCENT,
            consecutive_failures: d::CONSECUTIVE_FAILURES,
            cooldown: Cooldown::default(),
            probes: Probes::default(),
            ramp: Ramp::default(),
            classify: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Window {
    /// The last `span`, in `buckets` (at most 16) of equal length.
    Time { span: Duration, buckets: u32 },
    /// The last `calls` outcomes (at most 1,000).
    Count { calls: u32 },
}

/// When a call that succeeds was too slow all the same. A threshold that is `None` is not looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slow {
    pub percent: u32,
    pub ttft: Option<Duration>,
    pub per_output_token: Option<Duration>,
    pub duration: Option<Duration>,
    /// Slow above this percentage of the target's own learned p95 of the healthy state, such as 300.
    pub relative_percent: Option<u32>,
    pub count_as: SlowCounts,
}

impl Default for Slow {
    fn default() -> Self {
        use defaults::breaker as d;
        Self {
            percent: d::SLOW_PERCENT,
            ttft: Some(d::SLOW_TTFT),
            per_output_token: None,
            duration: None,
            relative_percent: None,
            count_as: SlowCounts::Slow,
        }
    }
}

/// Whether a slow call counts in its own rate or as a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlowCounts {
    Slow,
    Failure,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cooldown {
    pub base: Duration,
    /// ± around the cool-down, drawn once by the call that trips.
    pub jitter_percent: u32,
    /// Of the last cool-down, per repeated trip; 100: none.
    pub growth_percent: u32,
    pub max: Duration,
}

impl Default for Cooldown {
    fn default() -> Self {
        use defaults::breaker as d;
        Self {
            base: d::COOLDOWN,
            jitter_percent: d::COOLDOWN_JITTER_PERCENT,
            growth_percent: d::COOLDOWN_GROWTH_PERCENT,
            max: d::COOLDOWN_MAX,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probes {
    /// Probes between admission and verdict at a time, over all replicas (at most 16).
    pub concurrency: u32,
    /// Successful probes in a row that close the breaker.
    pub successes: u32,
}

impl Default for Probes {
    fn default() -> Self {
        use defaults::breaker as d;
        Self { concurrency: d::PROBE_CONCURRENCY, successes: d::PROBE_SUCCESSES }
    }
}

/// After a recovery: admission grows from a fraction of the reference rate to all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ramp {
    /// Zero: off.
    pub duration: Duration,
    pub initial_percent: u32,
}

impl Default for Ramp {
    fn default() -> Self {
        use defaults::breaker as d;
        Self { duration: d::RAMP, initial_percent: d::RAMP_INITIAL_PERCENT }
    }
}

/// What a status or an error type means to the breaker, instead of the built-in classification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassifyRule {
    /// First and last status, both included; `None`: any.
    pub statuses: Option<(u16, u16)>,
    /// The error's `type` or `code` in the body; `None`: any.
    pub error_type: Option<Arc<str>>,
    pub verdict: Verdict,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// `None`: tokens are not limited. Zero admits nothing.
    pub tokens_per_minute: Option<u64>,
    /// Capacity of the bucket; one minute's tokens unless the policy says otherwise.
    pub burst_tokens: u64,
    /// `None`: requests are not limited. Zero admits nothing.
    pub requests_per_minute: Option<u64>,
    /// Reserved for a request that names no maximum.
    pub default_max_output_tokens: u64,
    /// At most 16.
    pub tenants: Vec<TenantShare>,
    pub pushback: Pushback,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantShare {
    pub name: Arc<str>,
    /// Of the target's tokens; zero reserves nothing.
    pub reserved_percent: u32,
    pub weight: u32,
}

/// What a 429 does to the target for everyone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushback {
    pub max_pause: Duration,
    /// For a 429 that names no time.
    pub default_pause: Duration,
    /// What is left of the refill rate, once per pause.
    pub shrink_percent: u32,
    pub floor_percent: u32,
    /// Of the nominal rate, per second.
    pub recovery_percent_per_second: u32,
    /// Without a 429 before the rate recovers.
    pub recovery_delay: Duration,
}

impl Default for Pushback {
    fn default() -> Self {
        use defaults::quota as d;
        Self {
            max_pause: d::PAUSE_MAX,
            default_pause: d::PAUSE,
            shrink_percent: d::SHRINK_PERCENT,
            floor_percent: d::FLOOR_PERCENT,
            recovery_percent_per_second: d::RECOVERY_PERCENT_PER_SECOND,
            recovery_delay: d::RECOVERY_DELAY,
        }
    }
}

/// Exchanges in flight to one target from one agent. A slot is held until the stream ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Concurrency {
    Fixed { limit: u32 },
    Aimd(Aimd),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aimd {
    pub initial: u32,
    pub min: u32,
    pub max: u32,
    pub ttft_target: Duration,
    pub decrease_percent: u32,
    pub decrease_interval: Duration,
}

impl Default for Aimd {
    fn default() -> Self {
        use defaults::concurrency as d;
        Self {
            initial: d::INITIAL,
            min: d::MIN,
            max: d::MAX,
            ttft_target: d::TTFT_TARGET,
            decrease_percent: d::DECREASE_PERCENT,
            decrease_interval: d::DECREASE_INTERVAL,
        }
    }
}

impl Default for Concurrency {
    fn default() -> Self {
        Self::Aimd(Aimd::default())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    /// One per lane, in the order of [`Lane::ALL`].
    pub lanes: Vec<LaneLimit>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneLimit {
    pub lane: Lane,
    /// Of the concurrency limit; unused shares are borrowed.
    pub share_percent: u32,
    pub max_length: u32,
    pub max_wait: Duration,
}

impl Default for Queue {
    fn default() -> Self {
        use defaults::queue as d;
        let lane = |lane, share_percent| LaneLimit {
            lane,
            share_percent,
            max_length: d::MAX_LENGTH,
            max_wait: d::MAX_WAIT,
        };
        Self {
            lanes: vec![
                lane(Lane::Interactive, d::INTERACTIVE_PERCENT),
                lane(Lane::Agent, d::AGENT_PERCENT),
                lane(Lane::Background, d::BACKGROUND_PERCENT),
            ],
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retries {
    /// Attempts of one exchange over all targets, the first included.
    pub max_attempts: u32,
    pub backoff_base: Duration,
    pub backoff_max: Duration,
    pub budget_percent: u32,
    /// A longer Retry-After is not waited for.
    pub retry_after_max: Duration,
    pub throttling: Option<Throttling>,
    /// Google SRE's adaptive throttling: the K of max(0, (requests − K × accepts) / (requests + 1)),
    /// in percent; `None`: off.
    pub adaptive_k_percent: Option<u32>,
}

impl Default for Retries {
    fn default() -> Self {
        use defaults::retries as d;
        Self {
            max_attempts: d::MAX_ATTEMPTS,
            backoff_base: d::BACKOFF_BASE,
            backoff_max: d::BACKOFF_MAX,
            budget_percent: d::BUDGET_PERCENT,
            retry_after_max: d::RETRY_AFTER_MAX,
            throttling: None,
            adaptive_k_percent: None,
        }
    }
}

/// gRPC's retry throttling: a failure costs one token, a success returns `token_ratio_percent` / 100,
/// and retries stop at half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Throttling {
    pub max_tokens: u32,
    pub token_ratio_percent: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Streaming {
    pub buffer_bytes: u64,
    pub slow_client: Duration,
    /// Send a comment after this long without a byte; `None`: off.
    pub keep_alive: Option<Duration>,
    pub body_bytes: u64,
    /// Whether the remaining deadline goes upstream.
    pub propagate_deadline: bool,
    /// Whether the attempt's trace goes upstream. Baggage never does.
    pub propagate_trace: bool,
}

impl Default for Streaming {
    fn default() -> Self {
        use defaults::streaming as d;
        Self {
            buffer_bytes: d::BUFFER_BYTES,
            slow_client: d::SLOW_CLIENT,
            keep_alive: None,
            body_bytes: d::BODY_BYTES,
            propagate_deadline: false,
            propagate_trace: false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateStore {
    pub on_unreachable: OnUnreachable,
    pub assumed_agents: u32,
}

impl Default for StateStore {
    fn default() -> Self {
        Self {
            on_unreachable: OnUnreachable::LocalFallback,
            assumed_agents: defaults::state_store::ASSUMED_AGENTS,
        }
    }
}

/// What an exchange does while the shared state is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnUnreachable {
    /// The agent's own breaker and a share of the quota.
    LocalFallback,
    /// The agent's own breaker and no quota.
    FailOpen,
    /// Refused.
    FailClosed,
}
