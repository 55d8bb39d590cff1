//! The provider as a value: started, changed, asked and stopped in-process.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::clock;
use crate::conn::Stream;
use crate::director::Director;
use crate::ledger::Ledger;
use crate::scenario::{Behaviour, Connections, Scenario};
use crate::server;
use crate::stats::{Call, Stats};

/// A running provider. Clones are handles on the same one; it stops with [`Provider::shutdown`], or when the last
/// handle is dropped.
#[derive(Debug, Clone)]
pub struct Provider {
    shared: Arc<Shared>,
    addr: SocketAddr,
    _stop: Arc<DropGuard>,
}

/// [`Provider::wait_for`] has waited long enough.
#[derive(Debug, thiserror::Error)]
#[error("not within {timeout:?}; the counts are {stats:?}")]
pub struct WaitError {
    /// How long it waited.
    pub timeout: Duration,
    /// What the counts were at the end.
    pub stats: Box<Stats>,
}

/// What connections, calls and handles share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) ledger: Arc<Ledger>,
    director: RwLock<Arc<Director>>,
    connections: watch::Sender<Connections>,
    /// Cancelled to end all open connections, and replaced at once.
    disconnect: Mutex<CancellationToken>,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: TaskTracker,
}

impl Shared {
    pub(crate) fn director(&self) -> Arc<Director> {
        Arc::clone(&self.director.read())
    }

    pub(crate) fn connections(&self) -> Connections {
        *self.connections.borrow()
    }

    pub(crate) fn watch_connections(&self) -> watch::Receiver<Connections> {
        self.connections.subscribe()
    }

    pub(crate) fn disconnected(&self) -> CancellationToken {
        self.disconnect.lock().clone()
    }

    pub(crate) fn set(&self, scenario: Scenario) {
        let connections = scenario.connections;
        *self.director.write() = Arc::new(Director::new(scenario, clock::now()));
        let before = self.connections.send_replace(connections);
        let cuts = matches!(connections, Connections::Close | Connections::Reset | Connections::Refuse);
        // A server that goes away takes its open connections along.
        if cuts && before != connections {
            self.disconnect_all();
        }
    }

    pub(crate) fn reset(&self) {
        let scenario = self.director().scenario.clone();
        *self.director.write() = Arc::new(Director::new(scenario, clock::now()));
        self.ledger.reset();
    }

    fn disconnect_all(&self) {
        std::mem::take(&mut *self.disconnect.lock()).cancel();
    }
}

impl Provider {
    /// Starts on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start(scenario: Scenario) -> io::Result<Self> {
        Self::serve(TcpListener::bind(("127.0.0.1", 0)).await?, scenario)
    }

    /// Serves on a socket that is bound already. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the socket has no address.
    pub fn serve(listener: TcpListener, scenario: Scenario) -> io::Result<Self> {
        let provider = Self::new(scenario, listener.local_addr()?);
        provider.shared.tasks.spawn(server::accept(Arc::clone(&provider.shared), listener, provider.addr));
        Ok(provider)
    }

    /// A provider without a socket: connections come by [`Provider::serve_stream`] alone, for simulations.
    pub fn detached(scenario: Scenario) -> Self {
        Self::new(scenario, SocketAddr::from(([0, 0, 0, 0], 0)))
    }

    fn new(scenario: Scenario, addr: SocketAddr) -> Self {
        let stop = CancellationToken::new();
        let connections = scenario.connections;
        let shared = Arc::new(Shared {
            ledger: Arc::new(Ledger::new()),
            director: RwLock::new(Arc::new(Director::new(scenario, clock::now()))),
            connections: watch::Sender::new(connections),
            disconnect: Mutex::default(),
            stop: stop.clone(),
            tasks: TaskTracker::new(),
        });
        Self { shared, addr, _stop: Arc::new(stop.drop_guard()) }
    }

    /// Serves one connection over any byte stream, such as one end of [`tokio::io::duplex`]. Returns at once.
    pub fn serve_stream(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let stream: Box<dyn Stream> = Box::new(stream);
        self.shared.tasks.spawn(server::connection(Arc::clone(&self.shared), stream));
    }

    /// Where it listens; all zeros for a detached one.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http://host:port`, to which Anthropic's SDK adds `/v1` itself.
    pub fn base_url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// `http://host:port/v1`, as OpenAI's SDK wants it.
    pub fn openai_url(&self) -> String {
        format!("http://{}/v1", self.addr)
    }

    /// Changes the scenario. Its steps and quotas begin anew, the counts go on, and calls in flight end as they
    /// began.
    pub fn set(&self, scenario: Scenario) {
        self.shared.set(scenario);
    }

    /// Changes to one behaviour for all calls.
    pub fn set_behaviour(&self, behaviour: Behaviour) {
        self.set(Scenario::of(behaviour));
    }

    /// Counts from zero (calls in flight stay counted), forgets the calls, and begins the scenario anew.
    pub fn reset(&self) {
        self.shared.reset();
    }

    /// The counts now.
    pub fn stats(&self) -> Stats {
        self.shared.ledger.stats()
    }

    /// The most recent calls in order of arrival, those in flight included.
    pub fn calls(&self) -> Vec<Call> {
        self.shared.ledger.calls()
    }

    /// Closes all open connections, as a restart would; new ones are served.
    pub fn disconnect_all(&self) {
        self.shared.disconnect_all();
    }

    /// Waits until the counts are as wanted; asked again after every change.
    ///
    /// # Errors
    /// When they aren't within the time.
    pub async fn wait_for(
        &self,
        done: impl Fn(&Stats) -> bool,
        timeout: Duration,
    ) -> Result<Stats, WaitError> {
        self.wait(|ledger| Some(ledger.stats()).filter(&done), timeout).await
    }

    /// Waits until the remembered calls are as wanted; asked again after every change.
    ///
    /// # Errors
    /// When they aren't within the time.
    pub async fn wait_for_calls(
        &self,
        done: impl Fn(&[Call]) -> bool,
        timeout: Duration,
    ) -> Result<Vec<Call>, WaitError> {
        self.wait(|ledger| Some(ledger.calls()).filter(|calls| done(calls)), timeout).await
    }

    async fn wait<T>(
        &self,
        done: impl FnMut(&Ledger) -> Option<T>,
        timeout: Duration,
    ) -> Result<T, WaitError> {
        let waited = tokio::time::timeout(timeout, self.shared.ledger.wait(done)).await;
        waited.map_err(|_| WaitError { timeout, stats: Box::new(self.stats()) })
    }

    /// Lets the calls go on that are silent now: those in a `stall` without an end, and those that `hang`. Calls
    /// that get there later are silent again.
    pub fn release(&self) {
        self.shared.ledger.release();
    }

    /// Stops: closes the socket and all connections, and returns when everything has ended.
    pub async fn shutdown(&self) {
        self.shared.stop.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}
