//! A TCP proxy in front of redis-server that counts the commands which pass, and can fail in ways of its own.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::resp::CommandNames;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyMode {
    Pass,
    /// Connections are accepted; what is sent is read and goes nowhere.
    Swallow,
    /// What is sent arrives and is carried out; no answer comes back.
    DropReplies,
    /// Connections are closed, and new ones at once.
    Cut,
    /// Every answer comes this much later.
    Delay(Duration),
}

pub struct CountingProxy {
    address: SocketAddr,
    mode: watch::Sender<ProxyMode>,
    counts: Arc<Mutex<BTreeMap<String, u64>>>,
    accepting: JoinHandle<()>,
}

impl CountingProxy {
    /// Listens on a free port, for a server on another one.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn start(server_port: u16) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (mode, _) = watch::channel(ProxyMode::Pass);
        let counts = Arc::new(Mutex::new(BTreeMap::new()));
        let accepting = tokio::spawn(accept(listener, server_port, mode.subscribe(), Arc::clone(&counts)));
        Ok(Self { address, mode, counts, accepting })
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub fn set_mode(&self, mode: ProxyMode) {
        self.mode.send_replace(mode);
    }

    /// Commands since the start or the last [`Self::reset`], by name.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.counts.lock().clone()
    }

    pub fn reset(&self) {
        self.counts.lock().clear();
    }
}

impl Drop for CountingProxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.mode.send_replace(ProxyMode::Cut);
    }
}

async fn accept(
    listener: TcpListener,
    server_port: u16,
    mode: watch::Receiver<ProxyMode>,
    counts: Arc<Mutex<BTreeMap<String, u64>>>,
) {
    while let Ok((client, _)) = listener.accept().await {
        if *mode.borrow() == ProxyMode::Cut {
            continue;
        }
        let (mode, counts) = (mode.clone(), Arc::clone(&counts));
        tokio::spawn(async move {
            let mut cut = mode.clone();
            tokio::select! {
                // Either side has gone, which is all there is to say.
                _ = relay(client, server_port, mode, counts) => {}
                _ = cut.wait_for(|mode| *mode == ProxyMode::Cut) => {}
            }
        });
    }
}

async fn relay(
    client: TcpStream,
    server_port: u16,
    mode: watch::Receiver<ProxyMode>,
    counts: Arc<Mutex<BTreeMap<String, u64>>>,
) -> std::io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", server_port)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let modes = mode.clone();
    let requests = async move {
        let mut names = CommandNames::default();
        let mut buffer = vec![0; 64 * 1_024];
        loop {
            let len = from_client.read(&mut buffer).await?;
            if len == 0 {
                return Ok::<(), std::io::Error>(());
            }
            if *modes.borrow() == ProxyMode::Swallow {
                continue;
            }
            for name in names.feed(&buffer[..len]) {
                *counts.lock().entry(name).or_default() += 1;
            }
            to_server.write_all(&buffer[..len]).await?;
        }
    };
    let replies = async move {
        let mut buffer = vec![0; 64 * 1_024];
        loop {
            let len = from_server.read(&mut buffer).await?;
            if len == 0 {
                return Ok::<(), std::io::Error>(());
            }
            let now = *mode.borrow();
            match now {
                ProxyMode::DropReplies | ProxyMode::Swallow => continue,
                ProxyMode::Delay(by) => tokio::time::sleep(by).await,
                ProxyMode::Pass | ProxyMode::Cut => {}
            }
            to_client.write_all(&buffer[..len]).await?;
        }
    };
    tokio::select! {
        done = requests => done,
        done = replies => done,
    }
}
