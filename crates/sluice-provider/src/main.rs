//! The scripted model provider as a server.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use sluice_provider::{Provider, Scenario};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// Plays a model provider (OpenAI's and Anthropic's APIs) by a script.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Where to listen; port 0 picks a free one.
    #[arg(long, default_value = "127.0.0.1:9001")]
    listen: SocketAddr,
    /// The scenario, a YAML file. Without it every call is answered at once with 20 tokens.
    #[arg(long)]
    scenario: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let arguments = Arguments::parse();
    let scenario = match &arguments.scenario {
        Some(path) => Scenario::from_file(path).with_context(|| format!("{}", path.display()))?,
        None => Scenario::default(),
    };
    let listener = TcpListener::bind(arguments.listen)
        .await
        .with_context(|| format!("--listen {}: choose a free address of this host", arguments.listen))?;
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
