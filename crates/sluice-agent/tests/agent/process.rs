//! The program: what it refuses to start with, and that it ends when it is told to.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

use crate::harness::PATIENCE;

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-agent"));
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What it says before it gives up.
fn refusal(variables: &[(&str, &str)]) -> String {
    let output = program().envs(variables.iter().copied()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{said}");
    said
}

#[test]
fn it_does_not_start_where_a_token_or_a_purse_would_be_open() {
    let said = refusal(&[
        ("SLUICE_CONTROL_PLANE", "http://sluice-controller.sluice-system.svc:8112"),
        ("SLUICE_TOKEN", "/var/run/sluice/token/token"),
    ]);
    for part in ["SLUICE_TOKEN", "http://sluice-controller", "plain text", "write https://"] {
        assert!(said.contains(part), "{said}");
    }
    let said = refusal(&[("SLUICE_CONTROL_PLANE", "http://127.0.0.1:1"), ("SLUICE_LISTEN", "0.0.0.0:0")]);
    for part in ["SLUICE_LISTEN", "0.0.0.0:0", "SLUICE_CLIENT_AUTH", "open purse"] {
        assert!(said.contains(part), "{said}");
    }
    let said = refusal(&[("SLUICE_CONTROL_PLANE", "https://127.0.0.1:1")]);
    assert!(said.contains("SLUICE_CONTROL_PLANE_CA"), "{said}");
    let said = refusal(&[
        ("SLUICE_CONTROL_PLANE", "http://127.0.0.1:1"),
        ("SLUICE_CLIENT_AUTH", "keys"),
        ("SLUICE_CLIENT_KEYS", "/does/not/exist"),
    ]);
    assert!(said.contains("SLUICE_CLIENT_KEYS /does/not/exist"), "{said}");
}

#[test]
fn help_names_every_variable() {
    let output = program().arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    for part in [
        "SLUICE_SNAPSHOT",
        "SLUICE_CLIENT_AUTH",
        "SLUICE_LAME_DUCK",
        "[default: 30s]",
        "Clients of a gateway",
    ] {
        assert!(help.contains(part), "{part}: {help}");
    }
}

/// As kubelet ends a sidecar: after the application, so with nothing open.
#[tokio::test]
async fn it_ends_at_once_when_nothing_is_open() {
    let mut agent = program()
        .env("SLUICE_CONTROL_PLANE", "http://127.0.0.1:1")
        .env("SLUICE_GRACE", "1h")
        .args(["--listen=127.0.0.1:0", "--admin=127.0.0.1:0"])
        .spawn()
        .unwrap();
    let id = agent.id().to_string();
    let mut stderr = BufReader::new(agent.stderr.take().unwrap());
    let ended = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        while !line.contains("serving") {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "it ended before it served");
        }
        let told = Command::new("kill").args(["-TERM", &id]).status().unwrap();
        assert!(told.success());
        let mut rest = String::new();
        stderr.read_to_string(&mut rest).unwrap();
        (agent.wait().unwrap(), rest)
    });
    let (status, said) = tokio::time::timeout(PATIENCE, ended).await.expect("it goes on").unwrap();
    assert!(status.success() && said.contains("draining"), "{status}: {said}");
}

#[test]
fn the_table_of_the_documentation_is_fresh() {
    let document =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/agent.md")).unwrap();
    let made = sluice_agent::args::with_table(&document).unwrap();
    assert!(made == document, "docs/agent.md is stale: run `make generate` and commit the result");
}
