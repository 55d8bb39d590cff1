//! Pods that run an agent: whose labels decide which routes they get, and how many share a target.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::core::PartialObjectMeta;
use parking_lot::Mutex;
use sluice_core::target_id::TargetId;
use sluice_policy::compile::{Compiled, Scope};
use sluice_policy::index::Key;

/// The label of every pod with an agent; its value is `sidecar` or `gateway`.
pub const INJECTED: &str = "sluice.dev/agent";

/// What is remembered of such a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InjectedPod {
    pub(crate) key: Key,
    pub(crate) uid: Arc<str>,
    labels: BTreeMap<String, String>,
    ending: bool,
}

impl InjectedPod {
    pub(crate) fn of(pod: &PartialObjectMeta<Pod>) -> Self {
        let meta = &pod.metadata;
        Self {
            key: Key::of(meta),
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            labels: meta.labels.clone().unwrap_or_default(),
            ending: meta.deletion_timestamp.is_some(),
        }
    }

    /// Whose policies its agent gets.
    pub(crate) fn scope(&self) -> Scope {
        Scope { namespace: self.key.namespace.clone(), labels: self.labels.clone() }
    }
}

/// All of them, as the API server last said.
#[derive(Debug, Default)]
pub(crate) struct Pods(Mutex<BTreeMap<Key, Arc<InjectedPod>>>);

impl Pods {
    pub(crate) fn apply(&self, pod: InjectedPod) {
        self.0.lock().insert(pod.key.clone(), Arc::new(pod));
    }

    pub(crate) fn delete(&self, key: &Key) {
        self.0.lock().remove(key);
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<InjectedPod>> {
        self.0.lock().get(key).cloned()
    }

    /// Where there are any.
    pub(crate) fn namespaces(&self) -> BTreeSet<Arc<str>> {
        self.0.lock().keys().map(|key| key.namespace.clone()).collect()
    }

    /// Agents per target, of pods that are not about to end.
    pub(crate) fn agents_by_target(&self, compiled: &Compiled) -> BTreeMap<TargetId, u32> {
        let mut scopes: BTreeMap<Scope, u32> = BTreeMap::new();
        for pod in self.0.lock().values().filter(|pod| !pod.ending) {
            *scopes.entry(pod.scope()).or_default() += 1;
        }
        let mut counts = BTreeMap::new();
        for (scope, pods) in scopes {
            let routes = compiled.scope(&scope).routes;
            let targets: BTreeSet<&TargetId> =
                routes.iter().flat_map(|route| &route.targets).map(|target| &target.id).collect();
            for target in targets {
                *counts.entry(target.clone()).or_default() += pods;
            }
        }
        counts
    }
}
