//! Every field of every group, from the schema: where it is, what it may hold, and how to write it.

use std::time::Duration;

use serde_json::{Map, Value, json};
use sluice_api::crd::Kind;
use sluice_api::policy::ReliabilityPolicySpec;
use sluice_core::units::{DURATION_PATTERN, format_duration, millis, parse_duration};

/// A field that holds one value, such as `deadlines.total` or `queue.lanes[Agent].sharePercent`.
#[derive(Debug, Clone)]
pub struct Field {
    pub path: String,
    pub bounds: Bounds,
}

#[derive(Debug, Clone)]
pub enum Bounds {
    Integer(u64, u64),
    /// In milliseconds.
    Duration(u64, u64),
    Words(Vec<Value>),
}

impl Bounds {
    /// The value of a number, brought within the bounds.
    pub fn value(&self, number: u64) -> Value {
        match self {
            Self::Integer(min, max) => json!(number.clamp(*min, *max)),
            Self::Duration(min, max) => {
                json!(format_duration(Duration::from_millis(number.clamp(*min, *max))))
            }
            Self::Words(words) => words[(number % words.len() as u64) as usize].clone(),
        }
    }

    /// Values at the bounds, between them, and some that few others are multiples of.
    pub fn telling(&self) -> Vec<Value> {
        let numbers = match self {
            Self::Integer(min, max) | Self::Duration(min, max) => {
                let middle = min + (max - min) / 2;
                vec![*min, min + 1, middle, max - 1, *max, 3, 7, 13, 101, 997, 7_919, 104_729, 600_000]
            }
            Self::Words(words) => (0..words.len() as u64).collect(),
        };
        let mut values: Vec<Value> = numbers.into_iter().map(|number| self.value(number)).collect();
        values.dedup();
        values
    }
}

/// The fields of each group, in the schema's order.
pub fn groups() -> Vec<(&'static str, Vec<Field>)> {
    let spec = &Kind::ReliabilityPolicy.schema()["properties"]["spec"];
    let fields = |group: &'static str| {
        let mut fields = Vec::new();
        walk(group, group, &spec["properties"][group], spec, &mut fields);
        assert!(!fields.is_empty(), "{group} has no fields");
        (group, fields)
    };
    ReliabilityPolicySpec::GROUPS.map(fields).to_vec()
}

fn walk(path: &str, name: &str, schema: &Value, parent: &Value, out: &mut Vec<Field>) {
    let bounds = match schema["type"].as_str() {
        Some("object") => {
            for (name, child) in schema["properties"].as_object().into_iter().flatten() {
                walk(&format!("{path}.{name}"), name, child, schema, out);
            }
            return;
        }
        Some("array") => return items(path, name, schema, out),
        Some("integer") => {
            Bounds::Integer(schema["minimum"].as_u64().unwrap(), schema["maximum"].as_u64().unwrap())
        }
        Some("string") if schema["pattern"] == DURATION_PATTERN => duration_bounds(path, name, parent),
        Some("string") if schema["enum"].is_array() => {
            Bounds::Words(schema["enum"].as_array().unwrap().clone())
        }
        Some("string") if name == "maxSpend" => Bounds::Words(vec![json!("0"), json!("999999.999999")]),
        Some("string") => Bounds::Words(vec![json!("{}"), json!("x".repeat(40))]),
        other => panic!("{path} is of type {other:?}"),
    };
    out.push(Field { path: path.to_owned(), bounds });
}

/// The fields of some items of a list, but for the one that tells the items apart.
fn items(path: &str, name: &str, schema: &Value, out: &mut Vec<Field>) {
    let keys = match name {
        "lanes" => &["Interactive", "Agent", "Background"][..],
        "tenants" => &["a", "b"],
        "classify" => &["0"],
        other => panic!("{path}: how are the items of {other} told apart?"),
    };
    for key in keys {
        for (name, child) in schema["items"]["properties"].as_object().into_iter().flatten() {
            if schema["x-kubernetes-list-map-keys"][0] != json!(name) {
                walk(&format!("{path}[{key}].{name}"), name, child, &schema["items"], out);
            }
        }
    }
}

/// A duration's bounds are in a rule of the object around it.
fn duration_bounds(path: &str, name: &str, parent: &Value) -> Bounds {
    let low = format!("duration(self.{name}) >= duration('");
    let high = format!("duration(self.{name}) <= duration('");
    let bound = |rule: &str, before: &str| {
        let (_, rest) = rule.split_once(before)?;
        Some(millis(parse_duration(rest.split_once('\'')?.0).unwrap()))
    };
    let rules = parent["x-kubernetes-validations"].as_array().into_iter().flatten();
    let (min, max) = rules
        .filter_map(|rule| rule["rule"].as_str())
        .find_map(|rule| Some((bound(rule, &low)?, bound(rule, &high)?)))
        .unwrap_or_else(|| panic!("no rule bounds {path}"));
    Bounds::Duration(min, max)
}

/// The member that a step such as `total` or `lanes[Agent]` names; made when it is absent.
fn step<'a>(object: &'a mut Value, step: &str) -> &'a mut Value {
    let Some((list, key)) = step.split_once('[') else { return &mut object[step] };
    let key = key.trim_end_matches(']');
    if object[list].is_null() {
        object[list] = json!([]);
    }
    let items = object[list].as_array_mut().unwrap();
    let found = items.iter().position(|item| key == "0" || item["name"] == key);
    let at = found.unwrap_or_else(|| {
        items.push(if key == "0" { json!({}) } else { json!({ "name": key }) });
        items.len() - 1
    });
    &mut items[at]
}

/// Writes one field into a spec.
pub fn write(spec: &mut Value, path: &str, value: Value) {
    *path.split('.').fold(spec, step) = value;
}

/// What is written at a path.
pub fn written<'a>(spec: &'a Value, path: &str) -> Option<&'a Value> {
    let read = |value: &'a Value, step: &str| match step.split_once('[') {
        None => value.get(step),
        Some((list, key)) => {
            let key = key.trim_end_matches(']');
            value.get(list)?.as_array()?.iter().find(|item| key == "0" || item["name"] == key)
        }
    };
    path.split('.').try_fold(spec, read)
}

/// Adds what a field cannot be without: the type of a union, the member of a type, a required field, the quota that a
/// burst is of. `None`: two of the fields belong to different members of a union.
pub fn complete(mut spec: Value) -> Option<Value> {
    let schema = &Kind::ReliabilityPolicy.schema()["properties"]["spec"];
    for group in ReliabilityPolicySpec::GROUPS {
        if let Some(value) = spec.get_mut(group) {
            required(&schema["properties"][group], value)?;
        }
    }
    if let Some(quota) = spec.get_mut("quota").filter(|quota| quota.get("tokensPerMinute").is_none()) {
        let tenants = quota.get("tenants").and_then(Value::as_array).into_iter().flatten();
        let reserved = tenants.filter_map(|tenant| tenant.get("reservedPercent")?.as_u64()).sum::<u64>() > 0;
        if let Some(burst) = quota.get("burstTokens").cloned() {
            quota["tokensPerMinute"] = burst;
        } else if reserved {
            quota["tokensPerMinute"] = json!(1_000);
        }
    }
    Some(spec)
}

fn required(schema: &Value, value: &mut Value) -> Option<()> {
    if let Value::Array(items) = value {
        return items.iter_mut().try_for_each(|item| required(&schema["items"], item));
    }
    let Some(object) = value.as_object_mut() else { return Some(()) };
    union(schema, object)?;
    let fields = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    for field in fields.filter(|field| *field != "name") {
        if !object.contains_key(field) {
            let value = match field {
                "first" => object["last"].clone(),
                "last" => object["first"].clone(),
                "verdict" => json!("Failure"),
                "schema" => json!("{}"),
                other => panic!("what is a good {other}?"),
            };
            object.insert(field.to_owned(), value);
        }
    }
    // A rule of `classify` that matches everything is refused.
    if object.contains_key("verdict") && !object.contains_key("statuses") {
        object.entry("errorType").or_insert_with(|| json!("x"));
    }
    let names: Vec<String> = object.keys().cloned().collect();
    names.iter().try_for_each(|name| required(&schema["properties"][name], &mut object[name]))
}

/// `type` and its member, from the rules `(self.type == 'AIMD') == has(self.aimd)`.
fn union(schema: &Value, object: &mut Map<String, Value>) -> Option<()> {
    let rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
    let members: Vec<(&str, &str)> = rules
        .filter_map(|rule| rule["rule"].as_str()?.strip_prefix("(self.type == '")?.strip_suffix(')'))
        .filter_map(|rule| rule.split_once("') == has(self."))
        .collect();
    if members.is_empty() {
        return Some(());
    }
    let present =
        members.iter().find(|(_, member)| object.contains_key(*member)).map(|(kind, _)| json!(kind));
    let first = || schema["properties"]["type"]["enum"][0].clone();
    let kind = object.entry("type").or_insert_with(|| present.unwrap_or_else(first)).clone();
    for (value, member) in members {
        if kind == value {
            object.entry(member).or_insert_with(|| json!({}));
        } else if object.contains_key(member) {
            return None;
        }
    }
    Some(())
}
