//! The admin port: liveness, readiness, metrics, state. It never serves applications.

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sluice_telemetry::TextFormat;
use tokio::net::TcpListener;

use crate::agent::Shared;
use crate::policy_client::Standing;

pub(crate) async fn serve(listener: TcpListener, shared: Arc<Shared>) -> std::io::Result<()> {
    let drain = shared.drain.clone();
    let router = Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/state", get(state))
        .with_state(shared);
    axum::serve(listener, router).with_graceful_shutdown(async move { drain.ended().await }).await
}

/// Ready once there are policies, and until the agent drains. Neither Redis nor the control plane being away
/// makes it unready: it serves by its last good policies. Before the first ones it says what it waits for.
async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    let unready = |why: String| (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    if shared.drain.leaving() {
        return unready("draining\n".to_owned());
    }
    if shared.policies.load().version.is_empty() {
        return unready(match &*shared.standing.lock() {
            Standing::Away(reason) => format!("no policies yet: {reason}\n"),
            Standing::Connected => "no policies yet: the control plane has sent none\n".to_owned(),
            Standing::Unasked => "no policies yet: the control plane has not answered\n".to_owned(),
        });
    }
    if let Some(why) = shared.clients.unready() {
        return unready(format!("{why}\n"));
    }
    "ok\n".into_response()
}

async fn state(State(shared): State<Arc<Shared>>) -> Response {
    Json(crate::report::state(&shared).await).into_response()
}

async fn metrics(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    let format = TextFormat::accepted(headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()));
    crate::report::read_metrics(&shared);
    ([(CONTENT_TYPE, format.content_type())], shared.metrics.text(format)).into_response()
}
