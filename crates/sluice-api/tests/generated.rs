//! The generated files are those of the types, and `crdgen --check` tells when they are not.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn crdgen(arguments: &[&str], crds: &Path, reference: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_crdgen")).args(arguments).args([crds, reference]).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_committed_files_are_fresh() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = crdgen(&["--check"], &root.join("crds"), &root.join("docs/api.md"));
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn a_stale_file_is_named_with_the_command_that_mends_it() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("crdgen-stale");
    let (crds, reference) = (folder.join("crds"), folder.join("docs/api.md"));
    let written = crdgen(&[], &crds, &reference);
    assert!(written.status.success(), "{}", text(&written.stderr));
    assert!(crdgen(&["--check"], &crds, &reference).status.success());

    std::fs::write(crds.join("modelroutes.yaml"), "kind: Nothing\n").unwrap();
    std::fs::remove_file(&reference).unwrap();
    let checked = crdgen(&["--check"], &crds, &reference);
    assert!(!checked.status.success());
    let message = text(&checked.stderr);
    for part in ["modelroutes.yaml is stale", "api.md is stale", "cargo run -p sluice-api --bin crdgen"] {
        assert!(message.contains(part), "{message}");
    }
    assert!(!message.contains("reliabilitypolicies.yaml"), "{message}");
}
