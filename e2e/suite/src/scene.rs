//! A test, from its namespace to what is kept of it when it fails.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::FutureExt as _;
use serde_json::{Value, json};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::cluster::{Cluster, unique};
use crate::condition::{self, Condition};
use crate::evidence;
use crate::release::{self, Images};
use crate::until::{PATIENCE, TRUTH, eventually};

/// Longer than any test takes.
const LIMIT: Duration = Duration::from_mins(10);

/// What a test needs of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// The custom resources. Sluice may be installed or not.
    Resources,
    /// Sluice, as it is installed.
    Release,
    /// Sluice, for itself alone: it takes something away, installs it anew, or counts on a machine that keeps up. Sluice is
    /// mended afterwards.
    ReleaseAlone,
}

/// The release is everybody's, or one test's.
static TURN: RwLock<()> = RwLock::const_new(());

#[allow(dead_code, reason = "held, not read")]
enum Turn {
    Shared(RwLockReadGuard<'static, ()>),
    Alone(RwLockWriteGuard<'static, ()>),
}

/// A test's own namespace, whose pods get an agent.
pub struct Scene {
    pub cluster: Cluster,
    pub images: Images,
    pub namespace: String,
    /// The test's name.
    pub test: String,
}

/// Plays a test.
///
/// # Panics
/// When the test fails.
pub fn play<T: AsyncFnOnce(&Scene) -> Result<()>>(needs: Needs, test: T) {
    let name = name_of::<T>();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome =
        runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(staged(needs, &name, test)));
    if let Err(error) = outcome {
        // The one way to tell the test runner.
        #[allow(clippy::panic)]
        {
            panic!("{error:#}");
        }
    }
}

/// `e2e::policy::policy_conflict::{{closure}}` is `policy_conflict`.
fn name_of<T>() -> String {
    let full = std::any::type_name::<T>();
    let path = full.trim_end_matches("::{{closure}}");
    path.rsplit("::").next().unwrap_or(path).to_owned()
}

async fn staged<T: AsyncFnOnce(&Scene) -> Result<()>>(needs: Needs, name: &str, test: T) -> Result<()> {
    let turn = match needs {
        Needs::Resources | Needs::Release => Turn::Shared(TURN.read().await),
        Needs::ReleaseAlone => Turn::Alone(TURN.write().await),
    };
    let cluster = Cluster::connect().await?;
    let images = Images::from_env()?;
    release::ready(&cluster, &images, needs).await?;
    let began = Instant::now();
    let scene = Scene::begin(cluster, images, name).await?;
    let outcome = match outcome(test, &scene).await {
        Ok(()) => Ok(()),
        Err(error) => Err(scene.told(error).await),
    };
    let keep = outcome.is_err() && std::env::var("KEEP").is_ok_and(|keep| keep == "1");
    let ended = if keep { Ok(()) } else { scene.end().await };
    let mended = match needs {
        Needs::ReleaseAlone => release::mend(&scene.cluster, &scene.images).await,
        _ => Ok(()),
    };
    drop(turn);
    evidence::note_duration(name, began.elapsed())?;
    outcome.and(ended).and(mended)
}

/// What came of a test, also when it panics or does not end.
async fn outcome<T: AsyncFnOnce(&Scene) -> Result<()>>(test: T, scene: &Scene) -> Result<()> {
    match AssertUnwindSafe(tokio::time::timeout(LIMIT, test(scene))).catch_unwind().await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => bail!("the test took longer than {LIMIT:?}"),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            bail!(text.unwrap_or_else(|| "the test panicked".to_owned()))
        }
    }
}

impl Scene {
    async fn begin(cluster: Cluster, images: Images, test: &str) -> Result<Self> {
        let layer = test.split('_').next().unwrap_or("test");
        let namespace = unique(&format!("e2e-{layer}"));
        let scene = Self { cluster, images, namespace, test: test.to_owned() };
        scene.label_namespace(&json!({"sluice.dev/inject": "enabled"})).await?;
        // Pods are refused until it is there.
        eventually(PATIENCE, "the namespace's ServiceAccount", async || {
            scene.get("ServiceAccount", "default").await
        })
        .await?;
        release::share_redis_secret(&scene.cluster, &scene.namespace).await?;
        Ok(scene)
    }

    /// A failure, with where to look.
    async fn told(&self, error: anyhow::Error) -> anyhow::Error {
        let namespaces = [self.namespace.as_str(), release::NAMESPACE];
        let kept = evidence::keep(&self.cluster, &self.test, &namespaces, &format!("{error:#}\n")).await;
        let kept = kept.map_or_else(|error| error.to_string(), |folder| folder.display().to_string());
        error.context(format!("in namespace {}; evidence: {kept}", self.namespace))
    }

    async fn end(&self) -> Result<()> {
        self.cluster.delete(&self.namespace, "Namespace", &self.namespace).await
    }

    /// Sets labels of the namespace, in place of those set before.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn label_namespace(&self, labels: &Value) -> Result<()> {
        let metadata =
            json!({"name": self.namespace, "labels": labels, "annotations": {"sluice.dev/e2e": self.test}});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        self.cluster.apply("", &namespace).await?;
        Ok(())
    }

    /// Applies an object in the test's namespace.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn apply(&self, object: &Value) -> Result<Value> {
        self.cluster.apply(&self.namespace, object).await
    }

    /// # Errors
    /// What the API server says.
    pub async fn get(&self, kind: &str, name: &str) -> Result<Value> {
        self.cluster.get(&self.namespace, kind, name).await
    }

    /// # Errors
    /// What the API server says.
    pub async fn list(&self, kind: &str, labels: &str) -> Result<Vec<Value>> {
        self.cluster.list(&self.namespace, kind, labels).await
    }

    /// # Errors
    /// What the API server says.
    pub async fn delete(&self, kind: &str, name: &str) -> Result<()> {
        self.cluster.delete(&self.namespace, kind, name).await
    }

    /// Waits until a Deployment has the pods that it asks for, all of its newest revision.
    ///
    /// # Errors
    /// When it hasn't in time.
    pub async fn rolled_out(&self, deployment: &str) -> Result<()> {
        rolled_out(&self.cluster, &self.namespace, deployment).await
    }

    /// Waits until an object's condition says this, as soon as a status is to tell the truth.
    ///
    /// # Errors
    /// What it says instead.
    pub async fn says(
        &self,
        kind: &str,
        name: &str,
        type_: &str,
        status: &str,
        reason: &str,
    ) -> Result<Condition> {
        eventually(TRUTH, format!("{kind} {name}: {type_}={status} {reason}"), async || {
            condition::is(&self.get(kind, name).await?, type_, status, reason)
        })
        .await
    }

    /// The Events about an object.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn events_of(&self, kind: &str, name: &str) -> Result<Vec<Value>> {
        let mut events = self.list("Event", "").await?;
        events.retain(|event| event["regarding"]["kind"] == kind && event["regarding"]["name"] == name);
        Ok(events)
    }
}

/// Waits until a Deployment has the pods that it asks for, all of its newest revision.
///
/// # Errors
/// When it hasn't in time.
pub async fn rolled_out(cluster: &Cluster, namespace: &str, deployment: &str) -> Result<()> {
    eventually(PATIENCE, format!("deployment {deployment} is rolled out"), async || {
        let found = cluster.get(namespace, "Deployment", deployment).await?;
        let (wanted, status) = (found["spec"]["replicas"].as_u64().unwrap_or(1), &found["status"]);
        let count = |name: &str| status[name].as_u64().unwrap_or(0);
        let newest = status["observedGeneration"] == found["metadata"]["generation"];
        let counts = ["updatedReplicas", "availableReplicas", "replicas"].map(count);
        ensure!(newest && counts == [wanted; 3], "{status}");
        Ok(())
    })
    .await
    .with_context(|| format!("deployment {namespace}/{deployment}"))
}
