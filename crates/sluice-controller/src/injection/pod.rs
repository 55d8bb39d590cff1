//! A pod with an agent.
//!
//! The agent is a native sidecar: the first init container, with `restartPolicy: Always`, so that it serves before the
//! application starts (its startup probe holds the next container back), lives as long as the application, and does
//! not keep a Job from completing. It meets PodSecurity *restricted*.
//!
//! Applications find it by the variables that their SDKs read. A container whose `env` names such a variable keeps its
//! own value; what comes from `envFrom` can't be seen here and is overruled by `env`. Placeholder keys are set only
//! where nothing else may bring one: SDKs refuse to start without a key, and the agent replaces it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource, EnvVar,
    EnvVarSource, HTTPGetAction, ObjectFieldSelector, Pod, PodSpec, Probe, ProjectedVolumeSource,
    ResourceRequirements, SeccompProfile, SecurityContext, ServiceAccountTokenProjection, Volume,
    VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::pods::INJECTED;
use crate::tokens::AUDIENCE;

/// `enabled` on a namespace or pod asks for an agent, `disabled` on a pod refuses it.
pub(crate) const INJECT: &str = "sluice.dev/inject";
/// On a pod: `disabled` leaves the applications' environment as it is.
pub(crate) const INJECT_ENV: &str = "sluice.dev/inject-env";
/// The container's name.
pub(crate) const CONTAINER: &str = "sluice-agent";
/// The ConfigMap with the authorities.
pub(crate) const CA_CONFIG_MAP: &str = "sluice-ca";

const APPLICATIONS_PORT: u16 = 8110;
const ADMIN_PORT: u16 = 8111;
const USER: i64 = 65_532;
const TOKEN_SECONDS: i64 = 3_600;

/// What the chart says of agents.
#[derive(Debug, Clone)]
pub(crate) struct Sidecar {
    pub(crate) image: String,
    /// `https://sluice-controller.sluice-system.svc:8112`.
    pub(crate) control_plane: String,
    /// Without a password; that comes from a Secret of the pod's namespace, if any.
    pub(crate) redis: Option<String>,
    pub(crate) cpu_request: String,
    pub(crate) memory_request: String,
    pub(crate) memory_limit: String,
    pub(crate) grace: String,
}

/// What is known of the pod's namespace.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Surroundings {
    /// Every pod that does not refuse.
    pub(crate) namespace_asks: bool,
    /// Some route passes the caller's own credential on: a placeholder must not take its place.
    pub(crate) passes_credentials: bool,
}

/// Whether a pod is to have an agent.
pub(crate) fn is_wanted(pod: &Pod, surroundings: Surroundings) -> bool {
    let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(INJECT)).map(String::as_str);
    let asked = match label {
        Some("enabled" | "true") => true,
        Some(_) => false,
        None => surroundings.namespace_asks,
    };
    // In the host's network its port would be the node's.
    let host_network = pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true));
    asked && !host_network && !has_agent(pod)
}

fn has_agent(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let all = spec.init_containers.iter().flatten().chain(&spec.containers);
    all.into_iter().any(|container| container.name == CONTAINER)
}

/// Adds the agent.
pub(crate) fn inject(pod: &mut Pod, sidecar: &Sidecar, surroundings: Surroundings) {
    let annotation = pod.metadata.annotations.as_ref().and_then(|all| all.get(INJECT_ENV));
    let with_env = annotation.is_none_or(|value| value != "disabled");
    pod.metadata.labels.get_or_insert_default().insert(INJECTED.to_owned(), "sidecar".to_owned());
    let Some(spec) = &mut pod.spec else { return };
    if with_env {
        let init = spec.init_containers.iter_mut().flatten();
        for container in init.chain(&mut spec.containers) {
            point_at_agent(container, surroundings);
        }
    }
    spec.init_containers.get_or_insert_default().insert(0, agent(sidecar));
    add_volumes(spec);
}

fn point_at_agent(container: &mut Container, surroundings: Surroundings) {
    let base = format!("http://127.0.0.1:{APPLICATIONS_PORT}");
    let may_bring_keys = container.env_from.as_ref().is_some_and(|sources| !sources.is_empty());
    let placeholders = !may_bring_keys && !surroundings.passes_credentials;
    let env = container.env.get_or_insert_default();
    let mut set = |name: &str, value: String| {
        if !env.iter().any(|variable| variable.name == name) {
            env.push(EnvVar { name: name.to_owned(), value: Some(value), value_from: None });
        }
    };
    set("OPENAI_BASE_URL", format!("{base}/v1"));
    set("ANTHROPIC_BASE_URL", base.clone());
    if placeholders {
        set("OPENAI_API_KEY", "replaced-by-sluice".to_owned());
        set("ANTHROPIC_API_KEY", "replaced-by-sluice".to_owned());
    }
}

fn agent(sidecar: &Sidecar) -> Container {
    let value = |name: &str, value: &str| EnvVar {
        name: name.to_owned(),
        value: Some(value.to_owned()),
        value_from: None,
    };
    let field = |name: &str, path: &str| EnvVar {
        name: name.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector { field_path: path.to_owned(), api_version: None }),
            ..EnvVarSource::default()
        }),
    };
    let mut env = vec![
        value("SLUICE_LISTEN", &format!("127.0.0.1:{APPLICATIONS_PORT}")),
        value("SLUICE_ADMIN", &format!("0.0.0.0:{ADMIN_PORT}")),
        value("SLUICE_CONTROL_PLANE", &sidecar.control_plane),
        value("SLUICE_CONTROL_PLANE_CA", "/var/run/sluice/ca/ca.crt"),
        value("SLUICE_TOKEN", "/var/run/sluice/token/token"),
        value("SLUICE_SNAPSHOT", "/var/run/sluice/state"),
        value("SLUICE_GRACE", &sidecar.grace),
        field("SLUICE_NAMESPACE", "metadata.namespace"),
        field("SLUICE_POD", "metadata.name"),
    ];
    env.extend(sidecar.redis.as_deref().map(|url| value("SLUICE_REDIS_URL", url)));
    let mount = |name: &str, path: &str, read_only: bool| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    };
    Container {
        name: CONTAINER.to_owned(),
        image: Some(sidecar.image.clone()),
        args: Some(vec!["agent".to_owned()]),
        restart_policy: Some("Always".to_owned()),
        env: Some(env),
        ports: Some(vec![ContainerPort {
            name: Some("sluice-admin".to_owned()),
            container_port: i32::from(ADMIN_PORT),
            ..ContainerPort::default()
        }]),
        // Ready means that it listens and has policies, or its last good ones: never that Redis or a controller answers.
        startup_probe: Some(probe("/readyz", 1, 60)),
        liveness_probe: Some(probe("/livez", 10, 3)),
        resources: Some(resources(sidecar)),
        security_context: Some(restricted()),
        volume_mounts: Some(vec![
            mount("sluice-token", "/var/run/sluice/token", true),
            mount("sluice-ca", "/var/run/sluice/ca", true),
            mount("sluice-state", "/var/run/sluice/state", false),
        ]),
        ..Container::default()
    }
}

fn probe(path: &str, period: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::Int(i32::from(ADMIN_PORT)),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        failure_threshold: Some(failures),
        timeout_seconds: Some(2),
        ..Probe::default()
    }
}

fn resources(sidecar: &Sidecar) -> ResourceRequirements {
    let of = |pairs: &[(&str, &str)]| -> BTreeMap<String, Quantity> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), Quantity((*value).to_owned()))).collect()
    };
    ResourceRequirements {
        requests: Some(of(&[("cpu", &sidecar.cpu_request), ("memory", &sidecar.memory_request)])),
        limits: Some(of(&[("memory", &sidecar.memory_limit)])),
        ..ResourceRequirements::default()
    }
}

fn restricted() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
        read_only_root_filesystem: Some(true),
        run_as_non_root: Some(true),
        run_as_user: Some(USER),
        run_as_group: Some(USER),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
        ..SecurityContext::default()
    }
}

fn add_volumes(spec: &mut PodSpec) {
    let token = VolumeProjection {
        service_account_token: Some(ServiceAccountTokenProjection {
            audience: Some(AUDIENCE.to_owned()),
            expiration_seconds: Some(TOKEN_SECONDS),
            path: "token".to_owned(),
        }),
        ..VolumeProjection::default()
    };
    let volumes = spec.volumes.get_or_insert_default();
    volumes.push(Volume {
        name: "sluice-token".to_owned(),
        projected: Some(ProjectedVolumeSource { sources: Some(vec![token]), default_mode: Some(0o444) }),
        ..Volume::default()
    });
    volumes.push(Volume {
        name: "sluice-ca".to_owned(),
        // The pod may be older than the ConfigMap of its namespace: the agent waits for the file.
        config_map: Some(ConfigMapVolumeSource {
            name: CA_CONFIG_MAP.to_owned(),
            optional: Some(true),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    });
    volumes.push(Volume {
        name: "sluice-state".to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: Some("Memory".to_owned()),
            size_limit: Some(Quantity("16Mi".to_owned())),
        }),
        ..Volume::default()
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sidecar() -> Sidecar {
        Sidecar {
            image: "sluice:1".to_owned(),
            control_plane: "https://sluice-controller.sluice-system.svc:8112".to_owned(),
            redis: None,
            cpu_request: "20m".to_owned(),
            memory_request: "32Mi".to_owned(),
            memory_limit: "256Mi".to_owned(),
            grace: "25s".to_owned(),
        }
    }

    fn pod(labels: &serde_json::Value, container: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "app", "labels": labels},
            "spec": {"initContainers": [{"name": "migrate"}], "containers": [container]},
        }))
        .unwrap()
    }

    fn env(container: &Container) -> BTreeMap<&str, &str> {
        let env = container.env.iter().flatten();
        env.map(|variable| (variable.name.as_str(), variable.value.as_deref().unwrap_or_default())).collect()
    }

    #[test]
    fn pods_ask_or_refuse_and_namespaces_ask_for_all() {
        let all = Surroundings { namespace_asks: true, ..Surroundings::default() };
        let container = json!({"name": "app"});
        let plain = pod(&json!({}), &container);
        assert!(!is_wanted(&plain, Surroundings::default()) && is_wanted(&plain, all));
        assert!(is_wanted(&pod(&json!({INJECT: "enabled"}), &container), Surroundings::default()));
        assert!(!is_wanted(&pod(&json!({INJECT: "disabled"}), &container), all));
        let mut on_host = pod(&json!({INJECT: "enabled"}), &container);
        on_host.spec.as_mut().unwrap().host_network = Some(true);
        assert!(!is_wanted(&on_host, all));
    }

    #[test]
    fn the_agent_starts_first_lives_on_and_is_added_once() {
        let mut pod = pod(&json!({INJECT: "enabled"}), &json!({"name": "app"}));
        inject(&mut pod, &sidecar(), Surroundings::default());
        let spec = pod.spec.clone().unwrap();
        let init = spec.init_containers.unwrap();
        assert_eq!(
            init.iter().map(|container| container.name.as_str()).collect::<Vec<_>>(),
            [CONTAINER, "migrate"]
        );
        assert_eq!(init[0].restart_policy.as_deref(), Some("Always"));
        assert_eq!(spec.volumes.unwrap().len(), 3);
        assert_eq!(pod.metadata.labels.as_ref().unwrap()[INJECTED], "sidecar");
        assert!(!is_wanted(&pod, Surroundings::default()), "asked a second time");
    }

    #[test]
    fn applications_find_it_unless_they_say_otherwise() {
        let mut plain = pod(&json!({}), &json!({"name": "app"}));
        inject(&mut plain, &sidecar(), Surroundings::default());
        let spec = plain.spec.unwrap();
        for container in spec.containers.iter().chain(&spec.init_containers.unwrap()[1..]) {
            let env = env(container);
            assert_eq!(env["OPENAI_BASE_URL"], "http://127.0.0.1:8110/v1");
            assert_eq!(env["ANTHROPIC_BASE_URL"], "http://127.0.0.1:8110");
            assert_eq!(env["OPENAI_API_KEY"], "replaced-by-sluice");
        }
        let own = json!({"name": "app", "env": [{"name": "OPENAI_BASE_URL", "value": "https://mine"}],
            "envFrom": [{"secretRef": {"name": "keys"}}]});
        let mut own = pod(&json!({}), &own);
        inject(&mut own, &sidecar(), Surroundings::default());
        let spec = own.spec.unwrap();
        let env_of = env(&spec.containers[0]);
        assert_eq!(env_of["OPENAI_BASE_URL"], "https://mine");
        assert!(!env_of.contains_key("OPENAI_API_KEY"), "envFrom may bring one");
        let passing = Surroundings { passes_credentials: true, ..Surroundings::default() };
        let mut plain = pod(&json!({}), &json!({"name": "app"}));
        inject(&mut plain, &sidecar(), passing);
        assert!(!env(&plain.spec.unwrap().containers[0]).contains_key("OPENAI_API_KEY"));
        let mut left = pod(&json!({}), &json!({"name": "app"}));
        left.metadata.annotations = Some([(INJECT_ENV.to_owned(), "disabled".to_owned())].into());
        inject(&mut left, &sidecar(), Surroundings::default());
        assert!(left.spec.unwrap().containers[0].env.is_none());
    }
}
