//! Metrics and log records on the wire, and what each request carries.

use std::sync::Arc;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{metric, number_data_point};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use prost::Message as _;
use sluice_telemetry::names::metric::EXCHANGES;
use sluice_telemetry::names::{event, log};
use sluice_telemetry::{LogFormat, Logging, MetricSource, Page, Signal, SpanKind, subscriber};
use tracing_subscriber::EnvFilter;

use crate::{assert_balanced, start, tracer, traces, until};
use sluice_testkit::{Collector, Mood};

struct Source(Page);

impl MetricSource for Source {
    fn read(&self, reader: &mut dyn FnMut(&Registry)) {
        reader(self.0.registry());
    }
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.key == key)?;
    match attribute.value.as_ref()?.value.as_ref()? {
        any_value::Value::StringValue(text) => Some(text.clone()),
        other => Some(format!("{other:?}")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_is_exported_at_each_interval_and_at_the_end() {
    let collector = Collector::start(Mood::Takes).await.unwrap();
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint.as_str()),
        ("OTEL_METRIC_EXPORT_INTERVAL", "20"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test%20bed"),
    ];
    let (telemetry, signals) = start(&variables, "metered");
    let counter: Counter = Counter::default();
    let mut page = Page::new(signals.books());
    page.register(&EXCHANGES, counter.clone());
    signals.export_metrics(Arc::new(Source(page)));
    until("two intervals", || collector.received("metrics").len() >= 2).await;
    counter.inc_by(7);
    telemetry.shutdown().await;
    let last = collector.received("metrics").pop().unwrap();
    let request = ExportMetricsServiceRequest::decode(last.body).unwrap();
    let resource = &request.resource_metrics[0];
    let attributes = &resource.resource.as_ref().unwrap().attributes;
    assert_eq!(text(attributes, "service.name").as_deref(), Some("metered"));
    assert_eq!(text(attributes, "deployment.environment.name").as_deref(), Some("test bed"));
    let metrics = &resource.scope_metrics[0].metrics;
    let exchanges = metrics.iter().find(|metric| metric.name == "sluice.exchanges").unwrap();
    let Some(metric::Data::Sum(sum)) = &exchanges.data else { panic!("{exchanges:?}") };
    assert_eq!(sum.data_points[0].value, Some(number_data_point::Value::AsDouble(7.0)));
    assert!(metrics.iter().any(|metric| metric.name == "sluice.telemetry.dropped"));
    assert!(signals.books().exported(Signal::Metrics) > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn transitions_and_refusals_are_log_records_and_nothing_else_is() {
    let collector = Collector::start(Mood::Takes).await.unwrap();
    let (telemetry, signals) =
        start(&[("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint.as_str())], "logging");
    let span = tracer(&signals).root(None, SpanKind::Server, "POST");
    let own = span.context().unwrap();
    // A pod that logs errors only still tells its collector.
    let filter = EnvFilter::new("error");
    let logging = Logging { format: LogFormat::Text, filter, writer: std::io::sink, ansi: false };
    tracing::subscriber::with_default(subscriber(logging, &signals), || {
        tracing::info!(target: "sluice_agent", secret = "planted", "not a record");
        span.scope(|| {
            tracing::info!(
                name: event::BREAKER_TRANSITION, target: log::TRANSITION, to = "open", epoch = 3,
                "breaker transition"
            );
        });
        tracing::info!(name: event::REFUSAL, target: log::REFUSAL, stage = "admit", "refused");
    });
    telemetry.shutdown().await;
    assert_balanced(signals.books(), Signal::Logs, 2);
    let bodies = collector.received("logs");
    let requests = bodies.iter().map(|one| ExportLogsServiceRequest::decode(one.body.clone()).unwrap());
    let records: Vec<_> = requests
        .flat_map(|request| request.resource_logs)
        .flat_map(|resource| resource.scope_logs)
        .flat_map(|scope| scope.log_records)
        .collect();
    assert_eq!(records.len(), 2);
    let transition = records.iter().find(|record| record.event_name == event::BREAKER_TRANSITION).unwrap();
    assert_eq!(transition.trace_id, own.trace_id().to_bytes());
    assert_eq!(transition.span_id, own.span_id().to_bytes());
    assert_eq!(text(&transition.attributes, "to").as_deref(), Some("open"));
    assert!(bodies.iter().all(|one| !one.body.windows(7).any(|window| window == b"planted")));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_carry_the_headers_that_were_asked_for() {
    let collector = Collector::start(Mood::Takes).await.unwrap();
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint.as_str()),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20token,x-scope=a"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
    ];
    let (telemetry, signals) = start(&variables, "headed");
    traces(&tracer(&signals), 1);
    telemetry.shutdown().await;
    let received = collector.received("traces").remove(0);
    assert_eq!(received.headers["authorization"], "Bearer token");
    assert_eq!(received.headers["x-scope"], "a");
    assert_eq!(received.headers["content-encoding"], "gzip");
    assert_eq!(received.headers["content-type"], "application/x-protobuf");
    assert!(received.headers["user-agent"].to_str().unwrap().starts_with("sluice/"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_that_is_off_is_not_sent() {
    let collector = Collector::start(Mood::Takes).await.unwrap();
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint.as_str());
    for off in [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")] {
        let (telemetry, signals) = start(&[endpoint, off], "off");
        assert!(!tracer(&signals).is_on());
        traces(&tracer(&signals), 1);
        telemetry.shutdown().await;
    }
    assert!(collector.received("traces").is_empty());
}
