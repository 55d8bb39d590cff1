//! The tasks that look after the connection to Redis: reach it again, listen, and poll while nothing is heard.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt as _;
use sluice_core::admission::{AdmitAsk, Draw, SettleAsk, Settlement};
use sluice_core::outcome::Verdict;
use sluice_core::policy::{Credential, Provider, Rules, TargetPolicy};
use sluice_core::target_id::TargetId;

use super::{Inner, SharedHome};
use crate::clock;
use crate::error::StoreError;
use crate::home::{Home as _, HomeKind};
use crate::redis_home::{RedisHome, ServerFacts};
use crate::store_breaker::StoreState;

/// Below the second within which an agent that hears nothing must know.
const POLL_EVERY: Duration = Duration::from_millis(700);
/// Targets read per round.
const POLLED: usize = 100;
/// Between two tries to listen, less up to half.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

impl Inner {
    pub(super) fn redis(&self) -> Option<&RedisHome> {
        match &self.shared {
            SharedHome::Redis(home) => Some(home),
            SharedHome::Embedded(_) => None,
        }
    }

    /// An exchange was not answered.
    pub(super) fn store_failed(&self, error: &StoreError) {
        if !error.kind.is_outage() {
            return;
        }
        let disconnected = error.kind.ends_connection();
        let went_down = self.breaker.lock().failed(clock::now(), disconnected, self.random.fraction());
        if went_down {
            self.outage.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(kind = %error.kind, detail = %error.detail, "the shared state is away: this agent goes on by itself");
            self.say_unreachable(error);
            self.breaker_changed.notify_waiters();
        }
    }

    /// Tries the store whenever it is down and the next try is due.
    pub(super) async fn keep_connected(self: Arc<Self>) {
        let Some(redis) = self.redis() else { return };
        let mut first = true;
        loop {
            let changed = self.breaker_changed.notified();
            let state = self.breaker.lock().state();
            match state {
                StoreState::Up => changed.await,
                StoreState::Down { at, .. } => {
                    tokio::time::sleep_until(at).await;
                    match Box::pin(self.try_store(redis)).await {
                        Ok(facts) => self.came_back(facts).await,
                        Err(error) => {
                            if first {
                                tracing::warn!(kind = %error.kind, detail = %error.detail, "the shared state can't be reached: this agent goes on by itself");
                            }
                            self.say_unreachable(&error);
                            self.breaker.lock().still_down(clock::now(), self.random.fraction());
                        }
                    }
                    first = false;
                }
            }
        }
    }

    /// A new connection, one whole admission and its settlement, of a target that is new each time: a server that
    /// answers PING and refuses scripts, or one command of theirs, is not back.
    async fn try_store(&self, redis: &RedisHome) -> Result<ServerFacts, StoreError> {
        let facts = redis.reconnect().await?;
        let nonce = self.random.nonce();
        let target = trial_target(&nonce.to_string());
        let ask = AdmitAsk {
            nonce,
            tokens: 0,
            tenant: None,
            lease: Duration::from_secs(1),
            record_ttl: Duration::from_secs(1),
            draw: Draw::new(0),
            traceparent: None,
        };
        let admitted = redis.admit(&self.tag, &target, &ask).await?;
        let settlement = SettleAsk {
            nonce,
            epoch: admitted.epoch,
            verdict: Some(Verdict::Cancelled),
            // Half a settlement: with the admission, it makes use of every command.
            tokens: Settlement::Later,
            tenant: None,
            pause: None,
            draw: Draw::new(0),
            traceparent: None,
        };
        redis.settle(&self.tag, &target, &settlement).await?;
        Ok(facts)
    }

    async fn came_back(&self, facts: ServerFacts) {
        self.breaker.lock().recovered();
        tracing::info!("the shared state rules");
        self.health.send_modify(|health| health.reached(facts));
        self.breaker_changed.notify_waiters();
        self.queue.added.notify_one();
        self.read_known(false).await;
    }

    fn say_unreachable(&self, error: &StoreError) {
        self.health.send_if_modified(|health| health.lost(error));
    }

    /// Reads the state of what this agent asked for: what it slept through.
    async fn read_known(&self, not_closed: bool) {
        let Some(redis) = self.redis() else { return };
        let targets = self.known.lock().targets(not_closed, POLLED);
        for target in targets {
            match redis.view(&target).await {
                Ok(view) => self.note_view(&target, &view, HomeKind::Shared),
                Err(error) => return self.store_failed(&error),
            }
        }
    }

    /// Listens for the transitions that other agents make.
    pub(super) async fn keep_listening(self: Arc<Self>) {
        let Some(redis) = self.redis() else { return };
        loop {
            let mut health = self.health.subscribe();
            if health.wait_for(|health| health.reachable).await.is_err() {
                return;
            }
            if let Err(error) = self.listen(redis).await {
                tracing::debug!(kind = %error.kind, detail = %error.detail, "transitions are not heard");
            }
            self.health.send_if_modified(|health| std::mem::replace(&mut health.subscribed, false));
            tokio::time::sleep(LISTEN_AGAIN.saturating_sub(self.random.up_to(LISTEN_AGAIN / 2))).await;
        }
    }

    async fn listen(&self, redis: &RedisHome) -> Result<(), StoreError> {
        let mut pubsub = redis.subscribe().await?;
        self.health.send_modify(|health| health.subscribed = true);
        // What was published before the subscription was not heard.
        self.read_known(false).await;
        let mut messages = pubsub.on_message();
        while let Some(message) = messages.next().await {
            if let Ok(payload) = message.get_payload::<String>() {
                self.hear(&payload);
            }
        }
        Ok(())
    }

    /// While nothing is heard, what is not closed is read: closed targets are asked for by every exchange.
    pub(super) async fn poll_unheard(self: Arc<Self>) {
        loop {
            tokio::time::sleep(POLL_EVERY.saturating_sub(self.random.up_to(POLL_EVERY / 4))).await;
            let unheard = {
                let health = self.health.borrow();
                health.reachable && !health.subscribed
            };
            if unheard {
                self.read_known(true).await;
            }
        }
    }
}

/// What trials ask for: a target that no route has, with the built-in rules.
pub(crate) fn trial_target(name: &str) -> TargetPolicy {
    TargetPolicy {
        name: "trial".into(),
        id: TargetId::of("", "trial", "", name),
        provider: Provider::OpenAi,
        endpoint: "".into(),
        model: None,
        region: "".into(),
        credential: Credential::None,
        priority: 0,
        weight: 0,
        price: None,
        rules: Rules::default(),
    }
}
