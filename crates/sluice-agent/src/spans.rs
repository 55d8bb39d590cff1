//! The spans of an exchange, and what they say.
//!
//! ```text
//! POST /v1/chat/completions    server    the request's head … the answer's last byte
//! └─ chat gpt-4o               internal  a route serves it … the answer's last byte
//!    ├─ chat gpt-4o            client    admitted … its settlement's reply: the first attempt
//!    └─ chat gpt-4o-mini       client    the second
//! ```
//! An attempt's span outlives its exchange by its settlement's round trip, because that is where a transition is
//! learned that the attempt caused.
//!
//! # What is in them
//! Names of policy, fixed words, numbers. A model is written as the route or the target names it: what a client
//! asked for under the pattern `chat-*` is `chat-*`. A tenant that no quota names is `_other`. Nothing comes from a
//! body, and of the headers only the trace's identity.
//!
//! # What is kept whatever the ratio
//! Traces with a transition, a probe, a failover (also a target that was passed over) or an error. No error in this
//! sense is the caller's own fault (a 4xx but 429) and that it left: these carry `error.type`, but one caller's bug
//! must not fill the collector. Nor is a target passed over for what is no event: that it has no credential, or that
//! the request never fits its quota.
//!
//! Without a tracer every function here is a test of an `Option`.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request};
use parking_lot::Mutex;
use sluice_core::admission::AdmitReply;
use sluice_core::balance::PassedOver;
use sluice_core::outcome::Verdict;
use sluice_core::policy::{ModelPattern, RoutePolicy, TargetPolicy, TenantSource};
use sluice_core::refusal::{Reason, Refusal};
use sluice_core::stream::Ending;
use sluice_core::wire::{Operation, Usage};
use sluice_telemetry::names::{attribute, event, operation_span, span, value};
use sluice_telemetry::{Keep, KeyValue, Span, SpanContext, SpanKind, Tracer, context};

use crate::ask::Ask;
use crate::exchange::Exchange;
use crate::targets::Target;
use crate::upstream::Origin;

/// A span that several hold. It ends with the last of them.
#[derive(Clone, Default)]
pub(crate) struct SharedSpan(Option<Arc<Mutex<Span>>>);

impl SharedSpan {
    fn of(span: Span) -> Self {
        Self(span.is_recording().then(|| Arc::new(Mutex::new(span))))
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.0.is_some()
    }

    /// Changes the span, where there is one.
    pub(crate) fn with(&self, change: impl FnOnce(&mut Span)) {
        if let Some(span) = &self.0 {
            change(&mut span.lock());
        }
    }

    fn child(&self, kind: SpanKind, name: impl FnOnce() -> String) -> Self {
        self.0.as_ref().map_or_else(Self::default, |span| Self::of(span.lock().child(kind, name())))
    }

    pub(crate) fn context(&self) -> Option<SpanContext> {
        self.0.as_ref()?.lock().context()
    }

    pub(crate) fn traceparent(&self) -> Option<Arc<str>> {
        self.0.as_ref()?.lock().traceparent().map(Arc::from)
    }

    /// Log lines made inside belong to this span.
    pub(crate) fn scope<R>(&self, inside: impl FnOnce() -> R) -> R {
        match &self.0 {
            Some(span) => span.lock().scope(inside),
            None => inside(),
        }
    }
}

/// The spans that are open as long as the exchange is.
#[derive(Clone, Default)]
pub(crate) struct Spans {
    server: SharedSpan,
    /// None before a route serves the exchange.
    operation: SharedSpan,
    /// The model that was asked for, as the route names it.
    model: Option<Arc<str>>,
}

impl Spans {
    /// The server span, in the caller's trace where the request names one. An invalid `traceparent` starts a new one.
    pub(crate) fn begin<B>(tracer: &Tracer, request: &Request<B>) -> Self {
        if !tracer.is_on() {
            return Self::default();
        }
        let operation = Operation::of(request.method().as_str(), request.uri().path());
        let method = method(request.method());
        let (name, path) = match endpoint(operation, method) {
            Some((name, path)) => (name, Some(path)),
            None => (span::SERVER_OTHER, None),
        };
        let parent = context::extract(request.headers());
        let mut span = tracer.root(parent.as_ref(), SpanKind::Server, name);
        span.set(attribute::HTTP_REQUEST_METHOD, method);
        span.set(attribute::URL_SCHEME, "http");
        if let Some(path) = path {
            span.set(attribute::HTTP_ROUTE, path);
            span.set(attribute::URL_PATH, path);
        }
        Self { server: SharedSpan::of(span), ..Self::default() }
    }

    /// With the operation's span, now that it is known what serves the exchange.
    pub(crate) fn operation(&self, exchange: &Exchange, ask: &Ask) -> Self {
        if !self.server.is_recording() {
            return Self::default();
        }
        let route = &exchange.route;
        let operation = ask.operation.gen_ai_name();
        let model = ask.operation.names_model().then(|| asked(&route.policy.models, &ask.facts.model));
        let span = self
            .server
            .child(SpanKind::Internal, || operation_span(operation, model.as_deref().unwrap_or_default()));
        span.with(|span| {
            span.set(attribute::GEN_AI_OPERATION_NAME, operation);
            if let Some(model) = &model {
                span.set(attribute::GEN_AI_REQUEST_MODEL, model.clone());
            }
            span.set(attribute::GEN_AI_REQUEST_STREAM, ask.facts.stream);
            span.set(attribute::EXCHANGE, exchange.id_text());
            span.set(attribute::ROUTE, route.name.clone());
            span.set(attribute::LANE, exchange.lane.as_str());
            span.set(attribute::TENANT, tenant(&route.policy, &exchange.tenant));
            span.set(attribute::POLICY_VERSION, exchange.policies.version.clone());
        });
        Self { server: self.server.clone(), operation: span, model }
    }

    /// An attempt's span. `before`: attempts that the exchange has made already.
    pub(crate) fn attempt(
        &self,
        target: &Target,
        ask: &Ask,
        before: u32,
        admitted: &AdmitReply,
    ) -> SharedSpan {
        let model = target.policy.model.as_ref().or(self.model.as_ref());
        let operation = ask.operation.gen_ai_name();
        let span = self.operation.child(SpanKind::Client, || {
            operation_span(operation, model.map(|model| &**model).unwrap_or_default())
        });
        span.with(|span| {
            span.share(&target.attributes.of_attempts);
            span.set(attribute::GEN_AI_OPERATION_NAME, operation);
            if let Some(model) = model {
                span.set(attribute::GEN_AI_REQUEST_MODEL, model.clone());
            }
            span.set(attribute::GEN_AI_REQUEST_STREAM, ask.facts.stream);
            span.set(attribute::BREAKER_STATE, admitted.state.as_str());
            if before > 0 {
                span.set(attribute::HTTP_REQUEST_RESEND_COUNT, i64::from(before));
            }
            if admitted.answer == sluice_core::admission::AdmitAnswer::Probe {
                span.set(attribute::PROBE, true);
                span.keep(Keep::Probe);
            }
        });
        span
    }

    /// The span of a call that made a transition and was not admitted: it has no attempt.
    pub(crate) fn without_attempt(&self) -> &SharedSpan {
        &self.operation
    }

    /// A target's breaker did not admit: a link to the attempt that opened it.
    pub(crate) fn declined(&self, target: &Target, why: PassedOver, reply: &AdmitReply) {
        let by_breaker = matches!(why, PassedOver::Open | PassedOver::ProbesBusy | PassedOver::Ramping);
        let Some(opened_by) = reply.opened_by.as_deref().filter(|_| by_breaker) else { return };
        self.operation.with(|span| {
            if let Some(opener) = context::parse_traceparent(opened_by) {
                let kind = KeyValue::new(attribute::LINK_KIND, value::OPENED_BY);
                span.link(opener, vec![kind, target.attributes.name()]);
            }
        });
    }

    /// A target was not asked, or did not admit.
    pub(crate) fn passed_over(&self, target: &Target, why: PassedOver) {
        self.operation.with(|span| {
            let why_not = KeyValue::new(attribute::PASSED_OVER_FOR, why.as_str());
            span.event(event::PASSED_OVER, vec![target.attributes.name(), why_not]);
            if !matches!(why, PassedOver::NoCredential | PassedOver::NeverFits) {
                span.keep(Keep::Failover);
            }
        });
    }

    /// A target serves. `failed_over`: not the one that should have.
    pub(crate) fn served(&self, target: &Target, attempts: u32, failed_over: bool) {
        self.operation.with(|span| {
            span.set(attribute::TARGET, target.attributes.name.clone());
            span.set(attribute::GEN_AI_PROVIDER_NAME, target.policy.provider.gen_ai_name());
            span.set(attribute::ATTEMPTS, i64::from(attempts));
            if failed_over {
                span.set(attribute::FAILED_OVER, true);
                span.keep(Keep::Failover);
            }
        });
    }

    /// No target serves.
    pub(crate) fn unserved(&self, attempts: u32) {
        self.operation.with(|span| span.set(attribute::ATTEMPTS, i64::from(attempts)));
    }

    /// What was designed for bad times serves.
    pub(crate) fn degraded(&self, how: &'static str) {
        self.operation.with(|span| span.set(attribute::DEGRADED, how));
    }

    /// The status that the client gets.
    pub(crate) fn answered(&self, status: http::StatusCode) {
        self.server.with(|span| span.set(attribute::HTTP_RESPONSE_STATUS_CODE, i64::from(status.as_u16())));
    }

    /// Sluice answers the exchange itself.
    pub(crate) fn refused(&self, refusal: &Refusal) {
        let error = error_type(refusal.reason);
        for span in [&self.server, &self.operation] {
            span.with(|span| {
                span.set(attribute::REFUSAL_STAGE, refusal.stage.as_str());
                span.set(attribute::REFUSAL_REASON, refusal.reason.as_str());
                if refusal.reason.is_callers_fault() { span.fail_by_caller(error) } else { span.fail(error) }
            });
        }
    }

    /// The client gets a provider's error, or half an answer.
    pub(crate) fn failed(&self, reason: &'static str) {
        for span in [&self.server, &self.operation] {
            span.with(|span| span.fail(reason));
        }
    }

    /// The client left before the end of its answer.
    pub(crate) fn client_gone(&self) {
        for span in [&self.server, &self.operation] {
            span.with(|span| span.fail_by_caller("client-gone"));
        }
    }

    /// Log lines made inside belong to the exchange.
    pub(crate) fn scope<R>(&self, inside: impl FnOnce() -> R) -> R {
        let innermost = if self.operation.is_recording() { &self.operation } else { &self.server };
        innermost.scope(inside)
    }
}

/// What is the same for all exchanges that a target is part of, made once.
pub(crate) struct TargetAttributes {
    /// `namespace/name`
    pub(crate) route: Arc<str>,
    /// Within the route.
    pub(crate) name: Arc<str>,
    of_attempts: Arc<[KeyValue]>,
}

impl TargetAttributes {
    pub(crate) fn of(route: &Arc<str>, policy: &TargetPolicy, origin: Option<&Origin>) -> Self {
        let (route, name) = (route.clone(), policy.name.clone());
        let mut attributes = vec![
            KeyValue::new(attribute::GEN_AI_PROVIDER_NAME, policy.provider.gen_ai_name()),
            KeyValue::new(attribute::ROUTE, route.clone()),
            KeyValue::new(attribute::TARGET, name.clone()),
        ];
        if let Some(origin) = origin {
            attributes.push(KeyValue::new(attribute::SERVER_ADDRESS, Arc::<str>::from(origin.host())));
            attributes.push(KeyValue::new(attribute::SERVER_PORT, i64::from(origin.port())));
        }
        Self { route, name, of_attempts: attributes.into() }
    }

    fn name(&self) -> KeyValue {
        KeyValue::new(attribute::TARGET, self.name.clone())
    }
}

/// How an attempt ended.
pub(crate) fn attempt_ended(span: &SharedSpan, ending: &Ending) {
    use sluice_core::classify::Happening;
    if matches!(ending.happening, Happening::Finished { .. }) {
        return;
    }
    attempt_failed(span, &ending.classified);
}

/// An attempt failed. That it says nothing against the provider and no other target would do better means that its
/// caller is at fault, or has left.
pub(crate) fn attempt_failed(span: &SharedSpan, classified: &sluice_core::classify::Classified) {
    let by_caller =
        matches!(classified.verdict, Verdict::Ignored | Verdict::Cancelled) && !classified.failover;
    span.with(
        |span| {
            if by_caller { span.fail_by_caller(classified.reason) } else { span.fail(classified.reason) }
        },
    );
}

/// The provider's status.
pub(crate) fn attempt_answered(span: &SharedSpan, status: http::StatusCode) {
    span.with(|span| span.set(attribute::HTTP_RESPONSE_STATUS_CODE, i64::from(status.as_u16())));
}

/// The first token came.
pub(crate) fn attempt_first_token(span: &SharedSpan, ttft: Duration) {
    span.with(|span| span.set(attribute::GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK, ttft.as_secs_f64()));
}

/// What the attempt meant to the breaker.
pub(crate) fn attempt_meant(span: &SharedSpan, verdict: Verdict) {
    span.with(|span| span.set(attribute::VERDICT, verdict.as_str()));
}

/// The provider's own count.
pub(crate) fn attempt_used(span: &SharedSpan, usage: Usage) {
    let number = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
    span.with(|span| {
        span.set(attribute::GEN_AI_USAGE_INPUT_TOKENS, number(usage.input));
        span.set(attribute::GEN_AI_USAGE_OUTPUT_TOKENS, number(usage.output));
    });
}

/// `error.type` of a refusal. Half-open with all probes out is the same to the refused as open.
fn error_type(reason: Reason) -> &'static str {
    match reason {
        Reason::CircuitOpen | Reason::ProbesBusy => value::CIRCUIT_OPEN,
        other => other.as_str(),
    }
}

/// A method of the client's own making is not written.
fn method(method: &Method) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    KNOWN.into_iter().find(|known| *known == method.as_str()).unwrap_or("_OTHER")
}

/// The server span's name and the path of an operation, as the provider knows it.
const fn endpoint(operation: Operation, method: &str) -> Option<(&'static str, &'static str)> {
    Some(match operation {
        Operation::ChatCompletions => ("POST /v1/chat/completions", "/v1/chat/completions"),
        Operation::Completions => ("POST /v1/completions", "/v1/completions"),
        Operation::Responses => ("POST /v1/responses", "/v1/responses"),
        Operation::Embeddings => ("POST /v1/embeddings", "/v1/embeddings"),
        Operation::Models if method.len() == "HEAD".len() => ("HEAD /v1/models", "/v1/models"),
        Operation::Models => ("GET /v1/models", "/v1/models"),
        Operation::Messages => ("POST /v1/messages", "/v1/messages"),
        Operation::CountTokens => ("POST /v1/messages/count_tokens", "/v1/messages/count_tokens"),
        Operation::Other => return None,
    })
}

/// A model as the route names it: itself, the longest pattern that it fits, or neither.
fn asked(models: &[ModelPattern], asked: &str) -> Arc<str> {
    let mut longest: Option<&Arc<str>> = None;
    for pattern in models {
        match pattern {
            ModelPattern::Exact(name) if **name == *asked => return name.clone(),
            ModelPattern::Prefix(prefix)
                if asked.starts_with(&**prefix) && longest.is_none_or(|known| known.len() < prefix.len()) =>
            {
                longest = Some(prefix);
            }
            _ => {}
        }
    }
    longest.map_or_else(|| value::OTHER.into(), |prefix| format!("{prefix}*").into())
}

/// A tenant as policy names it: by the route's default, or in a target's quota.
fn tenant(route: &RoutePolicy, tenant: &Arc<str>) -> Arc<str> {
    let default = match &route.tenant {
        TenantSource::Workload => true,
        TenantSource::Header { default, .. } => default == tenant,
    };
    let in_quota = |target: &TargetPolicy| {
        let quota = target.rules.quota.as_ref();
        quota.is_some_and(|quota| quota.rules.tenants.iter().any(|share| share.name == *tenant))
    };
    if default || route.targets.iter().any(in_quota) { tenant.clone() } else { value::OTHER.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_written_as_the_route_names_them() {
        let models = ["gpt-4o", "gpt-*", "gpt-4*"].map(ModelPattern::parse);
        for (name, written) in [
            ("gpt-4o", "gpt-4o"),
            ("gpt-4o-mini", "gpt-4*"),
            ("gpt-5", "gpt-*"),
            ("o1", "_other"),
            ("", "_other"),
        ] {
            assert_eq!(&*asked(&models, name), written, "{name}");
        }
        assert_eq!(&*asked(&[ModelPattern::parse("*")], "anything"), "*");
    }

    #[test]
    fn methods_and_paths_are_of_a_fixed_set() {
        assert_eq!(method(&Method::POST), "POST");
        assert_eq!(method(&"PLANTED".parse().unwrap()), "_OTHER");
        assert_eq!(endpoint(Operation::Other, "POST"), None);
        assert_eq!(endpoint(Operation::Models, "HEAD").unwrap().0, "HEAD /v1/models");
    }

    #[test]
    fn a_breaker_that_waits_for_its_probes_is_open_to_those_it_refuses() {
        assert_eq!(error_type(Reason::CircuitOpen), "circuit_open");
        assert_eq!(error_type(Reason::ProbesBusy), "circuit_open");
        assert_eq!(error_type(Reason::Ramping), "ramping");
    }
}
