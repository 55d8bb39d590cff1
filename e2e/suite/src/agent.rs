//! An agent without a data plane: it says what the test wants it to say, with whatever token, and sees what comes back.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use serde_json::{Value, json};
use sluice_proto::v1;
use sluice_proto::v1::agent_message::Message as Said;
use sluice_proto::v1::controller_message::Message as Heard;
use sluice_proto::v1::policy_discovery_client::PolicyDiscoveryClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status, Streaming};

use crate::cluster::{Cluster, name};
use crate::manifests;
use crate::release;
use crate::scene::Scene;
use crate::until::{PATIENCE, eventually};

const PORT: u16 = 8112;
/// Longer than a control plane may take to say something.
const SOON: Duration = Duration::from_secs(30);

/// Who it says that it is.
pub struct Claims<'a> {
    pub namespace: &'a str,
    pub pod: &'a str,
    /// Sent as a bearer token.
    pub token: Option<&'a str>,
    /// What it knows beyond the first version.
    pub features: Vec<String>,
}

/// One with a stream that stands.
pub struct Agent {
    said: mpsc::Sender<v1::AgentMessage>,
    heard: Streaming<v1::ControllerMessage>,
}

impl Agent {
    /// Opens a stream and says hello.
    ///
    /// # Errors
    /// The control plane's status, when it refuses; anything else is in the outer error.
    pub async fn connect(cluster: &Cluster, claims: &Claims<'_>) -> Result<Result<Self, Status>> {
        let channel = dial(cluster, claims.namespace).await?;
        let mut client =
            PolicyDiscoveryClient::new(channel).max_decoding_message_size(sluice_proto::MAX_MESSAGE_BYTES);
        let (said, messages) = mpsc::channel(16);
        let hello = v1::Hello {
            agent_id: format!("e2e-{}", claims.pod),
            namespace: claims.namespace.to_owned(),
            pod: claims.pod.to_owned(),
            features: claims.features.clone(),
            build: "e2e".to_owned(),
            ..v1::Hello::default()
        };
        said.send(v1::AgentMessage { message: Some(Said::Hello(hello)) }).await?;
        let mut request = Request::new(ReceiverStream::new(messages));
        if let Some(token) = claims.token {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse()?);
        }
        let opened = tokio::time::timeout(SOON, client.stream(request))
            .await
            .context("the control plane says nothing")?;
        Ok(opened.map(|heard| Self { said, heard: heard.into_inner() }))
    }

    /// The next snapshot.
    ///
    /// # Errors
    /// How the stream ended, or that nothing came.
    pub async fn snapshot(&mut self) -> Result<Result<v1::Snapshot, Status>> {
        loop {
            let message =
                tokio::time::timeout(SOON, self.heard.message()).await.context("no snapshot came")?;
            match message {
                Ok(Some(v1::ControllerMessage { message: Some(Heard::Snapshot(snapshot)) })) => {
                    return Ok(Ok(snapshot));
                }
                Ok(Some(_)) => {}
                Ok(None) => bail!("the stream ended"),
                Err(status) => return Ok(Err(status)),
            }
        }
    }

    /// Answers a snapshot: takes every route, but for those that it rejects.
    ///
    /// # Errors
    /// When the stream is gone.
    pub async fn answer(&self, snapshot: &v1::Snapshot, rejected: &[(&str, &str)]) -> Result<()> {
        let objects = snapshot.routes.iter().filter_map(|route| route.sources.first().cloned());
        let (mut accepted, mut refused) = (Vec::new(), Vec::new());
        for object in objects {
            match rejected.iter().find(|(name, _)| object.name == *name) {
                Some((_, error)) => {
                    refused.push(v1::Rejection { object: Some(object), error: (*error).to_owned() });
                }
                None => accepted.push(object),
            }
        }
        let ack = v1::Ack {
            nonce: snapshot.nonce.clone(),
            version: snapshot.version.clone(),
            accepted,
            rejected: refused,
        };
        self.said.send(v1::AgentMessage { message: Some(Said::Ack(ack)) }).await?;
        Ok(())
    }
}

/// What a stream ends with, when nothing but its end is expected: at once, or at its first message.
///
/// # Errors
/// When it is served.
pub async fn refusal(cluster: &Cluster, claims: &Claims<'_>) -> Result<Status> {
    match Agent::connect(cluster, claims).await? {
        Err(status) => Ok(status),
        Ok(mut agent) => match agent.snapshot().await? {
            Err(status) => Ok(status),
            Ok(snapshot) => bail!("it was served a snapshot of {} routes", snapshot.routes.len()),
        },
    }
}

/// A pod of the test's namespace that an agent can be of, and its token.
///
/// # Errors
/// What the API server says.
pub async fn pod_with_token(scene: &Scene, pod: &str) -> Result<(Value, String)> {
    // The label that injection gives, and not the one that asks for it: there is no container to be added.
    let labels = json!({"sluice.dev/agent": "sidecar", "sluice.dev/inject": "disabled"});
    let pod = scene.apply(&manifests::gated_pod(pod, &scene.images.e2e(), &labels)).await?;
    let token = scene.cluster.token(&scene.namespace, "default", "sluice", Some(&pod)).await?;
    Ok((pod, token))
}

/// A connection to one of the controller's pods, which is trusted as a pod of the namespace would trust it.
async fn dial(cluster: &Cluster, namespace: &str) -> Result<Channel> {
    let authority = eventually(PATIENCE, format!("{namespace} has the CA"), async || {
        let found = cluster.get(namespace, "ConfigMap", "sluice-ca").await?;
        Ok(found["data"]["ca.crt"].as_str().context("sluice-ca has no ca.crt")?.to_owned())
    })
    .await?;
    let pods = release::controllers(cluster).await?;
    let pod = name(pods.first().context("no controller is ready")?).to_owned();
    let host = format!("{}.{}.svc", release::CONTROLLER, release::NAMESPACE);
    let tls =
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority)).domain_name(host.clone());
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), release::NAMESPACE);
    let connector = tower::service_fn(move |_: http::Uri| {
        let (api, pod) = (api.clone(), pod.clone());
        async move {
            let mut forwarder = api.portforward(&pod, &[PORT]).await?;
            let stream = forwarder.take_stream(PORT).context("no stream")?;
            tokio::spawn(forwarder.join());
            Ok::<_, anyhow::Error>(TokioIo::new(stream))
        }
    });
    let endpoint = Endpoint::from_shared(format!("https://{host}:{PORT}"))?.tls_config(tls)?;
    Ok(endpoint.connect_with_connector(connector).await?)
}
