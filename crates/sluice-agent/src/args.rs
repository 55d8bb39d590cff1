//! What the agent is told by flags and environment variables, and what it refuses to start with.
//!
//! Flags and variables are one set; a flag goes before its variable. `docs/agent.md` has the table, written from here.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{CommandFactory as _, Parser};
use sluice_core::units::parse_duration;
use sluice_state::EmbeddedHome;
use sluice_state::args::RedisArgs;
use sluice_state::store::Shared;
use sluice_telemetry::LogFormat;

use crate::client_auth::{ApiServer, ClientAuth};
use crate::config::AgentConfig;
use crate::control_plane::ControlPlane;
use crate::tls::TlsFiles;

/// A streaming proxy for model APIs: breaker, quota, deadlines, retries, failover.
#[derive(Parser)]
#[command(name = "sluice-agent", version, about, max_term_width = 100)]
pub struct Args {
    /// Where applications call: their base URL is http://ADDRESS/v1 (OpenAI) or http://ADDRESS (Anthropic).
    #[arg(long, env = "SLUICE_LISTEN", value_name = "ADDRESS", default_value = "127.0.0.1:8110")]
    pub listen: SocketAddr,
    /// Where /livez, /readyz, /metrics and /state are, for probes and scrapers; it never serves applications.
    #[arg(long, env = "SLUICE_ADMIN", value_name = "ADDRESS", default_value = "0.0.0.0:8111")]
    pub admin: SocketAddr,
    /// How long streams may go on after SIGTERM; the rest ends with an error event.
    #[arg(long, env = "SLUICE_GRACE", value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub grace: Duration,
    /// How long new exchanges are still served after SIGTERM, before the grace period, while /readyz says 503 already:
    /// what a Service needs to hear of it. A sidecar needs none.
    #[arg(long, env = "SLUICE_LAME_DUCK", value_name = "DURATION", default_value = "0s", value_parser = duration)]
    pub lame_duck: Duration,
    /// How log lines are written: text or json. RUST_LOG sets which.
    #[arg(long, env = "SLUICE_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    #[command(flatten)]
    pub gateway: GatewayArgs,
    #[command(flatten)]
    pub policies: PolicyArgs,
    #[command(flatten)]
    pub redis: RedisArgs,
}

/// Clients that connect from elsewhere.
#[derive(clap::Args)]
#[command(next_help_heading = "Clients of a gateway")]
pub struct GatewayArgs {
    /// Who is served: `tokens` (ServiceAccount tokens of audience sluice-client), `keys` (the files of a folder), `none`
    /// (everyone who can connect). To be named wherever others than this machine can connect.
    #[arg(long, env = "SLUICE_CLIENT_AUTH", value_name = "HOW")]
    pub client_auth: Option<AuthKind>,
    /// With `keys`: a folder, each file one client's key of at least 16 characters; read again when it changes.
    #[arg(long, env = "SLUICE_CLIENT_KEYS", value_name = "FOLDER")]
    pub client_keys: Option<PathBuf>,
    /// With `tokens`: namespaces whose pods are served besides SLUICE_NAMESPACE, separated by commas.
    #[arg(long, env = "SLUICE_CLIENT_NAMESPACES", value_name = "NAMES", value_delimiter = ',')]
    pub client_namespaces: Vec<String>,
    /// With `tokens`: the API server that reviews them.
    #[arg(
        long,
        env = "SLUICE_API_SERVER",
        value_name = "URL",
        default_value = "https://kubernetes.default.svc"
    )]
    pub api_server: String,
    /// PEM file with the authorities of the API server's certificate.
    #[arg(
        long,
        env = "SLUICE_API_SERVER_CA",
        value_name = "FILE",
        default_value = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
    )]
    pub api_server_ca: PathBuf,
    /// File with the gateway's own token for the API server; its ServiceAccount needs to create tokenreviews.
    #[arg(
        long,
        env = "SLUICE_API_SERVER_TOKEN",
        value_name = "FILE",
        default_value = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    )]
    pub api_server_token: PathBuf,
    /// PEM file with the gateway's certificate and what it is signed by; read again when it changes. Without it clients
    /// speak plain text.
    #[arg(long, env = "SLUICE_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with its key.
    #[arg(long, env = "SLUICE_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}

/// What the agent carries out, and for whom.
#[derive(clap::Args)]
#[command(next_help_heading = "Policies")]
pub struct PolicyArgs {
    /// The control plane, such as https://sluice-controller.sluice-system.svc:8112. Plain http is for trying out.
    #[arg(long, env = "SLUICE_CONTROL_PLANE", value_name = "URL")]
    pub control_plane: String,
    /// PEM file with one or more authorities that sign the control plane's certificate; needed for https. It may come
    /// later than the agent, and is read anew for each connection.
    #[arg(long, env = "SLUICE_CONTROL_PLANE_CA", value_name = "FILE")]
    pub control_plane_ca: Option<PathBuf>,
    /// File with the token that says who this agent is, read anew for each stream: in a pod a projected ServiceAccount
    /// token of audience `sluice`.
    #[arg(long, env = "SLUICE_TOKEN", value_name = "FILE")]
    pub token: Option<PathBuf>,
    /// Folder where the last good policies, with their secrets, outlive a restart. It must be in memory: an emptyDir of
    /// medium Memory.
    #[arg(long, env = "SLUICE_SNAPSHOT", value_name = "FOLDER")]
    pub snapshot: Option<PathBuf>,
    /// The namespace whose routes are served.
    #[arg(long, env = "SLUICE_NAMESPACE", value_name = "NAME", default_value = "default")]
    pub namespace: String,
    /// A name for this agent: its pod's.
    #[arg(long, env = "SLUICE_POD", value_name = "NAME", default_value = "agent")]
    pub pod: String,
}

/// How clients show who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum AuthKind {
    Tokens,
    Keys,
    None,
}

/// Settings about clients that no agent should start with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidClients {
    #[error(
        "SLUICE_LISTEN is {listen}, where others than this machine can connect, and SLUICE_CLIENT_AUTH is not set: an open gateway is an open purse; set it to tokens or keys, or to none if everyone who can connect may spend"
    )]
    Open { listen: SocketAddr },
    #[error(
        "SLUICE_CLIENT_AUTH is keys and SLUICE_CLIENT_KEYS is not set: name the folder whose files are the clients' keys"
    )]
    NoKeys,
    #[error(
        "{variable} is set and SLUICE_CLIENT_AUTH is not {kind}: set it to {kind}, or leave {variable} out"
    )]
    Unused { variable: &'static str, kind: &'static str },
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

impl Args {
    /// Where policies come from.
    ///
    /// # Errors
    /// When it would be unsafe, or cannot work.
    pub fn control_plane(&self) -> anyhow::Result<ControlPlane> {
        let (authorities, token) = (self.policies.control_plane_ca.clone(), self.policies.token.clone());
        Ok(ControlPlane::new(&self.policies.control_plane, authorities, token)?)
    }

    /// The agent's own settings.
    ///
    /// # Errors
    /// When a file that is needed at the start cannot be read.
    pub fn agent(&self) -> anyhow::Result<AgentConfig> {
        let mut config =
            AgentConfig::new(&*self.policies.pod, &*self.policies.namespace, self.shared_state()?);
        config.grace = self.grace;
        config.lame_duck = self.lame_duck;
        config.snapshot.clone_from(&self.policies.snapshot);
        config.clients = self.clients()?;
        Ok(config)
    }

    /// TLS on the side of clients, if any.
    #[must_use]
    pub fn tls(&self) -> Option<TlsFiles> {
        let (certificate, key) = (self.gateway.tls_cert.clone()?, self.gateway.tls_key.clone()?);
        Some(TlsFiles { certificate, key })
    }

    fn clients(&self) -> Result<ClientAuth, InvalidClients> {
        let gateway = &self.gateway;
        if gateway.client_auth.is_none() && !self.listen.ip().to_canonical().is_loopback() {
            return Err(InvalidClients::Open { listen: self.listen });
        }
        if gateway.client_keys.is_some() && gateway.client_auth != Some(AuthKind::Keys) {
            return Err(InvalidClients::Unused { variable: "SLUICE_CLIENT_KEYS", kind: "keys" });
        }
        if gateway.client_namespaces.iter().any(|name| !name.is_empty())
            && gateway.client_auth != Some(AuthKind::Tokens)
        {
            return Err(InvalidClients::Unused { variable: "SLUICE_CLIENT_NAMESPACES", kind: "tokens" });
        }
        match gateway.client_auth {
            None | Some(AuthKind::None) => Ok(ClientAuth::None),
            Some(AuthKind::Keys) => {
                let folder = gateway.client_keys.clone().ok_or(InvalidClients::NoKeys)?;
                Ok(ClientAuth::Keys { folder })
            }
            Some(AuthKind::Tokens) => {
                let named = gateway.client_namespaces.iter().filter(|name| !name.is_empty());
                let namespaces = named.chain([&self.policies.namespace]).cloned().collect();
                let api_server = ApiServer {
                    url: gateway.api_server.clone(),
                    authorities: gateway.api_server_ca.clone(),
                    token: gateway.api_server_token.clone(),
                };
                Ok(ClientAuth::Tokens { namespaces, api_server })
            }
        }
    }

    fn shared_state(&self) -> anyhow::Result<Shared> {
        Ok(match self.redis.config() {
            Some(redis) => Shared::Redis(redis),
            None => Shared::Embedded(Arc::new(EmbeddedHome::new()?)),
        })
    }
}

const BEGIN: &str = "<!-- generated by `make generate`: flags and variables -->\n";
const END: &str = "<!-- end -->\n";

/// `docs/agent.md` with its table made anew; `None`: it has no place for it.
#[must_use]
pub fn with_table(document: &str) -> Option<String> {
    let (before, rest) = document.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some([before, BEGIN, &table(), END, after].concat())
}

fn table() -> String {
    let command = Args::command();
    let mut text = String::new();
    let mut heading = "";
    for argument in command.get_arguments() {
        let (Some(flag), Some(variable)) = (argument.get_long(), argument.get_env()) else { continue };
        let under = argument.get_help_heading().unwrap_or("The agent itself");
        if under != heading {
            heading = under;
            // Writing to a string can't fail.
            let _ = writeln!(text, "\n**{heading}**\n\n| variable | flag | default | |\n|---|---|---|---|");
        }
        let value =
            argument.get_value_names().and_then(|names| names.first()).map_or("", |name| name.as_str());
        let needed = if argument.is_required_set() { "needed" } else { "" };
        let defaults = argument.get_default_values().iter().map(|one| format!("`{}`", one.to_string_lossy()));
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(
            text,
            "| `{}` | `--{flag} {value}` | {} | {} |",
            variable.to_string_lossy(),
            std::iter::once(needed.to_owned()).chain(defaults).collect::<String>(),
            help.replace('|', "\\|")
        );
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLANE: &str = "--control-plane=http://127.0.0.1:8112";

    fn args(given: &[&str]) -> Args {
        Args::try_parse_from([&["sluice-agent", PLANE], given].concat()).unwrap()
    }

    #[test]
    fn an_open_gateway_is_refused_until_someone_says_so() {
        for listen in ["0.0.0.0:8110", "[::]:8110", "10.0.0.7:8110"] {
            let listen = format!("--listen={listen}");
            let said = args(&[&listen]).clients().unwrap_err().to_string();
            for part in ["SLUICE_LISTEN", &listen[9..], "SLUICE_CLIENT_AUTH", "open purse", "tokens or keys"]
            {
                assert!(said.contains(part), "{said}");
            }
            assert_eq!(args(&[&listen, "--client-auth=none"]).clients(), Ok(ClientAuth::None));
        }
        for listen in ["127.0.0.1:8110", "[::1]:8110", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(args(&[&format!("--listen={listen}")]).clients(), Ok(ClientAuth::None), "{listen}");
        }
    }

    #[test]
    fn what_belongs_to_one_kind_of_client_is_refused_with_another() {
        assert_eq!(args(&["--client-auth=keys"]).clients(), Err(InvalidClients::NoKeys));
        for given in [
            &["--client-keys=/keys"][..],
            &["--client-keys=/keys", "--client-auth=none"],
            &["--client-keys=/keys", "--client-auth=tokens"],
        ] {
            let said = args(given).clients().unwrap_err().to_string();
            assert!(said.contains("SLUICE_CLIENT_KEYS") && said.contains("keys, or leave"), "{said}");
        }
        assert!(args(&["--client-namespaces=a"]).clients().is_err());
        let ClientAuth::Tokens { namespaces, .. } =
            args(&["--client-auth=tokens", "--client-namespaces=a,b", "--namespace=own"]).clients().unwrap()
        else {
            panic!("no tokens");
        };
        assert_eq!(namespaces.into_iter().collect::<Vec<_>>(), ["a", "b", "own"]);
        assert!(
            Args::try_parse_from(["sluice-agent", PLANE, "--tls-cert=/cert"]).is_err(),
            "one without the other"
        );
    }

    #[test]
    fn flags_and_variables_have_the_same_names() {
        for argument in
            Args::command().get_arguments().filter(|one| !matches!(one.get_id().as_str(), "help" | "version"))
        {
            let flag = argument.get_long().unwrap().replace('-', "_").to_uppercase();
            assert_eq!(argument.get_env().unwrap().to_str().unwrap(), format!("SLUICE_{flag}"));
            assert!(argument.get_help().is_some());
        }
    }

    #[test]
    fn the_table_takes_the_place_of_the_old_one() {
        let made = with_table(&format!("before\n{BEGIN}stale\n{END}after\n")).unwrap();
        assert!(
            made.starts_with("before\n") && made.ends_with("after\n") && !made.contains("stale"),
            "{made}"
        );
        assert!(made.contains("| `SLUICE_GRACE` | `--grace DURATION` | `30s` |"), "{made}");
        assert_eq!(with_table(&made).as_deref(), Some(&*made));
        assert!(with_table("no place").is_none());
    }
}
