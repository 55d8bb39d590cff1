//! One client request, from accept to the last byte: its identity, its deadline, its books.

use std::sync::Arc;

use http::{HeaderValue, Request, Response};
use sluice_core::deadline::Budget;
use sluice_core::deadline::Stage;
use sluice_core::policy::Lane;
use sluice_core::stream::Ending;

use crate::agent::Shared;
use crate::ask::Ask;
use crate::body::Body;
use crate::evidence;
use crate::policies::{Policies, Route};
use crate::spans::Spans;
use crate::targets::Target;

/// What all attempts of an exchange share, besides the request itself.
pub(crate) struct Exchange {
    id: u64,
    pub(crate) policies: Arc<Policies>,
    pub(crate) route: Arc<Route>,
    pub(crate) deadline: Budget,
    pub(crate) tenant: Arc<str>,
    pub(crate) lane: Lane,
    pub(crate) spans: Spans,
}

impl Exchange {
    pub(crate) fn new(
        shared: &Shared,
        policies: Arc<Policies>,
        route: Arc<Route>,
        deadline: Budget,
        tenant: Arc<str>,
        lane: Lane,
    ) -> Self {
        let spans = Spans::default();
        Self { id: shared.random.id(), policies, route, deadline, tenant, lane, spans }
    }

    /// With the operation's span inside the server's.
    pub(crate) fn within(mut self, server: &Spans, ask: &Ask) -> Self {
        self.spans = server.operation(&self, ask);
        self
    }

    pub(crate) fn id_text(&self) -> String {
        format!("{:016x}", self.id)
    }

    pub(crate) fn id_header(&self) -> HeaderValue {
        hex_header(self.id)
    }
}

/// Names one attempt.
pub(crate) fn fresh_id(shared: &Shared) -> HeaderValue {
    hex_header(shared.random.id())
}

fn hex_header(id: u64) -> HeaderValue {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0_u8; 16];
    for (place, digit) in text.iter_mut().enumerate() {
        *digit = DIGITS[(id >> (60 - 4 * place) & 0xf) as usize];
    }
    HeaderValue::from_bytes(&text).unwrap_or_else(|_| HeaderValue::from_static("0"))
}

/// Counts an exchange from its arrival to the last byte of its answer, holds its spans that long, and says when its
/// client left before there was one.
pub(crate) struct Presence {
    shared: Arc<Shared>,
    spans: Spans,
    /// Once a route serves it.
    exchange: Option<Arc<Exchange>>,
    answered: bool,
}

impl Presence {
    pub(crate) fn begin<B>(shared: &Arc<Shared>, request: &Request<B>) -> Self {
        shared.metrics.exchanges.inc();
        shared.metrics.exchanges_in_flight.inc();
        let spans = Spans::begin(&shared.tracer, request);
        Self { shared: shared.clone(), spans, exchange: None, answered: false }
    }

    pub(crate) fn spans(&self) -> &Spans {
        &self.spans
    }

    /// A route serves the exchange.
    pub(crate) fn routed(&mut self, exchange: &Arc<Exchange>) {
        self.spans = exchange.spans.clone();
        self.exchange = Some(exchange.clone());
    }

    pub(crate) fn answered(&mut self) {
        self.answered = true;
    }

    /// An answer that had begun ended before its end.
    pub(crate) fn broke_off(&self, target: &Target, ending: &Ending) {
        let Some(exchange) = &self.exchange else { return };
        let of_exchange = evidence::of(exchange, target, self.shared.clock.now());
        let reason = ending.classified.reason;
        let targets = vec![(target.policy.name.clone(), reason)];
        let evidence = sluice_core::refusal::Evidence { upstream_attempt: true, targets, ..of_exchange };
        evidence::tell_failure(&self.spans, Stage::Relay, reason, None, &evidence);
    }

    /// Stays with an answer until its last byte.
    pub(crate) fn follow(self, mut response: Response<Body>) -> Response<Body> {
        self.spans.answered(response.status());
        self.attach(response.body_mut());
        response
    }

    /// Stays with the body of an answer whose status has gone out before.
    pub(crate) fn attach(mut self, body: &mut Body) {
        match body {
            Body::Full(_) | Body::Driven(_) => self.answered(),
            Body::Relay(relay) => relay.attach(self),
            Body::Verbatim(verbatim) => verbatim.attach(self),
            Body::Waiting(waiting) => waiting.attach(self),
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.shared.metrics.exchanges_in_flight.dec();
        if !self.answered {
            self.shared.metrics.cancelled.inc();
            self.spans.client_gone();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_sixteen_hex_digits() {
        assert_eq!(hex_header(0x0123_4567_89ab_cdef), "0123456789abcdef");
        assert_eq!(hex_header(1), "0000000000000001");
    }
}
