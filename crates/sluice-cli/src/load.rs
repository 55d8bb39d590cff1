//! `sluice load`: an application to try Sluice with, which calls and says what came.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::console;
use crate::run::{duration, rate};
use crate::view::load::{Load, LoadConfig, LoadCounts};

const AFTER: &str = "Each line counts from the start: sent = ok + degraded + refused + failed + in flight. A refusal is \
the agent's own answer; whatever else is not a whole answer has failed.";

#[derive(clap::Args)]
#[command(after_help = AFTER)]
pub struct Args {
    /// Where to call, plain HTTP: what the OpenAI SDK would use
    #[arg(long, value_name = "URL", env = "OPENAI_BASE_URL", default_value = "http://127.0.0.1:8110/v1")]
    url: String,
    /// The model to ask for
    #[arg(long, value_name = "NAME", default_value = "gpt-4o")]
    model: String,
    /// Calls per second, on average
    #[arg(long, value_name = "N", default_value_t = 5.0, value_parser = rate)]
    rate: f64,
    /// Ends after so many calls, once they are through; without it, when it is told to
    #[arg(long, value_name = "N")]
    calls: Option<u64>,
    /// A line this often
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    every: Duration,
}

/// Calls until SIGTERM, SIGINT or the last of `--calls`. Exit status 1: a call has failed.
///
/// # Errors
/// When the URL is none that can be called.
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let plain = args.url.parse::<http::Uri>().is_ok_and(|url| url.scheme_str() == Some("http"));
    ensure!(plain, "--url {:?}: name one such as http://127.0.0.1:8110/v1", args.url);
    ensure!(!args.every.is_zero(), "--every 0s: choose more");
    tokio::runtime::Runtime::new()?.block_on(run(args))
}

async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let url = args.url.trim_end_matches('/');
    let load = Load::new(LoadConfig {
        per_second: args.rate,
        calls: args.calls,
        ..LoadConfig::new(url, args.model.clone())
    });
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = CancellationToken::new();
    let calls = load.run(stop.clone());
    tokio::pin!(calls);
    let mut lines = tokio::time::interval(args.every);
    lines.tick().await;
    loop {
        tokio::select! {
            () = &mut calls => break,
            _ = lines.tick() => console::line(&line(&load.counts()))?,
            _ = terminate.recv() => stop.cancel(),
            interrupted = tokio::signal::ctrl_c() => {
                interrupted?;
                stop.cancel();
            }
        }
    }
    let counts = load.counts();
    console::line(&line(&counts))?;
    Ok(if counts.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn line(counts: &LoadCounts) -> String {
    let LoadCounts { sent, ok, degraded, refused, failed, in_flight, .. } = counts;
    let ms = |ms: Option<u64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms}ms"));
    format!(
        "sent={sent} ok={ok} degraded={degraded} refused={refused} failed={failed} in-flight={in_flight} ttft-p50={} ttft-p95={}",
        ms(counts.ttft_p50_ms),
        ms(counts.ttft_p95_ms)
    )
}
