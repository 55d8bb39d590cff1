//! Who is measured, and how each is started: alone, on a core of its own, on a loopback port.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::collector::{Collector, Mood};
use crate::process::{Process, free_port};
use crate::redis::Redis;

#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    /// The mock alone: what every other figure contains.
    #[default]
    Direct,
    Nginx,
    Envoy,
    /// `sluice-agent` with its state in itself.
    Embedded,
    /// `sluice-agent` with its state in Redis on loopback.
    Redis,
    /// `Embedded`, with traces at a ratio of 1 % to a collector that takes them.
    Traced,
    /// The same, every trace.
    TracedAll,
    /// Every trace, to a collector that is not there.
    CollectorDown,
    /// Every trace, to a collector that never answers.
    CollectorHangs,
    /// Every trace, to a collector that answers 503.
    CollectorRefuses,
}

impl Peer {
    /// What is measured unless something else is asked for.
    pub const BESIDE: [Self; 5] = [Self::Direct, Self::Nginx, Self::Envoy, Self::Embedded, Self::Redis];
    /// What telemetry costs.
    pub const TELEMETRY: [Self; 7] = [
        Self::Direct,
        Self::Embedded,
        Self::Traced,
        Self::TracedAll,
        Self::CollectorDown,
        Self::CollectorHangs,
        Self::CollectorRefuses,
    ];
    pub const ALL: [Self; 10] = [
        Self::Direct,
        Self::Nginx,
        Self::Envoy,
        Self::Embedded,
        Self::Redis,
        Self::Traced,
        Self::TracedAll,
        Self::CollectorDown,
        Self::CollectorHangs,
        Self::CollectorRefuses,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Nginx => "nginx",
            Self::Envoy => "Envoy",
            Self::Embedded => "Sluice, embedded",
            Self::Redis => "Sluice, Redis",
            Self::Traced => "embedded, traces at 1 %",
            Self::TracedAll => "embedded, every trace",
            Self::CollectorDown => "every trace, collector down",
            Self::CollectorHangs => "every trace, collector hangs",
            Self::CollectorRefuses => "every trace, collector refuses",
        }
    }

    /// The share of traces that is exported, and how the collector is; `None`: telemetry is off.
    fn telemetry(self) -> Option<(&'static str, Mood)> {
        match self {
            Self::Traced => Some(("0.01", Mood::Takes)),
            Self::TracedAll => Some(("1", Mood::Takes)),
            Self::CollectorDown => Some(("1", Mood::Down)),
            Self::CollectorHangs => Some(("1", Mood::Hangs)),
            Self::CollectorRefuses => Some(("1", Mood::Refuses)),
            Self::Direct | Self::Nginx | Self::Envoy | Self::Embedded | Self::Redis => None,
        }
    }
}

/// Where the programs are.
#[derive(Debug, Clone, clap::Args)]
pub struct Programs {
    #[arg(long, default_value = "nginx")]
    pub nginx: PathBuf,
    #[arg(long, default_value = "envoy")]
    pub envoy: PathBuf,
    #[arg(long)]
    pub agent: PathBuf,
    /// The agent's control plane, on the core of the load
    #[arg(long)]
    pub sluice: PathBuf,
}

/// A peer that serves; Redis too, where it needs one.
pub struct Running {
    pub port: u16,
    pub process: Option<Process>,
    pub redis: Option<Redis>,
    control: Option<Process>,
    _collector: Option<Collector>,
    /// Its files; gone when it is.
    _directory: tempfile::TempDir,
}

/// Where things run.
#[derive(Debug, Clone, Copy)]
pub struct Cores {
    /// The load, the mock, Redis and the control plane.
    pub load: usize,
    pub peer: usize,
}

impl Running {
    pub async fn start(peer: Peer, programs: &Programs, upstream: u16, cores: Cores) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let path = directory.path();
        let port = free_port().await?;
        let log = path.join("peer.log");
        let redis = if peer == Peer::Redis { Some(Redis::start(cores.load, path).await?) } else { None };
        let collector = match peer.telemetry() {
            Some((_, mood)) => Some(Collector::start(mood)?),
            None => None,
        };
        let mut control = None;
        let line = match peer {
            Peer::Direct => {
                return Ok(Self {
                    port: upstream,
                    process: None,
                    redis,
                    control,
                    _collector: collector,
                    _directory: directory,
                });
            }
            Peer::Nginx => nginx(programs, path, port, upstream)?,
            Peer::Envoy => envoy(programs, path, port, upstream)?,
            _ => {
                let policies = free_port().await?;
                control = Some(start_control(programs, path, policies, upstream, cores.load).await?);
                let mut line = Vec::new();
                if let (Some((ratio, _)), Some(collector)) = (peer.telemetry(), &collector) {
                    line = telemetry(ratio, collector.port);
                }
                line.extend(agent(programs, port, free_port().await?, policies, redis.as_ref()));
                line
            }
        };
        let mut process = Process::start(peer.name(), cores.peer, &log, &line)?;
        process.listening(port, &log).await?;
        let running = Self {
            port,
            process: Some(process),
            redis,
            control,
            _collector: collector,
            _directory: directory,
        };
        Ok(running)
    }

    pub async fn stop(self) -> anyhow::Result<()> {
        for process in [self.process, self.control].into_iter().flatten() {
            process.stop().await?;
        }
        if let Some(redis) = self.redis {
            redis.stop().await?;
        }
        Ok(())
    }
}

fn nginx(programs: &Programs, path: &Path, port: u16, upstream: u16) -> anyhow::Result<Vec<String>> {
    let values = [
        ("@DIR@", path.display().to_string()),
        ("@LISTEN@", format!("127.0.0.1:{port}")),
        ("@UPSTREAM@", format!("127.0.0.1:{upstream}")),
    ];
    let config = fill(include_str!("../peers/nginx.conf"), &values, path, "nginx.conf")?;
    Ok(vec![
        text(&programs.nginx),
        "-p".into(),
        text(path),
        "-c".into(),
        config,
        "-e".into(),
        "stderr".into(),
    ])
}

fn envoy(programs: &Programs, path: &Path, port: u16, upstream: u16) -> anyhow::Result<Vec<String>> {
    let values = [("@LISTEN_PORT@", port.to_string()), ("@UPSTREAM_PORT@", upstream.to_string())];
    let config = fill(include_str!("../peers/envoy.yaml"), &values, path, "envoy.yaml")?;
    let options = ["--concurrency", "1", "--log-level", "error", "--disable-hot-restart"];
    let line = [text(&programs.envoy), "-c".into(), config];
    Ok(line.into_iter().chain(options.map(str::to_owned)).collect())
}

/// `sluice run` serves the policies; the agent that comes with it stays idle.
async fn start_control(
    programs: &Programs,
    path: &Path,
    policies: u16,
    upstream: u16,
    core: usize,
) -> anyhow::Result<Process> {
    let manifests = path.join("manifests");
    fs::create_dir(&manifests)?;
    let values = [("@UPSTREAM@", format!("127.0.0.1:{upstream}"))];
    fill(include_str!("../manifests/route.yaml"), &values, &manifests, "route.yaml")?;
    let any = "127.0.0.1:0";
    let policies_at = format!("127.0.0.1:{policies}");
    let line = [
        text(&programs.sluice),
        "run".into(),
        "-f".into(),
        text(&manifests),
        "--policies".into(),
        policies_at,
        "--listen".into(),
        any.into(),
        "--admin".into(),
        any.into(),
        "--no-view".into(),
    ];
    let log = path.join("control.log");
    let mut process = Process::start("sluice run", core, &log, &line)?;
    process.listening(policies, &log).await?;
    Ok(process)
}

fn agent(programs: &Programs, port: u16, admin: u16, policies: u16, redis: Option<&Redis>) -> Vec<String> {
    let mut line = vec![
        text(&programs.agent),
        "--listen".into(),
        format!("127.0.0.1:{port}"),
        "--admin".into(),
        format!("127.0.0.1:{admin}"),
        "--control-plane".into(),
        format!("http://127.0.0.1:{policies}"),
    ];
    if let Some(redis) = redis {
        line.extend(["--redis".into(), redis.url()]);
    }
    line
}

/// The environment of an agent that exports traces, before its command.
fn telemetry(ratio: &str, port: u16) -> Vec<String> {
    let variables = [
        format!("OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:{port}"),
        "OTEL_TRACES_SAMPLER=traceidratio".to_owned(),
        format!("OTEL_TRACES_SAMPLER_ARG={ratio}"),
        "OTEL_METRIC_EXPORT_INTERVAL=5000".to_owned(),
    ];
    [vec!["env".to_owned()], variables.into()].concat()
}

/// Writes a configuration with its placeholders filled; returns its path.
fn fill(template: &str, values: &[(&str, String)], directory: &Path, name: &str) -> anyhow::Result<String> {
    let mut filled = template.to_owned();
    for (placeholder, value) in values {
        filled = filled.replace(placeholder, value);
    }
    let path = directory.join(name);
    fs::write(&path, filled).with_context(|| format!("{}", path.display()))?;
    Ok(text(&path))
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
