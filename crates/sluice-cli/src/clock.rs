//! The one place in the command line that reads a clock. Everything else takes `now`.

use tokio::time::Instant;

/// Monotonic time; tokio's, so that tests with paused time work.
#[allow(clippy::disallowed_methods, reason = "this is the clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
