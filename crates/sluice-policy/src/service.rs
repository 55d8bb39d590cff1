//! The gRPC service: hello → snapshot → answer, for as long as a stream lives.
//!
//! One task per stream, and it owns everything of the stream. It writes only when the transport has room
//! and then takes the newest value, so an agent that reads slowly costs one message and skips the rest.
//!
//! Edge rules
//! - The first message must be a hello, within ten seconds; a second one ends the stream.
//! - A stream takes a place among those of agents once it is authenticated. Before that it has one at the door, of which
//!   there are few, and fewer for one address: see [`crate::callers`].
//! - A stream ends after half an hour ± 20 %, so that agents spread over replicas again after a rollout; when
//!   the agent's credential expires; when the same agent opens another; when its pod has too many or is gone; and on shutdown.
//!   It ends with UNAVAILABLE, which tells the agent to connect again.
//! - When the pod's labels change, the stream goes on with what they select.
//! - What cannot be decoded ends the stream with INVALID_ARGUMENT: the agent is newer, or broken.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sluice_core::admission::Draw;
use sluice_core::policy::SecretKey;
use sluice_core::target_id::TargetId;
use sluice_proto::report::{Ack, Hello, Report};
use sluice_proto::sent::ControllerMessage;
use sluice_proto::sent::policy_discovery_server::{PolicyDiscovery, PolicyDiscoveryServer};
use sluice_proto::v1;
use sluice_proto::v1::agent_message::Message as FromAgent;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use crate::callers::{Caller, Places, Served};
use crate::compile::{Scope, SecretVersion};
use crate::fleet::{AgentName, Fleet, Joining, StreamId};
use crate::index::Key;
use crate::publish::{Audience, Newest, Published, Publisher};
use crate::random::Random;

/// Largest message of an agent: a report at its bounds is well below.
const MAX_AGENT_MESSAGE_BYTES: usize = 1024 * 1024;

/// Who an agent is, as its credential says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub scope: Scope,
    pub pod: Arc<str>,
    /// Tells the pod from others of its name; empty where there are no pods.
    pub uid: Arc<str>,
    /// For how long the credential is good; `None`: for as long as the stream lives.
    pub valid_for: Option<Duration>,
}

/// Finds out who an agent is.
pub trait Authenticate: Send + Sync + 'static {
    /// # Errors
    /// UNAUTHENTICATED, PERMISSION_DENIED, or UNAVAILABLE to come back later.
    fn authenticate(
        &self,
        metadata: &MetadataMap,
        peer: Option<SocketAddr>,
        hello: &Hello,
    ) -> impl Future<Output = Result<Identity, Status>> + Send;

    /// The pod's labels, for who follows them and tells [`Fleet::relabel`] of changes; `None`: as the identity says.
    ///
    /// Asked when the stream has joined the fleet, so that no change is missed between the two.
    fn labels_now(&self, _of: &Identity) -> Option<BTreeMap<String, String>> {
        None
    }
}

/// For `sluice run`: agents of the same machine are who they say they are.
#[derive(Debug, Clone, Copy, Default)]
pub struct TrustLoopback;

impl Authenticate for TrustLoopback {
    async fn authenticate(
        &self,
        _metadata: &MetadataMap,
        peer: Option<SocketAddr>,
        hello: &Hello,
    ) -> Result<Identity, Status> {
        if !peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback()) {
            return Err(Status::permission_denied("only agents of this machine are served"));
        }
        let scope = Scope { namespace: Arc::clone(&hello.namespace), labels: hello.labels.clone() };
        Ok(Identity { scope, pod: Arc::clone(&hello.pod), uid: "".into(), valid_for: None })
    }
}

/// Who counts the agents that share a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    /// The service counts its streams: there is no other replica.
    Streams,
    /// Someone else calls [`Publisher::count_agents`].
    Elsewhere,
}

#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub hello_within: Duration,
    /// ± 20 %.
    pub stream_life: Duration,
    /// Of agents.
    pub max_streams: usize,
    /// A pod runs one agent, which may have been restarted, and tells its streams apart by words of its own: so many of
    /// them, and with one more the oldest ends.
    pub streams_per_pod: usize,
    /// Streams of which it is not known yet whose they are.
    pub waiting_streams: usize,
    /// Of those, of one address.
    pub waiting_per_address: usize,
    pub counting: Counting,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            hello_within: Duration::from_secs(10),
            stream_life: Duration::from_mins(30),
            max_streams: 10_000,
            streams_per_pod: 8,
            waiting_streams: 1_024,
            waiting_per_address: 64,
            counting: Counting::Elsewhere,
        }
    }
}

/// The service.
#[derive(Debug)]
pub struct Discovery<A> {
    shared: Arc<Shared>,
    authenticate: A,
    door: Arc<Places>,
    streams: Arc<Semaphore>,
    settings: Settings,
}

#[derive(Debug)]
struct Shared {
    publisher: Arc<Publisher>,
    fleet: Arc<Fleet>,
    shutdown: CancellationToken,
    counting: Counting,
    random: Random,
}

impl<A: Authenticate> Discovery<A> {
    #[must_use]
    pub fn new(
        publisher: Arc<Publisher>,
        fleet: Arc<Fleet>,
        authenticate: A,
        settings: Settings,
        random: Random,
        shutdown: CancellationToken,
    ) -> Self {
        let counting = settings.counting;
        Self {
            shared: Arc::new(Shared { publisher, fleet, shutdown, counting, random }),
            authenticate,
            door: Arc::new(Places::new(settings.waiting_streams, settings.waiting_per_address)),
            streams: Arc::new(Semaphore::new(settings.max_streams)),
            settings,
        }
    }

    /// The service as a server takes it, with its bounds.
    #[must_use]
    pub fn into_server(self) -> PolicyDiscoveryServer<Self> {
        PolicyDiscoveryServer::new(self)
            .max_decoding_message_size(MAX_AGENT_MESSAGE_BYTES)
            .max_encoding_message_size(sluice_proto::MAX_MESSAGE_BYTES)
    }

    async fn hello(&self, inbound: &mut Streaming<v1::AgentMessage>) -> Result<Hello, Status> {
        let first = tokio::time::timeout(self.settings.hello_within, inbound.message())
            .await
            .map_err(|_| Status::deadline_exceeded("no hello came: send one first"))??;
        match first.and_then(|message| message.message) {
            Some(FromAgent::Hello(hello)) => Hello::decode(hello).map_err(|error| invalid(&error)),
            _ => Err(Status::invalid_argument("the first message is no hello: send one first")),
        }
    }
}

#[tonic::async_trait]
impl<A: Authenticate> PolicyDiscovery for Discovery<A> {
    type StreamStream = ReceiverStream<Result<ControllerMessage, Status>>;

    async fn stream(
        &self,
        request: Request<Streaming<v1::AgentMessage>>,
    ) -> Result<Response<Self::StreamStream>, Status> {
        let caller = Caller::of(&request);
        let waiting = self.door.take(caller.address());
        let waiting = waiting.ok_or_else(|| Status::resource_exhausted("too many at the door: come back"))?;
        let (metadata, _, mut inbound) = request.into_parts();
        let hello = self.hello(&mut inbound).await?;
        let identity = self.authenticate.authenticate(&metadata, caller.address(), &hello).await?;
        if identity.scope.namespace != hello.namespace {
            return Err(Status::permission_denied("the credential is of another namespace"));
        }
        let permit = Arc::clone(&self.streams)
            .try_acquire_owned()
            .map_err(|_| Status::resource_exhausted("too many streams: come back later"))?;
        drop(waiting);
        let audience = Audience { scope: identity.scope.clone(), features: hello.features.clone() };
        let newest = self.shared.subscribe(&audience)?;
        let end = self.shared.shutdown.child_token();
        let pod = Key { namespace: hello.namespace, name: Arc::clone(&identity.pod) };
        let agent =
            AgentName { namespace: pod.namespace.clone(), pod: pod.name.clone(), agent_id: hello.agent_id };
        tracing::debug!(namespace = %agent.namespace, pod = %agent.pod, build = %hello.build, "agent connected");
        let life = life(self.settings.stream_life, self.shared.random.draw());
        let (outbound, messages) = mpsc::channel(1);
        let (labels, relabelled) = watch::channel(identity.scope.labels.clone());
        let joining =
            Joining { agent, uid: identity.uid.clone(), labels, newest: newest.clone(), end: end.clone() };
        let id = self.shared.fleet.join(joining, self.settings.streams_per_pod);
        if let Some(labels) = self.authenticate.labels_now(&identity) {
            self.shared.fleet.relabel(&pod, &identity.uid, &labels);
        }
        let session = Session {
            id,
            pod: pod.name,
            shared: Arc::clone(&self.shared),
            audience,
            relabelled,
            newest,
            sent: None,
            _held: (permit, caller.serve()),
        };
        let life = identity.valid_for.map_or(life, |valid_for| valid_for.min(life));
        tokio::spawn(session.run(inbound, outbound, life, end));
        Ok(Response::new(ReceiverStream::new(messages)))
    }
}

impl Shared {
    fn subscribe(&self, audience: &Audience) -> Result<Newest, Status> {
        let newest = self.publisher.subscribe(audience.clone());
        newest.map_err(|error| Status::resource_exhausted(error.to_string()))
    }
}

/// Half an hour ± 20 %.
fn life(base: Duration, draw: Draw) -> Duration {
    base.mul_f64(0.8 + 0.4 * f64::from(draw.get()) / f64::from(Draw::BOUND))
}

fn invalid(error: &sluice_proto::decode::InvalidField) -> Status {
    Status::invalid_argument(error.to_string())
}

/// One stream.
struct Session {
    id: StreamId,
    pod: Arc<str>,
    shared: Arc<Shared>,
    audience: Audience,
    /// The pod's labels, when they change.
    relabelled: watch::Receiver<BTreeMap<String, String>>,
    newest: Newest,
    sent: Option<Sent>,
    /// Its place among the streams, and its connection.
    _held: (OwnedSemaphorePermit, Served),
}

/// What the agent has been sent last.
struct Sent {
    version: Arc<str>,
    secrets: Arc<BTreeMap<SecretKey, SecretVersion>>,
    held_secrets: Arc<BTreeSet<SecretKey>>,
    agents: Arc<BTreeMap<TargetId, u32>>,
}

impl Session {
    async fn run(
        mut self,
        mut inbound: Streaming<v1::AgentMessage>,
        outbound: mpsc::Sender<Result<ControllerMessage, Status>>,
        life: Duration,
        end: CancellationToken,
    ) {
        self.recount();
        let mut recycle = std::pin::pin!(tokio::time::sleep(life));
        // Whether the agent may not have the newest.
        let mut behind = true;
        let status = loop {
            tokio::select! {
                message = inbound.message() => match message {
                    Ok(Some(message)) => if let Err(status) = self.take(message) { break Some(status) },
                    Ok(None) | Err(_) => break None,
                },
                room = outbound.reserve(), if behind => match (room, self.next()) {
                    (Ok(room), Some(message)) => {
                        room.send(Ok(message));
                    }
                    (Ok(_), None) => behind = false,
                    (Err(_), _) => break None,
                },
                changed = self.newest.changed(), if !behind => match changed {
                    Ok(()) => behind = true,
                    Err(_) => break Some(Status::unavailable("the control plane ends: connect again")),
                },
                Ok(()) = self.relabelled.changed() => match self.follow_labels() {
                    Ok(()) => behind = true,
                    Err(status) => break Some(status),
                },
                () = &mut recycle => break Some(Status::unavailable("the stream is recycled: connect again")),
                () = end.cancelled() => break Some(Status::unavailable("the stream ends: connect again")),
            }
        };
        if let Some(status) = status {
            // An agent that reads nothing has no room for it, and hears of the end by the end.
            let _ = outbound.try_send(Err(status));
        }
    }

    /// The stream goes on with what the pod's labels select now.
    fn follow_labels(&mut self) -> Result<(), Status> {
        self.audience.scope.labels = self.relabelled.borrow_and_update().clone();
        tracing::debug!(pod = &*self.pod, "an agent's pod has other labels");
        self.newest = self.shared.subscribe(&self.audience)?;
        self.shared.fleet.moved(self.id, self.newest.clone());
        Ok(())
    }

    /// The next thing that the agent does not have.
    fn next(&mut self) -> Option<ControllerMessage> {
        let newest = self.newest.borrow_and_update().clone()?;
        let message = match &mut self.sent {
            Some(sent) if sent.version == newest.version => sent.difference(&newest)?,
            sent => {
                *sent = Some(Sent::all_of(&newest));
                self.snapshot(&newest)
            }
        };
        let kind = match &message {
            ControllerMessage { snapshot: Some(_), .. } => "snapshot",
            ControllerMessage { secrets: Some(_), .. } => "secrets",
            ControllerMessage { .. } => "agents",
        };
        self.shared.fleet.counts().pushed(kind);
        if message.snapshot.is_some() {
            self.recount();
        }
        Some(message)
    }

    #[tracing::instrument(name = "push", skip_all, fields(pod = &*self.pod, version = &*newest.version))]
    fn snapshot(&self, newest: &Arc<Published>) -> ControllerMessage {
        let nonce = self.shared.random.nonce();
        self.shared.fleet.sent(self.id, nonce.clone(), Arc::clone(newest));
        ControllerMessage { snapshot: Some(newest.snapshot(&nonce)), ..ControllerMessage::default() }
    }

    fn take(&self, message: v1::AgentMessage) -> Result<(), Status> {
        match message.message {
            Some(FromAgent::Ack(ack)) => {
                let ack = Ack::decode(ack).map_err(|error| invalid(&error))?;
                for rejection in &ack.rejected {
                    tracing::warn!(object = %rejection.object, generation = rejection.object.generation,
                        error = %rejection.error, "an agent rejects a route");
                }
                self.shared.fleet.answer(self.id, ack);
                Ok(())
            }
            Some(FromAgent::Report(report)) => {
                let report = Report::decode(report).map_err(|error| invalid(&error))?;
                self.shared.fleet.report(self.id, report);
                Ok(())
            }
            Some(FromAgent::Hello(_)) => Err(Status::invalid_argument("a second hello: send one per stream")),
            // A message that only a newer control plane knows.
            None => Ok(()),
        }
    }

    fn recount(&self) {
        if self.shared.counting == Counting::Streams {
            self.shared.publisher.count_agents(self.shared.fleet.agents_by_target());
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.fleet.leave(self.id);
        self.recount();
    }
}

impl Sent {
    fn all_of(published: &Published) -> Self {
        Self {
            version: Arc::clone(&published.version),
            secrets: Arc::clone(&published.secrets),
            held_secrets: Arc::clone(&published.held_secrets),
            agents: Arc::clone(&published.agents),
        }
    }

    /// What changed beside the policies, one thing at a time.
    fn difference(&mut self, newest: &Published) -> Option<ControllerMessage> {
        if self.secrets != newest.secrets || self.held_secrets != newest.held_secrets {
            self.secrets = Arc::clone(&newest.secrets);
            self.held_secrets = Arc::clone(&newest.held_secrets);
            let secrets = Some(newest.secret_set());
            return Some(ControllerMessage { secrets, ..ControllerMessage::default() });
        }
        if self.agents != newest.agents {
            self.agents = Arc::clone(&newest.agents);
            let agents = Some(newest.agent_counts());
            return Some(ControllerMessage { agents, ..ControllerMessage::default() });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_live_half_an_hour_give_or_take_a_fifth() {
        let base = Duration::from_mins(30);
        assert_eq!(life(base, Draw::new(0)), Duration::from_mins(24));
        assert_eq!(life(base, Draw::new(Draw::BOUND / 2)), base);
        assert!(life(base, Draw::new(Draw::BOUND - 1)) < Duration::from_mins(36));
    }
}
