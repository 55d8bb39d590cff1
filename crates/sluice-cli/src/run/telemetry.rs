//! A run's own telemetry: one set of exporters for the process, and signals for the control plane and for each
//! agent, so that a collector sees as many services as a cluster would have.
//!
//! `tracing`'s spans and log records of the whole process go out as the control plane's; what an agent says there
//! names it.

use std::io::{self, IsTerminal as _};
use std::sync::Arc;

use anyhow::Context as _;
use sluice_agent::AgentConfig;
use sluice_telemetry::{Identity, Logging, Settings, Signals, Telemetry, subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use super::Args;
use crate::view::Surface;

pub(super) struct RunTelemetry {
    telemetry: Telemetry,
    control_plane: Signals,
}

impl RunTelemetry {
    /// Starts the exporters that the environment asks for, and the log.
    pub(super) fn start(args: &Args, surface: Surface) -> anyhow::Result<Self> {
        let telemetry = Telemetry::start(Settings::from_env()?)?;
        let control_plane = telemetry.signals(&Identity {
            service: "sluice-control-plane",
            instance: "control-plane".to_owned(),
            namespace: Some(args.namespace.clone()),
        })?;
        tracing::subscriber::set_global_default(subscriber(logging(args, surface)?, &control_plane))?;
        Ok(Self { telemetry, control_plane })
    }

    pub(super) fn control_plane(&self) -> &Signals {
        &self.control_plane
    }

    /// Gives an agent its own; they are to live as long as it does.
    pub(super) fn equip(&self, agent: &mut AgentConfig) -> anyhow::Result<Arc<Signals>> {
        let signals = self.telemetry.signals(&Identity {
            service: "sluice-agent",
            instance: agent.identity.name.clone(),
            namespace: Some(agent.identity.namespace.clone()),
        })?;
        agent.tracer = sluice_agent::config::tracer(&signals);
        agent.books = signals.books().clone();
        Ok(Arc::new(signals))
    }

    /// Sends what waits, for two seconds at most.
    pub(super) async fn shutdown(&self) {
        self.telemetry.shutdown().await;
    }
}

/// Where the log goes, and how much of it where RUST_LOG does not say.
fn logging(args: &Args, surface: Surface) -> anyhow::Result<Logging<BoxMakeWriter>> {
    let (writer, ansi, level) = if let Some(path) = &args.log {
        let file = std::fs::File::create(path)
            .with_context(|| format!("--log {}: choose a file that can be written", path.display()))?;
        (BoxMakeWriter::new(file), false, Some("info"))
    } else {
        let stderr = || BoxMakeWriter::new(io::stderr);
        let ansi = io::stderr().is_terminal();
        match surface {
            _ if args.no_view => (stderr(), ansi, Some("warn")),
            // The view's lines hold the warnings already.
            Surface::Lines => (stderr(), ansi, Some("error")),
            // Lines of the log would tear the picture.
            Surface::Terminal => (BoxMakeWriter::new(io::sink), false, None),
        }
    };
    let filter = match level {
        Some(level) => EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level)),
        None => EnvFilter::new("off"),
    };
    Ok(Logging { format: args.log_format, filter, writer, ansi })
}
