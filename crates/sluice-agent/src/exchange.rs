//! One client request, from accept to the last byte: its identity, its deadline, its books.

use std::sync::Arc;

use http::{HeaderValue, Response};
use sluice_core::deadline::Budget;
use sluice_core::policy::Lane;

use crate::agent::Shared;
use crate::body::Body;
use crate::policies::{Policies, Route};

/// What all attempts of an exchange share, besides the request itself.
pub(crate) struct Exchange {
    id: u64,
    pub(crate) policies: Arc<Policies>,
    pub(crate) route: Arc<Route>,
    pub(crate) deadline: Budget,
    pub(crate) tenant: Arc<str>,
    pub(crate) lane: Lane,
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
        Self { id: shared.random.id(), policies, route, deadline, tenant, lane }
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

/// Counts an exchange from its arrival to the last byte of its answer, and says when its client left before
/// there was one.
pub(crate) struct Presence {
    shared: Arc<Shared>,
    answered: bool,
}

impl Presence {
    pub(crate) fn begin(shared: &Arc<Shared>) -> Self {
        shared.metrics.exchanges.inc();
        shared.metrics.exchanges_in_flight.inc();
        Self { shared: shared.clone(), answered: false }
    }

    pub(crate) fn answered(&mut self) {
        self.answered = true;
    }

    /// Stays with an answer until its last byte.
    pub(crate) fn follow(mut self, mut response: Response<Body>) -> Response<Body> {
        match response.body_mut() {
            Body::Full(_) | Body::Driven(_) => self.answered(),
            Body::Relay(relay) => relay.attach(self),
            Body::Verbatim(verbatim) => verbatim.attach(self),
            Body::Waiting(waiting) => waiting.attach(self),
        }
        response
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.shared.metrics.exchanges_in_flight.dec();
        if !self.answered {
            self.shared.metrics.cancelled.inc();
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
