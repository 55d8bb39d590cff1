//! Measures the agent beside nginx and Envoy on this machine.
//!
//! One run is some rounds, and a round measures every peer once, one after another: a slow minute of the machine
//! falls on all of them, and only figures of one run are compared. Load, mock and Redis share one core, the peer
//! has another. Everything listens on loopback, everything started is ended by its id, and counts and times are
//! bounded. `e2e/bench/run` prepares what is needed and calls this.

mod collector;
mod http;
mod load;
mod mock;
mod peers;
mod process;
mod redis;
mod report;
mod stats;

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Parser;
use http::Connection;
use load::{Measured, Subject};
use mock::{Mock, Script};
use peers::{Cores, Peer, Programs, Running};
use process::Usage;
use report::Figures;
use tokio::time::{Instant, sleep};

/// Streams open at once when memory is measured.
const OPEN_STREAMS: usize = 1_000;
const EXCHANGES_PER_SECOND: u32 = 200;
const STREAMS_PER_SECOND: u32 = 20;
const PACED: Script = Script { events: 50, gap: Duration::from_millis(10) };
/// Long enough that all streams are open together.
const LONG: Script = Script { events: 100, gap: Duration::from_millis(200) };

#[derive(Parser)]
#[command(about = "Side-by-side measurements of the agent, nginx and Envoy")]
struct Args {
    #[command(flatten)]
    programs: Programs,
    /// Rounds over all peers
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: u32,
    /// Seconds of each load
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Only these peers; direct is always there
    #[arg(long, value_delimiter = ',')]
    peers: Vec<Peer>,
    /// What telemetry costs, and collectors that fail, in place of the other proxies
    #[arg(long, conflicts_with = "peers")]
    telemetry: bool,
    /// Exchanges alone, no streams: many rounds for figures that lie close together
    #[arg(long)]
    exchanges: bool,
    /// Where the record goes: latest.json and latest.md
    #[arg(long, default_value = "results")]
    out: PathBuf,
    /// Core of load, mock and Redis
    #[arg(long, default_value_t = 0)]
    load_core: usize,
    /// Core of the peer
    #[arg(long, default_value_t = 1)]
    peer_core: usize,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let cores = std::thread::available_parallelism()?.get();
    ensure!(args.load_core != args.peer_core, "load and peer need a core each");
    pin(args.load_core).with_context(|| format!("core {} of a machine with {cores}", args.load_core))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, run(args))
}

fn pin(core: usize) -> anyhow::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set)?;
    Ok(())
}

async fn run(args: Args) -> anyhow::Result<()> {
    let (mock, upstream) = Mock::start().await?;
    let cores = Cores { load: args.load_core, peer: args.peer_core };
    let mut peers: Vec<Peer> = if args.telemetry {
        Peer::TELEMETRY.to_vec()
    } else if args.peers.is_empty() {
        Peer::BESIDE.to_vec()
    } else {
        let chosen = |peer: &Peer| *peer == Peer::Direct || args.peers.contains(peer);
        Peer::ALL.into_iter().filter(chosen).collect()
    };
    let mut rounds = Vec::new();
    for round in 1..=args.rounds {
        for peer in &peers {
            eprintln!("round {round} of {}: {}", args.rounds, peer.name());
            let running = Running::start(*peer, &args.programs, upstream, cores).await?;
            let lasting = Duration::from_secs(args.seconds);
            let figures = measure(*peer, &running, &mock, lasting, !args.exchanges).await;
            running.stop().await?;
            let figures = figures.with_context(|| format!("measuring {}", peer.name()))?;
            eprintln!("  {}", figures.line());
            rounds.push(figures);
        }
        // What comes after what makes a difference (a core that was busy is slower): it evens out over two rounds.
        peers.reverse();
    }
    report::write(&rounds, &args.out)
}

/// Waits until a call is answered: an agent that listens may not have its policies yet.
async fn ready(port: u16) -> anyhow::Result<()> {
    let request = load::request(false);
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let answered = async { Connection::open(port).await?.exchange(&request, |_| {}).await }.await;
        match answered {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() > deadline => return Err(error.context("no answer within 10 s")),
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Everything about one peer, in one round.
async fn measure(
    peer: Peer,
    running: &Running,
    mock: &Rc<Mock>,
    lasting: Duration,
    with_streams: bool,
) -> anyhow::Result<Figures> {
    let subject = Subject { port: running.port, process: running.process.as_ref(), mock };
    let usage = |subject: &Subject<'_>| subject.process.map_or(Ok(Usage::default()), process::Process::usage);
    mock.script.set(PACED);
    ready(running.port).await?;
    // Ready is not warm: the first calls are nobody's measure.
    load::paced_exchanges(&subject, 20, Duration::from_secs(1)).await?;
    sleep(Duration::from_secs(1)).await;
    let idle = usage(&subject)?;

    let exchanges = load::paced_exchanges(&subject, EXCHANGES_PER_SECOND, lasting).await?;
    let redis_before = match &running.redis {
        Some(redis) => Some(redis.work().await?),
        None => None,
    };
    let most = load::closed_exchanges(&subject, lasting).await?;
    let mut figures = Figures { peer, ..Figures::of(&exchanges, &most) };
    if let (Some(redis), Some(before)) = (&running.redis, redis_before) {
        // Settlements come after the answers.
        sleep(Duration::from_millis(500)).await;
        let after = redis.work().await?;
        figures.see_redis(before, after, most.total);
        let seen = redis
            .see_evalsha(async {
                Connection::open(running.port).await?.exchange(&load::request(false), |_| {}).await
            })
            .await?;
        figures.evalsha_p50_us = Some(stats::micros(redis.repeat(&seen).await?));
    }
    if !with_streams {
        return Ok(figures);
    }
    let streams = load::paced_streams(&subject, STREAMS_PER_SECOND, lasting).await?;
    figures.see_streams(&streams);
    if running.process.is_some() {
        figures.rss_idle_kib = Some(idle.rss_kib as f64);
        figures.rss_loaded_kib = Some(usage(&subject)?.rss_kib as f64);
        mock.script.set(LONG);
        figures.kib_per_stream = Some(load::open_streams(&subject, OPEN_STREAMS).await?);
    }
    Ok(figures)
}

impl Figures {
    fn of(exchanges: &Measured, most: &Measured) -> Self {
        Self {
            peer: Peer::Direct,
            p50_us: stats::micros(exchanges.p50),
            p99_us: stats::micros(exchanges.p99),
            paced_cpu_us: stats::micros(exchanges.cpu) / exchanges.count.max(1) as f64,
            per_second: most.count as f64 / most.seconds,
            cpu_us: stats::micros(most.cpu) / most.count.max(1) as f64,
            busy_percent: most.cpu.as_secs_f64() / most.seconds * 100.0,
            ..Self::default()
        }
    }

    fn see_streams(&mut self, streams: &Measured) {
        self.lag_p50_us = stats::micros(streams.p50);
        self.lag_p99_us = stats::micros(streams.p99);
        // The events of calls that were due while it was measured are read up to a call's length later; over the
        // whole time as many were read as were due.
        self.chunk_cpu_us = stats::micros(streams.cpu) / streams.count.max(1) as f64;
    }

    /// `exchanges`: all that Redis saw between the two.
    fn see_redis(&mut self, before: redis::Work, after: redis::Work, exchanges: u64) {
        let calls = (after.calls - before.calls).max(1) as f64;
        let cpu = after.usage.cpu.saturating_sub(before.usage.cpu);
        self.redis_cpu_us = Some(stats::micros(cpu) / calls);
        self.redis_script_us = Some(stats::micros(after.inside.saturating_sub(before.inside)) / calls);
        self.evalsha_per_exchange = Some(calls / exchanges.max(1) as f64);
    }
}
