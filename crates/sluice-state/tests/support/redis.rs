//! A store on a real Redis.

use std::sync::Arc;
use std::time::Duration;

use sluice_core::admission::{Draw, Settlement};
use sluice_core::outcome::Verdict;
use sluice_core::policy::TargetPolicy;
use sluice_state::clock::SystemClock;
use sluice_state::{Admission, RedisConfig, SettleJob, Shared, Store, StoreConfig};

/// Far above anything that is awaited here.
pub const LONG: Duration = Duration::from_secs(30);

/// With deadlines that a busy machine does not miss: tests of deadlines set their own.
pub fn config(url: &str) -> RedisConfig {
    deadlines(url, Duration::from_secs(10))
}

pub fn deadlines(url: &str, deadline: Duration) -> RedisConfig {
    RedisConfig {
        url: url.to_owned(),
        admit_deadline: deadline,
        settle_deadline: deadline,
        ..RedisConfig::default()
    }
}

pub fn store_with(redis: RedisConfig, agent: &str) -> Store {
    Store::new(StoreConfig {
        shared: Shared::Redis(redis),
        agent: agent.to_owned(),
        seed: agent.bytes().map(u64::from).sum(),
        clock: Arc::new(SystemClock::start()),
    })
    .unwrap()
}

/// A store that has reached its Redis.
pub async fn connected(url: &str, agent: &str) -> Store {
    connected_with(config(url), agent).await
}

pub async fn connected_with(redis: RedisConfig, agent: &str) -> Store {
    let store = store_with(redis, agent);
    assert!(store.connected(LONG).await, "{:?}", store.health().borrow());
    store
}

pub fn job(target: &Arc<TargetPolicy>, admission: &Admission, verdict: Verdict, used: u64) -> SettleJob {
    SettleJob {
        target: Arc::clone(target),
        admission: admission.ticket(),
        tenant: None,
        verdict: Some(verdict),
        tokens: Settlement::Used(used),
        pause: None,
        draw: Draw::new(1 << 30),
        traceparent: None,
        told: None,
    }
}

/// Waits for something that happens by itself.
pub async fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let waiting = async {
        while !is_true() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(LONG, waiting).await.is_ok(), "waited in vain for {what}");
}
