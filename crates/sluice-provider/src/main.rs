//! The scripted model provider as a server.

use clap::Parser;
use sluice_provider::command;

/// Plays a model provider (OpenAI's and Anthropic's APIs) by a script.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    args: command::Args,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    command::run(Arguments::parse().args).await
}
