//! What a quickstart compiles to, whole. After a wanted change: `UPDATE_GOLDEN=1 cargo test -p sluice-policy`.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;

use sluice_policy::compile::Scope;
use sluice_policy::files::Directory;
use sluice_policy::{Index, compile};

#[test]
fn the_quickstart_compiles_to_what_it_did() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let now_ms = 1_790_000_000_000;
    let changes = Directory::new(golden.join("quickstart")).reload(now_ms).unwrap();
    assert!(changes.problems.is_empty(), "{:?}", changes.problems);
    let mut index = Index::default();
    changes.apply_to(&mut index, now_ms);
    let compiled = compile(&index);
    let scope = Scope { namespace: "default".into(), labels: [].into() };
    let text = format!("{:#?}\n{:#?}\n{:#?}\n", compiled.scope(&scope), compiled.routes, compiled.policies);
    assert!(!text.contains("sk-quickstart"));
    // A UID is a hash of the moment; nothing else here is.
    let path = golden.join("quickstart.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    for (number, (expected, found)) in expected.lines().zip(text.lines()).enumerate() {
        assert_eq!(found, expected, "line {} of {}", number + 1, path.display());
    }
    assert_eq!(expected.lines().count(), text.lines().count());
}
