//! The agent as a container of somebody else's pod, and the volumes that it mounts.
//!
//! It is a native sidecar: the first init container, with `restartPolicy: Always`, so that it serves before the
//! application starts (its startup probe holds the next container back), lives as long as the application, and does
//! not keep a Job from completing. It meets PodSecurity *restricted*.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource, EnvVar,
    EnvVarSource, HTTPGetAction, ObjectFieldSelector, Probe, ProjectedVolumeSource, ResourceRequirements,
    SeccompProfile, SecretKeySelector, SecurityContext, ServiceAccountTokenProjection, Volume, VolumeMount,
    VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::certificates;
use crate::config::Sidecar;
use crate::tokens::AUDIENCE;

/// The container's name.
pub(crate) const CONTAINER: &str = "sluice-agent";
/// Where applications call it, on the pod's loopback.
pub(crate) const APPLICATIONS_PORT: u16 = 8110;
pub(crate) const ADMIN_PORT: u16 = 8111;
pub(crate) const VOLUMES: [&str; 3] = [TOKEN_VOLUME, CA_VOLUME, STATE_VOLUME];

const TOKEN_VOLUME: &str = "sluice-token";
const CA_VOLUME: &str = "sluice-ca";
const STATE_VOLUME: &str = "sluice-state";
const OTLP_HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
const TOKEN_SECONDS: i64 = 3_600;

pub(crate) fn agent(sidecar: &Sidecar) -> Container {
    Container {
        name: CONTAINER.to_owned(),
        image: Some(sidecar.image.clone()),
        image_pull_policy: sidecar.image_pull_policy.clone(),
        command: Some(vec!["/usr/local/bin/sluice-agent".to_owned()]),
        restart_policy: Some("Always".to_owned()),
        env: Some(env(sidecar)),
        ports: Some(vec![ContainerPort {
            name: Some("sluice-admin".to_owned()),
            container_port: i32::from(ADMIN_PORT),
            ..ContainerPort::default()
        }]),
        // Ready means that it listens and has policies, or its last good ones: never that Redis or a controller answers.
        startup_probe: Some(probe("/readyz", 1, 60)),
        liveness_probe: Some(probe("/livez", 10, 3)),
        resources: Some(resources(sidecar)),
        security_context: Some(restricted(sidecar.run_as_user)),
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        volume_mounts: Some(vec![
            mount(TOKEN_VOLUME, "/var/run/sluice/token", true),
            mount(CA_VOLUME, "/var/run/sluice/ca", true),
            mount(STATE_VOLUME, "/var/run/sluice/state", false),
        ]),
        ..Container::default()
    }
}

fn env(sidecar: &Sidecar) -> Vec<EnvVar> {
    let mut env = vec![
        value("SLUICE_LISTEN", &format!("127.0.0.1:{APPLICATIONS_PORT}")),
        value("SLUICE_ADMIN", &format!("[::]:{ADMIN_PORT}")),
        value("SLUICE_CONTROL_PLANE", &sidecar.control_plane),
        value("SLUICE_CONTROL_PLANE_CA", "/var/run/sluice/ca/ca.crt"),
        value("SLUICE_TOKEN", "/var/run/sluice/token/token"),
        value("SLUICE_SNAPSHOT", "/var/run/sluice/state"),
        value("SLUICE_GRACE", &sidecar.grace),
        field("SLUICE_NAMESPACE", "metadata.namespace"),
        field("SLUICE_POD", "metadata.name"),
    ];
    env.extend(sidecar.log_level.as_deref().map(|level| value("RUST_LOG", level)));
    env.extend(sidecar.log_format.as_deref().map(|format| value("SLUICE_LOG_FORMAT", format)));
    env.extend(sidecar.redis_url.as_deref().map(|url| value("SLUICE_REDIS_URL", url)));
    env.extend(sidecar.redis_ca_pem.as_deref().map(|pem| value("SLUICE_REDIS_CA_PEM", pem)));
    if let Some(secret) = &sidecar.redis_secret {
        env.push(optional_secret("SLUICE_REDIS_USERNAME", secret, "username"));
        env.push(optional_secret("SLUICE_REDIS_PASSWORD", secret, "password"));
    }
    env.extend(sidecar.telemetry.iter().map(|(name, text)| value(name, text)));
    if let Some(secret) = &sidecar.otel_headers_secret {
        // A variable that is named twice has its last value: the Secret's is the one to keep.
        env.retain(|variable| variable.name != OTLP_HEADERS);
        env.push(optional_secret(OTLP_HEADERS, secret, "headers"));
    }
    env
}

fn value(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.to_owned()), value_from: None }
}

fn field(name: &str, path: &str) -> EnvVar {
    let path = ObjectFieldSelector { field_path: path.to_owned(), api_version: None };
    let from = EnvVarSource { field_ref: Some(path), ..EnvVarSource::default() };
    EnvVar { name: name.to_owned(), value: None, value_from: Some(from) }
}

/// A namespace without that Secret, or a Secret without that key, is no reason not to start.
fn optional_secret(name: &str, secret: &str, key: &str) -> EnvVar {
    let key = SecretKeySelector { name: secret.to_owned(), key: key.to_owned(), optional: Some(true) };
    let from = EnvVarSource { secret_key_ref: Some(key), ..EnvVarSource::default() };
    EnvVar { name: name.to_owned(), value: None, value_from: Some(from) }
}

fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
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
    let of = |cpu: Option<&str>, memory: &str| -> BTreeMap<String, Quantity> {
        let pairs = cpu.map(|cpu| ("cpu", cpu)).into_iter().chain([("memory", memory)]);
        pairs.map(|(name, value)| (name.to_owned(), Quantity(value.to_owned()))).collect()
    };
    ResourceRequirements {
        requests: Some(of(Some(&sidecar.cpu_request), &sidecar.memory_request)),
        limits: Some(of(sidecar.cpu_limit.as_deref(), &sidecar.memory_limit)),
        ..ResourceRequirements::default()
    }
}

fn restricted(user: Option<i64>) -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
        read_only_root_filesystem: Some(true),
        run_as_non_root: Some(true),
        run_as_user: user,
        run_as_group: user,
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
        ..SecurityContext::default()
    }
}

pub(crate) fn volumes() -> [Volume; 3] {
    let token = VolumeProjection {
        service_account_token: Some(ServiceAccountTokenProjection {
            audience: Some(AUDIENCE.to_owned()),
            expiration_seconds: Some(TOKEN_SECONDS),
            path: "token".to_owned(),
        }),
        ..VolumeProjection::default()
    };
    let token = Volume {
        name: TOKEN_VOLUME.to_owned(),
        projected: Some(ProjectedVolumeSource { sources: Some(vec![token]), default_mode: Some(0o444) }),
        ..Volume::default()
    };
    let ca = Volume {
        name: CA_VOLUME.to_owned(),
        // The pod may be older than the ConfigMap of its namespace: the agent waits for the file.
        config_map: Some(ConfigMapVolumeSource {
            name: certificates::NAME.to_owned(),
            optional: Some(true),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    };
    let state = Volume {
        name: STATE_VOLUME.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: Some("Memory".to_owned()),
            size_limit: Some(Quantity("16Mi".to_owned())),
        }),
        ..Volume::default()
    };
    [token, ca, state]
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn sidecar() -> Sidecar {
        Sidecar {
            image: "sluice:1".to_owned(),
            control_plane: "https://sluice-controller.sluice-system.svc:8112".to_owned(),
            redis_url: Some("redis://sluice-redis.sluice-system.svc:6379".to_owned()),
            redis_secret: Some("sluice-redis".to_owned()),
            telemetry: [("OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(), "http://collector:4317".to_owned())]
                .into(),
            ..Sidecar::default()
        }
    }

    #[test]
    fn it_is_told_where_everything_is_and_passwords_come_from_a_secret_that_may_be_missing() {
        let agent = agent(&sidecar());
        let env = agent.env.unwrap();
        let find = |name: &str| env.iter().find(|variable| variable.name == name).unwrap();
        assert_eq!(find("OTEL_EXPORTER_OTLP_ENDPOINT").value.as_deref(), Some("http://collector:4317"));
        let password = find("SLUICE_REDIS_PASSWORD").value_from.clone().unwrap().secret_key_ref.unwrap();
        assert_eq!(
            (password.name.as_str(), password.key.as_str(), password.optional),
            ("sluice-redis", "password", Some(true))
        );
        let named: std::collections::BTreeSet<&str> =
            env.iter().map(|variable| variable.name.as_str()).collect();
        assert_eq!(named.len(), env.len(), "a variable is named twice");
        assert_eq!(agent.command.unwrap(), ["/usr/local/bin/sluice-agent"]);
    }

    #[test]
    fn what_a_platform_asks_for_can_be_said() {
        let plain = agent(&sidecar());
        let limits = plain.resources.as_ref().unwrap().limits.as_ref().unwrap();
        assert!(!limits.contains_key("cpu"), "{limits:?}");
        assert_eq!(plain.security_context.as_ref().unwrap().run_as_user, Some(65_532));
        let other = agent(&Sidecar {
            image_pull_policy: Some("Always".to_owned()),
            run_as_user: None,
            cpu_limit: Some("1".to_owned()),
            log_format: Some("json".to_owned()),
            telemetry: [(OTLP_HEADERS.to_owned(), "a=plain".to_owned())].into(),
            otel_headers_secret: Some("collector".to_owned()),
            ..sidecar()
        });
        let security = other.security_context.unwrap();
        assert_eq!((security.run_as_user, security.run_as_group), (None, None));
        assert_eq!(security.run_as_non_root, Some(true));
        assert_eq!(other.image_pull_policy.as_deref(), Some("Always"));
        assert_eq!(other.resources.unwrap().limits.unwrap()["cpu"].0, "1");
        let env = other.env.unwrap();
        let headers: Vec<_> = env.iter().filter(|variable| variable.name == OTLP_HEADERS).collect();
        assert_eq!(headers.len(), 1);
        let secret = headers[0].value_from.clone().unwrap().secret_key_ref.unwrap();
        assert_eq!(
            (secret.name.as_str(), secret.key.as_str(), secret.optional),
            ("collector", "headers", Some(true))
        );
        assert!(env.iter().any(|variable| variable.name == "SLUICE_LOG_FORMAT"));
    }

    #[test]
    fn what_it_mounts_is_what_the_pod_gets() {
        let mounts = agent(&sidecar()).volume_mounts.unwrap();
        let mounts: Vec<&str> = mounts.iter().map(|mount| mount.name.as_str()).collect();
        let volumes = volumes();
        let volumes: Vec<&str> = volumes.iter().map(|volume| volume.name.as_str()).collect();
        assert_eq!((mounts.as_slice(), volumes.as_slice()), (&VOLUMES[..], &VOLUMES[..]));
    }
}
