//! The one place of this crate that reads a clock.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Time for the agent's own decisions: monotonic, for durations only. Follows a paused Tokio clock.
#[allow(clippy::disallowed_methods, reason = "this is the clock of the crate")]
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// The wall clock that an embedded home serves as `TIME`.
pub trait Clock: Send + Sync {
    /// Milliseconds since 1970.
    fn now_ms(&self) -> u64;
}

impl<F: Fn() -> u64 + Send + Sync> Clock for F {
    fn now_ms(&self) -> u64 {
        self()
    }
}

/// The system's time when it was made, advancing with the monotonic clock: it never steps.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    started_ms: u64,
    started: Instant,
}

impl SystemClock {
    #[allow(clippy::disallowed_methods, reason = "this is the clock of the crate")]
    #[must_use]
    pub fn start() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started_ms: u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX), started: now() }
    }
}

impl Clock for SystemClock {
    fn now_ms(&self) -> u64 {
        let passed = now().saturating_duration_since(self.started);
        self.started_ms.saturating_add(u64::try_from(passed.as_millis()).unwrap_or(u64::MAX))
    }
}
