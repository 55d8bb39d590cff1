//! The one place in the agent that reads a clock. Everything else takes `now`.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// Monotonic time since the agent started: what core's state machines take. It is tokio's, so that tests
/// with paused time work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    started: Instant,
}

impl Clock {
    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    pub(crate) fn start() -> Self {
        Self { started: Instant::now() }
    }

    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    pub(crate) fn now(&self) -> Duration {
        Instant::now().saturating_duration_since(self.started)
    }

    pub(crate) async fn sleep_until(&self, at: Duration) {
        tokio::time::sleep_until(self.instant(at)).await;
    }

    /// For timers. A moment beyond what an instant can hold is a day away.
    pub(crate) fn instant(&self, at: Duration) -> Instant {
        const FAR: Duration = Duration::from_hours(24);
        self.started.checked_add(at.min(self.now().saturating_add(FAR))).unwrap_or(self.started)
    }
}

/// Calendar time: for dates in headers alone, never for a decision between replicas.
#[allow(clippy::disallowed_methods, reason = "this is the clock")]
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}
