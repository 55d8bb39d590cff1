//! A control plane as agents see it: the real policy service on a real socket, over TLS, which takes one bearer token.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use sluice_agent::ControlPlane;
use sluice_policy::compile::Scope;
use sluice_policy::files::{Memory, SourceFile};
use sluice_policy::fleet::Fleet;
use sluice_policy::index::Key;
use sluice_policy::publish::Publisher;
use sluice_policy::random::Random;
use sluice_policy::service::{Authenticate, Discovery, Identity, Settings};
use sluice_policy::{Index, compile};
use sluice_proto::apply::RouteName;
use sluice_proto::report::{Hello, TargetTransition};
use sluice_testkit::tls::TestCertificates;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::metadata::MetadataMap;
use tonic::transport::server::ServerTlsConfig;
use tonic::transport::{Identity as TlsIdentity, Server};

use super::PATIENCE;

pub struct Plane {
    pub address: SocketAddr,
    pub fleet: Arc<Fleet>,
    pub tokens: Arc<Tokens>,
    /// What breakers did, as agents tell.
    pub transitions: mpsc::Receiver<TargetTransition>,
    publisher: Arc<Publisher>,
    resources: Mutex<(Memory, Index)>,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

/// Takes one token and remembers what came.
pub struct Tokens {
    good: String,
    pub seen: Mutex<Vec<String>>,
}

/// A service's end of the credential check.
struct Check(Arc<Tokens>);

impl Authenticate for Check {
    async fn authenticate(
        &self,
        metadata: &MetadataMap,
        _: Option<SocketAddr>,
        hello: &Hello,
    ) -> Result<Identity, Status> {
        let sent = metadata.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
        self.0.seen.lock().push(sent.to_owned());
        if sent != self.0.good {
            return Err(Status::unauthenticated("send a token of audience sluice"));
        }
        let scope = Scope { namespace: hello.namespace.clone(), labels: [].into() };
        Ok(Identity { scope, pod: hello.pod.clone(), uid: "".into(), valid_for: None })
    }
}

impl Plane {
    pub async fn start(certificates: &TestCertificates, token: &str) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), certificates, token, Settings::default()).await
    }

    pub async fn start_at(
        address: SocketAddr,
        certificates: &TestCertificates,
        token: &str,
        settings: Settings,
    ) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (fleet, transitions) = Fleet::new();
        let (fleet, publisher) = (Arc::new(fleet), Arc::new(Publisher::new()));
        let tokens = Arc::new(Tokens { good: format!("Bearer {token}"), seen: Mutex::default() });
        let stop = CancellationToken::new();
        let random = Random::seeded(7);
        let check = Check(tokens.clone());
        let service = Discovery::new(publisher.clone(), fleet.clone(), check, settings, random, stop.clone());
        let identity = TlsIdentity::from_pem(&certificates.certificate_pem, &certificates.key_pem);
        let server = Server::builder()
            .tls_config(ServerTlsConfig::new().identity(identity))
            .unwrap()
            .add_service(service.into_server())
            .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stop.clone().cancelled_owned());
        let serving = tokio::spawn(async move { server.await.unwrap() });
        let resources = Mutex::default();
        Self { address, fleet, tokens, transitions, publisher, resources, stop, serving }
    }

    /// The manifests as they are now.
    pub fn apply(&self, manifests: &str) {
        self.publish(manifests, |_| {});
    }

    /// The same, with a Secret that is there and can't be read.
    pub fn apply_unread(&self, manifests: &str, secret: &str) {
        let key = Key::new("default", secret);
        self.publish(manifests, |index| {
            index.delete_secret(&key);
            index.fail_secret(&key, "no answer within 2 s");
        });
    }

    fn publish(&self, manifests: &str, then: impl FnOnce(&mut Index)) {
        let (memory, index) = &mut *self.resources.lock();
        let file = SourceFile { name: "test.yaml".to_owned(), text: Ok(manifests.to_owned()) };
        let changes = memory.take(&[file], 1_800_000_000_000);
        assert!(changes.problems.is_empty(), "{:?}", changes.problems);
        changes.apply_to(index, 1_800_000_000_000);
        then(index);
        assert_eq!(self.publisher.publish(Arc::new(compile(index))), []);
    }

    /// Waits until one agent has acknowledged the newest version of a route.
    pub async fn until_in_sync(&self, route: &str) {
        let name = RouteName { namespace: "default".into(), name: route.into() };
        let wait = async {
            while self.fleet.facts(&name).in_sync != 1 {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap();
    }

    /// Waits until no agent is connected.
    pub async fn until_left(&self) {
        let wait = async {
            while self.fleet.connected() > 0 {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap();
    }

    /// Gone, with its port free.
    pub async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.serving).await.unwrap().unwrap();
    }
}

/// The folders that kubelet mounts into a pod, on a file system in memory.
pub struct Mounts {
    dir: TempDir,
}

impl Mounts {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir_in("/dev/shm").unwrap() }
    }

    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    /// Replaces a file at once, as kubelet does.
    pub fn put(&self, name: &str, content: &str) {
        let new = self.path(".new");
        std::fs::write(&new, content).unwrap();
        std::fs::rename(new, self.path(name)).unwrap();
    }

    pub fn control_plane(&self, address: SocketAddr) -> ControlPlane {
        let (ca, token) = (self.path("ca.crt"), self.path("token"));
        ControlPlane::new(&format!("https://{address}"), Some(ca), Some(token)).unwrap()
    }
}

/// A route of one target at an endpoint, which takes the key of Secret `provider`.
pub fn manifests(endpoint: &str, key: &str) -> String {
    format!(
        "
apiVersion: sluice.dev/v1alpha1
kind: ModelRoute
metadata: {{name: chat}}
spec:
  models: [\"*\"]
  targets:
  - name: primary
    provider: OpenAI
    endpoint: {endpoint}
    credential: {{type: SecretRef, secretRef: {{name: provider, key: token}}}}
---
apiVersion: v1
kind: Secret
metadata: {{name: provider}}
stringData: {{token: {key}}}
"
    )
}
