//! The agents of a run, each with sockets of its own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::join_all;
use sluice_agent::agent::Running;
use sluice_agent::{Agent, AgentConfig};
use sluice_state::store::Shared;
use sluice_state::{EmbeddedHome, RedisConfig};
use sluice_telemetry::Signals;
use tokio::net::TcpListener;
use tonic::transport::Endpoint;

use super::Args;
use super::telemetry::RunTelemetry;

/// Time for the first policies to reach every agent.
const READY_WITHIN: Duration = Duration::from_secs(10);
/// Time for Redis to answer before the run goes on without it. Agents reach it whenever it comes.
const REDIS_WITHIN: Duration = Duration::from_secs(2);

pub(super) struct Agents {
    pub(super) running: Vec<Running>,
    /// Theirs, for as long as they run.
    signals: Vec<Arc<Signals>>,
    /// Where the first one can be called from this machine.
    pub(super) base: SocketAddr,
    /// A line per agent: its name and addresses.
    pub(super) addresses: Vec<String>,
}

impl Agents {
    /// Starts as many as `--agents` says, and waits until they serve.
    pub(super) async fn start(
        args: &Args,
        control: Endpoint,
        telemetry: &RunTelemetry,
    ) -> anyhow::Result<Self> {
        let state = match &args.redis {
            Some(url) => Shared::Redis(RedisConfig { url: url.clone(), ..RedisConfig::default() }),
            None => Shared::Embedded(Arc::new(EmbeddedHome::new()?)),
        };
        let mut agents =
            Self { running: Vec::new(), signals: Vec::new(), base: args.listen, addresses: Vec::new() };
        for number in 0..args.agents {
            let name = format!("agent-{}", number + 1);
            let mut config = AgentConfig::new(&*name, &args.namespace, state.clone());
            config.grace = args.grace;
            let signals = telemetry.equip(&mut config)?;
            let agent =
                Agent::new(config).context(if args.redis.is_some() { "--redis" } else { "an agent" })?;
            signals.export_metrics(Arc::new(agent.clone()));
            agents.signals.push(signals);
            let applications = bind("--listen", args.listen, number, &name).await?;
            let admin = bind("--admin", args.admin, number, &name).await?;
            let (serves, shows) = (callable(applications.local_addr()?), callable(admin.local_addr()?));
            if number == 0 {
                agents.base = serves;
            }
            agents
                .addresses
                .push(format!("{name} serves http://{serves}, /state and /metrics at http://{shows}"));
            agents.running.push(agent.start(applications, Some(admin), Some(control.clone().into())));
        }
        for started in join_all(agents.all().map(ready)).await {
            started?;
        }
        if args.redis.is_some() {
            // Without an answer the view says so, and every agent decides alone.
            join_all(agents.all().map(|agent| async move { agent.connected(REDIS_WITHIN).await })).await;
        }
        Ok(agents)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = Agent> {
        self.running.iter().map(|running| running.agent.clone())
    }

    /// Lets streams go on for the grace period, ends the rest, and settles everything.
    pub(super) async fn drain(self) {
        join_all(self.running.into_iter().map(Running::drain)).await;
    }
}

async fn ready(agent: Agent) -> anyhow::Result<()> {
    tokio::time::timeout(READY_WITHIN, agent.ready())
        .await
        .context("an agent got no policies within 10 s: see the log (--log FILE)")
}

/// The address for the agent of this number, from 0: port 0 is a free one for each.
async fn bind(flag: &str, first: SocketAddr, number: u16, name: &str) -> anyhow::Result<TcpListener> {
    let port = if first.port() == 0 { Some(0) } else { first.port().checked_add(number) };
    let port = port.with_context(|| {
        format!("{flag} {first}: no port is left for {name}; choose a lower one, or fewer --agents")
    })?;
    let address = SocketAddr::new(first.ip(), port);
    TcpListener::bind(address).await.with_context(|| {
        format!("{flag} {first}: {name} cannot listen on {address}; choose another address, port 0 for a free one, or end what uses it")
    })
}

/// An address that listens everywhere is called here.
fn callable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
