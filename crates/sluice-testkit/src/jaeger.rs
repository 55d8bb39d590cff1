//! A real Jaeger: OTLP in over gRPC and HTTP, spans out through its query API.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::http::{encode, get};
use crate::redis::wait_for;
use crate::tool::{Tool, find, free_ports};

/// A span as Jaeger shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JaegerSpan {
    pub trace_id: String,
    pub span_id: String,
    /// The span that it is inside of.
    pub parent: Option<String>,
    /// (trace, span) of spans elsewhere.
    pub links: Vec<(String, String)>,
    pub name: String,
    /// Microseconds since 1970.
    pub started: u64,
    /// Microseconds.
    pub duration: u64,
    pub tags: BTreeMap<String, String>,
    /// Each with its name under `event`.
    pub events: Vec<BTreeMap<String, String>>,
    /// `service.name`.
    pub service: String,
    /// The other attributes of the resource.
    pub resource: BTreeMap<String, String>,
}

impl JaegerSpan {
    /// A tag's text; empty when there is none.
    #[must_use]
    pub fn tag(&self, name: &str) -> &str {
        self.tags.get(name).map_or("", String::as_str)
    }
}

/// A Jaeger with memory for a test's traces, ended when dropped.
pub struct Jaeger {
    process: Tool,
    grpc: u16,
    http: u16,
    query: u16,
}

impl Jaeger {
    /// Starts one and waits until it takes spans.
    ///
    /// # Errors
    /// When it is not installed or does not start.
    pub fn start() -> Result<Self> {
        let program = find("SLUICE_JAEGER", "jaeger", "jaeger/jaeger")?;
        let [grpc, http, query, query_grpc] = free_ports()?;
        let dir = tempfile::tempdir()?;
        let config = include_str!("jaeger.yaml")
            .replace("GRPC_PORT", &grpc.to_string())
            .replace("QUERY_INTERNAL_PORT", &query_grpc.to_string())
            .replace("QUERY_PORT", &query.to_string())
            .replace("HTTP_PORT", &http.to_string());
        fs::write(dir.path().join("jaeger.yaml"), config)?;
        let process = Tool::start(&program, dir, |dir| {
            vec!["--config".to_owned(), dir.join("jaeger.yaml").display().to_string()]
        })?;
        let mut jaeger = Self { process, grpc, http, query };
        wait_for("Jaeger to take spans", || {
            jaeger.process.check()?;
            let listens = |port| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
            Ok(listens(grpc) && listens(http) && get(query, "/api/services").is_ok())
        })
        .with_context(|| jaeger.process.log())?;
        Ok(jaeger)
    }

    #[must_use]
    pub fn grpc_port(&self) -> u16 {
        self.grpc
    }

    #[must_use]
    pub fn http_port(&self) -> u16 {
        self.http
    }

    /// For `OTEL_EXPORTER_OTLP_ENDPOINT` with `grpc`.
    #[must_use]
    pub fn grpc_endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.grpc)
    }

    /// For `OTEL_EXPORTER_OTLP_ENDPOINT` with `http/protobuf`.
    #[must_use]
    pub fn http_endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.http)
    }

    /// Its own page.
    #[must_use]
    pub fn page(&self) -> String {
        format!("http://127.0.0.1:{}", self.query)
    }

    /// Every span that a service sent (of 1,000 traces at most), oldest first.
    ///
    /// # Errors
    /// When Jaeger does not answer.
    pub fn spans(&self, service: &str) -> Result<Vec<JaegerSpan>> {
        let path = format!("/api/traces?service={}&limit=1000&lookback=1h", encode(service));
        let answer: Value = serde_json::from_str(&get(self.query, &path)?)?;
        let traces = answer["data"].as_array().context("no traces in Jaeger's answer")?;
        let spans = traces.iter().flat_map(spans_of);
        let mut spans: Vec<_> = spans.filter(|span| span.service == service).collect();
        spans.sort_by_key(|span| span.started);
        Ok(spans)
    }

    /// Waits until the spans of a service are as the test wants them.
    ///
    /// # Errors
    /// When they don't become so; the error has what there was.
    pub fn wait_for_spans(
        &self,
        service: &str,
        what: &str,
        wanted: impl Fn(&[JaegerSpan]) -> bool,
    ) -> Result<Vec<JaegerSpan>> {
        let mut spans = Vec::new();
        wait_for(what, || {
            spans = self.spans(service)?;
            Ok(wanted(&spans))
        })
        .with_context(|| format!("{spans:#?}"))?;
        Ok(spans)
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn tags(list: &Value) -> BTreeMap<String, String> {
    let tags = list.as_array().into_iter().flatten();
    tags.map(|tag| (text(&tag["key"]), text(&tag["value"]))).collect()
}

fn spans_of(trace: &Value) -> Vec<JaegerSpan> {
    let spans = trace["spans"].as_array().into_iter().flatten();
    spans
        .map(|span| {
            let references = span["references"].as_array().into_iter().flatten();
            let (inside, elsewhere): (Vec<_>, Vec<_>) =
                references.partition(|reference| reference["refType"] == "CHILD_OF");
            let ids = |reference: &Value| (text(&reference["traceID"]), text(&reference["spanID"]));
            let process = &trace["processes"][text(&span["processID"])];
            JaegerSpan {
                trace_id: text(&span["traceID"]),
                span_id: text(&span["spanID"]),
                parent: inside.first().map(|reference| ids(reference).1),
                links: elsewhere.into_iter().map(ids).collect(),
                name: text(&span["operationName"]),
                started: span["startTime"].as_u64().unwrap_or(0),
                duration: span["duration"].as_u64().unwrap_or(0),
                tags: tags(&span["tags"]),
                events: span["logs"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|log| tags(&log["fields"]))
                    .collect(),
                service: text(&process["serviceName"]),
                resource: tags(&process["tags"]),
            }
        })
        .collect()
}
