//! The corpus of manifests in `e2e/manifests`, against the offline check. The same files are applied to an
//! API server by the suite for a real cluster.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;
use sluice_api::check::{self, Manifests, Problem, Resource};
use sluice_api::crd::Kind;

fn manifests(folder: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e/manifests").join(folder);
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", root.display());
    paths
        .into_iter()
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect()
}

fn problems(file: &str, text: &str) -> Vec<Problem> {
    check::read(file, text).into_iter().filter_map(|document| document.outcome.err()).flatten().collect()
}

/// The rest of the comment line `# name: …`.
fn expectation<'a>(text: &'a str, name: &str) -> &'a str {
    let prefix = format!("# {name}: ");
    text.lines()
        .find_map(
            |line| if line.trim_end() == prefix.trim_end() { Some("") } else { line.strip_prefix(&prefix) },
        )
        .unwrap_or_else(|| panic!("no `# {name}:` line in\n{text}"))
}

#[test]
fn good_manifests_pass_and_survive_a_round_trip() {
    for (file, text) in manifests("good").into_iter().chain(manifests("quickstart")) {
        for document in check::read(&file, &text) {
            let resource = document.outcome.unwrap_or_else(|problems| {
                panic!("{}", problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
            });
            let (value, name) = match &resource {
                Resource::Route(route) => (serde_json::to_value(route).unwrap(), route.metadata.name.clone()),
                Resource::Policy(policy) => {
                    (serde_json::to_value(policy).unwrap(), policy.metadata.name.clone())
                }
                Resource::Secret(_) | Resource::Other => continue,
            };
            let again =
                check::read(&file, &serde_yaml::to_string(&value).unwrap()).remove(0).outcome.unwrap();
            match (&resource, &again) {
                (Resource::Route(one), Resource::Route(two)) => assert_eq!(one, two, "{file} {name:?}"),
                (Resource::Policy(one), Resource::Policy(two)) => assert_eq!(one, two, "{file} {name:?}"),
                _ => panic!("{file} {name:?} changed its kind"),
            }
        }
    }
}

#[test]
fn every_bad_manifest_is_refused_for_its_reason_alone() {
    for (file, text) in manifests("bad") {
        let found = problems(&file, &text);
        let [problem] = found.as_slice() else {
            panic!("{file} has {} problems: {found:#?}", found.len());
        };
        assert_eq!(problem.field, expectation(&text, "field"), "{problem}");
        let message = expectation(&text, "message");
        assert!(problem.message.contains(message), "{problem}\nshould say {message:?}");
        assert!(!problem.fix.is_empty(), "{problem} names no fix");
        let line = problem.line.unwrap_or_else(|| panic!("{problem} names no line"));
        let shown = text.lines().nth(line - 1).unwrap_or_else(|| panic!("{problem}: the file is shorter"));
        // the field itself, or what is around it where the field is absent
        let mut names = problem.field.rsplit('.').map(|name| name.split('[').next().unwrap());
        let near =
            names.by_ref().take(2).any(|name| shown.contains(name)) || problem.message == "is required";
        assert!(near, "{problem} points at {shown:?}");
    }
}

#[test]
fn no_secret_is_shown() {
    for (file, text) in manifests("bad") {
        for problem in problems(&file, &text) {
            let rendered = format!("{problem} {problem:?}");
            for secret in ["do-not-show-me", "1234567890", "user:pass", "key=1"] {
                assert!(!rendered.contains(secret), "{rendered}");
            }
        }
    }
}

/// Calls `visit` with every schema in the spec and its path.
fn walk(path: &str, schema: &Value, visit: &mut impl FnMut(&str, &Value)) {
    visit(path, schema);
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        walk(&format!("{path}.{name}"), child, visit);
    }
    if schema["items"].is_object() {
        walk(&format!("{path}[]"), &schema["items"], visit);
    }
}

fn walk_specs(mut visit: impl FnMut(&str, &Value)) {
    for kind in Kind::ALL {
        walk("spec", &kind.schema()["properties"]["spec"], &mut visit);
    }
}

fn without_indices(field: &str) -> String {
    let mut out = String::new();
    for (index, piece) in field.split('[').enumerate() {
        if index > 0 {
            out.push_str("[]");
        }
        out.push_str(piece.split_once(']').map_or(piece, |(_, rest)| rest));
    }
    out
}

#[test]
fn every_rule_has_a_bad_manifest() {
    let mut unproven = BTreeSet::new();
    walk_specs(|path, schema| {
        for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
            let field = rule["fieldPath"].as_str().unwrap_or_default();
            unproven.insert((format!("{path}{field}"), rule["message"].as_str().unwrap().to_owned()));
        }
    });
    assert!(unproven.len() > 60, "only {} rules found", unproven.len());
    for (file, text) in manifests("bad") {
        for problem in problems(&file, &text) {
            unproven
                .remove(&(without_indices(&problem.field), format!("{}; {}", problem.message, problem.fix)));
        }
    }
    assert!(unproven.is_empty(), "no bad manifest for {unproven:#?}");
}

#[test]
fn every_kind_of_bound_has_a_bad_manifest() {
    let fragments = [
        ("type", "must be of type"),
        ("required", "is required"),
        ("enum", "must be one of"),
        ("pattern", "must be a"),
        ("minimum", "must be between"),
        ("minItems", "items, at least"),
        ("maxItems", "items, at most"),
        ("minLength", "characters, at least"),
        ("maxLength", "characters, at most"),
        ("maxProperties", "entries, at most"),
        ("x-kubernetes-list-type", "appears twice"),
    ];
    let messages: Vec<String> = manifests("bad")
        .iter()
        .flat_map(|(file, text)| problems(file, text))
        .map(|problem| problem.message)
        .collect();
    walk_specs(|path, schema| {
        for keyword in schema.as_object().into_iter().flatten().map(|(keyword, _)| keyword.as_str()) {
            if let Some((_, fragment)) = fragments.iter().find(|(name, _)| *name == keyword) {
                assert!(messages.iter().any(|message| message.contains(fragment)), "{path}: {keyword}");
            }
        }
    });
}

#[test]
fn a_string_of_300_kb_is_refused_in_a_short_message() {
    let long = "x".repeat(300 * 1024);
    for text in [
        format!("{{name: a, provider: OpenAI, endpoint: 'https://{long}', credential: {{type: None}}}}"),
        format!("{{name: '{long}', provider: OpenAI, endpoint: 'https://a', credential: {{type: None}}}}"),
        format!("{{name: a, provider: '{long}', endpoint: 'https://a', credential: {{type: None}}}}"),
        format!(
            "{{name: a, provider: OpenAI, endpoint: 'https://a', credential: {{type: None}}, {long}: 1}}"
        ),
    ] {
        let manifest = format!(
            "apiVersion: sluice.dev/v1alpha1\nkind: ModelRoute\nmetadata: {{name: chat}}\nspec: {{models: [a], targets: [{text}]}}\n"
        );
        let found = problems("long.yaml", &manifest);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].to_string().len() < 600, "{}", found[0]);
    }
}

#[test]
fn hostile_sizes_end_soon_and_in_few_words() {
    let head = "apiVersion: sluice.dev/v1alpha1\nkind: ModelRoute\nmetadata: {name: chat}\n";
    let many = (0..20_000).map(|index| format!("  unknown{index}: 1")).collect::<Vec<_>>().join("\n");
    let found = problems("many.yaml", &format!("{head}spec:\n{many}"));
    assert_eq!(found.len(), check::MAX_PROBLEMS + 1);
    assert!(found[check::MAX_PROBLEMS].message.contains("more problems"), "{}", found[check::MAX_PROBLEMS]);

    let found = problems(
        "list.yaml",
        &format!("{head}spec:\n  targets: []\n  models:\n{}", "  - a\n".repeat(100_000)),
    );
    assert!(found.len() <= 3, "{found:?}");

    // nine levels of nine aliases each
    let level = |level: usize| {
        let item = if level == 0 { "x".to_owned() } else { format!("*a{}", level - 1) };
        format!("a{level}: &a{level} [{}]", [item.as_str(); 9].join(", "))
    };
    let laughs = (0..9).map(level).collect::<Vec<_>>().join("\n");
    assert!(problems("laughs.yaml", &laughs)[0].message.contains("is no YAML"));

    let large = " ".repeat(check::MAX_TEXT_BYTES + 1);
    assert!(problems("large.yaml", &large)[0].message.contains("at most"));
}

#[test]
fn a_broken_document_holds_only_itself() {
    let good = "apiVersion: sluice.dev/v1alpha1\nkind: ModelRoute\nmetadata: {name: NAME}\nspec:\n  models: [NAME]\n  targets:\n  - {name: a, provider: OpenAI, endpoint: 'https://a', credential: {type: None}}\n";
    let text = format!(
        "{}---\n{}---\nmetadata: {{ [\n---\n{}",
        good.replace("NAME", "first"),
        good.replace("NAME", "second").replace("OpenAI", "Nobody"),
        good.replace("NAME", "third"),
    );
    let manifests = Manifests::read([("all.yaml", text.as_str())]);
    let names: Vec<_> =
        manifests.routes.iter().map(|route| route.metadata.name.as_deref().unwrap()).collect();
    assert_eq!(names, ["first", "third"]);
    let broken: Vec<_> = manifests.broken.iter().map(ToString::to_string).collect();
    assert_eq!(broken, ["ModelRoute/second"]);
    let lines: Vec<_> = manifests.problems.iter().map(|problem| problem.line.unwrap()).collect();
    assert_eq!(lines[0], 15, "{}", manifests.problems[0]);
    assert!((17..=19).contains(&lines[1]), "{}", manifests.problems[1]);
    assert_eq!(manifests.problems.len(), 2);
}

#[test]
fn an_object_that_appears_twice_is_a_problem_of_the_second() {
    let (_, text) = manifests("good").into_iter().find(|(file, _)| file == "route-minimal.yaml").unwrap();
    let manifests = Manifests::read([("a.yaml", text.as_str()), ("b.yaml", text.as_str())]);
    assert_eq!(manifests.routes.len(), 1);
    let [problem] = manifests.problems.as_slice() else { panic!("{:?}", manifests.problems) };
    assert_eq!(problem.file, "b.yaml");
    assert!(problem.message.contains("a.yaml:"), "{problem}");
}

#[test]
fn other_kinds_lists_nulls_and_secrets_are_read() {
    let (file, text) = manifests("good").into_iter().find(|(file, _)| file == "others.yaml").unwrap();
    let read = Manifests::read([(file.as_str(), text.as_str())]);
    assert_eq!(read.problems, []);
    assert_eq!(read.ignored.iter().map(ToString::to_string).collect::<Vec<_>>(), ["Namespace/default"]);
    let data = read.secrets[0].data.as_ref().unwrap();
    let text = |key: &str| String::from_utf8(data[key].0.clone()).unwrap();
    assert_eq!((text("api-key").as_str(), text("organization").as_str()), ("not-a-real-key", "org-1"));
    assert_eq!(read.routes[0].spec.targets[0].model, None);
    assert_eq!(read.routes[0].metadata.namespace.as_deref(), Some("default"));

    let list = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata: {name: a}\n- apiVersion: sluice.dev/v1alpha1\n  kind: ModelRoute\n  metadata: {name: b}\n  spec: {models: [x]}\n";
    let [problem] = problems("list.yaml", list).try_into().unwrap();
    assert_eq!((problem.field.as_str(), problem.line), ("items[1].spec.targets", Some(10)));
}

#[test]
fn problems_are_rendered_in_one_line() {
    let (file, text) = manifests("bad")
        .into_iter()
        .find(|(file, _)| file == "policy-deadlines-stall-over-total.yaml")
        .unwrap();
    assert_eq!(
        problems(&file, &text)[0].to_string(),
        "policy-deadlines-stall-over-total.yaml:10: ReliabilityPolicy/chat: spec.deadlines.stall: \"90s\": stall must not be \
         longer than total — set a shorter stall or a longer total"
    );
}

#[test]
fn zeros_stay_zeros() {
    let (file, text) = manifests("good").into_iter().find(|(file, _)| file == "policy-zeros.yaml").unwrap();
    let policy = Manifests::read([(file.as_str(), text.as_str())]).policies.remove(0).spec;
    let quota = policy.quota.unwrap();
    assert_eq!(
        (quota.tokens_per_minute, quota.requests_per_minute, quota.burst_tokens),
        (Some(0), Some(0), Some(0))
    );
    assert_eq!(policy.queue.unwrap().lanes[0].share_percent, Some(0));
    assert_eq!(policy.task_budget.unwrap().max_steps, Some(0));
    assert_eq!(policy.deadlines, None, "an absent group stays absent");
}

#[test]
fn quickstart_is_what_the_documentation_says() {
    let files = manifests("quickstart");
    let read = Manifests::read(files.iter().map(|(file, text)| (file.as_str(), text.as_str())));
    assert_eq!(read.problems, []);
    let routes: BTreeMap<_, _> =
        read.routes.iter().map(|route| (route.metadata.name.as_deref().unwrap(), &route.spec)).collect();
    for name in ["chat", "claude"] {
        let targets: Vec<_> = routes[name]
            .targets
            .iter()
            .map(|target| (target.name.as_str(), target.endpoint.as_str(), target.priority))
            .collect();
        assert_eq!(
            targets,
            [("primary", "http://127.0.0.1:9001/v1", 0), ("fallback", "http://127.0.0.1:9002/v1", 1)]
        );
    }
}
