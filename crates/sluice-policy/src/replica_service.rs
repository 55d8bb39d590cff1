//! The gRPC service that tells another replica what the agents of this one say.
//!
//! Why the one that writes asks, rather than each telling it: it knows at once whom it has not heard, and a replica
//! need not know who writes.
//!
//! Mechanics: first everything, in parts, then once a second what changed. Transitions are told at once. The transport
//! has the last word on pace: nothing is worked out before there is room.
//!
//! Edge rules
//! - A stream ends with OK when the replica does: its agents are gone. It is recycled with UNAVAILABLE, since whoever
//!   asks was recognised by a credential that ends.
//! - Only so many are told at once: the one that writes, and the one before that has not noticed. Callers of whom it is
//!   not known yet that they are replicas are few as well, and fewer of one address.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use sluice_proto::replica::ReplicaSaid;
use sluice_proto::v1;
use sluice_proto::v1::replica_sync_server::{ReplicaSync, ReplicaSyncServer};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use crate::callers::{Caller, Places, Served};
use crate::clock;
use crate::fleet::Fleet;
use crate::said::{Said, parts};
use crate::transition_log::{Place, TransitionLog};

/// Between two looks at what changed.
const EVERY: Duration = Duration::from_secs(1);
const LIFE: Duration = Duration::from_mins(10);
/// Who is told at once.
const WATCHERS: usize = 8;
/// Who is not recognised yet, and of those of one address.
const WAITING: usize = 256;
const WAITING_PER_ADDRESS: usize = 4;
/// Largest message that is sent: a thousand entries at their bounds are well below.
pub const MAX_REPLICA_MESSAGE_BYTES: usize = 8 * 1024 * 1024;
const MAX_REQUEST_BYTES: usize = 64 * 1024;

/// Finds out whether a caller is a replica of this control plane.
pub trait RecogniseReplica: Send + Sync + 'static {
    /// # Errors
    /// UNAUTHENTICATED, PERMISSION_DENIED, or UNAVAILABLE to come back later.
    fn recognise(&self, metadata: &MetadataMap) -> impl Future<Output = Result<(), Status>> + Send;
}

/// The service.
#[derive(Debug)]
pub struct ReplicaService<R> {
    fleet: Arc<Fleet>,
    log: Arc<TransitionLog>,
    recognise: R,
    door: Arc<Places>,
    places: Arc<Semaphore>,
    stop: CancellationToken,
}

impl<R: RecogniseReplica> ReplicaService<R> {
    #[must_use]
    pub fn new(fleet: Arc<Fleet>, log: Arc<TransitionLog>, recognise: R, stop: CancellationToken) -> Self {
        let door = Arc::new(Places::new(WAITING, WAITING_PER_ADDRESS));
        Self { fleet, log, recognise, door, places: Arc::new(Semaphore::new(WATCHERS)), stop }
    }

    /// The service as a server takes it, with its bounds.
    #[must_use]
    pub fn into_server(self) -> ReplicaSyncServer<Self> {
        ReplicaSyncServer::new(self)
            .max_decoding_message_size(MAX_REQUEST_BYTES)
            .max_encoding_message_size(MAX_REPLICA_MESSAGE_BYTES)
    }
}

type Outbound = mpsc::Sender<Result<v1::ReplicaSaid, Status>>;

#[tonic::async_trait]
impl<R: RecogniseReplica> ReplicaSync for ReplicaService<R> {
    type WatchStream = ReceiverStream<Result<v1::ReplicaSaid, Status>>;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let caller = Caller::of(&request);
        let waiting = self.door.take(caller.address());
        let waiting = waiting.ok_or_else(|| Status::resource_exhausted("too many at the door: come back"))?;
        self.recognise.recognise(request.metadata()).await?;
        drop(waiting);
        let place = Arc::clone(&self.places)
            .try_acquire_owned()
            .map_err(|_| Status::resource_exhausted("too many replicas ask already: come back later"))?;
        let replica: String = request.into_inner().replica.chars().take(253).collect();
        tracing::debug!(replica, "another replica asks what the agents here say");
        let (outbound, messages) = mpsc::channel(1);
        let teller = Teller {
            fleet: Arc::clone(&self.fleet),
            log: Arc::clone(&self.log),
            told: Said::default(),
            place: Place::default(),
            _held: (place, caller.serve()),
        };
        tokio::spawn(teller.run(outbound, self.stop.child_token()));
        Ok(Response::new(ReceiverStream::new(messages)))
    }
}

/// One stream.
struct Teller {
    fleet: Arc<Fleet>,
    log: Arc<TransitionLog>,
    /// What the other one knows.
    told: Said,
    place: Place,
    /// Its place among the watchers, and its connection.
    _held: (OwnedSemaphorePermit, Served),
}

/// Nobody listens any more.
struct Gone;

impl Teller {
    async fn run(mut self, outbound: Outbound, stop: CancellationToken) {
        let told = tokio::select! {
            told = self.tell_for_life(&outbound) => told,
            () = stop.cancelled() => return,
            () = outbound.closed() => return,
        };
        if told.is_ok() {
            // One that reads nothing hears of the end by the end.
            let _ = outbound.try_send(Err(Status::unavailable("the stream is recycled: ask again")));
        }
    }

    async fn tell_for_life(&mut self, outbound: &Outbound) -> Result<(), Gone> {
        let mut news = self.log.watch();
        let mut look = tokio::time::interval(EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut end = std::pin::pin!(tokio::time::sleep(LIFE));
        let mut whole = true;
        loop {
            tokio::select! {
                _ = look.tick() => {
                    let said = self.fleet.said();
                    let changes = ReplicaSaid { whole, ..said.since(&self.told) };
                    self.told = said;
                    self.tell(outbound, changes).await?;
                    whole = false;
                }
                Ok(()) = news.changed(), if !whole => self.tell(outbound, ReplicaSaid::default()).await?,
                () = &mut end => return Ok(()),
            }
        }
    }

    /// Tells this, and the transitions that came since.
    async fn tell(&mut self, outbound: &Outbound, mut said: ReplicaSaid) -> Result<(), Gone> {
        let read = self.log.read(self.place, usize::MAX, clock::now());
        self.place = read.next;
        said.transitions = read.transitions;
        if said == ReplicaSaid::default() {
            return Ok(());
        }
        for part in parts(said) {
            outbound.send(Ok(part.encode())).await.map_err(|_| Gone)?;
        }
        Ok(())
    }
}
