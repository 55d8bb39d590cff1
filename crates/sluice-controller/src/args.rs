//! The command line. Each flag has its variable, which is how a chart sets it.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Parser;
use sluice_controller::config::{Config, Lives, Paces, Sidecar};
use sluice_core::units::parse_duration;
use sluice_state::args::RedisArgs;
use sluice_telemetry::LogFormat;

/// Variables of this prefix go to injected agents without it, where they are OpenTelemetry's.
const SIDECAR: &str = "SLUICE_SIDECAR_";

#[derive(Debug, Parser)]
#[command(
    version,
    about = "The control plane: ModelRoutes and ReliabilityPolicies in, policies for agents out"
)]
pub(crate) struct Args {
    /// Where agents fetch their policies. `[::]` is every address, also by IPv4, and on a host without IPv6 too.
    #[arg(long, env = "SLUICE_LISTEN", value_name = "ADDRESS", default_value = "[::]:8112")]
    pub(crate) listen: SocketAddr,
    /// Where the API server asks about pods, over TLS.
    #[arg(long, env = "SLUICE_WEBHOOK", value_name = "ADDRESS", default_value = "[::]:9443")]
    pub(crate) webhook: SocketAddr,
    /// /livez, /readyz, /metrics.
    #[arg(long, env = "SLUICE_ADMIN", value_name = "ADDRESS", default_value = "[::]:8113")]
    pub(crate) admin: SocketAddr,
    /// This replica's own namespace, where the Lease and the Secret sluice-ca are.
    #[arg(long, env = "SLUICE_NAMESPACE", value_name = "NAME", default_value = "sluice-system")]
    pub(crate) namespace: String,
    /// This replica's own pod: the holder's name in the Lease.
    #[arg(long, env = "SLUICE_POD", value_name = "NAME", default_value = "sluice-controller")]
    pub(crate) pod: String,
    /// Name of the Lease whose holder writes status and Events.
    #[arg(long, env = "SLUICE_LEASE", value_name = "NAME", default_value = "sluice-controller")]
    lease: String,
    /// Name of the Service that agents and the API server call it by: its certificate has that name.
    #[arg(long, env = "SLUICE_SERVICE", value_name = "NAME", default_value = "sluice-controller")]
    service: String,
    /// This replica's own address, by which it tells itself from the other pods of the Service.
    #[arg(long, env = "SLUICE_POD_IP", value_name = "IP")]
    pod_ip: Option<IpAddr>,
    /// File with this replica's own token of audience `sluice-peer`, by which replicas know one another; without it, or
    /// without --pod-ip, this one writes what its own agents say.
    #[arg(long, env = "SLUICE_PEER_TOKEN", value_name = "FILE")]
    peer_token: Option<PathBuf>,
    /// Name of the MutatingWebhookConfiguration that asks it about pods; without one nothing is injected.
    #[arg(long, env = "SLUICE_WEBHOOK_CONFIGURATION", value_name = "NAME", default_value = "")]
    webhook_configuration: String,
    /// Namespaces whose Secrets may be read and to which the authority is published, separated by commas.
    #[arg(long, env = "SLUICE_SECRET_NAMESPACES", value_name = "NAMES", value_delimiter = ',')]
    secret_namespaces: Vec<String>,
    /// Reads the Secrets of every namespace that routes name.
    #[arg(long, env = "SLUICE_ALL_SECRETS", conflicts_with = "secret_namespaces")]
    all_secrets: bool,
    /// Serves agents without TLS, for trying out without certificates.
    #[arg(long, env = "SLUICE_INSECURE")]
    insecure: bool,
    /// How log lines are written: text or json. RUST_LOG sets which.
    #[arg(long, env = "SLUICE_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
    #[command(flatten)]
    redis: RedisArgs,
    #[command(flatten)]
    sidecar: SidecarArgs,
}

/// What injected agents are told.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Injected agents")]
#[allow(clippy::struct_field_names, reason = "they name the flags")]
struct SidecarArgs {
    /// Their image.
    #[arg(long, env = "SLUICE_SIDECAR_IMAGE", value_name = "IMAGE")]
    sidecar_image: Option<String>,
    /// Always, IfNotPresent or Never.
    #[arg(long, env = "SLUICE_SIDECAR_IMAGE_PULL_POLICY", value_name = "POLICY", value_parser = ["Always", "IfNotPresent", "Never"])]
    sidecar_image_pull_policy: Option<String>,
    /// Secrets of each pod's namespace for pulling it, separated by commas.
    #[arg(long, env = "SLUICE_SIDECAR_IMAGE_PULL_SECRETS", value_name = "NAMES", value_delimiter = ',')]
    sidecar_image_pull_secrets: Vec<String>,
    /// Their user and group; 0: none is named, and the platform chooses.
    #[arg(long, env = "SLUICE_SIDECAR_RUN_AS_USER", value_name = "UID", default_value_t = 65_532, value_parser = clap::value_parser!(i64).range(0..=i64::from(i32::MAX)))]
    sidecar_run_as_user: i64,
    /// Where they fetch their policies; without it, this Service's port 8112.
    #[arg(long, env = "SLUICE_SIDECAR_CONTROL_PLANE", value_name = "URL")]
    sidecar_control_plane: Option<String>,
    /// Their shared state, without a password.
    #[arg(long, env = "SLUICE_SIDECAR_REDIS_URL", value_name = "URL")]
    sidecar_redis_url: Option<String>,
    /// A Secret of each pod's namespace with Redis' username and password; it may be missing.
    #[arg(long, env = "SLUICE_SIDECAR_REDIS_SECRET", value_name = "NAME")]
    sidecar_redis_secret: Option<String>,
    /// Authorities of Redis' certificate, PEM.
    #[arg(long, env = "SLUICE_SIDECAR_REDIS_CA_PEM", value_name = "PEM", hide_env_values = true)]
    sidecar_redis_ca_pem: Option<String>,
    #[arg(long, env = "SLUICE_SIDECAR_CPU_REQUEST", value_name = "QUANTITY", default_value = "20m")]
    sidecar_cpu_request: String,
    /// None unless it is set: throttling would delay tokens.
    #[arg(long, env = "SLUICE_SIDECAR_CPU_LIMIT", value_name = "QUANTITY")]
    sidecar_cpu_limit: Option<String>,
    #[arg(long, env = "SLUICE_SIDECAR_MEMORY_REQUEST", value_name = "QUANTITY", default_value = "32Mi")]
    sidecar_memory_request: String,
    #[arg(long, env = "SLUICE_SIDECAR_MEMORY_LIMIT", value_name = "QUANTITY", default_value = "256Mi")]
    sidecar_memory_limit: String,
    /// How long streams may go on after a pod was told to end.
    #[arg(long, env = "SLUICE_SIDECAR_GRACE", value_name = "DURATION", default_value = "25s", value_parser = duration)]
    sidecar_grace: String,
    /// Their RUST_LOG.
    #[arg(long, env = "SLUICE_SIDECAR_LOG_LEVEL", value_name = "DIRECTIVES")]
    sidecar_log_level: Option<String>,
    /// How they write log lines: text or json.
    #[arg(long, env = "SLUICE_SIDECAR_LOG_FORMAT", value_name = "FORMAT", value_parser = ["text", "json"])]
    sidecar_log_format: Option<String>,
    /// A Secret of each pod's namespace whose key `headers` is their OTEL_EXPORTER_OTLP_HEADERS; it may be missing.
    #[arg(long, env = "SLUICE_SIDECAR_OTEL_HEADERS_SECRET", value_name = "NAME")]
    sidecar_otel_headers_secret: Option<String>,
}

impl SidecarArgs {
    /// `own_control_plane`: this controller's.
    fn config(
        &self,
        own_control_plane: String,
        variables: impl Iterator<Item = (String, String)>,
    ) -> Sidecar {
        let secrets = self.sidecar_image_pull_secrets.iter().filter(|name| !name.is_empty());
        Sidecar {
            image: self.sidecar_image.clone().unwrap_or_default(),
            image_pull_policy: self.sidecar_image_pull_policy.clone(),
            image_pull_secrets: secrets.cloned().collect(),
            run_as_user: Some(self.sidecar_run_as_user).filter(|user| *user > 0),
            control_plane: self.sidecar_control_plane.clone().unwrap_or(own_control_plane),
            redis_url: self.sidecar_redis_url.clone(),
            redis_secret: self.sidecar_redis_secret.clone(),
            redis_ca_pem: self.sidecar_redis_ca_pem.clone(),
            cpu_request: self.sidecar_cpu_request.clone(),
            cpu_limit: self.sidecar_cpu_limit.clone(),
            memory_request: self.sidecar_memory_request.clone(),
            memory_limit: self.sidecar_memory_limit.clone(),
            grace: self.sidecar_grace.clone(),
            log_level: self.sidecar_log_level.clone(),
            log_format: self.sidecar_log_format.clone(),
            telemetry: telemetry(variables),
            otel_headers_secret: self.sidecar_otel_headers_secret.clone(),
        }
    }
}

/// Checked here, used by agents.
fn duration(text: &str) -> Result<String, String> {
    parse_duration(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

impl Args {
    /// `variables`: the environment, for what is passed on to agents.
    ///
    /// # Errors
    /// When something is to be injected, and no image is named.
    pub(crate) fn config(&self, variables: impl Iterator<Item = (String, String)>) -> anyhow::Result<Config> {
        let webhook_configuration = Some(self.webhook_configuration.clone()).filter(|name| !name.is_empty());
        anyhow::ensure!(
            webhook_configuration.is_none() || self.sidecar.sidecar_image.is_some(),
            "--webhook-configuration {}: pods are to get an agent, and --sidecar-image does not say which; set it",
            self.webhook_configuration
        );
        let own = format!("https://{}.{}.svc:{}", self.service, self.namespace, self.listen.port());
        Ok(Config {
            namespace: self.namespace.clone(),
            pod: self.pod.clone(),
            lease: self.lease.clone(),
            service: self.service.clone(),
            pod_ip: self.pod_ip,
            peer_token: self.peer_token.clone(),
            redis: self.redis.config(),
            webhook_configuration,
            secret_namespaces: self.secret_namespaces.clone(),
            all_secrets: self.all_secrets,
            insecure: self.insecure,
            sidecar: self.sidecar.config(own, variables),
            lives: Lives::default(),
            paces: Paces::default(),
        })
    }
}

/// Without the prefix, and only OpenTelemetry's.
fn telemetry(
    variables: impl Iterator<Item = (String, String)>,
) -> std::collections::BTreeMap<String, String> {
    let passed = variables.filter_map(|(name, value)| Some((name.strip_prefix(SIDECAR)?.to_owned(), value)));
    passed.filter(|(name, _)| name.starts_with("OTEL_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(given: &[&str]) -> Args {
        Args::try_parse_from([&["sluice-controller"], given].concat()).unwrap()
    }

    #[test]
    fn nothing_is_injected_unless_a_configuration_and_an_image_are_named() {
        assert_eq!(args(&[]).config(std::iter::empty()).unwrap().webhook_configuration, None);
        let without = args(&["--webhook-configuration", "sluice-injector"]);
        let error = without.config(std::iter::empty()).unwrap_err().to_string();
        assert!(error.contains("--sidecar-image"), "{error}");
    }

    #[test]
    fn telemetry_is_passed_on_and_nothing_else() {
        let variables = [
            ("SLUICE_SIDECAR_OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317"),
            ("SLUICE_SIDECAR_IMAGE", "sluice:1"),
            ("OTEL_SERVICE_NAME", "mine"),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let config = args(&[]).config(variables.into_iter()).unwrap();
        let passed: Vec<&str> = config.sidecar.telemetry.keys().map(String::as_str).collect();
        assert_eq!(passed, ["OTEL_EXPORTER_OTLP_ENDPOINT"]);
        assert_eq!(config.sidecar.control_plane, "https://sluice-controller.sluice-system.svc:8112");
    }

    #[test]
    fn a_grace_that_is_no_duration_is_refused() {
        let refused = Args::try_parse_from(["sluice-controller", "--sidecar-grace", "25"]);
        assert!(refused.is_err());
    }
}
