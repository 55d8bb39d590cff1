//! The environment, read as a table.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::time::Duration;

use sluice_telemetry::settings::{HONOURED, Honoured, Protocol};
use sluice_telemetry::{Settings, SettingsError};

fn read(variables: &[(&str, &str)]) -> Result<Settings, SettingsError> {
    let table: HashMap<_, _> = variables.iter().copied().collect();
    Settings::read(&|variable| table.get(variable).map(OsString::from))
}

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

#[test]
fn nothing_is_exported_unless_something_says_so() {
    assert!(!read(&[]).unwrap().exports());
    assert!(!read(&[(ENDPOINT, "")]).unwrap().exports(), "an empty value is an absent one");
    assert!(!read(&[(ENDPOINT, "http://c:4318"), ("OTEL_SDK_DISABLED", "true")]).unwrap().exports());
    let traces = read(&[("OTEL_TRACES_EXPORTER", "otlp")]).unwrap();
    assert_eq!(traces.traces.unwrap().endpoint, "http://localhost:4318/v1/traces");
    assert!(traces.metrics.is_none() && traces.logs.is_none());
    let all_but = read(&[(ENDPOINT, "http://c:4318"), ("OTEL_LOGS_EXPORTER", "none")]).unwrap();
    assert!(all_but.traces.is_some() && all_but.metrics.is_some() && all_but.logs.is_none());
}

#[test]
fn endpoints() {
    const TRACES: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
    const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
    const INSECURE: &str = "OTEL_EXPORTER_OTLP_INSECURE";
    type Row<'a> = (&'a [(&'a str, &'a str)], Protocol, &'a str);
    let table: &[Row<'_>] = &[
        (&[(ENDPOINT, "http://c:4318")], Protocol::Http, "http://c:4318/v1/traces"),
        (&[(ENDPOINT, "http://c:4318/")], Protocol::Http, "http://c:4318/v1/traces"),
        (&[(ENDPOINT, "https://c/otlp/")], Protocol::Http, "https://c/otlp/v1/traces"),
        (&[(TRACES, "https://c/as/it/stands")], Protocol::Http, "https://c/as/it/stands"),
        (&[(ENDPOINT, "http://a"), (TRACES, "http://b/x")], Protocol::Http, "http://b/x"),
        // gRPC's own port means gRPC; a protocol that is named wins.
        (&[(ENDPOINT, "http://c:4317")], Protocol::Grpc, "http://c:4317/"),
        (
            &[(ENDPOINT, "http://c:4317"), (PROTOCOL, "http/protobuf")],
            Protocol::Http,
            "http://c:4317/v1/traces",
        ),
        (&[(ENDPOINT, "http://c:9"), (PROTOCOL, "grpc")], Protocol::Grpc, "http://c:9/"),
        (&[(ENDPOINT, "c:9"), (PROTOCOL, "grpc")], Protocol::Grpc, "https://c:9/"),
        (&[(ENDPOINT, "c:9"), (PROTOCOL, "grpc"), (INSECURE, "true")], Protocol::Grpc, "http://c:9/"),
    ];
    for (variables, protocol, endpoint) in table {
        let exporter = read(variables).unwrap().traces.unwrap();
        assert_eq!(exporter.protocol, *protocol, "{variables:?}");
        assert_eq!(exporter.endpoint, *endpoint, "{variables:?}");
    }
}

#[test]
fn a_signals_own_variable_goes_before_the_general_one() {
    let settings = read(&[
        (ENDPOINT, "http://c:4318"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "1000"),
        ("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "2000"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=1"),
        ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "b=x%20y, c=2"),
        ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip"),
    ])
    .unwrap();
    let (traces, metrics, logs) =
        (settings.traces.unwrap(), settings.metrics.unwrap(), settings.logs.unwrap());
    assert_eq!(traces.timeout, Duration::from_secs(1));
    assert_eq!(logs.timeout, Duration::from_secs(2));
    assert_eq!(traces.headers["a"], "1");
    assert_eq!((metrics.headers.get("a"), &metrics.headers["b"]), (None, &"x y".parse().unwrap()));
    assert!(metrics.headers.values().all(http::HeaderValue::is_sensitive));
    assert_eq!((traces.gzip, logs.gzip), (true, false));
    assert!(!format!("{metrics:?}").contains("x y"), "headers are secrets");
}

#[test]
fn samplers_queues_and_the_rest() {
    let sampler = |name, argument| {
        let sampler =
            read(&[("OTEL_TRACES_SAMPLER", name), ("OTEL_TRACES_SAMPLER_ARG", argument)]).unwrap().sampler;
        (sampler.ratio, sampler.parent_based)
    };
    let defaults = read(&[]).unwrap();
    assert_eq!((defaults.sampler.ratio, defaults.sampler.parent_based), (1.0, true));
    assert_eq!(sampler("parentbased_traceidratio", "0.01"), (0.01, true));
    assert_eq!(sampler("traceidratio", ""), (1.0, false));
    assert_eq!(sampler("parentbased_always_off", "0.5"), (0.0, true));
    assert_eq!(sampler("always_on", ""), (1.0, false));
    assert_eq!((defaults.spans.queue, defaults.spans.batch), (2048, 512));
    assert_eq!(
        (defaults.spans.delay, defaults.records.delay),
        (Duration::from_secs(5), Duration::from_secs(1))
    );
    assert_eq!(defaults.metric_interval, Duration::from_mins(1));
    let small = read(&[("OTEL_BSP_MAX_QUEUE_SIZE", "100")]).unwrap();
    assert_eq!(small.spans.batch, 100, "a default batch does not exceed the queue");
    let named =
        read(&[("OTEL_SERVICE_NAME", "gateway"), ("OTEL_RESOURCE_ATTRIBUTES", "a=1,b=%C3%A9")]).unwrap();
    assert_eq!(named.service_name.as_deref(), Some("gateway"));
    assert_eq!(named.resource, [("a".to_owned(), "1".to_owned()), ("b".to_owned(), "é".to_owned())]);
    assert!(read(&[("OTEL_PROPAGATORS", "tracecontext,baggage")]).unwrap().continue_traces);
    assert!(!read(&[("OTEL_PROPAGATORS", "none")]).unwrap().continue_traces);
}

#[test]
fn what_cannot_be_used_is_named_with_its_fix() {
    let endpoint = (ENDPOINT, "http://c:4318");
    let table: &[(&str, &str, &str)] = &[
        ("OTEL_SDK_DISABLED", "yes", "true or false"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "otlp or none"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "http/protobuf or grpc"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "GRPC", "grpc or http/protobuf"),
        (ENDPOINT, "collector:4318", "http://collector:4318"),
        (ENDPOINT, "ftp://c", "http://collector:4318"),
        (ENDPOINT, "http://", "http://collector:4318"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "milliseconds"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "0", "milliseconds"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "gzip or none"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such/file", "PEM"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/some/file", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote", "parentbased_"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1", "whole number"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4096", "OTEL_BSP_MAX_QUEUE_SIZE"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1m", "milliseconds"),
        ("OTEL_PROPAGATORS", "b3", "tracecontext"),
        ("OTEL_RESOURCE_ATTRIBUTES", "novalue", "key=value"),
    ];
    for (variable, value, fix) in table {
        let error = read(&[endpoint, (variable, value)]).unwrap_err().to_string();
        assert!(
            error.contains(variable) && error.contains(value) && error.contains(fix),
            "{variable}: {error}"
        );
    }
    let ratio = [("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "1.5")];
    assert!(read(&ratio).unwrap_err().to_string().contains("0 to 1"));
}

#[test]
fn an_error_shows_no_secret() {
    let secrets = [
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization: Bearer sesame"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "no header name=sesame"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:sesame@c:4318"),
    ];
    for (variable, value) in secrets {
        let error = read(&[(ENDPOINT, "http://c:4318"), (variable, value)]).unwrap_err().to_string();
        assert!(error.contains(variable) && !error.contains("sesame"), "{error}");
    }
}

/// What is documented is what is looked up, in whatever way the settings are read.
#[test]
fn the_documented_variables_are_the_honoured_ones() {
    let ways: [&[(&str, &str)]; 3] = [
        &[],
        &[(ENDPOINT, "http://c:4318"), ("OTEL_TRACES_SAMPLER", "traceidratio")],
        &[(ENDPOINT, "c:9"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
    ];
    let asked = RefCell::new(BTreeSet::new());
    for variables in ways {
        let table: HashMap<_, _> = variables.iter().copied().collect();
        Settings::read(&|variable| {
            asked.borrow_mut().insert(variable.to_owned());
            table.get(variable).map(OsString::from)
        })
        .unwrap();
    }
    let documented: BTreeSet<String> = HONOURED.iter().flat_map(Honoured::variables).collect();
    assert_eq!(asked.into_inner(), documented);
}
