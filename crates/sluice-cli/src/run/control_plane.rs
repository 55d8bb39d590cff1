//! The control plane of a run: a directory in, policies out.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use notify::{RecursiveMode, Watcher};
use parking_lot::Mutex;
use sluice_core::policy::RoutePolicy;
use sluice_policy::compile::{Compiled, compile};
use sluice_policy::conditions::{Draft, Status};
use sluice_policy::files::Directory;
use sluice_policy::fleet::Fleet;
use sluice_policy::index::Index;
use sluice_policy::publish::Publisher;
use sluice_policy::random::Random;
use sluice_policy::service::{Counting, Discovery, Settings, TrustLoopback};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Endpoint, Server};

use super::feed::Feed;
use crate::clock;
use crate::view::Level;

/// Editors write a file in several steps; they are read as one edit.
const SETTLE: Duration = Duration::from_millis(50);

pub(super) struct ControlPlane {
    address: std::net::SocketAddr,
    source: Arc<Mutex<Source>>,
}

/// What the directory holds, and what was last said of it.
struct Source {
    directory: Directory,
    index: Index,
    publisher: Arc<Publisher>,
    compiled: Arc<Compiled>,
    /// Told already: each complaint is told once, and once more when it is gone.
    complaints: Vec<String>,
}

impl ControlPlane {
    /// Reads the directory, serves its policies on a loopback port, and follows its edits until `stop`.
    pub(super) async fn start(path: PathBuf, feed: Feed, stop: CancellationToken) -> anyhow::Result<Self> {
        let publisher = Arc::new(Publisher::new());
        let (fleet, mut transitions) = Fleet::new();
        // The view hears of transitions from the agents themselves; the fleet's copy is for status writers.
        tokio::spawn(async move { while transitions.recv().await.is_some() {} });
        let source = Arc::new(Mutex::new(Source {
            directory: Directory::new(path.clone()),
            index: Index::default(),
            publisher: publisher.clone(),
            compiled: Arc::default(),
            complaints: Vec::new(),
        }));
        source.lock().reload(&feed)?;
        let settings = Settings { counting: Counting::Streams, ..Settings::default() };
        let random = Random::from_system()?;
        let discovery =
            Discovery::new(publisher, Arc::new(fleet), TrustLoopback, settings, random, stop.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no loopback port for the policies")?;
        let address = listener.local_addr()?;
        let server = Server::builder()
            .add_service(discovery.into_server())
            .serve_with_incoming_shutdown(TcpListenerStream::new(listener), stop.clone().cancelled_owned());
        tokio::spawn(async move {
            if let Err(error) = server.await {
                tracing::error!(%error, "the policy service ended");
            }
        });
        follow(&path, source.clone(), feed, stop)?;
        Ok(Self { address, source })
    }

    pub(super) fn endpoint(&self) -> anyhow::Result<Endpoint> {
        Ok(Endpoint::from_shared(format!("http://{}", self.address))?)
    }

    /// The routes that agents of a namespace get.
    pub(super) fn routes(&self, namespace: &str) -> Vec<Arc<RoutePolicy>> {
        let source = self.source.lock();
        let of_namespace = source.compiled.namespaces.get(namespace);
        of_namespace
            .map(|policies| policies.routes.iter().map(|route| route.policy.clone()).collect())
            .unwrap_or_default()
    }

    /// What is wrong with the manifests.
    pub(super) fn problems(&self) -> Vec<String> {
        self.source.lock().complaints.clone()
    }
}

impl Source {
    /// Reads the directory again and publishes what changed.
    fn reload(&mut self, feed: &Feed) -> anyhow::Result<()> {
        let now_ms = clock::unix_ms();
        let changes = self.directory.reload(now_ms)?;
        let mut complaints: Vec<String> = changes.problems.iter().map(ToString::to_string).collect();
        let edited = !changes.is_empty();
        let applied = changes.applied.len();
        let deleted = changes.deleted.len();
        changes.apply_to(&mut self.index, now_ms);
        if edited {
            self.compiled = Arc::new(compile(&self.index));
            for too_large in self.publisher.publish(self.compiled.clone()) {
                complaints.push(too_large.to_string());
            }
        }
        complaints.extend(conditions(&self.compiled));
        for complaint in complaints.iter().filter(|one| !self.complaints.contains(one)) {
            feed.note(Level::Warning, complaint.clone());
        }
        for mended in self.complaints.iter().filter(|one| !complaints.contains(one)) {
            feed.note(Level::Info, format!("mended: {mended}"));
        }
        if edited && (applied > 0 || deleted > 0) {
            feed.note(Level::Info, format!("{applied} objects applied, {deleted} deleted"));
        }
        self.complaints = complaints;
        Ok(())
    }
}

/// What status would say of the objects, as far as it is not good.
fn conditions(compiled: &Compiled) -> Vec<String> {
    let bad = |object: &dyn std::fmt::Display, draft: &Draft| {
        (draft.status == Status::False)
            .then(|| format!("{object}: {}=False/{}: {}", draft.type_, draft.reason, draft.message))
    };
    let routes = compiled.routes.values().flat_map(|report| {
        let drafts = [Some(&report.accepted), report.resolved_refs.as_ref(), report.programmed.as_ref()];
        drafts.into_iter().flatten().filter_map(|draft| bad(&report.object, draft)).collect::<Vec<_>>()
    });
    let policies = compiled.policies.values().flat_map(|report| {
        let of_ancestor = |ancestor: &sluice_policy::compile::AncestorReport| {
            let drafts = [Some(&ancestor.accepted), ancestor.programmed.as_ref()];
            drafts.into_iter().flatten().filter_map(|draft| bad(&report.object, draft)).collect::<Vec<_>>()
        };
        report.ancestors.iter().flat_map(of_ancestor).collect::<Vec<_>>()
    });
    let mut all: Vec<String> = routes.chain(policies).collect();
    all.dedup();
    all
}

/// Watches the directory on a task of its own.
fn follow(path: &Path, source: Arc<Mutex<Source>>, feed: Feed, stop: CancellationToken) -> anyhow::Result<()> {
    let (changed, mut changes) = mpsc::channel::<()>(1);
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // A full channel says already that something changed.
        if event.is_ok_and(|event| !event.kind.is_access()) {
            let _ = changed.try_send(());
        }
    })?;
    watcher
        .watch(path, RecursiveMode::NonRecursive)
        .with_context(|| format!("{} cannot be watched for edits", path.display()))?;
    tokio::spawn(async move {
        let _watcher = watcher;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                change = changes.recv() => if change.is_none() { return },
            }
            tokio::time::sleep(SETTLE).await;
            let (source, told) = (source.clone(), feed.clone());
            let reloaded = tokio::task::spawn_blocking(move || source.lock().reload(&told)).await;
            if let Ok(Err(error)) = reloaded {
                feed.note(Level::Warning, format!("{error:#}: everything stays as it is"));
            }
        }
    });
    Ok(())
}
