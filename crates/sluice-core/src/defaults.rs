//! Every built-in number. The schema's defaults, the built-in groups and the documentation are made from
//! these constants, so a number is written down once.
//!
//! Durations are strings in the custom resources and [`Duration`]s here; units are in the names where the
//! type does not say them.

use std::time::Duration;

/// Routes and their targets.
pub mod route {
    /// Share of a target among those of its priority.
    pub const TARGET_WEIGHT: u32 = 1;
}

/// Deadlines of an exchange.
pub mod deadlines {
    use super::Duration;
    /// First token of a stream, counted from the start of the attempt.
    pub const FIRST_TOKEN: Duration = Duration::from_secs(10);
    /// The whole exchange.
    pub const TOTAL: Duration = Duration::from_mins(5);
    /// Between two signs of life of a stream, from its first token on.
    pub const STALL: Duration = Duration::from_secs(20);
    /// Without a text, reasoning or tool-call delta, however many pings arrive.
    pub const MAX_SILENCE: Duration = Duration::from_mins(5);
}

/// The circuit breaker of a target.
pub mod breaker {
    use super::Duration;
    /// Length of a time window.
    pub const WINDOW: Duration = Duration::from_mins(1);
    /// Buckets in a time window.
    pub const WINDOW_BUCKETS: u32 = 10;
    /// Outcomes in a count window.
    pub const WINDOW_CALLS: u32 = 100;
    /// Calls in the window below which no rate trips the breaker.
    pub const MINIMUM_CALLS: u32 = 10;
    pub const FAILURE_PERCENT: u32 = 50;
    pub const SLOW_PERCENT: u32 = 60;
    /// Time to first token above which a call is slow.
    pub const SLOW_TTFT: Duration = Duration::from_secs(5);
    pub const STALL_PERCENT: u32 = 30;
    /// Consecutive failures that trip it whatever the minimum; 0 is off.
    pub const CONSECUTIVE_FAILURES: u32 = 0;
    pub const COOLDOWN: Duration = Duration::from_secs(30);
    pub const COOLDOWN_JITTER_PERCENT: u32 = 20;
    /// Growth of the cool-down per repeated trip; 100 is none.
    pub const COOLDOWN_GROWTH_PERCENT: u32 = 150;
    pub const COOLDOWN_MAX: Duration = Duration::from_mins(5);
    pub const PROBE_CONCURRENCY: u32 = 1;
    pub const PROBE_SUCCESSES: u32 = 3;
    /// What a probe's lease is longer than its first-token deadline (or its remaining total deadline).
    pub const PROBE_LEASE_GRACE: Duration = Duration::from_secs(10);
    pub const RAMP: Duration = Duration::from_mins(1);
    pub const RAMP_INITIAL_PERCENT: u32 = 10;
}

/// The quota of a target.
pub mod quota {
    use super::Duration;
    /// Reserved for a request that names no maximum.
    pub const MAX_OUTPUT_TOKENS: u64 = 1_024;
    /// Longest pause a provider's Retry-After can cause.
    pub const PAUSE_MAX: Duration = Duration::from_mins(5);
    /// Pause after a 429 that names none.
    pub const PAUSE: Duration = Duration::from_secs(5);
    /// What is left of the refill rate after a pause, once per pause.
    pub const SHRINK_PERCENT: u32 = 90;
    /// The refill rate never shrinks below this share.
    pub const FLOOR_PERCENT: u32 = 10;
    /// Recovery of the refill rate, in percent of the nominal rate per second.
    pub const RECOVERY_PERCENT_PER_SECOND: u32 = 1;
    /// Quiet time without a 429 after which the rate recovers.
    pub const RECOVERY_DELAY: Duration = Duration::from_mins(1);
    pub const TENANT_WEIGHT: u32 = 1;
}

/// The concurrency limit of a target, per agent.
pub mod concurrency {
    use super::Duration;
    pub const INITIAL: u32 = 32;
    pub const MIN: u32 = 4;
    pub const MAX: u32 = 512;
    pub const TTFT_TARGET: Duration = Duration::from_millis(1_500);
    pub const DECREASE_PERCENT: u32 = 90;
    pub const DECREASE_INTERVAL: Duration = Duration::from_secs(10);
    /// `Fixed`: the limit.
    pub const FIXED_LIMIT: u32 = 32;
    /// `Gradient`: how much the short-term latency may exceed the long-term one before the limit shrinks
    /// (Netflix' Gradient2, rttTolerance 1.5).
    pub const GRADIENT_TOLERANCE_PERCENT: u32 = 150;
    /// `Gradient`: weight of a new limit against the old one (Gradient2, smoothing 0.2).
    pub const GRADIENT_SMOOTHING_PERCENT: u32 = 20;
    /// `Vegas`: grow while fewer exchanges than this seem to queue upstream (TCP Vegas, alpha).
    pub const VEGAS_ALPHA: u32 = 3;
    /// `Vegas`: shrink when more seem to queue (TCP Vegas, beta).
    pub const VEGAS_BETA: u32 = 6;
}

/// The lanes of a queue.
pub mod queue {
    use super::Duration;
    pub const INTERACTIVE_PERCENT: u32 = 60;
    pub const AGENT_PERCENT: u32 = 30;
    pub const BACKGROUND_PERCENT: u32 = 10;
    pub const MAX_LENGTH: u32 = 100;
    pub const MAX_WAIT: Duration = Duration::from_secs(5);
}

/// Retries of an exchange.
pub mod retries {
    use super::Duration;
    /// Attempts of one exchange over all targets, the first included.
    pub const MAX_ATTEMPTS: u32 = 3;
    pub const BACKOFF_BASE: Duration = Duration::from_millis(250);
    pub const BACKOFF_MAX: Duration = Duration::from_secs(8);
    /// Retries in percent of first attempts, per agent and target.
    pub const BUDGET_PERCENT: u32 = 10;
    pub const BUDGET_WINDOW: Duration = Duration::from_secs(10);
    /// Retries that the budget always allows in one window.
    pub const BUDGET_MINIMUM: u32 = 1;
    /// Longest Retry-After an exchange waits for.
    pub const RETRY_AFTER_MAX: Duration = Duration::from_mins(1);
    /// gRPC's retry throttling (gRFC A6), where a policy has it: tokens when full.
    pub const THROTTLING_MAX_TOKENS: u32 = 10;
    /// What a success returns, in percent of a token.
    pub const THROTTLING_TOKEN_RATIO_PERCENT: u32 = 10;
    /// Adaptive throttling (Google SRE, "Handling overload"), where a policy has it: K in percent.
    pub const ADAPTIVE_K_PERCENT: u32 = 200;
}

/// Relaying streams.
pub mod streaming {
    use super::Duration;
    pub const BUFFER_BYTES: u64 = 256 * 1_024;
    /// A client that reads nothing for this long is closed.
    pub const SLOW_CLIENT: Duration = Duration::from_secs(20);
    /// A request's body; larger ones are refused with 413.
    pub const BODY_BYTES: u64 = 32 * 1_024 * 1_024;
    /// A body up to this size is kept for retries and failover.
    pub const REPLAY_BYTES: u64 = 1_024 * 1_024;
    /// One server-sent event; longer ones are relayed but not decoded.
    pub const FRAME_BYTES: usize = 1_024 * 1_024;
}

/// The shared state.
pub mod state_store {
    use super::Duration;
    pub const ADMIT_DEADLINE: Duration = Duration::from_millis(20);
    pub const SETTLE_DEADLINE: Duration = Duration::from_millis(250);
    /// Agents assumed before the control plane has counted them.
    pub const ASSUMED_AGENTS: u32 = 1;
    /// Share of the limit that the agents divide among them while the store is away.
    pub const SAFETY_PERCENT: u32 = 80;
    pub const SETTLE_QUEUE: usize = 10_000;
}

/// Validation of answers.
pub mod validation {
    /// Times that an invalid answer goes back to the model.
    pub const REPAIRS: u32 = 1;
}

/// Budgets of tasks.
pub mod task_budget {
    /// The same tool call with the same arguments this many times is a loop.
    pub const MAX_IDENTICAL_CALLS: u32 = 3;
}
