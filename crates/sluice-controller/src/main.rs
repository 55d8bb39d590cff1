//! `sluice-controller`: one replica of the control plane.

use std::net::SocketAddr;

use anyhow::Context as _;
use clap::Parser;
use sluice_controller::Controller;
use sluice_controller::config::Config;
use tokio::net::TcpListener;

#[derive(Parser)]
#[command(
    version,
    about = "The control plane: ModelRoutes and ReliabilityPolicies in, policies for agents out"
)]
struct Args {
    /// Where agents fetch their policies.
    #[arg(long, env = "SLUICE_LISTEN", default_value = "0.0.0.0:8112")]
    listen: SocketAddr,
    /// This replica's own namespace, where the Lease is.
    #[arg(long, env = "SLUICE_NAMESPACE", default_value = "sluice-system")]
    namespace: String,
    /// This replica's own pod: the holder's name in the Lease.
    #[arg(long, env = "SLUICE_POD", default_value = "sluice-controller")]
    pod: String,
    /// Name of the Lease whose holder writes status and Events.
    #[arg(long, env = "SLUICE_LEASE", default_value = "sluice-controller")]
    lease: String,
    /// Namespaces whose Secrets may be read, separated by commas.
    #[arg(long, env = "SLUICE_SECRET_NAMESPACES", value_delimiter = ',')]
    secret_namespaces: Vec<String>,
    /// Reads the Secrets of every namespace that routes name.
    #[arg(long, env = "SLUICE_ALL_SECRETS", conflicts_with = "secret_namespaces")]
    all_secrets: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env()
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info")),
        )
        .with_writer(std::io::stderr)
        .init();
    let client = kube::Client::try_default().await.context("no API server: is KUBECONFIG set?")?;
    let listener =
        TcpListener::bind(args.listen).await.with_context(|| format!("--listen {}", args.listen))?;
    tracing::info!(listen = %listener.local_addr()?, "starting");
    let config = Config {
        namespace: args.namespace,
        pod: args.pod,
        lease: args.lease,
        secret_namespaces: args.secret_namespaces,
        all_secrets: args.all_secrets,
    };
    let controller = Controller::start(client, &config, listener)?;
    terminated().await?;
    tracing::info!("stopping");
    controller.stop().await;
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
