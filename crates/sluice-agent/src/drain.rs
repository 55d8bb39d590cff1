//! Ending in order: first no new work, then an end to what is still running.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

/// Two signals, one after the other.
#[derive(Debug, Clone, Default)]
pub(crate) struct Drain {
    /// Accept nothing new; finish what runs.
    stop: CancellationToken,
    /// The grace period is over: streams end with an error event of their format.
    end: Arc<CancellationToken>,
}

impl Drain {
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    pub(crate) fn end(&self) {
        self.end.cancel();
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    pub(crate) async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// For a stream to hold: wakes it once at the end of the grace period.
    pub(crate) fn ended(&self) -> tokio_util::sync::WaitForCancellationFutureOwned {
        (*self.end).clone().cancelled_owned()
    }
}
