//! Routes, policies and workloads of the tests. A test changes what matters to it.

use serde_json::{Value, json};

/// Where the scripted provider of a test's namespace is.
pub const ENDPOINT: &str = "http://provider:9001/v1";

/// A target at an endpoint, without a credential.
pub fn target(name: &str, endpoint: &str) -> Value {
    json!({"name": name, "provider": "OpenAI", "endpoint": endpoint, "credential": {"type": "None"}})
}

/// A route with the target `primary` at the scripted provider.
pub fn route(name: &str, models: &[&str]) -> Value {
    json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "ModelRoute",
        "metadata": {"name": name},
        "spec": {"models": models, "targets": [target("primary", ENDPOINT)]},
    })
}

/// The same, with a key from a Secret.
pub fn route_with_secret(name: &str, models: &[&str], secret: &str, key: &str) -> Value {
    let mut route = route(name, models);
    route["spec"]["targets"][0]["credential"] =
        json!({"type": "SecretRef", "secretRef": {"name": secret, "key": key}});
    route
}

/// A policy for one route, with these groups.
pub fn policy(name: &str, route: &str, groups: &Value) -> Value {
    let mut spec = json!({"targetRefs": [{"group": "sluice.dev", "kind": "ModelRoute", "name": route}]});
    if let (Some(spec), Some(groups)) = (spec.as_object_mut(), groups.as_object()) {
        spec.extend(groups.clone());
    }
    json!({"apiVersion": "sluice.dev/v1alpha1", "kind": "ReliabilityPolicy", "metadata": {"name": name}, "spec": spec})
}

/// A breaker that opens after five failures and asks again within seconds.
pub fn quick_breaker() -> Value {
    json!({
        "deadlines": {"firstToken": "5s", "total": "60s", "stall": "5s", "maxSilence": "20s"},
        "retries": {"maxAttempts": 1},
        "breaker": {
            "window": {"type": "Time", "time": {"span": "20s", "buckets": 10}},
            "minimumCalls": 5,
            "failurePercent": 50,
            "cooldown": {"base": "5s", "jitterPercent": 20, "growthPercent": 100, "max": "5s"},
            "probes": {"concurrency": 1, "successes": 2},
            "ramp": {"duration": "0s"},
        },
    })
}

/// A Secret of text.
pub fn secret(name: &str, data: &[(&str, &str)]) -> Value {
    let data: serde_json::Map<String, Value> =
        data.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data})
}

pub fn config_map(name: &str, key: &str, text: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {key: text}})
}

/// As PodSecurity *restricted* wants a pod.
pub fn pod_security() -> Value {
    json!({"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}})
}

/// As PodSecurity *restricted* wants a container.
pub fn container_security() -> Value {
    json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}})
}

/// A Deployment with one container, and a readiness probe on `/healthz` of its port.
pub fn deployment(name: &str, image: &str, command: &[&str], port: u16) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "securityContext": pod_security(),
                    "enableServiceLinks": false,
                    "terminationGracePeriodSeconds": 30,
                    "containers": [{
                        "name": name, "image": image, "command": command,
                        "ports": [{"containerPort": port}],
                        "readinessProbe": {
                            "httpGet": {"path": "/healthz", "port": port}, "periodSeconds": 1, "timeoutSeconds": 5,
                        },
                        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
                        "securityContext": container_security(),
                    }],
                },
            },
        },
    })
}

pub fn service(name: &str, port: u16, target: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": port, "targetPort": target}]},
    })
}

/// A pod that never starts: it is there for its name, its labels, and the tokens that are made for it.
pub fn gated_pod(name: &str, image: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
        "spec": {
            "schedulingGates": [{"name": "e2e.sluice.dev/never"}],
            "securityContext": pod_security(),
            "containers": [{"name": "none", "image": image, "securityContext": container_security()}],
        },
    })
}
