//! The CRDs as an API server takes them.
//!
//! kube derives a CRD from the Rust types; this module makes it a structural schema of the strict kind:
//!
//! - no `nullable`: a null is dropped before defaults apply, as for any built-in resource;
//! - `int32` and `int64` in place of unsigned formats, which OpenAPI does not have (bounds say what they said);
//! - whole numbers as such, where JSON Schema's bounds are doubles;
//! - keys in one order, so that the same types give the same bytes whatever else is compiled.

use std::sync::LazyLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Map, Value};

use crate::{ModelRoute, ReliabilityPolicy};

/// A resource of this crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    ModelRoute,
    ReliabilityPolicy,
}

impl Kind {
    pub const ALL: [Self; 2] = [Self::ModelRoute, Self::ReliabilityPolicy];

    /// The word in a manifest's `kind`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ModelRoute => "ModelRoute",
            Self::ReliabilityPolicy => "ReliabilityPolicy",
        }
    }

    /// The kind of that name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }

    /// The name of the CRD's file in `crds/`.
    #[must_use]
    pub const fn file(self) -> &'static str {
        match self {
            Self::ModelRoute => "modelroutes.yaml",
            Self::ReliabilityPolicy => "reliabilitypolicies.yaml",
        }
    }

    /// The CRD as JSON.
    #[must_use]
    pub fn crd(self) -> &'static Value {
        static CRDS: LazyLock<[Value; 2]> = LazyLock::new(|| Kind::ALL.map(Kind::generate));
        &CRDS[self as usize]
    }

    /// The schema of its only version.
    #[must_use]
    pub fn schema(self) -> &'static Value {
        &self.crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    }

    fn generate(self) -> Value {
        let derived = match self {
            Self::ModelRoute => ModelRoute::crd(),
            Self::ReliabilityPolicy => ReliabilityPolicy::crd(),
        };
        // A CRD is made of strings, numbers, lists and maps with string keys: this can't fail.
        normalize(serde_json::to_value(derived).unwrap_or_default())
    }

    /// The CRD as a typed object, for clients that install it.
    ///
    /// # Errors
    /// When the schema uses a keyword that a CRD does not have; the tests keep that from happening.
    pub fn definition(self) -> Result<CustomResourceDefinition, serde_json::Error> {
        serde_json::from_value(self.crd().clone())
    }

    /// The CRD as YAML, with a head that says where it comes from.
    ///
    /// # Errors
    /// When the YAML writer fails.
    pub fn yaml(self) -> Result<String, serde_yaml::Error> {
        let body = serde_yaml::to_string(self.crd())?;
        Ok(format!(
            "# Generated from crates/sluice-api by `cargo run -p sluice-api --bin crdgen`: do not edit.\n{body}"
        ))
    }
}

fn normalize(value: Value) -> Value {
    match value {
        Value::Object(map) => normalize_object(map),
        Value::Array(items) => Value::Array(items.into_iter().map(normalize).collect()),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 9e15 => {
                (float as i64).into()
            }
            _ => number.into(),
        },
        Value::String(text) => Value::String(text),
        other => other,
    }
}

fn normalize_object(map: Map<String, Value>) -> Value {
    let mut entries: Vec<(String, Value)> = map
        .into_iter()
        .map(|(key, value)| (key, normalize(value)))
        .filter(|(key, _)| key != "nullable")
        .collect();
    for (key, value) in &mut entries {
        match (key.as_str(), value) {
            ("format", Value::String(format)) => match format.as_str() {
                "uint8" | "uint16" | "uint32" => "int32".clone_into(format),
                "uint" | "uint64" => "int64".clone_into(format),
                _ => {}
            },
            ("enum", Value::Array(values)) => values.retain(|value| !value.is_null()),
            // Paragraphs stay apart; the line breaks of a doc comment do not matter.
            ("description", Value::String(text)) => {
                *text =
                    text.split("\n\n").map(|part| part.replace('\n', " ")).collect::<Vec<_>>().join("\n\n");
            }
            _ => {}
        }
    }
    entries.sort_by(|(a, _), (b, _)| a.cmp(b));
    Value::Object(entries.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `visit` with every schema below `schema` and its path.
    fn walk(path: &str, schema: &Value, visit: &mut impl FnMut(&str, &Value)) {
        visit(path, schema);
        for (name, child) in schema["properties"].as_object().into_iter().flatten() {
            walk(&format!("{path}.{name}"), child, visit);
        }
        if schema["items"].is_object() {
            walk(&format!("{path}[]"), &schema["items"], visit);
        }
        if schema["additionalProperties"].is_object() {
            walk(&format!("{path}{{}}"), &schema["additionalProperties"], visit);
        }
    }

    fn spec_and_status(mut visit: impl FnMut(&str, &Value)) {
        for kind in Kind::ALL {
            for part in ["spec", "status"] {
                walk(&format!("{}.{part}", kind.as_str()), &kind.schema()["properties"][part], &mut visit);
            }
        }
    }

    #[test]
    fn everything_is_bounded() {
        spec_and_status(|path, schema| {
            let has = |keyword: &str| !schema[keyword].is_null();
            match schema["type"].as_str() {
                Some("string") => {
                    assert!(has("maxLength") || has("enum") || schema["format"] == "date-time", "{path}");
                }
                Some("integer") => {
                    assert!(
                        has("minimum") && (has("maximum") || path.ends_with("observedGeneration")),
                        "{path}"
                    );
                    let format = schema["format"].as_str();
                    assert!(matches!(format, Some("int32" | "int64")), "{path}: {format:?}");
                    if format == Some("int32") {
                        assert!(schema["maximum"].as_i64() <= Some(i64::from(i32::MAX)), "{path}");
                    }
                }
                Some("array") => assert!(has("maxItems") && has("x-kubernetes-list-type"), "{path}"),
                Some("object") => assert!(has("properties") || has("maxProperties"), "{path}"),
                other => panic!("{path} has type {other:?}"),
            }
        });
    }

    #[test]
    fn every_field_is_described() {
        spec_and_status(|path, schema| {
            let anonymous = path.ends_with("[]") || path.ends_with("{}") || path.matches('.').count() == 1;
            assert!(anonymous || schema["description"].is_string(), "{path} has no description");
        });
    }

    #[test]
    fn only_keywords_of_a_structural_schema_are_used() {
        const KNOWN: [&str; 20] = [
            "type",
            "format",
            "description",
            "default",
            "enum",
            "pattern",
            "minLength",
            "maxLength",
            "minimum",
            "maximum",
            "minItems",
            "maxItems",
            "maxProperties",
            "properties",
            "required",
            "items",
            "additionalProperties",
            "x-kubernetes-validations",
            "x-kubernetes-list-type",
            "x-kubernetes-list-map-keys",
        ];
        spec_and_status(|path, schema| {
            for keyword in schema.as_object().into_iter().flatten().map(|(keyword, _)| keyword.as_str()) {
                assert!(KNOWN.contains(&keyword), "{path} uses {keyword}");
            }
        });
    }

    #[test]
    fn messages_say_what_is_wrong_and_what_to_do() {
        spec_and_status(|path, schema| {
            for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
                let message = rule["message"].as_str().unwrap_or_default();
                let (wrong, fix) = message.split_once("; ").unwrap_or_else(|| panic!("{path}: {message:?}"));
                assert!(
                    !wrong.is_empty() && !fix.is_empty() && !message.ends_with('.'),
                    "{path}: {message:?}"
                );
            }
        });
    }

    #[test]
    fn the_typed_definition_loses_nothing() {
        for kind in Kind::ALL {
            let again = normalize(serde_json::to_value(kind.definition().unwrap()).unwrap());
            assert_eq!(&again, kind.crd());
        }
    }
}
