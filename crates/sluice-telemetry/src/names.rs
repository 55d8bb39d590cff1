//! Every name that leaves the process in a signal, and nothing else.
//!
//! Sources, so that a change there is a change here alone:
//! - HTTP, server, URL, error, service: OpenTelemetry semantic conventions 1.45.0 (stable).
//! - `gen_ai.*`: open-telemetry/semantic-conventions-genai (in development; `token.usage` may become counters).
//! - `llm.circuit_breaker.*`: the names that alert rules for model calls use in the field.
//! - `sluice.*`: ours, where no convention names the thing.
//!
//! Values are from policy or from fixed sets. Prompts, answers, keys and free text of clients have no name here.

pub mod metric;

/// Spans' names; `{operation} {model}` is made by [`operation_span`].
pub mod span {
    /// The server span is `{method} {path}` with a path of a fixed set.
    pub const SERVER_OTHER: &str = "HTTP";
}

/// The name of an operation's span and of its attempts' spans: `chat gpt-4o`.
pub fn operation_span(operation: &str, model: &str) -> String {
    if model.is_empty() { operation.to_owned() } else { format!("{operation} {model}") }
}

/// Attributes of spans, events, log records, and metrics (there with `_` for `.` at `/metrics`).
pub mod attribute {
    pub const ERROR_TYPE: &str = "error.type";
    pub const HTTP_REQUEST_METHOD: &str = "http.request.method";
    pub const HTTP_REQUEST_RESEND_COUNT: &str = "http.request.resend_count";
    pub const HTTP_RESPONSE_STATUS_CODE: &str = "http.response.status_code";
    pub const HTTP_ROUTE: &str = "http.route";
    pub const SERVER_ADDRESS: &str = "server.address";
    pub const SERVER_PORT: &str = "server.port";
    pub const URL_PATH: &str = "url.path";
    pub const URL_SCHEME: &str = "url.scheme";

    pub const GEN_AI_OPERATION_NAME: &str = "gen_ai.operation.name";
    pub const GEN_AI_PROVIDER_NAME: &str = "gen_ai.provider.name";
    pub const GEN_AI_REQUEST_MODEL: &str = "gen_ai.request.model";
    pub const GEN_AI_REQUEST_STREAM: &str = "gen_ai.request.stream";
    pub const GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK: &str = "gen_ai.response.time_to_first_chunk";
    pub const GEN_AI_TOKEN_TYPE: &str = "gen_ai.token.type";
    pub const GEN_AI_USAGE_INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
    pub const GEN_AI_USAGE_OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";

    pub const SERVICE_INSTANCE_ID: &str = "service.instance.id";
    pub const SERVICE_NAME: &str = "service.name";
    pub const SERVICE_NAMESPACE: &str = "service.namespace";
    pub const SERVICE_VERSION: &str = "service.version";

    /// Why a trace that the ratio left out was exported all the same: see [`crate::Keep`].
    pub const SAMPLING_KEPT_FOR: &str = "sluice.sampling.kept_for";
    pub const AGENT: &str = "sluice.agent";
    pub const ATTEMPTS: &str = "sluice.attempts";
    pub const ATTEMPTED: &str = "sluice.attempted";
    pub const BREAKER_CALLS: &str = "sluice.breaker.calls";
    pub const BREAKER_EPOCH: &str = "sluice.breaker.epoch";
    pub const BREAKER_FAILURES: &str = "sluice.breaker.failures";
    pub const BREAKER_FROM: &str = "sluice.breaker.from";
    pub const BREAKER_REASON: &str = "sluice.breaker.reason";
    pub const BREAKER_SLOW: &str = "sluice.breaker.slow";
    pub const BREAKER_STALLS: &str = "sluice.breaker.stalls";
    pub const BREAKER_STATE: &str = "sluice.breaker.state";
    pub const BREAKER_TO: &str = "sluice.breaker.to";
    pub const DEADLINE_RECEIVED: &str = "sluice.deadline.received_ms";
    pub const DEADLINE_REMAINING: &str = "sluice.deadline.remaining_ms";
    pub const DEGRADED: &str = "sluice.degraded";
    pub const EXCHANGE: &str = "sluice.exchange";
    pub const FAILED_OVER: &str = "sluice.failed_over";
    pub const IN_FLIGHT: &str = "sluice.in_flight";
    pub const LANE: &str = "sluice.lane";
    pub const LIMIT: &str = "sluice.limit";
    pub const LIMIT_VERSION: &str = "sluice.limit.version";
    pub const LINK_KIND: &str = "sluice.link";
    pub const PASSED_OVER_FOR: &str = "sluice.passed_over_for";
    pub const POLICY_VERSION: &str = "sluice.policy.version";
    pub const PROBE: &str = "sluice.probe";
    pub const QUEUE_DEPTH: &str = "sluice.queue.depth";
    pub const QUEUE_OLDEST_AGE: &str = "sluice.queue.oldest_age_ms";
    pub const REFUSAL_REASON: &str = "sluice.refusal.reason";
    pub const REFUSAL_STAGE: &str = "sluice.refusal.stage";
    pub const RETRY_AFTER: &str = "sluice.retry_after_ms";
    pub const RETRYABLE: &str = "sluice.retryable";
    pub const ROUTE: &str = "sluice.route";
    pub const TARGET: &str = "sluice.target";
    /// Each target that was looked at, and what came of it.
    pub const TARGETS: &str = "sluice.targets";
    pub const TENANT: &str = "sluice.tenant";
    pub const VERDICT: &str = "sluice.verdict";
}

/// Values of fixed sets that more than one crate writes.
pub mod value {
    /// `error.type` of an exchange that a breaker refused.
    pub const CIRCUIT_OPEN: &str = "circuit_open";
    /// `sluice.link` of the link from such an exchange to the attempt that opened the breaker.
    pub const OPENED_BY: &str = "opened_by";
    /// In place of what no policy names.
    pub const OTHER: &str = "_other";
}

/// Events on spans, and `event_name` of log records.
pub mod event {
    pub const BREAKER_TRANSITION: &str = "sluice.breaker.transition";
    pub const PASSED_OVER: &str = "sluice.target.passed_over";
    /// Sluice answered an exchange itself.
    pub const REFUSAL: &str = "sluice.refusal";
    /// Attempts were made, and their client got an error or half an answer.
    pub const FAILURE: &str = "sluice.failure";
}

/// Targets of log lines. The first two are also sent as OTLP log records, nothing else is.
pub mod log {
    pub const TRANSITION: &str = "sluice::transition";
    pub const REFUSAL: &str = "sluice::refusal";
    /// What the exporters say of themselves.
    pub const TELEMETRY: &str = "sluice::telemetry";
}
