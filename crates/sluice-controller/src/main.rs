//! `sluice-controller`: one replica of the control plane.
//!
//! Telemetry is set by OpenTelemetry's own variables (docs/telemetry.md); it starts first and ends last.

mod args;

use anyhow::Context as _;
use clap::Parser as _;
use sluice_controller::Controller;
use sluice_controller::config::Listeners;
use sluice_telemetry::{Identity, Logging, Settings, Signals, Telemetry, subscriber};
use tokio::net::TcpListener;

use crate::args::Args;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let telemetry = Telemetry::start(Settings::from_env()?)?;
    let signals = telemetry.signals(&Identity {
        service: "sluice-controller",
        instance: args.pod.clone(),
        namespace: Some(args.namespace.clone()),
    })?;
    tracing::subscriber::set_global_default(subscriber(Logging::stderr(args.log_format), &signals))?;
    let served = run(&args, &signals).await;
    telemetry.shutdown().await;
    served
}

async fn run(args: &Args, signals: &Signals) -> anyhow::Result<()> {
    let config = args.config(std::env::vars())?;
    let client = kube::Client::try_default().await.context("no API server: is KUBECONFIG set?")?;
    let policies =
        TcpListener::bind(args.listen).await.with_context(|| format!("--listen {}", args.listen))?;
    let webhook = match &config.webhook_configuration {
        Some(_) => {
            let listener = TcpListener::bind(args.webhook).await;
            Some(listener.with_context(|| format!("--webhook {}", args.webhook))?)
        }
        None => None,
    };
    let admin = TcpListener::bind(args.admin).await.with_context(|| format!("--admin {}", args.admin))?;
    tracing::info!(listen = %policies.local_addr()?, admin = %admin.local_addr()?, "starting");
    let listeners = Listeners { policies, webhook, admin: Some(admin) };
    let controller = Controller::start(client, &config, listeners, signals)?;
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
