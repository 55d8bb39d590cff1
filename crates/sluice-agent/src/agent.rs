//! The agent as a whole: what its parts share, and how it starts and ends.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use sluice_proto::apply::PolicySet;
use sluice_proto::report::Rejection;
use sluice_state::store::{Shared as StateHome, Store, StoreConfig};
use sluice_telemetry::Tracer;
use sluice_telemetry::{MetricSource, TextFormat};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;
use tonic::transport::Endpoint;

use crate::body_room::BodyRooms;
use crate::clock::Clock;
use crate::config::{AgentConfig, Identity};
use crate::drain::Drain;
use crate::metrics::Metrics;
use crate::policies::Policies;
use crate::random::Random;
use crate::state::{AgentState, RejectedObject};
use crate::targets::TargetRegistry;
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
    header_timeout: Duration,
    /// Drawn at the start: one agent's streams to the control plane have it in common.
    pub(crate) id: Arc<str>,
    /// What this agent writes into `x-sluice-via`; drawn, so that it names nothing to a provider.
    pub(crate) mark: u64,
    pub(crate) policies: ArcSwap<Policies>,
    pub(crate) store: Store,
    pub(crate) upstream: Upstream,
    pub(crate) clock: Clock,
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
    /// Admissions whose tokens are not settled yet.
    pub(crate) unsettled: std::sync::atomic::AtomicU64,
}

/// An agent. Cheap to clone; all clones are one agent.
#[derive(Clone)]
pub struct Agent {
    shared: Arc<Shared>,
}

impl Agent {
    /// An agent without policies; it refuses everything until it has some.
    ///
    /// # Errors
    /// When the system's certificates cannot be read, or the state store's configuration is bad.
    pub fn new(config: AgentConfig) -> anyhow::Result<Self> {
        let AgentConfig { identity, shared: state, grace, header_timeout, seed, tracer, books } = config;
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
        let shared = Shared {
            id,
            mark,
            policies: ArcSwap::from_pointee(Policies::empty()),
            store,
            upstream: Upstream::new()?,
            clock: Clock::start(),
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
            unsettled: std::sync::atomic::AtomicU64::new(0),
            identity,
            home,
            grace,
            header_timeout,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Uses these policies from the next exchange on. With a control plane, [`follow`](Self::follow) does it.
    pub fn use_policies(&self, set: &PolicySet) {
        self.shared.use_policies(set, &[]);
    }

    /// Gets its policies from a control plane until the agent drains.
    pub async fn follow(&self, control_plane: Endpoint) {
        crate::policy_client::follow(self.shared.clone(), control_plane).await;
    }

    /// Serves applications until [`drain`](Self::drain) has ended the last exchange.
    pub async fn serve(&self, listener: TcpListener) {
        let shared = self.shared.clone();
        let handle = move |request, connection| crate::pipeline::handle(shared.clone(), request, connection);
        crate::server::serve(listener, self.shared.drain.clone(), self.shared.header_timeout, handle).await;
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
        control: Option<Endpoint>,
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
    /// Accepts nothing new, lets exchanges finish for the grace period, ends the rest with an error event of
    /// their format, and settles everything.
    pub async fn drain(mut self) {
        let shared = &self.agent.shared;
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

async fn finished(tasks: &mut JoinSet<()>) {
    while tasks.join_next().await.is_some() {}
}

impl Shared {
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
