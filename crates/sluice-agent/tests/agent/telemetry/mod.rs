//! What exchanges tell: their spans and lines, as a collector gets them.

mod breaker;
mod ends;
mod lines;
mod markers;
mod tree;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::io;
use std::sync::Arc;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message as _;
use sluice_agent::AgentConfig;
use sluice_core::policy::{RoutePolicy, TargetPolicy, WireFormat};
use sluice_state::EmbeddedHome;
use sluice_state::store::Shared;
use sluice_telemetry::{Identity, LogFormat, Logging, Settings, Signal, Signals, Telemetry, subscriber};
use sluice_testkit::{Collector, Mood};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::EnvFilter;

use crate::harness::{World, policy_set, route};

/// `OTEL_TRACES_SAMPLER` of a ratio.
const RATIO: (&str, &str) = ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio");
const NOTHING: [(&str, &str); 2] = [RATIO, ("OTEL_TRACES_SAMPLER_ARG", "0")];

/// A collector, and agents that send to it. Lines of this thread are log records.
struct Bench {
    collector: Collector,
    telemetry: Telemetry,
    signals: Signals,
    worlds: Vec<World>,
    _lines: DefaultGuard,
}

/// All that a collector got, once everything has ended.
struct Told {
    spans: Vec<Seen>,
    /// Spans of no exchange.
    others: usize,
    records: Vec<Record>,
    /// The bodies of all requests.
    bytes: Vec<u8>,
}

/// A span.
#[derive(Debug, Clone)]
struct Seen {
    trace: String,
    id: String,
    parent: String,
    name: String,
    kind: SpanKind,
    attributes: BTreeMap<String, String>,
    events: Vec<(String, BTreeMap<String, String>)>,
    /// (trace, span)
    links: Vec<(String, String)>,
    state: String,
    failed: bool,
}

/// A log record.
#[derive(Debug)]
struct Record {
    name: String,
    severity: String,
    attributes: BTreeMap<String, String>,
    trace: String,
    span: String,
}

impl Bench {
    async fn start(variables: &[(&str, &str)]) -> Self {
        let collector = Collector::start(Mood::Takes).await.unwrap();
        let common =
            [("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.endpoint), ("OTEL_METRICS_EXPORTER", "none")];
        let table: HashMap<&str, &str> = common.into_iter().chain(variables.iter().copied()).collect();
        let settings = Settings::read(&|variable| table.get(variable).map(OsString::from)).unwrap();
        let telemetry = Telemetry::start(settings).unwrap();
        let identity = Identity { service: "sluice-agent", instance: "test".to_owned(), namespace: None };
        let signals = telemetry.signals(&identity).unwrap();
        // A pod that logs nothing still tells its collector.
        let filter = EnvFilter::new("off");
        let logging = Logging { format: LogFormat::Text, filter, writer: io::sink, ansi: false };
        let lines = tracing::subscriber::set_default(subscriber(logging, &signals));
        Self { collector, telemetry, signals, worlds: Vec::new(), _lines: lines }
    }

    /// An agent with these targets.
    async fn openai(&mut self, targets: Vec<TargetPolicy>) -> &World {
        self.routes(vec![route(WireFormat::OpenAi, targets)]).await
    }

    async fn routes(&mut self, routes: Vec<RoutePolicy>) -> &World {
        self.agent(routes, Shared::Embedded(Arc::new(EmbeddedHome::new().unwrap())), |_| {}).await
    }

    async fn agent(
        &mut self,
        routes: Vec<RoutePolicy>,
        shared: Shared,
        tune: impl FnOnce(&mut AgentConfig),
    ) -> &World {
        let tracer = sluice_agent::config::tracer(&self.signals);
        let world = World::start(policy_set(routes), shared, |config| {
            config.tracer = tracer;
            tune(config);
        })
        .await;
        self.worlds.push(world);
        self.worlds.last().unwrap()
    }

    /// The log records that have arrived.
    fn records(&self) -> Vec<Record> {
        let requests = self.collector.received("logs").into_iter();
        let requests = requests.map(|request| ExportLogsServiceRequest::decode(request.body).unwrap());
        let scopes =
            requests.flat_map(|request| request.resource_logs).flat_map(|resource| resource.scope_logs);
        scopes.flat_map(|scope| scope.log_records).map(Record::of).collect()
    }

    /// Ends the agents and the exporters: what has not arrived then never will.
    async fn end(mut self) -> Told {
        for world in std::mem::take(&mut self.worlds) {
            world.drain().await;
        }
        self.telemetry.shutdown().await;
        let mut told = Told { spans: Vec::new(), others: 0, records: Vec::new(), bytes: Vec::new() };
        for request in self.collector.received("traces") {
            told.bytes.extend_from_slice(&request.body);
            let request = ExportTraceServiceRequest::decode(request.body).unwrap();
            let scopes = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
            told.spans.extend(scopes.flat_map(|scope| scope.spans).map(Seen::of));
        }
        // The agent's own doings (policies that arrive) have traces too.
        let exchanges: BTreeSet<_> =
            told.of_kind(SpanKind::Server).iter().map(|span| span.trace.clone()).collect();
        told.others = told.spans.extract_if(.., |span| !exchanges.contains(&span.trace)).count();
        told.records = self.records();
        told.bytes.extend(self.collector.received("logs").into_iter().flat_map(|request| request.body));
        // The books balance: everything that was sent arrived, and nothing was given up.
        let books = self.signals.books();
        assert_eq!(books.exported(Signal::Traces), (told.spans.len() + told.others) as u64);
        assert_eq!(books.exported(Signal::Logs), told.records.len() as u64);
        assert_eq!(books.dropped_in_all(Signal::Traces) + books.dropped_in_all(Signal::Logs), 0);
        told
    }
}

impl Told {
    fn of_kind(&self, kind: SpanKind) -> Vec<&Seen> {
        self.spans.iter().filter(|span| span.kind == kind).collect()
    }

    /// Each exchange's spans: the server's, the operation's, the attempts'; nothing else is in a trace, and nothing
    /// is missing.
    fn exchanges(&self) -> Vec<(&Seen, &Seen, Vec<&Seen>)> {
        let mut seen = 0;
        let inside = |parent: &Seen| -> Vec<&Seen> {
            let mut spans: Vec<_> = self.spans.iter().filter(|span| span.parent == parent.id).collect();
            spans.sort_by_key(|span| span.tag("http.request.resend_count").parse().unwrap_or(0_u32));
            spans
        };
        let exchanges: Vec<_> = self
            .of_kind(SpanKind::Server)
            .into_iter()
            .filter_map(|server| {
                let operations = inside(server);
                seen += 1 + operations.len();
                let operation = *operations.first()?;
                assert_eq!((operations.len(), operation.kind), (1, SpanKind::Internal));
                let attempts = inside(operation);
                assert!(attempts.iter().all(|attempt| attempt.kind == SpanKind::Client));
                assert!(attempts.iter().all(|attempt| attempt.trace == server.trace));
                seen += attempts.len();
                Some((server, operation, attempts))
            })
            .collect();
        assert_eq!(seen, self.spans.len(), "a span outside of any exchange: {:#?}", self.spans);
        exchanges
    }

    /// The one exchange that there was.
    fn exchange(&self) -> (&Seen, &Seen, Vec<&Seen>) {
        let mut exchanges = self.exchanges();
        assert_eq!(exchanges.len(), 1, "{:#?}", self.spans);
        exchanges.remove(0)
    }

    /// (from, to, span) of each transition.
    fn transitions(&self) -> Vec<(&str, &str, &Seen)> {
        let told = |span| move |event| (event, span);
        let all = self.spans.iter().flat_map(|span| span.events.iter().map(told(span)));
        all.filter(|((name, _), _)| name == "sluice.breaker.transition")
            .map(|((_, event), span)| (&*event["sluice.breaker.from"], &*event["sluice.breaker.to"], span))
            .collect()
    }

    fn records(&self, name: &str) -> Vec<&Record> {
        self.records.iter().filter(|record| record.name == name).collect()
    }
}

impl Seen {
    fn of(span: opentelemetry_proto::tonic::trace::v1::Span) -> Self {
        Self {
            trace: hex(&span.trace_id),
            id: hex(&span.span_id),
            parent: hex(&span.parent_span_id),
            kind: span.kind(),
            name: span.name,
            attributes: texts(&span.attributes),
            events: span.events.into_iter().map(|event| (event.name, texts(&event.attributes))).collect(),
            links: span.links.iter().map(|link| (hex(&link.trace_id), hex(&link.span_id))).collect(),
            state: span.trace_state,
            failed: span.status.is_some_and(|status| status.code == 2),
        }
    }

    /// An attribute's text; empty when there is none.
    fn tag(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }

    fn events(&self, name: &str) -> Vec<&BTreeMap<String, String>> {
        self.events.iter().filter(|(event, _)| event == name).map(|(_, attributes)| attributes).collect()
    }
}

impl Record {
    fn of(record: opentelemetry_proto::tonic::logs::v1::LogRecord) -> Self {
        Self {
            name: record.event_name,
            severity: record.severity_text,
            attributes: texts(&record.attributes),
            trace: hex(&record.trace_id),
            span: hex(&record.span_id),
        }
    }

    fn tag(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let pair = |one: &KeyValue| (one.key.clone(), one.value.as_ref().map(text).unwrap_or_default());
    attributes.iter().map(pair).collect()
}

fn text(value: &AnyValue) -> String {
    match &value.value {
        Some(any_value::Value::StringValue(text)) => text.clone(),
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        Some(any_value::Value::BoolValue(truth)) => truth.to_string(),
        Some(any_value::Value::DoubleValue(number)) => number.to_string(),
        Some(any_value::Value::ArrayValue(list)) => {
            list.values.iter().map(text).collect::<Vec<_>>().join(" ")
        }
        other => format!("{other:?}"),
    }
}
