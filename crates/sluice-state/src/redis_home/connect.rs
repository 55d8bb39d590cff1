//! Making connections: one server, the primary behind Sentinels, a cluster.
//!
//! deadpool makes, checks and replaces the connection to a single server: it is checked out here, on connect
//! and reconnect, and the hot path clones the multiplexed connection inside, on which the commands of all
//! exchanges are pipelined. Behind Sentinels the same, with the primary that they name each time. A cluster's
//! connection looks after its nodes' connections itself; deadpool's manager for it knows neither a CA nor
//! deadlines, so it is made by the client library.

use std::time::Duration;

use deadpool_redis::{Manager, Pool};
use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, TlsCertificates, TlsMode};

use super::config::{RedisConfig, Topology};
use super::errors::store_error;
use crate::error::{StoreError, StoreErrorKind};

/// To reach one server.
pub(super) const CONNECT_DEADLINE: Duration = Duration::from_millis(250);
/// To find and reach one behind Sentinels, or a cluster's nodes.
const DISCOVERY_DEADLINE: Duration = Duration::from_secs(1);
/// Above every deadline of ours, which cut sooner; a net under what has none.
const RESPONSE_DEADLINE: Duration = Duration::from_secs(2);
/// MOVED and ASK are followed this often. A command that may have been carried out may go again with them: the
/// nonce of its admission makes that harmless.
const REDIRECTIONS: u32 = 2;

#[derive(Clone)]
pub(super) enum Connection {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Connection {
    pub(super) async fn send(&mut self, command: &redis::Cmd) -> redis::RedisResult<redis::Value> {
        match self {
            Self::Server(connection) => command.query_async(connection).await,
            Self::Cluster(connection) => command.query_async(connection).await,
        }
    }
}

/// A connection that was made, and what publications can be heard from.
pub(super) struct Link {
    pub connection: Connection,
    pub listen: Client,
    /// Keeps the pool's place: dropped with the link, the connection is not used again.
    _checked_out: Option<deadpool_redis::Connection>,
}

pub(super) struct Connector {
    topology: Topology,
    ca_pem: Option<Vec<u8>>,
    insecure: bool,
}

impl Connector {
    pub(super) fn new(config: &RedisConfig) -> Result<Self, StoreError> {
        // Another part of the program may have chosen a provider already; any will do.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Ok(Self {
            topology: config.topology()?,
            ca_pem: config.ca_pem.clone(),
            insecure: config.insecure_skip_verify,
        })
    }

    pub(super) async fn connect(&self) -> Result<Link, StoreError> {
        match &self.topology {
            Topology::Standalone(info) => within(CONNECT_DEADLINE, connect_server(info)).await,
            Topology::Sentinel { sentinels, service, server } => {
                within(DISCOVERY_DEADLINE, async {
                    let info = self.find_primary(sentinels, service, server).await?;
                    connect_server(&info).await
                })
                .await
            }
            Topology::Cluster(nodes) => within(DISCOVERY_DEADLINE, self.connect_cluster(nodes)).await,
        }
    }

    async fn find_primary(
        &self,
        sentinels: &[ConnectionAddr],
        service: &str,
        server: &ConnectionInfo,
    ) -> Result<ConnectionInfo, StoreError> {
        let tls = self.tls_mode(server.addr());
        let mut builder = SentinelClientBuilder::new(sentinels.to_vec(), service, SentinelServerType::Master)
            .map_err(|error| store_error(&error))?;
        if let Some(mode) = tls {
            builder = builder.set_client_to_redis_tls_mode(mode).set_client_to_sentinel_tls_mode(mode);
            if let Some(certificates) = self.certificates() {
                builder = builder
                    .set_client_to_redis_certificates(certificates.clone())
                    .set_client_to_sentinel_certificates(certificates);
            }
        }
        // Finding the primary checks its role, with the rights of the servers' user.
        if let Some(username) = server.redis_settings().username() {
            builder = builder.set_client_to_redis_username(username);
        }
        if let Some(password) = server.redis_settings().password() {
            builder = builder.set_client_to_redis_password(password);
        }
        let mut client = builder.build().map_err(|error| store_error(&error))?;
        let primary = client.async_get_client().await.map_err(|error| store_error(&error))?;
        let settings = server.redis_settings().clone();
        Ok(primary.get_connection_info().clone().set_redis_settings(settings))
    }

    async fn connect_cluster(&self, nodes: &[ConnectionInfo]) -> Result<Link, StoreError> {
        let mut builder = ClusterClientBuilder::new(nodes.to_vec())
            .retries(REDIRECTIONS)
            .connection_timeout(CONNECT_DEADLINE)
            .response_timeout(RESPONSE_DEADLINE);
        if let Some(mode) = nodes.first().and_then(|node| self.tls_mode(node.addr())) {
            builder = builder.tls(mode);
            if let Some(certificates) = self.certificates() {
                builder = builder.certs(certificates);
            }
        }
        let client = builder.build().map_err(|error| store_error(&error))?;
        let connection = client.get_async_connection().await.map_err(|error| store_error(&error))?;
        Ok(Link {
            connection: Connection::Cluster(connection),
            listen: self.reachable(nodes).await?,
            _checked_out: None,
        })
    }

    /// A node to listen to: a publication reaches all nodes, so any will do that answers.
    async fn reachable(&self, nodes: &[ConnectionInfo]) -> Result<Client, StoreError> {
        let mut last = StoreError::new(StoreErrorKind::Config, "the redis url names no node");
        for node in nodes {
            let client = Client::open(node.clone()).map_err(|error| store_error(&error))?;
            match client.get_multiplexed_async_connection_with_config(&connection_config()).await {
                Ok(_) => return Ok(client),
                Err(error) => last = store_error(&error),
            }
        }
        Err(last)
    }

    fn tls_mode(&self, addr: &ConnectionAddr) -> Option<TlsMode> {
        matches!(addr, ConnectionAddr::TcpTls { .. }).then_some(if self.insecure {
            TlsMode::Insecure
        } else {
            TlsMode::Secure
        })
    }

    fn certificates(&self) -> Option<TlsCertificates> {
        self.ca_pem.clone().map(|ca| TlsCertificates { client_tls: None, root_cert: Some(ca) })
    }
}

fn connection_config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_DEADLINE))
        .set_response_timeout(Some(RESPONSE_DEADLINE))
}

async fn connect_server(info: &ConnectionInfo) -> Result<Link, StoreError> {
    let manager =
        Manager::new_with_config(info.clone(), connection_config()).map_err(|error| store_error(&error))?;
    let pool = Pool::builder(manager)
        .max_size(1)
        .build()
        .map_err(|error| StoreError::new(StoreErrorKind::Config, error.to_string()))?;
    let checked_out = pool.get().await.map_err(|error| match error {
        deadpool_redis::PoolError::Backend(error) => store_error(&error),
        other => StoreError::new(StoreErrorKind::Connect, other.to_string()),
    })?;
    let connection = (*checked_out).clone();
    let listen = Client::open(info.clone()).map_err(|error| store_error(&error))?;
    Ok(Link { connection: Connection::Server(connection), listen, _checked_out: Some(checked_out) })
}

async fn within<T>(
    deadline: Duration,
    work: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    tokio::time::timeout(deadline, work).await.unwrap_or_else(|_| {
        Err(StoreError::new(
            StoreErrorKind::Timeout,
            format!("no connection within {} ms", deadline.as_millis()),
        ))
    })
}
