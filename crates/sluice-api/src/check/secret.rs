//! Secrets of `sluice run`: read by hand, because a parser's error may quote what it read.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use serde_json::Value;

use super::schema::Violation;

/// Reads a Secret; `metadata` is its own.
pub(super) fn secret(
    object: &Value,
    metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
) -> Result<Secret, Vec<Violation>> {
    let mut violations = Vec::new();
    let mut data = BTreeMap::new();
    for (key, value) in entries(object, "data", &mut violations) {
        // The error is dropped: it might quote the value.
        match serde_json::from_value::<ByteString>(value.clone()) {
            Ok(bytes) if value.is_string() => {
                data.insert(key.clone(), bytes);
            }
            _ => violations.push(Violation::hidden(
                format!("data.{key}"),
                "is no base64",
                "encode the value with base64, or put it as it is under stringData",
            )),
        }
    }
    for (key, value) in entries(object, "stringData", &mut violations) {
        if let Some(text) = value.as_str() {
            data.insert(key.clone(), ByteString(text.as_bytes().to_vec()));
        } else {
            violations.push(Violation::hidden(
                format!("stringData.{key}"),
                "must be a string",
                "put it in quotes",
            ));
        }
    }
    if violations.is_empty() {
        let type_ = object["type"].as_str().map(str::to_owned);
        Ok(Secret { metadata, data: Some(data), type_, ..Secret::default() })
    } else {
        Err(violations)
    }
}

fn entries<'a>(
    object: &'a Value,
    field: &str,
    violations: &mut Vec<Violation>,
) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
    let value = &object[field];
    if !(value.is_object() || value.is_null()) {
        violations.push(Violation::hidden(
            field.to_owned(),
            "must be a map",
            "write key: value pairs below it",
        ));
    }
    value.as_object().into_iter().flatten()
}
