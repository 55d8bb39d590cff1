//! The agent as a whole: what its parts share, and how it starts and ends.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use sluice_proto::apply::{Applied, PolicySet};
use sluice_proto::report::Rejection;
use sluice_state::store::{Shared as StateHome, Store, StoreConfig};
use sluice_telemetry::Tracer;
use sluice_telemetry::{MetricSource, TextFormat};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;

use crate::body_room::BodyRooms;
use crate::client_auth::Clients;
use crate::clock::Clock;
use crate::config::{AgentConfig, Identity};
use crate::control_plane::ControlPlane;
use crate::drain::Drain;
use crate::last_good::{self, Folder};
use crate::metrics::Metrics;
use crate::policies::Policies;
use crate::policy_client::Standing;
use crate::random::Random;
use crate::state::{AgentState, RejectedObject};
use crate::targets::TargetRegistry;
use crate::tls::ListenerTls;
use crate::transitions::Told;
use crate::upstream::Upstream;

/// Settlements get this long at shutdown.
const SETTLE_GRACE: Duration = Duration::from_secs(2);

/// What the parts of an agent share.
pub(crate) struct Shared {
    pub(crate) identity: Identity,
    /// Where breaker state is shared: `redis` or `embedded`.
    pub(crate) home: &'static str,
    pub(crate) grace: Duration,
    lame_duck: Duration,
    header_timeout: Duration,
    /// Drawn at the start: one agent's streams to the control plane have it in common.
    pub(crate) id: Arc<str>,
    /// What this agent writes into `x-sluice-via`; drawn, so that it names nothing to a provider.
    pub(crate) mark: u64,
    pub(crate) policies: ArcSwap<Policies>,
    pub(crate) store: Store,
    pub(crate) upstream: Upstream,
    pub(crate) clock: Clock,
    pub(crate) clients: Clients,
    tls: Option<Arc<ListenerTls>>,
    pub(crate) random: Random,
    pub(crate) tracer: Tracer,
    /// Apart from the rest, so that a settlement under way keeps no agent alive.
    pub(crate) told: Arc<Told>,
    pub(crate) metrics: Metrics,
    pub(crate) targets: TargetRegistry,
    pub(crate) drain: Drain,
    pub(crate) body_room: BodyRooms,
    /// Attempts that are settled behind their answers.
    pub(crate) settling: TaskTracker,
    /// Whether there are policies.
    pub(crate) ready: tokio::sync::watch::Sender<bool>,
    pub(crate) rejected: Mutex<Vec<RejectedObject>>,
    pub(crate) standing: Mutex<Standing>,
    /// What to begin with after a restart.
    pub(crate) last_good: tokio::sync::watch::Sender<Arc<PolicySet>>,
    folder: Option<Folder>,
    /// What an agent before this one had applied, until the control plane is followed.
    restored: Mutex<Option<Applied>>,
    /// Admissions whose tokens are not settled yet.
    pub(crate) unsettled: std::sync::atomic::AtomicU64,
}

/// An agent. Cheap to clone; all clones are one agent.
#[derive(Clone)]
pub struct Agent {
    shared: Arc<Shared>,
}

impl Agent {
    /// An agent without policies, but for those of a snapshot; it refuses everything until it has some.
    ///
    /// # Errors
    /// When the system's certificates or the clients' keys cannot be read, or the state store's configuration is bad.
    pub fn new(config: AgentConfig) -> anyhow::Result<Self> {
        let AgentConfig { identity, shared: state, grace, lame_duck, header_timeout, seed, .. } = config;
        let AgentConfig { tracer, books, snapshot, clients, tls, .. } = config;
        let clock = Clock::start();
        let seed = seed.unwrap_or_else(Random::system_seed);
        tracing::info!(agent = identity.name, seed, "agent starts");
        let random = Random::new(seed);
        let id: Arc<str> = format!("{}-{:016x}", identity.name, random.id()).into();
        let mark = random.id();
        let home = match &state {
            StateHome::Embedded(_) => "embedded",
            StateHome::Redis(_) => "redis",
        };
        let store = Store::new(StoreConfig {
            shared: state,
            agent: id.to_string(),
            seed: random.id(),
            clock: Arc::new(sluice_state::clock::SystemClock::start()),
        })?;
        let folder = snapshot.and_then(|path| open(&path, &identity));
        let shared = Shared {
            id,
            mark,
            policies: ArcSwap::from_pointee(Policies::empty()),
            store,
            upstream: Upstream::new()?,
            clock,
            clients: Clients::new(clients, clock)?,
            tls: tls.map(Arc::new),
            random,
            tracer,
            told: Arc::default(),
            metrics: Metrics::new(&books),
            targets: TargetRegistry::default(),
            drain: Drain::default(),
            body_room: BodyRooms::default(),
            settling: TaskTracker::new(),
            ready: tokio::sync::watch::Sender::new(false),
            rejected: Mutex::new(Vec::new()),
            standing: Mutex::default(),
            last_good: tokio::sync::watch::Sender::default(),
            restored: Mutex::default(),
            folder,
            unsettled: std::sync::atomic::AtomicU64::new(0),
            identity,
            home,
            grace,
            lame_duck,
            header_timeout,
        };
        shared.restore();
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Uses these policies from the next exchange on. With a control plane, [`follow`](Self::follow) does it.
    pub fn use_policies(&self, set: &PolicySet) {
        self.shared.use_policies(set, &[]);
    }

    /// Gets its policies from a control plane until the agent drains.
    pub async fn follow(&self, control_plane: ControlPlane) {
        let applied = self.shared.restored.lock().take().unwrap_or_default();
        crate::policy_client::follow(self.shared.clone(), control_plane, applied).await;
    }

    /// Serves applications until [`drain`](Self::drain) has ended the last exchange.
    pub async fn serve(&self, listener: TcpListener) {
        let shared = self.shared.clone();
        let handle = move |request, connection| crate::pipeline::handle(shared.clone(), request, connection);
        let Shared { drain, header_timeout, tls, .. } = &*self.shared;
        let tls = tls.as_ref().map(|tls| tls.acceptor());
        crate::server::serve(listener, tls, drain.clone(), *header_timeout, handle).await;
    }

    /// Serves `/livez`, `/readyz`, `/metrics` and `/state` until the agent has drained.
    ///
    /// # Errors
    /// When the socket fails.
    pub async fn serve_admin(&self, listener: TcpListener) -> std::io::Result<()> {
        crate::admin::serve(listener, self.shared.clone()).await
    }

    /// Waits for the first policies.
    pub async fn ready(&self) {
        let mut ready = self.shared.ready.subscribe();
        // The sender lives as long as the agent.
        let _ = ready.wait_for(|ready| *ready).await;
    }

    /// Waits until the shared state was reached, at most for `within`; says whether it was.
    pub async fn connected(&self, within: Duration) -> bool {
        self.shared.store.connected(within).await
    }

    pub async fn state(&self) -> AgentState {
        crate::report::state(&self.shared).await
    }

    /// Breaker transitions that this agent makes or hears of.
    pub fn transitions(&self) -> tokio::sync::broadcast::Receiver<sluice_state::store::TransitionEvent> {
        self.shared.store.transitions()
    }

    /// The page at `/metrics`.
    #[must_use]
    pub fn metrics(&self) -> String {
        crate::report::read_metrics(&self.shared);
        self.shared.metrics.text(TextFormat::Prometheus)
    }

    /// Serves applications and the admin port, and follows the control plane, each in a task of its own.
    #[must_use]
    pub fn start(
        &self,
        applications: TcpListener,
        admin: Option<TcpListener>,
        control: Option<ControlPlane>,
    ) -> Running {
        let mut serving = JoinSet::new();
        let mut beside = JoinSet::new();
        let agent = self.clone();
        serving.spawn(async move { agent.serve(applications).await });
        beside.spawn(crate::transitions::tell(self.shared.clone()));
        if let Some(listener) = admin {
            let agent = self.clone();
            beside.spawn(async move {
                if let Err(error) = agent.serve_admin(listener).await {
                    tracing::error!(%error, "the admin port failed");
                }
            });
        }
        let agent = self.clone();
        beside.spawn(async move { agent.shared.clients.follow().await });
        if let Some(tls) = self.shared.tls.clone() {
            beside.spawn(tls.follow());
        }
        if let Some(folder) = self.shared.folder.clone() {
            beside.spawn(last_good::keep(folder, self.shared.last_good.subscribe()));
        }
        if let Some(control) = control {
            let agent = self.clone();
            beside.spawn(async move { agent.follow(control).await });
        }
        Running { agent: self.clone(), serving, beside }
    }
}

impl MetricSource for Agent {
    fn read(&self, reader: &mut dyn FnMut(&Registry)) {
        crate::report::read_metrics(&self.shared);
        reader(self.shared.metrics.registry());
    }
}

/// An agent at work.
pub struct Running {
    pub agent: Agent,
    serving: JoinSet<()>,
    /// Ends with the agent, whatever it is doing.
    beside: JoinSet<()>,
}

impl Running {
    /// Is unready at once and still serves for the lame-duck time; then accepts nothing new, lets exchanges finish for
    /// the grace period, ends the rest with an error event of their format, and settles everything.
    pub async fn drain(mut self) {
        let shared = &self.agent.shared;
        shared.drain.leave();
        tokio::time::sleep(shared.lame_duck).await;
        shared.drain.stop();
        if tokio::time::timeout(shared.grace, finished(&mut self.serving)).await.is_err() {
            shared.drain.end();
            finished(&mut self.serving).await;
        }
        shared.settling.close();
        shared.settling.wait().await;
        // The admin port and the log tell of the drain to its end.
        shared.store.drain(SETTLE_GRACE).await;
        shared.drain.end();
        self.beside.shutdown().await;
    }
}

/// Without a folder an agent serves all the same.
fn open(path: &std::path::Path, identity: &Identity) -> Option<Folder> {
    let opened = Folder::open(path, &identity.namespace);
    opened.inspect_err(|error| tracing::error!(%error, "no snapshot is kept")).ok()
}

async fn finished(tasks: &mut JoinSet<()>) {
    while tasks.join_next().await.is_some() {}
}

impl Shared {
    /// Begins with what an agent before this one served from.
    fn restore(&self) {
        let Some((applied, rejected)) = self.folder.as_ref().and_then(Folder::read) else { return };
        for rejection in &rejected {
            tracing::warn!(object = %rejection.object, error = %rejection.error, "a route of the snapshot is left out");
        }
        tracing::info!("serving by the snapshot of before the restart until the control plane answers");
        self.use_policies(&applied.current(), &rejected);
        *self.restored.lock() = Some(applied);
    }

    #[tracing::instrument(skip_all, fields(agent = self.identity.name, version = &*set.version))]
    pub(crate) fn use_policies(&self, set: &PolicySet, rejected: &[Rejection]) {
        *self.rejected.lock() = rejected
            .iter()
            .map(|one| RejectedObject { object: one.object.to_string(), error: one.error.clone() })
            .collect();
        self.use_secrets(set);
        self.use_counts(set);
        self.metrics.policy_updates.inc();
        tracing::info!(
            version = &*set.version,
            routes = set.routes.len(),
            rejected = rejected.len(),
            "policies in use"
        );
    }

    /// Secrets are joined to the targets, so new ones make new targets; the live sides stay.
    pub(crate) fn use_secrets(&self, set: &PolicySet) {
        let policies = Policies::build(set, &self.targets, &self.metrics);
        self.store
            .listen(policies.routes.iter().flat_map(|route| &route.targets).map(|target| &target.policy));
        self.policies.store(Arc::new(policies));
        self.ready.send_replace(!set.version.is_empty());
    }

    pub(crate) fn use_counts(&self, set: &PolicySet) {
        for (target, agents) in set.agents.iter() {
            self.store.set_agents(target, *agents);
        }
    }
}
