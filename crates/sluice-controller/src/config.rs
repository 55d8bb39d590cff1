//! What a replica is told at its start.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sluice_state::RedisConfig;
use tokio::net::TcpListener;

pub use crate::certificates::Lives;

/// One replica's settings.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Its own namespace, where the Lease and the Secret with its keys are.
    pub namespace: String,
    /// Its own pod: the holder's name in the Lease.
    pub pod: String,
    /// The Lease.
    pub lease: String,
    /// The Service that agents call it by: its serving certificate has that name.
    pub service: String,
    /// Its own address: among those of the Service, where it finds the other replicas.
    pub pod_ip: Option<IpAddr>,
    /// The file with its own token for other replicas; without it, or without an address, it asks none.
    pub peer_token: Option<PathBuf>,
    /// Where agents share their state, for showing it.
    pub redis: Option<RedisConfig>,
    /// The webhook's configuration, which is told whom to trust; `None`: nothing is injected.
    pub webhook_configuration: Option<String>,
    /// Namespaces whose Secrets may be read, and to which the authorities are published.
    pub secret_namespaces: Vec<String>,
    /// Every namespace's.
    pub all_secrets: bool,
    /// Serves agents without TLS.
    pub insecure: bool,
    /// What injected agents are told.
    pub sidecar: Sidecar,
    /// How long certificates live.
    pub lives: Lives,
    /// How fast it is.
    pub paces: Paces,
}

/// How fast a replica is. The defaults are what the documentation says; tests are in more of a hurry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paces {
    /// Others take the Lease over after this much without a renewal; 15 s.
    pub lease_duration: Duration,
    /// The holder stops to write after this much without a renewal of its own; 10 s.
    pub lease_give_up: Duration,
    /// Between two looks at the Lease; 2 s.
    pub lease_retry: Duration,
    /// Between two writes of one status; 10 s.
    pub between_writes: Duration,
    /// How long agents get to connect before they are counted, and other replicas to tell what theirs say; 15 s.
    pub settle: Duration,
}

impl Default for Paces {
    fn default() -> Self {
        Self {
            lease_duration: Duration::from_secs(15),
            lease_give_up: Duration::from_secs(10),
            lease_retry: Duration::from_secs(2),
            between_writes: Duration::from_secs(10),
            settle: Duration::from_secs(15),
        }
    }
}

impl Config {
    /// Whether it keeps certificates: for agents, or for the API server that calls the webhook.
    pub(crate) fn certifies(&self) -> bool {
        !self.insecure || self.webhook_configuration.is_some()
    }

    /// Where it may read Secrets and publish authorities; `None`: everywhere.
    pub(crate) fn namespaces(&self) -> Option<BTreeSet<Arc<str>>> {
        let listed = self.secret_namespaces.iter().chain([&self.namespace]);
        (!self.all_secrets).then(|| listed.map(|namespace| namespace.as_str().into()).collect())
    }
}

/// What injected agents are told, and what they get.
#[derive(Debug, Clone)]
pub struct Sidecar {
    pub image: String,
    /// `Always`, `IfNotPresent` or `Never`; `None`: the cluster's default.
    pub image_pull_policy: Option<String>,
    /// Secrets of the pod's namespace for pulling it, which the pod gets besides its own.
    pub image_pull_secrets: Vec<String>,
    /// Its user and group; `None`: the image's, or what the platform chooses.
    pub run_as_user: Option<i64>,
    /// Such as `https://sluice-controller.sluice-system.svc:8112`.
    pub control_plane: String,
    /// Without a password.
    pub redis_url: Option<String>,
    /// A Secret of the pod's namespace with `username` and `password`; it may be missing.
    pub redis_secret: Option<String>,
    /// Authorities of Redis' certificate, in place of the system's.
    pub redis_ca_pem: Option<String>,
    /// A quantity, such as `20m`.
    pub cpu_request: String,
    /// `None`: no limit, so that tokens are not delayed by throttling.
    pub cpu_limit: Option<String>,
    pub memory_request: String,
    pub memory_limit: String,
    /// For streams at shutdown, such as `25s`.
    pub grace: String,
    /// `RUST_LOG`; `None`: its default.
    pub log_level: Option<String>,
    /// `text` or `json`; `None`: its default.
    pub log_format: Option<String>,
    /// OpenTelemetry's variables, `OTEL_…`.
    pub telemetry: BTreeMap<String, String>,
    /// A Secret of the pod's namespace whose `headers` go with what is exported; it may be missing.
    pub otel_headers_secret: Option<String>,
}

impl Default for Sidecar {
    fn default() -> Self {
        Self {
            image: "sluice".to_owned(),
            image_pull_policy: None,
            image_pull_secrets: Vec::new(),
            run_as_user: Some(65_532),
            control_plane: String::new(),
            redis_url: None,
            redis_secret: None,
            redis_ca_pem: None,
            cpu_request: "20m".to_owned(),
            cpu_limit: None,
            memory_request: "32Mi".to_owned(),
            memory_limit: "256Mi".to_owned(),
            grace: "25s".to_owned(),
            log_level: None,
            log_format: None,
            telemetry: BTreeMap::new(),
            otel_headers_secret: None,
        }
    }
}

/// Where a replica is called.
#[derive(Debug)]
pub struct Listeners {
    /// By agents.
    pub policies: TcpListener,
    /// By the API server; it is used where something is injected.
    pub webhook: Option<TcpListener>,
    /// By kubelet and Prometheus.
    pub admin: Option<TcpListener>,
}
