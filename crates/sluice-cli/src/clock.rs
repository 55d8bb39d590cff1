//! The one place in the command line that reads a clock. Everything else takes `now`.

use tokio::time::Instant;

/// Monotonic time; tokio's, so that tests with paused time work.
#[allow(clippy::disallowed_methods, reason = "this is the clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Milliseconds since 1970, for the times that resources carry.
#[allow(clippy::disallowed_methods, reason = "this is the clock")]
pub(crate) fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
