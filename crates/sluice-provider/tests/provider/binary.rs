//! The binary: its address line, its scenario, its end.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::support::{raw_chat, read, request, send_on};

fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-provider"));
    command.kill_on_drop(true).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[tokio::test]
async fn serves_a_scenario_until_it_is_told_to_stop() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios/brown-out.yaml");
    let mut child = binary().args(["--listen", "127.0.0.1:0", "--scenario", file]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.next_line().await.unwrap().unwrap();
    let address = line.strip_prefix("listening on http://").unwrap().to_owned();
    let stream = TcpStream::connect(&address).await.unwrap();
    let answer =
        read(send_on(stream, request(http::Method::GET, "/control/scenario", &[], "")).await.unwrap()).await;
    assert!(answer.text.contains("ttftBySecond"));
    // A call in flight doesn't hold it up.
    let mut hanging = TcpStream::connect(&address).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut hanging, raw_chat(true).as_bytes()).await.unwrap();
    hanging.readable().await.unwrap();
    let kill = Command::new("kill").arg(child.id().unwrap().to_string()).status().await.unwrap();
    assert!(kill.success());
    assert!(child.wait().await.unwrap().success());
}

#[tokio::test]
async fn says_what_is_wrong_with_a_scenario() {
    let directory = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let file = directory.join("bad-scenario.yaml");
    std::fs::write(&file, "default:\n  ttft: 10\n").unwrap();
    let mut child = binary().arg("--scenario").arg(&file).spawn().unwrap();
    let mut error = String::new();
    child.stderr.take().unwrap().read_to_string(&mut error).await.unwrap();
    assert!(!child.wait().await.unwrap().success());
    for part in ["bad-scenario.yaml", "default.ttft", "`10`", "10ms"] {
        assert!(error.contains(part), "{error}");
    }
}
