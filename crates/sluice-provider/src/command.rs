//! The provider as a command: this crate's own program, and `sluice provider`.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::{Provider, Scenario};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where to listen; port 0 picks a free one
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9001")]
    listen: SocketAddr,
    /// The scenario, a YAML file. Without it every call is answered at once with 20 tokens
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
}

/// Serves until SIGTERM or SIGINT; its address is the first line of standard output.
///
/// # Errors
/// When the scenario cannot be read, or the address not be listened on.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let scenario = match &args.scenario {
        Some(path) => Scenario::from_file(path).with_context(|| format!("{}", path.display()))?,
        None => Scenario::default(),
    };
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("--listen {}: choose a free address of this host", args.listen))?;
    // Before the address is shown: whoever reads it may stop the process at once.
    let mut terminate = signal(SignalKind::terminate())?;
    let provider = Provider::serve(listener, scenario)?;
    writeln!(std::io::stdout(), "listening on {}", provider.base_url())?;
    tokio::select! {
        _ = terminate.recv() => {}
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    provider.shutdown().await;
    Ok(())
}
