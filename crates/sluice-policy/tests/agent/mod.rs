//! A control plane on a socket, and an agent that speaks to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sluice_core::target_id::TargetId;
use sluice_policy::compile::Scope;
use sluice_policy::fleet::{AgentFacts, Fleet};
use sluice_policy::index::Key;
use sluice_policy::publish::{Audience, Publisher};
use sluice_policy::random::Random;
use sluice_policy::replica_service::{RecogniseReplica, ReplicaService};
use sluice_policy::service::{Authenticate, Discovery, Identity, Settings, TrustLoopback};
use sluice_policy::transition_log::TransitionLog;
use sluice_policy::{Index, compile};
use sluice_proto::apply::{Applied, PolicySet, RouteName};
use sluice_proto::report::{Hello, Report, TargetTransition};
use sluice_proto::v1;
use sluice_proto::v1::agent_message::Message as FromAgent;
use sluice_proto::v1::controller_message::Message as ToAgent;
use sluice_proto::v1::policy_discovery_client::PolicyDiscoveryClient;
use sluice_proto::v1::replica_sync_client::ReplicaSyncClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status, Streaming};

/// Far beyond what anything here takes.
const BOUND: Duration = Duration::from_mins(1);

pub struct Plane {
    pub publisher: Arc<Publisher>,
    pub fleet: Arc<Fleet>,
    pub transitions: mpsc::Receiver<TargetTransition>,
    pub log: Arc<TransitionLog>,
    pub shutdown: CancellationToken,
    address: SocketAddr,
}

/// Replicas send this word.
pub struct Password;

impl RecogniseReplica for Password {
    async fn recognise(&self, metadata: &MetadataMap) -> Result<(), Status> {
        let word = metadata.get("authorization").map(AsRef::as_ref);
        if word == Some(&b"replica"[..]) { Ok(()) } else { Err(Status::unauthenticated("who are you?")) }
    }
}

/// Credentials of one namespace.
pub struct BoundTo(pub &'static str);

impl Authenticate for BoundTo {
    async fn authenticate(
        &self,
        _: &MetadataMap,
        _: Option<SocketAddr>,
        _: &Hello,
    ) -> Result<Identity, Status> {
        let scope = Scope { namespace: self.0.into(), labels: [].into() };
        Ok(Identity { scope, pod: "pod".into(), uid: "".into(), valid_for: None })
    }
}

impl Plane {
    pub async fn start(settings: Settings) -> Self {
        Self::start_with(settings, TrustLoopback).await
    }

    pub async fn start_with(settings: Settings, authenticate: impl Authenticate) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (fleet, transitions) = Fleet::new();
        let (publisher, fleet) = (Arc::new(Publisher::new()), Arc::new(fleet));
        let shutdown = CancellationToken::new();
        let service = Discovery::new(
            Arc::clone(&publisher),
            Arc::clone(&fleet),
            authenticate,
            settings,
            Random::seeded(7),
            shutdown.clone(),
        );
        let log = Arc::new(TransitionLog::default());
        let replicas = ReplicaService::new(Arc::clone(&fleet), Arc::clone(&log), Password, shutdown.clone());
        let server = tonic::transport::Server::builder()
            .add_service(service.into_server())
            .add_service(replicas.into_server())
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(server);
        Self { publisher, fleet, transitions, log, shutdown, address }
    }

    /// Asks as another replica does.
    pub async fn ask(&self, word: Option<&str>) -> Result<Streaming<v1::ReplicaSaid>, Status> {
        let mut client = ReplicaSyncClient::connect(format!("http://{}", self.address)).await.unwrap();
        let mut request = tonic::Request::new(v1::WatchRequest { replica: "other".to_owned() });
        if let Some(word) = word {
            request.metadata_mut().insert("authorization", word.parse().unwrap());
        }
        Ok(client.watch(request).await?.into_inner())
    }

    /// Opens a stream, says nothing on it, and waits for how it is refused.
    pub fn say_nothing(&self) -> impl Future<Output = Code> + Send + 'static {
        let url = format!("http://{}", self.address);
        async move {
            let mut client = PolicyDiscoveryClient::connect(url).await.unwrap();
            client.stream(tokio_stream::pending()).await.err().unwrap().code()
        }
    }

    pub fn publish(&self, index: &Index) {
        assert_eq!(self.publisher.publish(Arc::new(compile(index))), []);
    }

    pub fn facts(&self, route: &Key) -> AgentFacts {
        self.fleet.facts(&name(&route.name))
    }
}

/// The version that agents of no labels get of an index.
pub fn newest_version(index: &Index) -> String {
    let publisher = Publisher::new();
    publisher.publish(Arc::new(compile(index)));
    let audience = Audience {
        scope: Scope { namespace: "ns".into(), labels: [].into() },
        features: hello("any").features,
    };
    publisher.subscribe(audience).unwrap().borrow().as_ref().unwrap().version.to_string()
}

pub struct Agent {
    pub applied: Applied,
    to: mpsc::Sender<v1::AgentMessage>,
    from: Streaming<v1::ControllerMessage>,
}

impl Agent {
    pub async fn connect(plane: &Plane, hello: Hello) -> Self {
        Self::try_connect(plane, FromAgent::Hello(hello.encode())).await.unwrap()
    }

    pub async fn try_connect(plane: &Plane, first: FromAgent) -> Result<Self, Status> {
        let mut client = PolicyDiscoveryClient::connect(format!("http://{}", plane.address)).await.unwrap();
        let (to, outbound) = mpsc::channel(8);
        to.send(v1::AgentMessage { message: Some(first) }).await.unwrap();
        let from = client.stream(ReceiverStream::new(outbound)).await?.into_inner();
        Ok(Self { applied: Applied::new(), to, from })
    }

    pub async fn send(&self, message: FromAgent) {
        self.to.send(v1::AgentMessage { message: Some(message) }).await.unwrap();
    }

    pub async fn report(&self, report: Report) {
        self.send(FromAgent::Report(report.encode())).await;
    }

    pub async fn message(&mut self) -> Option<ToAgent> {
        let message = tokio::time::timeout(BOUND, self.from.message()).await.expect("no message came");
        message.unwrap().and_then(|message| message.message)
    }

    /// The next message, which must be a snapshot.
    pub async fn snapshot(&mut self) -> v1::Snapshot {
        match self.message().await {
            Some(ToAgent::Snapshot(snapshot)) => snapshot,
            other => panic!("{other:?} is no snapshot"),
        }
    }

    /// Reads counts until a target has so many agents.
    pub async fn counts_until(&mut self, target: &TargetId, agents: u32) {
        loop {
            let Some(ToAgent::Agents(counts)) = self.message().await else { panic!("no counts") };
            if self.applied.count(&counts).agents.get(target) == Some(&agents) {
                return;
            }
        }
    }

    pub async fn apply(&mut self, snapshot: v1::Snapshot) -> Arc<PolicySet> {
        let (set, ack) = self.applied.apply(snapshot);
        self.send(FromAgent::Ack(ack.encode())).await;
        set
    }

    /// How the stream ends.
    pub async fn end(&mut self) -> Status {
        loop {
            match tokio::time::timeout(BOUND, self.from.message()).await.expect("the stream does not end") {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended without a status"),
                Err(status) => return status,
            }
        }
    }
}

pub fn hello(agent_id: &str) -> Hello {
    Hello {
        agent_id: agent_id.into(),
        namespace: "ns".into(),
        pod: "pod".into(),
        labels: [].into(),
        features: sluice_proto::feature::Feature::ALL.into_iter().collect(),
        build: "test".into(),
        applied_version: "".into(),
    }
}

pub fn name(route: &str) -> RouteName {
    RouteName { namespace: "ns".into(), name: route.into() }
}

pub fn at(seconds: i64) -> Time {
    Time(k8s_openapi::jiff::Timestamp::from_second(seconds).unwrap())
}

/// Waits for a condition that another task brings about.
pub async fn eventually(condition: impl Fn() -> bool) {
    let reached = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(BOUND, reached).await.expect("the condition is never met");
}
