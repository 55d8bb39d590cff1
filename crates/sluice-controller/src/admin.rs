//! The admin port: liveness, readiness, metrics. Without TLS, and without anything to hide.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sluice_policy::metrics::ControlMetrics;
use sluice_telemetry::TextFormat;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::certificates::keeper::Adopted;
use crate::namespaces::Namespaces;
use crate::plane::Newest;
use crate::tasks::Health;

/// What a replica is asked about itself.
#[derive(Clone)]
pub(crate) struct Admin {
    pub(crate) newest: Newest,
    /// `None`: it serves without certificates.
    pub(crate) adopted: Option<Adopted>,
    /// `None`: it does not inject.
    pub(crate) namespaces: Option<Namespaces>,
    pub(crate) health: Health,
    pub(crate) metrics: Arc<ControlMetrics>,
    pub(crate) stop: CancellationToken,
}

impl Admin {
    /// Why it is not ready, if so. Neither agents nor Redis nor the lease belong here: a replica serves without them.
    pub(crate) fn unready(&self) -> Option<&'static str> {
        if self.stop.is_cancelled() {
            Some("stopping")
        } else if self.newest.borrow().is_none() {
            Some("the cluster has not been seen yet")
        } else if self.adopted.as_ref().is_some_and(|adopted| adopted.borrow().is_none()) {
            Some("there is no certificate yet")
        } else if self.namespaces.as_ref().is_some_and(|namespaces| !namespaces.are_known()) {
            Some("namespaces have not been seen yet")
        } else {
            None
        }
    }
}

/// Serves until `stop`.
pub(crate) async fn serve(listener: TcpListener, admin: Admin) {
    let stop = admin.stop.clone();
    let router = Router::new()
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(admin);
    let served = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
    if let Err(error) = served.await {
        tracing::error!(%error, "the admin port ended");
    }
}

async fn live(State(admin): State<Admin>) -> Response {
    match admin.health.ended() {
        None => "ok\n".into_response(),
        Some(what) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{what} ended\n")).into_response(),
    }
}

async fn ready(State(admin): State<Admin>) -> Response {
    match admin.unready() {
        None => "ok\n".into_response(),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn metrics(State(admin): State<Admin>, headers: HeaderMap) -> Response {
    let format = TextFormat::accepted(headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()));
    ([(CONTENT_TYPE, format.content_type())], admin.metrics.text(format)).into_response()
}
