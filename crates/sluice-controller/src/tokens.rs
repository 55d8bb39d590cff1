//! Who an agent is: its pod, as the API server says of the token that it sends.
//!
//! Mechanics: the token is a projected ServiceAccount token of audience `sluice`, so no other service can use what it
//! hears and no other service's token is good here. The review names the pod that it was made for; the pod's labels,
//! which decide what the agent gets, come from the API, never from the agent, and are followed for as long as the stream
//! lives, which is no longer than its token.
//!
//! A review is remembered for a minute, by the token's hash, and only so many go on at once: the others stand in line, in
//! the order in which they came, so that nobody who asks often is asked for more often. Whose turn does not come in time
//! is told to come back rather than passed on to the API server. How many of one address stand there is for the service
//! to say.
//!
//! What a caller without a good token learns is that it has none.
//!
//! Another replica of this control plane has a token of another audience, [`PEER_AUDIENCE`], and of the same
//! ServiceAccount as this one: nobody else is told what all agents say.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use data_encoding::BASE64URL_NOPAD;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use sluice_policy::index::Key;
use sluice_policy::replica_service::RecogniseReplica;
use sluice_policy::service::{Authenticate, Identity};
use sluice_proto::report::Hello;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::clock;
use crate::pods::{InjectedPod, Pods};

/// The audience of agents' tokens.
pub const AUDIENCE: &str = "sluice";
/// The audience of replicas' tokens for one another.
pub const PEER_AUDIENCE: &str = "sluice-peer";

const REMEMBERED_FOR: Duration = Duration::from_mins(1);
const REMEMBERED: usize = 10_000;
/// Reviews at once.
const AT_ONCE: usize = 16;
/// Reviews of replicas at once: many agents do not keep them out.
const PEERS_AT_ONCE: usize = 4;
/// Of the wait for one's turn, and then of the review.
const REVIEW_WITHIN: Duration = Duration::from_secs(5);
/// Longest token that is looked at.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

const ACCOUNT: &str = "system:serviceaccount:";
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

/// The pod that a good token was made for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Holder {
    pod: Key,
    uid: Arc<str>,
    /// Seconds since 1970.
    expires: Option<u64>,
}

/// Asks the API server about tokens of one audience.
struct Reviews {
    client: Client,
    audience: &'static str,
    turns: Semaphore,
}

impl Reviews {
    async fn review(&self, token: &str) -> Result<TokenReviewStatus, Status> {
        let many = |_| Status::unavailable("many connect at once: come back in a moment");
        let turn = tokio::time::timeout(REVIEW_WITHIN, self.turns.acquire()).await.map_err(many)?;
        // It is never closed.
        let _turn = turn.map_err(|error| Status::internal(error.to_string()))?;
        let spec = TokenReviewSpec {
            audiences: Some(vec![self.audience.to_owned()]),
            token: Some(token.to_owned()),
        };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviews = Api::<TokenReview>::all(self.client.clone());
        let parameters = PostParams::default();
        match tokio::time::timeout(REVIEW_WITHIN, reviews.create(&parameters, &review)).await {
            Ok(Ok(reviewed)) => Ok(reviewed.status.unwrap_or_default()),
            Ok(Err(error)) => {
                tracing::warn!(%error, "a token could not be reviewed");
                Err(Status::unavailable("the token could not be reviewed: come back"))
            }
            Err(_) => Err(Status::unavailable("the token could not be reviewed in time: come back")),
        }
    }
}

/// Asks the API server, and remembers for a while.
pub(crate) struct Tokens {
    client: Client,
    pods: Arc<Pods>,
    reviews: Reviews,
    remembered: Mutex<BTreeMap<[u8; 32], (Holder, Instant)>>,
}

impl Tokens {
    pub(crate) fn new(client: Client, pods: Arc<Pods>) -> Self {
        let reviews = Reviews { client: client.clone(), audience: AUDIENCE, turns: Semaphore::new(AT_ONCE) };
        Self { client, pods, reviews, remembered: Mutex::default() }
    }

    async fn holder(&self, token: &str) -> Result<Holder, Status> {
        let (hash, now): ([u8; 32], _) = (Sha256::digest(token).into(), clock::now());
        if let Some((holder, until)) = self.remembered.lock().get(&hash)
            && now < *until
        {
            return Ok(holder.clone());
        }
        let status = self.reviews.review(token).await?;
        let holder = read(&status, token).ok_or_else(|| unauthenticated(AUDIENCE))?;
        let mut remembered = self.remembered.lock();
        if remembered.len() >= REMEMBERED {
            remembered.retain(|_, (_, until)| now < *until);
        }
        if remembered.len() < REMEMBERED {
            remembered.insert(hash, (holder.clone(), now + REMEMBERED_FOR));
        }
        Ok(holder)
    }

    /// From the watch, or, when that is behind, from the API server.
    async fn pod(&self, holder: &Holder) -> Result<Arc<InjectedPod>, Status> {
        if let Some(pod) = self.pods.get(&holder.pod).filter(|pod| pod.uid == holder.uid) {
            return Ok(pod);
        }
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &holder.pod.namespace);
        let found = tokio::time::timeout(REVIEW_WITHIN, pods.get_metadata_opt(&holder.pod.name)).await;
        let found = match found {
            Ok(Ok(found)) => found.map(|pod| InjectedPod::of(&pod)),
            Ok(Err(error)) => {
                tracing::warn!(pod = %holder.pod, %error, "a pod could not be read");
                return Err(Status::unavailable("the pod could not be read: come back"));
            }
            Err(_) => return Err(Status::unavailable("the pod could not be read in time: come back")),
        };
        let same = found.filter(|pod| pod.uid == holder.uid);
        same.map(Arc::new).ok_or_else(|| Status::permission_denied("the token's pod is gone"))
    }
}

impl Authenticate for Tokens {
    async fn authenticate(
        &self,
        metadata: &MetadataMap,
        _peer: Option<SocketAddr>,
        _hello: &Hello,
    ) -> Result<Identity, Status> {
        let token = bearer(metadata).ok_or_else(|| unauthenticated(AUDIENCE))?;
        let holder = self.holder(token).await?;
        let pod = self.pod(&holder).await?;
        let now = clock::unix_ms() / 1_000;
        let valid_for = holder.expires.map(|expires| Duration::from_secs(expires.saturating_sub(now)));
        let (scope, pod, uid) = (pod.scope(), pod.key.name.clone(), holder.uid);
        Ok(Identity { scope, pod, uid, valid_for })
    }

    fn labels_now(&self, of: &Identity) -> Option<BTreeMap<String, String>> {
        let key = Key { namespace: of.scope.namespace.clone(), name: of.pod.clone() };
        let pod = self.pods.get(&key).filter(|pod| pod.uid == of.uid)?;
        Some(pod.labels.clone())
    }
}

/// Knows other replicas by their tokens.
pub(crate) struct PeerTokens {
    reviews: Reviews,
    /// This replica's own: it names the ServiceAccount that the others have too.
    own: PathBuf,
}

impl PeerTokens {
    pub(crate) fn new(client: Client, own: PathBuf) -> Self {
        let turns = Semaphore::new(PEERS_AT_ONCE);
        Self { reviews: Reviews { client, audience: PEER_AUDIENCE, turns }, own }
    }
}

impl RecogniseReplica for PeerTokens {
    async fn recognise(&self, metadata: &MetadataMap) -> Result<(), Status> {
        let token = bearer(metadata).ok_or_else(|| unauthenticated(PEER_AUDIENCE))?;
        let own = tokio::fs::read_to_string(&self.own).await.ok();
        let Some(account) = own.as_deref().and_then(|own| claims(own.trim())?.sub) else {
            tracing::warn!(file = %self.own.display(), "--peer-token can't be read: no replica is recognised");
            return Err(Status::unavailable("this replica has no token of its own yet: come back"));
        };
        let status = self.reviews.review(token).await?;
        match account_of(&status, PEER_AUDIENCE) {
            None => Err(unauthenticated(PEER_AUDIENCE)),
            Some(of) if of == account => Ok(()),
            Some(_) => Err(Status::permission_denied("only replicas of this control plane are told")),
        }
    }
}

fn unauthenticated(audience: &str) -> Status {
    Status::unauthenticated(format!("send a token of audience {audience} as 'authorization: Bearer …'"))
}

fn bearer(metadata: &MetadataMap) -> Option<&str> {
    let token = metadata.get("authorization")?.to_str().ok()?.strip_prefix("Bearer ")?;
    (!token.is_empty() && token.len() <= MAX_TOKEN_BYTES).then_some(token)
}

/// The ServiceAccount of a good token: `system:serviceaccount:namespace:name`.
fn account_of<'a>(status: &'a TokenReviewStatus, audience: &str) -> Option<&'a str> {
    let audiences = status.audiences.as_deref().unwrap_or_default();
    if status.authenticated != Some(true) || !audiences.iter().any(|of| of == audience) {
        return None;
    }
    let account = status.user.as_ref()?.username.as_deref()?;
    account.starts_with(ACCOUNT).then_some(account)
}

/// The pod that a reviewed token was made for. `None`: it is good for nothing here.
fn read(status: &TokenReviewStatus, token: &str) -> Option<Holder> {
    let (namespace, _) = account_of(status, AUDIENCE)?.strip_prefix(ACCOUNT)?.split_once(':')?;
    let user = status.user.as_ref()?;
    let extra = |name: &str| user.extra.as_ref()?.get(name)?.first().cloned();
    Some(Holder {
        pod: Key::new(namespace, &extra(POD_NAME)?),
        uid: extra(POD_UID)?.into(),
        expires: claims(token).and_then(|claims| claims.exp),
    })
}

#[derive(Debug, Deserialize)]
struct Claims {
    exp: Option<u64>,
    sub: Option<String>,
}

/// What a token says of itself: true only of one that was found good.
fn claims(token: &str) -> Option<Claims> {
    let claims = BASE64URL_NOPAD.decode(token.split('.').nth(1)?.as_bytes()).ok()?;
    serde_json::from_slice(&claims).ok()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::authentication::v1::UserInfo;

    use super::*;

    fn token(claims: &str) -> String {
        format!("e30.{}.c2ln", BASE64URL_NOPAD.encode(claims.as_bytes()))
    }

    fn reviewed() -> TokenReviewStatus {
        let extra = [(POD_NAME, "app-1"), (POD_UID, "uid-1")];
        let extra =
            extra.map(|(name, value)| (name.to_owned(), vec![value.to_owned()])).into_iter().collect();
        let user = UserInfo {
            username: Some("system:serviceaccount:team:default".to_owned()),
            extra: Some(extra),
            ..UserInfo::default()
        };
        TokenReviewStatus {
            authenticated: Some(true),
            audiences: Some(vec![AUDIENCE.to_owned()]),
            user: Some(user),
            error: None,
        }
    }

    #[test]
    fn a_good_token_names_its_pod_and_its_end() {
        let holder = read(&reviewed(), &token(r#"{"exp":1800000000}"#)).unwrap();
        assert_eq!(holder.pod.to_string(), "team/app-1");
        assert_eq!((&*holder.uid, holder.expires), ("uid-1", Some(1_800_000_000)));
    }

    #[test]
    fn a_token_of_another_audience_account_or_kind_is_good_for_nothing() {
        let token = token("{}");
        let mut status = reviewed();
        status.authenticated = Some(false);
        assert_eq!(read(&status, &token), None);
        let mut status = reviewed();
        status.audiences = Some(vec!["https://kubernetes.default.svc".to_owned()]);
        assert_eq!(read(&status, &token), None);
        let mut status = reviewed();
        status.user.as_mut().unwrap().username = Some("alice".to_owned());
        assert_eq!(read(&status, &token), None);
        let mut status = reviewed();
        status.user.as_mut().unwrap().extra = None;
        assert_eq!(read(&status, &token), None, "bound to no pod");
    }

    #[test]
    fn only_a_bearer_token_of_sane_length_is_looked_at() {
        let metadata = |value: &str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("authorization", value.parse().unwrap());
            metadata
        };
        assert_eq!(bearer(&MetadataMap::new()), None);
        assert_eq!(bearer(&metadata("Basic YTpi")), None);
        assert_eq!(bearer(&metadata("Bearer ")), None);
        assert_eq!(bearer(&metadata(&format!("Bearer {}", "x".repeat(MAX_TOKEN_BYTES + 1)))), None);
        assert_eq!(bearer(&metadata("Bearer abc")), Some("abc"));
    }

    #[tokio::test]
    async fn a_replica_is_one_of_the_same_account_and_of_the_audience_of_replicas() {
        use crate::api_server::ApiServer;

        let own = "system:serviceaccount:sluice-system:sluice-controller";
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, token(&format!(r#"{{"sub":"{own}"}}"#))).unwrap();
        for (account, audience, good, expected) in [
            (own, PEER_AUDIENCE, true, None),
            (own, AUDIENCE, true, Some(tonic::Code::Unauthenticated)),
            (own, PEER_AUDIENCE, false, Some(tonic::Code::Unauthenticated)),
            ("system:serviceaccount:team:app", PEER_AUDIENCE, true, Some(tonic::Code::PermissionDenied)),
            ("alice", PEER_AUDIENCE, true, Some(tonic::Code::Unauthenticated)),
        ] {
            let server = ApiServer::default();
            let status = serde_json::json!({
                "authenticated": good, "audiences": [audience], "user": {"username": account},
            });
            server.answer_reviews(move |_| status.clone());
            let mut metadata = MetadataMap::new();
            metadata.insert("authorization", "Bearer abc".parse().unwrap());
            let recognised = PeerTokens::new(server.client(), file.clone()).recognise(&metadata).await;
            assert_eq!(recognised.map_err(|status| status.code()).err(), expected, "{account} {audience}");
        }
        let nobody = MetadataMap::new();
        let refused = PeerTokens::new(ApiServer::default().client(), file).recognise(&nobody).await;
        assert_eq!(refused.unwrap_err().code(), tonic::Code::Unauthenticated);
    }
}
