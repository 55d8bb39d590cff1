//! Everything that Redis can do to an agent. No exchange fails because of it unless its policy says so.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use sluice_core::admission::{AdmitAnswer, AdmitAsk, BreakerState, Nonce};
use sluice_core::outcome::Verdict;
use sluice_core::policy::{OnUnreachable, Rules, TargetPolicy};
use sluice_state::{HomeKind, Store, StoreErrorKind};
use sluice_testkit::{CountingProxy, ProxyMode, RedisOptions, RedisServer};
use support::redis::{LONG, config, connected, connected_with, deadlines, job, store_with, until};
use support::{admit_ask, quota, target, with_quota};

/// A large bucket that refills by one token a second: what is left says what was taken.
fn a_target(name: &str) -> Arc<TargetPolicy> {
    let mut limits = quota(Some(60), Some(100_000));
    limits.burst_tokens = 1_000_000;
    Arc::new(target(name, with_quota(Rules::default(), limits)))
}

fn ask(nonce: u128) -> AdmitAsk {
    admit_ask(Nonce(nonce), 100)
}

async fn down(store: &Store) {
    let mut health = store.health();
    tokio::time::timeout(LONG, health.wait_for(|health| !health.reachable)).await.unwrap().unwrap();
}

/// Admits until the shared home answers again.
async fn shared_again(store: &Store, target: &Arc<TargetPolicy>) {
    assert!(store.connected(LONG).await);
    let admission = store.admit(target, ask(u128::MAX)).await.unwrap();
    assert_eq!(admission.home, HomeKind::Shared);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_killed_costs_nothing_and_rules_again_when_it_is_back() {
    let mut server = RedisServer::start().unwrap();
    let store = connected(&server.url(), "a").await;
    let target = a_target("killed");
    let before = store.admit(&target, ask(1)).await.unwrap();
    assert_eq!((before.home, before.degraded), (HomeKind::Shared, None));
    server.kill();
    for nonce in 2..200 {
        let admission = store.admit(&target, ask(nonce)).await.unwrap();
        assert_eq!(admission.home, HomeKind::Local);
        assert!(admission.degraded.is_some());
        store.settle(job(&target, &admission, Verdict::Success, 10));
    }
    let stats = store.stats();
    assert!(stats.admit_errors <= 3, "later exchanges ask nothing: {stats:?}");
    // What was admitted there is settled there, when it is back.
    store.settle(job(&target, &before, Verdict::Success, 10));
    server.restart().unwrap();
    shared_again(&store, &target).await;
    assert_eq!(store.drain(LONG).await, 0);
    assert_eq!(store.stats().settles_dropped, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_redis_costs_three_exchanges_and_their_admissions_are_cancelled_later() {
    let server = RedisServer::start().unwrap();
    // Not the usual 20 ms, which a busy machine misses before anything hangs.
    let store = connected_with(deadlines(&server.url(), Duration::from_millis(500)), "a").await;
    let target = a_target("hung");
    store.admit(&target, ask(1)).await.unwrap();
    let left = |view: sluice_core::admission::TargetView| view.tokens_left.unwrap();
    assert!(left(store.view(&target).await.unwrap()) < 999_950);
    server.pause().unwrap();
    for nonce in 2..50 {
        let admission = store.admit(&target, ask(nonce)).await.unwrap();
        assert_eq!(admission.home, HomeKind::Local);
        assert_ne!(admission.nonce, Nonce(nonce), "a lost admission goes on under another nonce");
    }
    let errors = store.stats().admit_errors;
    assert!((1..=3).contains(&errors), "{errors}");
    server.resume().unwrap();
    shared_again(&store, &target).await;
    assert_eq!(store.drain(LONG).await, 0);
    // The three lost ones gave back what they took: what is left is that of nonce 1 and of the last.
    assert!(left(store.view(&target).await.unwrap()) >= 999_800);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_redis_is_cut_by_its_deadline() {
    let server = RedisServer::start().unwrap();
    let proxy = CountingProxy::start(server.port()).await.unwrap();
    let store = connected_with(deadlines(&proxy.url(), Duration::from_millis(20)), "a").await;
    let target = a_target("slow");
    proxy.set_mode(ProxyMode::Delay(Duration::from_millis(60)));
    let admission = store.admit(&target, ask(1)).await.unwrap();
    assert_eq!((admission.home, admission.degraded), (HomeKind::Local, Some(StoreErrorKind::Timeout)));
    proxy.set_mode(ProxyMode::Pass);
    assert!(store.connected(LONG).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_that_is_lost_debits_nothing_twice() {
    let server = RedisServer::start().unwrap();
    let proxy = CountingProxy::start(server.port()).await.unwrap();
    let store = connected_with(deadlines(&proxy.url(), Duration::from_millis(500)), "a").await;
    // What is known when the subscription begins is read, which would be counted below.
    until("the subscription", || store.health().borrow().subscribed).await;
    let target = a_target("lost");
    store.admit(&target, ask(1)).await.unwrap();
    proxy.set_mode(ProxyMode::DropReplies);
    proxy.reset();
    let admission = store.admit(&target, ask(2)).await.unwrap();
    assert_eq!(admission.home, HomeKind::Local);
    let sent = proxy.counts().get("EVALSHA").copied();
    assert!(
        matches!(sent, Some(1 | 2)),
        "the admission and perhaps its cancellation, nothing again: {sent:?}"
    );
    proxy.set_mode(ProxyMode::Cut);
    proxy.set_mode(ProxyMode::Pass);
    down(&store).await;
    assert!(store.connected(LONG).await);
    assert_eq!(store.drain(LONG).await, 0);
    let record = server
        .command(&["GET", &sluice_state::script::Keys::admission(target.id.as_str(), Nonce(2))])
        .unwrap();
    assert!(record.ends_with("1 1"), "both halves are settled: {record}");
    assert!(store.view(&target).await.unwrap().tokens_left.unwrap() >= 999_900);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_scripts_are_loaded_again_inside_the_call() {
    let server = RedisServer::start().unwrap();
    let store = connected(&server.url(), "a").await;
    let target = a_target("flushed");
    let mut jobs = Vec::new();
    for round in 0..5_u128 {
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
        let exchanges = (0..20).map(|n| store.admit(&target, ask(round * 100 + n)));
        for admission in futures_util::future::join_all(exchanges).await {
            let admission = admission.unwrap();
            assert_eq!(admission.home, HomeKind::Shared);
            jobs.push(job(&target, &admission, Verdict::Success, 100));
        }
    }
    for job in jobs {
        store.settle(job);
    }
    assert_eq!(store.drain(LONG).await, 0);
    let view = store.view(&target).await.unwrap();
    assert_eq!(view.counts.calls, 100);
    let stats = store.stats();
    assert!(stats.noscript >= 5 && stats.fallbacks == 0, "{stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_redis_refuses_before_anything_is_written() {
    let server = RedisServer::start().unwrap();
    let store = connected(&server.url(), "a").await;
    let target = a_target("full");
    store.admit(&target, ask(1)).await.unwrap();
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let admission = store.admit(&target, ask(2)).await.unwrap();
    assert_eq!((admission.home, admission.degraded), (HomeKind::Local, Some(StoreErrorKind::OutOfMemory)));
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    let keys = server.command(&["KEYS", "*full*"]).unwrap();
    assert!(!keys.contains(&Nonce(2).to_string()));
    assert!(store.view(&target).await.unwrap().tokens_left.unwrap() < 999_950);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_the_wrong_type_is_an_error_before_any_write() {
    let server = RedisServer::start().unwrap();
    let store = connected(&server.url(), "a").await;
    let target = a_target("typed");
    let id = target.id.as_str();
    for (key, wrong) in [
        (sluice_state::script::Keys::target(id), ["SET", "", "x"].as_slice()),
        (sluice_state::script::Keys::admission(id, Nonce(7)), &["HSET", "", "f", "v"]),
    ] {
        server.command(&["FLUSHALL"]).unwrap();
        let mut words = wrong.to_vec();
        words[1] = &key;
        server.command(&words).unwrap();
        let admission = store.admit(&target, ask(7)).await.unwrap();
        assert_eq!(
            (admission.home, admission.degraded),
            (HomeKind::Local, Some(StoreErrorKind::WrongType)),
            "{key}"
        );
        assert_eq!(server.command(&["DBSIZE"]).unwrap(), "1", "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_script_that_blocks_the_server_is_its_own_affair() {
    let server = RedisServer::start_with(&RedisOptions {
        config: vec!["busy-reply-threshold 1".to_owned()],
        ..RedisOptions::default()
    })
    .unwrap();
    let store = connected_with(deadlines(&server.url(), Duration::from_millis(200)), "a").await;
    let target = a_target("busy");
    let foreign = tokio::task::spawn_blocking({
        let url = server.url();
        move || {
            let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
            redis::cmd("EVAL").arg("while true do end").arg(0).query::<String>(&mut connection)
        }
    });
    let mut nonce = 0;
    let busy = async {
        loop {
            nonce += 1;
            let admission = store.admit(&target, ask(nonce)).await.unwrap();
            if let Some(kind @ (StoreErrorKind::Busy | StoreErrorKind::Timeout)) = admission.degraded {
                return kind;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(LONG, busy).await.unwrap();
    assert!(!foreign.is_finished(), "nobody killed it");
    server.command(&["SCRIPT", "KILL"]).unwrap();
    assert!(foreign.await.unwrap().is_err());
    shared_again(&store, &target).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demoted_primary_forces_a_new_connection() {
    let server = RedisServer::start().unwrap();
    let store = connected(&server.url(), "a").await;
    let target = a_target("demoted");
    store.admit(&target, ask(1)).await.unwrap();
    let before = store.stats().connections;
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    let admission = store.admit(&target, ask(2)).await.unwrap();
    assert_eq!((admission.home, admission.degraded), (HomeKind::Local, Some(StoreErrorKind::ReadOnly)));
    down(&store).await;
    server.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    shared_again(&store, &target).await;
    assert!(store.stats().connections > before);
    assert_eq!(
        store.known(&target.id).unwrap().state,
        BreakerState::Closed,
        "nothing of it counts against the target"
    );
}

/// Ten failures, settled.
async fn trip(store: &Store, target: &Arc<TargetPolicy>) {
    for nonce in 1_000..1_010 {
        let admission = store.admit(target, ask(nonce)).await.unwrap();
        assert!(admission.reply.answer.granted(), "{:?}", admission.reply);
        store.settle(job(target, &admission, Verdict::Failure, 0));
    }
    until("the breaker to open", || store.known(&target.id).unwrap().state == BreakerState::Open).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_breaker_stays_open_whatever_redis_forgets() {
    let server = RedisServer::start().unwrap();
    let store = connected(&server.url(), "a").await;
    let target = a_target("forgotten");
    trip(&store, &target).await;
    // A failover that lost the writes, or an eviction of everything.
    server.command(&["FLUSHALL"]).unwrap();
    assert_eq!(store.view(&target).await.unwrap().state, BreakerState::Closed, "redis has forgotten");
    let admission = store.admit(&target, ask(1)).await.unwrap();
    assert_eq!(admission.reply.answer, AdmitAnswer::Open);
    let known = store.known(&target.id).unwrap();
    assert!(known.state == BreakerState::Open && known.open_for > Duration::from_secs(15), "{known:?}");
    assert!(store.stats().skipped > 0, "nothing was asked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_own_home_begins_from_the_last_shared_state_and_its_own_trip_outlasts_the_outage() {
    let mut server = RedisServer::start().unwrap();
    let store = connected(&server.url(), "a").await;
    let (seen_open, trips_alone) = (a_target("seen-open"), a_target("trips-alone"));
    trip(&store, &seen_open).await;
    store.admit(&trips_alone, ask(1)).await.unwrap();
    server.kill();
    store.admit(&trips_alone, ask(2)).await.unwrap();
    assert_eq!(store.admit(&seen_open, ask(3)).await.unwrap().reply.answer, AdmitAnswer::Open);
    trip(&store, &trips_alone).await;
    server.restart().unwrap();
    assert!(store.connected(LONG).await);
    let admission = store.admit(&trips_alone, ask(4)).await.unwrap();
    assert_eq!(admission.reply.answer, AdmitAnswer::Open, "it stays open for this agent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fail_open_has_no_quota_and_fail_closed_refuses() {
    let mut server = RedisServer::start().unwrap();
    let store = connected(&server.url(), "a").await;
    let with = |name, policy| {
        let mut rules = with_quota(Rules::default(), quota(Some(100), None));
        rules.state_store.rules.on_unreachable = policy;
        Arc::new(target(name, rules))
    };
    let closed = with("closed", OnUnreachable::FailClosed);
    let open = with("open", OnUnreachable::FailOpen);
    let local = with("local", OnUnreachable::LocalFallback);
    store.set_agents(&local.id, 2);
    server.kill();
    // One exchange finds out.
    assert_eq!(store.admit(&open, ask(0)).await.unwrap().home, HomeKind::Local);
    down(&store).await;
    assert!(store.admit(&closed, ask(1)).await.is_err());
    for nonce in 2..10 {
        assert!(store.admit(&open, ask(nonce)).await.unwrap().reply.answer.granted());
    }
    // 100 × 0.8 ÷ 2: a full share lets one request of 100 through, into debt.
    let first = store.admit(&local, ask(20)).await.unwrap();
    assert_eq!((first.reply.answer, first.reply.tokens_left), (AdmitAnswer::Admitted, Some(-40)));
    assert_eq!(store.admit(&local, ask(21)).await.unwrap().reply.answer, AdmitAnswer::TokensExhausted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_admission_that_is_dropped_half_way_is_cancelled() {
    let server = RedisServer::start().unwrap();
    let proxy = CountingProxy::start(server.port()).await.unwrap();
    let store = connected(&proxy.url(), "a").await;
    let target = a_target("dropped");
    store.admit(&target, ask(1)).await.unwrap();
    proxy.set_mode(ProxyMode::Delay(Duration::from_millis(10)));
    let dropped = tokio::time::timeout(Duration::from_millis(2), store.admit(&target, ask(2))).await;
    assert!(dropped.is_err());
    proxy.set_mode(ProxyMode::Pass);
    assert_eq!(store.drain(LONG).await, 0);
    assert!(store.view(&target).await.unwrap().tokens_left.unwrap() >= 999_900);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_was_never_there_is_said_and_served_around() {
    let server = RedisServer::start().unwrap();
    let port = server.port();
    drop(server);
    let store = store_with(config(&format!("redis://127.0.0.1:{port}")), "a");
    let target = a_target("never");
    assert_eq!(store.admit(&target, ask(1)).await.unwrap().home, HomeKind::Local);
    until("the reason", || matches!(store.health().borrow().error, Some((StoreErrorKind::Connect, _)))).await;
}
