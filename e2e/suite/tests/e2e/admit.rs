//! What the API server takes and refuses, with which message, and that `sluice check` says the same without one.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use http::Method;
use serde::Deserialize as _;
use serde_json::{Value, json};
use sluice_api::check::{self, Problem, Resource};
use sluice_e2e::cluster::name;
use sluice_e2e::scene::{Needs, Scene, play};
use sluice_e2e::{command, manifests};

/// Name and text of every file.
fn corpus(folder: &str) -> Result<Vec<(String, String)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests").join(folder);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let file = path.file_name().context("no name")?.to_string_lossy().into_owned();
        files.push((file, std::fs::read_to_string(&path)?));
    }
    files.sort();
    ensure!(!files.is_empty(), "{} is empty", folder.display());
    Ok(files)
}

/// Where kubectl would send an object of this kind.
fn collection(kind: &str) -> &'static str {
    match kind {
        "Secret" => "/api/v1/namespaces/NAMESPACE/secrets",
        "ReliabilityPolicy" => "/apis/sluice.dev/v1alpha1/namespaces/NAMESPACE/reliabilitypolicies",
        // What is no kind at all is sent here too: kubectl, which finds no place for it, would not send it.
        _ => "/apis/sluice.dev/v1alpha1/namespaces/NAMESPACE/modelroutes",
    }
}

/// Sends the text as it is: a client that reads it first drops what it doesn't understand, such as a field that is null.
async fn create(scene: &Scene, kind: &str, yaml: &str, query: &str) -> Result<Value, kube::Error> {
    let path = collection(kind).replace("NAMESPACE", &scene.namespace);
    let path = format!("{path}?fieldValidation=Strict{query}");
    let answer = scene.cluster.request(Method::POST, &path, "application/yaml", yaml).await?;
    serde_json::from_str(&answer).map_err(kube::Error::SerdeError)
}

/// A file may name a namespace; here it is the test's.
fn in_namespace(mut object: Value, namespace: &str) -> Value {
    if object["metadata"]["namespace"].is_string() {
        object["metadata"]["namespace"] = json!(namespace);
    }
    object
}

/// The words of the API server for what `sluice check` says. Rules in CEL have one wording for both.
const WORDINGS: [(&str, &[&str]); 19] = [
    ("must be between", &["should be less than or equal to", "should be greater than or equal to"]),
    ("must be at most", &["should be less than or equal to"]),
    ("must be at least", &["should be greater than or equal to"]),
    ("are allowed", &["Too many", "Too long", "should be at most", "should have at most"]),
    ("is needed", &["should have at least", "should be at least"]),
    ("must be one of", &["Unsupported value"]),
    ("must be of type", &["must be of type"]),
    ("is required", &["Required value", "Object 'Kind' is missing"]),
    ("appears twice", &["Duplicate value"]),
    ("is no known field", &["unknown field"]),
    ("must be a DNS", &["should match", "RFC 1123"]),
    ("must be a", &["should match", "of type"]),
    ("must be an", &["should match"]),
    ("is no YAML", &["yaml: line"]),
    ("duplicate", &["already set in map"]),
    ("has no kind ModelRoute", &["does not match the expected API version"]),
    ("is no kind of sluice.dev", &["must be ModelRoute"]),
    ("is the only version", &["in version \"v1\""]),
    ("is no base64", &["illegal base64"]),
];

/// Whether a refusal is for this problem and says so.
fn says(refusal: &str, problem: &Problem) -> bool {
    let worded = WORDINGS.iter().filter(|(ours, _)| problem.message.contains(ours));
    let mut theirs = worded.flat_map(|(_, theirs)| *theirs);
    let said = refusal.contains(&format!("{}; {}", problem.message, problem.fix))
        || theirs.any(|theirs| refusal.contains(theirs));
    // Of two items with one key the API server names the item, the check its key.
    let field = problem
        .field
        .strip_suffix(".name")
        .filter(|_| problem.message.contains("twice"))
        .unwrap_or(&problem.field);
    // What cannot even be read as an object has no fields.
    let named = !field.starts_with("spec") || refusal.contains(field);
    said && named
}

#[test]
fn admit_refuses_every_bad_manifest_for_the_reason_that_the_check_gives() {
    play(Needs::Resources, async |scene| {
        let mut wrong = Vec::new();
        let files = corpus("bad")?;
        for (file, text) in &files {
            let documents = check::read(file, text);
            let problems: Vec<_> =
                documents.into_iter().filter_map(|document| document.outcome.err()).flatten().collect();
            let [problem] = problems.as_slice() else {
                wrong.push(format!("{file}: the check has {} problems", problems.len()));
                continue;
            };
            let kind = text.lines().find_map(|line| line.strip_prefix("kind: ")).unwrap_or_default();
            match create(scene, kind, text, "&dryRun=All").await {
                Ok(_) => wrong.push(format!("{file}: accepted, though {problem}")),
                Err(kube::Error::Api(status)) if (400..500).contains(&status.code) => {
                    if !says(&status.message, problem) {
                        wrong.push(format!("{file}\n  API server: {}\n  check: {problem}", status.message));
                    }
                }
                Err(error) => return Err(error).with_context(|| file.clone()),
            }
        }
        ensure!(files.len() > 150, "only {} files", files.len());
        ensure!(wrong.is_empty(), "{} of {} files:\n{}", wrong.len(), files.len(), wrong.join("\n"));
        Ok(())
    });
}

#[test]
fn admit_takes_every_good_manifest_and_gives_it_back() {
    play(Needs::Resources, async |scene| {
        for (file, text) in corpus("good")?.into_iter().chain(corpus("quickstart")?) {
            let read = check::read(&file, &text);
            ensure!(read.iter().all(|document| document.outcome.is_ok()), "{file} is not good: {read:?}");
            for document in serde_yaml::Deserializer::from_str(&text) {
                let object = in_namespace(Value::deserialize(document)?, &scene.namespace);
                let kind = object["kind"].as_str().unwrap_or_default().to_owned();
                if ["", "Namespace"].contains(&kind.as_str()) {
                    continue;
                }
                let created = create(scene, &kind, &serde_yaml::to_string(&object)?, "").await;
                let created = created.with_context(|| format!("{file}: {kind}"))?;
                round_trip(scene, &kind, created).await.with_context(|| file.clone())?;
                scene.delete(&kind, object["metadata"]["name"].as_str().unwrap_or_default()).await?;
            }
        }
        Ok(())
    });
}

/// Sluice's own types hold all that the API server keeps: what they write back has every field, with the same meaning.
async fn round_trip(scene: &Scene, kind: &str, created: Value) -> Result<()> {
    let Some(written) = by_type(kind, &created)? else { return Ok(()) };
    let path = collection(kind).replace("NAMESPACE", &scene.namespace);
    let path = format!("{path}/{}?fieldValidation=Strict", name(&created));
    let replaced = scene.cluster.request(Method::PUT, &path, "application/json", written.to_string()).await?;
    let replaced: Value = serde_json::from_str(&replaced)?;
    let same = by_type(kind, &replaced)?.is_some_and(|read| read["spec"] == written["spec"]);
    ensure!(
        same && fields(&replaced["spec"]) == fields(&created["spec"]),
        "{}\n{}",
        created["spec"],
        replaced["spec"]
    );
    Ok(())
}

fn by_type(kind: &str, object: &Value) -> Result<Option<Value>> {
    let object = object.clone();
    Ok(match kind {
        "ModelRoute" => Some(json!(serde_json::from_value::<sluice_api::ModelRoute>(object)?)),
        "ReliabilityPolicy" => Some(json!(serde_json::from_value::<sluice_api::ReliabilityPolicy>(object)?)),
        _ => None,
    })
}

/// Every field's path.
fn fields(value: &Value) -> Vec<String> {
    let of = |key: String, value: &Value| {
        let mut paths: Vec<String> = fields(value).into_iter().map(|path| format!("{key}.{path}")).collect();
        paths.push(key);
        paths
    };
    match value {
        Value::Object(map) => map.iter().flat_map(|(key, value)| of(key.clone(), value)).collect(),
        Value::Array(list) => {
            list.iter().enumerate().flat_map(|(place, value)| of(place.to_string(), value)).collect()
        }
        _ => Vec::new(),
    }
}

#[test]
fn admit_fills_in_defaults_as_the_check_does() {
    play(Needs::Resources, async |scene| {
        for (file, text) in corpus("good")? {
            let documents: Vec<_> =
                serde_yaml::Deserializer::from_str(&text).map(Value::deserialize).collect();
            let objects = documents.into_iter().filter(|object| !matches!(object, Ok(Value::Null)));
            for (object, read) in objects.zip(check::read(&file, &text)) {
                let object = in_namespace(object?, &scene.namespace);
                let offline = match read.outcome {
                    Ok(Resource::Route(route)) => json!(route.spec),
                    Ok(Resource::Policy(policy)) => json!(policy.spec),
                    Ok(Resource::Secret(_) | Resource::Other) => continue,
                    Err(problems) => anyhow::bail!("{file}: {problems:?}"),
                };
                let kind = object["kind"].as_str().unwrap_or_default();
                let created = create(scene, kind, &serde_yaml::to_string(&object)?, "&dryRun=All").await?;
                let online = by_type(kind, &created)?.map(|object| object["spec"].clone());
                ensure!(
                    online.as_ref() == Some(&offline),
                    "{file}\n  API server: {online:?}\n  check: {offline}"
                );
            }
        }
        Ok(())
    });
}

#[test]
fn admit_refuses_a_string_of_300_kb_in_few_words() {
    play(Needs::Resources, async |scene| {
        let long = "x".repeat(300 * 1024);
        let mut in_endpoint = manifests::route("long", &["gpt-4o"]);
        in_endpoint["spec"]["targets"][0]["endpoint"] = json!(format!("https://{long}"));
        let in_models = manifests::route("long", &[&long]);
        for route in [in_endpoint, in_models] {
            let refused = create(scene, "ModelRoute", &route.to_string(), "&dryRun=All").await;
            let Err(kube::Error::Api(status)) = refused else { anyhow::bail!("it was taken") };
            ensure!(
                status.code == 422 && status.message.len() < 2_000,
                "{} characters",
                status.message.len()
            );
            ensure!(status.message.contains("may not be more than"), "{}", status.message);
        }
        Ok(())
    });
}

#[test]
fn admit_kubectl_applies_the_quickstart_and_explains_its_fields() {
    play(Needs::Resources, async |scene| {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../manifests/quickstart");
        let namespace = scene.namespace.as_str();
        for arguments in [
            &["apply", "-n", namespace, "-f", folder][..],
            &["apply", "-n", namespace, "-f", folder],
            &["apply", "-n", namespace, "--server-side", "--force-conflicts", "-f", folder],
        ] {
            command::succeed("kubectl", arguments).await?;
        }
        let listed = command::succeed("kubectl", &["get", "-n", namespace, "modelroutes"]).await?;
        let head: Vec<&str> = listed.lines().next().unwrap_or_default().split_whitespace().collect();
        ensure!(head == ["NAME", "MODELS", "TARGETS", "BREAKER", "AGENTS", "ACCEPTED", "AGE"], "{listed}");
        let both = command::succeed("kubectl", &["get", "-n", namespace, "sluice", "-o", "name"]).await?;
        let kinds = ["modelroute.sluice.dev/chat", "reliabilitypolicy.sluice.dev/quickstart"];
        ensure!(kinds.iter().all(|kind| both.contains(kind)), "the category sluice has {both}");
        let explained =
            command::succeed("kubectl", &["explain", "reliabilitypolicy.spec.breaker.failurePercent"])
                .await?;
        ensure!(explained.contains("<integer>") && explained.contains("DESCRIPTION"), "{explained}");
        Ok(())
    });
}

#[test]
fn admit_keeps_status_to_its_subresource() {
    play(Needs::Resources, async |scene| {
        let mut route = manifests::route("chat", &["gpt-4o"]);
        scene.apply(&route).await?;
        route["status"] = json!({"summary": {"targets": "mine", "breaker": "Closed", "agents": "9/9"}});
        let applied = scene.apply(&route).await?;
        ensure!(applied["status"]["summary"]["targets"] != "mine", "{}", applied["status"]);
        Ok(())
    });
}
