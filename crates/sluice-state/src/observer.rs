//! The shared state for those who only look: a control plane that shows breakers and admits nothing.
//!
//! Apart from [`Store`](crate::Store), which remembers what an agent asked for: an observer hears every transition of
//! the fleet, reads any target, writes nothing, and has no state of its own to fall back to.
//!
//! One task keeps the connection: it subscribes, tries a read every few seconds (a server that hangs keeps its
//! connections), and makes a new connection when either fails.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use sluice_core::admission::TargetView;
use sluice_core::policy::TargetPolicy;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::error::{StoreError, StoreErrorKind};
use crate::home::Home as _;
use crate::redis_home::{RedisConfig, RedisHome};
use crate::script;
use crate::store::{StoreHealth, trial_target};

pub use crate::script::Heard;

/// Transitions that wait for their reader; a reader that lags so far finds the rest by looking.
const HEARD: usize = 4_096;
/// Between two tries to read.
const TRY: Duration = Duration::from_secs(5);
/// Between two tries to connect.
const CONNECT_AGAIN: Duration = Duration::from_secs(1);

/// Looks at the shared state. Dropping it ends its task.
pub struct Observer {
    inner: Arc<Inner>,
    _task: DropGuard,
}

struct Inner {
    redis: RedisHome,
    health: watch::Sender<StoreHealth>,
    heard: mpsc::Sender<Heard>,
}

impl Observer {
    /// Starts to connect; call it inside a Tokio runtime. The receiver gets every transition that is heard of; while
    /// nothing is subscribed ([`StoreHealth::subscribed`]) some are missed.
    ///
    /// # Errors
    /// Kind `config` or `tls` when the configuration can't work.
    pub fn start(config: &RedisConfig) -> Result<(Self, mpsc::Receiver<Heard>), StoreError> {
        let (health, _) = watch::channel(StoreHealth::new(false));
        let (heard, receiver) = mpsc::channel(HEARD);
        let inner = Arc::new(Inner { redis: RedisHome::new(config)?, health, heard });
        let stop = CancellationToken::new();
        tokio::spawn(stop.clone().run_until_cancelled_owned(Arc::clone(&inner).keep_connected()));
        Ok((Self { inner, _task: stop.drop_guard() }, receiver))
    }

    /// Reads a target's state.
    ///
    /// # Errors
    /// What the server or the socket said.
    pub async fn view(&self, target: &TargetPolicy) -> Result<TargetView, StoreError> {
        self.inner.redis.view(target).await
    }

    #[must_use]
    pub fn health(&self) -> watch::Receiver<StoreHealth> {
        self.inner.health.subscribe()
    }
}

impl Inner {
    async fn keep_connected(self: Arc<Self>) {
        loop {
            let error = match self.redis.reconnect().await {
                Ok(facts) => {
                    tracing::info!("the shared state can be seen");
                    self.health.send_modify(|health| health.reached(facts));
                    self.watch_over().await
                }
                Err(error) => error,
            };
            self.say_unreachable(&error);
            tokio::time::sleep(CONNECT_AGAIN).await;
        }
    }

    /// Until the connection is of no more use.
    async fn watch_over(&self) -> StoreError {
        tokio::select! {
            error = self.keep_listening() => error,
            error = self.keep_trying() => error,
        }
    }

    /// Without a right to subscribe there is still something to see: only a lost connection is the end.
    async fn keep_listening(&self) -> StoreError {
        loop {
            if let Err(error) = self.listen().await {
                if error.kind == StoreErrorKind::Closed {
                    return error;
                }
                tracing::debug!(kind = %error.kind, detail = %error.detail, "transitions are not heard");
            }
            self.health.send_if_modified(|health| std::mem::replace(&mut health.subscribed, false));
            tokio::time::sleep(CONNECT_AGAIN).await;
        }
    }

    async fn listen(&self) -> Result<(), StoreError> {
        let pubsub = self.redis.subscribe().await?;
        self.health.send_modify(|health| health.subscribed = true);
        let mut messages = pubsub.into_on_message();
        while let Some(message) = messages.next().await {
            let payload = message.get_payload::<String>().ok();
            let Some(heard) = payload.as_deref().and_then(script::decode_publication) else { continue };
            // Full: who lags so far looks for itself.
            let _ = self.heard.try_send(heard);
        }
        Ok(())
    }

    async fn keep_trying(&self) -> StoreError {
        let trial = trial_target("observer");
        loop {
            tokio::time::sleep(TRY).await;
            if let Err(error) = self.redis.view(&trial).await {
                return error;
            }
        }
    }

    fn say_unreachable(&self, error: &StoreError) {
        let news = self.health.send_if_modified(|health| {
            health.subscribed = false;
            health.lost(error)
        });
        if news {
            tracing::warn!(kind = %error.kind, detail = %error.detail, "the shared state can't be seen: it is tried again");
        }
    }
}
