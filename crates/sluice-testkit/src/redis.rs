//! Real redis-servers: one, a cluster of primaries, a primary with a replica and Sentinels.
//!
//! `SLUICE_TEST_REDIS_SERVER` names another program that speaks the protocol, such as valkey-server.

use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::resp;
use crate::tls::TestCertificates;

/// How long a server may take to start, or a cluster to agree.
const STARTED_WITHIN: Duration = Duration::from_secs(30);
/// The program that is run, unless it is set to another.
const PROGRAM: &str = "redis-server";
/// The cluster's bus has a port 10,000 above; it has to be one.
const HIGHEST_PORT: u16 = 55_000;

#[derive(Default)]
pub struct RedisOptions {
    /// Lines of redis.conf.
    pub config: Vec<String>,
    /// Serve TLS on [`RedisServer::tls_port`], beside plain TCP.
    pub tls: Option<TestCertificates>,
    /// Keep writes on disk, so that a restart finds them.
    pub persistent: bool,
}

/// A redis-server, ended when dropped.
pub struct RedisServer {
    child: Option<Child>,
    dir: TempDir,
    port: u16,
    tls_port: Option<u16>,
    sentinel: bool,
}

impl RedisServer {
    /// A server without persistence or limits.
    ///
    /// # Errors
    /// When redis-server is not installed or does not start.
    pub fn start() -> Result<Self> {
        Self::start_with(&RedisOptions::default())
    }

    /// A server with options.
    ///
    /// # Errors
    /// When redis-server is not installed or does not start.
    pub fn start_with(options: &RedisOptions) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let port = free_port()?;
        let mut config = format!(
            "port {port}\nbind 127.0.0.1\nprotected-mode no\nsave \"\"\ndir {}\n",
            dir.path().display()
        );
        let appended = if options.persistent { "yes\nappendfsync always" } else { "no" };
        let _ = writeln!(config, "appendonly {appended}");
        let mut tls_port = None;
        if let Some(tls) = &options.tls {
            let port = free_port()?;
            config.push_str(&tls_lines(&dir, tls, port)?);
            tls_port = Some(port);
        }
        for line in &options.config {
            let _ = writeln!(config, "{line}");
        }
        fs::write(dir.path().join("redis.conf"), config)?;
        let mut server = Self { child: None, dir, port, tls_port, sentinel: false };
        server.restart()?;
        Ok(server)
    }

    fn start_sentinel(
        primary: u16,
        service: &str,
        quorum: u32,
        tls: Option<&TestCertificates>,
    ) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let port = free_port()?;
        let mut config = format!(
            "port {port}\nbind 127.0.0.1\nprotected-mode no\ndir {}\n\
             sentinel monitor {service} 127.0.0.1 {primary} {quorum}\n\
             sentinel down-after-milliseconds {service} 500\n\
             sentinel failover-timeout {service} 3000\n",
            dir.path().display()
        );
        let mut tls_port = None;
        if let Some(tls) = tls {
            let port = free_port()?;
            config.push_str(&tls_lines(&dir, tls, port)?);
            // It watches the servers, and names their ports, over TLS.
            config.push_str("tls-replication yes\n");
            tls_port = Some(port);
        }
        fs::write(dir.path().join("redis.conf"), config)?;
        let mut server = Self { child: None, dir, port, tls_port, sentinel: true };
        server.restart()?;
        Ok(server)
    }

    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The TLS port of a server that has one; 0 otherwise.
    #[must_use]
    pub fn tls_port(&self) -> u16 {
        self.tls_port.unwrap_or_default()
    }

    fn client_port(&self, tls: bool) -> u16 {
        if tls { self.tls_port() } else { self.port }
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sends one command; arrays come back line by line.
    ///
    /// # Errors
    /// The server's error, or the socket's.
    pub fn command(&self, words: &[&str]) -> Result<String> {
        resp::command(self.port, words)
    }

    /// Calls of a command since the server's start or the last CONFIG RESETSTAT.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn calls(&self, command: &str) -> Result<u64> {
        let stats = self.command(&["INFO", "commandstats"])?;
        let head = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&head));
        Ok(line.and_then(|rest| rest.split(',').next()).map_or(Ok(0), str::parse)?)
    }

    /// The server stops answering, and keeps its connections and its port.
    ///
    /// # Errors
    /// When there is no process.
    pub fn pause(&self) -> Result<()> {
        self.signal("STOP")
    }

    /// Ends [`Self::pause`].
    ///
    /// # Errors
    /// When there is no process.
    pub fn resume(&self) -> Result<()> {
        self.signal("CONT")
    }

    /// Ends the process at once, as a crash does.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // A process that ended by itself can't be killed; it is reaped all the same.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it again, on the same port and directory.
    ///
    /// # Errors
    /// When redis-server is not installed or does not start.
    pub fn restart(&mut self) -> Result<()> {
        self.kill();
        let program = std::env::var("SLUICE_TEST_REDIS_SERVER").unwrap_or_else(|_| PROGRAM.to_owned());
        let mut command = Command::new(&program);
        command.arg(self.dir.path().join("redis.conf"));
        if self.sentinel {
            command.arg("--sentinel");
        }
        let log = fs::File::create(self.log())?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("starting {program}: is it installed? (make test-deps)"))?;
        self.child = Some(child);
        wait_for("redis-server to answer", || {
            let answer = self.command(&["PING"]);
            // A server that wants a password is there too.
            Ok(answer.is_ok() || answer.is_err_and(|error| format!("{error:#}").contains("NOAUTH")))
        })
        .with_context(|| fs::read_to_string(self.log()).unwrap_or_default())
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    fn signal(&self, name: &str) -> Result<()> {
        let id = self.child.as_ref().context("the server is not running")?.id();
        let status = Command::new("kill").args([&format!("-{name}"), &id.to_string()]).status()?;
        if !status.success() {
            bail!("kill -{name} {id}: {status}");
        }
        Ok(())
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The files and lines of redis.conf that make a server, or a Sentinel, serve TLS.
fn tls_lines(dir: &TempDir, tls: &TestCertificates, port: u16) -> Result<String> {
    for (name, pem) in [("ca", &tls.ca_pem), ("cert", &tls.certificate_pem), ("key", &tls.key_pem)] {
        fs::write(dir.path().join(name), pem)?;
    }
    let at = |name: &str| dir.path().join(name).display().to_string();
    Ok(format!(
        "tls-port {port}\ntls-ca-cert-file {}\ntls-cert-file {}\ntls-key-file {}\ntls-auth-clients no\n",
        at("ca"),
        at("cert"),
        at("key")
    ))
}

/// Three primaries that share the slots.
pub struct RedisCluster {
    pub nodes: Vec<RedisServer>,
    tls: bool,
}

impl RedisCluster {
    /// Starts a cluster and waits until every node calls it ok.
    ///
    /// # Errors
    /// When redis-server is not installed, or the nodes don't agree.
    pub fn start() -> Result<Self> {
        Self::start_with(None)
    }

    /// The same; with certificates its clients come over TLS.
    ///
    /// # Errors
    /// When redis-server is not installed, or the nodes don't agree.
    pub fn start_with(tls: Option<&TestCertificates>) -> Result<Self> {
        let mut nodes = Vec::new();
        let mut config = vec!["cluster-enabled yes".to_owned(), "cluster-node-timeout 1000".to_owned()];
        if tls.is_some() {
            // Without it the nodes name their plain ports, to clients that came over TLS too.
            config.push("tls-cluster yes".to_owned());
        }
        for _ in 0..3 {
            let options =
                RedisOptions { config: config.clone(), tls: tls.cloned(), ..RedisOptions::default() };
            nodes.push(RedisServer::start_with(&options)?);
        }
        for (index, node) in nodes.iter().enumerate() {
            let (first, last) = (index * 16_384 / 3, (index + 1) * 16_384 / 3 - 1);
            node.command(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()])?;
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()])?;
        }
        for node in &nodes[1..] {
            nodes[0].command(&[
                "CLUSTER",
                "MEET",
                "127.0.0.1",
                &node.client_port(tls.is_some()).to_string(),
            ])?;
        }
        wait_for("the cluster to agree", || {
            let mut agreed = true;
            for node in &nodes {
                let info = node.command(&["CLUSTER", "INFO"])?;
                agreed &= info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3");
            }
            Ok(agreed)
        })?;
        Ok(Self { nodes, tls: tls.is_some() })
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("{}+cluster://{}", scheme(self.tls), addresses(&self.nodes, self.tls))
    }
}

/// A primary, a replica and three Sentinels.
pub struct RedisSentinel {
    pub primary: RedisServer,
    pub replica: RedisServer,
    pub sentinels: Vec<RedisServer>,
    tls: bool,
}

impl RedisSentinel {
    /// The name under which the Sentinels know the primary.
    pub const SERVICE: &str = "main";

    /// Starts them and waits until the Sentinels know each other and the replica.
    ///
    /// # Errors
    /// When redis-server is not installed, or they don't find each other.
    pub fn start() -> Result<Self> {
        Self::start_with(None)
    }

    /// The same; with certificates all that they say to each other, and to clients, goes over TLS.
    ///
    /// # Errors
    /// When redis-server is not installed, or they don't find each other.
    pub fn start_with(tls: Option<&TestCertificates>) -> Result<Self> {
        let secure = tls.is_some();
        let mut config = vec!["repl-diskless-sync-delay 0".to_owned()];
        if secure {
            config.push("tls-replication yes".to_owned());
        }
        let options = RedisOptions { config: config.clone(), tls: tls.cloned(), ..RedisOptions::default() };
        let primary = RedisServer::start_with(&options)?;
        config.push(format!("replicaof 127.0.0.1 {}", primary.client_port(secure)));
        let options = RedisOptions { config, tls: tls.cloned(), ..RedisOptions::default() };
        let replica = RedisServer::start_with(&options)?;
        wait_for("the replica to follow", || {
            Ok(replica.command(&["INFO", "replication"])?.contains("master_link_status:up"))
        })?;
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            sentinels.push(RedisServer::start_sentinel(primary.client_port(secure), Self::SERVICE, 2, tls)?);
        }
        wait_for("the Sentinels to find each other", || {
            let mut found = true;
            for sentinel in &sentinels {
                let info = sentinel.command(&["SENTINEL", "MASTER", Self::SERVICE])?;
                let value =
                    |name: &str| info.lines().skip_while(|line| *line != name).nth(1).map(str::to_owned);
                found &= value("num-other-sentinels").as_deref() == Some("2")
                    && value("num-slaves").as_deref() == Some("1");
            }
            Ok(found)
        })?;
        Ok(Self { primary, replica, sentinels, tls: secure })
    }

    #[must_use]
    pub fn url(&self) -> String {
        let nodes = addresses(&self.sentinels, self.tls);
        format!("{}+sentinel://{nodes}/{}", scheme(self.tls), Self::SERVICE)
    }
}

fn scheme(tls: bool) -> &'static str {
    if tls { "rediss" } else { "redis" }
}

fn addresses(servers: &[RedisServer], tls: bool) -> String {
    let all: Vec<String> =
        servers.iter().map(|server| format!("127.0.0.1:{}", server.client_port(tls))).collect();
    all.join(",")
}

fn free_port() -> Result<u16> {
    for _ in 0..100 {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let bus = port.checked_add(10_000);
        if port < HIGHEST_PORT && bus.is_some_and(|bus| TcpListener::bind(("127.0.0.1", bus)).is_ok()) {
            return Ok(port);
        }
    }
    bail!("no free port below {HIGHEST_PORT}")
}

/// Waits for a condition, with a generous bound.
///
/// # Errors
/// When it does not come true, or can't be looked at.
#[allow(clippy::disallowed_methods, reason = "it waits for another process, which no clock of ours moves")]
pub fn wait_for(what: &str, mut is_true: impl FnMut() -> Result<bool>) -> Result<()> {
    let until = Instant::now() + STARTED_WITHIN;
    while Instant::now() < until {
        if is_true()? {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    bail!("waited {} s in vain for {what}", STARTED_WITHIN.as_secs())
}
