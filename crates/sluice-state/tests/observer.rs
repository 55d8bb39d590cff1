//! Looking at the shared state without taking part in it.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::sync::Arc;

use sluice_core::admission::{BreakerState, Nonce, TransitionReason};
use sluice_core::outcome::Verdict;
use sluice_core::policy::{Rules, TargetPolicy};
use sluice_state::{Observer, Store};
use sluice_testkit::RedisServer;
use support::redis::{LONG, config, connected, job};
use support::{admit_ask, target};

async fn health(observer: &Observer, reached: impl FnMut(&sluice_state::StoreHealth) -> bool) {
    let mut health = observer.health();
    let seen = tokio::time::timeout(LONG, health.wait_for(reached)).await;
    assert!(seen.is_ok(), "waited in vain: {:?}", observer.health().borrow());
}

/// Fails until the breaker opens.
async fn trip(store: &Store, target: &Arc<TargetPolicy>) {
    for nonce in 1..=30_u128 {
        let admission = store.admit(target, admit_ask(Nonce(nonce), 1)).await.unwrap();
        if !admission.reply.answer.granted() {
            return;
        }
        store.settle(job(target, &admission, Verdict::Failure, 1));
        assert_eq!(store.drain(LONG).await, 0);
    }
    panic!("it never opens");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_hears_transitions_of_targets_that_nobody_named_and_reads_what_they_led_to() {
    let mut server = RedisServer::start().unwrap();
    let (observer, mut heard) = Observer::start(&config(&server.url())).unwrap();
    health(&observer, |health| health.reachable && health.subscribed).await;
    let store = connected(&server.url(), "agent").await;
    let target = Arc::new(target("seen", Rules::default()));
    let writes = server.calls("hset").unwrap();
    assert_eq!(observer.view(&target).await.unwrap().state, BreakerState::Closed);
    assert_eq!(server.calls("hset").unwrap(), writes, "looking writes nothing");

    trip(&store, &target).await;
    let told = tokio::time::timeout(LONG, heard.recv()).await.unwrap().unwrap();
    assert_eq!((&told.target, told.transition.to), (&target.id, BreakerState::Open));
    assert_eq!(told.transition.reason, TransitionReason::FailureRate);
    let view = observer.view(&target).await.unwrap();
    assert_eq!((view.state, view.epoch), (BreakerState::Open, told.transition.epoch));
    assert!(!view.open_for.is_zero() && view.open_for <= told.open_for);

    server.kill();
    health(&observer, |health| !health.reachable && health.error.is_some()).await;
    assert!(observer.view(&target).await.is_err());
    server.restart().unwrap();
    health(&observer, |health| health.reachable && health.subscribed && health.error.is_none()).await;
    assert_eq!(observer.view(&target).await.unwrap().state, BreakerState::Closed, "it lost its memory");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_is_noticed() {
    let server = RedisServer::start().unwrap();
    let quick = support::redis::deadlines(&server.url(), std::time::Duration::from_secs(1));
    let (observer, _heard) = Observer::start(&quick).unwrap();
    health(&observer, |health| health.reachable).await;
    server.pause().unwrap();
    health(&observer, |health| !health.reachable).await;
    server.resume().unwrap();
    health(&observer, |health| health.reachable).await;
}
