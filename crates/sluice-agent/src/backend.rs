//! A route's other backend (`degraded.type: Backend`): it gets the request as it came when no target can serve.
//!
//! It is what was designed in advance for bad times (a retrieval endpoint, an asynchronous queue), so it is no
//! target: no breaker or quota of the providers' rules it, its answer is not read, and it is asked once. The total
//! deadline holds for it as for everything else. When it fails too, the client is told what it would have been told
//! without it: the honest refusal, or what a provider said.

use http::{HeaderMap, HeaderValue, Response};
use sluice_core::policy::Degraded;

use crate::agent::Shared;
use crate::ask::Ask;
use crate::body::Body;
use crate::exchange::{Exchange, fresh_id};
use crate::headers;
use crate::upstream::{CredentialHeader, Origin, Outgoing, request};
use crate::verbatim::Verbatim;

/// The backend's answer; `None`: the route has none, no time is left for it, or it failed.
pub(crate) async fn answer(shared: &Shared, exchange: &Exchange, ask: &Ask) -> Option<Response<Body>> {
    let Degraded::Backend { endpoint } = &exchange.route.policy.degraded else { return None };
    let now = shared.clock.now();
    let remaining = exchange.deadline.remaining(now);
    let request = request(
        &Origin::parse(endpoint)?,
        // The caller's key is for providers.
        &CredentialHeader::Nobodys,
        Outgoing {
            method: &ask.method,
            uri: &ask.uri,
            headers: ask.outgoing_headers(shared.mark),
            body: ask.body.clone(),
            exchange: exchange.id_header(),
            attempt: fresh_id(shared),
            keep_idempotency_key: true,
            remaining: None,
        },
    )?;
    let sent = tokio::time::timeout(remaining, shared.upstream.send(request)).await;
    let response = match sent {
        Ok(Ok(response)) if is_answer(&response) => response,
        Ok(Ok(response)) => return failed(exchange, &response.status().as_str()),
        Ok(Err(fault)) => return failed(exchange, &fault),
        Err(elapsed) => return failed(exchange, &elapsed),
    };
    exchange.spans.degraded("backend");
    let (mut parts, body) = response.into_parts();
    mark(&mut parts.headers, exchange);
    let until = shared.clock.instant(now.saturating_add(remaining));
    Some(Response::from_parts(
        parts,
        Body::Verbatim(Box::new(Verbatim::new(bytes::Bytes::new(), body, until))),
    ))
}

/// An error of its own is no better than ours; what the request itself is guilty of is for the client.
fn is_answer<B>(response: &Response<B>) -> bool {
    !response.status().is_server_error() && !response.status().is_informational()
}

fn failed(exchange: &Exchange, why: &dyn std::fmt::Debug) -> Option<Response<Body>> {
    tracing::warn!(route = %exchange.route.name, ?why, "the route's other backend failed as well");
    None
}

fn mark(headers: &mut HeaderMap, exchange: &Exchange) {
    headers::clean_answer(headers);
    headers.insert(headers::DEGRADED, HeaderValue::from_static("backend"));
    headers.insert(headers::SERVED_BY, HeaderValue::from_static("backend"));
    headers.insert(headers::EXCHANGE_ID, exchange.id_header());
}
