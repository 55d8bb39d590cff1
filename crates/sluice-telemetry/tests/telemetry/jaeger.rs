//! Spans in a real Jaeger.

use sluice_telemetry::names::{attribute, event};
use sluice_telemetry::{Keep, KeyValue, Logging, Signal, SpanKind, context, subscriber};
use sluice_testkit::Jaeger;
use sluice_testkit::tls::{TestCertificates, TlsFront};

use crate::{assert_balanced, start, tracer, traces};

fn sent<'a>(jaeger: &Jaeger, way: &'a str) -> Vec<(&'a str, String)> {
    let mut variables = match way.trim_end_matches("+gzip") {
        "grpc" => vec![
            ("OTEL_EXPORTER_OTLP_ENDPOINT", jaeger.grpc_endpoint()),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc".to_owned()),
        ],
        _ => vec![("OTEL_EXPORTER_OTLP_ENDPOINT", jaeger.http_endpoint())],
    };
    if way.ends_with("+gzip") {
        variables.push(("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip".to_owned()));
    }
    variables
        .extend([("OTEL_METRICS_EXPORTER", "none".to_owned()), ("OTEL_LOGS_EXPORTER", "none".to_owned())]);
    variables
}

fn borrowed<'a>(variables: &'a [(&'a str, String)]) -> Vec<(&'a str, &'a str)> {
    variables.iter().map(|(name, value)| (*name, value.as_str())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_arrive_whole_over_every_protocol() {
    let jaeger = Jaeger::start().unwrap();
    for (way, service) in
        [("grpc", "over-grpc"), ("http", "over-http"), ("grpc+gzip", "grpc-gzip"), ("http+gzip", "http-gzip")]
    {
        let variables = sent(&jaeger, way);
        let (telemetry, signals) = start(&borrowed(&variables), service);
        let tracer = tracer(&signals);
        let elsewhere = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let mut server = tracer.root(None, SpanKind::Server, "POST /v1/chat/completions");
        server.set(attribute::HTTP_RESPONSE_STATUS_CODE, 503);
        let mut attempt = server.child(SpanKind::Client, "chat gpt-4o");
        attempt.set(attribute::GEN_AI_REQUEST_MODEL, "gpt-4o");
        attempt.event(event::BREAKER_TRANSITION, vec![KeyValue::new(attribute::BREAKER_TO, "open")]);
        attempt.link(context::parse_traceparent(elsewhere).unwrap(), Vec::new());
        attempt.fail("timeout");
        let told = attempt.traceparent().unwrap();
        attempt.end();
        server.end();
        let spans =
            jaeger.wait_for_spans(service, "two spans", |spans| spans.len() == 2).unwrap_or_else(|error| {
                panic!("{way}: {error:#} {:?}", signals.books());
            });
        let (server, attempt) = (&spans[0], &spans[1]);
        assert_eq!(told, format!("00-{}-{}-01", attempt.trace_id, attempt.span_id), "{way}");
        assert_eq!((server.name.as_str(), &server.parent), ("POST /v1/chat/completions", &None));
        assert_eq!(server.tag("span.kind"), "server");
        assert_eq!(server.tag(attribute::HTTP_RESPONSE_STATUS_CODE), "503");
        assert_eq!(attempt.parent.as_ref(), Some(&server.span_id));
        assert_eq!((attempt.tag("span.kind"), attempt.tag("error")), ("client", "true"));
        assert_eq!(attempt.tag(attribute::ERROR_TYPE), "timeout");
        assert_eq!(attempt.tag(attribute::GEN_AI_REQUEST_MODEL), "gpt-4o");
        assert_eq!(attempt.events[0]["event"], event::BREAKER_TRANSITION);
        assert_eq!(attempt.events[0][attribute::BREAKER_TO], "open");
        assert_eq!(attempt.links[0].0, "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(attempt.resource[attribute::SERVICE_INSTANCE_ID], "agent-1");
        telemetry.shutdown().await;
        assert_eq!(signals.books().exported(Signal::Traces), 2, "{way}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_behind_tls_is_trusted_for_its_authority_alone() {
    let jaeger = Jaeger::start().unwrap();
    let certificates = TestCertificates::generate().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let authority = folder.path().join("ca.pem");
    std::fs::write(&authority, &certificates.ca_pem).unwrap();
    let authority = authority.to_str().unwrap();
    for (protocol, alpn, port, trusted, untrusted) in [
        ("grpc", "h2", jaeger.grpc_port(), "grpc-trusted", "grpc-stranger"),
        ("http/protobuf", "http/1.1", jaeger.http_port(), "http-trusted", "http-stranger"),
    ] {
        let front = TlsFront::start(&certificates, alpn, ([127, 0, 0, 1], port).into()).await.unwrap();
        let endpoint = format!("https://localhost:{}", front.port());
        let common = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &*endpoint),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
            ("OTEL_METRICS_EXPORTER", "none"),
            ("OTEL_LOGS_EXPORTER", "none"),
        ];
        let known = [&common[..], &[("OTEL_EXPORTER_OTLP_CERTIFICATE", authority)]].concat();
        for (service, variables, exported) in [(trusted, known, 3), (untrusted, common.to_vec(), 0)] {
            let (telemetry, signals) = start(&variables, service);
            traces(&tracer(&signals), 1);
            telemetry.shutdown().await;
            assert_eq!(signals.books().exported(Signal::Traces), exported, "{service}");
            assert_balanced(signals.books(), Signal::Traces, 3);
        }
        jaeger.wait_for_spans(trusted, "the trusted one's spans", |spans| spans.len() == 3).unwrap();
        assert!(jaeger.spans(untrusted).unwrap().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn at_a_ratio_of_zero_what_matters_arrives_and_nothing_else() {
    let jaeger = Jaeger::start().unwrap();
    let mut variables = sent(&jaeger, "grpc");
    variables.extend([
        ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio".to_owned()),
        ("OTEL_TRACES_SAMPLER_ARG", "0".to_owned()),
    ]);
    let (telemetry, signals) = start(&borrowed(&variables), "ratio-zero");
    let tracer = tracer(&signals);
    let mut kept = Vec::new();
    for why in [Keep::Transition, Keep::Probe, Keep::Failover, Keep::Error] {
        traces(&tracer, 25);
        let server = tracer.root(None, SpanKind::Server, "POST /v1/chat/completions");
        let attempt = server.child(SpanKind::Client, "chat m");
        attempt.keep(why);
        kept.push((server.context().unwrap().trace_id().to_string(), why));
    }
    telemetry.shutdown().await;
    let spans = jaeger.wait_for_spans("ratio-zero", "the kept traces", |spans| spans.len() >= 8).unwrap();
    assert_eq!(spans.len(), 8, "{spans:#?}");
    for (trace, why) in kept {
        let root = spans.iter().find(|span| span.trace_id == trace && span.parent.is_none()).unwrap();
        assert_eq!(root.tag(attribute::SAMPLING_KEPT_FOR), format!("[\"{}\"]", why.as_str()));
    }
    assert_eq!(signals.books().dropped_in_all(Signal::Traces), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn tracing_spans_arrive_and_join_an_exchanges_trace() {
    let jaeger = Jaeger::start().unwrap();
    let variables = sent(&jaeger, "http");
    let (telemetry, signals) = start(&borrowed(&variables), "control-plane");
    let exchange = tracer(&signals).root(None, SpanKind::Server, "POST");
    tracing::subscriber::with_default(subscriber(quiet(), &signals), || {
        let publish = tracing::info_span!(target: "sluice_policy", "publish", version = "abc");
        publish.in_scope(|| {
            tracing::info!(target: "sluice_policy", agents = 3, "pushed");
            tracing::info_span!(target: "hyper", "not ours").in_scope(|| ());
        });
        exchange.scope(|| tracing::info_span!(target: "sluice_agent", "within").in_scope(|| ()));
    });
    let parent = exchange.context().unwrap();
    exchange.end();
    telemetry.shutdown().await;
    let spans = jaeger.wait_for_spans("control-plane", "three spans", |spans| spans.len() >= 3).unwrap();
    let named = |name: &str| spans.iter().find(|span| span.name == name);
    assert_eq!(named("publish").unwrap().tag("version"), "abc");
    assert_eq!(named("publish").unwrap().events[0]["event"], "pushed");
    assert_eq!(named("within").unwrap().parent.as_ref(), Some(&parent.span_id().to_string()));
    assert!(named("not ours").is_none());
}

fn quiet() -> Logging<fn() -> std::io::Sink> {
    let filter = tracing_subscriber::EnvFilter::new("off");
    Logging { format: sluice_telemetry::LogFormat::Text, filter, writer: std::io::sink, ansi: false }
}
