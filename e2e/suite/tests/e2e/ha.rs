//! What goes on while parts of Sluice are away, come back, or are somebody else.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sluice_e2e::agent::{self, Agent, Claims, refusal};
use sluice_e2e::app::{App, Shape, agent_status, served};
use sluice_e2e::cluster::{Cluster, name};
use sluice_e2e::manifests::{route, route_with_secret, secret};
use sluice_e2e::provider::Provider;
use sluice_e2e::release::{self, CONTROLLER, NAMESPACE, REDIS};
use sluice_e2e::scene::{Needs, Scene, play, rolled_out};
use sluice_e2e::until::{PATIENCE, eventually, throughout};
use tonic::Code;

/// What the load calls: an application that waits for a stream of a second.
const APP: &str = "http://app/chat";

async fn take_away(cluster: &Cluster, deployment: &str, component: &str) -> Result<()> {
    cluster.scale(NAMESPACE, deployment, 0).await?;
    eventually(PATIENCE, format!("{deployment} is gone"), async || {
        let pods =
            cluster.list(NAMESPACE, "Pod", &format!("app.kubernetes.io/component={component}")).await?;
        ensure!(pods.is_empty(), "{} pods are left", pods.len());
        Ok(())
    })
    .await
}

async fn bring_back(cluster: &Cluster, deployment: &str, replicas: u32) -> Result<()> {
    cluster.scale(NAMESPACE, deployment, replicas).await?;
    rolled_out(cluster, NAMESPACE, deployment).await
}

/// Callers of an application, from a pod of their own.
struct Load<'a> {
    caller: App<'a>,
    pod: String,
}

impl<'a> Load<'a> {
    async fn begin(scene: &'a Scene) -> Result<Self> {
        let caller = App::start(scene, &Shape::without_agent("caller")).await?;
        let [pod] = caller.names().await?;
        caller.begin_load(&pod, APP, 4).await?;
        let load = Self { caller, pod };
        load.goes_on(20).await?;
        Ok(load)
    }

    /// How many there were, good or bad.
    async fn answers(&self) -> Result<u64> {
        let counts = self.caller.load(&self.pod).await?;
        Ok(counts["ok"].as_u64().unwrap_or(0) + counts["failed"].as_u64().unwrap_or(0))
    }

    /// Waits for so many more answers.
    async fn goes_on(&self, more: u64) -> Result<()> {
        let before = self.answers().await?;
        eventually(PATIENCE, format!("{more} more answers"), async || {
            let answers = self.answers().await?;
            ensure!(answers >= before + more, "{answers} after {before}");
            Ok(())
        })
        .await
    }

    async fn lost_nothing(self) -> Result<()> {
        let counts = self.caller.end_load(&self.pod).await?;
        ensure!(counts["failed"] == 0, "{counts}");
        Ok(())
    }
}

/// A second of stream per call.
async fn provider_of_streams(scene: &Scene) -> Result<Provider<'_>> {
    let provider = Provider::start(scene).await?;
    provider.always(json!({"tokens": 20, "perToken": "50ms"})).await?;
    scene.apply(&route("chat", &["gpt-4o"])).await?;
    Ok(provider)
}

async fn restart(cluster: &Cluster, namespace: &str, deployment: &str, why: &str) -> Result<()> {
    let template = json!({"metadata": {"annotations": {"e2e.sluice.dev/restarted": why}}});
    cluster.merge(namespace, "Deployment", deployment, &json!({"spec": {"template": template}})).await?;
    rolled_out(cluster, namespace, deployment).await
}

#[test]
fn ha_traffic_flows_without_controllers_and_without_redis() {
    play(Needs::ReleaseAlone, async |scene| {
        let _provider = provider_of_streams(scene).await?;
        let app = App::start_injected(scene, &Shape { shared_processes: true, ..Shape::default() }).await?;
        let [pod] = app.names().await?;
        app.is_served(&pod, "gpt-4o").await?;
        take_away(&scene.cluster, CONTROLLER, "controller").await?;
        served(app.ask_once(&pod, "gpt-4o").await?)?;

        // A sidecar that starts now has nobody to ask but its own memory.
        app.signal_agent(&pod, "SIGKILL").await?;
        eventually(PATIENCE, "the agent was started again", async || {
            let found = scene.get("Pod", &pod).await?;
            let agent = agent_status(&found)?;
            ensure!(agent["restartCount"] == 1 && agent["started"] == true, "{agent}");
            Ok(())
        })
        .await?;
        served(app.ask_once(&pod, "gpt-4o").await?)?;

        let load = Load::begin(scene).await?;
        take_away(&scene.cluster, REDIS, "redis").await?;
        load.goes_on(20).await?;
        bring_back(&scene.cluster, REDIS, 1).await?;
        bring_back(&scene.cluster, CONTROLLER, release::REPLICAS).await?;
        load.goes_on(20).await?;
        load.lost_nothing().await?;

        // And it hears of changes again.
        scene.apply(&route("chat", &["gpt-4o", "gpt-5"])).await?;
        app.is_served(&pod, "gpt-5").await?;
        Ok(())
    });
}

#[test]
fn ha_a_redis_that_restarts_costs_no_exchange() {
    play(Needs::ReleaseAlone, async |scene| {
        let _provider = provider_of_streams(scene).await?;
        let (app, pod) = App::start_served(scene).await?;
        let load = Load::begin(scene).await?;
        for redis in scene.cluster.list(NAMESPACE, "Pod", "app.kubernetes.io/component=redis").await? {
            scene.cluster.kill_pod(NAMESPACE, sluice_e2e::cluster::name(&redis)).await?;
        }
        rolled_out(&scene.cluster, NAMESPACE, REDIS).await?;
        load.goes_on(20).await?;
        load.lost_nothing().await?;
        eventually(PATIENCE, "the agent shares its state again", async || {
            let page = app.http(&pod, 8111, http::Method::GET, "/metrics", &Value::Null).await?;
            let line = page.lines().find(|line| line.starts_with("sluice_store_reachable{"));
            ensure!(line.is_some_and(|line| line.ends_with(" 1")), "{line:?}");
            Ok(())
        })
        .await
    });
}

#[test]
fn ha_a_writer_that_dies_is_followed_by_another() {
    play(Needs::ReleaseAlone, async |scene| {
        scene.apply(&route_with_secret("chat", &["gpt-4o"], "late", "key")).await?;
        scene.says("ModelRoute", "chat", "ResolvedRefs", "False", "SecretNotFound").await?;
        let writer = release::has_writer(&scene.cluster).await?;
        scene.cluster.kill_pod(NAMESPACE, &writer).await?;
        scene.apply(&secret("late", &[("key", "a-key-that-came-late")])).await?;
        eventually(PATIENCE, "another one writes", async || {
            let route = scene.get("ModelRoute", "chat").await?;
            sluice_e2e::condition::is(&route, "ResolvedRefs", "True", "ResolvedRefs")
        })
        .await?;
        let next = release::has_writer(&scene.cluster).await?;
        ensure!(next != writer, "{writer} is dead");
        Ok(())
    });
}

#[test]
fn ha_who_has_lost_the_lease_writes_nothing() {
    play(Needs::ReleaseAlone, async |scene| {
        scene.apply(&route_with_secret("chat", &["gpt-4o"], "late", "key")).await?;
        scene.says("ModelRoute", "chat", "ResolvedRefs", "False", "SecretNotFound").await?;
        release::has_writer(&scene.cluster).await?;
        let intruder = json!({"spec": {"holderIdentity": "intruder", "leaseDurationSeconds": 40}});
        scene.cluster.merge(NAMESPACE, "Lease", CONTROLLER, &intruder).await?;
        // Who held it looks at it every two seconds.
        tokio::time::sleep(Duration::from_secs(6)).await;
        scene.apply(&secret("late", &[("key", "a-key-that-came-late")])).await?;
        let before = scene.get("ModelRoute", "chat").await?["metadata"]["resourceVersion"].clone();
        throughout(Duration::from_secs(20), "nobody writes", async || {
            ensure!(
                release::writer(&scene.cluster).await? == "intruder",
                "the lease was taken before its time"
            );
            let now = scene.get("ModelRoute", "chat").await?["metadata"]["resourceVersion"].clone();
            ensure!(now == before, "{before} became {now}");
            Ok(())
        })
        .await?;
        // It never renews.
        eventually(PATIENCE, "one of ours writes", async || {
            let route = scene.get("ModelRoute", "chat").await?;
            sluice_e2e::condition::is(&route, "ResolvedRefs", "True", "ResolvedRefs")
        })
        .await?;
        release::has_writer(&scene.cluster).await?;
        Ok(())
    });
}

/// Has a pod that sees the node's processes do something to the API server (`pods/api_server.py`), and waits until it has.
async fn to_the_api_server(scene: &Scene, what: &str) -> Result<()> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": what, "labels": {"sluice.dev/inject": "disabled"}},
        "spec": {
            "hostPID": true, "restartPolicy": "Never",
            "containers": [{
                "name": what, "image": scene.images.e2e(),
                "command": ["/usr/bin/python3", "-c", include_str!("../../pods/api_server.py"), what],
                "securityContext": {"runAsUser": 0},
            }],
        },
    });
    scene.apply(&pod).await?;
    eventually(PATIENCE, "the API server is back", async || {
        let pod = scene.get("Pod", what).await?;
        ensure!(pod["status"]["phase"] == "Succeeded", "{}", pod["status"]);
        Ok(())
    })
    .await
}

/// No controller was started anew.
async fn controllers_went_on(scene: &Scene) -> Result<()> {
    for controller in release::controllers(&scene.cluster).await? {
        let status = &controller["status"]["containerStatuses"][0];
        ensure!(status["restartCount"] == 0, "a controller was started anew: {status}");
    }
    Ok(())
}

#[test]
fn ha_an_api_server_that_hangs_keeps_nobody_from_working() {
    play(Needs::ReleaseAlone, async |scene| {
        let _provider = provider_of_streams(scene).await?;
        scene.apply(&route_with_secret("late", &["late"], "late", "key")).await?;
        scene.says("ModelRoute", "late", "ResolvedRefs", "False", "SecretNotFound").await?;
        let (app, pod) = App::start_served(scene).await?;
        let load = Load::begin(scene).await?;

        let before = load.answers().await?;
        // Longer than a lease lasts, and than its holder may go on without having renewed it.
        to_the_api_server(scene, "hang").await?;
        let after = load.answers().await?;
        ensure!(after >= before + 40, "{} answers in half a minute", after - before);

        scene.apply(&secret("late", &[("key", "a-key-that-came-late")])).await?;
        eventually(PATIENCE, "somebody writes", async || {
            let route = scene.get("ModelRoute", "late").await?;
            sluice_e2e::condition::is(&route, "ResolvedRefs", "True", "ResolvedRefs")
        })
        .await?;
        release::has_writer(&scene.cluster).await?;
        scene.apply(&route("chat", &["gpt-4o", "gpt-5"])).await?;
        app.is_served(&pod, "gpt-5").await?;
        load.lost_nothing().await?;
        controllers_went_on(scene).await
    });
}

#[test]
fn ha_an_api_server_that_starts_anew_has_forgotten_its_watches() {
    play(Needs::ReleaseAlone, async |scene| {
        let _provider = provider_of_streams(scene).await?;
        scene.apply(&route("gone", &["o1"])).await?;
        let (app, pod) = App::start_served(scene).await?;
        app.is_served(&pod, "o1").await?;
        let load = Load::begin(scene).await?;

        to_the_api_server(scene, "kill").await?;
        scene.delete("ModelRoute", "gone").await?;
        scene.apply(&route("chat", &["gpt-4o", "gpt-5"])).await?;
        app.is_served(&pod, "gpt-5").await?;
        eventually(PATIENCE, "the deleted route is not served", async || {
            let answer = app.ask_once(&pod, "o1").await?;
            ensure!(answer["code"] == "model_not_found", "{answer}");
            Ok(())
        })
        .await?;
        scene.says("ModelRoute", "chat", "Programmed", "True", "Programmed").await?;
        release::has_writer(&scene.cluster).await?;
        load.lost_nothing().await?;
        controllers_went_on(scene).await?;
        // Otherwise nothing was tested: a new API server knows no version from before its start, and says 410.
        let mut logs = String::new();
        for controller in release::controllers(&scene.cluster).await? {
            logs += &scene.cluster.log(NAMESPACE, name(&controller)).await?;
        }
        ensure!(logs.contains("too old resource version"), "no watch was too old: {logs}");
        Ok(())
    });
}

#[test]
fn ha_a_rollout_of_an_application_under_load_loses_nothing() {
    play(Needs::Release, async |scene| {
        let provider = provider_of_streams(scene).await?;
        let app = App::start_injected(scene, &Shape { replicas: 2, ..Shape::default() }).await?;
        let pods: [String; 2] = app.names().await?;
        for pod in &pods {
            app.is_served(pod, "gpt-4o").await?;
        }
        let load = Load::begin(scene).await?;
        for round in ["first", "second"] {
            restart(&scene.cluster, &scene.namespace, "app", round).await?;
            load.goes_on(20).await?;
        }
        load.lost_nothing().await?;
        let stats = provider.stats().await?["total"].clone();
        ensure!(stats["cancelledMidStream"] == 0 && stats["cancelledBeforeHeaders"] == 0, "{stats}");
        Ok(())
    });
}

#[test]
fn ha_a_rolling_restart_of_the_controller_loses_nothing() {
    play(Needs::ReleaseAlone, async |scene| {
        let _provider = provider_of_streams(scene).await?;
        let app = App::start_injected(scene, &Shape { replicas: 2, ..Shape::default() }).await?;
        let pods: [String; 2] = app.names().await?;
        for pod in &pods {
            app.is_served(pod, "gpt-4o").await?;
        }
        let load = Load::begin(scene).await?;
        restart(&scene.cluster, NAMESPACE, CONTROLLER, &scene.namespace).await?;
        load.goes_on(20).await?;
        load.lost_nothing().await?;
        release::has_writer(&scene.cluster).await?;
        scene.apply(&route("chat", &["gpt-4o", "gpt-5"])).await?;
        for pod in &pods {
            app.is_served(pod, "gpt-5").await?;
        }
        eventually(PATIENCE, "both agents are counted again", async || {
            let route = scene.get("ModelRoute", "chat").await?;
            ensure!(route["status"]["summary"]["agents"] == "2/2", "{}", route["status"]["summary"]);
            Ok(())
        })
        .await
    });
}

#[test]
fn ha_tokens_that_are_not_the_agents_own_learn_nothing() {
    play(Needs::Release, async |scene| {
        scene.apply(&route("innermost-secret", &["gpt-4o"])).await?;
        let (pod, token) = agent::pod_with_token(scene, "agent").await?;
        let account = async |audience: &str, pod: Option<&Value>| {
            scene.cluster.token(&scene.namespace, "default", audience, pod).await
        };
        let claims =
            |token| Claims { namespace: &scene.namespace, pod: "agent", token, features: Vec::new() };

        let mut own = Agent::connect(&scene.cluster, &claims(Some(&token)))
            .await?
            .context("its own token is refused")?;
        let snapshot = own.snapshot().await??;
        let routes: Vec<&str> = snapshot.routes.iter().map(|route| route.name.as_str()).collect();
        ensure!(routes == ["innermost-secret"], "{routes:?}");

        let of_others = account("somebody-else", Some(&pod)).await?;
        let of_the_server = account("https://kubernetes.default.svc.cluster.local", Some(&pod)).await?;
        let of_clients = account("sluice-client", Some(&pod)).await?;
        let of_peers = account("sluice-peer", Some(&pod)).await?;
        let of_no_pod = account("sluice", None).await?;
        let forged = format!("{}x", token.trim_end_matches(|last: char| last != '.'));
        let bad = [&of_others, &of_the_server, &of_clients, &of_peers, &of_no_pod, &forged];
        for token in [None].into_iter().chain(bad.map(|token| Some(token.as_str()))) {
            let status = refusal(&scene.cluster, &claims(token)).await?;
            ensure!(status.code() == Code::Unauthenticated, "{status:?} for {token:?}");
            ensure!(!status.message().contains("innermost-secret"), "{status:?}");
        }

        // A good token, and another namespace than its own.
        let elsewhere =
            Claims { namespace: "kube-system", pod: "agent", token: Some(&token), features: Vec::new() };
        let mut of_ours = elsewhere;
        of_ours.namespace = NAMESPACE;
        let status = refusal(&scene.cluster, &of_ours).await?;
        ensure!(status.code() == Code::PermissionDenied, "{status:?}");

        // A pod that is gone.
        scene.cluster.kill_pod(&scene.namespace, "agent").await?;
        eventually(PATIENCE, "its token is worth nothing", async || {
            let status = refusal(&scene.cluster, &claims(Some(&token))).await?;
            ensure!([Code::Unauthenticated, Code::PermissionDenied].contains(&status.code()), "{status:?}");
            Ok(())
        })
        .await
    });
}

#[test]
fn ha_agents_see_the_routes_of_their_own_namespace_and_pods_alone() {
    play(Needs::Release, async |scene| {
        let mut selected = route("selected", &["gpt-4o"]);
        selected["spec"]["workloads"] = json!({"matchLabels": {"app": "chosen"}});
        scene.apply(&selected).await?;
        scene.apply(&route("for-all", &["gpt-5"])).await?;
        let (_, token) = agent::pod_with_token(scene, "plain").await?;
        let claims =
            Claims { namespace: &scene.namespace, pod: "plain", token: Some(&token), features: Vec::new() };
        let mut agent = Agent::connect(&scene.cluster, &claims).await?.context("refused")?;
        let snapshot = agent.snapshot().await??;
        let routes: Vec<&str> = snapshot.routes.iter().map(|route| route.name.as_str()).collect();
        ensure!(routes == ["for-all"], "{routes:?}");
        ensure!(
            snapshot.routes.iter().all(|route| route.namespace == scene.namespace),
            "another namespace's"
        );
        Ok(())
    });
}
