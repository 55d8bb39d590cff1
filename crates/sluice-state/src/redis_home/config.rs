//! How Redis is reached.
//!
//! | URL | |
//! |---|---|
//! | `redis://[user[:password]@]host[:port][/db]` | one server |
//! | `redis+sentinel://[user[:password]@]host[:port],host[:port]…/service[/db]` | the primary that the Sentinels name |
//! | `redis+cluster://[user[:password]@]host[:port],host[:port]…` | a cluster, found from these nodes |
//!
//! `rediss` in place of `redis` (`rediss://`, `rediss+sentinel://`, `rediss+cluster://`) is TLS, verified against
//! the CA given, or against the system's. User and password are those of the Redis servers; given apart they
//! come before those in the URL. In a URL they are percent-encoded. The nodes of a cluster that is reached over
//! TLS need `tls-cluster yes`: without it they name their plain ports to every client.

use std::fmt;
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _};
use sluice_core::defaults::state_store::{ADMIT_DEADLINE, SETTLE_DEADLINE};

use crate::error::{StoreError, StoreErrorKind};

const SENTINEL_PORT: u16 = 26_379;
const REDIS_PORT: u16 = 6_379;

#[derive(Clone)]
pub struct RedisConfig {
    /// See the head of this module.
    pub url: String,
    pub username: Option<String>,
    pub password: Option<String>,
    /// CA certificates in PEM, in place of the system's.
    pub ca_pem: Option<Vec<u8>>,
    /// Accepts any certificate. For tests and laboratories: whoever is on the path can read and change
    /// everything.
    pub insecure_skip_verify: bool,
    /// How long an exchange waits for its admission; 20 ms.
    pub admit_deadline: Duration,
    /// How long a settlement, or a look at a target, may take; 250 ms.
    pub settle_deadline: Duration,
}

impl Default for RedisConfig {
    fn default() -> Self {
        Self {
            url: "redis://127.0.0.1:6379".to_owned(),
            username: None,
            password: None,
            ca_pem: None,
            insecure_skip_verify: false,
            admit_deadline: ADMIT_DEADLINE,
            settle_deadline: SETTLE_DEADLINE,
        }
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig").field("topology", &scheme_of(&self.url)).finish_non_exhaustive()
    }
}

fn scheme_of(url: &str) -> &str {
    url.split_once("://").map_or("", |(scheme, _)| scheme)
}

/// What a URL says.
#[derive(Debug, Clone)]
pub(super) enum Topology {
    Standalone(ConnectionInfo),
    Sentinel { sentinels: Vec<ConnectionAddr>, service: String, server: ConnectionInfo },
    Cluster(Vec<ConnectionInfo>),
}

impl RedisConfig {
    pub(super) fn topology(&self) -> Result<Topology, StoreError> {
        let parts = Parts::of(&self.url)?;
        match parts.kind {
            "" => Ok(Topology::Standalone(self.server(&parts, parts.hosts[0], REDIS_PORT, parts.path)?)),
            "sentinel" => {
                let (service, db) = parts.path.split_once('/').unwrap_or((parts.path, ""));
                if service.is_empty() {
                    return Err(invalid("names no service: write redis+sentinel://host:26379/service"));
                }
                let mut sentinels = Vec::with_capacity(parts.hosts.len());
                for host in &parts.hosts {
                    sentinels.push(self.server(&parts, host, SENTINEL_PORT, "")?.addr().clone());
                }
                let server = self.server(&parts, parts.hosts[0], REDIS_PORT, db)?;
                Ok(Topology::Sentinel { sentinels, service: service.to_owned(), server })
            }
            _ => {
                if !parts.path.is_empty() {
                    return Err(invalid("names a database: a cluster has only one, leave the path away"));
                }
                let nodes = parts.hosts.iter().map(|host| self.server(&parts, host, REDIS_PORT, ""));
                Ok(Topology::Cluster(nodes.collect::<Result<_, _>>()?))
            }
        }
    }

    fn server(
        &self,
        parts: &Parts<'_>,
        host: &str,
        port: u16,
        db: &str,
    ) -> Result<ConnectionInfo, StoreError> {
        let scheme = if parts.tls { "rediss" } else { "redis" };
        let user = parts.user.map(|user| format!("{user}@")).unwrap_or_default();
        let port = if has_port(host) { String::new() } else { format!(":{port}") };
        // The fragment is how the client library spells it.
        let unverified = if parts.tls && self.insecure_skip_verify { "#insecure" } else { "" };
        let info = format!("{scheme}://{user}{host}{port}/{db}{unverified}").into_connection_info().map_err(
            |_| invalid("has a host, port or database that cannot be read: write redis://host:6379/0"),
        )?;
        let mut settings = info.redis_settings().clone().set_skip_set_lib_name();
        if let Some(username) = &self.username {
            settings = settings.set_username(username);
        }
        if let Some(password) = &self.password {
            settings = settings.set_password(password);
        }
        let info = info.set_redis_settings(settings);
        match (&self.ca_pem, parts.tls) {
            (Some(ca), true) => {
                let certificates = redis::TlsCertificates { client_tls: None, root_cert: Some(ca.clone()) };
                let client = redis::Client::build_with_tls(info, certificates).map_err(|error| {
                    StoreError::new(StoreErrorKind::Tls, format!("the CA can't be used: {error}"))
                })?;
                Ok(client.get_connection_info().clone())
            }
            _ => Ok(info),
        }
    }
}

struct Parts<'a> {
    tls: bool,
    /// Empty, `sentinel` or `cluster`.
    kind: &'a str,
    user: Option<&'a str>,
    hosts: Vec<&'a str>,
    path: &'a str,
}

impl<'a> Parts<'a> {
    fn of(url: &'a str) -> Result<Self, StoreError> {
        let (scheme, rest) =
            url.split_once("://").ok_or_else(|| invalid("has no scheme: write redis://host:6379"))?;
        let (base, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
        if !matches!(base, "redis" | "rediss") || !matches!(kind, "" | "sentinel" | "cluster") {
            return Err(invalid(
                "has an unknown scheme: write redis, rediss, redis+sentinel or redis+cluster",
            ));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, authority),
        };
        let hosts: Vec<&str> = hosts.split(',').collect();
        if hosts.iter().any(|host| host.is_empty()) {
            return Err(invalid("has an empty host: write redis://host:6379"));
        }
        if kind.is_empty() && hosts.len() > 1 {
            return Err(invalid("names several hosts: write redis+sentinel or redis+cluster"));
        }
        Ok(Self { tls: base == "rediss", kind, user, hosts, path: path.trim_end_matches('/') })
    }
}

/// `host:1`, `[::1]:1`; but not `[::1]`.
fn has_port(host: &str) -> bool {
    host.rsplit_once(':')
        .is_some_and(|(_, port)| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()))
}

/// Never with the URL itself, which may hold a password.
fn invalid(why: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Config, format!("the redis url {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(url: &str) -> Result<Topology, StoreError> {
        RedisConfig { url: url.to_owned(), ..RedisConfig::default() }.topology()
    }

    #[test]
    fn reads_one_server() {
        let Topology::Standalone(info) = topology("redis://u:p%40ss@h:7000/3").unwrap() else { panic!() };
        assert_eq!(info.addr().to_string(), "h:7000");
        assert_eq!(info.redis_settings().username(), Some("u"));
        assert_eq!(info.redis_settings().password(), Some("p@ss"));
        assert_eq!(info.redis_settings().db(), 3);
        let Topology::Standalone(info) = topology("redis://h").unwrap() else { panic!() };
        assert_eq!(info.addr().to_string(), "h:6379");
    }

    #[test]
    fn reads_sentinels_and_clusters() {
        let Topology::Sentinel { sentinels, service, server } =
            topology("rediss+sentinel://:pw@a:1,b/main/2").unwrap()
        else {
            panic!()
        };
        assert_eq!(sentinels.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a:1", "b:26379"]);
        assert_eq!((service.as_str(), server.redis_settings().db()), ("main", 2));
        assert_eq!(server.redis_settings().password(), Some("pw"));
        let Topology::Cluster(nodes) = topology("redis+cluster://a:1,b:2,c").unwrap() else { panic!() };
        assert_eq!(nodes.len(), 3);
    }

    #[test]
    fn refuses_the_rest_and_never_repeats_a_password() {
        for url in [
            "h:1",
            "http://h",
            "redis://",
            "redis://a,b",
            "redis+sentinel://u:hunter2@a",
            "redis+cluster://u:hunter2@a/1",
        ] {
            let error = topology(url).unwrap_err();
            assert_eq!(error.kind, StoreErrorKind::Config, "{url}");
            assert!(!error.to_string().contains("hunter2"));
        }
        let config = RedisConfig { url: "redis://u:hunter2@h".into(), ..RedisConfig::default() };
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
