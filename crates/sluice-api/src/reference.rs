//! The field reference (`docs/api.md`), from the schema: what it says is what rules.

use std::fmt::Write as _;

use serde_json::Value;

use crate::crd::Kind;

/// The whole reference as Markdown.
#[must_use]
pub fn markdown() -> String {
    let mut out = String::from(
        "# Resources of `sluice.dev/v1alpha1`\n\n\
         Generated from crates/sluice-api by `cargo run -p sluice-api --bin crdgen`: do not edit.\n\n\
         Durations are strings such as `10s`, `1m30s` or `500ms` (up to four numbers with `h`, `m`, `s`, `ms`). \
         Percentages and quantities are whole numbers. A default applies when the object around the field is \
         present; an absent group of a policy says nothing, and the next less specific policy or the built-in \
         group rules (built-in groups have the same defaults). Under *Refused* are combinations that an API server \
         and `sluice check` do not accept.\n",
    );
    for kind in Kind::ALL {
        let schema = kind.schema();
        let _ = write!(out, "\n## {}\n\n{}\n", kind.as_str(), text(&schema["description"]));
        section(&mut out, "spec", &schema["properties"]["spec"]);
        section(&mut out, "status", &schema["properties"]["status"]);
    }
    out
}

/// One object's table and rules, then those of the objects in it.
fn section(out: &mut String, path: &str, schema: &Value) {
    let _ = write!(
        out,
        "\n### `{path}`\n\n| field | type | default | bounds | meaning |\n| --- | --- | --- | --- | --- |\n"
    );
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let default = match &field["default"] {
            Value::Null if required.contains(&name.as_str()) => "required".to_owned(),
            Value::Null => "–".to_owned(),
            Value::Object(_) | Value::Array(_) => "as below".to_owned(),
            Value::String(text) => format!("`{text}`"),
            other => format!("`{other}`"),
        };
        let _ = writeln!(
            out,
            "| `{name}` | {} | {default} | {} | {} |",
            type_of(field),
            bounds(field).replace('|', "\\|"),
            text(&field["description"]).replace("\n\n", " ").replace('|', "\\|"),
        );
    }
    refused(out, schema);
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        if field["properties"].is_object() {
            section(out, &format!("{path}.{name}"), field);
        } else if field["items"]["properties"].is_object() {
            section(out, &format!("{path}.{name}[]"), &field["items"]);
        }
    }
}

fn refused(out: &mut String, schema: &Value) {
    let rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
    for (index, rule) in rules.enumerate() {
        if index == 0 {
            out.push_str("\nRefused:\n\n");
        }
        let _ = writeln!(out, "- {}.", text(&rule["message"]));
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn type_of(schema: &Value) -> String {
    match text(&schema["type"]) {
        "array" => format!("list of {}", type_of(&schema["items"])),
        "object" if schema["additionalProperties"].is_object() => "map".to_owned(),
        "string" if schema["pattern"] == sluice_core::units::DURATION_PATTERN => "duration".to_owned(),
        "string" if schema["enum"].is_array() => "enum".to_owned(),
        "string" if schema["format"] == "date-time" => "time".to_owned(),
        other => other.to_owned(),
    }
}

fn bounds(schema: &Value) -> String {
    if let Some(values) = schema["enum"].as_array() {
        return values.iter().map(|value| format!("`{}`", text(value))).collect::<Vec<_>>().join(", ");
    }
    let duration = schema["pattern"] == sluice_core::units::DURATION_PATTERN;
    let mut parts = Vec::new();
    let mut range = |min: &str, max: &str, unit: &str| match (&schema[min], &schema[max]) {
        (Value::Null, Value::Null) => {}
        (Value::Null, max) => parts.push(format!("≤ {max}{unit}")),
        (min, Value::Null) => parts.push(format!("≥ {min}{unit}")),
        (min, max) => parts.push(format!("{min}–{max}{unit}")),
    };
    range("minimum", "maximum", "");
    range("minItems", "maxItems", " items");
    range("minProperties", "maxProperties", " entries");
    if !duration {
        range("minLength", "maxLength", " characters");
        if let Some(pattern) = schema["pattern"].as_str() {
            parts.push(format!("`{pattern}`"));
        }
    }
    if parts.is_empty() { "–".to_owned() } else { parts.join(", ") }
}
