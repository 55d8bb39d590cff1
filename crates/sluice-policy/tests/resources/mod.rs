//! Resources for tests, written as their YAML.

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use sluice_api::{ModelRoute, ReliabilityPolicy};
use sluice_policy::Index;
use sluice_policy::index::Key;

pub const NOW_MS: u64 = 1_800_000_000_000;

/// An object of namespace `ns`; `age` is seconds before an arbitrary moment, so more is older.
fn meta(name: &str, age: i64, generation: i64) -> ObjectMeta {
    let created = Timestamp::from_second(1_790_000_000 - age).unwrap();
    ObjectMeta {
        namespace: Some("ns".to_owned()),
        name: Some(name.to_owned()),
        uid: Some(format!("uid-{name}")),
        generation: Some(generation),
        resource_version: Some(generation.to_string()),
        creation_timestamp: Some(Time(created)),
        ..ObjectMeta::default()
    }
}

pub fn route_of(name: &str, age: i64, generation: i64, spec: &str) -> ModelRoute {
    let spec = serde_yaml::from_str(spec).unwrap_or_else(|error| panic!("{error}: {spec}"));
    ModelRoute { metadata: meta(name, age, generation), spec, status: None }
}

/// A route for model `name` with targets `primary` and `secondary`.
pub fn route(name: &str, age: i64) -> ModelRoute {
    route_of(name, age, 1, &route_spec(name))
}

pub fn route_spec(model: &str) -> String {
    format!(
        "models: [{model}]
targets:
- name: primary
  provider: OpenAI
  endpoint: https://one.example/v1
  credential: {{type: None}}
- name: secondary
  provider: OpenAI
  endpoint: https://two.example/v1
  priority: 1
  credential: {{type: None}}
"
    )
}

/// A policy with the given groups for the given references, such as `ModelRoute/chat/primary` or `Namespace/ns`.
pub fn policy(name: &str, age: i64, refs: &[&str], groups: &str) -> ReliabilityPolicy {
    policy_of(name, age, 1, refs, groups)
}

pub fn policy_of(name: &str, age: i64, generation: i64, refs: &[&str], groups: &str) -> ReliabilityPolicy {
    let refs: Vec<String> = refs
        .iter()
        .map(|reference| {
            let parts: Vec<&str> = reference.split('/').collect();
            let group = if parts[0] == "Namespace" { "" } else { "sluice.dev" };
            let section =
                parts.get(2).map_or_else(String::new, |section| format!(", sectionName: {section}"));
            format!("{{group: \"{group}\", kind: {}, name: {}{section}}}", parts[0], parts[1])
        })
        .collect();
    let spec = format!("targetRefs: [{}]\n{groups}\n", refs.join(", "));
    let spec = serde_yaml::from_str(&spec).unwrap_or_else(|error| panic!("{error}: {spec}"));
    ReliabilityPolicy { metadata: meta(name, age, generation), spec, status: None }
}

/// A route that the schema lets through in an old version and that cannot be compiled.
pub fn broken_route(name: &str, age: i64, generation: i64) -> ModelRoute {
    let mut route = route(name, age);
    route.metadata.generation = Some(generation);
    "ftp://one.example".clone_into(&mut route.spec.targets[0].endpoint);
    route
}

pub fn secret(name: &str, version: i64, data: &[(&str, &str)]) -> Secret {
    let data = data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Secret { metadata: meta(name, 0, version), string_data: Some(data), ..Secret::default() }
}

pub fn key(name: &str) -> Key {
    Key::new("ns", name)
}

pub fn index(routes: Vec<ModelRoute>, policies: Vec<ReliabilityPolicy>) -> Index {
    let mut index = Index::default();
    index.reset_routes(routes, NOW_MS);
    index.reset_policies(policies, NOW_MS);
    index
}
