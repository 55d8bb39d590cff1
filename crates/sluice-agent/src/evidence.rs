//! The evidence of an exchange that was refused or failed: what its client is shown of it, and one line in the log.
//!
//! | what happened | level | event |
//! |---|---|---|
//! | Sluice answered it itself and asked no provider | info | `sluice.refusal` |
//! | providers were asked, and the client got an error or half an answer | warn | `sluice.failure` |
//!
//! One line per exchange, however many targets and attempts it had; none for what went well in the end, for a client
//! that left, and for an error that the provider finds in the request itself (its 400 is the caller's matter).
//!
//! An open breaker under full load refuses as often as it is asked, and so often there is a line. The lines have a
//! target of their own for that: `RUST_LOG=info,sluice::refusal=warn` keeps refusals out of a pod's log, and they
//! still reach a collector as log records, through a bounded queue.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use sluice_core::deadline::Stage;
use sluice_core::refusal::{Evidence, Refusal};
use sluice_core::units::millis;
use sluice_telemetry::names::{attribute, event, log};
use tracing::Level;

use crate::agent::Shared;
use crate::exchange::Exchange;
use crate::spans::Spans;
use crate::targets::Target;

/// A tenant is a header's value: as much of it is written as names have.
const TENANT_CHARS: usize = 64;

/// What every refusal of an exchange shows; `target` is the one that decided.
pub(crate) fn of(exchange: &Exchange, target: &Target, now: Duration) -> Evidence {
    Evidence {
        tenant: Some(exchange.tenant.clone()),
        lane: Some(exchange.lane),
        route: Some(exchange.route.name.clone()),
        policy_version: Some(exchange.policies.version.clone()),
        limit_version: Some(target.policy.rules.revision),
        in_flight: Some((target.in_flight(), target.limit())),
        received_deadline: exchange.deadline.received(),
        remaining: Some(exchange.deadline.remaining_to_begin(now)),
        ..Evidence::default()
    }
}

/// Sluice answers an exchange itself: counted, in its spans, in the log.
pub(crate) fn tell_refusal(shared: &Shared, spans: &Spans, refusal: &Refusal) {
    let route = refusal.evidence.route.as_ref();
    shared.metrics.refused(route, refusal.stage.as_str(), refusal.reason.as_str());
    spans.refused(refusal);
    let line = Line {
        stage: refusal.stage,
        reason: refusal.reason.as_str(),
        status: Some(refusal.reason.status()),
        retry_after: refusal.retry_after,
        retryable: Some(refusal.retryable),
        evidence: &refusal.evidence,
    };
    let failed = refusal.evidence.upstream_attempt;
    spans.scope(|| if failed { line.failure() } else { line.refusal() });
}

/// What the client gets is a provider's error, or half of its answer. `reason`: a word of a fixed set.
pub(crate) fn tell_failure(
    spans: &Spans,
    stage: Stage,
    reason: &'static str,
    status: Option<StatusCode>,
    evidence: &Evidence,
) {
    spans.failed(reason);
    let status = status.map(|status| status.as_u16());
    let line = Line { stage, reason, status, retry_after: None, retryable: None, evidence };
    spans.scope(|| line.failure());
}

struct Line<'a> {
    stage: Stage,
    reason: &'static str,
    status: Option<u16>,
    retry_after: Option<Duration>,
    retryable: Option<bool>,
    evidence: &'a Evidence,
}

/// The same fields at two levels: a level is part of a line's place in the code.
macro_rules! write_line {
    ($line:expr, $level:expr, $name:expr, $message:literal) => {{
        let (line, evidence) = ($line, $line.evidence);
        tracing::event!(
            name: $name,
            target: log::REFUSAL,
            $level,
            { attribute::REFUSAL_STAGE } = line.stage.as_str(),
            { attribute::REFUSAL_REASON } = line.reason,
            { attribute::HTTP_RESPONSE_STATUS_CODE } = line.status,
            { attribute::TENANT } = evidence.tenant.as_ref().map(shown),
            { attribute::LANE } = evidence.lane.map(|lane| lane.as_str()),
            { attribute::ROUTE } = evidence.route.as_deref(),
            { attribute::TARGETS } = %Targets(&evidence.targets),
            { attribute::POLICY_VERSION } = evidence.policy_version.as_deref(),
            { attribute::LIMIT_VERSION } = evidence.limit_version,
            { attribute::IN_FLIGHT } = evidence.in_flight.map(|(in_flight, _)| in_flight),
            { attribute::LIMIT } = evidence.in_flight.map(|(_, limit)| limit),
            { attribute::QUEUE_DEPTH } = evidence.depth,
            { attribute::QUEUE_OLDEST_AGE } = evidence.oldest_age.map(millis),
            { attribute::DEADLINE_RECEIVED } = evidence.received_deadline.map(millis),
            { attribute::DEADLINE_REMAINING } = evidence.remaining.map(millis),
            { attribute::RETRY_AFTER } = line.retry_after.map(millis),
            { attribute::RETRYABLE } = line.retryable,
            { attribute::ATTEMPTED } = evidence.upstream_attempt,
            $message
        );
    }};
}

impl Line<'_> {
    fn refusal(&self) {
        write_line!(self, Level::INFO, event::REFUSAL, "refused");
    }

    fn failure(&self) {
        write_line!(self, Level::WARN, event::FAILURE, "failed");
    }
}

fn shown(tenant: &Arc<str>) -> &str {
    tenant.char_indices().nth(TENANT_CHARS).map_or(&**tenant, |(end, _)| &tenant[..end])
}

/// `primary=open, fallback=server-error`
struct Targets<'a>(&'a [(Arc<str>, &'static str)]);

impl fmt::Display for Targets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (name, why)) in self.0.iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            write!(f, "{comma}{name}={why}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_listed_with_what_came_of_them() {
        let targets = [("primary".into(), "open"), ("fallback".into(), "server-error")];
        assert_eq!(Targets(&targets).to_string(), "primary=open, fallback=server-error");
        assert_eq!(Targets(&[]).to_string(), "");
    }

    #[test]
    fn a_tenant_is_written_as_far_as_names_go() {
        assert_eq!(shown(&"acme".into()), "acme");
        assert_eq!(shown(&"ä".repeat(1_000).into()), "ä".repeat(64));
    }
}
