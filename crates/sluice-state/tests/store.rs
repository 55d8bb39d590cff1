//! The facade over an embedded home, under a paused clock; and what it costs Redis.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use sluice_core::admission::{AdmitAnswer, BreakerState, Draw, Settlement};
use sluice_core::outcome::Verdict;
use sluice_core::policy::{Rules, TargetPolicy};
use sluice_state::clock::SystemClock;
use sluice_state::{EmbeddedHome, SettleJob, Shared, Store, StoreConfig, Told};
use sluice_testkit::{CountingProxy, RedisServer};
use support::redis::{LONG, connected, job};
use support::{Asks, quota, target, with_quota};

const SECOND: Duration = Duration::from_secs(1);

fn embedded(home: &Arc<EmbeddedHome>, agent: &str) -> Store {
    Store::new(StoreConfig {
        shared: Shared::Embedded(Arc::clone(home)),
        agent: agent.to_owned(),
        seed: 7,
        clock: Arc::new(SystemClock::start()),
    })
    .unwrap()
}

/// Worked case 2: one call a second, three slow ones in a row trip it, ten seconds of cool-down, one probe.
#[tokio::test(start_paused = true)]
async fn the_brown_out_trace() {
    const TTFT: [f64; 18] =
        [0.4, 0.5, 9.0, 12.0, 15.0, 14.0, 13.0, 11.0, 10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 0.5, 0.4, 0.4];
    let mut rules = Rules::default();
    let breaker = &mut rules.breaker.rules;
    breaker.consecutive_failures = 3;
    breaker.cooldown.base = 10 * SECOND;
    breaker.cooldown.jitter_percent = 0;
    breaker.cooldown.growth_percent = 100;
    breaker.probes.successes = 1;
    breaker.ramp.duration = Duration::ZERO;
    let target = Arc::new(target("primary", rules));
    let store = embedded(&Arc::new(EmbeddedHome::new().unwrap()), "agent");
    let mut asks = Asks::new();
    let mut reached = Vec::new();
    for t in 1..=26_usize {
        tokio::time::advance(SECOND).await;
        let admission = store.admit(&target, asks.admit(1)).await.unwrap();
        if admission.reply.answer.granted() {
            reached.push(t);
            let ttft = TTFT.get(t - 1).copied().unwrap_or(0.4);
            let verdict = if ttft > 3.0 { Verdict::Failure } else { Verdict::Success };
            store.settle(job(&target, &admission, verdict, 1));
        }
    }
    assert_eq!(reached, [1, 2, 3, 4, 5, 15, 25, 26]);
    assert_eq!(store.known(&target.id).unwrap().state, BreakerState::Closed);
}

/// Worked case 6: three failures at night are no outage.
#[tokio::test(start_paused = true)]
async fn a_few_failures_at_night_open_nothing() {
    let store = embedded(&Arc::new(EmbeddedHome::new().unwrap()), "agent");
    let target = Arc::new(target("night", Rules::default()));
    let mut asks = Asks::new();
    for _ in 0..3 {
        let admission = store.admit(&target, asks.admit(1)).await.unwrap();
        store.settle(job(&target, &admission, Verdict::Failure, 1));
    }
    assert_eq!(store.known(&target.id).unwrap().state, BreakerState::Closed);
}

async fn trip(store: &Store, target: &Arc<TargetPolicy>, asks: &mut Asks) {
    for _ in 0..10 {
        let admission = store.admit(target, asks.admit(1)).await.unwrap();
        let job = SettleJob {
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
            ..job(target, &admission, Verdict::Failure, 1)
        };
        store.settle(job);
    }
}

#[tokio::test(start_paused = true)]
async fn a_transition_is_told_once_to_each_agent_with_its_opener() {
    let home = Arc::new(EmbeddedHome::new().unwrap());
    let (one, other) = (embedded(&home, "one"), embedded(&home, "other"));
    let target = Arc::new(target("told", Rules::default()));
    let mut asks = Asks::new();
    other.admit(&target, asks.admit(1)).await.unwrap();
    let (mut made, mut heard) = (one.transitions(), other.transitions());
    trip(&one, &target, &mut asks).await;
    let (made_event, heard_event) = (made.recv().await.unwrap(), heard.recv().await.unwrap());
    assert!(made_event.made_here && !heard_event.made_here);
    assert_eq!(made_event.transition, heard_event.transition);
    assert_eq!(heard_event.transition.counts.failures, 10);
    assert!(heard_event.opened_by.as_deref().unwrap().starts_with("00-0af7"));
    tokio::time::sleep(SECOND).await;
    assert!(made.try_recv().is_err() && heard.try_recv().is_err(), "once");
    // The other agent refuses without asking, and names the opener.
    let refused = other.admit(&target, asks.admit(1)).await.unwrap().reply;
    assert_eq!(refused.answer, AdmitAnswer::Open);
    assert_eq!(refused.opened_by, heard_event.opened_by);
    assert_eq!(other.stats().skipped, 1);
}

/// The caller learns at its settlement what it caused, exactly once over all that settle.
#[tokio::test(start_paused = true)]
async fn a_settlement_is_told_its_reply() {
    let store = embedded(&Arc::new(EmbeddedHome::new().unwrap()), "agent");
    let target = Arc::new(target("replies", Rules::default()));
    let mut asks = Asks::new();
    let replies = Arc::new(parking_lot::Mutex::new(Vec::new()));
    for _ in 0..10 {
        let admission = store.admit(&target, asks.admit(1)).await.unwrap();
        let told = replies.clone();
        let told = Some(Told::new(move |reply| told.lock().push(reply)));
        store.settle(SettleJob { told, ..job(&target, &admission, Verdict::Failure, 1) });
    }
    let replies = replies.lock();
    assert_eq!(replies.len(), 10);
    let transitions: Vec<_> = replies.iter().filter_map(|reply| reply.transition.clone()).collect();
    assert_eq!(transitions.len(), 1);
    assert_eq!((transitions[0].to, transitions[0].counts.failures), (BreakerState::Open, 10));
    assert!(replies[9].transition.is_some(), "by the call that caused it");
}

#[tokio::test(start_paused = true)]
async fn each_agent_asks_a_little_later_than_the_breakers_own_time() {
    let home = Arc::new(EmbeddedHome::new().unwrap());
    let store = embedded(&home, "one");
    let target = Arc::new(target("later", Rules::default()));
    let mut asks = Asks::new();
    trip(&store, &target, &mut asks).await;
    let open_for = store.view(&target).await.unwrap().open_for;
    let known = store.known(&target.id).unwrap();
    assert!(known.open_for >= open_for && known.open_for <= open_for + 2 * SECOND, "{known:?}, {open_for:?}");
    tokio::time::advance(open_for).await;
    assert!(store.known(&target.id).unwrap().awaiting_probe);
    tokio::time::advance(2 * SECOND).await;
    assert_eq!(store.admit(&target, asks.admit(1)).await.unwrap().reply.answer, AdmitAnswer::Probe);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exchange_costs_redis_one_admission_and_one_settlement() {
    const EXCHANGES: u64 = 1_000;
    let server = RedisServer::start().unwrap();
    let proxy = CountingProxy::start(server.port()).await.unwrap();
    let store = connected(&proxy.url(), "one").await;
    support::redis::until("the subscription", || store.health().borrow().subscribed).await;
    let target =
        Arc::new(target("cost", with_quota(Rules::default(), quota(Some(100_000_000), Some(1_000_000)))));
    let mut asks = Asks::new();
    server.command(&["CONFIG", "RESETSTAT"]).unwrap();
    proxy.reset();
    for _ in 0..EXCHANGES {
        let admission = store.admit(&target, asks.admit(100)).await.unwrap();
        assert!(admission.reply.answer.granted());
        store.settle(SettleJob {
            draw: Draw::new(0),
            tokens: Settlement::Used(50),
            ..job(&target, &admission, Verdict::Success, 0)
        });
    }
    assert_eq!(store.drain(LONG).await, 0);
    assert_eq!(server.calls("evalsha").unwrap(), 2 * EXCHANGES);
    let counts = proxy.counts();
    assert_eq!(counts.get("EVALSHA"), Some(&(2 * EXCHANGES)));
    let others: u64 = counts.iter().filter(|(name, _)| *name != "EVALSHA").map(|(_, count)| count).sum();
    assert!(others <= 5, "{counts:?}");
}
