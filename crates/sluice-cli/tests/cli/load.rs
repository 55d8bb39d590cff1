//! `sluice load` and `sluice provider`: what a try-out on a cluster is made of.

use sluice_provider::{Behaviour, Provider, Scenario};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::command::{BOUND, output, sluice};

fn last_line(output: &std::process::Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().last().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn it_calls_where_the_sdks_variable_points_and_counts() {
    let mut command = sluice();
    let mut child = command
        .args(["provider", "--listen", "127.0.0.1:0"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let told = tokio::time::timeout(BOUND, lines.next_line()).await.unwrap().unwrap().unwrap();
    let address = told.strip_prefix("listening on ").unwrap();
    let done = output(
        sluice()
            .env("OPENAI_BASE_URL", format!("{address}/v1"))
            .args(["load", "--calls", "20", "--rate", "200"]),
    )
    .await;
    assert!(done.status.success(), "{done:?}");
    assert!(
        last_line(&done).starts_with("sent=20 ok=20 degraded=0 refused=0 failed=0 in-flight=0 "),
        "{done:?}"
    );
    child.kill().await.unwrap();
}

#[tokio::test]
async fn a_failed_call_is_its_exit_status() {
    let provider = Provider::start(Scenario::of(Behaviour::status(500))).await.unwrap();
    let url = provider.openai_url();
    let done = output(sluice().args(["load", "--url", &url, "--calls", "5", "--rate", "200"])).await;
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    assert!(last_line(&done).contains(" failed=5 "), "{done:?}");
    provider.shutdown().await;
}

#[tokio::test]
async fn what_cannot_be_called_is_said() {
    for (arguments, words) in [
        (["--url", "https://api.openai.com/v1"], ["--url", "http://127.0.0.1:8110/v1"]),
        (["--rate", "0"], ["--rate", "0.1"]),
        (["--every", "0s"], ["--every", "choose more"]),
    ] {
        let done = output(sluice().arg("load").args(arguments)).await;
        let told = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && words.iter().all(|word| told.contains(word)), "{told}");
    }
}
