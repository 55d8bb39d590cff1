//! Pods that asked for an agent and run without one: their calls are not protected, and nothing else would say so.
//!
//! How they come about: the webhook was away when they were made (it never keeps a pod from being made), they are older
//! than the label of their namespace, or they can't have one (the host's network).
//!
//! Mechanics: the holder of the Lease lists, now and then, the metadata of pods that should have the label of an agent
//! and don't. In a sound cluster these are few. Each is read once, to say why.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use sluice_policy::index::Key;
use tokio::sync::watch;

use super::pod::{self, INJECT, Left};
use crate::clock;
use crate::lease::{Tenure, holds};
use crate::metrics::ControllerMetrics;
use crate::namespaces::Namespaces;
use crate::pods::INJECTED;

const LOOK: Duration = Duration::from_secs(30);
const LOOK_WITHIN: Duration = Duration::from_secs(20);
/// Pods that are read in one look.
const READ_AT_ONCE: usize = 100;
/// Pods that are remembered.
const REMEMBERED: usize = 10_000;
/// What runs.
const ALIVE: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// One that runs without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MissingAgent {
    pub(crate) pod: Key,
    pub(crate) uid: Arc<str>,
    pub(crate) why: Why,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Why {
    /// The webhook was not asked, or did not answer.
    NotInjected,
    /// The webhook is not asked about its namespace.
    Unwatched,
    HostNetwork,
    Windows,
    NameTaken,
}

impl Why {
    /// As a metric has it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::NotInjected => "not-injected",
            Self::Unwatched => "unwatched",
            Self::HostNetwork => "host-network",
            Self::Windows => "windows",
            Self::NameTaken => "name-taken",
        }
    }

    /// What is wrong and what helps, for whoever owns the pod: an Event's note.
    pub(crate) const fn note(self) -> &'static str {
        match self {
            Self::NotInjected => {
                "the pod asked for an agent and runs without one: it was made before its namespace asked or while the webhook was away; delete it, or restart its workload, to have it injected"
            }
            Self::Unwatched => {
                "the pod asked for an agent and runs without one: its namespace is not among those that Sluice looks into; add it to watchNamespaces"
            }
            Self::HostNetwork => {
                "the pod asked for an agent and can't have one: with hostNetwork its ports would be the node's; use a gateway"
            }
            Self::Windows => "the pod asked for an agent and can't have one on Windows; use a gateway",
            Self::NameTaken => {
                "the pod asked for an agent and can't have one: it has a volume of the agent's name; rename the volume"
            }
        }
    }

    /// `None`: it has one after all, or does not want it.
    fn of(pod: &Pod, namespace_asks: bool) -> Option<Self> {
        match pod::judge(pod, namespace_asks) {
            Ok(()) => Some(Self::NotInjected),
            Err(Left::HostNetwork(_)) => Some(Self::HostNetwork),
            Err(Left::Windows(_)) => Some(Self::Windows),
            Err(Left::NameTaken(_)) => Some(Self::NameTaken),
            Err(Left::NotAsked | Left::Refused | Left::Unclear(_) | Left::HasAgent) => None,
        }
    }
}

/// Those that are known now, by uid. Empty while another replica holds the lease.
pub(crate) type MissingAgents = watch::Receiver<BTreeMap<Arc<str>, MissingAgent>>;

/// Looks for them, while this replica holds the lease.
pub(crate) struct Search {
    client: Client,
    namespaces: Namespaces,
    /// Those that this controller looks into; `None`: all.
    watched: Option<BTreeSet<Arc<str>>>,
    tenure: Tenure,
    metrics: Arc<ControllerMetrics>,
    /// What was found of each pod that has been read.
    read: BTreeMap<Arc<str>, Option<MissingAgent>>,
    found: watch::Sender<BTreeMap<Arc<str>, MissingAgent>>,
}

impl Search {
    pub(crate) fn new(
        client: Client,
        namespaces: Namespaces,
        watched: Option<BTreeSet<Arc<str>>>,
        tenure: Tenure,
        metrics: Arc<ControllerMetrics>,
    ) -> (Self, MissingAgents) {
        let (found, receiver) = watch::channel(BTreeMap::new());
        (Self { client, namespaces, watched, tenure, metrics, read: BTreeMap::new(), found }, receiver)
    }

    /// Runs until it is dropped.
    pub(crate) async fn run(mut self) {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            if !holds(&self.tenure, clock::now()) || !self.namespaces.are_known() {
                self.read.clear();
                self.tell(None);
                continue;
            }
            match tokio::time::timeout(LOOK_WITHIN, self.look()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(%error, "pods without an agent could not be looked for: it is tried again");
                }
                Err(_) => tracing::warn!("pods without an agent could not be looked for in time"),
            }
        }
    }

    async fn look(&mut self) -> kube::Result<()> {
        let candidates = self.candidates().await?;
        self.read.retain(|uid, _| candidates.contains_key(uid));
        let unread: Vec<(&Arc<str>, &Key)> =
            candidates.iter().filter(|(uid, _)| !self.read.contains_key(*uid)).take(READ_AT_ONCE).collect();
        for (uid, key) in unread {
            let pods = Api::<Pod>::namespaced(self.client.clone(), &key.namespace);
            // Gone since, or another one of that name.
            let Some(pod) = pods.get_opt(&key.name).await? else { continue };
            if pod.metadata.uid.as_deref() != Some(&**uid) {
                continue;
            }
            let mut why = Why::of(&pod, self.namespaces.asks(&key.namespace));
            let unwatched = self.watched.as_ref().is_some_and(|watched| !watched.contains(&key.namespace));
            if why == Some(Why::NotInjected) && unwatched {
                why = Some(Why::Unwatched);
            }
            let missing = why.map(|why| MissingAgent { pod: key.clone(), uid: uid.clone(), why });
            self.read.insert(uid.clone(), missing);
        }
        let found = self.read.iter().filter_map(|(uid, read)| Some((uid.clone(), read.clone()?))).collect();
        self.tell(Some(found));
        Ok(())
    }

    /// Pods that should have the label of an agent and don't, by uid.
    async fn candidates(&self) -> kube::Result<BTreeMap<Arc<str>, Key>> {
        let asking = format!("{INJECT} in (enabled,true),!{INJECTED}");
        let mut pods = self.list(Api::all(self.client.clone()), &asking).await?;
        let not_refusing = format!("{INJECT} notin (disabled,false),!{INJECTED}");
        for namespace in self.namespaces.that_ask() {
            let of_namespace = Api::namespaced(self.client.clone(), &namespace);
            pods.extend(self.list(of_namespace, &not_refusing).await?);
        }
        let alive = pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let named =
            alive.filter_map(|pod| Some((pod.metadata.uid.as_deref()?.into(), Key::of(&pod.metadata))));
        Ok(named.take(REMEMBERED).collect())
    }

    /// From the API server's cache: this is no matter of milliseconds.
    async fn list(&self, pods: Api<Pod>, labels: &str) -> kube::Result<Vec<PartialObjectMeta<Pod>>> {
        let parameters = ListParams::default().labels(labels).fields(ALIVE).match_any();
        Ok(pods.list_metadata(&parameters).await?.items)
    }

    fn tell(&self, found: Option<BTreeMap<Arc<str>, MissingAgent>>) {
        let counts = found.as_ref().map(|found| {
            let all = [Why::NotInjected, Why::Unwatched, Why::HostNetwork, Why::Windows, Why::NameTaken];
            all.map(|why| (why.as_str(), found.values().filter(|missing| missing.why == why).count()))
        });
        self.metrics.without_agent(counts.as_ref().map(<[_; 5]>::as_slice));
        let found = found.unwrap_or_default();
        self.found.send_if_modified(|before| {
            for missing in found.values().filter(|missing| !before.contains_key(&missing.uid)) {
                tracing::warn!(pod = %missing.pod, reason = missing.why.as_str(), "a pod runs without the agent that it asked for");
            }
            let changed = *before != found;
            *before = found;
            changed
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api_server::ApiServer;

    fn pod(namespace: &str, name: &str, labels: &Value, spec: &Value) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": namespace, "name": name, "uid": format!("uid-{name}"), "labels": labels},
            "spec": spec,
        })
    }

    #[tokio::test]
    async fn pods_that_asked_and_have_none_are_found_with_the_reason() {
        let server = ApiServer::default();
        let app = json!({"containers": [{"name": "app"}]});
        let on_host = json!({"hostNetwork": true, "containers": [{"name": "app"}]});
        for pod in [
            pod("asks", "older", &json!({"app": "a"}), &app),
            pod("asks", "refuses", &json!({INJECT: "disabled"}), &app),
            pod("asks", "injected", &json!({INJECTED: "sidecar"}), &app),
            pod("asks", "host", &json!({}), &on_host),
            pod("plain", "asks-itself", &json!({INJECT: "enabled"}), &app),
            pod("plain", "other", &json!({}), &app),
        ] {
            server.put("api/v1/pods", pod);
        }
        let (_tenure, tenure) = watch::channel(None);
        let namespaces = Namespaces::of(server.client(), &[("asks", true), ("plain", false)]);
        let watched = Some([Arc::from("asks")].into());
        let (mut search, found) = Search::new(server.client(), namespaces, watched, tenure, Arc::default());
        search.look().await.unwrap();
        let told: Vec<(String, Why)> =
            found.borrow().values().map(|missing| (missing.pod.to_string(), missing.why)).collect();
        let mut wanted = vec![
            ("asks/host".to_owned(), Why::HostNetwork),
            ("asks/older".to_owned(), Why::NotInjected),
            ("plain/asks-itself".to_owned(), Why::Unwatched),
        ];
        wanted.sort_by_key(|(name, _)| format!("uid-{}", name.split_once('/').unwrap().1));
        assert_eq!(told, wanted);
        // It is restarted, and injected this time.
        let pods = Api::<Pod>::namespaced(server.client(), "asks");
        pods.delete("older", &kube::api::DeleteParams::default()).await.unwrap();
        search.look().await.unwrap();
        assert_eq!(found.borrow().len(), 2);
    }
}
