//! The CR path: changes come in, the index holds them, `compile` judges, the publisher sends, and status is written of
//! what came of it.
//!
//! One task owns it all. Changes that come together (a `kubectl apply` of a directory, a list at the start) are
//! compiled together: the first waits a moment for the others. Nothing is published before every watch has told all
//! that it found, since an agent deletes what a snapshot does not name; nor while a Secret is being read.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use parking_lot::Mutex;
use sluice_policy::compile::{Compiled, compile};
use sluice_policy::index::{Index, Key};
use sluice_policy::metrics::ControlMetrics;
use sluice_policy::publish::Publisher;
use tokio::sync::{mpsc, watch};

use crate::clock;
use crate::pods::Pods;
use crate::secrets::{Secrets, named_by};
use crate::watch::{Change, Kind, Source};

/// How long a change waits for others.
const TOGETHER: Duration = Duration::from_millis(20);
/// Changes that are taken up at once.
const AT_ONCE: usize = 10_000;
const READ_WITHIN: Duration = Duration::from_secs(2);
/// A Secret that could not be read is asked for again after this.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// The newest; `None` before everything was seen for the first time.
pub(crate) type Newest = watch::Receiver<Option<Arc<Compiled>>>;

pub(crate) struct Plane {
    client: Client,
    index: Arc<Mutex<Index>>,
    publisher: Arc<Publisher>,
    pods: Arc<Pods>,
    secrets: Secrets,
    metrics: Arc<ControlMetrics>,
    /// Watches that have not told everything yet.
    unsynced: BTreeSet<Source>,
    changes: mpsc::Sender<Change>,
    newest: watch::Sender<Option<Arc<Compiled>>>,
}

/// What a change asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Effect {
    Nothing,
    /// To count agents again.
    Count,
    Compile,
}

impl Plane {
    pub(crate) fn new(
        client: Client,
        sources: &[Source],
        publisher: Arc<Publisher>,
        pods: Arc<Pods>,
        metrics: Arc<ControlMetrics>,
        changes: mpsc::Sender<Change>,
    ) -> (Self, Arc<Mutex<Index>>, Newest) {
        let index = Arc::new(Mutex::new(Index::default()));
        let (newest, receiver) = watch::channel(None);
        let plane = Self {
            client,
            index: index.clone(),
            publisher,
            pods,
            secrets: Secrets::default(),
            metrics,
            unsynced: sources.iter().cloned().collect(),
            changes,
            newest,
        };
        (plane, index, receiver)
    }

    /// Runs until it is dropped: it holds a sender of its own.
    pub(crate) async fn run(mut self, mut changes: mpsc::Receiver<Change>) {
        let mut together = Vec::new();
        while let Some(first) = changes.recv().await {
            together.push(first);
            tokio::time::sleep(TOGETHER).await;
            while together.len() < AT_ONCE
                && let Ok(change) = changes.try_recv()
            {
                together.push(change);
            }
            let effects = together.drain(..).map(|change| self.apply(change));
            let effect = effects.max().unwrap_or(Effect::Nothing);
            if self.unsynced.is_empty() {
                self.carry_out(effect);
            }
        }
    }

    fn apply(&mut self, change: Change) -> Effect {
        let now_ms = clock::unix_ms();
        match change {
            Change::Route(route) => {
                let same = self.is_known(Kind::Route, &Key::of(&route.metadata), route.metadata.generation);
                self.index.lock().apply_route(*route, now_ms);
                if same { Effect::Nothing } else { Effect::Compile }
            }
            Change::Policy(policy) => {
                let same =
                    self.is_known(Kind::Policy, &Key::of(&policy.metadata), policy.metadata.generation);
                self.index.lock().apply_policy(*policy, now_ms);
                if same { Effect::Nothing } else { Effect::Compile }
            }
            Change::Unreadable(kind, key, problem) => {
                self.index.lock().hold(kind, &key, &problem);
                Effect::Compile
            }
            Change::SecretVersion(key, version) => {
                self.secrets.seen(key, version);
                Effect::Compile
            }
            Change::Secret(secret) => {
                let wanted = self.secrets.came(&secret);
                if wanted {
                    self.index.lock().apply_secret(*secret);
                }
                if wanted { Effect::Compile } else { Effect::Nothing }
            }
            Change::SecretLate(key) => {
                self.secrets.late(&key);
                Effect::Compile
            }
            Change::Pod(pod) => {
                self.pods.apply(pod);
                Effect::Count
            }
            Change::Deleted(kind, key) => self.delete(kind, &key, now_ms),
            Change::Synced(source) => {
                if self.unsynced.remove(&source) {
                    tracing::debug!(?source, "everything was seen");
                }
                Effect::Compile
            }
        }
    }

    fn delete(&mut self, kind: Kind, key: &Key, now_ms: u64) -> Effect {
        match kind {
            Kind::Route => self.index.lock().delete_route(key),
            Kind::Policy => self.index.lock().delete_policy(key, now_ms),
            Kind::Secret => {
                self.secrets.gone(key);
                self.index.lock().delete_secret(key);
            }
            Kind::Pod => {
                self.pods.delete(key);
                return Effect::Count;
            }
        }
        Effect::Compile
    }

    /// Whether this generation has been read already: then it is our own status that was written.
    fn is_known(&self, kind: Kind, key: &Key, generation: Option<i64>) -> bool {
        let index = self.index.lock();
        let known = match kind {
            Kind::Route => {
                index.routes().get(key).filter(|entry| entry.newest.is_some()).map(|entry| entry.generation)
            }
            _ => {
                index.policies().get(key).filter(|entry| entry.newest.is_some()).map(|entry| entry.generation)
            }
        };
        known.is_some() && known == generation
    }

    fn carry_out(&mut self, effect: Effect) {
        let compiled = match effect {
            Effect::Nothing => return,
            Effect::Count => self.newest.borrow().clone(),
            Effect::Compile => None,
        };
        if let Some(compiled) = compiled {
            self.publisher.count_agents(self.pods.agents_by_target(&compiled));
            return;
        }
        let compiled = Arc::new(self.compile());
        if self.secrets.are_awaited() {
            // Targets would be without their credentials for as long as the reading takes.
            return;
        }
        self.publisher.count_agents(self.pods.agents_by_target(&compiled));
        let too_large = self.publisher.publish(compiled.clone());
        for error in &too_large {
            tracing::error!(namespace = &*error.namespace, %error, "agents keep the policies that they have");
        }
        self.newest.send_replace(Some(compiled));
    }

    fn compile(&mut self) -> Compiled {
        let mut index = self.index.lock();
        let started = clock::now();
        let compiled = compile(&index);
        self.metrics.compiled(clock::now().saturating_duration_since(started), &compiled);
        let (wanted, forgotten) = self.secrets.named(&named_by(&index, &compiled));
        for key in &forgotten {
            index.delete_secret(key);
        }
        for key in wanted {
            tokio::spawn(read(self.client.clone(), key, self.changes.clone()));
        }
        compiled
    }
}

/// Reads a Secret, until it can be read or is gone.
async fn read(client: Client, key: Key, changes: mpsc::Sender<Change>) {
    let secrets: Api<Secret> = Api::namespaced(client, &key.namespace);
    loop {
        let why = match tokio::time::timeout(READ_WITHIN, secrets.get_opt(&key.name)).await {
            Ok(Ok(found)) => {
                let told = found.map_or_else(
                    || Change::Deleted(Kind::Secret, key.clone()),
                    |secret| Change::Secret(Box::new(secret)),
                );
                // The plane is gone: so is the need.
                let _ = changes.send(told).await;
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", READ_WITHIN.as_secs()),
        };
        tracing::warn!(secret = %key, error = why, "a Secret could not be read: it is tried again");
        if changes.send(Change::SecretLate(key.clone())).await.is_err() {
            return;
        }
        tokio::time::sleep(READ_AGAIN).await;
    }
}
