//! Pods that get an agent, pods that don't, and what either can do.

use anyhow::{Context as _, Result, ensure};
use http::Method;
use serde_json::{Value, json};
use sluice_e2e::app::{AGENT, App, Shape, has_agent, served};
use sluice_e2e::cluster::name;
use sluice_e2e::manifests::{self, route};
use sluice_e2e::provider::Provider;
use sluice_e2e::release;
use sluice_e2e::scene::{Needs, Scene, play};
use sluice_e2e::until::{PATIENCE, TRUTH, eventually};

#[test]
fn inject_a_deployment_and_both_sdks_find_the_agent() {
    play(Needs::Release, async |scene| {
        let _provider = Provider::start(scene).await?;
        scene.apply(&route("chat", &["gpt-4o"])).await?;
        let mut claude = route("claude", &["claude-*"]);
        claude["spec"]["format"] = json!("Anthropic");
        claude["spec"]["targets"][0]["provider"] = json!("Anthropic");
        scene.apply(&claude).await?;
        let app = App::start_injected(scene, &Shape { replicas: 2, ..Shape::default() }).await?;
        let pods = app.pods().await?;
        for pod in &pods {
            let init = &pod["spec"]["initContainers"][0];
            ensure!(init["name"] == AGENT && init["restartPolicy"] == "Always", "{init}");
            ensure!(pod["metadata"]["labels"]["sluice.dev/agent"] == "sidecar", "{}", pod["metadata"]);
        }
        for pod in pods.iter().map(name) {
            for stream in [false, true] {
                for (sdk, model) in [("openai", "gpt-4o"), ("anthropic", "claude-sonnet")] {
                    let order = json!({"sdk": sdk, "model": model, "stream": stream});
                    let answer = eventually(PATIENCE, format!("{sdk} is served"), async || {
                        served(app.ask(pod, order.clone()).await?.remove(0))
                    })
                    .await?;
                    ensure!(answer["servedBy"] == "primary", "{answer}");
                    ensure!(answer["text"].as_str().is_some_and(|text| !text.is_empty()), "{answer}");
                }
            }
        }
        for route in ["chat", "claude"] {
            let what = format!("{route}: both agents are in sync");
            eventually(TRUTH, what, async || {
                let found = scene.get("ModelRoute", route).await?;
                ensure!(found["status"]["summary"]["agents"] == "2/2", "{}", found["status"]["summary"]);
                Ok(())
            })
            .await?;
        }
        Ok(())
    });
}

/// A Job of several pods whose program calls a model before anything else.
fn job(scene: &Scene) -> Value {
    let program = manifests::config_map("at-once", "at_once.py", "");
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "at-once"},
        "spec": {
            "completions": 4, "parallelism": 2, "backoffLimit": 0,
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "securityContext": manifests::pod_security(),
                    "volumes": [{"name": "program", "configMap": {"name": program["metadata"]["name"]}}],
                    "containers": [{
                        "name": "work", "image": scene.images.e2e(),
                        "command": ["/usr/bin/python3", "/program/at_once.py"],
                        "volumeMounts": [{"name": "program", "mountPath": "/program"}],
                        "securityContext": manifests::container_security(),
                    }],
                },
            },
        },
    })
}

#[test]
fn inject_a_job_whose_pods_call_at_once_and_complete() {
    play(Needs::Release, async |scene| {
        let provider = Provider::start(scene).await?;
        scene.apply(&route("chat", &["gpt-4o"])).await?;
        scene
            .apply(&manifests::config_map("at-once", "at_once.py", include_str!("../../pods/at_once.py")))
            .await?;
        scene.apply(&job(scene)).await?;
        eventually(PATIENCE, "the job has completed", async || {
            let status = scene.get("Job", "at-once").await?["status"].clone();
            ensure!(status["failed"].is_null(), "{status}");
            ensure!(status["succeeded"] == 4, "{status}");
            Ok(())
        })
        .await?;
        for pod in scene.list("Pod", "job-name=at-once").await? {
            ensure!(has_agent(&pod) && pod["status"]["phase"] == "Succeeded", "{}", pod["status"]);
        }
        ensure!(provider.count("completed").await? == 4, "{}", provider.stats().await?);
        Ok(())
    });
}

/// What the API server would make of a pod.
async fn tried(scene: &Scene, pod: &Value) -> Result<Value> {
    let path = format!("/api/v1/namespaces/{}/pods?dryRun=All", scene.namespace);
    let answer = scene.cluster.request(Method::POST, &path, "application/json", pod.to_string()).await?;
    Ok(serde_json::from_str(&answer)?)
}

#[test]
fn inject_only_where_it_is_asked_for() {
    play(Needs::Release, async |scene| {
        let with = |labels: Value| manifests::gated_pod("tried", &scene.images.e2e(), &labels);
        ensure!(has_agent(&tried(scene, &with(json!({}))).await?), "the namespace asks");
        let refusing = tried(scene, &with(json!({"sluice.dev/inject": "disabled"}))).await?;
        ensure!(!has_agent(&refusing), "the pod refuses");

        let mut own = with(json!({}));
        own["spec"]["containers"][0]["env"] =
            json!([{"name": "OPENAI_BASE_URL", "value": "https://mine/v1"}]);
        let pod = tried(scene, &own).await?;
        let env = &pod["spec"]["containers"][0]["env"];
        ensure!(env[0]["value"] == "https://mine/v1" && has_agent(&pod), "its own value stays: {env}");
        let names = env
            .as_array()
            .into_iter()
            .flatten()
            .filter(|variable| variable["name"] == "OPENAI_BASE_URL")
            .count();
        ensure!(names == 1, "{env}");

        let mut bare = with(json!({}));
        bare["metadata"]["annotations"] = json!({"sluice.dev/inject-env": "disabled"});
        let pod = tried(scene, &bare).await?;
        ensure!(
            has_agent(&pod) && pod["spec"]["containers"][0]["env"].is_null(),
            "{}",
            pod["spec"]["containers"]
        );

        // A namespace that does not ask, and a pod in it that does.
        scene.label_namespace(&json!({"sluice.dev/inject": "disabled"})).await?;
        eventually(PATIENCE, "the namespace asks no more", async || {
            ensure!(!has_agent(&tried(scene, &with(json!({}))).await?), "still injected");
            Ok(())
        })
        .await?;
        let asking = tried(scene, &with(json!({"sluice.dev/inject": "enabled"}))).await?;
        ensure!(has_agent(&asking), "the pod asks");
        Ok(())
    });
}

#[test]
fn inject_into_a_namespace_of_restricted_pods() {
    play(Needs::Release, async |scene| {
        let labels = json!({
            "sluice.dev/inject": "enabled",
            "pod-security.kubernetes.io/enforce": "restricted",
            "pod-security.kubernetes.io/warn": "restricted",
        });
        scene.label_namespace(&labels).await?;
        let _provider = Provider::start(scene).await?;
        scene.apply(&route("chat", &["gpt-4o"])).await?;
        App::start_served(scene).await?;
        Ok(())
    });
}

#[test]
fn inject_nothing_while_no_controller_runs_and_tell_of_it() {
    play(Needs::ReleaseAlone, async |scene| {
        let cluster = &scene.cluster;
        cluster.scale(release::NAMESPACE, release::CONTROLLER, 0).await?;
        eventually(PATIENCE, "no controller runs", async || {
            let pods =
                cluster.list(release::NAMESPACE, "Pod", "app.kubernetes.io/component=controller").await?;
            ensure!(pods.is_empty(), "{} are left", pods.len());
            Ok(())
        })
        .await?;
        let app = App::start(scene, &Shape::default()).await?;
        let pod = app.pods().await?.pop().context("no pod")?;
        ensure!(!has_agent(&pod), "who has injected it?");

        cluster.scale(release::NAMESPACE, release::CONTROLLER, release::REPLICAS).await?;
        release::has_writer(cluster).await?;
        eventually(PATIENCE, "the pod is told of", async || {
            let events = scene.events_of("Pod", name(&pod)).await?;
            let told = events
                .iter()
                .find(|event| event["note"].as_str().is_some_and(|note| note.contains("without one")));
            let told = told.context("no Event about it")?;
            ensure!(told["type"] == "Warning", "{told}");
            Ok(())
        })
        .await?;
        // As its note says.
        cluster.kill_pod(&scene.namespace, name(&pod)).await?;
        eventually(PATIENCE, "its successor has an agent", async || {
            let next = app.pods().await?.pop().context("no pod")?;
            ensure!(name(&next) != name(&pod) && has_agent(&next), "pod {}", name(&next));
            Ok(())
        })
        .await?;
        scene.rolled_out("app").await?;
        Ok(())
    });
}
