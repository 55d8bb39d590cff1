//! What becomes of `tracing`'s spans and events: log lines, OpenTelemetry spans, OTLP log records.
//!
//! | layer | takes |
//! |---|---|
//! | log lines | what `RUST_LOG` lets through (default `info`) |
//! | tracing-opentelemetry | spans of Sluice's own crates from `info` on, and events inside them as span events |
//! | log records | events with the target [`names::log::TRANSITION`] or [`names::log::REFUSAL`], nothing else: whoever runs a pod's logs through a collector already has the rest |
//!
//! Each layer has its own filter: a pod that logs at `warn` still tells its collector of each transition. Without an
//! exporter the last two don't exist.

use std::io;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_sdk::logs::SdkLoggerProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::level_filters::LevelFilter;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::filter::{EnvFilter, FilterFn, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{Format, JsonFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry};

use crate::Signals;
use crate::log_format::{LogFormat, WithSpan};
use crate::names;

/// How this process writes its log.
#[derive(Debug)]
pub struct Logging<W> {
    pub format: LogFormat,
    /// Directives as in `RUST_LOG`.
    pub filter: EnvFilter,
    pub writer: W,
    /// Colours, in text.
    pub ansi: bool,
}

impl Logging<fn() -> io::Stderr> {
    /// To stderr, with the filter of `RUST_LOG`.
    pub fn stderr(format: LogFormat) -> Self {
        use std::io::IsTerminal as _;
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
        Self { format, filter, writer: io::stderr, ansi: io::stderr().is_terminal() }
    }
}

/// The subscriber of a process: install it with `tracing::subscriber::set_global_default`.
pub fn subscriber<W>(logging: Logging<W>, signals: &Signals) -> impl Subscriber + Send + Sync + use<W>
where
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    let spans = signals.tracer_provider().map(spans);
    let records = signals.logger_provider().map(records);
    // The span layer comes before the lines, so that a span's context is current when a line asks for it.
    Registry::default().with(spans).with(records).with(lines(logging))
}

type Boxed<S> = Box<dyn Layer<S> + Send + Sync>;

fn lines<S, W>(logging: Logging<W>) -> Boxed<S>
where
    S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer().with_writer(logging.writer);
    match logging.format {
        LogFormat::Text => {
            let format = WithSpan::text(Format::default().with_ansi(logging.ansi));
            layer.with_ansi(logging.ansi).event_format(format).with_filter(logging.filter).boxed()
        }
        LogFormat::Json => {
            let format =
                Format::default().json().flatten_event(true).with_current_span(false).with_span_list(false);
            let layer = layer.with_ansi(false).fmt_fields(JsonFields::new());
            layer.event_format(WithSpan::json(format)).with_filter(logging.filter).boxed()
        }
    }
}

fn spans<S>(provider: &SdkTracerProvider) -> Boxed<S>
where
    S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
{
    tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("sluice"))
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_filter(up_to_info(is_ours))
        .boxed()
}

fn records<S>(provider: &SdkLoggerProvider) -> Boxed<S>
where
    S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
{
    OpenTelemetryTracingBridge::new(provider).with_filter(up_to_info(is_record)).boxed()
}

/// A filter that says so: libraries' call sites of `trace` and `debug` stay as cheap as without it.
fn up_to_info(passes: fn(&Metadata<'_>) -> bool) -> FilterFn<fn(&Metadata<'_>) -> bool> {
    filter_fn(passes).with_max_level_hint(LevelFilter::INFO)
}

fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.target().starts_with("sluice") && *metadata.level() <= LevelFilter::INFO
}

fn is_record(metadata: &Metadata<'_>) -> bool {
    metadata.is_event() && matches!(metadata.target(), names::log::TRANSITION | names::log::REFUSAL)
}
