//! Providers behind TLS, over both versions of HTTP.

use std::fs;

use http::StatusCode;
use sluice_provider::{Provider, Scenario};
use sluice_testkit::tls::{TestCertificates, TlsFront};

use crate::client::Client;
use crate::command::{Run, eventually, sluice};
use crate::manifests::{Manifests, route};
use crate::serving::pausing;

/// A run whose only target is behind `front`, and that trusts `ca_pem` alone.
async fn run(front: &TlsFront, ca_pem: &str) -> (Run, Manifests) {
    let manifests = Manifests::empty();
    let address = ([127, 0, 0, 1], front.port()).into();
    let text =
        route("chat", "gpt-4o", &[("primary", address)]).replace("http://127.0.0.1", "https://localhost");
    manifests.write("chat.yaml", &text);
    let ca = manifests.beside("ca.pem");
    fs::write(&ca, ca_pem).unwrap();
    let mut command = sluice();
    command.env("SSL_CERT_FILE", ca).env_remove("SSL_CERT_DIR");
    (Run::start_by(command, &manifests.path(), &[]).await, manifests)
}

async fn speaks(protocol: &str, version: &str) {
    let certificates = TestCertificates::generate().unwrap();
    let provider = Provider::start(Scenario::default()).await.unwrap();
    let front = TlsFront::start(&certificates, protocol, provider.addr()).await.unwrap();
    let (run, _manifests) = run(&front, &certificates.ca_pem).await;
    let client = Client::new();
    assert_eq!(client.chat(run.agents[0], "gpt-4o").await.status, StatusCode::OK);
    let read = client.chat_stream(run.agents[0], "gpt-4o").await.rest().await;
    assert!(read.trim_end().ends_with("data: [DONE]"), "{read}");
    let calls = provider.calls();
    assert_eq!(calls.iter().map(|call| call.version.as_str()).collect::<Vec<_>>(), [version; 2]);

    // A client that leaves: the provider sees its call cancelled, and only that call.
    provider.set(pausing());
    let mut leaving = client.chat_stream(run.agents[0], "gpt-4o").await;
    leaving.until("data: ").await;
    drop(leaving);
    eventually("the cancellation", async || (provider.stats().total.cancelled() == 1).then_some(())).await;
    provider.set(Scenario::default());
    assert_eq!(client.chat(run.agents[0], "gpt-4o").await.status, StatusCode::OK);
    run.end().await;
}

#[tokio::test]
async fn a_provider_that_speaks_http2_is_spoken_to_so() {
    speaks("h2", "HTTP/2.0").await;
}

#[tokio::test]
async fn a_provider_that_speaks_http1_is_spoken_to_so() {
    speaks("http/1.1", "HTTP/1.1").await;
}

#[tokio::test]
async fn a_provider_with_a_certificate_of_nobody_known_or_of_the_past_gets_no_call() {
    let strangers = TestCertificates::generate().unwrap();
    let expired = TestCertificates::expired().unwrap();
    for (certificates, trusted) in
        [(&strangers, &TestCertificates::generate().unwrap()), (&expired, &expired)]
    {
        let provider = Provider::start(Scenario::default()).await.unwrap();
        let front = TlsFront::start(certificates, "h2", provider.addr()).await.unwrap();
        let (run, _manifests) = run(&front, &trusted.ca_pem).await;
        let answer = Client::new().chat(run.agents[0], "gpt-4o").await;
        assert_eq!(answer.status, StatusCode::BAD_GATEWAY, "{answer:?}");
        assert!(answer.body.to_lowercase().contains("tls"), "{answer:?}");
        assert!(provider.calls().is_empty());
        run.end().await;
    }
}
