//! The Kubernetes side of Sluice: watches resources, serves agents, writes status and Events.
//!
//! The control plane itself, from resources to policies and conditions, is `sluice-policy`; here it is tied to an API
//! server. Every replica watches and serves; the holder of a Lease writes.
//!
//! | module | what it does |
//! |---|---|
//! | [`watch`] | what the API server says, as changes |
//! | [`plane`] | changes → index → compile → publish: the CR path on one page |
//! | [`secrets`] | the Secrets that routes name, and no others |
//! | [`pods`] | pods that run an agent |
//! | [`tokens`] | who an agent is |
//! | [`lease`] | who writes |
//! | [`status`], [`events`] | what is written |
//! | [`certificates`] | the control plane's own authority |
//! | [`injection`] | pods with an agent |

#[allow(dead_code, reason = "served by the next slice")]
mod certificates;
mod clock;
pub mod config;
mod events;
#[allow(dead_code, reason = "served by the next slice")]
mod injection;
mod lease;
mod plane;
mod pods;
mod secrets;
mod status;
mod tokens;
mod watch;

use std::sync::Arc;

use anyhow::Context as _;
use kube::Client;
use sluice_policy::fleet::Fleet;
use sluice_policy::publish::Publisher;
use sluice_policy::random::Random;
use sluice_policy::service::{Counting, Discovery, Settings};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use crate::config::Config;
use crate::events::EventWriter;
use crate::lease::{Election, Times};
use crate::plane::{Newest, Plane};
use crate::pods::Pods;
use crate::status::StatusWriter;
use crate::tokens::Tokens;
use crate::watch::Source;

pub use crate::pods::INJECTED;
pub use crate::status::FIELD_MANAGER;
pub use crate::tokens::AUDIENCE;

/// Changes that wait for the plane; a watch waits for room.
const CHANGES: usize = 1_024;

/// One replica.
pub struct Controller {
    fleet: Arc<Fleet>,
    newest: Newest,
    stop: CancellationToken,
    tasks: tokio::task::JoinSet<()>,
}

impl Controller {
    /// Starts everything; policies are served on `listener` once the cluster has been seen.
    ///
    /// # Errors
    /// When the operating system has no randomness.
    pub fn start(client: Client, config: &Config, listener: TcpListener) -> anyhow::Result<Self> {
        let stop = CancellationToken::new();
        let (publisher, pods) = (Arc::new(Publisher::new()), Arc::new(Pods::default()));
        let (fleet, transitions) = Fleet::new();
        let fleet = Arc::new(fleet);
        let (changes, received) = mpsc::channel(CHANGES);
        let sources = sources(config);
        let (plane, index, newest) =
            Plane::new(client.clone(), &sources, publisher.clone(), pods.clone(), changes.clone());
        let pod: Arc<str> = config.pod.as_str().into();
        let (election, tenure) =
            Election::new(client.clone(), &config.namespace, &config.lease, pod.clone(), Times::default());

        let mut tasks = tokio::task::JoinSet::new();
        for source in sources {
            tasks.spawn(until(&stop, watch::follow(client.clone(), source, changes.clone())));
        }
        tasks.spawn(until(&stop, plane.run(received)));
        tasks.spawn(election.run(stop.child_token()));
        let (of_status, of_events) = (index.clone(), index);
        let status =
            StatusWriter::new(client.clone(), of_status, newest.clone(), fleet.clone(), tenure.clone());
        tasks.spawn(status.run(stop.child_token()));
        let events =
            EventWriter { client: client.clone(), index: of_events, newest: newest.clone(), tenure, pod };
        tasks.spawn(until(&stop, events.run(transitions)));

        let settings = Settings { counting: Counting::Elsewhere, ..Settings::default() };
        let tokens = Tokens::new(client, pods);
        let random = Random::from_system().context("random numbers")?;
        let discovery =
            Discovery::new(publisher, fleet.clone(), tokens, settings, random, stop.child_token());
        tasks.spawn(serve(discovery, listener, stop.clone()));
        Ok(Self { fleet, newest, stop, tasks })
    }

    /// Whether the cluster has been seen, so that agents get what there is.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.newest.borrow().is_some()
    }

    /// Agents with a stream to this replica.
    #[must_use]
    pub fn connected_agents(&self) -> usize {
        self.fleet.connected()
    }

    /// Ends everything; agents go to another replica, and another one may write.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

fn sources(config: &Config) -> Vec<Source> {
    let mut sources = vec![Source::Routes, Source::Policies, Source::Pods];
    if config.all_secrets {
        sources.push(Source::Secrets(None));
    } else {
        sources.extend(config.secret_namespaces.iter().cloned().map(|name| Source::Secrets(Some(name))));
    }
    sources
}

/// Work that ends with the replica.
fn until(
    stop: &CancellationToken,
    work: impl Future<Output = ()> + Send + 'static,
) -> futures_util::future::BoxFuture<'static, ()> {
    let stop = stop.child_token();
    Box::pin(async move {
        stop.run_until_cancelled_owned(work).await;
    })
}

async fn serve(discovery: Discovery<Tokens>, listener: TcpListener, stop: CancellationToken) {
    let server = Server::builder()
        .add_service(discovery.into_server())
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stop.cancelled_owned());
    if let Err(error) = server.await {
        tracing::error!(%error, "the policy service ended");
    }
}
