//! What is kept of a test that failed: objects, events and logs, in `target/failures/TEST`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, LogParams};
use serde_json::Value;

use crate::cluster::{Cluster, name};

const KINDS: [&str; 11] = [
    "Pod",
    "Deployment",
    "Job",
    "Service",
    "EndpointSlice",
    "ConfigMap",
    "Lease",
    "Event",
    "ModelRoute",
    "ReliabilityPolicy",
    "ReplicaSet",
];
const LOG_LINES: i64 = 3_000;

/// Where it is kept.
pub fn folder(test: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/failures").join(test)
}

/// How long a test took, with what it put right afterwards, into `target/durations.tsv`.
///
/// # Errors
/// When the file can't be written.
pub fn note_duration(test: &str, took: Duration) -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/durations.tsv");
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
    writeln!(file, "{:.1}\t{test}", took.as_secs_f64())?;
    Ok(())
}

/// Writes down everything of these namespaces. Values of Secrets are left where they are.
///
/// # Errors
/// When the folder can't be written.
pub async fn keep(cluster: &Cluster, test: &str, namespaces: &[&str], why: &str) -> Result<PathBuf> {
    let folder = folder(test);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("failure.txt"), why)?;
    for namespace in namespaces {
        for kind in KINDS {
            // What can't be had is not worth another failure.
            let Ok(mut objects) = cluster.list(namespace, kind, "").await else { continue };
            objects.iter_mut().for_each(without_noise);
            if !objects.is_empty() {
                let text = serde_yaml::to_string(&objects)?;
                std::fs::write(folder.join(format!("{namespace}.{}.yaml", kind.to_lowercase())), text)?;
            }
        }
        logs(cluster, namespace, &folder).await?;
    }
    Ok(folder)
}

fn without_noise(object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
}

async fn logs(cluster: &Cluster, namespace: &str, folder: &Path) -> Result<()> {
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    for pod in cluster.list(namespace, "Pod", "").await.unwrap_or_default() {
        let containers = ["initContainers", "containers"].map(|list| pod["spec"][list].as_array().cloned());
        for container in containers.into_iter().flatten().flatten() {
            let container = container["name"].as_str().unwrap_or_default().to_owned();
            for previous in [false, true] {
                let params = LogParams {
                    container: Some(container.clone()),
                    previous,
                    tail_lines: Some(LOG_LINES),
                    timestamps: true,
                    ..LogParams::default()
                };
                let Ok(text) = api.logs(name(&pod), &params).await else { continue };
                let run = if previous { ".previous" } else { "" };
                std::fs::write(
                    folder.join(format!("{namespace}.{}.{container}{run}.log", name(&pod))),
                    text,
                )?;
            }
        }
    }
    Ok(())
}
