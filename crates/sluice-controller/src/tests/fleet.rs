//! Replicas without TLS, agents that connect to them, and what is written of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sluice_core::target_id::TargetId;
use sluice_proto::apply::{Applied, PolicySet};
use sluice_proto::report::{Hello, Report};
use sluice_proto::v1;
use sluice_proto::v1::agent_message::Message as FromAgent;
use sluice_proto::v1::controller_message::Message as ToAgent;
use sluice_proto::v1::policy_discovery_client::PolicyDiscoveryClient;
use sluice_state::RedisConfig;
use sluice_telemetry::Signals;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use crate::Controller;
use crate::api_server::ApiServer;
use crate::config::{Config, Listeners, Paces};

pub(super) const ROUTES: &str = "apis/sluice.dev/v1alpha1/modelroutes";
pub(super) const POLICIES: &str = "apis/sluice.dev/v1alpha1/reliabilitypolicies";
pub(super) const EVENTS: &str = "apis/events.k8s.io/v1/events";
pub(super) const LEASES: &str = "apis/coordination.k8s.io/v1/leases";
pub(super) const SECRETS: &str = "api/v1/secrets";
const SLICES: &str = "apis/discovery.k8s.io/v1/endpointslices";
const ACCOUNT: &str = "system:serviceaccount:sluice-system:sluice-controller";
/// Far beyond what anything here takes.
const BOUND: Duration = Duration::from_mins(2);

/// As the defaults, in a hurry.
pub(super) fn paces() -> Paces {
    Paces {
        lease_duration: Duration::from_secs(3),
        lease_give_up: Duration::from_secs(2),
        lease_retry: Duration::from_millis(200),
        between_writes: Duration::from_millis(300),
        settle: Duration::from_secs(2),
    }
}

pub(super) struct World {
    pub(super) server: ApiServer,
    pub(super) paces: Paces,
    folder: tempfile::TempDir,
}

impl World {
    /// Tokens are JSON: of an agent its pod, of a replica nothing.
    pub(super) fn new() -> Self {
        let server = ApiServer::default();
        server.answer_reviews(|spec| {
            let token = spec["token"].as_str().unwrap();
            let audiences = &spec["audiences"];
            let user = match token.strip_prefix("pod-") {
                Some(pod) => json!({"username": "system:serviceaccount:team:default", "extra": {
                    "authentication.kubernetes.io/pod-name": [pod], "authentication.kubernetes.io/pod-uid": [pod]}}),
                None => json!({"username": ACCOUNT}),
            };
            json!({"authenticated": true, "audiences": audiences, "user": user})
        });
        let folder = tempfile::tempdir().unwrap();
        let claims = data_encoding::BASE64URL_NOPAD.encode(json!({"sub": ACCOUNT}).to_string().as_bytes());
        std::fs::write(folder.path().join("token"), format!("e30.{claims}.c2ln")).unwrap();
        Self { server, paces: paces(), folder }
    }

    /// The `n`th replica, at an address of its own, where the others find it.
    pub(super) async fn replica(&self, n: u8, redis: Option<RedisConfig>) -> (Controller, SocketAddr) {
        let policies = TcpListener::bind((format!("127.0.0.{n}"), 0)).await.unwrap();
        let at = policies.local_addr().unwrap();
        let config = Config {
            namespace: "sluice-system".to_owned(),
            pod: format!("replica-{n}"),
            lease: "sluice-controller".to_owned(),
            service: "sluice-controller".to_owned(),
            pod_ip: Some(at.ip()),
            peer_token: Some(self.folder.path().join("token")),
            redis,
            all_secrets: true,
            insecure: true,
            paces: self.paces,
            ..Config::default()
        };
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": format!("slice-{n}"), "namespace": "sluice-system",
                "labels": {"kubernetes.io/service-name": "sluice-controller"}},
            "addressType": "IPv4", "ports": [{"name": "policy", "port": at.port()}],
            "endpoints": [{"addresses": [at.ip().to_string()], "conditions": {"ready": true},
                "targetRef": {"kind": "Pod", "name": config.pod}}]});
        self.server.put(SLICES, slice);
        let listeners = Listeners { policies, webhook: None, admin: None };
        (Controller::start(self.server.client(), &config, listeners, &Signals::off()).unwrap(), at)
    }

    /// A replica's pod is gone.
    pub(super) fn forget(&self, n: u8) {
        self.server.remove(SLICES, "sluice-system", &format!("slice-{n}"));
    }

    pub(super) fn route(&self, name: &str, generation: i64, spec: &Value) {
        let object = json!({"apiVersion": "sluice.dev/v1alpha1", "kind": "ModelRoute",
            "metadata": {"name": name, "namespace": "team", "uid": format!("uid-{name}"), "generation": generation},
            "spec": spec});
        self.server.put(ROUTES, object);
    }

    pub(super) fn pod(&self, name: &str) {
        let labels = json!({"sluice.dev/agent": "sidecar"});
        let object = json!({"metadata": {"name": name, "namespace": "team", "uid": name, "labels": labels}});
        self.server.put("api/v1/pods", object);
    }

    pub(super) fn status(&self, route: &str) -> Value {
        self.server.get(ROUTES, "team", route).unwrap()["status"].clone()
    }

    /// `True Programmed` and the like.
    pub(super) fn condition(&self, route: &str, type_: &str) -> String {
        condition(&self.status(route)["conditions"], type_)
    }

    /// Reasons of Events, in the order of their making.
    pub(super) fn events(&self) -> Vec<String> {
        self.server.written(EVENTS).iter().map(|event| event["reason"].as_str().unwrap().to_owned()).collect()
    }

    pub(super) async fn until(&self, what: &str, reached: impl Fn(&Self) -> bool) {
        let waiting = async {
            while !reached(self) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(tokio::time::timeout(BOUND, waiting).await.is_ok(), "waited in vain: {what}");
    }
}

pub(super) fn condition(conditions: &Value, type_: &str) -> String {
    let all = conditions.as_array().into_iter().flatten();
    let found = all.into_iter().find(|condition| condition["type"] == type_);
    found.map_or_else(String::new, |condition| {
        format!("{} {}", condition["status"].as_str().unwrap(), condition["reason"].as_str().unwrap())
    })
}

pub(super) fn spec(model: &str) -> Value {
    json!({"models": [model], "targets": [{"name": "primary", "provider": "OpenAI",
        "endpoint": "https://primary.example/v1", "credential": {"type": "None"}}]})
}

pub(super) fn target(route: &str) -> TargetId {
    TargetId::of("team", &format!("{route}/primary"), "https://primary.example/v1", "")
}

/// One that uses and answers everything that it gets, until it is dropped.
pub(super) struct Agent {
    reports: mpsc::Sender<v1::AgentMessage>,
    uses: watch::Receiver<Arc<PolicySet>>,
    task: tokio::task::JoinHandle<Applied>,
}

impl Agent {
    pub(super) async fn connect(at: SocketAddr, pod: &str) -> Self {
        Self::connect_with(at, pod, Applied::new()).await
    }

    /// One that has something already.
    pub(super) async fn connect_with(at: SocketAddr, pod: &str, mut applied: Applied) -> Self {
        let hello = Hello {
            agent_id: pod.into(),
            namespace: "team".into(),
            pod: pod.into(),
            labels: [].into(),
            features: sluice_proto::feature::Feature::ALL.into(),
            build: "test".into(),
            applied_version: "".into(),
        };
        let (to, outbound) = mpsc::channel(64);
        to.send(v1::AgentMessage { message: Some(FromAgent::Hello(hello.encode())) }).await.unwrap();
        let mut client = PolicyDiscoveryClient::connect(format!("http://{at}")).await.unwrap();
        let mut request = tonic::Request::new(ReceiverStream::new(outbound));
        request.metadata_mut().insert("authorization", format!("Bearer pod-{pod}").parse().unwrap());
        let mut from = client.stream(request).await.unwrap().into_inner();
        let reports = to.clone();
        let (using, uses) = watch::channel(applied.current());
        let task = tokio::spawn(async move {
            while let Ok(Some(message)) = from.message().await {
                match message.message {
                    Some(ToAgent::Snapshot(snapshot)) => {
                        let (_, ack) = applied.apply(snapshot);
                        let message = v1::AgentMessage { message: Some(FromAgent::Ack(ack.encode())) };
                        if to.send(message).await.is_err() {
                            break;
                        }
                    }
                    Some(ToAgent::Secrets(secrets)) => drop(applied.rotate(secrets)),
                    Some(ToAgent::Agents(_)) | None => {}
                }
                using.send_replace(applied.current());
            }
            applied
        });
        Self { reports, uses, task }
    }

    /// What it uses when that is as it should be.
    pub(super) async fn until(&mut self, what: &str, is: impl FnMut(&Arc<PolicySet>) -> bool) {
        let reached = tokio::time::timeout(BOUND, self.uses.wait_for(is)).await;
        assert!(reached.is_ok_and(|reached| reached.is_ok()), "waited in vain: {what}");
    }

    /// What it has when its stream has ended.
    pub(super) async fn ended(mut self) -> Applied {
        tokio::time::timeout(BOUND, &mut self.task).await.expect("its stream does not end").unwrap()
    }

    pub(super) async fn report(&self, report: Report) {
        let message = v1::AgentMessage { message: Some(FromAgent::Report(report.encode())) };
        self.reports.send(message).await.unwrap();
    }

    pub(super) fn is_connected(&self) -> bool {
        !self.task.is_finished()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.task.abort();
    }
}
