//! The only place where errors become responses.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use sluice_core::balance::PassedOver;
use sluice_core::classify::Happening;
use sluice_core::deadline::Stage;
use sluice_core::estimate::NeverFits;
use sluice_core::policy::{Credential, Degraded, TargetPolicy, WireFormat};
use sluice_core::refusal::{Evidence, Reason, Refusal};
use sluice_core::wire::{Operation, StaticAnswer, model_body, models_body, static_answer, static_stream};

use crate::agent::Shared;
use crate::ask::{Ask, Unreadable};
use crate::body::Body;
use crate::evidence;
use crate::exchange::Exchange;
use crate::headers;
use crate::lanes::Expired;
use crate::spans::Spans;
use crate::targets::Target;
use crate::unserved::{Failed, Outlook, Unserved, credential_refused};

/// A request that could not be read, and what its client speaks.
#[derive(Debug)]
pub(crate) struct Unanswered {
    pub(crate) format: WireFormat,
    pub(crate) unreadable: Unreadable,
}

/// A refusal in the client's format.
pub(crate) fn refuse(
    shared: &Shared,
    spans: &Spans,
    refusal: &Refusal,
    format: WireFormat,
) -> Response<Body> {
    evidence::tell_refusal(shared, spans, refusal);
    let rendered = refusal.render(format);
    let mut response = Response::new(Body::full(rendered.body));
    *response.status_mut() =
        StatusCode::from_u16(rendered.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in rendered.headers {
        if let Ok(value) = HeaderValue::try_from(value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    response
}

/// A request that could not be read: the connection is closed where what follows on it cannot be trusted.
pub(crate) fn unanswered(shared: &Shared, spans: &Spans, unanswered: &Unanswered) -> Response<Body> {
    let refused = |reason, detail: String| Refusal::new(Stage::Receive, reason).detail(detail);
    let refusal = match &unanswered.unreadable {
        Unreadable::Body(error) => refused(Reason::InvalidRequest, error.to_string()),
        Unreadable::TooLarge { limit } => refused(
            Reason::BodyTooLarge,
            format!("the body is larger than {limit} bytes: shorten it, or raise `streaming.bodyBytes`"),
        ),
        Unreadable::Broken => refused(Reason::InvalidRequest, "the body ended before its length".to_owned()),
        Unreadable::TooSlow => {
            refused(Reason::DeadlineExceeded, "the body took too long to arrive".to_owned())
        }
        Unreadable::ProtectedHeader(name) => refused(
            Reason::InvalidRequest,
            format!("`Connection` names `{}`, which belongs to the request: take it out", name.0),
        ),
        Unreadable::Deadline(error) => refused(Reason::InvalidRequest, error.to_string()),
        Unreadable::Loop => refused(
            Reason::InvalidRequest,
            "the request came through this agent before: a target's `endpoint` leads back to it".to_owned(),
        ),
        Unreadable::FramedTwice => refused(
            Reason::InvalidRequest,
            "the request has two of Content-Length and Transfer-Encoding: send one of them".to_owned(),
        ),
        Unreadable::TooManyHeaders => refused(
            Reason::HeadersTooLarge,
            format!("the request has more than {} headers: send fewer", headers::MOST),
        ),
        Unreadable::NoRoom => refused(
            Reason::LimiterFull,
            "too many large requests are in memory: send fewer at once".to_owned(),
        )
        .retry_after(Duration::from_secs(1)),
        // The same whatever is wrong with it: who has no key learns nothing of those who have.
        Unreadable::Unauthenticated => Refusal::new(Stage::Receive, Reason::Unauthenticated),
        Unreadable::Unverified => {
            Refusal::new(Stage::Receive, Reason::Unverified).retry_after(Duration::from_secs(1))
        }
        Unreadable::NoPolicy => {
            Refusal::new(Stage::Route, Reason::NoPolicy).retry_after(Duration::from_secs(1))
        }
    };
    let mut response = refuse(shared, spans, &refusal, unanswered.format);
    if matches!(unanswered.unreadable, Unreadable::Unauthenticated) {
        // RFC 9110 § 11.6.1 wants it with every 401.
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if !matches!(unanswered.unreadable, Unreadable::Body(_) | Unreadable::NoPolicy) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

pub(crate) fn models(format: WireFormat, names: &[&str]) -> Response<Body> {
    json(models_body(format, names.iter().copied()))
}

pub(crate) fn model(format: WireFormat, name: &str) -> Response<Body> {
    json(model_body(format, name))
}

fn json(body: bytes::Bytes) -> Response<Body> {
    let mut response = Response::new(Body::full(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

pub(crate) fn expired(exchange: &Exchange, _: Expired, now: Duration) -> Refusal {
    let evidence = evidence::of(exchange, &exchange.route.targets[0], now);
    Refusal::new(Stage::Enqueue, Reason::DeadlineExceeded).evidence(evidence)
}

/// The grace period of the shutdown ended before there was an answer.
pub(crate) fn draining(exchange: &Exchange, now: Duration) -> Refusal {
    let evidence = evidence::of(exchange, &exchange.route.targets[0], now);
    Refusal::new(Stage::Attempt, Reason::Draining).evidence(Evidence { upstream_attempt: true, ..evidence })
}

/// The end of an exchange that no target served: the route's degraded answer, what the provider said, or a
/// refusal.
pub(crate) fn unserved(
    exchange: &Exchange,
    ask: &Ask,
    mut unserved: Unserved,
    now: Duration,
) -> Result<Response<Body>, Box<Refusal>> {
    if unserved.may_degrade()
        && let Some(degraded) = degraded(exchange, ask)
    {
        return Ok(degraded);
    }
    let told = if unserved.passed_over_is_better() { None } else { unserved.failed.take() };
    let (refusal, decided) = match told {
        Some(Failed { answer: Some(answer), target, reason, outlook, .. }) => {
            if outlook != Outlook::CallersOwn {
                let evidence = evidence_of(exchange, &target, &unserved, now);
                let status = Some(answer.status());
                evidence::tell_failure(&exchange.spans, Stage::Attempt, reason, status, &evidence);
            }
            return Ok(answer);
        }
        Some(Failed { target, happening, .. }) => (failed(&target.policy, &happening), Some(target)),
        None => not_admitted(&unserved),
    };
    let decided = decided.unwrap_or_else(|| exchange.route.targets[0].clone());
    Err(Box::new(refusal.evidence(evidence_of(exchange, &decided, &unserved, now))))
}

fn evidence_of(exchange: &Exchange, decided: &Target, unserved: &Unserved, now: Duration) -> Evidence {
    let failures = unserved.failures.iter().map(|(target, why)| (target.policy.name.clone(), *why));
    let passed_over =
        unserved.passed_over.iter().map(|(target, why, _)| (target.policy.name.clone(), why.as_str()));
    Evidence {
        upstream_attempt: unserved.attempts > 0,
        targets: passed_over.chain(failures).collect(),
        ..evidence::of(exchange, decided, now)
    }
}

fn failed(target: &TargetPolicy, happening: &Happening) -> Refusal {
    let refusal = Refusal::new(Stage::Attempt, failed_reason(target, happening));
    let Some(status) = credential_refused(target, happening) else { return refusal };
    let name = &target.name;
    refusal.detail(match &target.credential {
        Credential::Secret(key) => format!(
            "the provider of target `{name}` refused the target's credential with status {status}: renew key `{}` \
             of Secret `{}`",
            key.key, key.name
        ),
        _ => format!(
            "the provider of target `{name}` wants a credential (status {status}) and the target has none: give \
             it one in `credential`"
        ),
    })
}

/// Why an attempt without an answer that can be passed on is refused.
pub(crate) fn failed_reason(target: &TargetPolicy, happening: &Happening) -> Reason {
    match happening {
        _ if credential_refused(target, happening).is_some() => Reason::CredentialRefused,
        Happening::TotalDeadline { callers: true, .. } => Reason::DeadlineExceeded,
        Happening::FirstTokenDeadline { .. } | Happening::TotalDeadline { .. } => Reason::UpstreamTimeout,
        Happening::Connect(_) => Reason::UpstreamUnreachable,
        Happening::Draining => Reason::Draining,
        _ => Reason::UpstreamInvalid,
    }
}

/// Nothing was even sent. When asking again may help is the soonest of what the targets said; that target
/// decides.
fn not_admitted(unserved: &Unserved) -> (Refusal, Option<Arc<Target>>) {
    if unserved.out_of_time {
        return (Refusal::new(Stage::Target, Reason::DeadlineExceeded), None);
    }
    let Some((first, why_first, _)) = unserved.passed_over.first() else {
        return (Refusal::new(Stage::Target, Reason::NoSuchTarget), None);
    };
    let never = |why: &PassedOver| matches!(why, PassedOver::NeverFits | PassedOver::NoCredential);
    if let Some(never_fits) = unserved.never_fits
        && unserved.passed_over.iter().all(|(_, why, _)| never(why))
    {
        // A quota of nothing is no fault of the request.
        let reason = match never_fits {
            NeverFits::Larger { .. } => Reason::NeverFits,
            NeverFits::AdmitsNothing { field: "requestsPerMinute" } => Reason::RequestsExhausted,
            NeverFits::AdmitsNothing { .. } => Reason::TokensExhausted,
        };
        let mut refusal = Refusal::new(Stage::Estimate, reason).detail(never_fits.to_string());
        refusal.retryable = false;
        return (refusal, Some(first.clone()));
    }
    let told = unserved.passed_over.iter().filter_map(|(target, why, again)| Some((target, why, (*again)?)));
    if let Some((target, why, again)) = told.min_by_key(|(.., again)| *again) {
        let refusal = Refusal::new(Stage::Admit, reason_of(*why));
        return (refusal.retry_after(again.max(Duration::from_millis(1))), Some(target.clone()));
    }
    let refusal = Refusal::new(Stage::Admit, reason_of(*why_first));
    (without_callers_credential(refusal, first), Some(first.clone()))
}

/// A target passes its caller's credential on, and the one that came was a gateway's own.
fn without_callers_credential(refusal: Refusal, target: &Target) -> Refusal {
    if refusal.reason != Reason::NoCredential || target.policy.credential != Credential::Passthrough {
        return refusal;
    }
    refusal.detail(format!(
        "target `{}` wants the caller's own credential, and the one that came was for this gateway: send the gateway's \
         in `{}`",
        target.policy.name,
        headers::CLIENT_KEY
    ))
}

pub(crate) fn reason_of(why: PassedOver) -> Reason {
    match why {
        PassedOver::Open => Reason::CircuitOpen,
        PassedOver::ProbesBusy => Reason::ProbesBusy,
        PassedOver::Ramping => Reason::Ramping,
        PassedOver::Paused => Reason::Paused,
        PassedOver::TokensExhausted => Reason::TokensExhausted,
        PassedOver::RequestsExhausted => Reason::RequestsExhausted,
        PassedOver::LimiterFull => Reason::LimiterFull,
        PassedOver::NeverFits => Reason::NeverFits,
        PassedOver::NoCredential => Reason::NoCredential,
        PassedOver::Throttled => Reason::Throttled,
        PassedOver::StoreUnavailable => Reason::StoreUnavailable,
        PassedOver::NotNamed | PassedOver::Tried => Reason::NoTarget,
    }
}

/// The route's own answer for bad times, marked as such.
fn degraded(exchange: &Exchange, ask: &Ask) -> Option<Response<Body>> {
    let Degraded::Static { text } = &exchange.route.policy.degraded else { return None };
    exchange.spans.degraded("static");
    let id = exchange.id_text();
    let created =
        crate::clock::wall().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let answer = StaticAnswer {
        id: &id,
        model: &ask.facts.model,
        text,
        created,
        include_usage: ask.facts.include_usage,
    };
    let (body, content_type) = if ask.facts.stream {
        (static_stream(ask.operation, &answer)?, "text/event-stream")
    } else {
        (static_answer(ask.operation, &answer)?, "application/json")
    };
    let mut response = Response::new(Body::full(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(headers::DEGRADED, HeaderValue::from_static("static"));
    headers.insert(headers::SERVED_BY, HeaderValue::from_static("sluice"));
    headers.insert(headers::EXCHANGE_ID, exchange.id_header());
    Some(response)
}

/// The last event of a stream that did not end in order.
///
/// `inside_event`: what was forwarded stops inside an event, which a blank line has to end first.
pub(crate) fn stream_end(operation: Operation, happening: &Happening, inside_event: bool) -> bytes::Bytes {
    let refusal = match happening {
        Happening::TotalDeadline { .. } => Refusal::new(Stage::Relay, Reason::DeadlineExceeded),
        Happening::Stalled => Refusal::new(Stage::Relay, Reason::UpstreamTimeout)
            .detail("the provider's stream stalled; the answer is not complete"),
        Happening::Draining => Refusal::new(Stage::Relay, Reason::Draining)
            .detail("the agent shuts down; the answer is not complete"),
        _ => Refusal::new(Stage::Relay, Reason::UpstreamInvalid)
            .detail("the provider's stream was cut; the answer is not complete"),
    };
    let event = refusal.render_in_stream(operation);
    if inside_event { [b"\n\n".as_slice(), &event].concat().into() } else { event }
}

/// A provider's error status behind a 200 that has gone out.
pub(crate) fn status_in_stream(operation: Operation, status: StatusCode) -> bytes::Bytes {
    Refusal::new(Stage::Relay, Reason::UpstreamInvalid)
        .detail(format!("the provider answered with status {}", status.as_u16()))
        .render_in_stream(operation)
}
