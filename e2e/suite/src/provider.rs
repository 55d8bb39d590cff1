//! The scripted provider as a pod: what it is told to play, and what it saw.

use anyhow::{Context as _, Result};
use http::Method;
use serde_json::{Value, json};

use crate::manifests;
use crate::scene::Scene;
use crate::until::{PATIENCE, eventually};

const PORT: u16 = 9001;

pub struct Provider<'a> {
    scene: &'a Scene,
    name: String,
}

impl<'a> Provider<'a> {
    /// The provider that [`manifests::ENDPOINT`] is of.
    ///
    /// # Errors
    /// When its pod does not get ready.
    pub async fn start(scene: &'a Scene) -> Result<Self> {
        Self::start_as(scene, "provider").await
    }

    /// One more, at `http://NAME:9001/v1`.
    ///
    /// # Errors
    /// When its pod does not get ready.
    pub async fn start_as(scene: &'a Scene, name: &str) -> Result<Self> {
        let command = ["/usr/local/bin/sluice-provider", "--listen", "0.0.0.0:9001"];
        let mut deployment = manifests::deployment(name, &scene.images.e2e(), &command, PORT);
        deployment["spec"]["template"]["metadata"]["labels"]["sluice.dev/inject"] = json!("disabled");
        // It is asked to end with streams that nobody will ever read.
        deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(1);
        scene.apply(&deployment).await?;
        scene.apply(&manifests::service(name, PORT, PORT)).await?;
        scene.rolled_out(name).await?;
        let provider = Self { scene, name: name.to_owned() };
        eventually(PATIENCE, "the provider answers", async || provider.stats().await).await?;
        Ok(provider)
    }

    async fn control(&self, method: Method, path: &str, body: &str) -> Result<String> {
        let of = format!("services/{}:{PORT}", self.name);
        self.scene.cluster.http(&self.scene.namespace, &of, method, path, body).await
    }

    /// Plays something else from now on; `scenario` is as in the scenario files, as JSON.
    ///
    /// # Errors
    /// When the provider doesn't take it.
    pub async fn play(&self, scenario: &Value) -> Result<()> {
        self.control(Method::PUT, "/control/scenario", &scenario.to_string()).await?;
        Ok(())
    }

    /// Every call gets this behaviour.
    ///
    /// # Errors
    /// When the provider doesn't take it.
    pub async fn always(&self, behaviour: Value) -> Result<()> {
        self.play(&json!({ "default": behaviour })).await
    }

    /// What it counted since the start or the last reset.
    ///
    /// # Errors
    /// When it doesn't answer.
    pub async fn stats(&self) -> Result<Value> {
        let answer = self.control(Method::GET, "/control/stats", "").await?;
        serde_json::from_str(&answer).with_context(|| answer.clone())
    }

    /// One of the counts.
    ///
    /// # Errors
    /// When it doesn't answer.
    pub async fn count(&self, name: &str) -> Result<u64> {
        let stats = self.stats().await?;
        stats["total"][name].as_u64().with_context(|| format!("no count {name}: {stats}"))
    }

    /// The calls that it remembers.
    ///
    /// # Errors
    /// When it doesn't answer.
    pub async fn calls(&self) -> Result<Vec<Value>> {
        let answer = self.control(Method::GET, "/control/calls", "").await?;
        serde_json::from_str(&answer).with_context(|| answer.clone())
    }

    /// Forgets what it counted.
    ///
    /// # Errors
    /// When it doesn't answer.
    pub async fn reset(&self) -> Result<()> {
        self.control(Method::POST, "/control/reset", "").await?;
        Ok(())
    }

    /// Lets go of the calls that it holds.
    ///
    /// # Errors
    /// When it doesn't answer.
    pub async fn release(&self) -> Result<()> {
        self.control(Method::POST, "/control/release", "").await?;
        Ok(())
    }
}
