//! Checks an object against the generated schema, in an API server's order.
//!
//! It knows the keywords that `crd`'s tests allow and no others. CEL rules are evaluated by kube's own
//! evaluator, on the object with defaults. Where the structure is so wrong that a rule could not be
//! evaluated (a type, a missing field), the rules wait until that is corrected, as on an API server.

use std::collections::HashMap;
use std::sync::LazyLock;

use kube::core::cel::{self, CompiledSchema};
use regex::Regex;
use serde_json::{Map, Value};
use sluice_core::units::DURATION_PATTERN;

use super::nearest::nearest;
use crate::crd::Kind;
use crate::rule::bounds;

/// A walk that has found this much ends: nobody reads more, and a hostile file could make it take for ever.
const ENOUGH: usize = 100;

/// Something that the schema refuses.
#[derive(Debug)]
pub(super) struct Violation {
    pub field: String,
    /// `None`: not to be shown.
    pub value: Option<Value>,
    pub message: String,
    pub fix: String,
    /// Whether CEL rules can't be evaluated on such an object.
    blocking: bool,
}

impl Violation {
    pub(super) fn new(
        field: impl Into<String>,
        value: &Value,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            field: field.into(),
            value: Some(value.clone()),
            message: message.into(),
            fix: fix.into(),
            blocking: false,
        }
    }

    /// Without its value.
    pub(super) fn hidden(field: String, message: &str, fix: &str) -> Self {
        Self { value: None, ..Self::new(field, &Value::Null, message, fix) }
    }

    fn blocking(self) -> Self {
        Self { blocking: true, ..self }
    }
}

/// Applies defaults to `object` and checks it.
pub(super) fn check(kind: Kind, object: &mut Value) -> Result<(), Vec<Violation>> {
    let schema = kind.schema();
    let mut violations = Vec::new();
    let root = object.as_object_mut().into_iter().flatten();
    let known = ["apiVersion", "kind", "metadata", "spec"];
    violations.extend(
        root.filter(|(field, _)| !known.contains(&field.as_str()))
            .map(|(field, value)| unknown("", field, value, known.into_iter()))
            .take(ENOUGH),
    );
    let spec_schema = &schema["properties"]["spec"];
    match object.get_mut("spec") {
        Some(spec @ Value::Object(_)) => {
            default(spec_schema, spec);
            structure("spec", spec_schema, spec, &mut violations);
        }
        Some(spec) => violations.push(wrong_type("spec", spec, "object")),
        None => violations.push(missing("spec", &spec_schema["description"])),
    }
    if !violations.iter().any(|violation| violation.blocking) {
        rules(kind, object, &mut violations);
    }
    if violations.is_empty() { Ok(()) } else { Err(violations) }
}

/// Drops nulls and fills in defaults, from the outside in: a default object is completed by its own fields'.
fn default(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(object) => {
            // A null of a known field is none at all; an unknown field stays, to be refused.
            let map = schema["additionalProperties"].is_object();
            object.retain(|name, value| !value.is_null() || !(map || schema["properties"][name].is_object()));
            for (name, field) in schema["properties"].as_object().into_iter().flatten() {
                if !field["default"].is_null() && !object.contains_key(name) {
                    object.insert(name.clone(), field["default"].clone());
                }
                if let Some(value) = object.get_mut(name) {
                    default(field, value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| default(&schema["items"], item)),
        _ => {}
    }
}

fn structure(path: &str, schema: &Value, value: &Value, out: &mut Vec<Violation>) {
    let wanted = schema["type"].as_str().unwrap_or("object");
    match (wanted, value) {
        ("object", Value::Object(map)) => object(path, schema, map, out),
        ("array", Value::Array(items)) => array(path, schema, items, out),
        ("string", Value::String(text)) => string(path, schema, text, value, out),
        ("integer", Value::Number(number)) if number.is_i64() || number.is_u64() => {
            integer(path, schema, value, out);
        }
        ("boolean", Value::Bool(_)) => {}
        // "60" is no duration either, so quotes are no advice.
        ("string", Value::Number(_)) if schema["pattern"] == DURATION_PATTERN => {
            let (message, fix) = meaning(DURATION_PATTERN);
            out.push(Violation::new(path, value, message, fix).blocking());
        }
        _ => out.push(wrong_type(path, value, wanted)),
    }
}

fn object(path: &str, schema: &Value, map: &Map<String, Value>, out: &mut Vec<Violation>) {
    if let Some(max) = limit(schema, "maxProperties").filter(|max| map.len() > *max) {
        let message = format!("has {} entries, at most {max} are allowed", map.len());
        out.push(Violation::new(path, &Value::Null, message, "remove some").blocking());
        return;
    }
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !map.contains_key(name) {
            out.push(missing(&format!("{path}.{name}"), &schema["properties"][name]["description"]));
        }
    }
    let fields = schema["properties"].as_object();
    for (name, value) in map {
        if out.len() >= ENOUGH {
            return;
        }
        let child = format!("{path}.{name}");
        match fields.and_then(|fields| fields.get(name)) {
            Some(field) => structure(&child, field, value, out),
            None if schema["additionalProperties"].is_object() => {
                structure(&child, &schema["additionalProperties"], value, out);
            }
            None => out.push(unknown(
                path,
                name,
                value,
                fields.into_iter().flatten().map(|(name, _)| name.as_str()),
            )),
        }
    }
}

fn array(path: &str, schema: &Value, items: &[Value], out: &mut Vec<Violation>) {
    let count = |message: String, fix: &str| Violation::new(path, &Value::Null, message, fix).blocking();
    if let Some(max) = limit(schema, "maxItems").filter(|max| items.len() > *max) {
        out.push(count(format!("has {} items, at most {max} are allowed", items.len()), "remove some"));
        return;
    }
    if let Some(min) = limit(schema, "minItems").filter(|min| items.len() < *min) {
        out.push(count(format!("has {} items, at least {min} is needed", items.len()), "add one"));
    }
    for (index, item) in items.iter().enumerate() {
        structure(&format!("{path}[{index}]"), &schema["items"], item, out);
    }
    duplicates(path, schema, items, out);
}

/// Sets hold a value once, maps a key once.
fn duplicates(path: &str, schema: &Value, items: &[Value], out: &mut Vec<Violation>) {
    let key = schema["x-kubernetes-list-map-keys"][0].as_str();
    let identity = |item: &Value| match (schema["x-kubernetes-list-type"].as_str(), key) {
        (Some("set"), _) => Some(item.clone()),
        (Some("map"), Some(key)) => item.get(key).cloned(),
        _ => None,
    };
    for (index, item) in items.iter().enumerate() {
        let Some(id) = identity(item) else { continue };
        if items[..index].iter().any(|earlier| identity(earlier).as_ref() == Some(&id)) {
            let field = match key {
                Some(key) => format!("{path}[{index}].{key}"),
                None => format!("{path}[{index}]"),
            };
            out.push(Violation::new(
                field,
                &id,
                "appears twice in the list",
                "rename or remove one of the two",
            ));
        }
    }
}

fn string(path: &str, schema: &Value, text: &str, value: &Value, out: &mut Vec<Violation>) {
    let length = text.chars().count();
    if let Some(max) = limit(schema, "maxLength").filter(|max| length > *max) {
        let message = format!("has {length} characters, at most {max} are allowed");
        out.push(Violation::new(path, value, message, "shorten it").blocking());
        return;
    }
    if let Some(min) = limit(schema, "minLength").filter(|min| length < *min) {
        let message = format!("has {length} characters, at least {min} is needed");
        out.push(Violation::new(path, value, message, "write one, or remove the field if it is optional"));
        return;
    }
    if let Some(values) = schema["enum"].as_array().filter(|values| !values.contains(value)) {
        let words: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
        let fix = nearest(text, words.iter().copied())
            .map_or_else(|| "use one of them".to_owned(), |word| format!("did you mean {word}?"));
        let message = format!("must be one of {}", words.join(", "));
        out.push(Violation::new(path, value, message, fix).blocking());
    }
    if let Some(pattern) = schema["pattern"].as_str().filter(|pattern| !matches(pattern, text)) {
        let (message, fix) = meaning(pattern);
        out.push(Violation::new(path, value, message, fix));
    }
}

/// What a pattern means, in words.
fn meaning(pattern: &str) -> (String, &'static str) {
    let (message, fix) = match pattern {
        DURATION_PATTERN => ("must be a duration, not negative", "write it such as 10s, 1m30s or 500ms"),
        bounds::LABEL_PATTERN => ("must be a DNS label", "use lower-case letters, digits and - inside"),
        bounds::NAME_PATTERN => ("must be a DNS name", "use lower-case letters, digits, - and ."),
        bounds::KEY_PATTERN => ("must be a key of a Secret", "use letters, digits, -, _ and ."),
        bounds::HEADER_PATTERN => ("must be a header's name", "use letters, digits and -"),
        bounds::MONEY_PATTERN => {
            ("must be an amount such as 2.50", "write digits with at most one point, in quotes")
        }
        _ => return (format!("must match {pattern}"), "change it so that it does"),
    };
    (message.to_owned(), fix)
}

fn integer(path: &str, schema: &Value, value: &Value, out: &mut Vec<Violation>) {
    // i128 holds every integer that JSON numbers can be here.
    let number = |value: &Value| value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
    let Some(found) = number(value) else { return };
    let (min, max) = (number(&schema["minimum"]), number(&schema["maximum"]));
    let below = min.is_some_and(|min| found < min);
    if below || max.is_some_and(|max| found > max) {
        let range = match (min, max) {
            (Some(min), Some(max)) => format!("must be between {min} and {max}"),
            (Some(min), None) => format!("must be at least {min}"),
            _ => format!("must be at most {}", max.unwrap_or_default()),
        };
        out.push(Violation::new(path, value, range, if below { "raise it" } else { "lower it" }));
    }
}

fn limit(schema: &Value, keyword: &str) -> Option<usize> {
    schema[keyword].as_u64().map(|limit| limit as usize)
}

fn wrong_type(path: &str, value: &Value, wanted: &str) -> Violation {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number with a fraction",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let fix = match (wanted, value) {
        ("string", Value::Number(_) | Value::Bool(_)) => "put it in quotes",
        ("integer", Value::String(_)) => "write a whole number without quotes",
        ("integer", Value::Number(_)) => "write a whole number",
        ("array", _) => "write a list: each item after a dash, or [a, b]",
        ("object", _) => "write fields below it",
        _ => "change its type",
    };
    Violation::new(path, value, format!("must be of type {wanted}, not {found}"), fix).blocking()
}

fn missing(path: &str, description: &Value) -> Violation {
    let first = description.as_str().unwrap_or_default().split(". ").next().unwrap_or_default();
    let fix = match first.trim_end_matches('.') {
        "" => "add it".to_owned(),
        first => format!("add it ({first})"),
    };
    Violation { value: None, ..Violation::new(path, &Value::Null, "is required", fix) }.blocking()
}

fn unknown<'a>(path: &str, name: &str, value: &Value, known: impl Iterator<Item = &'a str>) -> Violation {
    let mut known: Vec<&str> = known.collect();
    let fix = if let Some(field) = nearest(name, known.iter().copied()) {
        format!("did you mean {field}?")
    } else {
        known.sort_unstable();
        format!("remove it; the fields here are {}", known.join(", "))
    };
    let short: String = name.chars().take(64).collect();
    let field = if path.is_empty() { short } else { format!("{path}.{short}") };
    Violation::new(field, value, "is no known field", fix)
}

/// Evaluates the CEL rules. Those of an object in which something is refused already are left out: they
/// would stumble over the same value once more.
fn rules(kind: Kind, object: &Value, out: &mut Vec<Violation>) {
    static COMPILED: LazyLock<[CompiledSchema; 2]> =
        LazyLock::new(|| Kind::ALL.map(|kind| cel::compile_schema(kind.schema())));
    let Err(errors) = cel::validate_compiled(&COMPILED[kind as usize], object, None) else { return };
    let refused: Vec<String> = out.iter().map(|violation| violation.field.clone()).collect();
    for error in errors {
        let field = error.field_path.as_str();
        let around = field.rsplit_once('.').map_or("", |(around, _)| around);
        if refused.iter().any(|refused| refused.starts_with(around)) {
            continue;
        }
        let (message, fix) = error.message.split_once("; ").unwrap_or((&error.message, ""));
        out.push(Violation::new(field, at(object, field), message, fix));
    }
}

/// The value at a path such as `spec.targets[0].name`; null when there is none.
fn at<'a>(object: &'a Value, path: &str) -> &'a Value {
    path.split(['.', '[']).filter(|part| !part.is_empty()).fold(object, |value, part| {
        match part.strip_suffix(']').and_then(|index| index.parse::<usize>().ok()) {
            Some(index) => &value[index],
            None => &value[part],
        }
    })
}

/// Whether a text matches a pattern of the schema.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    static PATTERNS: LazyLock<HashMap<&'static str, Regex>> = LazyLock::new(|| {
        [
            DURATION_PATTERN,
            bounds::LABEL_PATTERN,
            bounds::NAME_PATTERN,
            bounds::KEY_PATTERN,
            bounds::HEADER_PATTERN,
            bounds::MONEY_PATTERN,
        ]
        .into_iter()
        .filter_map(|pattern| Some((pattern, Regex::new(pattern).ok()?)))
        .collect()
    });
    // A pattern that is not in the table refuses everything: the corpus of good manifests would show it.
    PATTERNS.get(pattern).is_some_and(|regex| regex.is_match(text))
}
