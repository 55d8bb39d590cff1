//! What an agent is told at its start. Policies come from the control plane, not from here.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sluice_state::store::Shared;
use sluice_telemetry::{Books, Signals, Tracer};

use crate::client_auth::ClientAuth;
use crate::clock::Clock;
use crate::random::Random;
use crate::tls::ListenerTls;

/// Grace for streams at shutdown.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// Who an agent is.
#[derive(Debug, Clone)]
pub struct Identity {
    /// A name for logs and for the control plane: the pod's, in a cluster.
    pub name: String,
    /// The namespace whose routes it serves.
    pub namespace: String,
    /// Labels of its pod: routes may select by them.
    pub labels: BTreeMap<String, String>,
}

/// A client has this long to send a request's headers.
pub const DEFAULT_HEADER_TIMEOUT: Duration = Duration::from_secs(10);

pub struct AgentConfig {
    pub identity: Identity,
    /// Where breaker state and token buckets are shared.
    pub shared: Shared,
    /// How long streams may go on after the signal to stop.
    pub grace: Duration,
    /// How long new exchanges are still served after the signal to stop, while those who send them learn of it; none.
    pub lame_duck: Duration,
    /// Who is served.
    pub clients: ClientAuth,
    /// TLS on the side of clients; `None`: plain text.
    pub tls: Option<ListenerTls>,
    /// A folder in memory where the last good policies outlive this process.
    pub snapshot: Option<PathBuf>,
    /// How long a client may take to send a request's headers; its connection is closed then.
    pub header_timeout: Duration,
    /// For jitter, ids and nonces; `None`: from the system.
    pub seed: Option<u64>,
    /// Makes the spans of exchanges; see [`tracer`].
    pub tracer: Tracer,
    /// What became of its telemetry, for its metrics.
    pub books: Arc<Books>,
}

impl AgentConfig {
    #[must_use]
    pub fn new(name: impl Into<String>, namespace: impl Into<String>, shared: Shared) -> Self {
        let identity = Identity { name: name.into(), namespace: namespace.into(), labels: BTreeMap::new() };
        Self {
            identity,
            shared,
            grace: DEFAULT_GRACE,
            lame_duck: Duration::ZERO,
            clients: ClientAuth::None,
            tls: None,
            snapshot: None,
            header_timeout: DEFAULT_HEADER_TIMEOUT,
            seed: None,
            tracer: Tracer::off(),
            books: Arc::default(),
        }
    }
}

/// The tracer of an agent's signals, on the agent's clock. Ids of traces are drawn from the system whatever the
/// agent's seed: a run that is replayed makes new traces, and two agents never share one.
#[must_use]
pub fn tracer(signals: &Signals) -> Tracer {
    let (clock, random) = (Clock::start(), Random::new(Random::system_seed()));
    signals.tracer(move || clock.now(), move || random.id())
}
