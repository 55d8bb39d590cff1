//! What one exchange's three spans cost when the ratio leaves them out: the measurement behind `trace`'s design.
//!
//! ```console
//! $ cargo build --release -p sluice-telemetry --example exchange_cost
//! $ for n in 1000 2000; do valgrind --tool=callgrind --callgrind-out-file=/dev/null \
//!     target/release/examples/exchange_cost records $n; done
//! ```
//! The difference of the two instruction counts ÷ 1,000 is one exchange. Modes: `records`, `off`, `tracing` (spans
//! through tracing-opentelemetry, recorded for a decision at the end), `entered` (the same, at ten polls).
#![allow(clippy::unwrap_used, clippy::panic)]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry::trace::{Link, TraceContextExt as _, TraceId, TraceState, TracerProvider as _};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    SamplingDecision, SamplingResult, SdkTracerProvider, ShouldSample, SpanData, SpanProcessor,
};
use sluice_telemetry::names::attribute as a;
use sluice_telemetry::{Identity, KeyValue, Settings, SpanKind, Telemetry, Tracer};
use tracing::field::Empty;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt as _;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mode = arguments.next().unwrap();
    let exchanges: u64 = arguments.next().unwrap().parse().unwrap();
    let telemetry = telemetry();
    match mode.as_str() {
        "records" => records(&tracer(&telemetry), exchanges),
        "off" => records(&Tracer::off(), exchanges),
        "tracing" => tracing_spans(0, exchanges),
        "entered" => tracing_spans(10, exchanges),
        other => panic!("unknown mode {other}"),
    }
}

/// At a ratio of 0, to a collector that is never called.
fn telemetry() -> Telemetry {
    let settings = Settings::read(&|variable| match variable {
        "OTEL_EXPORTER_OTLP_ENDPOINT" => Some("http://127.0.0.1:9".into()),
        "OTEL_TRACES_SAMPLER" => Some("parentbased_always_off".into()),
        _ => None,
    });
    Telemetry::start(settings.unwrap()).unwrap()
}

fn tracer(telemetry: &Telemetry) -> Tracer {
    let identity = Identity { service: "sluice-agent", instance: "cost".to_owned(), namespace: None };
    let (clock, draws) = (Clock::start(), AtomicU64::new(1));
    telemetry
        .signals(&identity)
        .unwrap()
        .tracer(move || clock.now(), move || draws.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed))
}

struct Clock(std::time::Instant);

#[allow(clippy::disallowed_methods, reason = "the agent's clock costs this")]
impl Clock {
    fn start() -> Self {
        Self(std::time::Instant::now())
    }

    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// As the agent makes them.
fn records(tracer: &Tracer, exchanges: u64) {
    let shared = |text: &str| Arc::<str>::from(text);
    let (route, tenant, model) = (shared("default/chat"), shared("acme"), shared("gpt-4o"));
    let name = shared("chat gpt-4o");
    let target: Arc<[KeyValue]> = Arc::new([
        KeyValue::new(a::GEN_AI_OPERATION_NAME, "chat"),
        KeyValue::new(a::GEN_AI_PROVIDER_NAME, "openai"),
        KeyValue::new(a::GEN_AI_REQUEST_MODEL, model.clone()),
        KeyValue::new(a::SERVER_ADDRESS, "api.openai.com"),
        KeyValue::new(a::SERVER_PORT, 443),
        KeyValue::new(a::TARGET, "primary"),
    ]);
    for _ in 0..exchanges {
        let mut server = tracer.root(None, SpanKind::Server, "POST /v1/chat/completions");
        server.set(a::HTTP_REQUEST_METHOD, "POST");
        server.set(a::HTTP_ROUTE, "/v1/chat/completions");
        let mut chat = server.child(SpanKind::Internal, name.clone());
        chat.set(a::ROUTE, route.clone());
        chat.set(a::TENANT, tenant.clone());
        chat.set(a::LANE, "interactive");
        chat.set(a::GEN_AI_REQUEST_STREAM, true);
        let mut attempt = chat.child(SpanKind::Client, name.clone());
        attempt.share(&target);
        attempt.set(a::BREAKER_STATE, "closed");
        black_box(attempt.traceparent());
        attempt.set(a::HTTP_RESPONSE_STATUS_CODE, 200);
        attempt.set(a::GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK, 0.4);
        attempt.set(a::GEN_AI_USAGE_INPUT_TOKENS, 100);
        attempt.set(a::GEN_AI_USAGE_OUTPUT_TOKENS, 100);
        attempt.set(a::VERDICT, "success");
        server.set(a::HTTP_RESPONSE_STATUS_CODE, 200);
    }
}

/// The same spans, and a processor that would decide at the end.
fn tracing_spans(polls: u32, exchanges: u64) {
    let provider = SdkTracerProvider::builder().with_sampler(Recorded).with_span_processor(Dropped).build();
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("sluice"))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_context_activation(false)
        .with_filter(filter_fn(is_span));
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    for _ in 0..exchanges {
        let server = tracing::info_span!(
            "server",
            otel.name = "POST /v1/chat/completions",
            otel.kind = "server",
            http.request.method = "POST",
            http.route = "/v1/chat/completions",
            http.response.status_code = Empty
        );
        let chat = tracing::info_span!(
            parent: &server, "chat", otel.name = "chat gpt-4o", sluice.route = "default/chat",
            sluice.tenant = "acme", sluice.lane = "interactive", gen_ai.request.stream = true
        );
        let attempt = tracing::info_span!(
            parent: &chat, "attempt", otel.name = "chat gpt-4o", otel.kind = "client", gen_ai.operation.name = "chat",
            gen_ai.provider.name = "openai", gen_ai.request.model = "gpt-4o", server.address = "api.openai.com",
            server.port = 443, sluice.target = "primary", sluice.breaker.state = "closed",
            http.response.status_code = Empty, gen_ai.response.time_to_first_chunk = Empty,
            gen_ai.usage.input_tokens = Empty, gen_ai.usage.output_tokens = Empty, sluice.verdict = Empty
        );
        black_box(attempt.context().span().span_context().span_id());
        for _ in 0..polls {
            let _polled = (server.enter(), chat.enter(), attempt.enter());
        }
        attempt.record(a::HTTP_RESPONSE_STATUS_CODE, 200);
        attempt.record(a::GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK, 0.4);
        attempt.record(a::GEN_AI_USAGE_INPUT_TOKENS, 100);
        attempt.record(a::GEN_AI_USAGE_OUTPUT_TOKENS, 100);
        attempt.record(a::VERDICT, "success");
        server.record(a::HTTP_RESPONSE_STATUS_CODE, 200);
    }
}

fn is_span(metadata: &tracing::Metadata<'_>) -> bool {
    metadata.is_span()
}

/// Records everything and samples nothing: what a decision at the end needs.
#[derive(Debug, Clone)]
struct Recorded;

impl ShouldSample for Recorded {
    fn should_sample(
        &self,
        _parent: Option<&Context>,
        _trace: TraceId,
        _name: &str,
        _kind: &SpanKind,
        _attributes: &[KeyValue],
        _links: &[Link],
    ) -> SamplingResult {
        let decision = SamplingDecision::RecordOnly;
        SamplingResult { decision, attributes: Vec::new(), trace_state: TraceState::default() }
    }
}

#[derive(Debug)]
struct Dropped;

impl SpanProcessor for Dropped {
    fn on_start(&self, _span: &mut opentelemetry_sdk::trace::Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        black_box(&span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}
