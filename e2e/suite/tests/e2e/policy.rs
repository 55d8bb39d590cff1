//! From an object to what agents do and what its status says, and back again when it is mended.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures_util::future::try_join_all;
use serde_json::{Value, json};
use sluice_e2e::agent::{self, Agent, Claims};
use sluice_e2e::app::{App, Shape, served};
use sluice_e2e::manifests::{policy, quick_breaker, route, route_with_secret, secret, target};
use sluice_e2e::provider::Provider;
use sluice_e2e::scene::{Needs, Scene, play};
use sluice_e2e::until::{PATIENCE, TRUTH, eventually, throughout};

const ROUTE: &str = "ModelRoute";
const POLICY: &str = "ReliabilityPolicy";

#[test]
fn policy_of_two_the_older_wins_and_the_younger_takes_over() {
    play(Needs::Release, async |scene| {
        scene.apply(&route("chat", &["gpt-4o"])).await?;
        // Of the same second the first by name is the older.
        scene.apply(&policy("a-older", "chat", &json!({"deadlines": {"total": "30s"}}))).await?;
        scene.says(POLICY, "a-older", "Accepted", "True", "Accepted").await?;
        let both = json!({"deadlines": {"total": "60s"}, "retries": {"maxAttempts": 2}});
        scene.apply(&policy("b-partly", "chat", &both)).await?;
        scene.apply(&policy("c-younger", "chat", &json!({"deadlines": {"total": "90s"}}))).await?;

        let conflict = scene.says(POLICY, "c-younger", "Accepted", "False", "Conflicted").await?;
        ensure!(
            conflict.message.contains("a-older") && conflict.message.contains("deadlines"),
            "{conflict:?}"
        );
        scene.says(POLICY, "b-partly", "Accepted", "True", "Accepted").await?;
        let partly = scene.says(POLICY, "b-partly", "Programmed", "False", "PartiallyProgrammed").await?;
        ensure!(partly.message.contains("deadlines") && !partly.message.contains("retries"), "{partly:?}");

        scene.delete(POLICY, "a-older").await?;
        scene.delete(POLICY, "b-partly").await?;
        scene.says(POLICY, "c-younger", "Accepted", "True", "Accepted").await?;
        Ok(())
    });
}

#[test]
fn policy_waits_for_its_route_and_for_the_target_in_it() {
    play(Needs::Release, async |scene| {
        scene.apply(&policy("early", "chat", &json!({"deadlines": {"total": "30s"}}))).await?;
        let mut of_target = policy("of-target", "chat", &json!({"deadlines": {"total": "30s"}}));
        of_target["spec"]["targetRefs"][0]["sectionName"] = json!("fallback");
        scene.apply(&of_target).await?;
        for name in ["early", "of-target"] {
            scene.says(POLICY, name, "Accepted", "False", "TargetNotFound").await?;
        }
        let mut chat = route("chat", &["gpt-4o"]);
        scene.apply(&chat).await?;
        scene.says(POLICY, "early", "Accepted", "True", "Accepted").await?;
        let missing = scene.says(POLICY, "of-target", "Accepted", "False", "TargetNotFound").await?;
        ensure!(missing.message.contains("fallback"), "{missing:?}");
        let targets = json!([
            target("primary", "http://provider:9001/v1"),
            target("fallback", "http://provider:9001/v1")
        ]);
        chat["spec"]["targets"] = targets;
        scene.apply(&chat).await?;
        scene.says(POLICY, "of-target", "Accepted", "True", "Accepted").await?;
        scene.delete(ROUTE, "chat").await?;
        scene.says(POLICY, "early", "Accepted", "False", "TargetNotFound").await?;
        Ok(())
    });
}

#[test]
fn policy_secret_missing_rotated_and_deleted() {
    play(Needs::Release, async |scene| {
        let provider = Provider::start(scene).await?;
        let plays = |key: &str| {
            json!({
                "apiKeys": [key],
                "default": {"tokens": 5},
                "rules": [{"match": {"model": "long"}, "behaviour": {"tokens": 60, "perToken": "500ms"}}],
            })
        };
        provider.play(&plays("key-number-one-of-two")).await?;
        scene.apply(&route_with_secret("chat", &["gpt-4o", "long"], "provider-key", "api-key")).await?;
        let app = App::start_injected(scene, &Shape::default()).await?;
        let [pod] = app.names().await?;
        let refused = async |code: &str| {
            eventually(TRUTH, format!("calls are refused with {code}"), async || {
                let answer = app.ask_once(&pod, "gpt-4o").await?;
                ensure!(answer["code"] == code, "{answer}");
                Ok(())
            })
            .await
        };

        let missing = scene.says(ROUTE, "chat", "ResolvedRefs", "False", "SecretNotFound").await?;
        ensure!(missing.message.contains("provider-key"), "{missing:?}");
        refused("no_credential").await?;
        scene.apply(&secret("provider-key", &[("other", "x")])).await?;
        let missing = scene.says(ROUTE, "chat", "ResolvedRefs", "False", "SecretKeyNotFound").await?;
        ensure!(missing.message.contains("api-key"), "{missing:?}");

        scene.apply(&secret("provider-key", &[("api-key", "key-number-one-of-two")])).await?;
        scene.says(ROUTE, "chat", "ResolvedRefs", "True", "ResolvedRefs").await?;
        app.is_served(&pod, "gpt-4o").await?;

        // A stream goes on while the key changes under it.
        app.begin_stream(&pod, "long").await?;
        eventually(PATIENCE, "the stream has begun", async || {
            ensure!(app.streams(&pod).await?[0]["tokens"].as_u64() > Some(0), "no token yet");
            Ok(())
        })
        .await?;
        provider.play(&plays("key-number-two-of-two")).await?;
        scene.apply(&secret("provider-key", &[("api-key", "key-number-two-of-two")])).await?;
        eventually(Duration::from_secs(10), "the new key is in use", async || {
            served(app.ask_once(&pod, "gpt-4o").await?)
        })
        .await?;

        scene.delete("Secret", "provider-key").await?;
        refused("no_credential").await?;
        scene.says(ROUTE, "chat", "ResolvedRefs", "False", "SecretNotFound").await?;
        eventually(PATIENCE, "the stream has ended", async || {
            let stream = app.streams(&pod).await?.remove(0);
            ensure!(stream["done"] == true, "{stream}");
            ensure!(stream["error"].is_null() && stream["tokens"] == 60, "{stream}");
            Ok(())
        })
        .await
    });
}

#[test]
fn policy_fifty_routes_are_served_while_one_is_bad() {
    play(Needs::Release, async |scene| {
        let _provider = Provider::start(scene).await?;
        let models: Vec<String> = (0..50).map(|number| format!("model-{number:02}")).collect();
        let mut routes: Vec<Value> = models.iter().map(|model| route(model, &[model])).collect();
        routes[0]["spec"]["targets"][0]["dependency"] = json!("pool");
        try_join_all(routes.iter().map(|route| scene.apply(route))).await?;
        scene.says(ROUTE, "model-00", "Accepted", "True", "Accepted").await?;
        // The schema has nothing against it; its namespace has.
        let mut bad = route("zz-bad", &["bad"]);
        bad["spec"]["targets"][0] = target("primary", "http://provider:9001/other/v1");
        bad["spec"]["targets"][0]["dependency"] = json!("pool");
        scene.apply(&bad).await?;
        let refused = scene.says(ROUTE, "zz-bad", "Accepted", "False", "DependencyMismatch").await?;
        ensure!(refused.message.contains("endpoint") && refused.message.contains("model-00"), "{refused:?}");

        let shape = Shape { shared_processes: true, ..Shape::default() };
        let app = App::start_injected(scene, &shape).await?;
        let [pod] = app.names().await?;
        all_served(&app, &pod, &models).await?;
        // One that starts anew meanwhile has nothing of before.
        app.signal_agent(&pod, "SIGKILL").await?;
        all_served(&app, &pod, &models).await?;
        let answer = app.ask_once(&pod, "bad").await?;
        ensure!(answer["code"] == "model_not_found", "{answer}");

        bad["spec"]["targets"][0] = target("primary", "http://provider:9001/v1");
        scene.apply(&bad).await?;
        scene.says(ROUTE, "zz-bad", "Accepted", "True", "Accepted").await?;
        app.is_served(&pod, "bad").await?;
        Ok(())
    });
}

async fn all_served(app: &App<'_>, pod: &str, models: &[String]) -> Result<()> {
    for model in models {
        app.is_served(pod, model).await?;
    }
    Ok(())
}

#[test]
fn policy_unchanged_objects_are_not_written() {
    play(Needs::Release, async |scene| {
        let _provider = Provider::start(scene).await?;
        scene.apply(&route("chat", &["gpt-4o"])).await?;
        scene.apply(&route_with_secret("broken", &["none"], "nowhere", "key")).await?;
        scene.apply(&policy("quick", "chat", &quick_breaker())).await?;
        scene.apply(&policy("lost", "nothing", &quick_breaker())).await?;
        let (app, pod) = App::start_served(scene).await?;
        scene.says(ROUTE, "chat", "Programmed", "True", "Programmed").await?;
        scene.says(POLICY, "quick", "Programmed", "True", "Programmed").await?;
        scene.says(POLICY, "lost", "Accepted", "False", "TargetNotFound").await?;
        // An object is written at most once in ten seconds: what is still to be said is said by then.
        let before = tokio::sync::Mutex::new(versions(scene).await?);
        eventually(PATIENCE, "nothing is left to be said", async || {
            let settled = throughout(Duration::from_secs(12), "settled", async || {
                let now = versions(scene).await?;
                let mut before = before.lock().await;
                let same = *before == now;
                *before = now;
                ensure!(same, "still writing");
                Ok(())
            });
            settled.await
        })
        .await?;
        let before = versions(scene).await?;
        throughout(Duration::from_mins(1), "unchanged objects are not written", async || {
            // Calls change counts, and none of them is in a status.
            served(app.ask_once(&pod, "gpt-4o").await?)?;
            let now = versions(scene).await?;
            ensure!(now == before, "{before:?} became {now:?}");
            Ok(())
        })
        .await
    });
}

async fn versions(scene: &Scene) -> Result<Vec<String>> {
    let mut versions = Vec::new();
    for (kind, name) in [(ROUTE, "chat"), (ROUTE, "broken"), (POLICY, "quick"), (POLICY, "lost")] {
        let object = scene.get(kind, name).await?;
        versions.push(format!("{name} {}", object["metadata"]["resourceVersion"]));
    }
    Ok(versions)
}

#[test]
fn policy_that_an_agent_rejects_or_does_not_know_says_so() {
    play(Needs::Release, async |scene| {
        scene.apply(&route("chat", &["gpt-4o"])).await?;
        scene.apply(&route("other", &["gpt-4o-mini"])).await?;
        scene.says(ROUTE, "chat", "Programmed", "Unknown", "NoAgents").await?;
        let (_, token) = agent::pod_with_token(scene, "old").await?;
        let claims =
            Claims { namespace: &scene.namespace, pod: "old", token: Some(&token), features: Vec::new() };
        let mut old = Agent::connect(&scene.cluster, &claims).await?.context("refused")?;
        let snapshot = old.snapshot().await??;
        ensure!(snapshot.routes.len() == 2, "{} routes", snapshot.routes.len());

        old.answer(&snapshot, &[("chat", "targets[0].weight: 1: too heavy for this build")]).await?;
        let rejected = scene.says(ROUTE, "chat", "Programmed", "False", "PartiallyProgrammed").await?;
        ensure!(
            rejected.message.contains("1 of 1 agents") && rejected.message.contains("too heavy"),
            "{rejected:?}"
        );
        let agents = scene.get(ROUTE, "chat").await?["status"]["agents"].clone();
        ensure!(agents["rejecting"] == 1 && agents["connected"] == 1, "{agents}");
        scene.says(ROUTE, "other", "Programmed", "True", "Programmed").await?;

        // The next version, which it takes.
        scene.apply(&route("chat", &["gpt-4o", "gpt-5"])).await?;
        let snapshot = old.snapshot().await??;
        old.answer(&snapshot, &[]).await?;
        scene.says(ROUTE, "chat", "Programmed", "True", "Programmed").await?;

        // A field that it does not know.
        let groups = json!({"breaker": {"slow": {"relativePercent": 300}}});
        scene.apply(&policy("relative", "chat", &groups)).await?;
        let snapshot = old.snapshot().await??;
        ensure!(!snapshot.withheld.is_empty(), "nothing was withheld");
        old.answer(&snapshot, &[]).await?;
        let unknown = scene.says(POLICY, "relative", "Programmed", "False", "UnsupportedField").await?;
        ensure!(unknown.message.contains("slow-relative"), "{unknown:?}");

        drop(old);
        scene.says(ROUTE, "chat", "Programmed", "Unknown", "NoAgents").await?;
        Ok(())
    });
}

#[test]
fn policy_edits_reach_agents_and_the_older_version_goes() {
    play(Needs::Release, async |scene| {
        let provider = Provider::start(scene).await?;
        scene.apply(&route("chat", &["gpt-4o"])).await?;
        let (app, pod) = App::start_served(scene).await?;
        scene.apply(&route("chat", &["gpt-5"])).await?;
        app.is_served(&pod, "gpt-5").await?;
        let answer = app.ask_once(&pod, "gpt-4o").await?;
        ensure!(answer["code"] == "model_not_found", "{answer}");
        // A policy at work: no time for a first token.
        provider.always(json!({"ttft": "3s"})).await?;
        let groups =
            json!({"deadlines": {"firstToken": "200ms", "total": "10s"}, "retries": {"maxAttempts": 1}});
        scene.apply(&policy("short", "chat", &groups)).await?;
        eventually(TRUTH, "the deadline is in force", async || {
            let answer = app.ask(&pod, json!({"model": "gpt-5", "stream": true})).await?.remove(0);
            ensure!(answer["code"] == "upstream_timeout", "{answer}");
            Ok(())
        })
        .await?;
        scene.delete(POLICY, "short").await?;
        app.is_served(&pod, "gpt-5").await?;
        scene.delete(ROUTE, "chat").await?;
        eventually(TRUTH, "the route is gone", async || {
            let answer = app.ask_once(&pod, "gpt-5").await?;
            ensure!(answer["code"] == "model_not_found", "{answer}");
            Ok(())
        })
        .await
    });
}
