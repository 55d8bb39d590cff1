//! Edits of the watched directory while traffic flows.

use std::fs;
use std::net::SocketAddr;

use http::StatusCode;
use sluice_provider::scenario::Stall;
use sluice_provider::{Behaviour, Provider, Scenario};

use crate::client::Client;
use crate::command::{Run, eventually};
use crate::manifests::{Manifests, route};

const ANY_GPT: &str = "\"gpt-*\"";

/// Short answers; `gpt-pause` says three tokens and then nothing until it is released.
fn scenario() -> Scenario {
    let pause =
        Behaviour { tokens: Some(6), stall: Some(Stall { after: 3, lasts: None }), ..Behaviour::default() };
    Scenario::of(Behaviour { tokens: Some(2), ..Behaviour::default() }).for_model("gpt-pause", pause)
}

async fn until_status(client: &Client, agent: SocketAddr, model: &str, status: StatusCode) {
    let what = format!("{status} for {model}");
    eventually(&what, async || (client.chat(agent, model).await.status == status).then_some(())).await;
}

#[tokio::test]
async fn edits_take_effect_while_a_stream_goes_on() {
    let (one, other) =
        (Provider::start(scenario()).await.unwrap(), Provider::start(scenario()).await.unwrap());
    let manifests = Manifests::empty();
    let chat = route("chat", ANY_GPT, &[("primary", one.addr()), ("fallback", other.addr())]);
    manifests.write("chat.yaml", &chat);
    let run = Run::start(&manifests.path(), &[]).await;
    let (client, agent) = (Client::new(), run.agents[0]);
    let mut stream = client.chat_stream(agent, "gpt-pause").await;
    stream.until("\"content\":").await;

    // The name upstream, as an editor writes it.
    manifests.replace("chat.yaml", &chat.replace("priority: 0", "priority: 0\n    model: renamed"));
    eventually("the new name", async || {
        assert_eq!(client.chat(agent, "gpt-4o").await.status, StatusCode::OK);
        (one.stats().model("renamed").completed > 0).then_some(())
    })
    .await;
    // The address, as a shell writes it.
    manifests.write("chat.yaml", &route("chat", ANY_GPT, &[("primary", other.addr())]));
    eventually("the new address", async || {
        assert_eq!(client.chat(agent, "gpt-4o").await.status, StatusCode::OK);
        (other.stats().model("gpt-4o").completed > 0).then_some(())
    })
    .await;
    // A quota comes and goes.
    manifests.write(
        "quota.yaml",
        "apiVersion: sluice.dev/v1alpha1
kind: ReliabilityPolicy
metadata: {name: quota}
spec:
  targetRefs: [{group: sluice.dev, kind: ModelRoute, name: chat}]
  quota: {requestsPerMinute: 1}
",
    );
    until_status(&client, agent, "gpt-4o", StatusCode::TOO_MANY_REQUESTS).await;
    manifests.remove("quota.yaml");
    until_status(&client, agent, "gpt-4o", StatusCode::OK).await;
    // And a route.
    assert_eq!(client.chat(agent, "claude").await.status, StatusCode::NOT_FOUND);
    manifests.replace("more.yaml", &route("more", "claude", &[("primary", one.addr())]));
    until_status(&client, agent, "claude", StatusCode::OK).await;
    manifests.remove("more.yaml");
    until_status(&client, agent, "claude", StatusCode::NOT_FOUND).await;

    one.release();
    let read = stream.rest().await;
    assert!(read.trim_end().ends_with("data: [DONE]") && !read.contains("error"), "{read}");
    for said in [
        "applied ModelRoute/chat",
        "applied ReliabilityPolicy/quota",
        "deleted ReliabilityPolicy/quota",
        "deleted ModelRoute/more",
    ] {
        run.line(&[" policy ", said]).await;
    }
    run.end().await;
}

#[tokio::test]
async fn an_emptied_file_and_a_directory_that_goes_keep_what_they_had() {
    let provider = Provider::start(scenario()).await.unwrap();
    let manifests = Manifests::empty();
    let chat = route("chat", "gpt-4o", &[("primary", provider.addr())]);
    let more = |model: &str| route("more", model, &[("primary", provider.addr())]);
    manifests.write("chat.yaml", &chat);
    let run = Run::start(&manifests.path(), &[]).await;
    let (client, agent) = (Client::new(), run.agents[0]);

    manifests.write("chat.yaml", "");
    run.line(&["warning: ", "chat.yaml: is empty — write its objects again, or remove it"]).await;
    assert_eq!(client.chat(agent, "gpt-4o").await.status, StatusCode::OK);
    manifests.write("chat.yaml", &chat);
    run.line(&["mended: ", "chat.yaml"]).await;

    fs::rename(manifests.path(), manifests.beside("away")).unwrap();
    run.line(&["warning: directory ", "cannot be read", "everything stays as it is"]).await;
    assert_eq!(client.chat(agent, "gpt-4o").await.status, StatusCode::OK);
    // Another directory takes its place.
    fs::create_dir(manifests.beside("new")).unwrap();
    fs::write(manifests.beside("new").join("chat.yaml"), &chat).unwrap();
    fs::rename(manifests.beside("new"), manifests.path()).unwrap();
    run.line(&["mended: directory "]).await;
    // What happens in the old one is nobody's business, and the new one is followed.
    fs::write(manifests.beside("away").join("more.yaml"), more("old")).unwrap();
    manifests.write("more.yaml", &more("new"));
    until_status(&client, agent, "new", StatusCode::OK).await;
    assert_eq!(client.chat(agent, "old").await.status, StatusCode::NOT_FOUND);
    // What a link leads to is followed too.
    fs::write(manifests.beside("linked.yaml"), more("linked")).unwrap();
    fs::remove_file(manifests.path().join("more.yaml")).unwrap();
    std::os::unix::fs::symlink(manifests.beside("linked.yaml"), manifests.path().join("more.yaml")).unwrap();
    until_status(&client, agent, "linked", StatusCode::OK).await;
    fs::write(manifests.beside("linked.yaml"), more("edited")).unwrap();
    until_status(&client, agent, "edited", StatusCode::OK).await;

    assert_eq!(client.chat(agent, "gpt-4o").await.status, StatusCode::OK);
    manifests.remove("chat.yaml");
    until_status(&client, agent, "gpt-4o", StatusCode::NOT_FOUND).await;
    run.end().await;
}

#[tokio::test]
async fn one_broken_route_among_fifty_keeps_its_last_good_version_and_says_why() {
    let provider = Provider::start(scenario()).await.unwrap();
    let manifests = Manifests::empty();
    let of =
        |number: usize, model: &str| route(&format!("r{number}"), model, &[("primary", provider.addr())]);
    for number in 0..50 {
        manifests.write(&format!("r{number}.yaml"), &of(number, &format!("m{number}")));
    }
    let run = Run::start(&manifests.path(), &[]).await;
    let (client, agent) = (Client::new(), run.agents[0]);

    // (edit of r7, what is said of it)
    let good = of(7, "m7");
    let edits = [
        (good.replace("models: [m7]", "models: [m7"), vec!["r7.yaml:", "is no YAML", " — correct the YAML"]),
        (
            good.replace("spec:", "spec:\n  format: Anthropic"),
            vec![
                "r7.yaml:",
                "ModelRoute/r7: spec.targets: every target must speak the format",
                " — set format to",
            ],
        ),
        (
            good.replace("models:", "model:"),
            vec!["r7.yaml:5: ModelRoute/r7: spec.model: ", "is no known field — did you mean models?"],
        ),
        (
            good.replace("priority: 0", "priority: -1"),
            vec!["r7.yaml:", "spec.targets[0].priority: -1: must be between", " — raise it"],
        ),
    ];
    for (step, (broken, said)) in edits.iter().enumerate() {
        manifests.replace("r7.yaml", broken);
        let fresh = format!("fresh{step}");
        manifests.replace("r8.yaml", &of(8, &fresh));
        run.line(&[&["warning: "], said.as_slice()].concat()).await;
        until_status(&client, agent, &fresh, StatusCode::OK).await;
        assert_eq!(client.chat(agent, "m7").await.status, StatusCode::OK, "{broken}");
    }
    run.line(&["warning: ModelRoute default/r7: Programmed=False/Held: generation 1 stays in use"]).await;
    for number in (0..50).filter(|number| *number != 8) {
        assert_eq!(client.chat(agent, &format!("m{number}")).await.status, StatusCode::OK, "{number}");
    }
    assert!(run.lines_with(&["mended: "]).is_empty(), "{:?}", run.lines());
    manifests.replace("r7.yaml", &of(7, "well"));
    until_status(&client, agent, "well", StatusCode::OK).await;
    run.line(&["mended: ", "r7.yaml"]).await;
    run.end().await;
}

#[tokio::test]
async fn of_one_file_the_good_object_applies_and_the_broken_one_is_held() {
    let provider = Provider::start(scenario()).await.unwrap();
    let manifests = Manifests::empty();
    let both = |one: &str, other: &str| {
        let of = |name, model| route(name, model, &[("primary", provider.addr())]);
        format!("{}---\n{}", of("one", one), of("other", other))
    };
    manifests.write("both.yaml", &both("one-1", "other-1"));
    let run = Run::start(&manifests.path(), &[]).await;
    let (client, agent) = (Client::new(), run.agents[0]);
    manifests.replace("both.yaml", &both("one-*-2", "other-2"));
    until_status(&client, agent, "other-2", StatusCode::OK).await;
    assert_eq!(client.chat(agent, "one-1").await.status, StatusCode::OK);
    assert_eq!(client.chat(agent, "other-1").await.status, StatusCode::NOT_FOUND);
    run.line(&["both.yaml:5: ModelRoute/one: spec.models"]).await;
    run.end().await;
}
