//! The control plane of a run: a directory in, policies out.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::IntoResponse;
use axum::routing::get;
use parking_lot::Mutex;
use sluice_api::check::{ObjectName, Problem, Resource};
use sluice_core::policy::RoutePolicy;
use sluice_policy::compile::{Compiled, compile};
use sluice_policy::files::{Changes, Directory, UnreadableDirectory};
use sluice_policy::fleet::Fleet;
use sluice_policy::index::Index;
use sluice_policy::metrics::{ControlMetrics, Reload};
use sluice_policy::publish::Publisher;
use sluice_policy::random::Random;
use sluice_policy::service::{Counting, Discovery, Settings, TrustLoopback};
use sluice_telemetry::{Signals, TextFormat};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::{Endpoint, Server};

use super::complaints::{self, Complaint, Complaints};
use super::feed::Feed;
use super::follow::Follow;
use crate::clock;
use crate::view::Level;

/// Objects that a line names.
const NAMED: usize = 5;
/// Problems that an error at the start shows.
const PROBLEMS: usize = 20;

pub(super) struct ControlPlane {
    address: SocketAddr,
    source: Arc<Mutex<Source>>,
}

/// What the directory holds, and what was last said of it.
struct Source {
    path: PathBuf,
    directory: Directory,
    index: Index,
    publisher: Arc<Publisher>,
    metrics: Arc<ControlMetrics>,
    compiled: Arc<Compiled>,
    /// Routes that are too large to be sent, of the last publication.
    too_large: Vec<Complaint>,
    complaints: Complaints,
}

impl ControlPlane {
    /// Reads the directory, serves its policies at a loopback address, and follows its edits until `stop`.
    pub(super) async fn start(
        (path, address): (PathBuf, SocketAddr),
        feed: Feed,
        signals: &Signals,
        stop: CancellationToken,
    ) -> anyhow::Result<Self> {
        // Whoever reaches it is trusted with the secrets of every namespace.
        anyhow::ensure!(
            super::is_loopback(address.ip()),
            "--policies {address}: policies are served on this machine only; use a loopback address such as 127.0.0.1:8112"
        );
        let publisher = Arc::new(Publisher::new());
        let (fleet, mut transitions) = Fleet::new();
        // The view hears of transitions from the agents themselves; the fleet's copy is for status writers.
        tokio::spawn(async move { while transitions.recv().await.is_some() {} });
        // Before the first reading, so that no edit falls between the two.
        let follow = Follow::start(path.clone());
        let fleet = Arc::new(fleet);
        let metrics = Arc::new(ControlMetrics::new(signals.books(), fleet.clone()));
        signals.export_metrics(metrics.clone());
        let mut source = Source::new(path, publisher.clone(), metrics.clone());
        source.reload(&feed).context("-f")?;
        let source = Arc::new(Mutex::new(source));
        let settings = Settings { counting: Counting::Streams, ..Settings::default() };
        let random = Random::from_system()?;
        let discovery = Discovery::new(publisher, fleet, TrustLoopback, settings, random, stop.clone());
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("--policies {address}: choose another port, 0 for a free one, or end what uses it")
        })?;
        let address = listener.local_addr()?;
        let pages = Routes::new(discovery.into_server()).into_axum_router();
        let pages = pages.route("/metrics", get(async move |headers| page(&metrics, &headers)));
        let server = Server::builder()
            .accept_http1(true)
            .add_routes(pages.into())
            .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stop.clone().cancelled_owned());
        tokio::spawn(async move {
            if let Err(error) = server.await {
                tracing::error!(%error, "the policy service ended");
            }
        });
        feed.note(
            Level::Info,
            "policies",
            format!("served to agents at http://{address}, with /metrics of the control plane"),
        );
        tokio::spawn(stop.run_until_cancelled_owned(reload_on_edits(follow, source.clone(), feed)));
        Ok(Self { address, source })
    }

    pub(super) fn endpoint(&self) -> anyhow::Result<Endpoint> {
        Ok(Endpoint::from_shared(format!("http://{}", self.address))?)
    }

    /// The routes that agents of a namespace get.
    ///
    /// # Errors
    /// When there is none: what there is in place of it, and what is wrong.
    pub(super) fn routes(&self, namespace: &str) -> anyhow::Result<Vec<Arc<RoutePolicy>>> {
        let source = self.source.lock();
        let of_namespace = source.compiled.namespaces.get(namespace).into_iter();
        let routes: Vec<Arc<RoutePolicy>> =
            of_namespace.flat_map(|policies| &policies.routes).map(|route| route.policy.clone()).collect();
        anyhow::ensure!(!routes.is_empty(), source.why_no_route(namespace));
        Ok(routes)
    }
}

/// `/metrics`, beside the policies.
fn page(metrics: &ControlMetrics, headers: &HeaderMap) -> impl IntoResponse + use<> {
    let format = TextFormat::accepted(headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()));
    ([(CONTENT_TYPE, format.content_type())], metrics.text(format))
}

/// Ends only when it is dropped.
async fn reload_on_edits(mut follow: Follow, source: Arc<Mutex<Source>>, feed: Feed) {
    loop {
        follow.changed().await;
        let (source, told) = (source.clone(), feed.clone());
        let reloaded = tokio::task::spawn_blocking(move || {
            let mut source = source.lock();
            if let Err(error) = source.reload(&told) {
                source.keep(error, &told);
            }
        });
        if let Err(error) = reloaded.await {
            tracing::error!(%error, "the directory could not be read again");
        }
    }
}

impl Source {
    fn new(path: PathBuf, publisher: Arc<Publisher>, metrics: Arc<ControlMetrics>) -> Self {
        Self {
            directory: Directory::new(path.clone()),
            path,
            index: Index::default(),
            publisher,
            metrics,
            compiled: Arc::default(),
            too_large: Vec::new(),
            complaints: Complaints::default(),
        }
    }

    /// Reads the directory again, publishes what changed, and says what is wrong.
    #[tracing::instrument(skip_all)]
    fn reload(&mut self, feed: &Feed) -> Result<(), UnreadableDirectory> {
        let now_ms = clock::unix_ms();
        let read = self.directory.reload(now_ms);
        self.metrics.reloaded(match &read {
            Err(_) => Reload::Failed,
            Ok(changes) if changes.is_empty() => Reload::Unchanged,
            Ok(_) => Reload::Changed,
        });
        let mut changes = read?;
        let problems: Vec<Problem> = std::mem::take(&mut changes.problems);
        let edits = edits(&changes);
        if !changes.is_empty() {
            changes.apply_to(&mut self.index, now_ms);
            let started = clock::now();
            self.compiled = Arc::new(compile(&self.index));
            self.metrics.compiled(clock::now().saturating_duration_since(started), &self.compiled);
            let too_large = self.publisher.publish(self.compiled.clone());
            self.too_large =
                too_large.iter().map(|one| Complaint::new(one.to_string(), one.to_string())).collect();
        }
        let mut now = complaints::of(&problems, &self.compiled);
        now.extend(self.too_large.iter().cloned());
        for (level, text) in self.complaints.update(now) {
            feed.note(level, "policy", text);
        }
        if let Some(edits) = edits {
            feed.note(Level::Info, "policy", edits);
        }
        Ok(())
    }

    /// A directory that is away for a moment must not end everything.
    fn keep(&mut self, error: UnreadableDirectory, feed: &Feed) {
        let text = format!("{:#}; until then everything stays as it is", anyhow::Error::from(error));
        for (level, text) in
            self.complaints.add(Complaint::new(format!("directory {}", self.path.display()), text))
        {
            feed.note(level, "policy", text);
        }
    }

    fn why_no_route(&self, namespace: &str) -> String {
        let mut why = format!("-f {}: no valid ModelRoute for namespace {namespace}", self.path.display());
        let with_routes = self.compiled.namespaces.iter().filter(|(_, policies)| !policies.routes.is_empty());
        let others: BTreeSet<&str> = with_routes.map(|(name, _)| &**name).collect();
        let problems: Vec<&str> = self.complaints.texts().collect();
        // Writing to a string can't fail.
        if !others.is_empty() {
            let others: Vec<&str> = others.into_iter().collect();
            let _ = write!(why, "; there are some for {}: choose with --namespace", others.join(", "));
        } else if problems.is_empty() {
            why.push_str("; write one into a *.yaml file there, or name another directory");
        }
        for problem in problems.iter().take(PROBLEMS) {
            let _ = write!(why, "\n  {problem}");
        }
        if let Some(more @ 1..) = problems.len().checked_sub(PROBLEMS) {
            let _ = write!(why, "\n  and {more} more: sluice check {} shows all", self.path.display());
        }
        why
    }
}

/// What took effect, in a line; `None`: nothing did.
fn edits(changes: &Changes) -> Option<String> {
    let applied = changes.applied.iter().filter_map(|resource| {
        let (kind, meta) = match resource {
            Resource::Route(route) => ("ModelRoute", &route.metadata),
            Resource::Policy(policy) => ("ReliabilityPolicy", &policy.metadata),
            Resource::Secret(secret) => ("Secret", &secret.metadata),
            Resource::Other => return None,
        };
        Some(format!("{kind}/{}", meta.name.as_deref().unwrap_or_default()))
    });
    let parts =
        [("applied", names(applied)), ("deleted", names(changes.deleted.iter().map(ObjectName::to_string)))];
    let parts: Vec<String> =
        parts.into_iter().filter_map(|(what, names)| Some(format!("{what} {}", names?))).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn names(all: impl Iterator<Item = String>) -> Option<String> {
    let all: Vec<String> = all.collect();
    let (first, rest) = all.split_at(all.len().min(NAMED));
    let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
    (!all.is_empty()).then(|| first.join(", ") + &more)
}
