//! Ending in order: first out of the way, then no new work, then an end to what is still running.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

/// Three signals, one after the other.
#[derive(Debug, Clone, Default)]
pub(crate) struct Drain {
    /// Unready, and still serving: those who send new work have not heard of it yet.
    leave: CancellationToken,
    /// Accept nothing new; finish what runs.
    stop: CancellationToken,
    /// The grace period is over: streams end with an error event of their format.
    end: Arc<CancellationToken>,
}

impl Drain {
    pub(crate) fn leave(&self) {
        self.leave.cancel();
    }

    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    pub(crate) fn end(&self) {
        self.end.cancel();
    }

    pub(crate) fn leaving(&self) -> bool {
        self.leave.is_cancelled() || self.stopping()
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
