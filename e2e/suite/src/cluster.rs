//! Objects of the cluster, by their kind and as JSON: a test says what it sends, field by field, and reads what came back.

use anyhow::{Context as _, Result, bail};
use http::{Method, Request};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Config};
use rand::Rng as _;
use serde_json::{Value, json};

/// Who a test's fields belong to.
const FIELD_MANAGER: &str = "e2e";

/// What tests handle: kind, API version, and whether it is in a namespace.
const KINDS: [(&str, &str, bool); 25] = [
    ("Namespace", "v1", false),
    ("Node", "v1", false),
    ("Pod", "v1", true),
    ("Service", "v1", true),
    ("ServiceAccount", "v1", true),
    ("Secret", "v1", true),
    ("ConfigMap", "v1", true),
    ("Deployment", "apps/v1", true),
    ("ReplicaSet", "apps/v1", true),
    ("Job", "batch/v1", true),
    ("Event", "events.k8s.io/v1", true),
    ("Lease", "coordination.k8s.io/v1", true),
    ("EndpointSlice", "discovery.k8s.io/v1", true),
    ("NetworkPolicy", "networking.k8s.io/v1", true),
    ("PodDisruptionBudget", "policy/v1", true),
    ("Role", "rbac.authorization.k8s.io/v1", true),
    ("RoleBinding", "rbac.authorization.k8s.io/v1", true),
    ("ClusterRole", "rbac.authorization.k8s.io/v1", false),
    ("ClusterRoleBinding", "rbac.authorization.k8s.io/v1", false),
    ("MutatingWebhookConfiguration", "admissionregistration.k8s.io/v1", false),
    ("ValidatingAdmissionPolicy", "admissionregistration.k8s.io/v1", false),
    ("ValidatingAdmissionPolicyBinding", "admissionregistration.k8s.io/v1", false),
    ("CustomResourceDefinition", "apiextensions.k8s.io/v1", false),
    ("ModelRoute", "sluice.dev/v1alpha1", true),
    ("ReliabilityPolicy", "sluice.dev/v1alpha1", true),
];

/// The cluster that `KUBECONFIG` names.
#[derive(Clone)]
pub struct Cluster {
    pub client: Client,
}

impl Cluster {
    /// # Errors
    /// When `KUBECONFIG` is missing or of no use.
    pub async fn connect() -> Result<Self> {
        // Two libraries bring one each; whoever was first is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let path =
            std::env::var("KUBECONFIG").context("KUBECONFIG is not set: name the cluster to test on")?;
        let kubeconfig = Kubeconfig::read_from(&path).with_context(|| format!("KUBECONFIG {path}"))?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Self { client: Client::try_from(config)? })
    }

    /// # Errors
    /// When tests don't know the kind.
    pub fn api(&self, kind: &str, namespace: &str) -> Result<Api<DynamicObject>> {
        let Some((_, version, namespaced)) = KINDS.iter().find(|(known, ..)| *known == kind) else {
            bail!("{kind}: add it to the kinds of cluster.rs");
        };
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Ok(if *namespaced {
            Api::namespaced_with(self.client.clone(), namespace, &resource)
        } else {
            Api::all_with(self.client.clone(), &resource)
        })
    }

    /// Server-side apply of an object with its `apiVersion` and `kind`.
    ///
    /// # Errors
    /// What the API server says; a field that it doesn't know is refused.
    pub async fn apply(&self, namespace: &str, object: &Value) -> Result<Value> {
        let kind = object["kind"].as_str().context("an object without a kind")?;
        let name = object["metadata"]["name"].as_str().context("an object without a name")?;
        let params = PatchParams::apply(FIELD_MANAGER).force().validation_strict();
        let applied = self.api(kind, namespace)?.patch(name, &params, &Patch::Apply(object)).await;
        Ok(serde_json::to_value(
            applied.map_err(told).with_context(|| format!("apply {kind} {namespace}/{name}"))?,
        )?)
    }

    /// A merge patch.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn merge(&self, namespace: &str, kind: &str, name: &str, patch: &Value) -> Result<Value> {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patched = self.api(kind, namespace)?.patch(name, &params, &Patch::Merge(patch)).await;
        Ok(serde_json::to_value(
            patched.map_err(told).with_context(|| format!("patch {kind} {namespace}/{name}"))?,
        )?)
    }

    /// # Errors
    /// What the API server says, when it is not there too.
    pub async fn get(&self, namespace: &str, kind: &str, name: &str) -> Result<Value> {
        let found = self.api(kind, namespace)?.get(name).await;
        Ok(serde_json::to_value(
            found.map_err(told).with_context(|| format!("get {kind} {namespace}/{name}"))?,
        )?)
    }

    /// # Errors
    /// What the API server says.
    pub async fn find(&self, namespace: &str, kind: &str, name: &str) -> Result<Option<Value>> {
        let found = self.api(kind, namespace)?.get_opt(name).await;
        let found = found.map_err(told).with_context(|| format!("get {kind} {namespace}/{name}"))?;
        Ok(found.map(serde_json::to_value).transpose()?)
    }

    /// # Errors
    /// What the API server says.
    pub async fn list(&self, namespace: &str, kind: &str, labels: &str) -> Result<Vec<Value>> {
        let found = self.api(kind, namespace)?.list(&ListParams::default().labels(labels)).await;
        let items = found.map_err(told).with_context(|| format!("list {kind} in {namespace}"))?.items;
        items.into_iter().map(|item| Ok(serde_json::to_value(item)?)).collect()
    }

    /// Deletes; what is not there is as good.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn delete(&self, namespace: &str, kind: &str, name: &str) -> Result<()> {
        match self.api(kind, namespace)?.delete(name, &DeleteParams::background()).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            Err(error) => Err(told(error)).with_context(|| format!("delete {kind} {namespace}/{name}")),
        }
    }

    /// Deletes without a grace period, as when a node loses power.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn kill_pod(&self, namespace: &str, name: &str) -> Result<()> {
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        let killed = self.api("Pod", namespace)?.delete(name, &now).await;
        killed.map_err(told).with_context(|| format!("kill {namespace}/{name}"))?;
        Ok(())
    }

    /// # Errors
    /// What the API server says.
    pub async fn scale(&self, namespace: &str, deployment: &str, replicas: u32) -> Result<()> {
        let scale = json!({"spec": {"replicas": replicas}});
        self.merge(namespace, "Deployment", deployment, &scale).await?;
        Ok(())
    }

    /// A request of any kind to the API server.
    ///
    /// # Errors
    /// Its answer, unless that is a success.
    pub async fn request(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: impl Into<Vec<u8>>,
    ) -> Result<String, kube::Error> {
        let request = Request::builder().method(method).uri(path).header("content-type", content_type);
        let request = request.body(body.into()).map_err(kube::Error::HttpError)?;
        self.client.request_text(request).await
    }

    /// A request to a pod or a service through the API server, which is all that a KUBECONFIG reaches. `of` is such as
    /// `pods/app-1:8080`.
    ///
    /// # Errors
    /// Unless the answer is a success.
    pub async fn http(
        &self,
        namespace: &str,
        of: &str,
        method: Method,
        path: &str,
        body: &str,
    ) -> Result<String> {
        let full = format!("/api/v1/namespaces/{namespace}/{of}/proxy{path}");
        let answer = self.request(method.clone(), &full, "application/json", body).await;
        answer.map_err(told).with_context(|| format!("{method} {full}"))
    }

    /// What a pod of one container has logged.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn log(&self, namespace: &str, pod: &str) -> Result<String> {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/log");
        self.request(Method::GET, &path, "application/json", "").await.map_err(told).context(path)
    }

    /// A token of a ServiceAccount, as kubelet gets it for a pod.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn token(
        &self,
        namespace: &str,
        account: &str,
        audience: &str,
        pod: Option<&Value>,
    ) -> Result<String> {
        let mut spec = json!({"audiences": [audience], "expirationSeconds": 3600});
        if let Some(pod) = pod {
            spec["boundObjectRef"] = json!({"apiVersion": "v1", "kind": "Pod",
                "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]});
        }
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let answer =
            self.request(Method::POST, &path, "application/json", body.to_string()).await.map_err(told)?;
        let answer: Value = serde_json::from_str(&answer)?;
        Ok(answer["status"]["token"].as_str().context("a TokenRequest without a token")?.to_owned())
    }
}

/// An error in the API server's own words, once.
pub fn told(error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => anyhow::anyhow!("{} {}: {}", status.code, status.reason, status.message),
        other => other.into(),
    }
}

/// A name that nobody has: what is being deleted keeps its own for a while.
pub fn unique(beginning: &str) -> String {
    format!("{beginning}-{:06x}", rand::rng().random_range(0..0x100_0000))
}

/// An object's name.
pub fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}
