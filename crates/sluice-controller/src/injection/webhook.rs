//! The webhook: the API server asks about a pod that is to be made, and is told what to add.
//!
//! Nothing here keeps a pod from being made: every question that can be read is answered with *allowed*, and what can't
//! is answered with an error that the webhook's `failurePolicy: Ignore` passes over. Pods without an agent are found
//! afterwards, see [`super::missing`].
//!
//! Bounds: so many bodies are read at once, each up to three MiB (the API server's own bound) and within its deadline.
//! An idle connection outlasts what API servers keep, see [`HEADERS_WITHIN`].
//! A dry run changes nothing; otherwise the namespace's ConfigMap is made before the pod is.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest as _, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use sluice_api::route::CredentialType;
use sluice_policy::index::{Index, Key};
use tokio::sync::Semaphore;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use super::pod::{self, Left};
use super::review::{self, Answer};
use crate::certificates::bundles::Published;
use crate::config::Sidecar;
use crate::connections::Connection;
use crate::metrics::ControllerMetrics;
use crate::namespaces::Namespaces;

/// Longest body: an object of the API server's largest size, and the one before it.
pub(crate) const MAX_BODY_BYTES: usize = 3 * 1024 * 1024;
/// Questions at once.
const AT_ONCE: usize = 32;
/// How long a question may take to come, and to wait for its turn.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// How long the head of a request may take to come, counted from the end of the answer before it: hyper has one limit
/// for both. API servers keep an idle connection for 90 s (Go's own default), and a question that met the closing of one
/// would go unanswered, and its pod without an agent. So they are to be the first to close.
const HEADERS_WITHIN: Duration = Duration::from_mins(2);
/// How long answers may take at the end.
const DRAIN_WITHIN: Duration = Duration::from_secs(5);

/// What is known when a question comes.
pub(crate) struct Injector {
    sidecar: Sidecar,
    namespaces: Namespaces,
    index: Arc<Mutex<Index>>,
    published: Arc<Published>,
    metrics: Arc<ControllerMetrics>,
    turns: Semaphore,
}

impl Injector {
    pub(crate) fn new(
        sidecar: Sidecar,
        namespaces: Namespaces,
        index: Arc<Mutex<Index>>,
        published: Arc<Published>,
        metrics: Arc<ControllerMetrics>,
    ) -> Self {
        Self { sidecar, namespaces, index, published, metrics, turns: Semaphore::new(AT_ONCE) }
    }

    async fn answer(&self, request: review::Request<'_>) -> serde_json::Result<Answer> {
        let uid = request.uid.clone();
        // Ephemeral containers and such: the pod is there already.
        if request.operation != "CREATE" || request.sub_resource.as_ref().is_some_and(|part| !part.is_empty())
        {
            return Answer::new(uid, &[], Vec::new());
        }
        let object = request.object.map_or("null", serde_json::value::RawValue::get);
        let pod: Pod = match serde_json::from_str(object) {
            Ok(pod) => pod,
            Err(error) => {
                self.metrics.judged("unreadable");
                tracing::warn!(
                    namespace = request.namespace,
                    line = error.line(),
                    column = error.column(),
                    "a pod could not be read: it gets no agent"
                );
                // Its own words may quote what the pod holds.
                let told = "Sluice could not read the pod, which gets no agent".to_owned();
                return Answer::new(uid, &[], vec![told]);
            }
        };
        match self.judge(&pod, &request.namespace).await {
            Err(left) => {
                self.metrics.judged(left.as_str());
                Answer::new(uid, &[], left.warning().into_iter().collect())
            }
            Ok(()) => self.inject(&request, &pod).await,
        }
    }

    /// As the watch shows the namespace. Where by that nobody asked, the API server, which chose to ask us, may know
    /// better: the namespace may have got its label just now.
    async fn judge(&self, pod: &Pod, namespace: &str) -> Result<(), Left> {
        match pod::judge(pod, self.namespaces.asks(namespace)) {
            Err(Left::NotAsked) => match self.namespaces.asks_now(namespace).await {
                Ok(asks) => pod::judge(pod, asks),
                Err(error) => {
                    tracing::warn!(namespace, %error, "whether a namespace asks for agents could not be looked up: a pod gets none");
                    Err(Left::NotAsked)
                }
            },
            judged => judged,
        }
    }

    async fn inject(&self, request: &review::Request<'_>, pod: &Pod) -> serde_json::Result<Answer> {
        let mut warnings = pod::warnings(pod);
        // Its name is not made yet where only a prefix is given.
        let metadata = &pod.metadata;
        let name = metadata.name.as_deref().or(metadata.generate_name.as_deref()).unwrap_or_default();
        let dry_run = request.dry_run == Some(true);
        if !dry_run && let Err(error) = self.published.ensure(&request.namespace).await {
            tracing::warn!(namespace = request.namespace, pod = name, %error, "an agent will have to wait for the control plane's authority");
            warnings.push(format!("Sluice's agent can't trust its control plane yet: {error}"));
        }
        let passes_credentials = passes_credentials(&self.index.lock(), &request.namespace);
        let additions = pod::additions(pod, &self.sidecar, passes_credentials);
        tracing::debug!(namespace = request.namespace, pod = name, dry_run, "a pod gets an agent");
        self.metrics.judged("injected");
        Answer::new(request.uid.clone(), &additions, warnings)
    }
}

/// Whether some route of the namespace passes the caller's credential on, also one that is not in use yet.
fn passes_credentials(index: &Index, namespace: &str) -> bool {
    let routes = index.routes().range(Key::new(namespace, "")..);
    let routes = routes.take_while(|(key, _)| &*key.namespace == namespace);
    let mut targets = routes.flat_map(|(_, entry)| &entry.newest).flat_map(|route| &route.spec.targets);
    targets.any(|target| target.credential.type_ == CredentialType::Passthrough)
}

pub(crate) fn router(injector: Arc<Injector>) -> Router {
    Router::new()
        .route("/inject", post(inject))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(injector)
}

async fn inject(State(injector): State<Arc<Injector>>, request: Request) -> Response {
    let read = async {
        // Never closed.
        let turn = injector.turns.acquire().await;
        (turn, Bytes::from_request(request, &()).await)
    };
    let (_turn, body) = match tokio::time::timeout(READ_WITHIN, read).await {
        Ok((turn, Ok(body))) => (turn, body),
        Ok((_, Err(rejection))) => return rejection.into_response(),
        Err(_) => return (StatusCode::REQUEST_TIMEOUT, "the body did not come in time\n").into_response(),
    };
    let request = match review::read(&body) {
        Ok(request) => request,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    match injector.answer(request).await {
        Ok(answer) => Json(answer).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// Serves HTTP/1.1 until `stop`; answers on their way are finished.
pub(crate) async fn serve(
    mut connections: ReceiverStream<std::io::Result<Connection>>,
    router: Router,
    stop: CancellationToken,
) {
    let (graceful, http) = (GracefulShutdown::new(), protocol());
    while let Some(Some(connection)) = stop.run_until_cancelled(connections.next()).await {
        let Ok(connection) = connection else { continue };
        let service = TowerToHyperService::new(router.clone());
        let served = graceful.watch(http.serve_connection(TokioIo::new(connection), service));
        tokio::spawn(async move {
            if let Err(error) = served.await {
                tracing::debug!(%error, "a connection to the webhook ended early");
            }
        });
    }
    drop(connections);
    if tokio::time::timeout(DRAIN_WITHIN, graceful.shutdown()).await.is_err() {
        tracing::warn!("answers of the webhook did not end in time and are cut");
    }
}

fn protocol() -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN);
    http
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tower::ServiceExt as _;

    use super::*;
    use crate::api_server::ApiServer;
    use crate::certificates::NAME;
    use crate::certificates::keeper::Keeper;
    use crate::certificates::material::Lives;

    struct World {
        server: ApiServer,
        index: Arc<Mutex<Index>>,
        router: Router,
    }

    async fn world() -> World {
        let (server, index) = (ApiServer::default(), Arc::new(Mutex::new(Index::default())));
        let clock = Arc::new(|| 1_800_000_000);
        let (keeper, adopted) =
            Keeper::new(server.client(), "sluice-system", "sluice-controller", Lives::default(), clock);
        keeper.look().await.unwrap();
        let watched = ["team", "plain"].map(Arc::from).into();
        // Without its watches it knows nothing, and so writes each time.
        let (published, _watches) = Published::new(server.client(), adopted, Some(&watched));
        let known = [("team", true), ("plain", false), ("elsewhere", true)];
        let namespaces = Namespaces::of(server.client(), &known);
        let sidecar = Sidecar { image: "sluice:1".to_owned(), ..Sidecar::default() };
        let injector = Injector::new(sidecar, namespaces, index.clone(), Arc::new(published), Arc::default());
        World { server, index, router: router(Arc::new(injector)) }
    }

    /// As an API server sends it.
    fn review(namespace: &str, pod: &Value) -> Value {
        json!({
            "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
            "request": {
                "uid": "0c9a8d74-9cb7-44dd-b98e-09fd62def2f4",
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
                "requestResource": {"group": "", "version": "v1", "resource": "pods"},
                "namespace": namespace, "operation": "CREATE",
                "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller",
                    "uid": "a", "groups": ["system:serviceaccounts", "system:authenticated"]},
                "object": pod, "oldObject": null, "dryRun": false,
                "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
            },
        })
    }

    /// As the controller of a ReplicaSet makes it for a Deployment.
    fn of_deployment() -> Value {
        json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {
                "generateName": "app-5d9c7b8f6-", "creationTimestamp": null,
                "labels": {"app": "app", "pod-template-hash": "5d9c7b8f6"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "app-5d9c7b8f6",
                    "uid": "b", "controller": true, "blockOwnerDeletion": true}],
                "managedFields": [{"manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1",
                    "time": "2026-11-29T23:02:16Z", "fieldsType": "FieldsV1",
                    "fieldsV1": {"f:metadata": {"f:generateName": {}}}}],
            },
            "spec": {
                "volumes": [{"name": "kube-api-access-x", "projected": {"sources": [], "defaultMode": 420}}],
                "containers": [{"name": "app", "image": "app:1", "resources": {},
                    "volumeMounts": [{"name": "kube-api-access-x", "readOnly": true,
                        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                    "imagePullPolicy": "IfNotPresent", "securityContext": {"allowPrivilegeEscalation": false}}],
                "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
                "serviceAccountName": "default", "serviceAccount": "default", "securityContext": {},
                "schedulerName": "default-scheduler", "priority": 0, "enableServiceLinks": true,
                "preemptionPolicy": "PreemptLowerPriority",
                "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists",
                    "effect": "NoExecute", "tolerationSeconds": 300}],
            },
            "status": {},
        })
    }

    impl World {
        async fn post(&self, body: impl Into<Body>) -> (StatusCode, Vec<u8>) {
            let request = axum::http::Request::post("/inject").header("content-type", "application/json");
            let answer = self.router.clone().oneshot(request.body(body.into()).unwrap()).await.unwrap();
            let status = answer.status();
            let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
            (status, body.to_vec())
        }

        /// The answer to a review.
        async fn ask(&self, review: &Value) -> Value {
            let (status, body) = self.post(review.to_string()).await;
            assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
            let answer: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!((&answer["kind"], &answer["apiVersion"]), (&review["kind"], &review["apiVersion"]));
            assert_eq!(answer["response"]["uid"], review["request"]["uid"]);
            assert_eq!(answer["response"]["allowed"], json!(true));
            answer["response"].clone()
        }

        /// The pod that comes of it, and the warnings.
        async fn make(&self, namespace: &str, pod: &Value) -> (Value, Vec<String>) {
            let response = self.ask(&review(namespace, pod)).await;
            let mut made = pod.clone();
            if let Some(patch) = response["patch"].as_str() {
                assert_eq!(response["patchType"], json!("JSONPatch"));
                let patch = data_encoding::BASE64.decode(patch.as_bytes()).unwrap();
                json_patch::patch(&mut made, &serde_json::from_slice::<json_patch::Patch>(&patch).unwrap())
                    .unwrap();
            }
            (made, serde_json::from_value(response["warnings"].clone()).unwrap_or_default())
        }
    }

    fn read(pod: &Value) -> Pod {
        serde_json::from_value(pod.clone()).unwrap()
    }

    fn env(pod: &Value, name: &str) -> Option<String> {
        let env = read(pod).spec?.containers[0].env.clone()?;
        env.into_iter().find(|variable| variable.name == name)?.value
    }

    fn has_agent(pod: &Value) -> bool {
        pod::has_agent(&read(pod).spec.unwrap())
    }

    #[tokio::test]
    async fn a_deployments_pod_gets_an_agent_and_keeps_everything_else() {
        let (world, before) = (world().await, of_deployment());
        let (after, warnings) = world.make("team", &before).await;
        assert_eq!(warnings, Vec::<String>::new());
        let agent = &after["spec"]["initContainers"][0];
        assert_eq!((&agent["name"], &agent["image"]), (&json!("sluice-agent"), &json!("sluice:1")));
        assert_eq!(agent["restartPolicy"], json!("Always"));
        assert_eq!(env(&after, "OPENAI_BASE_URL").as_deref(), Some("http://127.0.0.1:8110/v1"));
        assert_eq!(env(&after, "OPENAI_API_KEY").as_deref(), Some("replaced-by-sluice"));
        assert_eq!(after["metadata"]["labels"]["sluice.dev/agent"], json!("sidecar"));
        // Taking away what was added gives the pod as it was.
        let mut without = after.clone();
        without["metadata"]["labels"].as_object_mut().unwrap().remove("sluice.dev/agent");
        let spec = without["spec"].as_object_mut().unwrap();
        spec.remove("initContainers");
        spec["volumes"].as_array_mut().unwrap().truncate(1);
        spec["containers"][0].as_object_mut().unwrap().remove("env");
        assert_eq!(without, before);
        // Asked again, as an API server may.
        assert_eq!(world.make("team", &after).await, (after, vec![]));
    }

    #[tokio::test]
    async fn a_jobs_pod_gets_an_agent_that_does_not_keep_it_from_completing() {
        let world = world().await;
        let mut pod = of_deployment();
        pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "job",
            "uid": "c", "controller": true}]);
        pod["metadata"]["labels"] = json!({"job-name": "job", "sluice.dev/inject": "enabled"});
        pod["spec"]["restartPolicy"] = json!("Never");
        pod["spec"]["initContainers"] = json!([{"name": "prepare", "image": "app:1"}]);
        let (after, warnings) = world.make("plain", &pod).await;
        assert_eq!(warnings, Vec::<String>::new());
        let init = after["spec"]["initContainers"].as_array().unwrap();
        assert_eq!((&init[0]["restartPolicy"], &init[1]["name"]), (&json!("Always"), &json!("prepare")));
        assert_eq!(init[1]["restartPolicy"], Value::Null);
        assert_eq!(after["spec"]["restartPolicy"], json!("Never"));
    }

    #[tokio::test]
    async fn what_an_application_sets_itself_is_left_to_it() {
        let world = world().await;
        let mut pod = of_deployment();
        pod["spec"]["containers"][0]["env"] =
            json!([{"name": "OPENAI_BASE_URL", "value": "https://mine"}, {"name": "OTHER", "value": "1"}]);
        pod["spec"]["containers"][0]["envFrom"] = json!([{"secretRef": {"name": "keys"}}]);
        let (after, _) = world.make("team", &pod).await;
        assert_eq!(env(&after, "OPENAI_BASE_URL").as_deref(), Some("https://mine"));
        assert_eq!(env(&after, "ANTHROPIC_BASE_URL").as_deref(), Some("http://127.0.0.1:8110"));
        assert_eq!(env(&after, "OPENAI_API_KEY"), None, "envFrom may bring one");
        pod["metadata"]["annotations"] = json!({"sluice.dev/inject-env": "disabled"});
        let (after, _) = world.make("team", &pod).await;
        assert!(has_agent(&after));
        assert_eq!(after["spec"]["containers"], pod["spec"]["containers"]);
    }

    #[tokio::test]
    async fn no_placeholder_takes_the_place_of_a_callers_own_credential() {
        let world = world().await;
        let route = |namespace: &str, credential: &str| {
            serde_json::from_value(json!({
                "apiVersion": "sluice.dev/v1alpha1", "kind": "ModelRoute",
                "metadata": {"namespace": namespace, "name": "chat", "generation": 1},
                "spec": {"models": ["*"], "targets": [{"name": "primary", "provider": "OpenAI",
                    "endpoint": "https://api.openai.com/v1", "credential": {"type": credential}}]},
            }))
            .unwrap()
        };
        world.index.lock().apply_route(route("team", "None"), 0);
        world.index.lock().apply_route(route("teams", "Passthrough"), 0);
        assert!(env(&world.make("team", &of_deployment()).await.0, "OPENAI_API_KEY").is_some());
        world.index.lock().apply_route(route("team", "Passthrough"), 0);
        let (after, _) = world.make("team", &of_deployment()).await;
        assert_eq!(env(&after, "OPENAI_API_KEY"), None);
        assert!(env(&after, "OPENAI_BASE_URL").is_some());
    }

    #[tokio::test]
    async fn who_opts_out_or_cannot_have_one_is_left_as_it_is() {
        let world = world().await;
        let mut pod = of_deployment();
        assert_eq!(world.make("plain", &pod).await, (pod.clone(), vec![]), "nobody asked");
        pod["metadata"]["labels"]["sluice.dev/inject"] = json!("disabled");
        assert_eq!(world.make("team", &pod).await, (pod.clone(), vec![]));
        pod["metadata"]["labels"]["sluice.dev/inject"] = json!("enabled");
        pod["spec"]["hostNetwork"] = json!(true);
        let (after, warnings) = world.make("team", &pod).await;
        assert_eq!(after, pod);
        assert!(warnings.len() == 1 && warnings[0].contains("hostNetwork"), "{warnings:?}");
    }

    #[tokio::test]
    async fn a_label_that_the_watch_has_not_shown_yet_counts() {
        let world = world().await;
        let labels = json!({"sluice.dev/inject": "enabled"});
        world.server.put("api/v1/namespaces", json!({"metadata": {"name": "plain", "labels": labels}}));
        let (after, _) = world.make("plain", &of_deployment()).await;
        assert!(has_agent(&after));
    }

    #[tokio::test]
    async fn the_authorities_are_there_before_the_pod_and_a_dry_run_changes_nothing() {
        let world = world().await;
        let config_maps = Api::<ConfigMap>::namespaced(world.server.client(), "team");
        let mut dry = review("team", &of_deployment());
        dry["request"]["dryRun"] = json!(true);
        assert!(world.ask(&dry).await["patch"].is_string());
        assert!(config_maps.get_opt(NAME).await.unwrap().is_none());
        world.make("team", &of_deployment()).await;
        assert!(config_maps.get_opt(NAME).await.unwrap().is_some());
        // Nowhere near: said, and injected all the same.
        let (after, warnings) = world.make("elsewhere", &of_deployment()).await;
        assert!(has_agent(&after));
        assert!(warnings.len() == 1 && warnings[0].contains("watchNamespaces"), "{warnings:?}");
        world.server.forbid("team", true);
        let (after, warnings) = world.make("team", &of_deployment()).await;
        assert!(has_agent(&after) && warnings.len() == 1, "{warnings:?}");
    }

    #[tokio::test]
    async fn what_is_no_question_is_refused_and_any_question_is_allowed() {
        let world = world().await;
        assert_eq!(world.post("{").await.0, StatusCode::BAD_REQUEST);
        assert_eq!(world.post("").await.0, StatusCode::BAD_REQUEST);
        let (status, body) = world
            .post(json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1"}).to_string())
            .await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(String::from_utf8(body).unwrap().contains("send an AdmissionReview of admission.k8s.io/v1"));
        let empty = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"});
        assert_eq!(world.post(empty.to_string()).await.0, StatusCode::BAD_REQUEST);
        let huge = vec![b' '; MAX_BODY_BYTES + 1];
        assert_eq!(world.post(huge).await.0, StatusCode::PAYLOAD_TOO_LARGE);

        let secret = json!({"metadata": {"name": "app"}, "spec": {"containers": "hunter2"}});
        let (after, warnings) = world.make("team", &secret).await;
        assert_eq!(after, secret);
        assert!(warnings.len() == 1 && !warnings[0].contains("hunter2"), "{warnings:?}");
        let mut others = [
            review("team", &Value::Null),
            review("team", &of_deployment()),
            review("team", &of_deployment()),
        ];
        others[1]["request"]["operation"] = json!("UPDATE");
        others[2]["request"]["subResource"] = json!("ephemeralcontainers");
        for other in others {
            assert_eq!(world.ask(&other).await["patch"], Value::Null, "{other}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_outlasts_what_an_api_server_keeps_idle_and_no_longer() {
        let (mut client, server) = tokio::io::duplex(1_024);
        let router = Router::new().route("/inject", post(|| async { "asked" }));
        let served = protocol().serve_connection(TokioIo::new(server), TowerToHyperService::new(router));
        let _served = tokio::spawn(served);
        for _ in 0..2 {
            client.write_all(b"POST /inject HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"asked") {
                assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0, "it was closed");
            }
            // Of Go's http.Transport, by default.
            tokio::time::sleep(Duration::from_secs(90)).await;
        }
        assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0, "whoever is silent for longer is let go");
    }
}
