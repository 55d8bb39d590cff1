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
//! | [`peers`] | what the agents of the other replicas say |
//! | [`breakers`] | the breakers, from the shared state |
//! | [`status`], [`events`] | what is written |
//! | [`writers`] | how these hang together |
//! | [`certificates`] | the control plane's own authority |
//! | [`connections`] | TLS whose certificate changes while connections live |
//! | [`injection`] | pods with an agent |
//! | [`admin`], [`metrics`] | how it is |
//! | [`tasks`] | everything that goes on at once |

mod admin;
#[cfg(test)]
mod api_server;
mod breakers;
mod certificates;
mod clock;
pub mod config;
mod connections;
mod events;
mod injection;
mod lease;
mod metrics;
mod mirror;
mod namespaces;
mod peers;
mod plane;
mod pods;
mod secrets;
mod status;
mod tasks;
#[cfg(test)]
mod tests;
mod tokens;
mod watch;
mod writers;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kube::Client;
use parking_lot::Mutex;
use sluice_policy::fleet::Fleet;
use sluice_policy::index::Index;
use sluice_policy::metrics::ControlMetrics;
use sluice_policy::publish::Publisher;
use sluice_policy::random::Random;
use sluice_policy::replica_service::ReplicaService;
use sluice_policy::service::{Counting, Discovery, Settings};
use sluice_policy::transition_log::TransitionLog;
use sluice_telemetry::Signals;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use crate::admin::Admin;
use crate::certificates::bundles::{BundleWriter, Published, Users};
use crate::certificates::keeper::{Adopted, Keeper};
use crate::certificates::webhooks::TrustWriter;
use crate::config::{Config, Listeners};
use crate::connections::{Bounds, Connection, Shown};
use crate::injection::missing::{MissingAgents, Search};
use crate::injection::webhook::{self, Injector};
use crate::lease::{Election, Tenure};
use crate::metrics::ControllerMetrics;
use crate::namespaces::Namespaces;
use crate::plane::{Newest, Plane};
use crate::pods::Pods;
use crate::tasks::Tasks;
use crate::tokens::{PeerTokens, Tokens};
use crate::watch::Source;
use crate::writers::Voices;

pub use crate::pods::INJECTED;
pub use crate::status::FIELD_MANAGER;
pub use crate::tokens::{AUDIENCE, PEER_AUDIENCE};

/// Changes that wait for the plane; a watch waits for room.
const CHANGES: usize = 1_024;
/// Agents' connections at once: more than the streams that are served.
const AGENT_CONNECTIONS: usize = 12_000;
/// Connections of API servers at once.
const WEBHOOK_CONNECTIONS: usize = 256;
/// Streams of one connection: an agent has one, and another one while it changes over.
const STREAMS_PER_CONNECTION: u32 = 16;
/// A connection whose other end vanished is found out after both.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_WITHIN: Duration = Duration::from_secs(20);
/// How long agents' connections may last after their streams have ended.
const DRAIN_WITHIN: Duration = Duration::from_secs(2);

/// One replica.
pub struct Controller {
    fleet: Arc<Fleet>,
    admin: Admin,
    tasks: Tasks,
}

/// What its parts share.
struct Parts {
    client: Client,
    index: Arc<Mutex<Index>>,
    newest: Newest,
    pods: Arc<Pods>,
    tenure: Tenure,
    metrics: Arc<ControllerMetrics>,
}

impl Controller {
    /// Starts everything; policies are served once the cluster has been seen.
    ///
    /// # Errors
    /// When the operating system has no randomness, or the cryptography no TLS.
    pub fn start(
        client: Client,
        config: &Config,
        listeners: Listeners,
        signals: &Signals,
    ) -> anyhow::Result<Self> {
        let mut tasks = Tasks::default();
        let (publisher, pods) = (Arc::new(Publisher::new()), Arc::new(Pods::default()));
        let (fleet, transitions) = Fleet::new();
        let fleet = Arc::new(fleet);
        let (page, metrics) = metrics_of(&fleet, signals);
        let (changes, received) = mpsc::channel(CHANGES);
        let sources = sources(config);
        let (plane, index, newest) = Plane::new(
            client.clone(),
            &sources,
            (publisher.clone(), fleet.clone()),
            pods.clone(),
            page.clone(),
            changes.clone(),
        );
        let pod = config.pod.as_str().into();
        let (election, tenure) =
            Election::new(client.clone(), &config.namespace, &config.lease, pod, config.paces);
        let parts = Parts { client, index, newest, pods, tenure, metrics };
        for source in sources {
            let watch = watch::follow(parts.client.clone(), source, changes.clone());
            tasks.run("a watch", watch);
        }
        tasks.run("the plane", plane.run(received));
        tasks.finish("the election", election.run(tasks.stop()));
        let shown = Arc::new(Shown::default());
        let adopted = config.certifies().then(|| parts.certify(&mut tasks, config, &shown));
        let injection = match &adopted {
            Some(adopted) => {
                let (namespaces, published) = parts.publish(&mut tasks, config, adopted);
                let webhook = config.webhook_configuration.as_deref().zip(listeners.webhook);
                match webhook {
                    Some((name, listener)) => {
                        parts.trust_webhook(&mut tasks, name, adopted);
                        let missing =
                            parts.inject(&mut tasks, config, listener, (&namespaces, published), &shown)?;
                        Some((namespaces, missing))
                    }
                    None => None,
                }
            }
            None => None,
        };
        let (namespaces, missing) = injection.unzip();
        let log = Arc::new(TransitionLog::default());
        let voices = Voices { fleet: &fleet, publisher: &publisher, transitions, log: &log, missing };
        writers::start(&parts, &mut tasks, config, adopted.as_ref(), voices)?;
        let bounds = Bounds::new(
            if config.insecure { None } else { Some(connections::tls(shown, "h2")?) },
            AGENT_CONNECTIONS,
        )
        .with_guests();
        let replicas = writers::replica_service(&parts, &tasks, config, &fleet, &log);
        parts.serve_policies(&mut tasks, listeners.policies, bounds, (publisher, fleet.clone()), replicas)?;
        let admin = Admin {
            newest: parts.newest,
            adopted,
            namespaces,
            health: tasks.health(),
            metrics: page,
            stop: tasks.stop(),
        };
        if let Some(listener) = listeners.admin {
            tasks.finish("the admin port", admin::serve(listener, admin.clone()));
        }
        Ok(Self { fleet, admin, tasks })
    }

    /// Whether the cluster has been seen, so that agents get what there is, and can be served.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.admin.unready().is_none()
    }

    /// Agents with a stream to this replica.
    #[must_use]
    pub fn connected_agents(&self) -> usize {
        self.fleet.connected()
    }

    /// Ends everything; agents go to another replica, and another one may write.
    pub async fn stop(self) {
        self.tasks.end().await;
    }
}

impl Parts {
    /// Keeps the certificates, and shows the newest to new connections.
    fn certify(&self, tasks: &mut Tasks, config: &Config, shown: &Arc<Shown>) -> Adopted {
        let clock = Arc::new(|| clock::unix_ms() / 1_000);
        let (keeper, adopted) =
            Keeper::new(self.client.clone(), &config.namespace, &config.service, config.lives, clock);
        tasks.run("certificates", keeper.run());
        let show = certificates::show(adopted.clone(), shown.clone(), self.metrics.clone());
        tasks.run("the newest certificate", show);
        adopted
    }

    /// Publishes the authorities to the namespaces that use them.
    fn publish(&self, tasks: &mut Tasks, config: &Config, adopted: &Adopted) -> (Namespaces, Arc<Published>) {
        let (namespaces, watch) = Namespaces::follow(self.client.clone());
        tasks.run("namespaces", watch);
        let (published, watches) =
            Published::new(self.client.clone(), adopted.clone(), config.namespaces().as_ref());
        for watch in watches {
            tasks.run("ConfigMaps", watch);
        }
        let published = Arc::new(published);
        let users = Users {
            own: config.namespace.as_str().into(),
            index: self.index.clone(),
            pods: self.pods.clone(),
            namespaces: namespaces.clone(),
        };
        let writer = BundleWriter::new(published.clone(), users, self.tenure.clone(), self.metrics.clone());
        tasks.run("authorities", writer.run());
        (namespaces, published)
    }

    /// Tells the API server whom to trust when it calls the webhook.
    fn trust_webhook(&self, tasks: &mut Tasks, configuration: &str, adopted: &Adopted) {
        let (trust, watch) =
            TrustWriter::new(self.client.clone(), configuration, adopted.clone(), self.tenure.clone());
        tasks.run("the webhook's configuration", watch);
        tasks.run("caBundle", trust.run());
    }

    /// Serves the webhook, and looks for pods that it was not asked about, which it gives.
    fn inject(
        &self,
        tasks: &mut Tasks,
        config: &Config,
        listener: TcpListener,
        (namespaces, published): (&Namespaces, Arc<Published>),
        shown: &Arc<Shown>,
    ) -> anyhow::Result<MissingAgents> {
        let (search, missing) = Search::new(
            self.client.clone(),
            namespaces.clone(),
            config.namespaces(),
            self.tenure.clone(),
            self.metrics.clone(),
        );
        tasks.run("pods without an agent", search.run());
        let injector = Injector::new(
            config.sidecar.clone(),
            namespaces.clone(),
            self.index.clone(),
            published,
            self.metrics.clone(),
        );
        let bounds = Bounds::new(Some(connections::tls(shown.clone(), "http/1.1")?), WEBHOOK_CONNECTIONS);
        let connections = connections::accept(listener, bounds, tasks.stop());
        let router = webhook::router(Arc::new(injector));
        tasks.finish("the webhook", webhook::serve(connections, router, tasks.stop()));
        Ok(missing)
    }

    fn serve_policies(
        &self,
        tasks: &mut Tasks,
        listener: TcpListener,
        bounds: Bounds,
        (publisher, fleet): (Arc<Publisher>, Arc<Fleet>),
        replicas: Option<ReplicaService<PeerTokens>>,
    ) -> anyhow::Result<()> {
        if bounds.tls.is_none() {
            tracing::warn!("agents are served without TLS: whoever listens in sees their credentials");
        }
        let settings = Settings { counting: Counting::Elsewhere, ..Settings::default() };
        let tokens = Tokens::new(self.client.clone(), self.pods.clone());
        let random = Random::from_system().context("random numbers")?;
        let discovery = Discovery::new(publisher, fleet, tokens, settings, random, tasks.stop());
        let connections = connections::accept(listener, bounds, tasks.stop());
        tasks.finish("the policy service", serve((discovery, replicas), connections, tasks.stop()));
        Ok(())
    }
}

/// The page of `/metrics`, which goes out over OTLP too, and the part of it that is counted here.
fn metrics_of(fleet: &Arc<Fleet>, signals: &Signals) -> (Arc<ControlMetrics>, Arc<ControllerMetrics>) {
    let metrics = Arc::new(ControllerMetrics::default());
    let mut page = ControlMetrics::new(signals.books(), fleet.clone());
    metrics.register(page.page_mut());
    let page = Arc::new(page);
    signals.export_metrics(page.clone());
    (page, metrics)
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

async fn serve(
    (discovery, replicas): (Discovery<Tokens>, Option<ReplicaService<PeerTokens>>),
    connections: ReceiverStream<io::Result<Connection>>,
    stop: CancellationToken,
) {
    let server = Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_WITHIN))
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .add_service(discovery.into_server())
        .add_optional_service(replicas.map(ReplicaService::into_server))
        .serve_with_incoming_shutdown(connections, stop.clone().cancelled_owned());
    // Its streams end with the replica; a connection without one is its client's to close, and isn't waited for.
    let overdue = async {
        stop.cancelled().await;
        tokio::time::sleep(DRAIN_WITHIN).await;
    };
    tokio::select! {
        served = server => if let Err(error) = served {
            tracing::error!(%error, "the policy service ended");
        },
        () = overdue => tracing::debug!("connections of agents did not end in time and are cut"),
    }
}
