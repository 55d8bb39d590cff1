//! Programs on PATH: helm and kubectl.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

const PATIENCE: Duration = Duration::from_mins(4);

/// What a program printed, on both streams.
#[derive(Debug)]
pub struct Printed {
    pub stdout: String,
    pub stderr: String,
    pub success: bool,
}

/// Runs a program to its end, whatever that is.
///
/// # Errors
/// When it is not there, or hangs.
pub async fn run(program: &str, arguments: &[&str], stdin: &str) -> Result<Printed> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("{program} could not be started: is it on PATH?"))?;
    let mut input = child.stdin.take().context("no standard input")?;
    input.write_all(stdin.as_bytes()).await?;
    drop(input);
    let ended = tokio::time::timeout(PATIENCE, child.wait_with_output());
    let output = ended.await.with_context(|| format!("{program} {arguments:?} hangs"))??;
    Ok(Printed {
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        success: output.status.success(),
    })
}

/// Runs a program that is to succeed, and gives its standard output.
///
/// # Errors
/// With all that it printed.
pub async fn succeed(program: &str, arguments: &[&str]) -> Result<String> {
    let printed = run(program, arguments, "").await?;
    ensure!(printed.success, "{program} {}\n{}{}", arguments.join(" "), printed.stdout, printed.stderr);
    Ok(printed.stdout)
}
