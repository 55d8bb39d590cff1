//! `sluice-controller`: one replica of the control plane.
//!
//! Telemetry is set by OpenTelemetry's own variables (docs/telemetry.md); it starts first and ends last.

mod args;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser as _;
use sluice_controller::Controller;
use sluice_controller::config::Listeners;
use sluice_telemetry::{Identity, Logging, Settings, Signals, Telemetry, subscriber};
use tokio::net::TcpListener;

use crate::args::Args;

/// How long an API server may send nothing on a connection that something is asked on. Longer than it gives itself for an
/// answer (a minute) and than a watch lasts, shorter than TCP takes to give up a connection that died without a word.
const READ_WITHIN: Duration = Duration::from_secs(90);

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
    let api = kube::Config::infer().await.context("no API server: is KUBECONFIG set?")?;
    let client = kube::Client::try_from(impatient(api, READ_WITHIN)).context("the API server's client")?;
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

/// Has the client give up on an API server that is silent for so long after it was asked.
fn impatient(mut api: kube::Config, within: Duration) -> kube::Config {
    api.read_timeout = Some(within);
    // The time that a connection was idle before is not to count.
    api.reset_reader_on_write = true;
    api
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

    #[tokio::test]
    async fn an_api_server_that_does_not_answer_is_given_up() {
        let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let uri = format!("http://{}", silent.local_addr().unwrap()).parse().unwrap();
        let api = impatient(kube::Config::new(uri), Duration::from_millis(100));
        let asked = kube::Client::try_from(api).unwrap();
        let answer = tokio::time::timeout(Duration::from_mins(1), asked.apiserver_version()).await;
        assert!(
            matches!(answer, Ok(Err(kube::Error::HyperError(_) | kube::Error::Service(_)))),
            "{answer:?}"
        );
    }
}
