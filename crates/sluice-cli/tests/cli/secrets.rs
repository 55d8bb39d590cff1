//! Credentials from Secret manifests.

use http::StatusCode;
use sluice_provider::{Provider, Scenario, fingerprint};

use crate::client::Client;
use crate::command::{Run, eventually};
use crate::manifests::{Manifests, route};
use crate::serving::pausing;

fn secret(value: &str) -> String {
    format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: keys}}\nstringData: {{provider: {value}}}\n")
}

/// The header of the newest call.
fn shown(provider: &Provider, header: &str) -> String {
    provider.calls().last().and_then(|call| call.header(header).map(str::to_owned)).unwrap_or_default()
}

#[tokio::test]
async fn a_secret_reaches_the_provider_and_a_new_one_drops_no_stream() {
    let quick = Scenario::default();
    let (slow, primary, fallback) = (
        Provider::start(pausing()).await.unwrap(),
        Provider::start(quick.clone()).await.unwrap(),
        Provider::start(quick).await.unwrap(),
    );
    let manifests = Manifests::empty();
    let keyed = "{type: SecretRef, secretRef: {name: keys, key: provider}}";
    let chat = route("chat", "gpt-4o", &[("primary", primary.addr()), ("fallback", fallback.addr())]);
    // Only the first target wants a key.
    manifests.write("chat.yaml", &chat.replacen("{type: None}", keyed, 1));
    manifests.write(
        "slow.yaml",
        &route("slow", "gpt-slow", &[("primary", slow.addr())]).replace("{type: None}", keyed),
    );
    let claude = route("claude", "claude", &[("primary", primary.addr())]);
    let claude = claude
        .replace("provider: OpenAI", "provider: Anthropic")
        .replace("spec:", "spec:\n  format: Anthropic");
    manifests.write("claude.yaml", &claude.replace("{type: None}", keyed));
    manifests.write("secret.yaml", &secret("sk-first"));
    let run = Run::start(&manifests.path(), &[]).await;
    let (client, agent) = (Client::new(), run.agents[0]);

    let mut stream = client.chat_stream(agent, "gpt-slow").await;
    stream.until("\"content\":").await;
    assert_eq!(shown(&slow, "authorization"), fingerprint("Bearer sk-first"));
    assert_eq!(client.chat(agent, "gpt-4o").await.served_by(), "primary");
    assert_eq!(shown(&primary, "authorization"), fingerprint("Bearer sk-first"), "and not the client's own");
    assert_eq!(client.message(agent, "claude").await.status, StatusCode::OK);
    assert_eq!(shown(&primary, "x-api-key"), fingerprint("sk-first"), "and not the client's own");

    manifests.replace("secret.yaml", &secret("sk-second"));
    eventually("the new key", async || {
        assert_eq!(client.chat(agent, "gpt-4o").await.served_by(), "primary");
        (shown(&primary, "authorization") == fingerprint("Bearer sk-second")).then_some(())
    })
    .await;
    assert_eq!(client.message(agent, "claude").await.status, StatusCode::OK);
    assert_eq!(shown(&primary, "x-api-key"), fingerprint("sk-second"));

    manifests.remove("secret.yaml");
    run.line(&[
        "warning: ModelRoute default/chat: ResolvedRefs=False/SecretNotFound",
        "\"primary\" is passed over",
        "create it",
    ])
    .await;
    eventually("the target without a key to be passed over", async || {
        (client.chat(agent, "gpt-4o").await.served_by() == "fallback").then_some(())
    })
    .await;
    assert_eq!(shown(&fallback, "authorization"), "", "a target of type None is shown no key");
    manifests.write("secret.yaml", &secret("sk-third"));
    eventually("the target to be back", async || {
        (client.chat(agent, "gpt-4o").await.served_by() == "primary").then_some(())
    })
    .await;
    assert_eq!(shown(&primary, "authorization"), fingerprint("Bearer sk-third"));
    run.line(&["mended: ModelRoute default/chat: ResolvedRefs"]).await;

    slow.release();
    let read = stream.rest().await;
    assert!(read.trim_end().ends_with("data: [DONE]") && !read.contains("error"), "{read}");
    let lines = run.end().await;
    assert!(!lines.concat().contains("sk-"), "{lines:?}");
}
