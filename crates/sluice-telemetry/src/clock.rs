//! The one place in this crate that reads a clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Calendar time: what a signal's timestamps are in.
#[allow(clippy::disallowed_methods, reason = "this is the clock")]
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}

/// As OTLP writes it.
pub(crate) fn unix_nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
