//! What keeps a run from starting: each message names flag, value and fix.

use std::net::TcpListener;

use sluice_provider::{Provider, Scenario};

use crate::command::{output, sluice};
use crate::manifests::{Manifests, repository, route};

/// The message of a run that does not start.
async fn refused(arguments: &[&str]) -> String {
    let mut command = sluice();
    // One that starts by mistake ends by itself.
    let output = output(command.args(["run", "--plain", "--for", "1ms"]).args(arguments)).await;
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && output.status.code().is_some(),
        "{arguments:?}: {}: {told}",
        output.status
    );
    told
}

fn holds(told: &str, words: &[&str]) {
    for word in words {
        assert!(told.contains(word), "no {word:?} in {told}");
    }
}

#[tokio::test]
async fn without_a_route_to_serve() {
    holds(
        &refused(&["-f", "/no/such/directory"]).await,
        &["-f", "/no/such/directory", "check that it exists"],
    );
    let file = repository("Cargo.toml");
    holds(&refused(&["-f", file.to_str().unwrap()]).await, &["-f", "Cargo.toml", "ot a directory"]);

    let manifests = Manifests::empty();
    let path = manifests.path();
    let path = path.to_str().unwrap();
    holds(&refused(&["-f", path]).await, &["-f", path, "no valid ModelRoute", "write one"]);

    manifests.write(
        "chat.yaml",
        "apiVersion: sluice.dev/v1alpha1\nkind: ModelRoute\nmetadata: {name: chat}\nspec: {model: a}\n",
    );
    let told = refused(&["-f", path]).await;
    holds(
        &told,
        &[
            "no valid ModelRoute",
            "chat.yaml:4",
            "spec.model: \"a\"",
            "did you mean models?",
            "spec.targets: is required",
        ],
    );

    let quickstart = Manifests::quickstart();
    let told = refused(&["-f", quickstart.path().to_str().unwrap(), "--namespace", "other"]).await;
    holds(&told, &["namespace other", "there are some for default", "--namespace"]);
}

#[tokio::test]
async fn with_an_address_in_use() {
    let manifests = Manifests::quickstart();
    let path = manifests.path();
    let path = path.to_str().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for flag in ["--listen", "--admin"] {
        let other = if flag == "--listen" { "--admin" } else { "--listen" };
        let told = refused(&["-f", path, flag, &address, other, "127.0.0.1:0"]).await;
        holds(&told, &[flag, &address, "agent-1", "choose another address", "in use"]);
    }
    holds(
        &refused(&["-f", path, "--policies", &address]).await,
        &["--policies", &address, "choose another port", "in use"],
    );
    let told = refused(&["-f", path, "--policies", "0.0.0.0:0"]).await;
    holds(&told, &["--policies 0.0.0.0:0", "use a loopback address"]);
    let told =
        refused(&["-f", path, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:65535", "--agents", "2"])
            .await;
    holds(&told, &["--admin 127.0.0.1:65535"]);
    holds(&refused(&["-f", path, "--listen", "localhost:80"]).await, &["--listen <IP:PORT>", "localhost:80"]);
}

#[tokio::test]
async fn with_providers_that_cannot_be_played() {
    let provider = Provider::start(Scenario::default()).await.unwrap();
    let manifests = Manifests::empty();
    manifests.write("chat.yaml", &route("chat", "gpt-4o", &[("primary", provider.addr())]));
    let path = manifests.path();
    let told = refused(&["-f", path.to_str().unwrap(), "--provider"]).await;
    holds(&told, &["--provider", &provider.addr().to_string(), "end what uses it", "in use"]);
    provider.shutdown().await;

    manifests.write("chat.yaml", &route("chat", "gpt-4o", &[("primary", "192.0.2.1:80".parse().unwrap())]));
    let told = refused(&["-f", path.to_str().unwrap(), "--provider"]).await;
    holds(&told, &["--provider", "no target has an http endpoint at a loopback address"]);
}

#[tokio::test]
async fn with_a_redis_url_that_cannot_work_and_without_showing_it() {
    let manifests = Manifests::quickstart();
    let path = manifests.path();
    let path = path.to_str().unwrap();
    for url in
        ["redis://user:hunter2@host:99999", "amqp://user:hunter2@host", "redis+sentinel://user:hunter2@host"]
    {
        let told =
            refused(&["-f", path, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--redis", url]).await;
        holds(&told, &["--redis", "write redis"]);
        assert!(!told.contains("hunter2"), "{told}");
    }
}

#[tokio::test]
async fn with_a_scenario_that_cannot_be_played() {
    let manifests = Manifests::quickstart();
    let path = manifests.path();
    let path = path.to_str().unwrap();
    holds(&refused(&["-f", path, "--scenario", "brownout"]).await, &["--provider"]);
    let told = refused(&["-f", path, "--provider", "--scenario", "brownout"]).await;
    holds(&told, &["--scenario brownout", "there are none", "name a file"]);
    let scenarios = manifests.beside("scenarios");
    std::fs::create_dir(&scenarios).unwrap();
    std::fs::write(scenarios.join("storm.yaml"), "steps: [{for: 1x}]\n").unwrap();
    std::fs::write(scenarios.join("calm.yaml"), "{}").unwrap();
    let told = refused(&["-f", path, "--provider", "--scenario", "brownout"]).await;
    holds(&told, &["--scenario brownout", "there are: calm, storm"]);
    let told = refused(&["-f", path, "--provider", "--scenario", "storm"]).await;
    holds(&told, &["--scenario", "storm.yaml", "steps[0].for", "1x"]);
    let told = refused(&["-f", path, "--provider", "--scenario", "calm", "--rate", "NaN"]).await;
    holds(&told, &["--rate", "NaN", "a number from"]);
}

/// An https endpoint of this machine is somebody else's to serve, and the run says so.
#[tokio::test]
async fn https_endpoints_are_not_played() {
    let manifests = Manifests::quickstart();
    let path = manifests.path();
    for file in ["chat.yaml", "claude.yaml"] {
        let text = std::fs::read_to_string(path.join(file)).unwrap();
        manifests.write(file, &text.replace("http://127", "https://127"));
    }
    let told = refused(&["-f", path.to_str().unwrap(), "--provider"]).await;
    holds(&told, &["--provider", "no target has an http endpoint", "http://127.0.0.1:9001/v1"]);
}
