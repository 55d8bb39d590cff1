//! The endpoints that change and read the provider while it runs; none of them counts as a call.

use std::fmt::Write as _;
use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::json;

use crate::body::AnswerBody;
use crate::provider::Shared;
use crate::redact::fingerprint;
use crate::scenario::Scenario;
use crate::service::aside;

const JSON: &str = "application/json";
const MAX_SCENARIO: usize = 4 * 1024 * 1024;

pub(crate) fn is_for(path: &str) -> bool {
    path.starts_with("/control/") || path == "/healthz" || path == "/metrics"
}

pub(crate) async fn answer(shared: &Arc<Shared>, request: Request<Incoming>) -> Response<AnswerBody> {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    match (&method, path.as_str()) {
        (&Method::GET, "/healthz") => aside(StatusCode::OK, "text/plain", "ok\n".into()),
        (&Method::GET, "/metrics") => aside(StatusCode::OK, "text/plain; version=0.0.4", metrics(shared)),
        (&Method::PUT, "/control/scenario") => set_scenario(shared, request).await,
        (&Method::GET, "/control/scenario") => scenario(shared),
        (&Method::GET, "/control/stats") => json_of(&shared.ledger.stats()),
        (&Method::GET, "/control/calls") => json_of(&last(shared, request.uri().query())),
        (&Method::POST, "/control/release") => {
            shared.ledger.release();
            json_of(&json!({"ok": true}))
        }
        (&Method::POST, "/control/reset") => {
            shared.reset();
            json_of(&json!({"ok": true}))
        }
        _ => {
            let fix = "use PUT or GET /control/scenario, GET /control/stats, GET /control/calls?last=N, \
                       POST /control/reset, POST /control/release";
            error(StatusCode::NOT_FOUND, &format!("{method} {path}: {fix}"))
        }
    }
}

async fn set_scenario(shared: &Arc<Shared>, request: Request<Incoming>) -> Response<AnswerBody> {
    let is_json = request
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.contains("json"));
    let body = match Limited::new(request.into_body(), MAX_SCENARIO).collect().await {
        Ok(body) => body.to_bytes(),
        Err(why) => return error(StatusCode::BAD_REQUEST, &format!("the scenario could not be read: {why}")),
    };
    let scenario = if is_json {
        Scenario::from_json(&body)
    } else {
        Scenario::from_yaml(&String::from_utf8_lossy(&body))
    };
    match scenario {
        Ok(scenario) => {
            shared.set(scenario);
            json_of(&json!({"ok": true}))
        }
        Err(why) => error(StatusCode::BAD_REQUEST, &why.to_string()),
    }
}

fn scenario(shared: &Shared) -> Response<AnswerBody> {
    let mut scenario = shared.director().scenario.clone();
    scenario.api_keys = scenario.api_keys.iter().map(|key| fingerprint(key)).collect();
    match scenario.to_yaml() {
        Ok(yaml) => aside(StatusCode::OK, "application/yaml", yaml),
        Err(why) => error(StatusCode::INTERNAL_SERVER_ERROR, &why.to_string()),
    }
}

fn last(shared: &Shared, query: Option<&str>) -> Vec<crate::Call> {
    let mut calls = shared.ledger.calls();
    let last = query.and_then(|query| query.split('&').find_map(|part| part.strip_prefix("last=")));
    if let Some(last) = last.and_then(|last| last.parse().ok()) {
        calls.drain(..calls.len().saturating_sub(last));
    }
    calls
}

/// vLLM's names, so that a reader of its page can be tried on this one.
fn metrics(shared: &Shared) -> String {
    let director = shared.director();
    let engine = director.scenario.engine;
    let in_flight = shared.ledger.stats().total.in_flight;
    let slots = director.scenario.slots.map_or(u64::MAX, |slots| slots as u64);
    let running = in_flight.min(slots);
    let waiting = engine.waiting + (in_flight - running);
    let model = director.scenario.models.first().map_or("gpt-4o", String::as_str);
    let mut page = String::new();
    for (name, help, value) in [
        ("vllm:num_requests_running", "Requests in model execution batches.", running as f64),
        ("vllm:num_requests_waiting", "Requests waiting to be processed.", waiting as f64),
        ("vllm:kv_cache_usage_perc", "KV cache usage, 1 is 100 percent.", engine.kv_cache_percent / 100.0),
    ] {
        // Writing to a string can't fail.
        let _ = writeln!(
            page,
            "# HELP {name} {help}\n# TYPE {name} gauge\n{name}{{model_name=\"{model}\"}} {value}"
        );
    }
    page
}

fn json_of(value: &impl serde::Serialize) -> Response<AnswerBody> {
    match serde_json::to_string(value) {
        Ok(text) => aside(StatusCode::OK, JSON, text + "\n"),
        Err(why) => error(StatusCode::INTERNAL_SERVER_ERROR, &why.to_string()),
    }
}

fn error(status: StatusCode, message: &str) -> Response<AnswerBody> {
    aside(status, JSON, json!({"error": message}).to_string() + "\n")
}
