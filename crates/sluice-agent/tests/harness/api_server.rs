//! What a gateway sees of an API server: TokenReviews over TLS, for who may create them.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use data_encoding::BASE64URL_NOPAD;
use parking_lot::Mutex;
use serde_json::{Value, json};
use sluice_agent::client_auth::{AUDIENCE, ApiServer, ClientAuth};
use sluice_testkit::tls::{TestCertificates, TlsFront};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::plane::Mounts;

pub struct FakeApiServer {
    pub mounts: Mounts,
    pub certificates: TestCertificates,
    state: Arc<Reviewer>,
    front: Option<TlsFront>,
    serving: JoinHandle<()>,
}

#[derive(Default)]
struct Reviewer {
    /// Of the gateway.
    own_token: Mutex<String>,
    /// Good tokens, and the namespaces of their accounts.
    accounts: Mutex<BTreeMap<String, String>>,
    reviewed: Mutex<Vec<String>>,
}

impl FakeApiServer {
    pub async fn start() -> Self {
        let certificates = TestCertificates::generate().unwrap();
        let state = Arc::new(Reviewer::default());
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        let router = Router::new().route(path, post(review)).with_state(state.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let front = TlsFront::start(&certificates, "http/1.1", address).await.unwrap();
        let server = Self { mounts: Mounts::new(), certificates, state, front: Some(front), serving };
        server.mounts.put("ca.crt", &server.certificates.ca_pem);
        server.renew_own_token("gateway-1");
        server
    }

    /// The gateway's settings for it.
    pub fn clients(&self, namespaces: &[&str]) -> ClientAuth {
        let port = self.front.as_ref().unwrap().port();
        ClientAuth::Tokens {
            namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
            api_server: ApiServer {
                url: format!("https://127.0.0.1:{port}"),
                authorities: self.mounts.path("ca.crt"),
                token: self.mounts.path("token"),
            },
        }
    }

    /// The one before is good no more.
    pub fn renew_own_token(&self, token: &str) {
        token.clone_into(&mut self.state.own_token.lock());
        self.mounts.put("token", token);
    }

    /// Makes a token that is good for an hour.
    pub fn token(&self, namespace: &str, name: &str) -> String {
        let token = unknown_token(AUDIENCE, 3_600, name);
        self.state.accounts.lock().insert(token.clone(), namespace.to_owned());
        token
    }

    /// How often a token was reviewed.
    pub fn reviews(&self, token: &str) -> usize {
        self.state.reviewed.lock().iter().filter(|one| *one == token).count()
    }

    /// New connections are refused; those that stand are gone too.
    pub fn stop(&mut self) {
        self.front = None;
        self.serving.abort();
    }
}

impl Drop for FakeApiServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A token that no API server has made, which ends after so many seconds.
pub fn unknown_token(audience: &str, seconds: i64, name: &str) -> String {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let claims = json!({ "aud": [audience], "exp": now.saturating_add_signed(seconds), "sub": name });
    format!("e30.{}.c2ln", BASE64URL_NOPAD.encode(claims.to_string().as_bytes()))
}

async fn review(
    State(state): State<Arc<Reviewer>>,
    headers: HeaderMap,
    Json(asked): Json<Value>,
) -> Response {
    let own = format!("Bearer {}", state.own_token.lock());
    if headers.get("authorization").is_none_or(|sent| sent.as_bytes() != own.as_bytes()) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let token = asked["spec"]["token"].as_str().unwrap();
    assert_eq!(asked["spec"]["audiences"], json!([AUDIENCE]));
    state.reviewed.lock().push(token.to_owned());
    let status = match state.accounts.lock().get(token) {
        Some(namespace) => json!({
            "authenticated": true,
            "audiences": [AUDIENCE],
            "user": { "username": format!("system:serviceaccount:{namespace}:app"), "groups": ["system:authenticated"] },
        }),
        None => json!({ "error": "invalid bearer token" }),
    };
    (StatusCode::CREATED, Json(json!({ "kind": "TokenReview", "spec": asked["spec"], "status": status })))
        .into_response()
}
