//! Directories of manifests, and edits as editors and shells make them.

use std::fmt::Write as _;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A directory that goes with the test.
pub(crate) struct Manifests {
    root: TempDir,
}

impl Manifests {
    pub(crate) fn empty() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("manifests")).unwrap();
        Self { root }
    }

    /// The quickstart and its scenarios, with free ports in place of its own.
    pub(crate) fn quickstart() -> Self {
        let manifests = Self::empty();
        let ports = free_ports();
        for file in fs::read_dir(repository("e2e/manifests/quickstart")).unwrap() {
            let file = file.unwrap();
            let text = fs::read_to_string(file.path()).unwrap();
            let text = text.replace(":9001", &format!(":{}", ports[0]));
            manifests
                .write(file.file_name().to_str().unwrap(), &text.replace(":9002", &format!(":{}", ports[1])));
        }
        manifests
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.root.path().join("manifests")
    }

    /// Beside the directory.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// As a shell does: the file is emptied, then written.
    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).unwrap();
    }

    /// As editors do: a new file takes the place of the old one.
    pub(crate) fn replace(&self, name: &str, text: &str) {
        let new = self.path().join(format!(".{name}.swp"));
        fs::write(&new, text).unwrap();
        fs::rename(&new, self.path().join(name)).unwrap();
    }

    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.path().join(name)).unwrap();
    }
}

/// Two ports that nothing listens on.
fn free_ports() -> [u16; 2] {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Enough calls of the wrong kind open a breaker at once, and no probe goes out within a test.
pub(crate) const SENSITIVE: &str = "apiVersion: sluice.dev/v1alpha1
kind: ReliabilityPolicy
metadata: {name: sensitive}
spec:
  targetRefs: [{group: sluice.dev, kind: ModelRoute, name: chat}]
  breaker: {minimumCalls: 3, failurePercent: 50, cooldown: {base: 5m, max: 5m}}
";

/// A route for one model with one target per address, asked in this order.
pub(crate) fn route(name: &str, model: &str, targets: &[(&str, SocketAddr)]) -> String {
    let mut text = format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: ModelRoute\nmetadata: {{name: {name}}}\nspec:\n  models: [{model}]\n  targets:\n"
    );
    for (priority, (target, address)) in targets.iter().enumerate() {
        let _ = write!(
            text,
            "  - name: {target}
    provider: OpenAI
    endpoint: http://{address}/v1
    priority: {priority}
    credential: {{type: None}}
"
        );
    }
    text
}
