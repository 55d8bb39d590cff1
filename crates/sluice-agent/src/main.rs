//! `sluice-agent`: the data plane as a process, beside an application or as a gateway.
//!
//! Telemetry is set by OpenTelemetry's own variables (docs/telemetry.md); it starts first and ends last, so that it
//! tells of the drain.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use sluice_agent::{Agent, AgentConfig};
use sluice_core::units::parse_duration;
use sluice_state::EmbeddedHome;
use sluice_state::store::Shared;
use sluice_telemetry::{Identity, LogFormat, Logging, Settings, Signals, Telemetry, subscriber};
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
    /// How log lines are written: text or json. RUST_LOG sets which.
    #[arg(long, env = "SLUICE_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let telemetry = Telemetry::start(Settings::from_env()?)?;
    let signals = telemetry.signals(&Identity {
        service: "sluice-agent",
        instance: args.pod.clone(),
        namespace: Some(args.namespace.clone()),
    })?;
    tracing::subscriber::set_global_default(subscriber(Logging::stderr(args.log_format), &signals))?;
    // As many workers as the affinity mask or the cgroup gives; one core is served best without stealing.
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut runtime = if cores == 1 {
        tokio::runtime::Builder::new_current_thread()
    } else {
        tokio::runtime::Builder::new_multi_thread()
    };
    runtime.enable_all().build()?.block_on(async {
        let served = run(args, &signals).await;
        telemetry.shutdown().await;
        served
    })
}

async fn run(args: Args, signals: &Signals) -> anyhow::Result<()> {
    let shared = match &args.redis {
        Some(url) => Shared::Redis(sluice_state::RedisConfig { url: url.clone(), ..Default::default() }),
        None => Shared::Embedded(Arc::new(EmbeddedHome::new()?)),
    };
    let mut config = AgentConfig::new(args.pod, args.namespace, shared);
    config.grace = args.grace;
    config.tracer = sluice_agent::config::tracer(signals);
    config.books = signals.books().clone();
    let agent = Agent::new(config)?;
    signals.export_metrics(Arc::new(agent.clone()));
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
