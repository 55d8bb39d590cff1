//! Pods that run an agent: whose labels decide which routes they get, and how many share a target.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::core::PartialObjectMeta;
use parking_lot::Mutex;
use sluice_core::target_id::TargetId;
use sluice_policy::compile::{NamespacePolicies, Scope};
use sluice_policy::index::Key;

/// The label of every pod with an agent; its value is `sidecar` or `gateway`.
pub const INJECTED: &str = "sluice.dev/agent";

/// What is remembered of such a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InjectedPod {
    pub(crate) key: Key,
    pub(crate) uid: Arc<str>,
    pub(crate) labels: BTreeMap<String, String>,
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
    pub(crate) fn apply(&self, pod: InjectedPod) -> Arc<InjectedPod> {
        let pod = Arc::new(pod);
        self.0.lock().insert(pod.key.clone(), pod.clone());
        pod
    }

    pub(crate) fn delete(&self, key: &Key) -> Option<Arc<InjectedPod>> {
        self.0.lock().remove(key)
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<InjectedPod>> {
        self.0.lock().get(key).cloned()
    }

    /// Where there are any.
    pub(crate) fn namespaces(&self) -> BTreeSet<Arc<str>> {
        self.0.lock().keys().map(|key| key.namespace.clone()).collect()
    }

    /// Agents per target of a namespace, of pods that are not about to end.
    pub(crate) fn agents_by_target(
        &self,
        namespace: &Arc<str>,
        policies: &NamespacePolicies,
    ) -> BTreeMap<TargetId, u32> {
        let routes = &policies.routes;
        let for_all = routes.iter().all(|route| route.workloads.is_none());
        // Pods for which the same routes are selected count together: labels tell most of them apart for other reasons.
        let mut alike: BTreeMap<Vec<bool>, u32> = BTreeMap::new();
        let first = Key { namespace: namespace.clone(), name: "".into() };
        let pods = self.0.lock();
        let of_namespace =
            pods.range(first..).map(|(_, pod)| pod).take_while(|pod| pod.key.namespace == *namespace);
        for pod in of_namespace.filter(|pod| !pod.ending) {
            let selected = if for_all {
                Vec::new()
            } else {
                routes.iter().map(|route| route.is_for(&pod.labels)).collect()
            };
            *alike.entry(selected).or_default() += 1;
        }
        drop(pods);
        let mut counts = BTreeMap::new();
        for (selected, pods) in alike {
            let routes = routes.iter().enumerate().filter(|(at, _)| for_all || selected[*at]);
            let targets: BTreeSet<&TargetId> =
                routes.flat_map(|(_, route)| &route.policy.targets).map(|target| &target.id).collect();
            for target in targets {
                *counts.entry(target.clone()).or_default() += pods;
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use sluice_policy::{Index, compile};

    use super::*;

    fn pod(name: &str, labels: &[(&str, &str)], ending: bool) -> InjectedPod {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        InjectedPod { key: Key::new("ns", name), uid: name.into(), labels: labels.collect(), ending }
    }

    fn route(name: &str, app: Option<&str>) -> sluice_api::ModelRoute {
        let workloads = app.map(|app| serde_json::json!({"matchLabels": {"app": app}}));
        let target = |name: &str| {
            serde_json::json!({"name": name, "provider": "OpenAI", "endpoint": "https://x.example/v1",
                "dependency": name, "credential": {"type": "None"}})
        };
        let mut spec = serde_json::json!({"models": [name], "targets": [target("shared"), target(name)]});
        if let Some(workloads) = workloads {
            spec["workloads"] = workloads;
        }
        serde_json::from_value(serde_json::json!({
            "apiVersion": "sluice.dev/v1alpha1", "kind": "ModelRoute",
            "metadata": {"namespace": "ns", "name": name}, "spec": spec,
        }))
        .unwrap()
    }

    #[test]
    fn each_pod_counts_once_for_each_target_that_it_gets() {
        let pods = Pods::default();
        for pod in [
            pod("a-1", &[("app", "a"), ("pod", "1")], false),
            pod("a-2", &[("app", "a"), ("pod", "2")], false),
            pod("b-1", &[("app", "b")], false),
            pod("b-2", &[("app", "b")], true),
        ] {
            pods.apply(pod);
        }
        pods.apply(InjectedPod { key: Key::new("other", "x"), ..pod("x", &[], false) });
        let counts = |routes: Vec<sluice_api::ModelRoute>| {
            let mut index = Index::default();
            index.reset_routes(routes, 0);
            let compiled = compile(&index);
            let counts = pods.agents_by_target(&"ns".into(), &compiled.namespaces["ns"]);
            let by_name = |name: &str| {
                let id = TargetId::of("ns", name, "https://x.example/v1", "");
                counts.get(&id).copied().unwrap_or_default()
            };
            [by_name("shared"), by_name("all"), by_name("only-a")]
        };
        assert_eq!(counts(vec![route("all", None)]), [3, 3, 0]);
        assert_eq!(counts(vec![route("all", None), route("only-a", Some("a"))]), [3, 3, 2]);
        assert_eq!(counts(vec![route("only-a", Some("a"))]), [2, 0, 2]);
    }
}
