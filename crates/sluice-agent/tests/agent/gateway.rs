//! A gateway and its clients: who is served, what a stranger learns, and where a client's key goes (nowhere).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use sluice_agent::AgentConfig;
use sluice_agent::client_auth::ClientAuth;
use sluice_agent::tls::{ListenerTls, TlsFiles};
use sluice_core::policy::{Credential, WireFormat};
use sluice_provider::{Provider, fingerprint};
use sluice_state::EmbeddedHome;
use sluice_state::store::Shared;
use sluice_testkit::tls::TestCertificates;

use crate::harness::api_server::{FakeApiServer, unknown_token};
use crate::harness::plane::Mounts;
use crate::harness::{Answer, PATIENCE, World, chat, message, policy_set, provider, read, route, target};

const KEY: &str = "canary-key-of-a-client";

/// A gateway before one provider, for both formats.
async fn gateway(primary: &Provider, credential: Credential, tune: impl FnOnce(&mut AgentConfig)) -> World {
    let mut openai = target("primary", primary, 0);
    openai.credential = credential;
    let mut anthropic = openai.clone();
    anthropic.provider = sluice_core::policy::Provider::Anthropic;
    let mut messages = route(WireFormat::Anthropic, vec![anthropic]);
    messages.name = "messages".into();
    let policies = policy_set(vec![route(WireFormat::OpenAi, vec![openai]), messages]);
    World::start(policies, Shared::Embedded(Arc::new(EmbeddedHome::new().unwrap())), tune).await
}

fn keys() -> (Mounts, ClientAuth) {
    let mounts = Mounts::new();
    mounts.put("one", &format!("{KEY}\n"));
    let folder = mounts.path("");
    (mounts, ClientAuth::Keys { folder })
}

async fn ask(world: &World, headers: &[(&str, &str)]) -> Answer {
    world.ask("/v1/chat/completions", headers, &chat(false)).await
}

/// Waits until a client with these headers gets this status.
async fn until_status(world: &World, headers: &[(&str, &str)], status: u16) {
    let wait = async {
        while ask(world, headers).await.status != status {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap();
}

#[tokio::test]
async fn a_key_lets_in_through_the_header_of_each_sdk_and_ends_here() {
    let logs = crate::logs::capture();
    let primary = provider("{}").await;
    let (_mounts, clients) = keys();
    let world = gateway(&primary, Credential::None, |config| config.clients = clients).await;
    assert_eq!(world.readyz().await.0, 200);
    let bearer = format!("Bearer {KEY}");
    for headers in [
        &[("authorization", &*bearer)][..],
        &[("x-api-key", KEY)],
        &[("api-key", KEY)],
        &[("x-sluice-client-key", KEY), ("authorization", &bearer), ("x-api-key", KEY)],
    ] {
        assert_eq!(ask(&world, headers).await.status, 200, "{headers:?}");
        let headers = [headers, &[("anthropic-version", "2023-06-01")]].concat();
        assert_eq!(world.ask("/v1/messages", &headers, &message(false)).await.status, 200, "{headers:?}");
    }
    let calls = primary.calls();
    assert_eq!(calls.len(), 8);
    for call in calls {
        for name in ["authorization", "x-api-key", "api-key", "x-sluice-client-key"] {
            assert_eq!(call.header(name), None, "{name}");
        }
    }
    assert!(!logs.text().contains("canary-key"), "no key in a log, however fine");
}

#[tokio::test]
async fn a_stranger_learns_nothing_but_that_it_is_one() {
    let primary = provider("{}").await;
    let (_mounts, clients) = keys();
    let world = gateway(&primary, Credential::None, |config| config.clients = clients).await;
    let long = "x".repeat(20_000);
    let strangers: [&[(&str, &str)]; 7] = [
        &[],
        &[("authorization", "Bearer canary-key-of-a-clienT")],
        &[("authorization", "Basic canary-key-of-a-client")],
        &[("x-api-key", "")],
        &[("x-api-key", &long)],
        &[("x-sluice-client-key", "wrong"), ("x-api-key", KEY)],
        &[("cookie", KEY)],
    ];
    for (path, body, kind) in [
        ("/v1/chat/completions", chat(true), "authentication_error"),
        ("/v1/messages", message(true), "authentication_error"),
        ("/v1/unknown", chat(false), "authentication_error"),
    ] {
        let mut bodies = Vec::new();
        for headers in strangers {
            let answer = world.ask(path, headers, &body).await;
            assert_eq!(answer.status, 401, "{path} {headers:?}");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
            assert_eq!(answer.header("x-should-retry"), Some("false"));
            let error = &answer.json()["error"];
            assert_eq!(error["type"], kind);
            assert_eq!(error["sluice"]["upstream_attempt"], false);
            bodies.push(answer.body);
        }
        bodies.dedup();
        assert_eq!(bodies.len(), 1, "the same answer for all");
    }
    let models = world.raw(b"GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    assert!(models.starts_with("HTTP/1.1 401"), "{models}");
    assert_eq!(primary.stats().total.started, 0);
}

#[tokio::test]
async fn the_callers_own_key_goes_on_only_beside_the_gateways() {
    let primary = provider("{}").await;
    let (_mounts, clients) = keys();
    let world = gateway(&primary, Credential::Passthrough, |config| config.clients = clients).await;
    let answer = ask(&world, &[("authorization", &format!("Bearer {KEY}")), ("x-api-key", "theirs")]).await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["error"]["code"].as_str()),
        (503, Some("no_credential"))
    );
    assert!(answer.text().contains("x-sluice-client-key"), "it says what to do: {}", answer.text());
    assert_eq!(primary.stats().total.started, 0, "nothing is sent without a credential");

    let both = [("x-sluice-client-key", KEY), ("authorization", "Bearer theirs")];
    assert_eq!(ask(&world, &both).await.status, 200);
    let call = &primary.calls()[0];
    assert_eq!(call.header("authorization"), Some(&*fingerprint("Bearer theirs")));
    assert_eq!(call.header("x-sluice-client-key"), None);
}

#[tokio::test]
async fn keys_come_and_go_without_a_restart() {
    let primary = provider("{}").await;
    let (mounts, clients) = keys();
    let world = gateway(&primary, Credential::None, |config| config.clients = clients).await;
    let second = [("x-api-key", "canary-key-of-another-client")];
    assert_eq!(ask(&world, &second).await.status, 401);
    mounts.put("two", second[0].1);
    until_status(&world, &second, 200).await;
    std::fs::remove_file(mounts.path("one")).unwrap();
    until_status(&world, &[("x-api-key", KEY)], 401).await;
    std::fs::remove_file(mounts.path("two")).unwrap();
    world.until_readyz(503, "nobody is let in").await;
    assert_eq!(ask(&world, &second).await.status, 401);
}

#[tokio::test]
async fn tokens_of_the_namespaces_are_reviewed_once() {
    let primary = provider("{}").await;
    let api_server = FakeApiServer::start().await;
    let clients = api_server.clients(&["default", "team"]);
    let world = gateway(&primary, Credential::None, |config| config.clients = clients).await;
    let good = api_server.token("team", "app");
    let headers = [("authorization", format!("Bearer {good}"))];
    let headers = [(headers[0].0, &*headers[0].1)];
    let many = futures_util::future::join_all((0..20).map(|_| ask(&world, &headers))).await;
    assert!(many.iter().all(|answer| answer.status == 200));
    let x_api_key = [("x-api-key", &*good), ("anthropic-version", "2023-06-01")];
    assert_eq!(world.ask("/v1/messages", &x_api_key, &message(false)).await.status, 200);
    assert_eq!(api_server.reviews(&good), 1);
    assert!(primary.calls().iter().all(|call| call.header("authorization").is_none()));

    let other = api_server.token("elsewhere", "other");
    let forged = unknown_token("sluice-client", 3_600, "forged");
    for (token, reviews) in [
        (&other, 1),
        (&forged, 1),
        (&unknown_token("sluice", 3_600, "agents"), 0),
        (&unknown_token("sluice-client", -1, "over"), 0),
        (&"no-token-at-all".to_owned(), 0),
    ] {
        for _ in 0..3 {
            let answer = ask(&world, &[("x-api-key", token)]).await;
            assert_eq!(answer.status, 401);
            assert!(!answer.text().contains(&token[..8]), "{}", answer.text());
        }
        assert_eq!(api_server.reviews(token), reviews, "{token}");
    }
    assert_eq!(primary.stats().total.started, 21);
}

#[tokio::test]
async fn who_was_seen_lately_is_served_while_the_api_server_is_away() {
    let primary = provider("{}").await;
    let mut api_server = FakeApiServer::start().await;
    let clients = api_server.clients(&["team"]);
    let world = gateway(&primary, Credential::None, |config| config.clients = clients).await;
    let (seen, unseen) = (api_server.token("team", "seen"), api_server.token("team", "unseen"));
    assert_eq!(ask(&world, &[("x-api-key", &seen)]).await.status, 200);
    assert_eq!(world.readyz().await.0, 200);

    // The gateway's own token is renewed; the old one is refused until the file has the new one.
    api_server.renew_own_token("gateway-2");
    assert_eq!(ask(&world, &[("x-api-key", &unseen)]).await.status, 200);
    std::fs::remove_file(api_server.mounts.path("token")).unwrap();
    let third = api_server.token("team", "third");
    assert_eq!(ask(&world, &[("x-api-key", &third)]).await.status, 503);
    api_server.renew_own_token("gateway-3");
    assert_eq!(ask(&world, &[("x-api-key", &third)]).await.status, 200, "a failed review is not remembered");

    api_server.stop();
    let fourth = api_server.token("team", "fourth");
    let answer = ask(&world, &[("x-api-key", &fourth)]).await;
    assert_eq!((answer.status.as_u16(), answer.json()["error"]["code"].as_str()), (503, Some("unverified")));
    assert!(answer.header("retry-after").is_some() && answer.header("x-should-retry").is_none());
    assert_eq!(ask(&world, &[("x-api-key", &seen)]).await.status, 200);
    assert_eq!(world.readyz().await.0, 200);
}

type Https = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// A client that trusts one authority, and speaks HTTP/2 where both can.
fn https(ca_pem: &str) -> Https {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca_pem.as_bytes()).unwrap()).unwrap();
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector =
        HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_all_versions().build();
    Client::builder(TokioExecutor::new()).build(connector)
}

/// A streamed answer; `None`: the server was not trusted.
async fn stream_over(client: &Https, world: &World) -> Option<(http::Version, Answer)> {
    let request = Request::post(format!("https://{}/v1/chat/completions", world.addr))
        .header("content-type", "application/json")
        .header("x-api-key", KEY)
        .body(Full::from(chat(true).to_string()))
        .unwrap();
    let response = tokio::time::timeout(PATIENCE, client.request(request)).await.unwrap().ok()?;
    Some((response.version(), tokio::time::timeout(PATIENCE, read(response)).await.unwrap()))
}

#[tokio::test]
async fn streams_over_tls_and_a_certificate_that_changes() {
    let primary = provider("default: {tokens: 50}").await;
    let (mounts, clients) = keys();
    let (first, second) = (TestCertificates::generate().unwrap(), TestCertificates::generate().unwrap());
    let tls = Mounts::new();
    tls.put("tls.crt", &first.certificate_pem);
    tls.put("tls.key", &first.key_pem);
    let files = TlsFiles { certificate: tls.path("tls.crt"), key: tls.path("tls.key") };
    let listener = ListenerTls::load(files.clone()).await.unwrap();
    let world = gateway(&primary, Credential::None, |config| {
        (config.clients, config.tls) = (clients, Some(listener));
    })
    .await;
    let trusting = https(&first.ca_pem);
    let (version, answer) = stream_over(&trusting, &world).await.unwrap();
    assert_eq!((version, answer.status.as_u16()), (http::Version::HTTP_2, 200));
    assert!(answer.whole && answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
    assert!(
        !world
            .raw(&crate::harness::request_bytes("/v1/chat/completions", "", &chat(false)))
            .await
            .contains("HTTP/1.1 200")
    );

    // Half of a swap changes nothing.
    tls.put("tls.crt", &second.certificate_pem);
    assert!(ListenerTls::load(files.clone()).await.err().unwrap().to_string().contains("do not go together"));
    assert!(stream_over(&https(&first.ca_pem), &world).await.is_some());
    tls.put("tls.key", &second.key_pem);
    let wait = async {
        while stream_over(&https(&second.ca_pem), &world).await.is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap();
    assert!(stream_over(&trusting, &world).await.is_some(), "a connection that stands is left alone");
    drop(mounts);
    world.drain().await;
}
