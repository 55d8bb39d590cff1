//! What the fleet needs of the API server.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ServiceAccount};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sluice_api::{ModelRoute, ReliabilityPolicy};

/// Requests at once.
const AT_ONCE: usize = 32;
const MANAGER: &str = "sluice-scale";
const POLICY: &str = "scale";

pub(crate) struct Cluster {
    client: Client,
    namespaces: usize,
    routes: usize,
    agents: usize,
}

/// The policy's generation in each namespace that was edited.
pub(crate) type Generations = BTreeMap<usize, i64>;

impl Cluster {
    pub(crate) async fn connect(namespaces: usize, routes: usize, agents: usize) -> anyhow::Result<Self> {
        Ok(Self { client: Client::try_default().await?, namespaces, routes, agents })
    }

    pub(crate) fn agents(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let namespaces = self.namespaces;
        (0..self.agents).map(move |agent| (agent % namespaces, agent))
    }

    /// Applies everything; what is there already stays.
    pub(crate) async fn set_up(&self, stateful: bool) -> anyhow::Result<()> {
        let namespaces = (0..self.namespaces).map(|n| json!({"metadata": {"name": namespace(n)}}));
        self.all::<Namespace>(namespaces.map(|object| (None, object)).collect()).await?;
        let accounts = (0..self.namespaces).map(|n| (Some(n), json!({"metadata": {"name": "default"}})));
        self.all::<ServiceAccount>(accounts.collect()).await?;
        let routes = (0..self.namespaces).flat_map(|n| (0..self.routes).map(move |r| (Some(n), route(r))));
        self.all::<ModelRoute>(routes.collect()).await?;
        self.all::<ReliabilityPolicy>((0..self.namespaces).map(|n| (Some(n), policy(n, 0))).collect())
            .await?;
        let pods = self.agents().map(|(n, agent)| (Some(n), pod(agent, stateful)));
        self.all::<Pod>(pods.collect()).await
    }

    async fn all<K>(&self, objects: Vec<(Option<usize>, Value)>) -> anyhow::Result<()>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        futures_util::stream::iter(objects)
            .map(|(n, object)| self.apply::<K>(n, object))
            .buffer_unordered(AT_ONCE)
            .try_for_each(|_| std::future::ready(Ok(())))
            .await
    }

    async fn apply<K>(&self, n: Option<usize>, mut object: Value) -> anyhow::Result<K>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        object["apiVersion"] = json!(K::api_version(&()));
        object["kind"] = json!(K::kind(&()));
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let url = K::url_path(&(), n.map(namespace).as_deref());
        let parameters = PatchParams::apply(MANAGER).force();
        let request = kube::core::Request::new(url).patch(&name, &parameters, &Patch::Apply(object))?;
        self.client.request(request).await.with_context(|| name)
    }

    /// The authorities that the controllers published, if they do.
    pub(crate) async fn authorities(&self) -> Option<String> {
        let maps = Api::<ConfigMap>::namespaced(self.client.clone(), "sluice-system");
        maps.get("sluice-ca").await.ok()?.data?.remove("ca.crt")
    }

    /// A token as kubelet would have projected it.
    pub(crate) async fn token(&self, n: usize, agent: usize) -> anyhow::Result<String> {
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), &namespace(n));
        let request: TokenRequest = serde_json::from_value(json!({
            "metadata": {},
            "spec": {"audiences": [sluice_controller::AUDIENCE], "expirationSeconds": 7_200,
                "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod_name(agent)}},
        }))?;
        let made = accounts.create_token_request("default", &PostParams::default(), &request).await?;
        Ok(made.status.context("no token")?.token)
    }

    /// Edits the policy of one namespace.
    pub(crate) async fn edit(&self, n: usize, round: usize) -> anyhow::Result<Generations> {
        let edited: ReliabilityPolicy = self.apply(Some(n), policy(n, round + 1)).await?;
        Ok([(n, edited.metadata.generation.unwrap_or_default())].into())
    }

    /// Edits the policies of all namespaces.
    pub(crate) async fn edit_everywhere(&self, round: usize) -> anyhow::Result<Generations> {
        let edits = futures_util::stream::iter(0..self.namespaces)
            .map(|n| self.edit(n, 1_000 + round))
            .buffer_unordered(AT_ONCE);
        edits.try_concat_maps().await
    }

    /// Waits until no status has been written for a while.
    pub(crate) async fn statuses_are_quiet(&self) -> anyhow::Result<()> {
        let mut before = None;
        loop {
            let newest = Some(
                self.newest_version::<ModelRoute>()
                    .await?
                    .max(self.newest_version::<ReliabilityPolicy>().await?),
            );
            if newest == before {
                return Ok(());
            }
            before = newest;
            // A status is written at most once in ten seconds.
            tokio::time::sleep(Duration::from_secs(25)).await;
        }
    }

    /// Of all objects of a kind the newest one's: those of other kinds change all the time.
    async fn newest_version<K>(&self) -> anyhow::Result<u64>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let all = Api::<K>::all(self.client.clone()).list_metadata(&ListParams::default()).await?;
        let versions =
            all.items.iter().filter_map(|object| object.metadata.resource_version.as_deref()?.parse().ok());
        Ok(versions.max().unwrap_or_default())
    }
}

trait ConcatMaps {
    async fn try_concat_maps(self) -> anyhow::Result<Generations>;
}

impl<S: futures_util::Stream<Item = anyhow::Result<Generations>>> ConcatMaps for S {
    async fn try_concat_maps(self) -> anyhow::Result<Generations> {
        self.try_fold(Generations::new(), |mut all, one| {
            all.extend(one);
            std::future::ready(Ok(all))
        })
        .await
    }
}

pub(crate) fn namespace(n: usize) -> String {
    format!("scale-{n:03}")
}

pub(crate) fn pod_name(agent: usize) -> String {
    format!("app-{agent:05}")
}

fn route(r: usize) -> Value {
    let name = format!("route-{r:04}");
    let target = |name: &str, priority: usize| {
        json!({"name": name, "provider": "OpenAI", "endpoint": format!("https://{name}.example/v1"),
            "priority": priority, "credential": {"type": "None"}})
    };
    json!({"metadata": {"name": name}, "spec": {"models": [name],
        "targets": [target("primary", 0), target("secondary", 1)]}})
}

/// Its rounds are told apart by a number that rules nothing here.
fn policy(n: usize, round: usize) -> Value {
    json!({"metadata": {"name": POLICY}, "spec": {
        "targetRefs": [{"group": "", "kind": "Namespace", "name": namespace(n)}],
        "retries": {"budgetPercent": 10 + round % 50}}})
}

fn pod(agent: usize, stateful: bool) -> Value {
    let mut labels = json!({"app": "scale", sluice_controller::INJECTED: "sidecar"});
    if stateful {
        labels["statefulset.kubernetes.io/pod-name"] = json!(pod_name(agent));
    }
    json!({"metadata": {"name": pod_name(agent), "labels": labels},
        "spec": {"serviceAccountName": "default", "automountServiceAccountToken": false,
            "containers": [{"name": "app", "image": "none"}]}})
}
