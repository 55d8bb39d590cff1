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
/// makes it unready: it serves by its last good policies.
async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    if shared.drain.stopping() {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response();
    }
    if shared.policies.load().version.is_empty() {
        return (StatusCode::SERVICE_UNAVAILABLE, "no policies yet\n").into_response();
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
