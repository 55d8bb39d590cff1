//! The one place in this crate that reads a clock. Decisions take `now` as an argument.

use tokio::time::Instant;

/// Monotonic time; tokio's, so that tests with paused time work.
#[allow(clippy::disallowed_methods, reason = "this is the clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
