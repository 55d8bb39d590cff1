//! Applications with the official SDKs, their agents, and a provider that is told to be slow, broken or well again.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use http::Method;
use serde_json::{Value, json};
use sluice_e2e::app::{App, Shape, served};
use sluice_e2e::manifests::{policy, quick_breaker, route, target};
use sluice_e2e::provider::Provider;
use sluice_e2e::scene::{Needs, Scene, play};
use sluice_e2e::until::{PATIENCE, TRUTH, eventually};
use sluice_e2e::{command, condition};

/// Three pods, each of which has been served.
async fn three_pods<'a>(scene: &'a Scene, model: &str) -> Result<(App<'a>, [String; 3])> {
    let app = App::start_injected(scene, &Shape { replicas: 3, ..Shape::default() }).await?;
    let pods = app.names().await?;
    for pod in &pods {
        app.is_served(pod, model).await?;
    }
    Ok((app, pods))
}

async fn breaker_is(scene: &Scene, state: &str) -> Result<Value> {
    eventually(TRUTH, format!("the status says that the breaker is {state}"), async || {
        let route = scene.get("ModelRoute", "chat").await?;
        let breaker = condition::breaker(&route, "primary")?;
        ensure!(breaker["state"] == state, "{breaker}");
        Ok(breaker.clone())
    })
    .await
}

async fn events(scene: &Scene, reason: &str) -> Result<Vec<Value>> {
    let mut events = scene.events_of("ModelRoute", "chat").await?;
    events.retain(|event| event["reason"] == reason);
    Ok(events)
}

/// A cool-down so long that it does not end within a test.
fn long_cooldown() -> Value {
    let mut groups = quick_breaker();
    groups["breaker"]["cooldown"] = json!({"base": "30m", "max": "30m", "jitterPercent": 0});
    groups
}

#[test]
fn traffic_the_trips_of_one_pod_open_the_breaker_for_all() {
    play(Needs::Release, async |scene| {
        let provider = Provider::start(scene).await?;
        scene.apply(&route("chat", &["gpt-4o"])).await?;
        scene.apply(&policy("quick", "chat", &long_cooldown())).await?;
        let (app, [one, two, three]) = three_pods(scene, "gpt-4o").await?;
        scene.says("ReliabilityPolicy", "quick", "Programmed", "True", "Programmed").await?;

        provider.always(json!({"status": 503})).await?;
        eventually(PATIENCE, "one pod has opened the breaker", async || {
            let answer = app.ask_once(&one, "gpt-4o").await?;
            ensure!(answer["status"] == 503 && answer["code"] == "circuit_open", "{answer}");
            Ok(())
        })
        .await?;
        let asked = provider.count("started").await?;
        for pod in [&one, &two, &three] {
            for answer in app.ask(pod, json!({"model": "gpt-4o", "times": 5})).await? {
                ensure!(answer["code"] == "circuit_open", "{answer}");
            }
        }
        ensure!(
            provider.count("started").await? == asked,
            "the provider was asked while the breaker was open"
        );

        let breaker = breaker_is(scene, "Open").await?;
        ensure!(breaker["reason"] == "failure-rate" && breaker["since"].is_string(), "{breaker}");
        let shown =
            command::succeed("kubectl", &["get", "-n", &scene.namespace, "modelroutes", "chat"]).await?;
        ensure!(shown.contains("Open") && shown.contains("3/3") && shown.contains("True"), "{shown}");
        let told = eventually(TRUTH, "an Event tells of it", async || {
            let mut told = events(scene, "BreakerOpened").await?;
            told.pop().context("no Event")
        })
        .await?;
        ensure!(told["type"] == "Warning", "{told}");
        let note = told["note"].as_str().unwrap_or_default();
        ensure!(note.contains("target primary") && note.contains("failure-rate"), "{note}");
        ensure!(events(scene, "BreakerOpened").await?.len() == 1, "it is told of twice");
        Ok(())
    });
}

#[test]
fn traffic_probes_are_limited_over_all_pods_and_recovery_closes() {
    play(Needs::ReleaseAlone, async |scene| {
        let provider = Provider::start(scene).await?;
        scene.apply(&route("chat", &["gpt-4o"])).await?;
        scene.apply(&policy("quick", "chat", &quick_breaker())).await?;
        let (app, pods) = three_pods(scene, "gpt-4o").await?;
        scene.says("ReliabilityPolicy", "quick", "Programmed", "True", "Programmed").await?;
        provider.always(json!({"status": 503})).await?;
        // For every pod: one that has not heard of it and then misses Redis has a closed breaker of its own.
        for pod in &pods {
            eventually(PATIENCE, "the breaker is open", async || {
                let answer = app.ask_once(pod, "gpt-4o").await?;
                ensure!(answer["code"] == "circuit_open", "{answer}");
                Ok(())
            })
            .await?;
        }

        // Every call that gets through now hangs until its deadline.
        provider.always(json!({"ttft": "10m"})).await?;
        provider.reset().await?;
        let before = decided_alone(&app, &pods).await?;
        eventually(PATIENCE, "it was probed three times", async || {
            hammer(&app, &pods).await?;
            let stats = provider.stats().await?["total"].clone();
            ensure!(stats["started"].as_u64() >= Some(3), "{stats}");
            Ok(())
        })
        .await?;
        // One over all pods while Redis answers; and one per pod that had no answer from it in time, as on a busy machine.
        let alone = decided_alone(&app, &pods).await?;
        let allowed = 1 + alone.iter().zip(&before).filter(|(now, before)| now > before).count() as u64;
        let stats = provider.stats().await?["total"].clone();
        ensure!(
            stats["maxInFlight"].as_u64() <= Some(allowed),
            "more than {allowed} probes at a time: {stats}"
        );

        provider.always(json!({"tokens": 5})).await?;
        for pod in &pods {
            app.is_served(pod, "gpt-4o").await?;
        }
        breaker_is(scene, "Closed").await?;
        eventually(TRUTH, "an Event tells of it", async || {
            ensure!(!events(scene, "BreakerClosed").await?.is_empty(), "no Event");
            Ok(())
        })
        .await?;
        for pod in &pods {
            served(app.ask_once(pod, "gpt-4o").await?)?;
        }
        Ok(())
    });
}

/// A counter on the page of an agent's metrics.
async fn counter(app: &App<'_>, pod: &str, name: &str) -> Result<u64> {
    let page = app.http(pod, 8111, Method::GET, "/metrics", &Value::Null).await?;
    let line =
        page.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])));
    let value = line.and_then(|line| line.rsplit(' ').next()).with_context(|| format!("no metric {name}"))?;
    Ok(value.parse()?)
}

/// Admissions that each agent decided without Redis.
async fn decided_alone(app: &App<'_>, pods: &[String; 3]) -> Result<Vec<u64>> {
    let mut counts = Vec::new();
    for pod in pods {
        counts.push(counter(app, pod, "sluice_store_fallback_admissions_total").await?);
    }
    Ok(counts)
}

/// Many calls from all pods at once.
async fn hammer(app: &App<'_>, pods: &[String; 3]) -> Result<()> {
    let order = json!({"model": "gpt-4o", "times": 12, "parallel": 4, "stream": true});
    let [one, two, three] = pods;
    tokio::try_join!(app.ask(one, order.clone()), app.ask(two, order.clone()), app.ask(three, order))?;
    Ok(())
}

#[test]
fn traffic_goes_to_the_fallback_and_nobody_notices() {
    play(Needs::Release, async |scene| {
        let provider = Provider::start(scene).await?;
        let fallback = Provider::start_as(scene, "fallback").await?;
        let mut chat = route("chat", &["gpt-4o"]);
        let mut second = target("fallback", "http://fallback:9001/v1");
        second["priority"] = json!(1);
        chat["spec"]["targets"].as_array_mut().context("no targets")?.push(second);
        scene.apply(&chat).await?;
        let mut groups = long_cooldown();
        groups["retries"]["maxAttempts"] = json!(2);
        scene.apply(&policy("quick", "chat", &groups)).await?;
        let app = App::start_injected(scene, &Shape::default()).await?;
        let [pod] = app.names().await?;
        let answer = app.is_served(&pod, "gpt-4o").await?;
        ensure!(answer["servedBy"] == "primary", "{answer}");
        provider.always(json!({"error": "overloaded"})).await?;
        for stream in [false, true] {
            for answer in app.ask(&pod, json!({"model": "gpt-4o", "times": 10, "stream": stream})).await? {
                let answer = served(answer)?;
                ensure!(answer["servedBy"] == "fallback", "{answer}");
            }
        }
        let asked = provider.count("started").await?;
        ensure!(asked < 15, "a provider with an open breaker was asked {asked} times");
        ensure!(fallback.count("completed").await? == 20, "{}", fallback.stats().await?);
        breaker_is(scene, "Open").await?;
        Ok(())
    });
}

#[test]
fn traffic_one_quota_for_all_pods() {
    play(Needs::ReleaseAlone, async |scene| {
        let provider = Provider::start(scene).await?;
        scene.apply(&route("chat", &["gpt-4o"])).await?;
        let (app, pods) = three_pods(scene, "gpt-4o").await?;
        let groups = json!({"quota": {"requestsPerMinute": 30}, "retries": {"maxAttempts": 1}});
        scene.apply(&policy("quota", "chat", &groups)).await?;
        scene.says("ReliabilityPolicy", "quota", "Programmed", "True", "Programmed").await?;
        provider.reset().await?;
        let before = decided_alone(&app, &pods).await?;
        let began = Instant::now();
        let order = json!({"model": "gpt-4o", "times": 30, "parallel": 2});
        let [one, two, three] = &pods;
        let answers = tokio::try_join!(
            app.ask(one, order.clone()),
            app.ask(two, order.clone()),
            app.ask(three, order)
        )?;
        // What the bucket held, what has dripped in since, and what a pod let through that had no answer from Redis in
        // time, as on a busy machine.
        let alone = decided_alone(&app, &pods).await?.iter().sum::<u64>() - before.iter().sum::<u64>();
        let allowed = 31 + began.elapsed().as_secs() / 2 + alone;
        let asked = provider.count("started").await?;
        ensure!((30..=allowed).contains(&asked), "of 30 a minute, {asked} calls came through, {allowed} may");
        let refused: Vec<Value> = [answers.0, answers.1, answers.2].concat();
        let refused: Vec<_> = refused.into_iter().filter(|answer| answer["status"] != 200).collect();
        ensure!(refused.len() as u64 == 90 - asked, "{} refused, {asked} asked", refused.len());
        ensure!(refused.iter().all(|answer| answer["code"] == "requests_exhausted"), "{refused:?}");
        Ok(())
    });
}

#[test]
fn traffic_a_pod_that_ends_finishes_its_streams() {
    play(Needs::Release, async |scene| {
        let provider = Provider::start(scene).await?;
        provider.always(json!({"tokens": 30, "perToken": "300ms"})).await?;
        scene.apply(&route("chat", &["gpt-4o"])).await?;
        let app = App::start_injected(scene, &Shape::default()).await?;
        let [pod] = app.names().await?;
        eventually(PATIENCE, "a stream has begun", async || {
            app.begin_stream(&pod, "gpt-4o").await?;
            ensure!(provider.count("inFlight").await? > 0, "none");
            Ok(())
        })
        .await?;
        scene.delete("Pod", &pod).await?;
        eventually(Duration::from_mins(1), "the stream was read to its end", async || {
            let calls = provider.calls().await?;
            let last = calls.last().context("no call")?;
            ensure!(last["outcome"] == "completed", "{last}");
            Ok(())
        })
        .await?;
        ensure!(provider.count("cancelledMidStream").await? == 0, "{}", provider.stats().await?);
        Ok(())
    });
}
