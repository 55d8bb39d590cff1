//! What a replica does at once, and whether all of it still goes on.
//!
//! A task that ends before its replica (it panicked, say) leaves a replica that looks well and does only a part of its
//! work. It is remembered, `/livez` fails, and the replica is started anew.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};

use futures_util::FutureExt as _;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Whether everything goes on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Health(Arc<OnceLock<&'static str>>);

impl Health {
    /// The first task that ended too early.
    pub(crate) fn ended(&self) -> Option<&'static str> {
        self.0.get().copied()
    }
}

/// Tasks that live as long as their replica.
#[derive(Default)]
pub(crate) struct Tasks {
    running: JoinSet<()>,
    stop: CancellationToken,
    health: Health,
}

impl Tasks {
    pub(crate) fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    pub(crate) fn health(&self) -> Health {
        self.health.clone()
    }

    /// Work that is dropped when the replica ends.
    pub(crate) fn run(&mut self, what: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.finish(what, async move {
            stop.run_until_cancelled_owned(work).await;
        });
    }

    /// Work that ends by itself when the replica does: it has a `stop` of its own.
    pub(crate) fn finish(&mut self, what: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        let (stop, health) = (self.stop.clone(), self.health.clone());
        self.running.spawn(async move {
            // Nothing that it held is used any more.
            let ended = AssertUnwindSafe(work).catch_unwind().await;
            if ended.is_err() || !stop.is_cancelled() {
                tracing::error!(what, "a task ended before its replica");
                // The first one counts.
                let _ = health.0.set(what);
            }
        });
    }

    /// Ends everything.
    pub(crate) async fn end(mut self) {
        self.stop.cancel();
        while self.running.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_ends_too_early_is_remembered() {
        let mut tasks = Tasks::default();
        let health = tasks.health();
        tasks.run("goes on", std::future::pending());
        let stop = tasks.stop();
        tasks.finish("ends with its replica", stop.cancelled_owned());
        assert_eq!(health.ended(), None);
        tasks.run("ends", std::future::ready(()));
        while health.ended().is_none() {
            tokio::task::yield_now().await;
        }
        tasks.end().await;
        assert_eq!(health.ended(), Some("ends"));
    }

    #[tokio::test]
    async fn an_orderly_end_is_sound() {
        let mut tasks = Tasks::default();
        let health = tasks.health();
        tasks.run("goes on", std::future::pending());
        tasks.end().await;
        assert_eq!(health.ended(), None);
    }
}
