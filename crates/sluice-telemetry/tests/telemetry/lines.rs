//! Log lines: one object each in JSON, and the span that they belong to.

use std::io::{self, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use sluice_telemetry::{LogFormat, Logging, Signals, SpanKind, subscriber};
use tracing_subscriber::EnvFilter;

use crate::{start, tracer};

#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn written(format: LogFormat, signals: &Signals, lines: impl FnOnce()) -> String {
    let page = Page::default();
    let own = page.clone();
    let logging =
        Logging { format, filter: EnvFilter::new("info"), writer: move || own.clone(), ansi: false };
    tracing::subscriber::with_default(subscriber(logging, signals), lines);
    let bytes = page.0.lock().clone();
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn lines_within_a_span_name_it() {
    let (telemetry, signals) = start(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")], "lines");
    let span = tracer(&signals).root(None, SpanKind::Server, "POST");
    let own = span.context().unwrap();
    let (trace, id) = (own.trace_id().to_string(), own.span_id().to_string());
    let lines = || {
        tracing::info!(target: "sluice_agent", route = "a \"quoted\" one", "outside");
        span.scope(|| tracing::warn!(target: "sluice_agent", calls = 3, "inside"));
    };
    let json = written(LogFormat::Json, &signals, lines);
    let objects: Vec<serde_json::Value> =
        json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(objects.len(), 2);
    assert_eq!((&objects[0]["route"], objects[0].get("trace_id")), (&"a \"quoted\" one".into(), None));
    assert_eq!((&objects[1]["message"], &objects[1]["calls"]), (&"inside".into(), &3.into()));
    assert_eq!(
        (objects[1]["trace_id"].as_str(), objects[1]["span_id"].as_str()),
        (Some(&*trace), Some(&*id))
    );
    let text = written(LogFormat::Text, &signals, lines);
    let within: Vec<_> = text.lines().filter(|line| line.contains("trace_id")).collect();
    assert_eq!(within.len(), 1, "{text}");
    assert!(within[0].contains("inside") && within[0].ends_with(&format!("trace_id={trace} span_id={id}")));
    drop(span);
    telemetry.shutdown().await;
}

#[test]
fn a_tracing_span_is_named_too() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (telemetry, signals) = start(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")], "lines");
    let json = written(LogFormat::Json, &signals, || {
        tracing::info_span!(target: "sluice_policy", "publish")
            .in_scope(|| tracing::info!(target: "sluice_policy", "inside"));
    });
    let object: serde_json::Value = serde_json::from_str(json.trim()).unwrap();
    assert_eq!(object["trace_id"].as_str().unwrap().len(), 32, "{json}");
    runtime.block_on(telemetry.shutdown());
}

#[test]
fn formats_are_named() {
    assert_eq!("json".parse(), Ok(LogFormat::Json));
    assert_eq!("text".parse(), Ok(LogFormat::Text));
    let error = "yaml".parse::<LogFormat>().unwrap_err().to_string();
    assert_eq!(error, "log format \"yaml\" is unknown: set it to text or json");
}
