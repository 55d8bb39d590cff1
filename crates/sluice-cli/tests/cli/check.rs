//! `sluice check`.

use std::process::{Output, Stdio};

use tokio::io::AsyncWriteExt as _;

use crate::command::{output, sluice};
use crate::manifests::{Manifests, repository};

const SECRET: &str = "apiVersion: v1
kind: Secret
metadata: {name: openai}
stringData: {api-key: sk-very-secret, other: [sk-very-secret]}
";

async fn check(paths: &[&str]) -> (Option<i32>, String, String) {
    told(output(sluice().arg("check").args(paths)).await)
}

fn told(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// The manifests of a directory of the corpus.
fn corpus(directory: &str) -> Vec<String> {
    let files = std::fs::read_dir(repository("e2e/manifests").join(directory)).unwrap();
    let mut files: Vec<String> =
        files.map(|file| file.unwrap().path().to_str().unwrap().to_owned()).collect();
    files.sort();
    files
}

#[tokio::test]
async fn good_manifests_pass() {
    // Alone, as some of them define the same object.
    for file in corpus("good") {
        let (status, out, err) = check(&[&file]).await;
        assert_eq!((status, out.as_str()), (Some(0), ""), "{err}");
        assert!(err.contains("0 problems"), "{err}");
    }
    let quickstart = repository("e2e/manifests/quickstart");
    assert_eq!(check(&[quickstart.to_str().unwrap()]).await.0, Some(0));
}

#[tokio::test]
async fn what_is_no_regular_file_is_not_waited_for() {
    let place = tempfile::tempdir().unwrap();
    // As a pipe without a writer, which std cannot make.
    let _socket = std::os::unix::net::UnixListener::bind(place.path().join("a.yaml")).unwrap();
    let (status, out, _) = check(&[place.path().to_str().unwrap()]).await;
    assert_eq!(status, Some(1), "{out}");
    assert!(out.contains("a.yaml: cannot be read: it is no regular file"), "{out}");
}

#[tokio::test]
async fn each_bad_manifest_is_told_with_file_line_field_and_fix() {
    let files = corpus("bad");
    assert!(files.len() > 100, "the corpus is there: {}", files.len());
    let (status, out, _) = check(&files.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(status, Some(1));
    for file in &files {
        let told: Vec<&str> = out.lines().filter_map(|line| line.strip_prefix(&format!("{file}:"))).collect();
        assert!(!told.is_empty(), "nothing is said of {file}");
        for line in told {
            let place = line.split(':').next().unwrap();
            assert!(place.parse::<usize>().is_ok_and(|line| line > 0), "no line: {file}: {line}");
            let (wrong, fix) = line.split_once(" — ").unwrap_or_else(|| panic!("no fix: {file}: {line}"));
            assert!(!fix.is_empty(), "{file}: {line}");
            // A text that is no YAML has no fields.
            let fields = ["spec", "kind", "apiVersion", "metadata", "data", "stringData"];
            let field = fields.iter().any(|field| wrong.contains(&format!(": {field}")));
            assert!(field || wrong.contains("is no YAML"), "no field: {file}: {line}");
        }
    }
    assert!(out.lines().all(|line| files.iter().any(|file| line.starts_with(file.as_str()))), "{out}");
}

#[tokio::test]
async fn one_bad_manifest_fails() {
    for name in ["document-not-yaml", "policy-mode-unknown", "route-models-empty", "secret-not-base64"] {
        let path = repository("e2e/manifests/bad").join(format!("{name}.yaml"));
        let (status, out, err) = check(&[path.to_str().unwrap()]).await;
        assert_eq!((status, out.lines().count()), (Some(1), 1), "{out}{err}");
    }
}

#[tokio::test]
async fn a_problem_shows_the_value() {
    let path = repository("e2e/manifests/bad/route-target-provider-unknown.yaml");
    let (_, out, _) = check(&[path.to_str().unwrap()]).await;
    assert!(
        out.contains(":11: ModelRoute/chat: spec.targets[0].provider: \"Openai\": ")
            && out.contains("did you mean OpenAI?"),
        "{out}"
    );
}

#[tokio::test]
async fn standard_input_is_read() {
    for (text, status) in
        [("", 0), ("apiVersion: sluice.dev/v1alpha1\nkind: ModelRoute\nmetadata: {name: a}\n", 1)]
    {
        let mut command = sluice();
        let command =
            command.args(["check", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(text.as_bytes()).await.unwrap();
        drop(input);
        let (code, out, err) = told(child.wait_with_output().await.unwrap());
        assert_eq!(code, Some(status), "{out}{err}");
        assert_eq!(out.contains("ModelRoute/a: spec: is required"), status == 1, "{out}");
    }
}

#[tokio::test]
async fn what_cannot_be_read_is_a_problem_and_the_rest_is_checked() {
    let manifests = Manifests::empty();
    let path = manifests.path();
    let (status, out, _) = check(&[path.to_str().unwrap()]).await;
    assert!(status == Some(1) && out.contains("has no *.yaml or *.yml"), "{out}");

    std::os::unix::fs::symlink("nowhere", path.join("a.yaml")).unwrap();
    std::fs::write(path.join("b.yaml"), b"\xff\xfe").unwrap();
    manifests.write("c.yaml", "apiVersion: sluice.dev/v1alpha1\nkind: Route\nmetadata: {name: c}\n");
    let (status, out, err) = check(&["nowhere.yaml", path.to_str().unwrap()]).await;
    assert_eq!(status, Some(1));
    let files: Vec<&str> = out.lines().map(|line| line.split(": ").next().unwrap()).collect();
    let named = |name: &str| files.iter().any(|file| file.contains(name));
    assert!(
        files.len() == 4 && named("nowhere.yaml") && named("a.yaml") && named("b.yaml") && named("c.yaml"),
        "{out}"
    );
    assert!(out.lines().all(|line| line.contains(" — ")) && err.contains("4 problems"), "{out}{err}");
}

#[tokio::test]
async fn a_secret_is_never_shown() {
    let manifests = Manifests::empty();
    manifests.write("secret.yaml", SECRET);
    manifests.write("broken.yaml", &SECRET.replace("openai}", "openai"));
    let (status, out, err) = check(&[manifests.path().to_str().unwrap()]).await;
    assert_eq!((status, out.lines().count()), (Some(1), 2), "{out}{err}");
    assert!(out.contains("Secret/openai: stringData.other: must be a string"), "{out}");
    assert!(!format!("{out}{err}").contains("very-secret"), "{out}{err}");
}

#[tokio::test]
async fn a_policy_for_what_is_not_there_is_a_warning() {
    let manifests = Manifests::quickstart();
    let policy = |name: &str, route: &str, section: &str| {
        format!(
            "apiVersion: sluice.dev/v1alpha1\nkind: ReliabilityPolicy\nmetadata: {{name: {name}}}\nspec:\n  targetRefs: [{{group: sluice.dev, kind: ModelRoute, name: {route}{section}}}]\n  retries: {{maxAttempts: 2}}\n"
        )
    };
    let route =
        "apiVersion: sluice.dev/v1alpha1\nkind: ModelRoute\nmetadata: {name: broken}\nspec: {model: a}\n";
    manifests.write("z1.yaml", &policy("one", "chatt", ""));
    manifests.write("z2.yaml", &policy("two", "chat", ", sectionName: primry"));
    manifests.write("z3.yaml", &policy("three", "nobody-knows", ""));
    manifests.write("z4.yaml", &policy("fine", "chat", ", sectionName: primary"));
    let path = manifests.path();
    let (status, out, err) = check(&[path.to_str().unwrap()]).await;
    assert_eq!((status, out.as_str()), (Some(0), ""), "{err}");
    let warnings: Vec<&str> = err.lines().filter(|line| line.starts_with("Warning: ")).collect();
    let expected = [
        ("z1.yaml:1: ReliabilityPolicy/one: spec.targetRefs[0].name", "did you mean chat?"),
        ("z2.yaml:1: ReliabilityPolicy/two: spec.targetRefs[0].sectionName", "did you mean primary?"),
        ("z3.yaml:1: ReliabilityPolicy/three: spec.targetRefs[0].name", "name another, or apply it too"),
    ];
    assert_eq!(warnings.len(), expected.len(), "{err}");
    for (warning, (place, fix)) in warnings.iter().zip(expected) {
        assert!(warning.contains(place) && warning.contains(fix), "{warning}");
    }
    // A route that is there and broken has a problem of its own.
    manifests.write("z3.yaml", &(policy("three", "broken", "") + "---\n" + route));
    let (status, _, err) = check(&[path.to_str().unwrap()]).await;
    assert_eq!(status, Some(1));
    assert!(!err.contains("ReliabilityPolicy/three"), "{err}");
    let help = told(output(sluice().args(["check", "--help"])).await).1;
    assert!(help.contains("is a warning"), "{help}");
}
