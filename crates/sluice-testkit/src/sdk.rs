//! The official Python SDKs as clients: scripts of `e2e/sdk`, run in the environment that `make test-deps` makes.
//!
//! A script plays named cases and ends with a code; what it saw on the wire is for its test to ask the provider.
//! Its environment is cleared, so that neither a developer's own keys nor a proxy setting reach the SDKs, and what
//! the test gives is all that an unmodified client would find in its pod.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::process::Command;

/// Longer than any script runs; one that takes so long hangs.
const PATIENCE: Duration = Duration::from_mins(2);

/// Python with the SDKs, and where the scripts are.
#[derive(Debug, Clone)]
pub struct Sdk {
    python: PathBuf,
    scripts: PathBuf,
}

impl Sdk {
    /// The environment that `SLUICE_SDK_PYTHON` names, or the one in the user's cache.
    ///
    /// # Errors
    /// When it is not installed.
    pub fn find() -> Result<Self> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let Some(python) = python(variable) else {
            bail!("SLUICE_SDK_PYTHON and HOME are not set: run `make test-deps`, and set one of them");
        };
        if !python.is_file() {
            bail!("{} is missing: run `make test-deps`, which installs the SDKs", python.display());
        }
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e/sdk");
        Ok(Self { python, scripts })
    }

    /// Runs cases of a script with these environment variables, and returns what it printed.
    ///
    /// # Errors
    /// When a case fails or the script hangs; the error has all that was printed.
    pub async fn run(&self, script: &str, cases: &[&str], env: &[(&str, &str)]) -> Result<String> {
        let child = Command::new(&self.python)
            .arg(self.scripts.join(script))
            .args(cases)
            .env_clear()
            .envs(env.iter().copied())
            // Bytecode beside the scripts would be litter in the checkout.
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{} could not be started", self.python.display()))?;
        let output = tokio::time::timeout(PATIENCE, child.wait_with_output())
            .await
            .with_context(|| format!("{script} {cases:?} hangs"))??;
        judge(script, &output)
    }
}

fn judge(script: &str, output: &Output) -> Result<String> {
    let stdout = String::from_utf8_lossy(&output.stdout);
    if output.status.success() {
        return Ok(stdout.into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    bail!("{script}: {}\n{stdout}{stderr}", output.status)
}

/// As `e2e/bin/env` has it.
fn python(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(python) = variable("SLUICE_SDK_PYTHON") {
        return Some(python.into());
    }
    let cache = variable("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(Path::new(&variable("HOME")?).join(".cache")))?;
    Some(cache.join("sluice/sdk/bin/python"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_goes_before_the_cache() {
        let found = |set: &'static [(&'static str, &'static str)]| {
            python(|name| set.iter().find(|(set, _)| *set == name).map(|(_, value)| value.into()))
        };
        assert_eq!(found(&[("HOME", "/h"), ("SLUICE_SDK_PYTHON", "/p")]), Some("/p".into()));
        assert_eq!(
            found(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/c")]),
            Some("/c/sluice/sdk/bin/python".into())
        );
        assert_eq!(found(&[("HOME", "/h")]), Some("/h/.cache/sluice/sdk/bin/python".into()));
        assert_eq!(found(&[]), None);
    }
}
