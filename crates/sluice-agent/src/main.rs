//! `sluice-agent`: the data plane as a process, beside an application or as a gateway.
//!
//! Telemetry is set by OpenTelemetry's own variables (docs/telemetry.md); it starts first and ends last, so that it
//! tells of the drain.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use anyhow::Context as _;
use clap::Parser as _;
use sluice_agent::Agent;
use sluice_agent::args::Args;
use sluice_agent::client_auth::ClientAuth;
use sluice_agent::tls::ListenerTls;
use sluice_telemetry::{Identity, Logging, Settings, Signals, Telemetry, subscriber};
use tokio::net::TcpListener;

/// Memory of many short requests and of few long streams: jemalloc returns it, the system's allocator keeps it.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let telemetry = Telemetry::start(Settings::from_env()?)?;
    let signals = telemetry.signals(&Identity {
        service: "sluice-agent",
        instance: args.policies.pod.clone(),
        namespace: Some(args.policies.namespace.clone()),
    })?;
    tracing::subscriber::set_global_default(subscriber(Logging::stderr(args.log_format), &signals))?;
    // As many workers as the affinity mask or the cgroup gives; one core is served best without stealing.
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut runtime = if cores == 1 {
        tokio::runtime::Builder::new_current_thread()
    } else {
        tokio::runtime::Builder::new_multi_thread()
    };
    runtime.enable_all().build()?.block_on(async {
        let served = run(args, &signals).await;
        telemetry.shutdown().await;
        served
    })
}

async fn run(args: Args, signals: &Signals) -> anyhow::Result<()> {
    let control_plane = args.control_plane()?;
    let mut config = args.agent()?;
    if let Some(files) = args.tls() {
        config.tls = Some(ListenerTls::load(files).await?);
    } else if config.clients != ClientAuth::None {
        tracing::warn!(
            "clients' credentials come in plain text: set SLUICE_TLS_CERT, or keep the network to yourselves"
        );
    }
    config.tracer = sluice_agent::config::tracer(signals);
    config.books = signals.books().clone();
    let agent = Agent::new(config)?;
    signals.export_metrics(Arc::new(agent.clone()));
    let applications = listen("--listen", args.listen).await?;
    let admin = listen("--admin", args.admin).await?;
    // Before the first line that anyone may wait for: a signal from then on is a drain.
    let terminated = terminated()?;
    tracing::info!(listen = %applications.local_addr()?, admin = %admin.local_addr()?, "serving");
    let running = agent.start(applications, Some(admin), Some(control_plane));
    terminated.await?;
    tracing::info!("draining");
    running.drain().await;
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

/// Waits for SIGTERM, or Ctrl-C at a terminal. The call catches them already.
fn terminated() -> std::io::Result<impl Future<Output = std::io::Result<()>>> {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => Ok(()),
            interrupted = tokio::signal::ctrl_c() => interrupted,
        }
    })
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
