//! A program that is not ours: where it is, a port for it, and one process of it.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;

/// The program that a variable names, or that PATH has, or the one that `make test-deps` keeps in the user's cache.
pub(crate) fn find(variable: &str, name: &str, cached: &str) -> Result<PathBuf> {
    let set = |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty());
    if let Some(named) = set(variable) {
        return Ok(named.into());
    }
    let path = set("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file());
    let cache = set("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(Path::new(&set("HOME")?).join(".cache")))
        .map(|cache| cache.join("sluice").join(cached));
    match on_path.or(cache).filter(|path| path.is_file()) {
        Some(found) => Ok(found),
        None => bail!("{name} is missing: run `make test-deps`, which installs it, or name it in {variable}"),
    }
}

/// A process with a directory of its own and a log, ended by its id when dropped.
pub(crate) struct Tool {
    child: Child,
    dir: TempDir,
}

impl Tool {
    /// `arguments` are told the directory.
    pub(crate) fn start(
        program: &Path,
        dir: TempDir,
        arguments: impl FnOnce(&Path) -> Vec<String>,
    ) -> Result<Self> {
        let log = fs::File::create(dir.path().join("log"))?;
        let child = Command::new(program)
            .args(arguments(dir.path()))
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("{} could not be started", program.display()))?;
        Ok(Self { child, dir })
    }

    /// An error, with what it logged, when it has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("it ended, {status}:\n{}", self.log()),
        }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        // A process that ended by itself can't be killed; it is reaped all the same.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ports that were free a moment ago, all different.
pub(crate) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut held = Vec::new();
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}
