//! Documents of a file: splitting, naming, and what each of them is.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize as _;
use serde_json::Value;

use super::locate::line_of;
use super::nearest::nearest;
use super::problem::{QUOTED, cut, shown};
use super::schema::{self, Violation};
use super::{Document, MAX_PROBLEMS, ObjectName, Problem, Resource, secret};
use crate::crd::Kind;
use crate::rule::bounds;
use crate::{API_VERSION, GROUP, VERSION};

/// A document's text and where it begins.
#[derive(Debug)]
pub(super) struct Part {
    /// From 1.
    line: usize,
    text: String,
}

/// Cuts a text at its document markers, which YAML allows in the first column only. Done here and not by
/// the parser, which stops for good at the first syntax error.
pub(super) fn split(text: &str) -> Vec<Part> {
    let mut parts = vec![Part { line: 1, text: String::new() }];
    for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let marker = |marker: &str| {
            line.strip_prefix(marker).filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r']))
        };
        if let Some(rest) = marker("---").or_else(|| marker("...")) {
            // What follows on the marker's line is the document's; its column stays as it was.
            parts.push(Part { line: index + 1, text: format!("   {rest}\n") });
        } else if let Some(part) = parts.last_mut() {
            part.text.push_str(line);
            part.text.push('\n');
        }
    }
    parts
}

/// Reads one document; a `List` gives one per item, an empty document none.
pub(super) fn read(file: &str, part: &Part) -> Vec<Document> {
    let value = match parse(&part.text) {
        Ok(Value::Null) => return Vec::new(),
        Ok(value) => value,
        Err((line, message)) => {
            let problem = Problem {
                message,
                fix: "correct the YAML at this line".to_owned(),
                ..Problem::of_file(file, Some(part.line + line))
            };
            return vec![Document { line: part.line, object: None, outcome: Err(vec![problem]) }];
        }
    };
    if value["kind"] == "List" && value["apiVersion"] == "v1" {
        let items = value["items"].as_array().cloned().unwrap_or_default();
        let path = |index: usize| format!("items[{index}].");
        return items.into_iter().enumerate().map(|(i, item)| one(file, part, &path(i), &item)).collect();
    }
    vec![one(file, part, "", &value)]
}

/// The line, from 0, where a document goes deeper than anyone writes. Found before parsing: the parser's time grows
/// with the square of the depth, and only then it refuses what is deeper than 128.
///
/// Brackets in texts and comments count as well, since telling them apart is the parser's work; a text would need a
/// thousand that are not closed.
fn too_deep(text: &str) -> Option<usize> {
    const MOST: usize = 1_000;
    let mut depth = 0_usize;
    for (number, line) in text.lines().enumerate() {
        for byte in line.bytes() {
            match byte {
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth > MOST {
                return Some(number);
            }
        }
        // A line can also begin a list in a list in a list.
        let begins = line.split_ascii_whitespace().take_while(|word| ["-", "?", ":"].contains(word)).count();
        if begins > MOST {
            return Some(number);
        }
    }
    None
}

/// YAML to JSON; on failure the line from 0 and a message.
fn parse(text: &str) -> Result<Value, (usize, String)> {
    if let Some(line) = too_deep(text) {
        return Err((line, "is nested deeper than 128 levels".to_owned()));
    }
    // The parser's message may quote the text, so for a Secret only the place is told.
    let quiet = text.lines().any(|line| {
        let line = line.trim_start().trim_start_matches("- ").replace(['"', '\''], "");
        line.starts_with("kind:") && line.contains("Secret")
            || line.starts_with('{') && line.contains("Secret")
    });
    let failed = |error: &serde_yaml::Error| {
        let line = error.location().map_or(0, |location| location.line().saturating_sub(1));
        let message = error.to_string();
        (line, if quiet { "is no YAML".to_owned() } else { format!("is no YAML: {message}") })
    };
    let mut value = serde_yaml::Value::deserialize(serde_yaml::Deserializer::from_str(text))
        .map_err(|error| failed(&error))?;
    value.apply_merge().map_err(|error| failed(&error))?;
    serde_json::to_value(value)
        .map_err(|_| (0, "is YAML that JSON can't express, such as a map with a list as key".to_owned()))
}

/// One object; `prefix` is its place in a List.
fn one(file: &str, part: &Part, prefix: &str, value: &Value) -> Document {
    let object = name(value);
    let line = line_of(&part.text, prefix).unwrap_or(0) + part.line;
    let outcome = resource(value.clone()).map_err(|violations| {
        let more = violations.len().saturating_sub(MAX_PROBLEMS);
        let of_object = |line| Problem {
            object: object.as_ref().map(ToString::to_string),
            ..Problem::of_file(file, line)
        };
        let mut problems: Vec<Problem> = violations
            .into_iter()
            .take(MAX_PROBLEMS)
            .map(|violation| {
                let field = format!("{prefix}{}", violation.field);
                Problem {
                    field: field.clone(),
                    value: violation.value.as_ref().and_then(|value| shown(&violation.field, value)),
                    message: violation.message,
                    fix: violation.fix,
                    ..of_object(line_of(&part.text, &field).map(|line| part.line + line))
                }
            })
            .collect();
        if more > 0 {
            let message = format!("has {more} more problems");
            problems.push(Problem {
                message,
                fix: "correct these first".to_owned(),
                ..of_object(Some(line))
            });
        }
        problems
    });
    Document { line, object, outcome }
}

fn name(value: &Value) -> Option<ObjectName> {
    Some(ObjectName {
        kind: value["kind"].as_str()?.to_owned(),
        namespace: value["metadata"]["namespace"].as_str().unwrap_or("default").to_owned(),
        name: value["metadata"]["name"].as_str()?.to_owned(),
    })
}

fn resource(mut value: Value) -> Result<Resource, Vec<Violation>> {
    let Some(object) = value.as_object_mut() else {
        return Err(vec![Violation::new(
            "",
            &value,
            "is no object",
            "write apiVersion, kind, metadata and spec",
        )]);
    };
    object.remove("status");
    let word = |field: &str| {
        value[field].as_str().map(str::to_owned).ok_or_else(|| {
            let fix =
                format!("add it: {API_VERSION} and ModelRoute or ReliabilityPolicy are apiVersion and kind");
            vec![Violation::new(field, &value[field], "is required", fix)]
        })
    };
    let (api_version, kind) = (word("apiVersion")?, word("kind")?);
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    if group != GROUP && !(api_version == "v1" && kind == "Secret") {
        return other(&value, &api_version, &kind);
    }
    let metadata = metadata(&mut value)?;
    if group != GROUP {
        return secret::secret(&value, metadata).map(|secret| Resource::Secret(Box::new(secret)));
    }
    if api_version != API_VERSION {
        let fix = format!("write {API_VERSION}");
        return Err(vec![Violation::new(
            "apiVersion",
            &value["apiVersion"],
            format!("{VERSION} is the only version"),
            fix,
        )]);
    }
    let Some(kind) = Kind::parse(&kind) else {
        let known = Kind::ALL.map(Kind::as_str);
        let fix = nearest(&kind, known).map_or_else(
            || format!("use one of {}", known.join(", ")),
            |kind| format!("did you mean {kind}?"),
        );
        return Err(vec![Violation::new("kind", &value["kind"], format!("is no kind of {GROUP}"), fix)]);
    };
    schema::check(kind, &mut value)?;
    typed(kind, value)
        .map_err(|error| vec![Violation::new("", &Value::Null, error.to_string(), "report this as a bug")])
}

fn typed(kind: Kind, value: Value) -> Result<Resource, serde_json::Error> {
    Ok(match kind {
        Kind::ModelRoute => Resource::Route(Box::new(serde_json::from_value(value)?)),
        Kind::ReliabilityPolicy => Resource::Policy(Box::new(serde_json::from_value(value)?)),
    })
}

/// A kind of another group; one that is ours but for the spelling is a mistake. Taken for a stranger it would vanish
/// from a watched directory, and its object with it.
fn other(value: &Value, api_version: &str, kind: &str) -> Result<Resource, Vec<Violation>> {
    let wrong = |field: &str, message: String, right: &str| {
        Err(vec![Violation::new(field, &value[field], message, format!("write {right}"))])
    };
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    let ours = Kind::ALL.map(Kind::as_str).into_iter().any(|known| known.eq_ignore_ascii_case(kind));
    if ours || group.contains("sluice") || nearest(group, [GROUP]).is_some() {
        return wrong("apiVersion", format!("has no kind {}", cut(kind, QUOTED)), API_VERSION);
    }
    let of_core = |version: &str| version.eq_ignore_ascii_case("v1");
    if kind == "Secret" && (group.is_empty() || of_core(api_version)) {
        return wrong("apiVersion", "has no kind Secret".to_owned(), "v1");
    }
    if of_core(api_version) && ["secret", "secrets"].contains(&kind.to_lowercase().as_str()) {
        return wrong("kind", "is no kind of v1".to_owned(), "Secret");
    }
    Ok(Resource::Other)
}

/// Checks what an API server checks of the metadata, and fills in the namespace.
fn metadata(value: &mut Value) -> Result<ObjectMeta, Vec<Violation>> {
    let metadata = &mut value["metadata"];
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.entry("namespace").or_insert_with(|| "default".into());
    }
    for (field, pattern, max) in
        [("name", bounds::NAME_PATTERN, bounds::NAME), ("namespace", bounds::LABEL_PATTERN, bounds::LABEL)]
    {
        let path = format!("metadata.{field}");
        let Some(text) = metadata[field].as_str() else {
            return Err(vec![Violation::new(path, &metadata[field], "is required as a string", "add it")]);
        };
        if text.len() > max as usize || !schema::matches(pattern, text) {
            return Err(vec![Violation::new(
                path,
                &metadata[field],
                format!("must be a DNS name of at most {max} characters"),
                "use lower-case letters, digits and -",
            )]);
        }
    }
    serde_json::from_value(metadata.clone()).map_err(|error| {
        vec![Violation::new(
            "metadata",
            &Value::Null,
            format!("is not as Kubernetes has it: {error}"),
            "correct it",
        )]
    })
}
