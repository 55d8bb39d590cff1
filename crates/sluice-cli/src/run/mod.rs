//! `sluice run`: everything in one process, with real sockets between the parts.
//!
//! ```text
//! directory ─► control_plane ══ gRPC ══► agents ──► providers (scripted, on request)
//!   edits                                  ▲  │
//!                                 load ────┘  └──► feed ──► view
//! ```
//! | module | what it does |
//! |---|---|
//! | `follow` | notices edits of the directory |
//! | `control_plane` | reads the directory and publishes |
//! | `complaints` | what is wrong with the manifests, told once |
//! | `agents` | starts and ends them |
//! | `providers` | scripted providers at the addresses that the manifests name |
//! | `feed` | what the view is shown |
//! | `telemetry` | traces, metrics and the log |

mod agents;
mod complaints;
mod control_plane;
mod feed;
mod follow;
mod providers;
mod telemetry;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use sluice_core::policy::WireFormat;
use sluice_core::units::parse_duration;
use sluice_telemetry::LogFormat;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::Receiver;
use tokio_util::sync::CancellationToken;

use crate::view::load::{Load, LoadConfig};
use crate::view::{self, Level, Surface};
use agents::Agents;
use control_plane::ControlPlane;
use feed::{Feed, Sampler};
use providers::Providers;
use telemetry::RunTelemetry;

const EXAMPLES: &str = "Examples:
  sluice run -f e2e/manifests/quickstart --provider
  sluice run -f e2e/manifests/quickstart --provider --scenario brownout
  sluice run -f manifests --agents 3 --redis redis://127.0.0.1:6379";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Directory of manifests; edits take effect while it runs
    #[arg(short = 'f', long = "filename", value_name = "DIR")]
    directory: PathBuf,
    /// Share state through Redis, not within this process: redis[s]://HOST, redis[s]+sentinel://HOST,…/SERVICE or
    /// redis[s]+cluster://HOST,…
    #[arg(long, value_name = "URL", env = "SLUICE_REDIS_URL", hide_env_values = true)]
    redis: Option<String>,
    /// Agents to start, each on ports of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    agents: u16,
    /// Where the first agent listens; the others take the ports above. Port 0: a free one for each
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8110")]
    listen: SocketAddr,
    /// Where the first agent serves /livez, /readyz, /metrics and /state; the others take the ports above
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9110")]
    admin: SocketAddr,
    /// Where the policies are served, for agents started by hand with --control-plane http://IP:PORT; loopback only
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    policies: SocketAddr,
    /// The namespace that the agents serve; manifests without one are in `default`
    #[arg(long, value_name = "NAME", default_value = "default")]
    namespace: String,
    /// Play the providers too: a scripted one at each http endpoint of a target at a loopback address (https ones
    /// are not played)
    #[arg(long)]
    provider: bool,
    /// Play an incident at the targets of first priority, with a load: a file, or a name in DIR/../scenarios
    #[arg(long, value_name = "NAME|FILE", requires = "provider")]
    scenario: Option<String>,
    /// Calls per second of the scenario's load
    #[arg(long, value_name = "N", default_value_t = 12.0, requires = "scenario", value_parser = rate)]
    rate: f64,
    /// End by itself after this time, such as 90s
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    lasting: Option<Duration>,
    /// How long streams may go on when it ends
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    grace: Duration,
    /// Print lines even at a terminal
    #[arg(long)]
    plain: bool,
    /// Show nothing; warnings and errors are logged
    #[arg(long)]
    no_view: bool,
    /// Write the log to this file, not to standard error; RUST_LOG sets how much
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// How the log's lines are written: text or json
    #[arg(long, value_name = "FORMAT", env = "SLUICE_LOG_FORMAT", default_value = "text")]
    log_format: LogFormat,
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

pub(crate) fn rate(text: &str) -> Result<f64, String> {
    const RANGE: std::ops::RangeInclusive<f64> = 0.1..=1_000.0;
    let rate = text.parse().ok().filter(|rate| RANGE.contains(rate));
    rate.ok_or_else(|| format!("choose a number from {} to {}", RANGE.start(), RANGE.end()))
}

/// Runs until it is interrupted, a person quits the view, or its time is over.
///
/// # Errors
/// When something cannot start; each error names what to change.
pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    let surface = if args.plain { Surface::Lines } else { Surface::of_stdout() };
    let telemetry = RunTelemetry::start(&args, surface)?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut runtime = if cores == 1 {
        tokio::runtime::Builder::new_current_thread()
    } else {
        tokio::runtime::Builder::new_multi_thread()
    };
    runtime.enable_all().build()?.block_on(async {
        let ended = run(args, surface, &telemetry).await;
        telemetry.shutdown().await;
        ended
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn run(args: Args, surface: Surface, telemetry: &RunTelemetry) -> anyhow::Result<()> {
    // Before anything starts: what is asked of it from now on is done in order.
    let signals = Signals::new()?;
    let stop = CancellationToken::new();
    let (inputs, shown) = view::channel();
    let feed = Feed::new(inputs);
    let place = (args.directory.clone(), args.policies);
    let control = ControlPlane::start(place, feed.clone(), telemetry.control_plane(), stop.clone()).await?;
    let routes = control.routes(&args.namespace)?;
    let providers = if args.provider {
        Some(Providers::start(&routes, &args.directory, args.scenario.as_deref()).await?)
    } else {
        None
    };
    for endpoint in providers.iter().flat_map(Providers::not_played) {
        feed.note(Level::Warning, "provider", endpoint.clone());
    }
    let agents = Agents::start(&args, control.endpoint()?, telemetry).await?;
    for addresses in &agents.addresses {
        feed.note(Level::Info, "agent", addresses.clone());
    }
    let intro = feed::intro(agents.base, &routes);
    let load =
        args.scenario.as_ref().map(|scenario| start_load(scenario, args.rate, &intro, &stop)).transpose()?;
    let phases = providers.as_ref().and_then(Providers::phases);
    let sampler = Arc::new(Sampler::new(feed, agents.all().collect(), phases, load));
    sampler.start(&stop);
    let view = (surface, intro, shown);
    let ended = show(&args, view, &sampler, signals, &stop).await;
    stop.cancel();
    agents.drain().await;
    if let Some(providers) = providers {
        providers.shutdown().await;
    }
    ended
}

fn start_load(
    scenario: &str,
    rate: f64,
    intro: &view::Intro,
    stop: &CancellationToken,
) -> anyhow::Result<Load> {
    anyhow::ensure!(
        intro.format == WireFormat::OpenAi && !intro.model.is_empty(),
        "--scenario {scenario}: its load speaks the OpenAI format, and no route does; add one, or leave --scenario out"
    );
    let mut config = LoadConfig::new(intro.base_url.clone(), intro.model.clone());
    config.per_second = rate;
    let load = Load::new(config);
    let (running, stop) = (load.clone(), stop.clone());
    tokio::spawn(async move { running.run(stop).await });
    Ok(load)
}

/// Returns when the run should end.
async fn show(
    args: &Args,
    (surface, intro, shown): (Surface, view::Intro, Receiver<view::Input>),
    sampler: &Sampler,
    mut signals: Signals,
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
    tokio::select! {
        shown = &mut view => return Ok(shown?),
        () = signals.received() => {}
        () = time => {}
    }
    // The view restores the terminal and says how it ended.
    sampler.sample().await;
    stop.cancel();
    if !args.no_view {
        view.await?;
    }
    Ok(())
}

/// SIGTERM, and Ctrl-C where the view does not take it.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From now on they end nothing by themselves.
    fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Returns at once for one that came before.
    async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Only this machine is offered scripted providers and unauthenticated policies.
fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}
