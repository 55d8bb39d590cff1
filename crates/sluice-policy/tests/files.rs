//! A directory as the source: what an edit, a mistake and a deletion do.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;

use sluice_api::check::Resource;
use sluice_policy::files::{Changes, Directory, Memory, SourceFile};
use sluice_policy::index::Key;
use sluice_policy::{Compiled, Index, compile};

fn route(name: &str, model: &str) -> String {
    format!(
        "apiVersion: sluice.dev/v1alpha1
kind: ModelRoute
metadata: {{name: {name}, namespace: ns}}
spec:
  models: [{model}]
  targets:
  - name: primary
    provider: OpenAI
    endpoint: https://one.example/v1
    credential: {{type: SecretRef, secretRef: {{name: keys, key: openai}}}}
"
    )
}

fn policy(attempts: &str) -> String {
    format!(
        "apiVersion: sluice.dev/v1alpha1
kind: ReliabilityPolicy
metadata: {{name: p, namespace: ns}}
spec:
  targetRefs: [{{group: sluice.dev, kind: ModelRoute, name: chat}}]
  retries: {{maxAttempts: {attempts}}}
"
    )
}

fn secret(value: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: keys, namespace: ns}}\nstringData: {{openai: {value}}}\n"
    )
}

fn file(name: &str, text: &str) -> SourceFile {
    SourceFile { name: name.to_owned(), text: Ok(text.to_owned()) }
}

fn names(changes: &Changes) -> (usize, Vec<&str>, Vec<&str>) {
    let held = changes.held.iter().map(|(object, _)| object.name.as_str()).collect();
    let deleted = changes.deleted.iter().map(|object| object.name.as_str()).collect();
    (changes.applied.len(), held, deleted)
}

/// Generation and creation of the routes and policies among the changes.
fn stamps(changes: &Changes) -> Vec<(i64, i64)> {
    let stamp = |resource: &Resource| {
        let meta = match resource {
            Resource::Route(route) => &route.metadata,
            Resource::Policy(policy) => &policy.metadata,
            Resource::Secret(secret) => &secret.metadata,
            Resource::Other => panic!("{resource:?}"),
        };
        assert!(meta.uid.is_some() && meta.resource_version.is_some());
        (meta.generation.unwrap(), meta.creation_timestamp.as_ref().unwrap().0.as_millisecond())
    };
    changes.applied.iter().map(stamp).collect()
}

/// A memory with its index, as `sluice run` has them.
#[derive(Default)]
struct Source {
    memory: Memory,
    index: Index,
}

impl Source {
    fn take(&mut self, files: &[SourceFile], now_ms: u64) -> Changes {
        let changes = self.memory.take(files, now_ms);
        changes.clone().apply_to(&mut self.index, now_ms);
        changes
    }

    fn compiled(&self) -> Compiled {
        compile(&self.index)
    }

    fn attempts(&self, route: &str) -> u32 {
        let compiled = self.compiled();
        let route = compiled.namespaces["ns"].routes.iter().find(|r| &*r.policy.name == route).unwrap();
        route.policy.targets[0].rules.retries.rules.max_attempts
    }
}

#[test]
fn edits_keep_creation_and_raise_the_generation() {
    let mut source = Source::default();
    let first = source.take(&[file("a.yaml", &route("chat", "m")), file("b.yaml", &policy("2"))], 1_000);
    assert_eq!(stamps(&first), [(1, 1_000), (1, 1_000)]);
    assert!(
        source.take(&[file("a.yaml", &route("chat", "m")), file("b.yaml", &policy("2"))], 2_000).is_empty()
    );
    let edit = source.take(&[file("a.yaml", &route("chat", "m")), file("b.yaml", &policy("4"))], 3_000);
    assert_eq!(stamps(&edit), [(2, 1_000)]);
    assert_eq!(source.attempts("chat"), 4);
    // Comments and layout are no edit; another file is no other object.
    let moved = format!("# moved\n{}", policy("4"));
    assert!(source.take(&[file("a.yaml", &route("chat", "m")), file("c.yaml", &moved)], 4_000).is_empty());
    let gone = source.take(&[file("a.yaml", &route("chat", "m"))], 5_000);
    assert_eq!(names(&gone), (0, vec![], vec!["p"]));
    assert_eq!(source.attempts("chat"), 3, "built in");
    let back = source.take(&[file("a.yaml", &route("chat", "m")), file("c.yaml", &moved)], 6_000);
    assert_eq!(stamps(&back), [(1, 6_000)], "another object of the same name");
}

#[test]
fn a_file_that_does_not_parse_holds_all_that_was_read_from_it_and_the_others_apply() {
    let both = format!("{}---\n{}", route("chat", "m"), policy("2"));
    let mut source = Source::default();
    source.take(&[file("a.yaml", &both), file("b.yaml", &route("other", "n"))], 1);
    let broken = [file("a.yaml", "kind: [unclosed"), file("b.yaml", &route("other", "changed"))];
    let changes = source.take(&broken, 2);
    assert_eq!(names(&changes), (1, vec!["chat", "p"], vec![]));
    let problem = changes.problems[0].to_string();
    assert!(problem.starts_with("a.yaml"), "{problem}");
    assert_eq!(source.attempts("chat"), 2, "the last good serves");
    let compiled = source.compiled();
    assert_eq!(compiled.routes[&Key::new("ns", "chat")].accepted.reason, "Invalid");
    let other = compiled.namespaces["ns"].routes.iter().find(|route| &*route.policy.name == "other").unwrap();
    assert_eq!(other.policy.models[0].to_string(), "changed");

    let still = source.take(&broken, 3);
    assert!(still.is_empty() && !still.problems.is_empty(), "told again, but no change");
    let fixed = source.take(&[file("a.yaml", &both), file("b.yaml", &route("other", "changed"))], 4);
    assert_eq!(names(&fixed), (2, vec![], vec![]));
    assert_eq!(stamps(&fixed)[0], (1, 1), "the same content is the same generation");
    assert_eq!(source.compiled().routes[&Key::new("ns", "chat")].accepted.reason, "Accepted");
}

#[test]
fn an_invalid_document_holds_its_object_alone() {
    let mut source = Source::default();
    let with = |attempts: &str| format!("{}---\n{}", policy(attempts), route("chat", "m"));
    source.take(&[file("a.yaml", &with("2"))], 1);
    let changes = source.take(&[file("a.yaml", &with("-1"))], 2);
    assert_eq!(names(&changes), (0, vec!["p"], vec![]));
    assert_eq!(source.attempts("chat"), 2);
    let problem = &changes.problems[0];
    assert_eq!((problem.file.as_str(), problem.field.as_str()), ("a.yaml", "spec.retries.maxAttempts"));
    assert_eq!(problem.value.as_deref(), Some("-1"));
    assert!(!problem.fix.is_empty(), "{problem}");
    let held = &source.compiled().policies[&Key::new("ns", "p")].ancestors[0];
    assert!(held.accepted.message.contains("maxAttempts"), "{}", held.accepted.message);

    // Broken from the beginning, then removed.
    let mut fresh = Source::default();
    let first = fresh.take(&[file("a.yaml", &with("-1"))], 1);
    assert_eq!(names(&first), (1, vec!["p"], vec![]));
    assert_eq!(fresh.compiled().namespaces["ns"].held.len(), 1);
    let removed = fresh.take(&[file("a.yaml", &route("chat", "m"))], 2);
    assert_eq!(names(&removed), (0, vec![], vec!["p"]));
    assert!(fresh.compiled().namespaces["ns"].held.is_empty());
}

#[test]
fn a_mistake_in_the_kind_holds_the_object_and_its_correction_deletes_nothing_else() {
    let mut source = Source::default();
    // A Secret of the same name: whatever is done to the unknown kind must not be done to it.
    let keys = file("keys.yaml", &secret("sk-1"));
    let written = route("keys", "gpt-4o");
    source.take(&[keys.clone(), file("route.yaml", &written)], 1);

    let mistaken = written.replace("kind: ModelRoute", "kind: ModelRout");
    let changes = source.take(&[keys.clone(), file("route.yaml", &mistaken)], 2);
    assert_eq!(names(&changes), (0, vec!["keys"], vec![]));
    assert_eq!(changes.held[0].0.kind, "ModelRoute");
    assert!(changes.problems[0].to_string().contains("did you mean ModelRoute?"), "{}", changes.problems[0]);

    let changes = source.take(&[keys, file("route.yaml", &written)], 3);
    assert_eq!(names(&changes), (1, vec![], vec![]));
    assert!(changes.problems.is_empty());
}

#[test]
fn the_first_of_two_definitions_counts() {
    let mut source = Source::default();
    let twice = [file("a.yaml", &route("chat", "m")), file("b.yaml", &route("chat", "n"))];
    let changes = source.take(&twice, 1);
    assert_eq!(changes.applied.len(), 1);
    let problem = changes.problems[0].to_string();
    assert!(problem.starts_with("b.yaml") && problem.contains("already defined at a.yaml:"), "{problem}");
    let models = &source.compiled().namespaces["ns"].routes[0].policy.models;
    assert_eq!(models[0].to_string(), "m");
    assert_eq!(stamps(&source.take(&twice[1..], 2)), [(2, 1)], "when the first goes, the second is an edit");
}

#[test]
fn secrets_rotate_by_version_and_are_not_kept_as_text() {
    let mut source = Source::default();
    let files = |value: &str| [file("a.yaml", &route("chat", "m")), file("s.yaml", &secret(value))];
    source.take(&files("sk-first"), 1);
    let version = |source: &Source| {
        let compiled = source.compiled();
        let (_, version) = compiled.namespaces["ns"].secrets.first_key_value().unwrap();
        (version.resource_version.to_string(), version.value.expose().to_vec())
    };
    assert_eq!(version(&source), ("1".to_owned(), b"sk-first".to_vec()));
    assert_eq!(source.take(&files("sk-second"), 2).applied.len(), 1);
    assert_eq!(version(&source), ("2".to_owned(), b"sk-second".to_vec()));
    assert!(!format!("{:?}", source.memory).contains("sk-"));
    let changes = source.take(&files("sk-second")[..1], 3);
    assert_eq!(names(&changes), (0, vec![], vec!["keys"]));
    assert!(source.compiled().namespaces["ns"].secrets.is_empty());
}

fn write(directory: &Path, name: &str, text: &str) {
    std::fs::write(directory.join(name), text).unwrap();
}

#[test]
fn a_directory_is_read_by_name_and_a_missing_one_changes_nothing() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("manifests");
    std::fs::create_dir(&path).unwrap();
    write(&path, "a.yaml", &route("chat", "m"));
    write(&path, "b.yml", &policy("2"));
    write(&path, "notes.txt", "kind: [unclosed");
    std::fs::create_dir(path.join("c.yaml")).unwrap();
    let mut directory = Directory::new(path.clone());
    let first = directory.reload(1).unwrap();
    assert_eq!(names(&first), (2, vec![], vec![]));
    assert!(first.problems.is_empty(), "{:?}", first.problems);

    std::fs::write(path.join("b.yml"), [0xff, 0xfe]).unwrap();
    let unreadable = directory.reload(2).unwrap();
    assert_eq!(names(&unreadable), (0, vec!["p"], vec![]));
    assert!(unreadable.problems[0].file.ends_with("b.yml"));

    // A pipe's reader would wait for ever; a socket stands in for it, as std can make one.
    let _socket = std::os::unix::net::UnixListener::bind(path.join("d.yaml")).unwrap();
    let odd = directory.reload(2).unwrap();
    assert!(odd.problems[1].to_string().contains("d.yaml: is no regular file"), "{}", odd.problems[1]);
    std::fs::remove_file(path.join("d.yaml")).unwrap();

    let aside = place.path().join("aside");
    std::fs::rename(&path, &aside).unwrap();
    let error = directory.reload(3).unwrap_err().to_string();
    assert!(error.contains("manifests") && error.contains("check that it exists"), "{error}");
    std::fs::rename(&aside, &path).unwrap();
    std::fs::remove_file(path.join("b.yml")).unwrap();
    assert_eq!(names(&directory.reload(4).unwrap()), (0, vec![], vec!["p"]));
}

/// `> chat.yaml` empties the file long before something writes it.
#[test]
fn an_emptied_file_holds_what_it_had() {
    let mut memory = Memory::default();
    let two = format!("{}---\n{}", route("chat", "gpt-4o"), secret("sk-1"));
    memory.take(&[file("a.yaml", &two)], 1_000);
    for empty in ["", "\n \n"] {
        let changes = memory.take(&[file("a.yaml", empty)], 2_000);
        assert!(changes.applied.is_empty() && changes.deleted.is_empty(), "{changes:?}");
        assert!(changes.problems[0].to_string().starts_with("a.yaml: is empty"), "{:?}", changes.problems);
    }
    let changes = memory.take(&[file("a.yaml", &two)], 3_000);
    assert!(changes.deleted.is_empty() && changes.problems.is_empty(), "{changes:?}");
    // Words that are none of an object's say that it is meant.
    let changes = memory.take(&[file("a.yaml", "# nothing any more\n")], 4_000);
    assert_eq!(names(&changes), (0, vec![], vec!["chat", "keys"]));
    let changes = memory.take(&[file("a.yaml", "")], 5_000);
    assert!(changes.problems.is_empty(), "a file that never had any may be empty: {changes:?}");
}

/// A mistake in an object's group, version or kind makes it no stranger, and so no deletion.
#[test]
fn a_typo_in_group_or_kind_deletes_nothing() {
    for (of, right, wrong) in [
        ("route", "sluice.dev/v1alpha1", "sluice.devv/v1"),
        ("route", "sluice.dev/v1alpha1", "sluice.io/v1alpha1"),
        ("route", "sluice.dev/v1alpha1", "slice.dev/v1alpha1"),
        ("route", "sluice.dev/v1alpha1", "networking.example.com/v1"),
        ("route", "sluice.dev/v1alpha1", "v1"),
        ("route", "sluice.dev/v1alpha1", "sluice.dev"),
        ("route", "sluice.dev/v1alpha1", "sluice.dev/v1"),
        ("route", "kind: ModelRoute", "kind: ModelRout"),
        ("route", "apiVersion: sluice.dev/v1alpha1", "apiversion: sluice.dev/v1alpha1"),
        ("route", "v1alpha1\nkind: ModelRoute", "v1\nkind: modelroute"),
        ("route", "sluice.dev/v1alpha1\nkind: ModelRoute", "sluice.devv/v1alpha1\nkind: ModelRout"),
        ("policy", "sluice.dev/v1alpha1", "sluice.devv/v1"),
        ("policy", "kind: ReliabilityPolicy", "kind: ReliabiltyPolicy"),
        ("secret", "apiVersion: v1", "apiVersion: v2"),
        ("secret", "apiVersion: v1", "apiVersion: V1"),
        ("secret", "kind: Secret", "kind: secret"),
        ("secret", "kind: Secret", "kind: Secrets"),
    ] {
        let good = match of {
            "route" => route("chat", "gpt-4o"),
            "policy" => policy("2"),
            _ => secret("one"),
        };
        let bad = good.replace(right, wrong);
        assert_ne!(good, bad, "{wrong}");
        let mut memory = Memory::default();
        assert_eq!(names(&memory.take(&[file("a.yaml", &good)], 1)).0, 1);
        let changes = memory.take(&[file("a.yaml", &bad)], 2);
        let (applied, held, deleted) = names(&changes);
        assert_eq!((applied, held.len(), deleted.len()), (0, 1, 0), "{wrong}: {:?}", changes.problems);
        assert!(!changes.problems.is_empty(), "{wrong}");
        // Corrected, it is what it was.
        assert!(memory.take(&[file("a.yaml", &good)], 3).problems.is_empty());
    }
    // What is not ours is not ours to judge.
    let other = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: chat}\n";
    let changes = Memory::default().take(&[file("a.yaml", other)], 1);
    assert!(changes.problems.is_empty() && changes.is_empty(), "{:?}", changes.problems);
}
