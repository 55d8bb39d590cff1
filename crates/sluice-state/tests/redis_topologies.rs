//! TLS, rights, a cluster, Sentinels: every way to reach Redis, and clear reasons when it can't be.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::collections::HashSet;
use std::sync::Arc;

use sluice_core::admission::{AdmitAsk, BreakerState, Nonce};
use sluice_core::outcome::Verdict;
use sluice_core::policy::{Rules, TargetPolicy};
use sluice_state::acl::{AclMode, acl_rule};
use sluice_state::{HomeKind, RedisConfig, Store, StoreErrorKind};
use sluice_testkit::tls::TestCertificates;
use sluice_testkit::{RedisCluster, RedisOptions, RedisSentinel, RedisServer};
use support::redis::{LONG, config, connected, job, store_with, until};
use support::{admit_ask, quota, target, with_quota};

fn a_target(name: &str) -> Arc<TargetPolicy> {
    Arc::new(target(name, with_quota(Rules::default(), quota(Some(1_000_000), None))))
}

fn ask(nonce: u128) -> AdmitAsk {
    admit_ask(Nonce(nonce), 100)
}

/// One exchange that goes all the way, by the shared home alone.
async fn exchange(store: &Store, target: &Arc<TargetPolicy>, nonce: u128) {
    let admission = store.admit(target, ask(nonce)).await.unwrap();
    assert_eq!((admission.home, admission.degraded), (HomeKind::Shared, None));
    store.settle(job(target, &admission, Verdict::Success, 10));
    assert_eq!(store.drain(LONG).await, 0);
    assert_eq!(store.stats().settle_errors, 0);
}

/// Why a store that can't connect says it can't; it keeps serving all the same.
async fn refused(redis: RedisConfig, why: &str) -> StoreErrorKind {
    let store = store_with(redis, &format!("refused {why}"));
    let target = a_target("refused");
    until(&format!("a reason {why}"), || store.health().borrow().error.is_some()).await;
    let admission = store.admit(&target, ask(1)).await.unwrap();
    assert_eq!(admission.home, HomeKind::Local);
    let health = store.health().borrow().clone();
    health.error.unwrap().0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_verified_unless_it_is_said_not_to_be() {
    let certificates = TestCertificates::generate().unwrap();
    let ca = certificates.ca_pem.clone().into_bytes();
    let options = RedisOptions { tls: Some(certificates), ..RedisOptions::default() };
    let server = RedisServer::start_with(&options).unwrap();
    let tls = config(&format!("rediss://localhost:{}", server.tls_port()));
    let verified = store_with(RedisConfig { ca_pem: Some(ca), ..tls.clone() }, "verified");
    assert!(verified.connected(LONG).await, "{:?}", verified.health().borrow());
    exchange(&verified, &a_target("tls"), 1).await;
    let unverified = store_with(RedisConfig { insecure_skip_verify: true, ..tls.clone() }, "unverified");
    assert!(unverified.connected(LONG).await, "{:?}", unverified.health().borrow());
    let other = TestCertificates::generate().unwrap().ca_pem.into_bytes();
    assert_eq!(
        refused(RedisConfig { ca_pem: Some(other), ..tls.clone() }, "with another CA").await,
        StoreErrorKind::Tls
    );
    assert_eq!(
        refused(RedisConfig { ca_pem: None, ..tls }, "with the system's CAs").await,
        StoreErrorKind::Tls
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_least_rights_are_enough_and_none_of_them_is_too_many() {
    let server = RedisServer::start().unwrap();
    let rule = acl_rule(AclMode::Standalone);
    set_user(&server, &rule);
    let store = store_with(as_agent(&server.url()), "agent");
    assert!(store.connected(LONG).await, "{:?}", store.health().borrow());
    exchange(&store, &a_target("rights"), 1).await;
    until("the subscription", || store.health().borrow().subscribed).await;
    assert_eq!(denied(&server), Vec::<String>::new());
    for right in ["+evalsha", "+script|load", "+time", "+get", "+set", "+hmget", "+hset", "+pexpire"] {
        let less: Vec<&str> = rule.split(' ').filter(|word| *word != right).collect();
        set_user(&server, &less.join(" "));
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
        assert_eq!(
            refused(as_agent(&server.url()), &format!("without {right}")).await,
            StoreErrorKind::NoPerm,
            "without {right}"
        );
    }
    set_user(&server, &rule.replace("~sluice:1:*", "~other:*"));
    assert_eq!(refused(as_agent(&server.url()), "without the keys").await, StoreErrorKind::NoPerm);
    let wrong = RedisConfig { password: Some("wrong".into()), ..as_agent(&server.url()) };
    assert_eq!(refused(wrong, "with a wrong password").await, StoreErrorKind::Auth);
}

/// What a server denied, but for a name that the client library offers (see `acl.rs`).
fn denied(server: &RedisServer) -> Vec<String> {
    let log = server.command(&["ACL", "LOG"]).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    let objects = lines.windows(2).filter(|pair| pair[0] == "object").map(|pair| pair[1].to_owned());
    objects.filter(|object| object != "client|setinfo").collect()
}

fn set_user(server: &RedisServer, rule: &str) {
    let mut words = vec!["ACL", "SETUSER", "agent", "reset", "on", ">secret"];
    words.extend(rule.split(' '));
    server.command(&words).unwrap();
}

fn as_agent(url: &str) -> RedisConfig {
    RedisConfig { username: Some("agent".into()), password: Some("secret".into()), ..config(url) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_has_ended_is_refused() {
    let certificates = TestCertificates::expired().unwrap();
    let ca = certificates.ca_pem.clone().into_bytes();
    let options = RedisOptions { tls: Some(certificates), ..RedisOptions::default() };
    let server = RedisServer::start_with(&options).unwrap();
    let tls = config(&format!("rediss://localhost:{}", server.tls_port()));
    let error = refused(RedisConfig { ca_pem: Some(ca), ..tls }, "with a certificate of the past").await;
    assert_eq!(error, StoreErrorKind::Tls);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_and_sentinels_serve_over_tls_and_only_to_those_who_know_their_ca() {
    let certificates = TestCertificates::generate().unwrap();
    let cluster = RedisCluster::start_with(Some(&certificates)).unwrap();
    let group = RedisSentinel::start_with(Some(&certificates)).unwrap();
    for (kind, url) in [("cluster", cluster.url()), ("sentinel", group.url())] {
        let known = RedisConfig { ca_pem: Some(certificates.ca_pem.clone().into_bytes()), ..config(&url) };
        let store = store_with(known.clone(), kind);
        assert!(store.connected(LONG).await, "{kind}: {:?}", store.health().borrow());
        for nonce in 0..10 {
            exchange(&store, &a_target(&format!("tls-{kind}-{nonce}")), nonce).await;
        }
        until("the subscription", || store.health().borrow().subscribed).await;
        let other = TestCertificates::generate().unwrap().ca_pem.into_bytes();
        let stranger = RedisConfig { ca_pem: Some(other), ..known };
        assert_eq!(refused(stranger, &format!("{kind}, another CA")).await, StoreErrorKind::Tls, "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_three_serves_every_target_with_the_least_rights() {
    let cluster = RedisCluster::start().unwrap();
    for node in &cluster.nodes {
        set_user(node, &acl_rule(AclMode::Cluster));
    }
    let store = store_with(as_agent(&cluster.url()), "agent");
    assert!(store.connected(LONG).await, "{:?}", store.health().borrow());
    let mut slots = HashSet::new();
    for index in 0..20 {
        let target = a_target(&format!("cluster-{index}"));
        exchange(&store, &target, index).await;
        let key = sluice_state::script::Keys::target(target.id.as_str());
        let slot: usize = cluster.nodes[0].command(&["CLUSTER", "KEYSLOT", &key]).unwrap().parse().unwrap();
        slots.insert(slot * 3 / 16_384);
    }
    assert_eq!(slots.len(), 3, "all three nodes have some");
    // A transition that one agent makes is heard by another.
    let other = store_with(as_agent(&cluster.url()), "other");
    assert!(other.connected(LONG).await);
    hears_of_a_trip(&store, &other).await;
    for node in &cluster.nodes {
        assert_eq!(denied(node), Vec::<String>::new());
        node.command(&["SCRIPT", "FLUSH"]).unwrap();
    }
    exchange(&store, &a_target("cluster-0"), 1_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_name_the_primary_before_and_after_a_failover() {
    let mut group = RedisSentinel::start().unwrap();
    for server in [&group.primary, &group.replica] {
        set_user(server, &acl_rule(AclMode::Sentinel));
    }
    let store = store_with(as_agent(&group.url()), "agent");
    assert!(store.connected(LONG).await, "{:?}", store.health().borrow());
    let target = a_target("sentinel");
    exchange(&store, &target, 1).await;
    assert_eq!(denied(&group.primary), Vec::<String>::new());
    group.primary.kill();
    let mut nonce = 10;
    let failed_over = async {
        loop {
            nonce += 1;
            if store.admit(&target, ask(nonce)).await.unwrap().home == HomeKind::Shared {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LONG, failed_over).await.unwrap();
    assert!(group.replica.command(&["INFO", "replication"]).unwrap().contains("role:master"));
}

/// Ten failures by one agent; the other one hears of it.
async fn hears_of_a_trip(one: &Store, other: &Store) {
    let target = a_target("heard");
    other.admit(&target, ask(500)).await.unwrap();
    until("the subscription", || other.health().borrow().subscribed).await;
    let mut transitions = other.transitions();
    let mut own = one.transitions();
    for nonce in 600..610 {
        let admission = one.admit(&target, ask(nonce)).await.unwrap();
        one.settle(job(&target, &admission, Verdict::Failure, 0));
    }
    let heard = tokio::time::timeout(LONG, transitions.recv()).await.unwrap().unwrap();
    assert_eq!((heard.transition.to, heard.made_here), (BreakerState::Open, false));
    assert_eq!(other.known(&target.id).unwrap().state, BreakerState::Open);
    let made = tokio::time::timeout(LONG, own.recv()).await.unwrap().unwrap();
    assert!(made.made_here);
    assert_eq!(made.transition, heard.transition);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_may_evict_breakers_is_said_to() {
    let options =
        RedisOptions { config: vec!["maxmemory-policy volatile-lru".to_owned()], ..RedisOptions::default() };
    let server = RedisServer::start_with(&options).unwrap();
    let store = connected(&server.url(), "a").await;
    assert_eq!(store.health().borrow().unsafe_eviction.as_deref(), Some("volatile-lru"));
    let server = RedisServer::start().unwrap();
    let store = connected(&server.url(), "a").await;
    assert_eq!(store.health().borrow().unsafe_eviction, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_hear_of_a_trip_and_learn_by_reading_when_they_can_not_hear() {
    let server = RedisServer::start().unwrap();
    let (one, other) = (connected(&server.url(), "one").await, connected(&server.url(), "other").await);
    hears_of_a_trip(&one, &other).await;
    // Without the right to listen: what is not closed is read.
    set_user(&server, &acl_rule(AclMode::Standalone).replace(" +subscribe", ""));
    let deaf = store_with(as_agent(&server.url()), "deaf");
    assert!(deaf.connected(LONG).await);
    let target = a_target("heard");
    let mut short = (*target).clone();
    short.name = "short".into();
    deaf.admit(&target, ask(900)).await.unwrap();
    assert_eq!(deaf.known(&target.id).unwrap().state, BreakerState::Open);
    let key = sluice_state::script::Keys::target(target.id.as_str());
    // Somebody else's probes close it: as if its time were over.
    let state = server.command(&["HGET", &key, "k"]).unwrap();
    let mut words: Vec<String> = state.split(' ').map(str::to_owned).collect();
    // The epoch, and until when it is open.
    words[2].push('1');
    words[8].push('9');
    server.command(&["HSET", &key, "k", &words.join(" ")]).unwrap();
    let before = deaf.known(&target.id).unwrap().epoch;
    until("the poll", || deaf.known(&target.id).unwrap().epoch != before).await;
    assert!(!deaf.health().borrow().subscribed);
}
