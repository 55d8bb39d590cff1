//! The CR path: changes come in, the index holds them, `compile` judges, the publisher sends, and status is written of
//! what came of it.
//!
//! One task owns it all. A change costs what its own namespace costs. Changes that come together (a `kubectl apply` of a directory, a list at the start) are
//! compiled together: the first waits a moment for the others. Nothing is published before every watch has told all
//! that it found, since an agent deletes what a snapshot does not name; nor is a namespace while a Secret of it is being
//! read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use parking_lot::Mutex;
use sluice_core::target_id::TargetId;
use sluice_policy::compile::{Compiled, compile_again};
use sluice_policy::fleet::Fleet;
use sluice_policy::index::{Index, Key, SecretScope};
use sluice_policy::metrics::ControlMetrics;
use sluice_policy::publish::Publisher;
use tokio::sync::{mpsc, watch};

use crate::clock;
use crate::pods::Pods;
use crate::secrets::{Ask, Reader, Reply, Secrets, Worth, named_by};
use crate::watch::{Change, Kind, Source};

/// How long a change waits for others.
const TOGETHER: Duration = Duration::from_millis(20);
/// Changes that are taken up at once.
const AT_ONCE: usize = 10_000;

/// The newest; `None` before everything was seen for the first time.
pub(crate) type Newest = watch::Receiver<Option<Arc<Compiled>>>;

pub(crate) struct Plane {
    index: Arc<Mutex<Index>>,
    publisher: Arc<Publisher>,
    fleet: Arc<Fleet>,
    pods: Arc<Pods>,
    secrets: Secrets,
    reader: Reader,
    metrics: Arc<ControlMetrics>,
    /// Watches that have not told everything yet.
    unsynced: BTreeSet<Source>,
    newest: watch::Sender<Option<Arc<Compiled>>>,
    due: Due,
    /// The targets that agents were counted for.
    counted: BTreeMap<Arc<str>, BTreeSet<TargetId>>,
}

/// What changes have asked for and is not done yet.
#[derive(Debug, Default)]
struct Due {
    /// Every namespace is to be compiled.
    everything: bool,
    compile: BTreeSet<Arc<str>>,
    /// Agents are to be counted again.
    count: BTreeSet<Arc<str>>,
}

impl Due {
    /// Of one namespace, or of all.
    fn compile(&mut self, namespace: Option<&str>) {
        match namespace {
            Some(namespace) => drop(self.compile.insert(namespace.into())),
            None => self.everything = true,
        }
    }

    fn is_empty(&self) -> bool {
        !self.everything && self.compile.is_empty() && self.count.is_empty()
    }
}

impl Plane {
    pub(crate) fn new(
        client: Client,
        sources: &[Source],
        (publisher, fleet): (Arc<Publisher>, Arc<Fleet>),
        pods: Arc<Pods>,
        metrics: Arc<ControlMetrics>,
        changes: mpsc::Sender<Change>,
    ) -> (Self, Arc<Mutex<Index>>, Newest) {
        let mut index = Index::default();
        index.set_secret_scope(secret_scope(sources));
        let index = Arc::new(Mutex::new(index));
        let (newest, receiver) = watch::channel(None);
        let plane = Self {
            index: index.clone(),
            publisher,
            fleet,
            pods,
            secrets: Secrets::default(),
            reader: Reader::new(client, changes),
            metrics,
            unsynced: sources.iter().cloned().collect(),
            newest,
            due: Due { everything: true, ..Due::default() },
            counted: BTreeMap::new(),
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
            for change in together.drain(..) {
                self.apply(change);
            }
            if self.unsynced.is_empty() && !self.due.is_empty() {
                self.carry_out();
            }
        }
    }

    fn apply(&mut self, change: Change) {
        let now_ms = clock::unix_ms();
        match change {
            Change::Route(route) => {
                let (known, key) = (self.is_known(Kind::Route, &route.metadata), Key::of(&route.metadata));
                self.index.lock().apply_route(*route, now_ms);
                if !known {
                    self.due.compile(Some(&key.namespace));
                }
            }
            Change::Policy(policy) => {
                let (known, key) = (self.is_known(Kind::Policy, &policy.metadata), Key::of(&policy.metadata));
                self.index.lock().apply_policy(*policy, now_ms);
                if !known {
                    self.due.compile(Some(&key.namespace));
                }
            }
            Change::Unreadable(kind, unread, problem) => {
                let key = Key::of(&unread.meta);
                self.index.lock().hold_unread(kind, *unread, &problem);
                self.due.compile(Some(&key.namespace));
            }
            Change::SecretsForbidden(namespace) => {
                self.index.lock().forbid_secrets(namespace.as_deref(), true);
                self.due.compile(namespace.as_deref());
            }
            Change::SecretVersion(key, version) => {
                if self.secrets.seen(&key, version) {
                    self.due.compile(Some(&key.namespace));
                }
            }
            Change::Read(ask, reply) => self.read(&ask, reply),
            Change::Pod(pod) => {
                self.due.count.insert(pod.key.namespace.clone());
                // First what streams that begin now are told by, then those that live.
                let pod = self.pods.apply(pod);
                self.fleet.relabel(&pod.key, &pod.uid, &pod.labels);
            }
            Change::Deleted(kind, key) => self.delete(kind, &key, now_ms),
            Change::Synced(source) => self.synced(&source),
        }
    }

    fn read(&mut self, ask: &Ask, reply: Reply) {
        let mut index = self.index.lock();
        match (self.secrets.heard(ask, &reply), reply) {
            (Worth::Nothing, _) => return,
            (Worth::News, Reply::Found(secret)) => index.apply_secret(*secret),
            (Worth::News, Reply::Absent) => index.delete_secret(&ask.key),
            (Worth::News, Reply::Late(why)) => index.fail_secret(&ask.key, &why),
            (Worth::Overtaken, _) => {}
        }
        self.due.compile(Some(&ask.key.namespace));
    }

    fn delete(&mut self, kind: Kind, key: &Key, now_ms: u64) {
        match kind {
            Kind::Route => self.index.lock().delete_route(key),
            Kind::Policy => self.index.lock().delete_policy(key, now_ms),
            Kind::Secret => {
                self.index.lock().delete_secret(key);
                if !self.secrets.gone(key) {
                    return;
                }
            }
            Kind::Pod => {
                if let Some(pod) = self.pods.delete(key) {
                    self.fleet.end(&pod.key, &pod.uid);
                }
                self.due.count.insert(key.namespace.clone());
                return;
            }
        }
        self.due.compile(Some(&key.namespace));
    }

    fn synced(&mut self, source: &Source) {
        if self.unsynced.remove(source) {
            tracing::debug!(?source, "everything was seen");
        } else if let Source::Secrets(namespace) = source {
            // It may have been refused, and is seen now.
            let news = self.index.lock().forbid_secrets(namespace.as_deref(), false);
            if news {
                self.due.compile(namespace.as_deref());
            }
        }
    }

    /// Whether this generation has been read already: then it is our own status that was written.
    fn is_known(&self, kind: Kind, meta: &ObjectMeta) -> bool {
        let (index, key) = (self.index.lock(), Key::of(meta));
        let known = match kind {
            Kind::Route => index.routes().get(&key).and_then(|entry| Some(&entry.newest.as_ref()?.metadata)),
            _ => index.policies().get(&key).and_then(|entry| Some(&entry.newest.as_ref()?.metadata)),
        };
        // One that was made anew begins to count anew.
        known.is_some_and(|known| known.uid == meta.uid && known.generation == meta.generation)
    }

    fn carry_out(&mut self) {
        let before = self.newest.borrow().clone();
        let due = std::mem::take(&mut self.due);
        let namespaces = if due.everything || before.is_none() { self.namespaces() } else { due.compile };
        if namespaces.is_empty()
            && let Some(compiled) = &before
        {
            let counts = self.count(compiled, &due.count);
            self.publisher.count_agents_of(counts);
            return;
        }
        let mut compiled = self.compile(before.as_deref(), &namespaces);
        let mut awaited = self.secrets.awaited_namespaces();
        awaited.retain(|namespace| namespaces.contains(namespace));
        if !awaited.is_empty() {
            // Targets would be without their credentials for as long as the reading takes: their namespaces stay as
            // they are, and at the start, when nobody knows how that is, everything waits.
            let Some(before) = &before else {
                self.due.everything = true;
                return;
            };
            compiled.keep(before, &awaited);
        }
        let compiled = Arc::new(compiled);
        let counts = self.count(&compiled, &namespaces.into_iter().chain(due.count).collect());
        self.publisher.count_agents_of(counts);
        let too_large = self.publisher.publish(compiled.clone());
        for error in &too_large {
            tracing::error!(namespace = &*error.namespace, %error, "agents keep the policies that they have");
        }
        self.newest.send_replace(Some(compiled));
    }

    /// All that there is, and all that there was.
    fn namespaces(&self) -> BTreeSet<Arc<str>> {
        let index = self.index.lock();
        let keys = index.routes().keys().chain(index.policies().keys());
        let now = keys.map(|key| key.namespace.clone());
        let newest = self.newest.borrow();
        let before = newest.iter().flat_map(|compiled| compiled.namespaces.keys().cloned());
        now.chain(before).collect()
    }

    fn compile(&mut self, before: Option<&Compiled>, namespaces: &BTreeSet<Arc<str>>) -> Compiled {
        let nothing = Compiled::default();
        let before = before.unwrap_or(&nothing);
        let mut index = self.index.lock();
        let started = clock::now();
        let compiled = compile_again(&index, before, namespaces);
        self.metrics.compiled(clock::now().saturating_duration_since(started), &compiled);
        for namespace in namespaces {
            let named = named_by(&index, &compiled, namespace);
            let (questions, forgotten) = self.secrets.named(namespace, &named);
            for key in &forgotten {
                index.delete_secret(key);
            }
            for question in questions {
                self.reader.put(question);
            }
        }
        compiled
    }

    /// How many agents share each target of some namespaces; zero for targets that are gone.
    fn count(&mut self, compiled: &Compiled, namespaces: &BTreeSet<Arc<str>>) -> BTreeMap<TargetId, u32> {
        let mut counts = BTreeMap::new();
        for namespace in namespaces {
            let policies = compiled.namespaces.get(namespace);
            let now =
                policies.map(|policies| self.pods.agents_by_target(namespace, policies)).unwrap_or_default();
            for target in self.counted.remove(namespace).unwrap_or_default() {
                counts.insert(target, 0);
            }
            if !now.is_empty() {
                self.counted.insert(namespace.clone(), now.keys().cloned().collect());
            }
            counts.extend(now);
        }
        counts
    }
}

/// Whose Secrets are watched.
fn secret_scope(sources: &[Source]) -> SecretScope {
    if sources.contains(&Source::Secrets(None)) {
        return SecretScope::Everywhere;
    }
    let listed = sources.iter().filter_map(|source| match source {
        Source::Secrets(Some(namespace)) => Some(namespace.as_str().into()),
        _ => None,
    });
    SecretScope::Only(listed.collect())
}
