//! Sluice itself: installed by Helm once per run, in every namespace, and put right after a test that had it for itself.

use anyhow::{Context as _, Result, ensure};
use http::Method;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::cluster::{Cluster, name, told, unique};
use crate::command;
use crate::manifests;
use crate::scene::{Needs, rolled_out};
use crate::until::{PATIENCE, eventually};

/// Where it is installed.
pub const NAMESPACE: &str = "sluice-system";
/// The Helm release, and the beginning of every name.
pub const NAME: &str = "sluice";
/// The release of the custom resources.
pub const RESOURCES: &str = "sluice-crds";
pub const CONTROLLER: &str = "sluice-controller";
pub const REDIS: &str = "sluice-redis";
pub const WEBHOOK: &str = "sluice-injector";
/// Replicas of the controller.
pub const REPLICAS: u32 = 2;

const CHARTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts");

/// The images of one build: `SLUICE_IMAGE` and its neighbours.
#[derive(Debug, Clone)]
pub struct Images {
    repository: String,
    tag: String,
}

impl Images {
    /// # Errors
    /// When `SLUICE_IMAGE` is missing, or has no tag.
    pub fn from_env() -> Result<Self> {
        let image = std::env::var("SLUICE_IMAGE")
            .context("SLUICE_IMAGE is not set: name the image, such as sluice:dev")?;
        let split = image.rsplit_once(':').filter(|(_, tag)| !tag.contains('/'));
        let (repository, tag) = split.with_context(|| format!("SLUICE_IMAGE {image}: add a tag"))?;
        Ok(Self { repository: repository.to_owned(), tag: tag.to_owned() })
    }

    /// Python with the SDKs, and the scripted provider.
    pub fn e2e(&self) -> String {
        format!("{}-e2e:{}", self.repository, self.tag)
    }

    /// The product.
    pub fn sluice(&self) -> String {
        format!("{}:{}", self.repository, self.tag)
    }
}

/// The path of a chart.
pub fn chart(name: &str) -> String {
    format!("{CHARTS}/{name}")
}

/// What every installation here has in common, as arguments.
pub fn values(images: &Images) -> Vec<String> {
    let Images { repository, tag } = images;
    let texts = [
        format!("image.repository={repository}"),
        format!("image.tag={tag}"),
        format!("redis.image.repository={repository}-redis"),
        format!("redis.image.tag={tag}"),
        // An image may have changed under the same tag: a new run has new pods.
        format!("controller.podAnnotations.e2e-run={}", std::process::id()),
    ];
    let mut values: Vec<String> =
        texts.into_iter().flat_map(|value| ["--set-string".to_owned(), value]).collect();
    values.extend(["--set".to_owned(), format!("controller.replicas={REPLICAS}")]);
    values
}

/// Helm, with what it printed when it fails.
///
/// # Errors
/// When it fails.
pub async fn helm(arguments: &[&str]) -> Result<String> {
    command::succeed("helm", arguments).await
}

/// `helm upgrade --install` of a release from a chart, with the standard values and these.
///
/// # Errors
/// When it fails.
pub async fn upgrade(images: &Images, more: &[&str]) -> Result<String> {
    let chart = chart("sluice");
    let mut arguments = vec![
        "upgrade",
        "--install",
        NAME,
        &chart,
        "--namespace",
        NAMESPACE,
        "--create-namespace",
        "--wait",
        "--timeout",
        "3m",
    ];
    let values = values(images);
    arguments.extend(values.iter().map(String::as_str));
    arguments.extend(more);
    helm(&arguments).await
}

/// The custom resources, from a chart.
///
/// # Errors
/// When Helm fails.
pub async fn upgrade_resources(chart: &str) -> Result<String> {
    helm(&[
        "upgrade",
        "--install",
        RESOURCES,
        chart,
        "--namespace",
        NAMESPACE,
        "--create-namespace",
        "--wait",
    ])
    .await
}

static RESOURCES_READY: OnceCell<Result<(), String>> = OnceCell::const_new();
static READY: OnceCell<Result<(), String>> = OnceCell::const_new();

/// Installs what a test needs, once per run. What fails once fails for every test, at once.
///
/// # Errors
/// When it could not be installed.
pub async fn ready(cluster: &Cluster, images: &Images, needs: Needs) -> Result<()> {
    let as_text = |outcome: Result<()>| outcome.map_err(|error| format!("{error:#}"));
    let resources = RESOURCES_READY
        .get_or_init(async || as_text(upgrade_resources(&chart("sluice-crds")).await.map(drop)))
        .await;
    resources
        .clone()
        .map_err(|error| anyhow::anyhow!(error))
        .context("the custom resources could not be installed")?;
    if needs == Needs::Resources {
        return Ok(());
    }
    let release = READY.get_or_init(async || as_text(install(cluster, images).await)).await;
    release.clone().map_err(|error| anyhow::anyhow!(error)).context("Sluice could not be installed")
}

/// As every test finds it.
///
/// # Errors
/// When it can't be installed, or doesn't get to work.
pub async fn install(cluster: &Cluster, images: &Images) -> Result<()> {
    upgrade(images, &["--set", "allNamespaces=true"]).await?;
    works(cluster, images).await
}

/// Waits until pods get agents.
async fn works(cluster: &Cluster, images: &Images) -> Result<()> {
    rolled_out(cluster, NAMESPACE, CONTROLLER).await?;
    rolled_out(cluster, NAMESPACE, REDIS).await?;
    let namespace = unique("e2e-probe");
    let labels = json!({"sluice.dev/inject": "enabled"});
    let object =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}});
    cluster.apply("", &object).await?;
    // A pod that is only tried: the API server asks the webhook all the same.
    let injects = eventually(PATIENCE, "pods get an agent", async || {
        let pod = manifests::gated_pod("probe", &images.e2e(), &json!({}));
        let path = format!("/api/v1/namespaces/{namespace}/pods?dryRun=All");
        let answer =
            cluster.request(Method::POST, &path, "application/json", pod.to_string()).await.map_err(told)?;
        let answer: Value = serde_json::from_str(&answer)?;
        ensure!(crate::app::has_agent(&answer), "{}", answer["spec"]);
        Ok(())
    })
    .await;
    cluster.delete("", "Namespace", &namespace).await?;
    injects
}

/// Puts right what a test may have left: replicas, and with another revision of the release the release itself.
///
/// # Errors
/// When Sluice doesn't get to work again.
pub async fn mend(cluster: &Cluster, images: &Images) -> Result<()> {
    upgrade_resources(&chart("sluice-crds")).await?;
    for (deployment, replicas) in [(CONTROLLER, REPLICAS), (REDIS, 1)] {
        if let Some(found) = cluster.find(NAMESPACE, "Deployment", deployment).await?
            && found["spec"]["replicas"] != replicas
        {
            cluster.scale(NAMESPACE, deployment, replicas).await?;
        }
    }
    install(cluster, images).await
}

/// Agents in other namespaces share the state only with its password.
///
/// # Errors
/// What the API server says.
pub async fn share_redis_secret(cluster: &Cluster, namespace: &str) -> Result<()> {
    // Before the release is there, nobody needs it.
    let Some(secret) = cluster.find(NAMESPACE, "Secret", REDIS).await? else { return Ok(()) };
    let copy =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": REDIS}, "data": secret["data"]});
    cluster.apply(namespace, &copy).await?;
    Ok(())
}

/// The controller's pods that are ready.
///
/// # Errors
/// What the API server says.
pub async fn controllers(cluster: &Cluster) -> Result<Vec<Value>> {
    let mut pods = cluster.list(NAMESPACE, "Pod", "app.kubernetes.io/component=controller").await?;
    pods.retain(|pod| {
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let ready = conditions
            .into_iter()
            .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
        ready && pod["metadata"]["deletionTimestamp"].is_null()
    });
    Ok(pods)
}

/// Who writes status and Events, by the Lease.
///
/// # Errors
/// When nobody does.
pub async fn writer(cluster: &Cluster) -> Result<String> {
    let lease = cluster.get(NAMESPACE, "Lease", CONTROLLER).await?;
    let holder = lease["spec"]["holderIdentity"].as_str().filter(|holder| !holder.is_empty());
    Ok(holder.with_context(|| format!("nobody holds the lease: {}", lease["spec"]))?.to_owned())
}

/// Waits until one of the controller's pods that are ready writes.
///
/// # Errors
/// When none does in time.
pub async fn has_writer(cluster: &Cluster) -> Result<String> {
    eventually(PATIENCE, "a controller holds the lease", async || {
        let writer = writer(cluster).await?;
        let pods = controllers(cluster).await?;
        ensure!(pods.iter().any(|pod| name(pod) == writer), "{writer} is not ready");
        Ok(writer)
    })
    .await
}
