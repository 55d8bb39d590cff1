//! Which pods get an agent, and what is added to them.
//!
//! Why additions and no changed pod: what this build does not know of a pod (a field of a newer Kubernetes) must stay
//! as it is. A pod that was read, changed and written would lose it, and a difference between two such pods, which
//! compares lists place by place, would leave it with the wrong container. Each operation adds something by its place
//! in the original.
//!
//! Applications find the agent by the variables that their SDKs read. A container whose `env` names such a variable
//! keeps its own value; what comes from `envFrom` can't be seen here and is overruled by `env`. Placeholder keys are set
//! only where nothing else may bring one: SDKs refuse to start without a key, and the agent replaces it.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod, PodSpec};
use serde::Serialize;
use serde_json::{Value, json};

use super::container::{ADMIN_PORT, APPLICATIONS_PORT, CONTAINER, VOLUMES, agent, volumes};
use crate::config::Sidecar;
use crate::pods::INJECTED;

/// `enabled` on a namespace or pod asks for an agent, `disabled` on a pod refuses it.
pub(crate) const INJECT: &str = "sluice.dev/inject";
/// On a pod: `disabled` leaves the applications' environment as it is.
pub(crate) const INJECT_ENV: &str = "sluice.dev/inject-env";

const MIRROR: &str = "kubernetes.io/config.mirror";

/// Whether a label's value asks.
pub(crate) fn asks(value: &str) -> bool {
    matches!(value, "enabled" | "true")
}

/// Why a pod stays as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Left {
    NotAsked,
    Refused,
    /// The label says neither.
    Unclear(String),
    HasAgent,
    /// In the host's network its ports would be the node's. Whether the pod itself asked.
    HostNetwork(bool),
    /// The agent is a Linux program.
    Windows(bool),
    /// It has a volume of the agent's.
    NameTaken(&'static str),
}

impl Left {
    /// As a metric has it.
    pub(crate) const fn as_str(&self) -> &'static str {
        match self {
            Self::NotAsked => "not-asked",
            Self::Refused | Self::Unclear(_) => "refused",
            Self::HasAgent => "has-agent",
            Self::HostNetwork(_) => "host-network",
            Self::Windows(_) => "windows",
            Self::NameTaken(_) => "name-taken",
        }
    }

    /// What whoever creates the pod is told; nothing where it is as they said, or as they may not have known.
    pub(crate) fn warning(&self) -> Option<String> {
        match self {
            Self::NotAsked
            | Self::Refused
            | Self::HasAgent
            | Self::HostNetwork(false)
            | Self::Windows(false) => None,
            Self::Unclear(value) => Some(format!(
                "label {INJECT}={value}: write enabled or disabled; it is taken as disabled and the pod gets no agent"
            )),
            Self::HostNetwork(true) => Some(
                "a pod with hostNetwork gets no agent: its ports would be the node's; use a gateway"
                    .to_owned(),
            ),
            Self::Windows(true) => Some("a Windows pod gets no agent; use a gateway".to_owned()),
            Self::NameTaken(name) => {
                Some(format!("the pod has a volume {name} already, and so gets no agent; rename the volume"))
            }
        }
    }
}

/// Whether a pod is to have an agent. `namespace_asks`: for every pod that does not refuse.
pub(crate) fn judge(pod: &Pod, namespace_asks: bool) -> Result<(), Left> {
    let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(INJECT)).map(String::as_str);
    let itself = label.is_some_and(asks);
    match label {
        Some("disabled" | "false") => return Err(Left::Refused),
        Some(value) if !itself => return Err(Left::Unclear(value.chars().take(63).collect())),
        None if !namespace_asks => return Err(Left::NotAsked),
        _ => {}
    }
    let Some(spec) = &pod.spec else { return Err(Left::NotAsked) };
    // A static pod's shadow: kubelet would take a changed one for another pod.
    if pod.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(MIRROR)) {
        return Err(Left::NotAsked);
    }
    if has_agent(spec) {
        return Err(Left::HasAgent);
    }
    if spec.host_network == Some(true) {
        return Err(Left::HostNetwork(itself));
    }
    if spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        return Err(Left::Windows(itself));
    }
    let taken = spec
        .volumes
        .iter()
        .flatten()
        .find_map(|volume| VOLUMES.into_iter().find(|name| volume.name == *name));
    taken.map_or(Ok(()), |name| Err(Left::NameTaken(name)))
}

pub(crate) fn has_agent(spec: &PodSpec) -> bool {
    let all = spec.init_containers.iter().flatten().chain(&spec.containers);
    all.into_iter().any(|container| container.name == CONTAINER)
}

/// What an injected pod may get wrong.
pub(crate) fn warnings(pod: &Pod) -> Vec<String> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let ports = containers.flat_map(|container| {
        let ports = container.ports.iter().flatten().map(|port| port.container_port);
        ports.map(|port| (container.name.as_str(), port))
    });
    let ours = [APPLICATIONS_PORT, ADMIN_PORT].map(i32::from);
    ports
        .filter(|(_, port)| ours.contains(port))
        .map(|(container, port)| {
            format!(
                "container {container} names port {port}, on which the pod's agent listens: use another one"
            )
        })
        .collect()
}

/// An operation of a JSON patch (RFC 6902). Nothing is taken away.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Add {
    op: &'static str,
    path: String,
    value: Value,
}

impl Add {
    fn at(path: impl Into<String>, value: Value) -> Self {
        Self { op: "add", path: path.into(), value }
    }

    /// To a list, which may not be there yet: its end, or with `first` its beginning.
    fn to_list(path: &str, exists: bool, first: bool, values: Vec<Value>) -> Vec<Self> {
        if !exists {
            return if values.is_empty() { Vec::new() } else { vec![Self::at(path, Value::Array(values))] };
        }
        let place = if first { "0" } else { "-" };
        values.into_iter().map(|value| Self::at(format!("{path}/{place}"), value)).collect()
    }
}

/// What makes it a pod with an agent. `passes_credentials`: some route passes the caller's own credential on, and a
/// placeholder must not take its place.
pub(crate) fn additions(pod: &Pod, sidecar: &Sidecar, passes_credentials: bool) -> Vec<Add> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let mut additions = vec![if pod.metadata.labels.is_some() {
        Add::at(format!("/metadata/labels/{}", INJECTED.replace('/', "~1")), json!("sidecar"))
    } else {
        Add::at("/metadata/labels", json!({ INJECTED: "sidecar" }))
    }];
    let annotation = pod.metadata.annotations.as_ref().and_then(|all| all.get(INJECT_ENV));
    if annotation.is_none_or(|value| value != "disabled") {
        let init = spec.init_containers.iter().flatten().enumerate();
        let init = init.map(|(place, container)| (format!("/spec/initContainers/{place}/env"), container));
        let others = spec.containers.iter().enumerate();
        let others = others.map(|(place, container)| (format!("/spec/containers/{place}/env"), container));
        for (path, container) in init.chain(others) {
            let env = missing_env(container, passes_credentials).map(|variable| json!(variable)).collect();
            additions.extend(Add::to_list(&path, container.env.is_some(), false, env));
        }
    }
    // Last: it moves the others.
    let (agent, exists) = (json!(agent(sidecar)), spec.init_containers.is_some());
    additions.extend(Add::to_list("/spec/initContainers", exists, true, vec![agent]));
    let volumes = volumes().iter().map(|volume| json!(volume)).collect();
    additions.extend(Add::to_list("/spec/volumes", spec.volumes.is_some(), false, volumes));
    let has = |name: &String| spec.image_pull_secrets.iter().flatten().any(|secret| secret.name == *name);
    let pulls = sidecar.image_pull_secrets.iter().filter(|name| !has(name));
    let pulls = pulls.map(|name| json!({ "name": name })).collect();
    let exists = spec.image_pull_secrets.is_some();
    additions.extend(Add::to_list("/spec/imagePullSecrets", exists, false, pulls));
    additions
}

/// The variables by which a container's SDKs find the agent, without those that it sets itself.
fn missing_env(container: &Container, passes_credentials: bool) -> impl Iterator<Item = EnvVar> {
    let base = format!("http://127.0.0.1:{APPLICATIONS_PORT}");
    let mut wanted = vec![("OPENAI_BASE_URL", format!("{base}/v1")), ("ANTHROPIC_BASE_URL", base)];
    let may_bring_keys = container.env_from.as_ref().is_some_and(|sources| !sources.is_empty());
    if !may_bring_keys && !passes_credentials {
        let placeholder = "replaced-by-sluice".to_owned();
        wanted.extend([("OPENAI_API_KEY", placeholder.clone()), ("ANTHROPIC_API_KEY", placeholder)]);
    }
    let set: BTreeSet<String> =
        container.env.iter().flatten().map(|variable| variable.name.clone()).collect();
    wanted.into_iter().filter(move |(name, _)| !set.contains(*name)).map(|(name, value)| EnvVar {
        name: name.to_owned(),
        value: Some(value),
        value_from: None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn pod(labels: &Value, container: &Value) -> Value {
        json!({
            "metadata": {"name": "app", "labels": labels},
            "spec": {"initContainers": [{"name": "migrate"}], "containers": [container]},
        })
    }

    fn read(pod: &Value) -> Pod {
        serde_json::from_value(pod.clone()).unwrap()
    }

    /// The pod as the API server makes it of the answer.
    fn injected(pod: &Value, passes_credentials: bool) -> Value {
        let additions = additions(&read(pod), &Sidecar::default(), passes_credentials);
        let patch: json_patch::Patch = serde_json::from_value(json!(additions)).unwrap();
        let mut patched = pod.clone();
        json_patch::patch(&mut patched, &patch).unwrap();
        patched
    }

    fn env(container: &Container) -> BTreeMap<&str, &str> {
        let env = container.env.iter().flatten();
        env.map(|variable| (variable.name.as_str(), variable.value.as_deref().unwrap_or_default())).collect()
    }

    #[test]
    fn pods_ask_or_refuse_and_namespaces_ask_for_all() {
        let container = json!({"name": "app"});
        let of = |labels: Value| read(&pod(&labels, &container));
        let plain = of(json!({}));
        assert_eq!((judge(&plain, false), judge(&plain, true)), (Err(Left::NotAsked), Ok(())));
        for value in ["enabled", "true"] {
            assert_eq!(judge(&of(json!({INJECT: value})), false), Ok(()));
        }
        assert_eq!(judge(&of(json!({INJECT: "disabled"})), true), Err(Left::Refused));
        let unclear = judge(&of(json!({INJECT: "yes"})), true).unwrap_err();
        assert!(unclear.warning().unwrap().contains("sluice.dev/inject=yes"), "{unclear:?}");
    }

    #[test]
    fn what_cannot_have_one_is_left_and_only_who_asked_for_it_is_told() {
        let container = json!({"name": "app"});
        let asked = [(json!({INJECT: "enabled"}), true), (json!({}), false)];
        for (labels, itself) in asked {
            let mut on_host = read(&pod(&labels, &container));
            on_host.spec.as_mut().unwrap().host_network = Some(true);
            let left = judge(&on_host, true).unwrap_err();
            assert_eq!(left, Left::HostNetwork(itself));
            assert_eq!(left.warning().is_some(), itself);
        }
        let mut mirror = pod(&json!({}), &container);
        mirror["metadata"]["annotations"] = json!({MIRROR: "hash"});
        assert_eq!(judge(&read(&mirror), true), Err(Left::NotAsked));
        let mut windows = pod(&json!({}), &container);
        windows["spec"]["os"] = json!({"name": "windows"});
        assert_eq!(judge(&read(&windows), true), Err(Left::Windows(false)));
        let mut taken = pod(&json!({}), &container);
        taken["spec"]["volumes"] = json!([{"name": "sluice-state", "emptyDir": {}}]);
        let left = judge(&read(&taken), true).unwrap_err();
        assert!(left.warning().unwrap().contains("sluice-state"), "{left:?}");
        let port = json!({"name": "app", "ports": [{"containerPort": 8111}, {"containerPort": 8080}]});
        let told = warnings(&read(&pod(&json!({}), &port)));
        assert!(told.len() == 1 && told[0].contains("app names port 8111"), "{told:?}");
    }

    #[test]
    fn the_agent_starts_first_lives_on_and_is_added_once() {
        let pod = injected(&pod(&json!({INJECT: "enabled"}), &json!({"name": "app"})), false);
        let pod = read(&pod);
        let spec = pod.spec.as_ref().unwrap();
        let init = spec.init_containers.as_ref().unwrap();
        let names: Vec<&str> = init.iter().map(|container| container.name.as_str()).collect();
        assert_eq!(names, [CONTAINER, "migrate"]);
        assert_eq!(init[0].restart_policy.as_deref(), Some("Always"));
        assert_eq!(spec.volumes.as_ref().unwrap().len(), 3);
        assert_eq!(pod.metadata.labels.as_ref().unwrap()[INJECTED], "sidecar");
        assert_eq!(judge(&pod, true), Err(Left::HasAgent), "asked a second time");
    }

    #[test]
    fn applications_find_it_unless_they_say_otherwise() {
        let plain = pod(&json!({}), &json!({"name": "app"}));
        let spec = read(&injected(&plain, false)).spec.unwrap();
        for container in spec.containers.iter().chain(&spec.init_containers.unwrap()[1..]) {
            let env = env(container);
            assert_eq!(env["OPENAI_BASE_URL"], "http://127.0.0.1:8110/v1");
            assert_eq!(env["ANTHROPIC_BASE_URL"], "http://127.0.0.1:8110");
            assert_eq!(env["OPENAI_API_KEY"], "replaced-by-sluice");
        }
        let own = json!({"name": "app", "env": [{"name": "OPENAI_BASE_URL", "value": "https://mine"}],
            "envFrom": [{"secretRef": {"name": "keys"}}]});
        let spec = read(&injected(&pod(&json!({}), &own), false)).spec.unwrap();
        let env_of = env(&spec.containers[0]);
        assert_eq!(env_of["OPENAI_BASE_URL"], "https://mine");
        assert!(!env_of.contains_key("OPENAI_API_KEY"), "envFrom may bring one");
        let spec = read(&injected(&plain, true)).spec.unwrap();
        assert!(!env(&spec.containers[0]).contains_key("OPENAI_API_KEY"));
        let mut left = plain;
        left["metadata"]["annotations"] = json!({INJECT_ENV: "disabled"});
        assert!(read(&injected(&left, false)).spec.unwrap().containers[0].env.is_none());
    }

    #[test]
    fn secrets_for_pulling_its_image_come_after_the_pods_own() {
        let sidecar =
            Sidecar { image_pull_secrets: vec!["ours".to_owned(), "both".to_owned()], ..Sidecar::default() };
        for (own, expected) in [
            (json!(null), json!([{"name": "ours"}, {"name": "both"}])),
            (json!([{"name": "both"}]), json!([{"name": "both"}, {"name": "ours"}])),
        ] {
            let mut pod = pod(&json!({}), &json!({"name": "app"}));
            if own.is_array() {
                pod["spec"]["imagePullSecrets"] = own;
            }
            let additions = additions(&read(&pod), &sidecar, false);
            let patch: json_patch::Patch = serde_json::from_value(json!(additions)).unwrap();
            json_patch::patch(&mut pod, &patch).unwrap();
            assert_eq!(pod["spec"]["imagePullSecrets"], expected);
        }
    }

    #[test]
    fn what_this_build_does_not_know_stays_with_its_container() {
        let mut pod = pod(&json!({"app": "a"}), &json!({"name": "app", "ofTheFuture": 2, "env": []}));
        pod["spec"]["initContainers"][0]["ofTheFuture"] = json!(1);
        pod["spec"]["alsoNew"] = json!({"deep": [1]});
        let pod = injected(&pod, false);
        assert_eq!(pod["spec"]["initContainers"][0]["ofTheFuture"], Value::Null, "the agent's");
        assert_eq!(pod["spec"]["initContainers"][1]["ofTheFuture"], json!(1));
        assert_eq!(pod["spec"]["initContainers"][1]["name"], json!("migrate"));
        assert_eq!(pod["spec"]["containers"][0]["ofTheFuture"], json!(2));
        assert_eq!(pod["spec"]["alsoNew"], json!({"deep": [1]}));
    }

    prop_compose! {
        fn container()(
            name in "[a-z]{1,8}",
            env in prop::option::of(prop::collection::vec(
                prop::sample::select(vec!["OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "OTHER"]), 0..3)),
            from in prop::option::of(0_usize..2),
        ) -> Value {
            let mut container = json!({"name": name});
            if let Some(env) = env {
                container["env"] = env.iter().map(|name| json!({"name": name, "value": "own"})).collect();
            }
            if let Some(from) = from {
                container["envFrom"] = vec![json!({"secretRef": {"name": "keys"}}); from].into();
            }
            container
        }
    }

    proptest! {
        /// Whatever lists a pod has or lacks: the patch applies, adds an agent, and takes nothing away.
        #[test]
        fn any_pod_keeps_what_it_has(
            init in prop::option::of(prop::collection::vec(container(), 0..3)),
            containers in prop::collection::vec(container(), 1..4),
            labels in prop::option::of(Just(json!({"app": "a"}))),
            volumes in prop::option::of(prop::collection::vec("[a-z]{1,5}", 0..3)),
            passes_credentials: bool,
        ) {
            let mut pod = json!({"metadata": {"name": "app"}, "spec": {"containers": containers}});
            if let Some(init) = &init { pod["spec"]["initContainers"] = json!(init); }
            if let Some(labels) = &labels { pod["metadata"]["labels"] = labels.clone(); }
            if let Some(volumes) = &volumes {
                pod["spec"]["volumes"] = volumes.iter().map(|name| json!({"name": name})).collect();
            }
            prop_assert_eq!(judge(&read(&pod), true), Ok(()));
            let patched = injected(&pod, passes_credentials);
            prop_assert_eq!(judge(&read(&patched), true), Err(Left::HasAgent));
            let lists = [("initContainers", 1), ("containers", 0), ("volumes", 0)];
            for (list, skip) in lists {
                let before = pod["spec"][list].as_array().cloned().unwrap_or_default();
                let after: Vec<Value> = patched["spec"][list].as_array().unwrap()[skip..].to_vec();
                for (before, after) in before.iter().zip(&after) {
                    prop_assert_eq!(&before["name"], &after["name"]);
                    let own = before["env"].as_array().cloned().unwrap_or_default();
                    let all = after["env"].as_array().cloned().unwrap_or_default();
                    prop_assert_eq!(&all[..own.len()], &own[..], "its own come first and as they were");
                }
            }
        }
    }
}
