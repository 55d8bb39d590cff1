//! The one place of this crate that reads a clock.
//!
//! It is tokio's, so that a test with paused time moves the provider as well.

use tokio::time::Instant;

/// The current time of the runtime's clock.
#[allow(clippy::disallowed_methods, reason = "the crate's single reading of the clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
