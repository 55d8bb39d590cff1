//! The generated documents are those of the code, and `telemetry-docs --check` tells when they are not.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::process::{Command, Output};

fn docs(arguments: &[&str], metrics: &Path, telemetry: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_telemetry-docs"))
        .args(arguments)
        .args([metrics, telemetry])
        .output()
        .unwrap()
}

#[test]
fn the_committed_files_are_fresh_and_stale_ones_are_named() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let output = docs(&["--check"], &root.join("metrics.md"), &root.join("telemetry.md"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let folder = tempfile::tempdir().unwrap();
    let (metrics, telemetry) = (folder.path().join("metrics.md"), folder.path().join("telemetry.md"));
    std::fs::copy(root.join("telemetry.md"), &telemetry).unwrap();
    assert!(docs(&[], &metrics, &telemetry).status.success());
    std::fs::write(&metrics, "stale").unwrap();
    let output = docs(&["--check"], &metrics, &telemetry);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(told.contains("metrics.md is stale: run `cargo run -p sluice-telemetry"), "{told}");
    assert!(!told.contains("telemetry.md is stale"), "{told}");
}
