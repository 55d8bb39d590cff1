//! The charts: what they refuse, and what upgrades, rollbacks and removals leave as it is.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sluice_e2e::app::{App, Shape, served};
use sluice_e2e::cluster::Cluster;
use sluice_e2e::command;
use sluice_e2e::manifests::{route, route_with_secret, secret};
use sluice_e2e::provider::Provider;
use sluice_e2e::release::{self, CONTROLLER, NAME, NAMESPACE, REDIS, RESOURCES, WEBHOOK, chart, helm};
use sluice_e2e::scene::{Needs, play};
use sluice_e2e::until::{PATIENCE, eventually};

#[test]
fn helm_refuses_values_that_make_no_sense() {
    play(Needs::Resources, async |_| {
        for (value, told) in [
            ("nonsense=1", "nonsense"),
            ("controller.replicas=two", "replicas"),
            ("injection.timeoutSeconds=60", "timeoutSeconds"),
            ("gateway.clientAuth.type=Anyone", "type"),
            ("watchNamespaces=team-a", "watchNamespaces"),
            ("sidecar.graceSeconds=-1", "graceSeconds"),
            ("redis.external.url=redis://user:password@host", "redis"),
        ] {
            let printed =
                command::run("helm", &["template", NAME, &chart("sluice"), "--set", value], "").await?;
            ensure!(!printed.success && printed.stderr.contains(told), "--set {value}: {}", printed.stderr);
            ensure!(!printed.stderr.contains("user:password"), "{}", printed.stderr);
        }
        Ok(())
    });
}

#[test]
fn helm_test_passes_and_notes_say_what_to_do() {
    play(Needs::Release, async |_| {
        let tested = helm(&["test", NAME, "--namespace", NAMESPACE]).await?;
        ensure!(tested.contains("Succeeded"), "{tested}");
        let notes = helm(&["get", "notes", NAME, "--namespace", NAMESPACE]).await?;
        ensure!(notes.contains("kubectl") && notes.contains("sluice.dev/inject=enabled"), "{notes}");
        Ok(())
    });
}

/// The authority that the API server knows each webhook by.
async fn bundles(cluster: &Cluster) -> Result<Vec<Value>> {
    let webhooks = cluster.get("", "MutatingWebhookConfiguration", WEBHOOK).await?["webhooks"].clone();
    let webhooks = webhooks.as_array().context("no webhooks")?.clone();
    Ok(webhooks.into_iter().map(|webhook| webhook["clientConfig"]["caBundle"].clone()).collect())
}

#[test]
fn helm_upgrades_and_rolls_back_under_the_controllers_hands() {
    play(Needs::ReleaseAlone, async |scene| {
        let _provider = Provider::start(scene).await?;
        scene.apply(&route("chat", &["gpt-4o"])).await?;
        let (app, pod) = App::start_served(scene).await?;
        let before = bundles(&scene.cluster).await?;
        ensure!(before.iter().all(Value::is_string), "{before:?}");

        // Every way in which Helm writes: server-side (Helm 4's default), and client-side as Helm 3 did.
        for more in [
            &["--set", "allNamespaces=true", "--set", "log.level=debug"][..],
            &["--set", "allNamespaces=true", "--set", "injection.timeoutSeconds=7"],
            &["--set", "allNamespaces=true", "--server-side=false"],
            &[
                "--set",
                "allNamespaces=true",
                "--set",
                "injection.timeoutSeconds=6",
                "--server-side=true",
                "--force-conflicts",
            ],
        ] {
            release::upgrade(&scene.images, more).await?;
            ensure!(bundles(&scene.cluster).await? == before, "{more:?} took the webhook's authority away");
            served(app.ask_once(&pod, "gpt-4o").await?)?;
        }
        helm(&["rollback", NAME, "1", "--namespace", NAMESPACE, "--wait", "--timeout", "3m"]).await?;
        ensure!(bundles(&scene.cluster).await? == before, "the rollback took the webhook's authority away");
        served(app.ask_once(&pod, "gpt-4o").await?)?;
        scene.apply(&route("chat", &["gpt-4o", "gpt-5"])).await?;
        app.is_served(&pod, "gpt-5").await?;

        let webhook = scene.cluster.get("", "MutatingWebhookConfiguration", WEBHOOK).await?;
        let managers = webhook["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        let owner = managers.iter().find(|entry| entry["fieldsV1"].to_string().contains("f:caBundle"));
        ensure!(owner.is_some_and(|entry| entry["manager"] == CONTROLLER), "{owner:?}");
        Ok(())
    });
}

/// A copy of the chart with the custom resources, in which a field is not there yet.
fn chart_without(field: &str) -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    copy(Path::new(&chart(RESOURCES)), folder.path())?;
    let mut found = false;
    for entry in fs::read_dir(folder.path().join("templates"))? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        let mut lines = Vec::new();
        let mut dropping = None;
        for line in text.lines() {
            let depth = line.len() - line.trim_start().len();
            if dropping.is_some_and(|field_depth| depth > field_depth || line.trim().is_empty()) {
                continue;
            }
            dropping = (line.trim() == format!("{field}:")).then_some(depth);
            found |= dropping.is_some();
            if dropping.is_none() {
                lines.push(line);
            }
        }
        fs::write(&path, lines.join("\n") + "\n")?;
    }
    ensure!(found, "the custom resources have no field {field}");
    Ok(folder)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

#[test]
fn helm_upgrades_the_custom_resources_and_rolls_them_back() {
    play(Needs::ReleaseAlone, async |scene| {
        let old = chart_without("targetHeader")?;
        release::upgrade_resources(&old.path().to_string_lossy()).await?;
        let revision = helm(&["history", RESOURCES, "--namespace", NAMESPACE, "-o", "json"]).await?;
        let revision: Value = serde_json::from_str(&revision)?;
        let revision =
            revision.as_array().and_then(|all| all.last()).context("no history")?["revision"].to_string();

        let mut chat = route("chat", &["gpt-4o"]);
        scene.apply(&chat).await?;
        chat["spec"]["targetHeader"] = json!("Allow");
        let refused = scene.apply(&chat).await;
        ensure!(refused.is_err(), "the old schema has no such field");

        release::upgrade_resources(&chart(RESOURCES)).await?;
        eventually(PATIENCE, "the new field is taken", async || scene.apply(&chat).await).await?;
        let stored = scene.get("ModelRoute", "chat").await?;
        ensure!(stored["spec"]["targetHeader"] == "Allow", "{}", stored["spec"]);
        scene.says("ModelRoute", "chat", "Accepted", "True", "Accepted").await?;

        helm(&["rollback", RESOURCES, &revision, "--namespace", NAMESPACE, "--wait"]).await?;
        let kept = scene.get("ModelRoute", "chat").await?;
        ensure!(kept["metadata"]["uid"] == stored["metadata"]["uid"], "the object was made anew");
        chat["spec"]["models"] = json!(["gpt-4o", "gpt-5"]);
        eventually(PATIENCE, "the old schema rules", async || {
            ensure!(scene.apply(&chat).await.is_err(), "the field is still taken");
            Ok(())
        })
        .await
    });
}

#[test]
fn helm_uninstall_keeps_objects_and_agents_go_on() {
    play(Needs::ReleaseAlone, async |scene| {
        let _provider = Provider::start(scene).await?;
        scene.apply(&route("chat", &["gpt-4o"])).await?;
        let (app, pod) = App::start_served(scene).await?;
        let uid = scene.get("ModelRoute", "chat").await?["metadata"]["uid"].clone();

        helm(&["uninstall", NAME, "--namespace", NAMESPACE, "--wait", "--timeout", "3m"]).await?;
        served(app.ask_once(&pod, "gpt-4o").await?)?;
        helm(&["uninstall", RESOURCES, "--namespace", NAMESPACE, "--wait"]).await?;
        ensure!(
            scene.get("ModelRoute", "chat").await?["metadata"]["uid"] == uid,
            "the object is another one"
        );
        served(app.ask_once(&pod, "gpt-4o").await?)?;

        release::upgrade_resources(&chart(RESOURCES)).await?;
        release::install(&scene.cluster, &scene.images).await?;
        ensure!(
            scene.get("ModelRoute", "chat").await?["metadata"]["uid"] == uid,
            "the object is another one"
        );
        // The agent of before trusts the new controllers, and hears of changes.
        scene.apply(&route("chat", &["gpt-4o", "gpt-5"])).await?;
        app.is_served(&pod, "gpt-5").await?;
        scene.says("ModelRoute", "chat", "Programmed", "True", "Programmed").await?;
        Ok(())
    });
}

#[test]
fn helm_with_named_namespaces_reads_secrets_nowhere_else() {
    play(Needs::ReleaseAlone, async |scene| {
        // The chart brings its own, and does not take over what is somebody else's.
        scene.delete("Secret", REDIS).await?;
        let namespaces = format!("watchNamespaces={{{}}}", scene.namespace);
        release::upgrade(&scene.images, &["--set", &namespaces]).await?;
        let user = format!("system:serviceaccount:{NAMESPACE}:{CONTROLLER}");
        let may = async |namespace: &str| {
            let arguments = ["auth", "can-i", "list", "secrets", "--as", &user, "--namespace", namespace];
            command::run("kubectl", &arguments, "").await.map(|printed| printed.stdout.trim() == "yes")
        };
        ensure!(may(&scene.namespace).await?, "the named namespace's Secrets can't be read");
        for other in ["default", "kube-system", NAMESPACE] {
            ensure!(!may(other).await?, "Secrets of {other} can be listed");
        }

        let provider = Provider::start(scene).await?;
        provider.play(&json!({"apiKeys": ["the-only-key-there-is"]})).await?;
        scene.apply(&secret("key", &[("key", "the-only-key-there-is")])).await?;
        scene.apply(&route_with_secret("chat", &["gpt-4o"], "key", "key")).await?;
        App::start_served(scene).await?;

        // Elsewhere a Secret is as good as missing, and the status says why.
        let elsewhere = format!("{}-b", scene.namespace);
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": elsewhere}});
        scene.cluster.apply("", &namespace).await?;
        scene.cluster.apply(&elsewhere, &secret("key", &[("key", "x")])).await?;
        scene.cluster.apply(&elsewhere, &route_with_secret("chat", &["gpt-4o"], "key", "key")).await?;
        let told = eventually(PATIENCE, "the status says that the Secret may not be read", async || {
            let route = scene.cluster.get(&elsewhere, "ModelRoute", "chat").await?;
            sluice_e2e::condition::is(&route, "ResolvedRefs", "False", "SecretNotReadable")
        })
        .await;
        scene.cluster.delete("", "Namespace", &elsewhere).await?;
        told.map(drop)
    });
}

#[test]
fn helm_gateway_serves_those_who_say_who_they_are() {
    play(Needs::ReleaseAlone, async |scene| {
        let _provider = Provider::start(scene).await?;
        scene.apply(&route("chat", &["gpt-4o"])).await?;
        scene.delete("Secret", REDIS).await?;
        let namespace = format!("gateway.namespace={}", scene.namespace);
        let values = ["--set", "allNamespaces=true", "--set", "gateway.enabled=true", "--set", &namespace];
        release::upgrade(&scene.images, &values).await?;
        scene.rolled_out("sluice-gateway").await?;

        let token = scene.cluster.token(&scene.namespace, "default", "sluice-client", None).await?;
        let of_others = scene.cluster.token(&scene.namespace, "default", "sluice", None).await?;
        for (name, key, status) in
            [("welcome", token.as_str(), 200), ("stranger", "sk-anything", 401), ("other", &of_others, 401)]
        {
            let env = vec![("OPENAI_BASE_URL", "http://sluice-gateway/v1"), ("OPENAI_API_KEY", key)];
            let app = App::start(scene, &Shape { env, ..Shape::without_agent(name) }).await?;
            let [pod] = app.names().await?;
            for stream in [false, true] {
                let answer = app.ask(&pod, json!({"model": "gpt-4o", "stream": stream})).await?.remove(0);
                ensure!(answer["status"] == status, "{name}: {answer}");
            }
        }
        let shown = scene.get("ModelRoute", "chat").await?["status"]["summary"].clone();
        ensure!(shown["agents"] == "2/2", "{shown}");
        Ok(())
    });
}

#[test]
fn helm_crds_of_the_chart_are_those_of_the_repository() {
    play(Needs::Resources, async |scene| {
        for kind in ["modelroutes", "reliabilitypolicies"] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../crds/{kind}.yaml"));
            let generated: Value = serde_yaml::from_str(&fs::read_to_string(path)?)?;
            let name = format!("{kind}.sluice.dev");
            let served = scene.cluster.get("", "CustomResourceDefinition", &name).await?;
            let schema = |crd: &Value| crd["spec"]["versions"][0]["schema"].clone();
            ensure!(
                schema(&served) == schema(&generated),
                "{name}: the schema on the cluster is another one"
            );
            ensure!(
                served["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep",
                "{}",
                served["metadata"]
            );
        }
        Ok(())
    });
}
