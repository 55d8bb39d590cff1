//! `sluice-controller`: one replica of the control plane.
//!
//! Telemetry is set by OpenTelemetry's own variables (docs/telemetry.md); it starts first and ends last.

mod args;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

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
    let policies = listen("--listen", args.listen).await?;
    let webhook = match &config.webhook_configuration {
        Some(_) => Some(listen("--webhook", args.webhook).await?),
        None => None,
    };
    let admin = listen("--admin", args.admin).await?;
    tracing::info!(listen = %policies.local_addr()?, admin = %admin.local_addr()?, "starting");
    let listeners = Listeners { policies, webhook, admin: Some(admin) };
    let controller = Controller::start(client, &config, listeners, signals)?;
    terminated().await?;
    tracing::info!("stopping");
    controller.stop().await;
    Ok(())
}

/// Listens. `[::]` is every address, by IPv4 too; where the host has no IPv6, that is every IPv4 address.
async fn listen(flag: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    let bound = match TcpListener::bind(address).await {
        Err(_) if address.ip() == Ipv6Addr::UNSPECIFIED => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        bound => bound,
    };
    bound.with_context(|| format!("{flag} {address}"))
}

/// SIGTERM, or Ctrl-C at a terminal.
async fn terminated() -> std::io::Result<()> {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        interrupted = tokio::signal::ctrl_c() => interrupted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_address_is_every_ipv4_address_too() {
        let listener = listen("--listen", (Ipv6Addr::UNSPECIFIED, 0).into()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        let taken = listen("--listen", (Ipv4Addr::LOCALHOST, port).into()).await.unwrap_err();
        assert_eq!(taken.to_string(), format!("--listen 127.0.0.1:{port}"));
    }
}
