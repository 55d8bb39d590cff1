//! The arrows between the crates: what may depend on what, checked over `cargo metadata`.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::process::Command;

/// Crate → the crates of this workspace that it may depend on. Nothing else is allowed.
const ARROWS: &[(&str, &[&str])] = &[
    ("sluice-core", &[]),
    ("sluice-api", &["sluice-core"]),
    ("sluice-proto", &["sluice-core"]),
    ("sluice-policy", &["sluice-api", "sluice-core", "sluice-proto", "sluice-telemetry"]),
    ("sluice-state", &["sluice-core"]),
    ("sluice-telemetry", &["sluice-core"]),
    ("sluice-agent", &["sluice-core", "sluice-proto", "sluice-state", "sluice-telemetry"]),
    ("sluice-provider", &[]),
    (
        "sluice-controller",
        &["sluice-api", "sluice-core", "sluice-policy", "sluice-proto", "sluice-state", "sluice-telemetry"],
    ),
    (
        "sluice-cli",
        &[
            "sluice-agent",
            "sluice-api",
            "sluice-core",
            "sluice-policy",
            "sluice-provider",
            "sluice-state",
            "sluice-telemetry",
        ],
    ),
    ("sluice-testkit", &["sluice-core"]),
];

/// Crates from outside that only some of ours may name.
const RESTRICTED: &[(&str, &[&str])] = &[
    ("redis", &["sluice-state"]),
    ("deadpool-redis", &["sluice-state"]),
    ("mlua", &["sluice-state"]),
    ("kube", &["sluice-api", "sluice-policy", "sluice-controller", "sluice-cli"]),
    ("opentelemetry", &["sluice-telemetry"]),
    ("opentelemetry_sdk", &["sluice-telemetry"]),
    ("opentelemetry-proto", &["sluice-telemetry"]),
    ("tracing-opentelemetry", &["sluice-telemetry"]),
    ("kube-client", &["sluice-controller", "sluice-cli"]),
];

/// Dependencies of each crate of the workspace: (name, only for tests).
fn dependencies() -> BTreeMap<String, Vec<(String, bool)>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let crates = metadata["packages"].as_array().unwrap();
    crates
        .iter()
        .map(|krate| {
            let on = krate["dependencies"].as_array().unwrap().iter();
            let on = on.map(|d| (d["name"].as_str().unwrap().to_owned(), d["kind"] == "dev")).collect();
            (krate["name"].as_str().unwrap().to_owned(), on)
        })
        .collect()
}

#[test]
fn crates_depend_along_the_arrows_only() {
    let dependencies = dependencies();
    let named: Vec<&str> = ARROWS.iter().map(|(name, _)| *name).collect();
    let mut wrong = Vec::new();
    for (krate, on) in &dependencies {
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| name == krate) else {
            panic!("{krate} has no line in ARROWS: write down what it may depend on");
        };
        for (name, dev) in on {
            if !dev && named.contains(&name.as_str()) && !allowed.contains(&name.as_str()) {
                wrong.push(format!("{krate} → {name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "arrows that are not allowed: {wrong:?}");
}

#[test]
fn restricted_crates_stay_where_they_belong() {
    let mut wrong = Vec::new();
    for (krate, on) in &dependencies() {
        for (outside, allowed) in RESTRICTED {
            if on.iter().any(|(name, dev)| !dev && name == outside) && !allowed.contains(&krate.as_str()) {
                wrong.push(format!("{krate} → {outside}"));
            }
        }
    }
    assert!(wrong.is_empty(), "crates that only some of ours may name: {wrong:?}");
}
