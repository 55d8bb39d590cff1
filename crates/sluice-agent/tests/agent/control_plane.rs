//! The control plane over TLS: what an agent needs to reach it may come later, and may change while it runs.

use std::time::Duration;

use sluice_core::admission::BreakerState;
use sluice_policy::service::Settings;
use sluice_testkit::tls::TestCertificates;

use crate::harness::plane::{Mounts, Plane, manifests};
use crate::harness::{PATIENCE, World, chat, message, provider};

fn certificates() -> TestCertificates {
    TestCertificates::generate().unwrap()
}

/// All that the agent needs is there.
async fn world() -> (Mounts, TestCertificates, Plane, World, sluice_provider::Provider) {
    let (mounts, certificates) = (Mounts::new(), certificates());
    let primary = provider("{}").await;
    let plane = Plane::start(&certificates, "one").await;
    plane.apply(&manifests(&primary.openai_url(), "sk-1"));
    mounts.put("ca.crt", &certificates.ca_pem);
    mounts.put("token", "one\n");
    let world = World::following(mounts.control_plane(plane.address), |_| {}).await;
    world.until_readyz(200, "ok").await;
    (mounts, certificates, plane, world, primary)
}

#[tokio::test]
async fn policies_come_over_tls_for_a_bearer_token() {
    let (_mounts, _, plane, world, primary) = world().await;
    plane.until_in_sync("chat").await;
    assert_eq!(world.chat().await.status, 200);
    assert_eq!(
        primary.calls()[0].header("authorization").unwrap(),
        sluice_provider::fingerprint("Bearer sk-1")
    );
    assert_eq!(*plane.tokens.seen.lock(), ["Bearer one"]);
    assert!(world.state().await.control_plane.connected);
    assert_eq!(world.metric("sluice_policy_connected"), 1);
}

#[tokio::test]
async fn until_the_authorities_come_probes_and_applications_hear_what_is_missing() {
    let (mounts, certificates) = (Mounts::new(), certificates());
    let primary = provider("{}").await;
    let plane = Plane::start(&certificates, "one").await;
    plane.apply(&manifests(&primary.openai_url(), "sk-1"));
    mounts.put("token", "one");
    let world = World::following(mounts.control_plane(plane.address), |_| {}).await;
    world.until_readyz(503, "SLUICE_CONTROL_PLANE_CA").await;
    let (_, said) = world.readyz().await;
    assert!(said.contains(mounts.path("ca.crt").to_str().unwrap()) && said.contains("waited for"), "{said}");

    // What an application's first calls get: its SDK comes back by itself.
    for (path, body, kind) in [
        ("/v1/chat/completions", chat(true), "server_error"),
        ("/v1/messages", message(false), "overloaded_error"),
    ] {
        let answer = world.ask(path, &[], &body).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status.as_u16(), error["type"].as_str()), (503, Some(kind)), "{path}");
        assert!(answer.text().contains("no_policy"), "{}", answer.text());
        assert!(answer.header("retry-after").is_some() && answer.header("x-should-retry").is_none());
    }

    // A file that is no certificate yet is told, and waited out too.
    mounts.put("ca.crt", "");
    world.until_readyz(503, "has no certificate").await;
    mounts.put("ca.crt", &certificates.ca_pem);
    world.until_readyz(200, "ok").await;
    assert_eq!(world.chat().await.status, 200);
    assert_eq!(*plane.tokens.seen.lock(), ["Bearer one"], "no token went anywhere before");
}

#[tokio::test]
async fn a_rotated_authority_is_used_without_a_restart() {
    let (mounts, first, plane, world, primary) = world().await;
    let (address, second) = (plane.address, certificates());
    plane.stop().await;
    let plane = Plane::start_at(address, &second, "one", Settings::default()).await;
    plane.apply(&manifests(&primary.openai_url(), "sk-2"));
    world
        .until("the new authority is not trusted", |state| {
            state.control_plane.reason.as_ref().is_some_and(|reason| reason.contains("certificate"))
        })
        .await;
    assert_eq!(world.metric("sluice_policy_connected"), 0);
    assert!(plane.tokens.seen.lock().is_empty(), "no token before the server is known");
    assert_eq!(
        (world.readyz().await.0, world.chat().await.status.as_u16()),
        (200, 200),
        "the last good stay"
    );

    mounts.put("ca.crt", &format!("{}{}", first.ca_pem, second.ca_pem));
    plane.until_in_sync("chat").await;
    assert_eq!(world.chat().await.status, 200);
    let used = primary.calls().last().unwrap().header("authorization").unwrap().to_owned();
    assert_eq!(used, sluice_provider::fingerprint("Bearer sk-2"));
}

#[tokio::test]
async fn a_renewed_token_is_used_and_a_refused_one_is_told() {
    let (mounts, certificates, plane, world, primary) = world().await;
    let address = plane.address;
    plane.stop().await;
    let plane = Plane::start_at(address, &certificates, "two", Settings::default()).await;
    plane.apply(&manifests(&primary.openai_url(), "sk-1"));
    let refused = world
        .until("refused", |state| {
            state.control_plane.reason.as_ref().is_some_and(|reason| reason.contains("Unauthenticated"))
        })
        .await;
    let said = refused.control_plane.reason.unwrap();
    assert!(said.contains("send a token of audience sluice") && !said.contains("one"), "{said}");
    assert_eq!(
        (world.readyz().await.0, world.chat().await.status.as_u16()),
        (200, 200),
        "the last good stay"
    );

    mounts.put("token", "two");
    plane.until_in_sync("chat").await;
    let seen = plane.tokens.seen.lock().clone();
    assert!(seen.len() <= 4, "a refused token is not tried over and over: {seen:?}");
    assert_eq!((seen.first().unwrap().as_str(), seen.last().unwrap().as_str()), ("Bearer one", "Bearer two"));
    assert!(world.state().await.control_plane.connected);
}

#[tokio::test]
async fn recycled_streams_are_no_outage() {
    let (mounts, certificates) = (Mounts::new(), certificates());
    let primary = provider("{}").await;
    let settings = Settings { stream_life: Duration::from_millis(50), ..Settings::default() };
    let plane = Plane::start_at("127.0.0.1:0".parse().unwrap(), &certificates, "one", settings).await;
    plane.apply(&manifests(&primary.openai_url(), "sk-1"));
    mounts.put("ca.crt", &certificates.ca_pem);
    mounts.put("token", "one");
    let world = World::following(mounts.control_plane(plane.address), |_| {}).await;
    world.until_readyz(200, "ok").await;
    let wait = async {
        while plane.tokens.seen.lock().len() < 4 {
            let state = world.state().await.control_plane;
            assert!(state.connected && state.reason.is_none(), "{state:?}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap();
    assert_eq!(world.chat().await.status, 200);
}

/// Of a transition one agent hears: one that it makes while it has no stream is told on the next.
#[tokio::test]
async fn what_breakers_do_while_the_control_plane_is_away_is_told_when_it_is_back() {
    let (_mounts, certificates, plane, world, primary) = world().await;
    let address = plane.address;
    plane.stop().await;
    primary.set(sluice_provider::Scenario::from_yaml("default: {status: 500}").unwrap());
    while world.state().await.routes[0].targets[0].breaker.state != "open" {
        world.chat().await;
    }
    // It is back, and has nothing to say yet: what it is told of then it could not place.
    let mut plane = Plane::start_at(address, &certificates, "one", Settings::default()).await;
    world.until("connected", |state| state.control_plane.connected).await;
    plane.apply(&manifests(&primary.openai_url(), "sk-1"));
    let told = tokio::time::timeout(PATIENCE, plane.transitions.recv()).await.unwrap().unwrap();
    assert_eq!((told.transition.from, told.transition.to), (BreakerState::Closed, BreakerState::Open));
    // The aggregates come too, though nothing has changed since.
    let wait = async {
        while plane.fleet.breakers().is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap();
}
