//! Whole replicas, against the API server of tests.

mod fleet;
mod ha;
mod pods;
mod robustness;
mod secrets;

use std::net::SocketAddr;

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;
use crate::api_server::ApiServer;
use crate::certificates::{BUNDLE_KEY, NAME};
use crate::config::Sidecar;
use crate::connections::tests::{certificate, connect};

const NAMESPACE: &str = "sluice-system";

struct Replica {
    controller: Controller,
    policies: SocketAddr,
    webhook: SocketAddr,
    admin: SocketAddr,
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn replica(server: &ApiServer, pod: &str) -> Replica {
    let config = Config {
        namespace: NAMESPACE.to_owned(),
        pod: pod.to_owned(),
        lease: "sluice-controller".to_owned(),
        service: "sluice-controller".to_owned(),
        webhook_configuration: Some("sluice-injector".to_owned()),
        secret_namespaces: vec!["team".to_owned()],
        sidecar: Sidecar { image: "sluice:1".to_owned(), ..Sidecar::default() },
        ..Config::default()
    };
    let ((policies, at_policies), (webhook, at_webhook), (admin, at_admin)) =
        (listen().await, listen().await, listen().await);
    let listeners = Listeners { policies, webhook: Some(webhook), admin: Some(admin) };
    let controller = Controller::start(server.client(), &config, listeners, &Signals::off()).unwrap();
    Replica { controller, policies: at_policies, webhook: at_webhook, admin: at_admin }
}

fn cluster() -> ApiServer {
    let server = ApiServer::default();
    let team = json!({"metadata": {"name": "team", "labels": {"sluice.dev/inject": "enabled"}}});
    server.put("api/v1/namespaces", team);
    let webhook = json!({"name": "inject.sluice.dev", "sideEffects": "NoneOnDryRun", "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": {"name": "sluice-controller", "namespace": NAMESPACE}}});
    server.put(
        "apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
        json!({"metadata": {"name": "sluice-injector"}, "webhooks": [webhook]}),
    );
    server
}

/// The answer to a request that says that its connection ends with it.
async fn answer(
    mut connection: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    request: &str,
) -> String {
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    // A server that ends TLS without saying so has sent everything before.
    let _ = connection.read_to_string(&mut answer).await;
    answer
}

async fn get(address: SocketAddr, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n");
    answer(TcpStream::connect(address).await.unwrap(), &request).await
}

async fn ready(replica: &Replica) {
    while !get(replica.admin, "/readyz").await.starts_with("HTTP/1.1 200") {
        tokio::task::yield_now().await;
    }
}

/// Until an object says what it should.
async fn until<K, T>(api: &Api<K>, name: &str, says: impl Fn(K) -> Option<T>) -> T
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    loop {
        if let Some(said) = api.get_opt(name).await.unwrap().and_then(&says) {
            return said;
        }
        tokio::task::yield_now().await;
    }
}

async fn bundle(server: &ApiServer, namespace: &str, but: &str) -> String {
    let config_maps = Api::<ConfigMap>::namespaced(server.client(), namespace);
    until(&config_maps, NAME, |found| found.data?.remove(BUNDLE_KEY).filter(|bundle| bundle != but)).await
}

#[tokio::test]
async fn replicas_are_certified_trusted_and_ask_each_pod() {
    let server = cluster();
    let (one, two) = (replica(&server, "one").await, replica(&server, "two").await);
    ready(&one).await;
    ready(&two).await;
    let trusted = bundle(&server, "team", "").await;
    let mut first = connect(one.policies, &trusted, "h2").await.unwrap();
    let second = connect(two.policies, &trusted, "h2").await.unwrap();
    assert_eq!(certificate(&first), certificate(&second), "they share one");

    // The API server trusts the webhook, and asks it.
    let configurations = Api::<MutatingWebhookConfiguration>::all(server.client());
    let told = until(&configurations, "sluice-injector", |found| {
        found.webhooks?.remove(0).client_config.ca_bundle.map(|bundle| bundle.0)
    })
    .await;
    assert_eq!(told, trusted.as_bytes());
    let body = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {
        "uid": "1", "namespace": "team", "operation": "CREATE",
        "object": {"metadata": {"name": "app"}, "spec": {"containers": [{"name": "app"}]}}}})
    .to_string();
    let request = format!(
        "POST /inject HTTP/1.1\r\nhost: webhook\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let webhook = connect(two.webhook, &trusted, "http/1.1").await.unwrap();
    let answered = answer(webhook, &request).await;
    let answered: Value = serde_json::from_str(answered.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert!(answered["response"]["patch"].is_string(), "{answered}");

    let page = get(two.admin, "/metrics").await;
    for series in ["sluice_controller_injections_total{outcome=\"injected\"} 1", "certificate=\"authority\"}"]
    {
        assert!(page.contains(series), "{series}\n{page}");
    }
    assert!(get(one.admin, "/livez").await.ends_with("ok\n"));

    // Keys that got out are not trusted any more; connections live on.
    let secrets = Api::<Secret>::namespaced(server.client(), NAMESPACE);
    secrets.delete(NAME, &DeleteParams::default()).await.unwrap();
    let anew = bundle(&server, NAMESPACE, &trusted).await;
    for replica in [&one, &two] {
        while connect(replica.policies, &anew, "h2").await.is_err() {
            tokio::task::yield_now().await;
        }
    }
    first.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut settings = [0; 9];
    first.read_exact(&mut settings).await.unwrap();
    assert_eq!(settings[3], 4, "the server's own SETTINGS: {settings:?}");

    // Also with clients that hold on to their connections.
    tokio::join!(one.controller.stop(), two.controller.stop());
    assert!(TcpStream::connect(one.policies).await.is_err());
}

#[tokio::test]
async fn a_replica_that_cannot_keep_its_certificate_says_what_it_waits_for() {
    let server = cluster();
    server.forbid(NAMESPACE, true);
    let replica = replica(&server, "one").await;
    let waits = |answer: &str| answer.starts_with("HTTP/1.1 503") && answer.ends_with("no certificate yet\n");
    while !waits(&get(replica.admin, "/readyz").await) {
        tokio::task::yield_now().await;
    }
    assert!(!replica.controller.is_ready());
    server.forbid(NAMESPACE, false);
    ready(&replica).await;
    replica.controller.stop().await;
}
