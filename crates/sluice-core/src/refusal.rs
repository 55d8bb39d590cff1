//! Answers that Sluice makes itself, with the evidence for them.
//!
//! A refusal is fast, says why and at which stage, and tells the client when to come back. Statuses follow what
//! the official SDKs make of them:
//!
//! | reason | status | OpenAI type | Anthropic type | SDK's exception |
//! |---|---|---|---|---|
//! | the request is wrong, or never fits the quota | 400 | `invalid_request_error` | `invalid_request_error` | `BadRequestError` |
//! | the client is not authenticated | 401 | `authentication_error` | `authentication_error` | `AuthenticationError` |
//! | no such route, path or target | 404 | `invalid_request_error` | `not_found_error` | `NotFoundError` |
//! | a known path with another method | 405, with `allow` | `invalid_request_error` | `invalid_request_error` | `APIStatusError` |
//! | the body is too large | 413 | `invalid_request_error` | `request_too_large` | `APIStatusError`, `RequestTooLargeError` |
//! | quota, limit, queue, pause: come back later | 429 | `rate_limit_error` | `rate_limit_error` | `RateLimitError` |
//! | the provider could not be reached, or answered nonsense | 502 | `server_error` | `api_error` | `InternalServerError` |
//! | nothing can serve: breakers open, no credential or a refused one of the target's, state away, draining | 503 | `server_error` | `overloaded_error` | `InternalServerError`, `ServiceUnavailableError` |
//! | out of time | 504 | `server_error` | `timeout_error` | `InternalServerError`, `DeadlineExceededError` |
//!
//! Anthropic's own overload is 529; 503 is used in both formats, because everything between the client and the
//! agent knows 503 and retries or balances by it, while 529 means that the *provider* said so.
//!
//! Retry guidance: `retry-after` in whole seconds, rounded up (never early), with `retry-after-ms` exact, which both
//! SDKs read first, wherever a wait is known: from the breaker, the bucket, the pause, the limiter or the throttle.
//! Where none is (502, 504, an agent that shuts down: another one serves the next connection), neither header is
//! sent, and the SDKs' own backoff with its jitter is the better guess. `x-should-retry: false` where a retry can't help, and where the wait is beyond
//! [`SDK_PATIENCE`]: for a longer Retry-After older SDKs come back in seconds instead, and Anthropic's newer ones
//! sleep for as long as it says, with a caller waiting behind.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::deadline::Stage;
use crate::policy::{Lane, WireFormat};
use crate::units::millis;
use crate::wire::{ErrorText, Operation, error_body, stream_error};

/// The longest Retry-After that both official SDKs honour.
pub const SDK_PATIENCE: Duration = Duration::from_mins(1);

/// Why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The body or a header is wrong.
    InvalidRequest,
    /// The request is larger than the quota can ever hold.
    NeverFits,
    Unauthenticated,
    /// It cannot be said now whether the client is authenticated.
    Unverified,
    /// No route serves the model.
    NoRoute,
    /// A path that Sluice does not know, and the route does not pass on.
    UnknownPath,
    /// A path that Sluice knows, with a method that it has not.
    MethodNotAllowed,
    /// `x-sluice-target` names no target of the route.
    NoSuchTarget,
    BodyTooLarge,
    HeadersTooLarge,
    TokensExhausted,
    RequestsExhausted,
    /// The provider asked everyone to wait.
    Paused,
    /// The tenant's share is used up.
    TenantExhausted,
    LimiterFull,
    QueueFull,
    /// Expected wait + expected service is longer than what remains of the deadline.
    WaitTooLong,
    /// Shed in favour of a lane that goes before.
    Shed,
    /// Adaptive throttling.
    Throttled,
    CircuitOpen,
    /// Half-open, and all probes are out.
    ProbesBusy,
    /// The breaker closed lately, and the load is let in by and by.
    Ramping,
    NoCredential,
    /// The provider refused the target's own credential; the caller's has no part in it.
    CredentialRefused,
    /// The shared state is away and the policy fails closed.
    StoreUnavailable,
    /// No policy has arrived yet.
    NoPolicy,
    Draining,
    /// Several targets, several reasons.
    NoTarget,
    /// The deadline passed before an attempt could be made.
    DeadlineExceeded,
    /// Attempts were made; none connected.
    UpstreamUnreachable,
    /// Attempts were made; the answer was empty, cut off or no JSON.
    UpstreamInvalid,
    /// Attempts were made; none answered in time.
    UpstreamTimeout,
    /// A fault of Sluice itself.
    Internal,
}

/// The class of a reason: status and types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Invalid,
    Unauthenticated,
    NotFound,
    MethodNotAllowed,
    TooLarge,
    HeadersTooLarge,
    Limited,
    BadGateway,
    Unavailable,
    TimedOut,
    Internal,
}

impl Reason {
    /// The word in metrics and logs, and the error's `code`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::NeverFits => "never_fits",
            Self::Unauthenticated => "unauthenticated",
            Self::Unverified => "unverified",
            // OpenAI's own code for it, which clients look at.
            Self::NoRoute => "model_not_found",
            Self::UnknownPath => "unknown_path",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::NoSuchTarget => "no_such_target",
            Self::BodyTooLarge => "body_too_large",
            Self::HeadersTooLarge => "headers_too_large",
            Self::TokensExhausted => "tokens_exhausted",
            Self::RequestsExhausted => "requests_exhausted",
            Self::Paused => "paused",
            Self::TenantExhausted => "tenant_exhausted",
            Self::LimiterFull => "limiter_full",
            Self::QueueFull => "queue_full",
            Self::WaitTooLong => "wait_too_long",
            Self::Shed => "shed",
            Self::Throttled => "throttled",
            Self::CircuitOpen => "circuit_open",
            Self::ProbesBusy => "probes_busy",
            Self::Ramping => "ramping",
            Self::NoCredential => "no_credential",
            Self::CredentialRefused => "credential_refused",
            Self::StoreUnavailable => "store_unavailable",
            Self::NoPolicy => "no_policy",
            Self::Draining => "draining",
            Self::NoTarget => "no_target",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::UpstreamUnreachable => "upstream_unreachable",
            Self::UpstreamInvalid => "upstream_invalid",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::Internal => "internal",
        }
    }

    const fn class(self) -> Class {
        match self {
            Self::InvalidRequest | Self::NeverFits => Class::Invalid,
            Self::Unauthenticated => Class::Unauthenticated,
            Self::NoRoute | Self::UnknownPath | Self::NoSuchTarget => Class::NotFound,
            Self::MethodNotAllowed => Class::MethodNotAllowed,
            Self::BodyTooLarge => Class::TooLarge,
            Self::HeadersTooLarge => Class::HeadersTooLarge,
            Self::TokensExhausted
            | Self::RequestsExhausted
            | Self::Paused
            | Self::TenantExhausted
            | Self::LimiterFull
            | Self::QueueFull
            | Self::WaitTooLong
            | Self::Shed => Class::Limited,
            Self::Unverified
            | Self::Throttled
            | Self::CircuitOpen
            | Self::ProbesBusy
            | Self::Ramping
            | Self::NoCredential
            | Self::CredentialRefused
            | Self::StoreUnavailable
            | Self::NoPolicy
            | Self::Draining
            | Self::NoTarget => Class::Unavailable,
            Self::UpstreamUnreachable | Self::UpstreamInvalid => Class::BadGateway,
            Self::DeadlineExceeded | Self::UpstreamTimeout => Class::TimedOut,
            Self::Internal => Class::Internal,
        }
    }

    /// The HTTP status.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self.class() {
            Class::Invalid => 400,
            Class::Unauthenticated => 401,
            Class::NotFound => 404,
            Class::MethodNotAllowed => 405,
            Class::TooLarge => 413,
            Class::HeadersTooLarge => 431,
            Class::Limited => 429,
            Class::Internal => 500,
            Class::BadGateway => 502,
            Class::Unavailable => 503,
            Class::TimedOut => 504,
        }
    }

    /// The error's `type` in a format's own vocabulary.
    #[must_use]
    pub const fn kind(self, format: WireFormat) -> &'static str {
        match (self.class(), format) {
            (Class::Unauthenticated, _) => "authentication_error",
            (Class::NotFound, WireFormat::Anthropic) => "not_found_error",
            (Class::TooLarge, WireFormat::Anthropic) => "request_too_large",
            (
                Class::Invalid
                | Class::NotFound
                | Class::MethodNotAllowed
                | Class::TooLarge
                | Class::HeadersTooLarge,
                _,
            ) => "invalid_request_error",
            (Class::Limited, _) => "rate_limit_error",
            (Class::Unavailable, WireFormat::Anthropic) => "overloaded_error",
            (Class::TimedOut, WireFormat::Anthropic) => "timeout_error",
            (Class::BadGateway | Class::Internal, WireFormat::Anthropic) => "api_error",
            (
                Class::Unavailable | Class::TimedOut | Class::BadGateway | Class::Internal,
                WireFormat::OpenAi,
            ) => "server_error",
        }
    }

    /// Whether the request itself is at fault, whatever the state of the targets: a 4xx, but 429.
    #[must_use]
    pub const fn is_callers_fault(self) -> bool {
        let status = self.status();
        status >= 400 && status < 500 && status != 429
    }

    /// Whether the same request can succeed later.
    #[must_use]
    pub const fn retryable(self) -> bool {
        match self.class() {
            Class::Invalid
            | Class::Unauthenticated
            | Class::NotFound
            | Class::MethodNotAllowed
            | Class::TooLarge
            | Class::HeadersTooLarge => false,
            // The caller's time is up; and no Secret appears or is renewed within a retry.
            _ => !matches!(self, Self::DeadlineExceeded | Self::NoCredential | Self::CredentialRefused),
        }
    }

    /// The sentence for the client.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::InvalidRequest => "the request cannot be read",
            Self::NeverFits => "the request is larger than the quota can ever hold",
            Self::Unauthenticated => "the client is not authenticated",
            Self::Unverified => "the client's credential cannot be verified now",
            Self::NoRoute => "no route serves this model",
            Self::UnknownPath => "this path is not served",
            Self::MethodNotAllowed => "this path has no such method",
            Self::NoSuchTarget => "the route has no target of the name in x-sluice-target",
            Self::BodyTooLarge => "the body is larger than the policy allows",
            Self::HeadersTooLarge => "the headers are larger than 64 KiB or more than 100",
            Self::TokensExhausted => "the tokens of this minute are spent",
            Self::RequestsExhausted => "the requests of this minute are spent",
            Self::Paused => "the provider asked to wait",
            Self::TenantExhausted => "the tenant's share is spent",
            Self::LimiterFull => "all slots of the concurrency limit are taken",
            Self::QueueFull => "the lane's queue is full",
            Self::WaitTooLong => "the expected wait is longer than the remaining deadline",
            Self::Shed => "the lane was shed in favour of one that goes before",
            Self::Throttled => "the provider accepts too few requests at the moment",
            Self::CircuitOpen => "the circuit breaker is open",
            Self::ProbesBusy => "the circuit breaker waits for its probes",
            Self::Ramping => "the provider recovered and the load is let in gradually",
            Self::NoCredential => "the target's credential is missing",
            Self::CredentialRefused => "the provider refused the target's credential",
            Self::StoreUnavailable => "the shared state is unavailable and the policy fails closed",
            Self::NoPolicy => "no policy has been received yet",
            Self::Draining => "the agent is shutting down",
            Self::NoTarget => "no target can serve the request now",
            Self::DeadlineExceeded => "the deadline has passed",
            Self::UpstreamUnreachable => "the provider could not be reached",
            Self::UpstreamInvalid => "the provider's answer was empty, cut off or not JSON",
            Self::UpstreamTimeout => "the provider did not answer in time",
            Self::Internal => "internal error",
        }
    }
}

/// What a refusal is based on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Evidence {
    pub tenant: Option<Arc<str>>,
    pub lane: Option<Lane>,
    pub route: Option<Arc<str>>,
    /// The targets looked at, and why each was passed over.
    pub targets: Vec<(Arc<str>, &'static str)>,
    pub policy_version: Option<Arc<str>>,
    /// The revision of the limit's settings.
    pub limit_version: Option<u64>,
    /// Exchanges in flight and the limit on them.
    pub in_flight: Option<(u32, u32)>,
    /// Exchanges in the lane's queue.
    pub depth: Option<u32>,
    /// How long the oldest of them has waited.
    pub oldest_age: Option<Duration>,
    /// What the caller sent.
    pub received_deadline: Option<Duration>,
    pub remaining: Option<Duration>,
    /// Whether a provider was asked for this exchange.
    pub upstream_attempt: bool,
}

/// An answer that Sluice makes itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub stage: Stage,
    pub reason: Reason,
    /// What is wrong in particular, with its fix; in place of the reason's general sentence.
    pub detail: Option<String>,
    /// From the capacity model: when it is worth asking again. `None`: unknown.
    pub retry_after: Option<Duration>,
    /// Whether asking again can help at all; [`Reason::retryable`] unless the caller knows better.
    pub retryable: bool,
    /// The methods that the path has, for [`Reason::MethodNotAllowed`].
    pub allow: Option<&'static str>,
    pub evidence: Evidence,
}

/// A refusal as HTTP has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    pub status: u16,
    /// Lower-case names.
    pub headers: Vec<(&'static str, String)>,
    pub body: Bytes,
}

impl Refusal {
    #[must_use]
    pub fn new(stage: Stage, reason: Reason) -> Self {
        Self {
            stage,
            reason,
            detail: None,
            retry_after: None,
            retryable: reason.retryable(),
            allow: None,
            evidence: Evidence::default(),
        }
    }

    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// A known path was asked with another method than `methods`.
    #[must_use]
    pub fn allow(mut self, methods: &'static str) -> Self {
        self.allow = Some(methods);
        self
    }

    #[must_use]
    pub fn evidence(mut self, evidence: Evidence) -> Self {
        self.evidence = evidence;
        self
    }

    /// Whether the client's SDK is told to come back.
    #[must_use]
    pub fn asks_to_retry(&self) -> bool {
        self.retryable && self.retry_after.is_none_or(|wait| wait <= SDK_PATIENCE)
    }

    /// The answer in a wire format.
    #[must_use]
    pub fn render(&self, format: WireFormat) -> Rendered {
        let mut headers = vec![
            ("content-type", "application/json".to_owned()),
            ("x-sluice-refused", format!("{}/{}", self.stage.as_str(), self.reason.as_str())),
        ];
        if let Some(methods) = self.allow {
            headers.push(("allow", methods.to_owned()));
        }
        if let Some(wait) = self.retry_after.filter(|_| self.retryable) {
            headers.push(("retry-after", wait.as_millis().div_ceil(1_000).to_string()));
            headers.push(("retry-after-ms", wait.as_millis().to_string()));
        }
        if !self.asks_to_retry() {
            headers.push(("x-should-retry", "false".to_owned()));
        }
        let message = self.message();
        Rendered {
            status: self.reason.status(),
            headers,
            body: error_body(format, &self.error_text(format, &message)),
        }
    }

    /// The event that ends a stream whose 200 has gone out.
    #[must_use]
    pub fn render_in_stream(&self, operation: Operation) -> Bytes {
        let format = operation.format().unwrap_or(WireFormat::OpenAi);
        let message = self.message();
        stream_error(operation, &self.error_text(format, &message))
    }

    fn error_text<'a>(&self, format: WireFormat, message: &'a str) -> ErrorText<'a> {
        ErrorText {
            kind: self.reason.kind(format),
            code: self.reason.as_str(),
            message,
            evidence: self.evidence_json(),
        }
    }

    fn message(&self) -> String {
        format!("sluice: {}", self.detail.as_deref().unwrap_or(self.reason.text()))
    }

    /// The evidence as the error's `sluice` member and for the log line.
    #[must_use]
    pub fn evidence_json(&self) -> Value {
        let evidence = &self.evidence;
        let ms = |duration: Option<Duration>| duration.map(millis);
        let targets: Vec<Value> =
            evidence.targets.iter().map(|(name, why)| json!({ "name": &**name, "why": why })).collect();
        json!({
            "stage": self.stage.as_str(),
            "reason": self.reason.as_str(),
            "code": self.reason.as_str(),
            "tenant": evidence.tenant.as_deref(),
            "lane": evidence.lane.map(Lane::as_str),
            "route": evidence.route.as_deref(),
            "targets": targets,
            "policy_version": evidence.policy_version.as_deref(),
            "limit_version": evidence.limit_version,
            "in_flight": evidence.in_flight.map(|(in_flight, _)| in_flight),
            "limit": evidence.in_flight.map(|(_, limit)| limit),
            "queue_depth": evidence.depth,
            "queue_oldest_age_ms": ms(evidence.oldest_age),
            "received_deadline_ms": ms(evidence.received_deadline),
            "remaining_ms": ms(evidence.remaining),
            "upstream_attempt": evidence.upstream_attempt,
            "retry_after_ms": ms(self.retry_after),
            "retryable": self.retryable,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header<'a>(rendered: &'a Rendered, name: &str) -> Option<&'a str> {
        rendered.headers.iter().find(|(n, _)| *n == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn retry_guidance_is_rounded_up_and_exact() {
        let refusal =
            Refusal::new(Stage::Admit, Reason::TokensExhausted).retry_after(Duration::from_millis(2_001));
        let rendered = refusal.render(WireFormat::OpenAi);
        assert_eq!(rendered.status, 429);
        assert_eq!(header(&rendered, "retry-after"), Some("3"));
        assert_eq!(header(&rendered, "retry-after-ms"), Some("2001"));
        assert_eq!(header(&rendered, "x-should-retry"), None);
    }

    #[test]
    fn a_retry_that_cannot_help_is_told_not_to_come() {
        let never = Refusal::new(Stage::Estimate, Reason::NeverFits).render(WireFormat::Anthropic);
        assert_eq!((never.status, header(&never, "x-should-retry")), (400, Some("false")));
        let far = Refusal::new(Stage::Target, Reason::CircuitOpen).retry_after(Duration::from_millis(60_001));
        let far = far.render(WireFormat::Anthropic);
        assert_eq!(header(&far, "x-should-retry"), Some("false"));
        assert_eq!(header(&far, "retry-after"), Some("61"), "people and proxies still learn when");
        let near = Refusal::new(Stage::Target, Reason::CircuitOpen).retry_after(SDK_PATIENCE);
        assert_eq!(header(&near.render(WireFormat::OpenAi), "x-should-retry"), None);
    }

    #[test]
    fn the_body_has_the_evidence() {
        let refusal = Refusal::new(Stage::Enqueue, Reason::WaitTooLong)
            .retry_after(Duration::from_secs(4))
            .evidence(Evidence {
                tenant: Some("team-a".into()),
                lane: Some(Lane::Background),
                route: Some("ns/chat".into()),
                targets: vec![("primary".into(), "limiter-full")],
                policy_version: Some("abc".into()),
                limit_version: Some(3),
                in_flight: Some((32, 32)),
                depth: Some(9),
                oldest_age: Some(Duration::from_millis(1_200)),
                received_deadline: Some(Duration::from_secs(2)),
                remaining: Some(Duration::from_millis(1_900)),
                upstream_attempt: false,
            });
        for (format, at) in [(WireFormat::OpenAi, "/error/sluice"), (WireFormat::Anthropic, "/error/sluice")]
        {
            let body: Value = serde_json::from_slice(&refusal.render(format).body).unwrap();
            let sluice = body.pointer(at).unwrap();
            assert_eq!(sluice["stage"], "enqueue");
            assert_eq!(sluice["lane"], "background");
            assert_eq!(sluice["queue_depth"], 9);
            assert_eq!(sluice["queue_oldest_age_ms"], 1_200);
            assert_eq!(sluice["received_deadline_ms"], 2_000);
            assert_eq!(sluice["upstream_attempt"], false);
            assert_eq!(body["error"]["type"], "rate_limit_error");
        }
    }

    #[test]
    fn types_are_of_the_formats_own_vocabulary() {
        let kind = |reason: Reason, format| (reason.status(), reason.kind(format));
        for (reason, openai, anthropic) in [
            (Reason::CircuitOpen, (503, "server_error"), (503, "overloaded_error")),
            (Reason::QueueFull, (429, "rate_limit_error"), (429, "rate_limit_error")),
            (Reason::NoRoute, (404, "invalid_request_error"), (404, "not_found_error")),
            (Reason::MethodNotAllowed, (405, "invalid_request_error"), (405, "invalid_request_error")),
            (Reason::BodyTooLarge, (413, "invalid_request_error"), (413, "request_too_large")),
            (Reason::DeadlineExceeded, (504, "server_error"), (504, "timeout_error")),
            (Reason::UpstreamInvalid, (502, "server_error"), (502, "api_error")),
            (Reason::NeverFits, (400, "invalid_request_error"), (400, "invalid_request_error")),
        ] {
            assert_eq!(kind(reason, WireFormat::OpenAi), openai);
            assert_eq!(kind(reason, WireFormat::Anthropic), anthropic);
        }
    }
}
