//! ServiceAccount tokens of clients, reviewed by the API server itself.
//!
//! Why not by the control plane: traffic must flow when every controller is gone, and a review is on its path. Why a
//! review and not the signature alone: a token is bound to its pod, and only the API server knows that the pod is gone.
//! The gateway needs one right for it: to create TokenReviews.
//!
//! A good answer is remembered for a minute, or until the token ends, a bad one for a few seconds; both by the token's
//! hash, and within bounds. So many reviews go on at once, one per token however many requests bring it; what has to
//! wait too long for its turn is told to come back. A token that says itself that it is for someone else, or over, costs
//! no review.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use data_encoding::BASE64URL_NOPAD;
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use parking_lot::Mutex;
use rustls::ClientConfig;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{OnceCell, Semaphore};

use super::{AUDIENCE, ApiServer, Denied};
use crate::clock::{self, Clock};
use crate::trust::{self, FileFault, digest};

const GOOD_FOR: Duration = Duration::from_mins(1);
const BAD_FOR: Duration = Duration::from_secs(5);
const GOOD_MOST: usize = 10_000;
const BAD_MOST: usize = 1_000;
/// Reviews at once.
const AT_ONCE: usize = 16;
/// For its turn, and then for its answer.
const TURN_WITHIN: Duration = Duration::from_secs(2);
const REVIEW_WITHIN: Duration = Duration::from_secs(5);
const MAX_ANSWER_BYTES: usize = 1024 * 1024;
const MAX_BUNDLE_BYTES: usize = 1024 * 1024;
const PATH: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

const CA: &str = "SLUICE_API_SERVER_CA";
const TOKEN: &str = "SLUICE_API_SERVER_TOKEN";

type Http = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;
type Hash = [u8; 32];

pub(crate) struct Reviews {
    uri: Uri,
    api_server: ApiServer,
    namespaces: BTreeSet<String>,
    clock: Clock,
    /// With the authorities that it trusts.
    http: Mutex<Option<(Hash, Http)>>,
    good: Mutex<Remembered>,
    bad: Mutex<Remembered>,
    pending: Mutex<HashMap<Hash, Arc<OnceCell<bool>>>>,
    turns: Semaphore,
    /// The last fault that was told.
    told: Mutex<Option<String>>,
}

/// Why nothing can be said of a token.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error(transparent)]
    File(#[from] FileFault),
    #[error("SLUICE_API_SERVER cannot be asked: {0}")]
    Setup(String),
    #[error("the API server did not answer in time")]
    Late,
    #[error("the API server cannot be reached: {0}")]
    Unreachable(String),
    #[error(
        "the API server answers with status {0}: does this gateway's ServiceAccount have the right to create tokenreviews?"
    )]
    Refused(StatusCode),
    #[error("the API server's answer is no TokenReview")]
    Answer,
    #[error("too many tokens wait for their review")]
    Busy,
}

impl Reviews {
    /// # Errors
    /// When the API server's URL is none of https.
    pub(crate) fn new(
        api_server: ApiServer,
        namespaces: BTreeSet<String>,
        clock: Clock,
    ) -> anyhow::Result<Self> {
        let url = api_server.url.trim_end_matches('/');
        let uri: Option<Uri> = format!("{url}{PATH}").parse().ok();
        let uri = uri.filter(|uri| uri.scheme_str() == Some("https") && uri.host().is_some());
        let uri = uri.ok_or_else(|| {
            anyhow::anyhow!(
                "SLUICE_API_SERVER is {url:?}, which is no https URL: write https://kubernetes.default.svc"
            )
        })?;
        Ok(Self {
            uri,
            api_server,
            namespaces,
            clock,
            http: Mutex::default(),
            good: Mutex::new(Remembered::of(GOOD_MOST)),
            bad: Mutex::new(Remembered::of(BAD_MOST)),
            pending: Mutex::default(),
            turns: Semaphore::new(AT_ONCE),
            told: Mutex::default(),
        })
    }

    /// Whether a token is one of a pod that may spend here.
    pub(super) async fn good(&self, token: &[u8]) -> Result<bool, Denied> {
        let Some(claims) = std::str::from_utf8(token).ok().and_then(Claims::of) else { return Ok(false) };
        let left = claims.left(clock::wall());
        if left.is_zero() || !claims.is_for(AUDIENCE) {
            return Ok(false);
        }
        let (hash, now) = (digest(token), self.clock.now());
        if self.good.lock().has(&hash, now) {
            return Ok(true);
        }
        if self.bad.lock().has(&hash, now) {
            return Ok(false);
        }
        let one = Pending::join(&self.pending, hash);
        let verdict = one.cell.get_or_try_init(|| self.review_and_remember(hash, token, left)).await;
        verdict.copied().map_err(|fault| {
            self.tell(Some(&fault));
            Denied::Unverified
        })
    }

    async fn review_and_remember(&self, hash: Hash, token: &[u8], left: Duration) -> Result<bool, Fault> {
        let turn = tokio::time::timeout(TURN_WITHIN, self.turns.acquire()).await;
        let _turn = turn.map_err(|_| Fault::Busy)?.map_err(|_| Fault::Busy)?;
        let good =
            tokio::time::timeout(REVIEW_WITHIN, self.review(token)).await.map_err(|_| Fault::Late)??;
        self.tell(None);
        let now = self.clock.now();
        if good {
            self.good.lock().add(hash, now, GOOD_FOR.min(left));
        } else {
            self.bad.lock().add(hash, now, BAD_FOR);
        }
        Ok(good)
    }

    async fn review(&self, token: &[u8]) -> Result<bool, Fault> {
        let http = self.http().await?;
        let own = trust::token(TOKEN, &self.api_server.token).await?;
        let mut bearer = HeaderValue::try_from(format!("Bearer {}", *own))
            .map_err(|error| Fault::Setup(error.to_string()))?;
        bearer.set_sensitive(true);
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": { "token": String::from_utf8_lossy(token), "audiences": [AUDIENCE] },
        });
        let request = Request::builder()
            .method(Method::POST)
            .uri(&self.uri)
            .header(header::AUTHORIZATION, bearer)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .body(Full::from(body.to_string()))
            .map_err(|error| Fault::Setup(error.to_string()))?;
        let unreachable =
            |error: &dyn std::error::Error| Fault::Unreachable(crate::control_plane::chain(error));
        let response = http.request(request).await.map_err(|error| unreachable(&error))?;
        if !response.status().is_success() {
            return Err(Fault::Refused(response.status()));
        }
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
        let body = body.map_err(|_| Fault::Answer)?.to_bytes();
        let review: Review = serde_json::from_slice(&body).map_err(|_| Fault::Answer)?;
        Ok(review.status.lets_in(&self.namespaces))
    }

    /// A client that trusts what the file says now.
    async fn http(&self) -> Result<Http, Fault> {
        let path = &self.api_server.authorities;
        let trusted = digest(&trust::read(CA, path, MAX_BUNDLE_BYTES).await?);
        if let Some((before, http)) = &*self.http.lock()
            && *before == trusted
        {
            return Ok(http.clone());
        }
        let authorities = trust::authorities(CA, path).await?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Fault::Setup(error.to_string()))?
            .with_root_certificates(authorities)
            .with_no_client_auth();
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_all_versions().build();
        let http = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        *self.http.lock() = Some((trusted, http.clone()));
        Ok(http)
    }

    /// Each fault once, until it is another or over.
    fn tell(&self, fault: Option<&Fault>) {
        let now = fault.map(ToString::to_string);
        let before = std::mem::replace(&mut *self.told.lock(), now.clone());
        match (before, now) {
            (before, Some(error)) if before.as_ref() != Some(&error) => {
                tracing::error!(error, "clients' tokens cannot be reviewed: those not seen lately get 503");
            }
            (Some(_), None) => tracing::info!("clients' tokens are reviewed again"),
            _ => {}
        }
    }
}

/// One review that requests wait for together. The last one to leave takes it away, also when it is cancelled.
struct Pending<'a> {
    all: &'a Mutex<HashMap<Hash, Arc<OnceCell<bool>>>>,
    hash: Hash,
    cell: Arc<OnceCell<bool>>,
}

impl<'a> Pending<'a> {
    fn join(all: &'a Mutex<HashMap<Hash, Arc<OnceCell<bool>>>>, hash: Hash) -> Self {
        let cell = all.lock().entry(hash).or_default().clone();
        Self { all, hash, cell }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        // Its place in the map and this one.
        if Arc::strong_count(&self.cell) <= 2 {
            all.remove(&self.hash);
        }
    }
}

/// Hashes, each until a moment of the agent's clock.
struct Remembered {
    until: HashMap<Hash, Duration>,
    most: usize,
}

impl Remembered {
    fn of(most: usize) -> Self {
        Self { until: HashMap::new(), most }
    }

    fn has(&self, hash: &Hash, now: Duration) -> bool {
        self.until.get(hash).is_some_and(|until| now < *until)
    }

    /// What does not fit is reviewed again.
    fn add(&mut self, hash: Hash, now: Duration, time: Duration) {
        if self.until.len() >= self.most {
            self.until.retain(|_, until| now < *until);
        }
        if self.until.len() < self.most {
            self.until.insert(hash, now + time);
        }
    }
}

/// What a token says of itself; nobody has vouched for it.
#[derive(Deserialize)]
struct Claims {
    #[serde(default)]
    aud: Audiences,
    /// Seconds since 1970.
    exp: u64,
}

#[derive(Default, Deserialize)]
#[serde(untagged)]
enum Audiences {
    One(String),
    Many(Vec<String>),
    #[default]
    None,
}

impl Claims {
    fn of(token: &str) -> Option<Self> {
        let mut parts = token.split('.');
        let (_, claims, _) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        serde_json::from_slice(&BASE64URL_NOPAD.decode(claims.as_bytes()).ok()?).ok()
    }

    fn is_for(&self, audience: &str) -> bool {
        match &self.aud {
            Audiences::One(one) => one == audience,
            Audiences::Many(many) => many.iter().any(|one| one == audience),
            Audiences::None => false,
        }
    }

    fn left(&self, wall: std::time::SystemTime) -> Duration {
        let now = wall.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Duration::from_secs(self.exp).saturating_sub(now)
    }
}

/// What is read of a TokenReview.
#[derive(Deserialize)]
struct Review {
    #[serde(default)]
    status: ReviewStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReviewStatus {
    authenticated: bool,
    audiences: Vec<String>,
    user: User,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct User {
    username: String,
}

impl ReviewStatus {
    /// An API server that knows no audiences answers with none: then the token is anyone's.
    fn lets_in(&self, namespaces: &BTreeSet<String>) -> bool {
        let namespace = self
            .user
            .username
            .strip_prefix("system:serviceaccount:")
            .and_then(|account| account.split_once(':'))
            .map(|(namespace, _)| namespace);
        self.authenticated
            && self.audiences.iter().any(|audience| audience == AUDIENCE)
            && namespace.is_some_and(|namespace| namespaces.contains(namespace))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(claims: &str) -> String {
        format!("e30.{}.c2ln", BASE64URL_NOPAD.encode(claims.as_bytes()))
    }

    #[test]
    fn claims_are_read_of_tokens_alone() {
        let one = Claims::of(&token(r#"{"aud":"sluice-client","exp":9}"#)).unwrap();
        let many = Claims::of(&token(r#"{"aud":["x","sluice-client"],"exp":9,"iss":"y"}"#)).unwrap();
        let none = Claims::of(&token(r#"{"exp":9}"#)).unwrap();
        assert!(
            one.is_for(AUDIENCE) && many.is_for(AUDIENCE) && !none.is_for(AUDIENCE) && !many.is_for("sluice")
        );
        let at = |seconds| std::time::UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(
            (one.left(at(4)), one.left(at(9)), one.left(at(99))),
            (Duration::from_secs(5), Duration::ZERO, Duration::ZERO)
        );
        for other in
            ["", "a.b", "a.b.c", "sk-1234567890", &token("{}"), &format!("{}.x", token(r#"{"exp":9}"#))]
        {
            assert!(Claims::of(other).is_none(), "{other}");
        }
    }

    #[test]
    fn a_review_lets_in_accounts_of_the_namespaces_for_the_audience() {
        let lets_in = |answer: serde_json::Value| {
            let review: Review = serde_json::from_value(answer).unwrap();
            review.status.lets_in(&BTreeSet::from(["team".to_owned()]))
        };
        let status = |authenticated: bool, audience: &str, username: &str| json!({ "status": { "authenticated": authenticated, "audiences": [audience], "user": { "username": username } } });
        assert!(lets_in(status(true, AUDIENCE, "system:serviceaccount:team:app")));
        for bad in [
            status(false, AUDIENCE, "system:serviceaccount:team:app"),
            status(true, "sluice", "system:serviceaccount:team:app"),
            status(true, AUDIENCE, "system:serviceaccount:other:app"),
            status(true, AUDIENCE, "system:serviceaccount:team"),
            status(true, AUDIENCE, "team:app"),
            json!({ "status": { "authenticated": true, "user": { "username": "system:serviceaccount:team:app" } } }),
            json!({}),
        ] {
            assert!(!lets_in(bad.clone()), "{bad}");
        }
    }

    #[test]
    fn what_is_remembered_is_bounded_and_ends() {
        let s = Duration::from_secs;
        let mut remembered = Remembered::of(2);
        remembered.add([1; 32], s(0), s(5));
        remembered.add([2; 32], s(1), s(50));
        remembered.add([3; 32], s(2), s(5));
        assert!(remembered.has(&[1; 32], s(4)) && !remembered.has(&[1; 32], s(5)));
        assert!(!remembered.has(&[3; 32], s(2)), "no room");
        remembered.add([3; 32], s(6), s(5));
        assert!(remembered.has(&[3; 32], s(6)) && remembered.has(&[2; 32], s(6)));
    }
}
