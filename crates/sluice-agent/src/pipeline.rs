//! The request path, top to bottom, in the order in which things happen.
//!
//! ```text
//! accept ─ policies ─ head ─ client ─ body ─ route ─ deadline, tenant, lane ─ turn ─┐
//!                                                                                   ▼
//!                     relay ◄─ hold back ◄─ send ◄─ admit ◄─ slot ◄─ target ◄── attempts
//! ```
//! Every `?` leaves with a [`Refusal`]; [`reply`] makes an answer of it, the only place where errors become
//! responses.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use sluice_core::deadline::{Budget, Stage};
use sluice_core::policy::{Deadlines, Group, Mode};
use sluice_core::refusal::{Reason, Refusal};
use sluice_core::wire::{Operation, model_id};

use crate::agent::Shared;
use crate::ask::{self, Ask, Unreadable};
use crate::attempt::UNLIMITED;
use crate::attempts;
use crate::body::Body;
use crate::client_io::Connection;
use crate::driven;
use crate::exchange::{Exchange, Presence};
use crate::keep_alive;
use crate::lanes;
use crate::policies::{Policies, Route};
use crate::reply::{self, Unanswered};

/// Answers one request, whatever happens.
pub(crate) async fn handle(
    shared: Arc<Shared>,
    request: Request<Incoming>,
    connection: Arc<Connection>,
) -> Response<Body> {
    let mut presence = Presence::begin(&shared, &request);
    let arrived = shared.clock.now();
    let multiplexed = request.version() == http::Version::HTTP_2;
    let response = match read(&shared, request, &connection).await {
        Ok((policies, ask)) => {
            let format = ask.format;
            let served = serve(&shared, policies, Arc::new(ask), &connection, arrived, &mut presence).await;
            served.unwrap_or_else(|refusal| reply::refuse(&shared, presence.spans(), &refusal, format))
        }
        Err(unanswered) => reply::unanswered(&shared, presence.spans(), &unanswered),
    };
    let response = presence.follow(response);
    if multiplexed { driven::drive(response, connection.write_stall()) } else { response }
}

/// The whole request, bounded in size, number and time.
async fn read(
    shared: &Shared,
    request: Request<Incoming>,
    connection: &Connection,
) -> Result<(Arc<Policies>, Ask), Unanswered> {
    let policies = shared.policies.load_full(); // one snapshot for the whole exchange
    let (head, body) = request.into_parts();
    let mut ask = Ask::of(head)?;
    let fail = |format, unreadable| Unanswered { format, unreadable };
    if connection.framed_twice() {
        return Err(fail(ask.format, Unreadable::FramedTwice));
    }
    if ask.loops(shared.mark) {
        return Err(fail(ask.format, Unreadable::Loop));
    }
    match shared.clients.admit(&mut ask.headers).await {
        Ok(callers_credential) => ask.callers_credential = callers_credential,
        Err(denied) => {
            ask::linger(body);
            return Err(fail(ask.format, denied.into()));
        }
    }
    if policies.version.is_empty() {
        return Err(fail(ask.format, Unreadable::NoPolicy));
    }
    ask.room = shared.body_room.take(&body).map_err(|full| fail(ask.format, full))?;
    let reading = ask.read_body(body, policies.body_bytes);
    let read = tokio::time::timeout(sluice_core::defaults::deadlines::TOTAL, reading).await;
    read.unwrap_or(Err(Unreadable::TooSlow)).map_err(|unreadable| fail(ask.format, unreadable))?;
    connection.expect_head();
    Ok((policies, ask))
}

/// From a request that was read to an answer that begins.
async fn serve(
    shared: &Arc<Shared>,
    policies: Arc<Policies>,
    ask: Arc<Ask>,
    connection: &Connection,
    arrived: Duration,
    presence: &mut Presence,
) -> Result<Response<Body>, Box<Refusal>> {
    if ask.operation == Operation::Models {
        return models(&policies, &ask);
    }
    let route = route(&policies, &ask)?.clone();
    let rules = &route.targets[0].policy.rules;
    connection.limit_write_stall(rules.streaming.rules.slow_client);
    let deadline = Budget::new(&enforced(&rules.deadlines), ask.deadline, ask.facts.stream, arrived);
    let tenant = ask.tenant(&route.policy);
    let lane = ask.lane(&route.policy.lanes);
    let exchange = Exchange::new(shared, policies, route, deadline, tenant, lane);
    let exchange = Arc::new(exchange.within(presence.spans(), &ask));
    presence.routed(&exchange);
    lanes::enter(exchange.deadline.remaining(shared.clock.now()))
        .map_err(|expired| reply::expired(&exchange, expired, shared.clock.now()))?;
    let keep_alive = keep_alive::of(&exchange, &ask);
    let served = attempts::serve(shared.clone(), exchange, ask.clone());
    keep_alive::bridge(shared, &ask, keep_alive, served).await
}

/// The models that the routes serve, or the one that was asked for.
fn models(policies: &Policies, ask: &Ask) -> Result<Response<Body>, Box<Refusal>> {
    let Some(id) = model_id(ask.uri.path()) else {
        return Ok(reply::models(ask.format, &policies.models(ask.format)));
    };
    if policies.route(ask.format, &id).is_none() {
        return Err(Box::new(Refusal::new(Stage::Route, Reason::NoRoute)));
    }
    Ok(reply::model(ask.format, &id))
}

/// A group that is only observed sets no deadline; the caller's own stands.
fn enforced(deadlines: &Group<Deadlines>) -> Deadlines {
    match deadlines.mode {
        Mode::Enforce => deadlines.rules.clone(),
        Mode::Observe => Deadlines { first_token: UNLIMITED, total: UNLIMITED, ..deadlines.rules.clone() },
    }
}

fn route<'a>(policies: &'a Policies, ask: &Ask) -> Result<&'a Arc<Route>, Box<Refusal>> {
    let refused = |reason| Box::new(Refusal::new(Stage::Route, reason));
    if ask.operation == Operation::Other {
        return policies.for_other_paths(ask.format).ok_or_else(|| match Operation::at(ask.uri.path()) {
            Some(known) => {
                Box::new(Refusal::new(Stage::Route, Reason::MethodNotAllowed).allow(known.methods()))
            }
            None => refused(Reason::UnknownPath),
        });
    }
    policies.route(ask.format, &ask.facts.model).ok_or_else(|| refused(Reason::NoRoute))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn future_size<A, B, C, F: Future>(_: impl Fn(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    /// What each request in flight costs beside its buffers: until it is answered this, then its relay.
    #[test]
    fn an_exchange_in_flight_is_small() {
        assert!(future_size(handle) <= 9 * 1024, "{}", future_size(handle));
        assert!(size_of::<crate::relay::Relay>() <= 2 * 1024, "{}", size_of::<crate::relay::Relay>());
    }
}
