//! `sluice-agent`: the data plane as a process, beside an application or as a gateway.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use sluice_agent::{Agent, AgentConfig};
use sluice_core::units::parse_duration;
use sluice_state::EmbeddedHome;
use sluice_state::store::Shared;
use tokio::net::TcpListener;
use tonic::transport::Endpoint;

/// Memory of many short requests and of few long streams: jemalloc returns it, the system's allocator keeps it.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[derive(Parser)]
#[command(version, about = "A streaming proxy for model APIs: breaker, quota, deadlines, retries, failover")]
struct Args {
    /// Where applications call: their base URL is http://ADDRESS/v1.
    #[arg(long, env = "SLUICE_LISTEN", default_value = "127.0.0.1:8110")]
    listen: SocketAddr,
    /// /livez, /readyz, /metrics, /state.
    #[arg(long, env = "SLUICE_ADMIN", default_value = "127.0.0.1:8111")]
    admin: SocketAddr,
    /// The control plane, such as http://127.0.0.1:8112.
    #[arg(long, env = "SLUICE_CONTROL_PLANE")]
    control_plane: Endpoint,
    /// Shared state: redis://, rediss://, redis+sentinel://, redis+cluster://. Without it this agent is alone.
    #[arg(long, env = "SLUICE_REDIS_URL", hide_env_values = true)]
    redis: Option<String>,
    /// The namespace whose routes are served.
    #[arg(long, env = "SLUICE_NAMESPACE", default_value = "default")]
    namespace: String,
    /// A name for this agent: its pod's.
    #[arg(long, env = "SLUICE_POD", default_value = "agent")]
    pod: String,
    /// How long streams may go on after SIGTERM.
    #[arg(long, env = "SLUICE_GRACE", default_value = "30s", value_parser = duration)]
    grace: Duration,
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env()
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info")),
        )
        .with_writer(std::io::stderr)
        .init();
    // As many workers as the affinity mask or the cgroup gives; one core is served best without stealing.
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut runtime = if cores == 1 {
        tokio::runtime::Builder::new_current_thread()
    } else {
        tokio::runtime::Builder::new_multi_thread()
    };
    runtime.enable_all().build()?.block_on(run(args))
}

async fn run(args: Args) -> anyhow::Result<()> {
    let shared = match &args.redis {
        Some(url) => Shared::Redis(sluice_state::RedisConfig { url: url.clone(), ..Default::default() }),
        None => Shared::Embedded(Arc::new(EmbeddedHome::new()?)),
    };
    let mut config = AgentConfig::new(args.pod, args.namespace, shared);
    config.grace = args.grace;
    let agent = Agent::new(config)?;
    let applications =
        TcpListener::bind(args.listen).await.with_context(|| format!("--listen {}", args.listen))?;
    let admin = TcpListener::bind(args.admin).await.with_context(|| format!("--admin {}", args.admin))?;
    tracing::info!(listen = %applications.local_addr()?, admin = %admin.local_addr()?, "serving");
    let running = agent.start(applications, Some(admin), Some(args.control_plane));
    terminated().await?;
    tracing::info!("draining");
    running.drain().await;
    Ok(())
}

/// SIGTERM, or Ctrl-C at a terminal.
async fn terminated() -> std::io::Result<()> {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        interrupted = tokio::signal::ctrl_c() => interrupted,
    }
}
