//! An application with the official SDKs, as a Deployment; see `pods/app.py`.

use anyhow::{Context as _, Result, ensure};
use http::Method;
use serde_json::{Value, json};

use crate::cluster::name;
use crate::manifests;
use crate::scene::Scene;
use crate::until::{PATIENCE, eventually};

const PORT: u16 = 8080;

/// The name of the agent's container in a pod.
pub const AGENT: &str = "sluice-agent";

/// What the application is.
pub struct App<'a> {
    scene: &'a Scene,
    name: String,
}

/// How an application is deployed.
pub struct Shape<'a> {
    pub name: &'a str,
    pub replicas: u32,
    /// Further labels of the pods.
    pub labels: Value,
    /// Variables of its container.
    pub env: Vec<(&'a str, &'a str)>,
    /// Whether containers see each other's processes, so that the application can end the agent's.
    pub shared_processes: bool,
}

impl Default for Shape<'_> {
    fn default() -> Self {
        Self { name: "app", replicas: 1, labels: json!({}), env: Vec::new(), shared_processes: false }
    }
}

impl Shape<'_> {
    /// One without an agent: a caller of applications, or of a gateway.
    pub fn without_agent(name: &str) -> Shape<'_> {
        Shape { name, labels: json!({"sluice.dev/inject": "disabled"}), ..Shape::default() }
    }

    /// The Deployment's manifest.
    pub fn deployment(&self, image: &str) -> Value {
        let command = ["/usr/bin/python3", "/app/app.py"];
        let mut deployment = manifests::deployment(self.name, image, &command, PORT);
        deployment["spec"]["replicas"] = json!(self.replicas);
        let template = &mut deployment["spec"]["template"];
        if let (Some(labels), Some(more)) =
            (template["metadata"]["labels"].as_object_mut(), self.labels.as_object())
        {
            labels.extend(more.clone());
        }
        let spec = &mut template["spec"];
        spec["volumes"] = json!([{"name": "app", "configMap": {"name": "app"}}]);
        spec["containers"][0]["volumeMounts"] = json!([{"name": "app", "mountPath": "/app"}]);
        // Without the first, Python keeps for itself what it prints.
        let env = [("PYTHONUNBUFFERED", "1")].into_iter().chain(self.env.iter().copied());
        spec["containers"][0]["env"] =
            env.map(|(name, value)| json!({"name": name, "value": value})).collect();
        // Until its address is taken from the Service, it is still called.
        spec["containers"][0]["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 3}}});
        if self.shared_processes {
            spec["shareProcessNamespace"] = json!(true);
        }
        deployment
    }
}

impl<'a> App<'a> {
    /// Deploys it and waits for its pods.
    ///
    /// # Errors
    /// When they don't get ready.
    pub async fn start(scene: &'a Scene, shape: &Shape<'_>) -> Result<Self> {
        scene.apply(&manifests::config_map("app", "app.py", include_str!("../pods/app.py"))).await?;
        scene.apply(&shape.deployment(&scene.images.e2e())).await?;
        scene.apply(&manifests::service(shape.name, 80, PORT)).await?;
        scene.rolled_out(shape.name).await?;
        Ok(Self { scene, name: shape.name.to_owned() })
    }

    /// One whose pods all have an agent.
    ///
    /// # Errors
    /// When a pod has none.
    pub async fn start_injected(scene: &'a Scene, shape: &Shape<'_>) -> Result<Self> {
        let app = Self::start(scene, shape).await?;
        for pod in app.pods().await? {
            ensure!(has_agent(&pod), "pod {} has no agent", name(&pod));
        }
        Ok(app)
    }

    /// One pod with an agent that serves it `gpt-4o` already, and the pod's name.
    ///
    /// # Errors
    /// When it is not there, or not served.
    pub async fn start_served(scene: &'a Scene) -> Result<(Self, String)> {
        let app = Self::start_injected(scene, &Shape::default()).await?;
        let [pod] = app.names().await?;
        app.is_served(&pod, "gpt-4o").await?;
        Ok((app, pod))
    }

    /// Its pods that are not about to end.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn pods(&self) -> Result<Vec<Value>> {
        let pods = self.scene.list("Pod", &format!("app={}", self.name)).await?;
        Ok(pods.into_iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).collect())
    }

    /// The names of its pods, which are to be so many.
    ///
    /// # Errors
    /// When they are more or fewer.
    pub async fn names<const N: usize>(&self) -> Result<[String; N]> {
        let pods = self.pods().await?;
        let names: Vec<String> = pods.iter().map(|pod| name(pod).to_owned()).collect();
        names.try_into().map_err(|names| anyhow::anyhow!("{N} pods are to be there: {names:?}"))
    }

    /// A request to a port of one of its pods.
    ///
    /// # Errors
    /// When it doesn't answer with a success.
    pub async fn http(
        &self,
        pod: &str,
        port: u16,
        method: Method,
        path: &str,
        body: &Value,
    ) -> Result<String> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.scene
            .cluster
            .http(&self.scene.namespace, &format!("pods/{pod}:{port}"), method, path, &body)
            .await
    }

    async fn order(&self, pod: &str, method: Method, path: &str, order: &Value) -> Result<Value> {
        let answer = self.http(pod, PORT, method, path, order).await?;
        serde_json::from_str(&answer).with_context(|| answer.clone())
    }

    /// Calls through an SDK, and what came of each.
    ///
    /// # Errors
    /// When the application itself doesn't answer.
    pub async fn ask(&self, pod: &str, order: Value) -> Result<Vec<Value>> {
        let answers = self.order(pod, Method::POST, "/ask", &order).await?;
        Ok(answers.as_array().context("no list of answers")?.clone())
    }

    /// One call of a model.
    ///
    /// # Errors
    /// When the application itself doesn't answer.
    pub async fn ask_once(&self, pod: &str, model: &str) -> Result<Value> {
        self.ask(pod, json!({ "model": model })).await?.pop().context("no answer")
    }

    /// Calls until one is served: a route may be seconds old.
    ///
    /// # Errors
    /// The last answer, when none is.
    pub async fn is_served(&self, pod: &str, model: &str) -> Result<Value> {
        eventually(PATIENCE, format!("{model} is served"), async || served(self.ask_once(pod, model).await?))
            .await
    }

    /// Begins a stream that goes on by itself.
    ///
    /// # Errors
    /// When the application itself doesn't answer.
    pub async fn begin_stream(&self, pod: &str, model: &str) -> Result<()> {
        self.order(pod, Method::POST, "/stream", &json!({ "model": model })).await?;
        Ok(())
    }

    /// What became of these streams.
    ///
    /// # Errors
    /// When the application itself doesn't answer.
    pub async fn streams(&self, pod: &str) -> Result<Vec<Value>> {
        let streams = self.order(pod, Method::GET, "/streams", &Value::Null).await?;
        Ok(streams.as_array().context("no list of streams")?.clone())
    }

    /// Begins to call an address without end.
    ///
    /// # Errors
    /// When the application itself doesn't answer.
    pub async fn begin_load(&self, pod: &str, url: &str, parallel: u32) -> Result<()> {
        self.order(pod, Method::POST, "/load", &json!({"url": url, "parallel": parallel})).await?;
        Ok(())
    }

    /// Ends these calls, waits for those under way, and gives the counts.
    ///
    /// # Errors
    /// When they don't end.
    pub async fn end_load(&self, pod: &str) -> Result<Value> {
        self.order(pod, Method::POST, "/halt", &json!({})).await?;
        eventually(PATIENCE, "the load has ended", async || {
            let counts = self.load(pod).await?;
            ensure!(counts["running"] == 0, "{counts}");
            Ok(counts)
        })
        .await
    }

    /// The counts so far.
    ///
    /// # Errors
    /// When the application itself doesn't answer.
    pub async fn load(&self, pod: &str) -> Result<Value> {
        self.order(pod, Method::GET, "/load", &Value::Null).await
    }

    /// Sends a signal to the agent's process beside it ([`Shape::shared_processes`]).
    ///
    /// # Errors
    /// When there is no such process.
    pub async fn signal_agent(&self, pod: &str, signal: &str) -> Result<()> {
        let order = json!({"program": AGENT, "signal": signal});
        let answer = self.order(pod, Method::POST, "/signal", &order).await?;
        ensure!(
            answer["signalled"].as_array().is_some_and(|found| !found.is_empty()),
            "no agent in {pod}: {answer}"
        );
        Ok(())
    }
}

/// Whether a pod has an agent.
pub fn has_agent(pod: &Value) -> bool {
    pod["spec"]["initContainers"].as_array().into_iter().flatten().any(|container| container["name"] == AGENT)
}

/// What kubelet says of a pod's agent.
///
/// # Errors
/// When it says nothing yet.
pub fn agent_status(pod: &Value) -> Result<&Value> {
    let statuses = pod["status"]["initContainerStatuses"].as_array().into_iter().flatten();
    statuses.into_iter().find(|status| status["name"] == AGENT).context("the agent has no status yet")
}

/// An answer that is a success.
///
/// # Errors
/// The answer.
pub fn served(answer: Value) -> Result<Value> {
    ensure!(answer["status"] == 200, "{answer}");
    Ok(answer)
}
