//! The one place in the controller that reads a clock. Decisions take `now` as an argument.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

/// Monotonic time; tokio's, so that tests with paused time work.
#[allow(clippy::disallowed_methods, reason = "this is the clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Milliseconds since 1970.
#[allow(clippy::disallowed_methods, reason = "this is the clock")]
pub(crate) fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// As statuses carry it, in whole seconds.
pub(crate) fn time() -> Time {
    let seconds = i64::try_from(unix_ms() / 1_000).unwrap_or_default();
    Time(Timestamp::from_second(seconds).unwrap_or_default())
}

/// As Leases and Events carry it.
pub(crate) fn micro_time() -> MicroTime {
    let ms = i64::try_from(unix_ms()).unwrap_or_default();
    MicroTime(Timestamp::from_millisecond(ms).unwrap_or_default())
}
