//! `sluice run`: everything in one process, with real sockets between the parts.
//!
//! ```text
//! directory ─► control_plane ══ gRPC ══► agents ──► providers (scripted, on request)
//!   edits                                  ▲  │
//!                                 load ────┘  └──► feed ──► view
//! ```
//! | module | what it does |
//! |---|---|
//! | `control_plane` | reads the directory, follows its edits, publishes |
//! | `providers` | scripted providers at the addresses that the manifests name |
//! | `feed` | what the view is shown |

mod control_plane;
mod feed;
mod providers;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use sluice_agent::agent::Running;
use sluice_agent::{Agent, AgentConfig};
use sluice_core::units::parse_duration;
use sluice_state::store::Shared;
use sluice_state::{EmbeddedHome, RedisConfig};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;

use crate::view::load::{Load, LoadConfig};
use crate::view::{self, Surface};
use control_plane::ControlPlane;
use feed::Feed;
use providers::Providers;

/// Time for the first policies to reach every agent.
const READY_WITHIN: Duration = Duration::from_secs(10);

#[derive(clap::Args)]
pub struct Args {
    /// Directory of manifests; edits take effect while it runs
    #[arg(short = 'f', long = "filename", value_name = "DIR")]
    directory: PathBuf,
    /// Share state through Redis instead of this process: redis://, rediss://, redis+sentinel://, redis+cluster://
    #[arg(long, value_name = "URL", env = "SLUICE_REDIS_URL", hide_env_values = true)]
    redis: Option<String>,
    /// Agents to start, each on a port of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    agents: u16,
    /// Where the first agent listens; the others take the ports behind it
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8110")]
    listen: SocketAddr,
    /// Where the first agent serves /state and /metrics; the others take the ports behind it
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9110")]
    admin: SocketAddr,
    /// The namespace that the agents serve
    #[arg(long, default_value = "default")]
    namespace: String,
    /// Play the providers too: a scripted one at each loopback address that a route names
    #[arg(long)]
    provider: bool,
    /// Play an incident at the first target, with a load: a name in DIR/../scenarios, or a file
    #[arg(long, value_name = "NAME|FILE", requires = "provider")]
    scenario: Option<String>,
    /// Calls per second of a scenario's load
    #[arg(long, value_name = "N", default_value_t = 12.0)]
    rate: f64,
    /// End by itself after this time, such as 90s
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    lasting: Option<Duration>,
    /// How long streams may go on once it ends
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    grace: Duration,
    /// Print lines even at a terminal
    #[arg(long)]
    plain: bool,
    /// Show nothing but errors
    #[arg(long)]
    no_view: bool,
    /// Write the log to this file (at a terminal there is none otherwise)
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

/// Runs until it is interrupted, a person quits the view, or its time is over.
///
/// # Errors
/// When something cannot start; each error names what to change.
pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    let surface = if args.plain { Surface::Lines } else { Surface::of_stdout() };
    log_to(&args, surface)?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut runtime = if cores == 1 {
        tokio::runtime::Builder::new_current_thread()
    } else {
        tokio::runtime::Builder::new_multi_thread()
    };
    runtime.enable_all().build()?.block_on(run(args, surface))?;
    Ok(ExitCode::SUCCESS)
}

fn log_to(args: &Args, surface: Surface) -> anyhow::Result<()> {
    let filter = |default| {
        tracing_subscriber::EnvFilter::try_from_default_env()
            .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default))
    };
    if let Some(path) = &args.log {
        let file = std::fs::File::create(path).with_context(|| format!("--log {}", path.display()))?;
        tracing_subscriber::fmt().with_env_filter(filter("info")).with_ansi(false).with_writer(file).init();
    } else if surface == Surface::Lines || args.no_view {
        // The view's lines say what matters; the log adds what went wrong.
        tracing_subscriber::fmt().with_env_filter(filter("error")).with_writer(std::io::stderr).init();
    }
    Ok(())
}

async fn run(args: Args, surface: Surface) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    let (inputs, shown) = view::channel();
    let feed = Feed::new(inputs);
    let control = ControlPlane::start(args.directory.clone(), feed.clone(), stop.clone()).await?;
    let routes = control.routes(&args.namespace);
    anyhow::ensure!(
        !routes.is_empty(),
        "no valid ModelRoute in {} for namespace {}:\n{}",
        args.directory.display(),
        args.namespace,
        control.problems().join("\n")
    );
    let providers = if args.provider {
        Some(Providers::start(&routes, &args.directory, args.scenario.as_deref()).await?)
    } else {
        None
    };
    let agents = start_agents(&args, control.endpoint()?).await?;
    for running in &agents {
        ready(&running.agent).await?;
    }
    let intro = feed::intro(args.listen, &routes);
    let load = args.scenario.as_ref().map(|_| {
        let mut config = LoadConfig::new(intro.base_url.clone(), intro.model.clone());
        config.per_second = args.rate;
        Load::new(config)
    });
    if let Some(load) = &load {
        tokio::spawn({
            let (load, stop) = (load.clone(), stop.clone());
            async move { load.run(stop).await }
        });
    }
    let phases = providers.as_ref().and_then(Providers::phases);
    feed.follow(agents.iter().map(|running| running.agent.clone()).collect(), phases, load, &stop);
    show(&args, surface, intro, shown, &stop).await?;
    stop.cancel();
    end(agents, providers).await;
    Ok(())
}

/// Returns when the run should end.
async fn show(
    args: &Args,
    surface: Surface,
    intro: view::Intro,
    shown: tokio::sync::mpsc::Receiver<view::Input>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let view = async {
        if args.no_view {
            // Senders never wait for a view, so one that is not there is no harm.
            drop(shown);
            std::future::pending().await
        } else {
            view::run(surface, intro, shown, stop.clone()).await
        }
    };
    let time = async {
        match args.lasting {
            Some(lasting) => tokio::time::sleep(lasting).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(view);
    let ended = tokio::select! {
        shown = &mut view => return Ok(shown?),
        ended = terminated() => ended,
        () = time => Ok(()),
    };
    // The view restores the terminal and says its last words.
    stop.cancel();
    if !args.no_view {
        view.await?;
    }
    Ok(ended?)
}

async fn start_agents(args: &Args, control: Endpoint) -> anyhow::Result<Vec<Running>> {
    let state = match &args.redis {
        Some(url) => Shared::Redis(RedisConfig { url: url.clone(), ..RedisConfig::default() }),
        None => Shared::Embedded(Arc::new(EmbeddedHome::new()?)),
    };
    let mut agents = Vec::with_capacity(usize::from(args.agents));
    for number in 0..args.agents {
        let mut config = AgentConfig::new(format!("agent-{}", number + 1), &args.namespace, state.clone());
        config.grace = args.grace;
        let agent = Agent::new(config)?;
        let applications = bind("--listen", args.listen, number).await?;
        let admin = bind("--admin", args.admin, number).await?;
        agents.push(agent.start(applications, Some(admin), Some(control.clone())));
    }
    Ok(agents)
}

async fn bind(flag: &str, first: SocketAddr, number: u16) -> anyhow::Result<TcpListener> {
    let port = if first.port() == 0 { 0 } else { first.port().saturating_add(number) };
    let address = SocketAddr::new(first.ip(), port);
    TcpListener::bind(address)
        .await
        .with_context(|| format!("{flag} {address}: choose another port, or end what uses this one"))
}

async fn ready(agent: &Agent) -> anyhow::Result<()> {
    tokio::time::timeout(READY_WITHIN, agent.ready())
        .await
        .context("an agent got no policies within 10 s: see the log (--log FILE)")
}

async fn end(agents: Vec<Running>, providers: Option<Providers>) {
    let draining = agents.into_iter().map(Running::drain);
    futures_util::future::join_all(draining).await;
    if let Some(providers) = providers {
        providers.shutdown().await;
    }
}

/// SIGTERM, or Ctrl-C where the view does not take it.
async fn terminated() -> std::io::Result<()> {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        interrupted = tokio::signal::ctrl_c() => interrupted,
    }
}

/// Only this machine is offered scripted providers and unauthenticated policies.
fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}
