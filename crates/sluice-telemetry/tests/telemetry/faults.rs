//! A collector that refuses, hangs, is slow, or speaks no TLS: nobody waits, what is lost is counted, the end comes.

use std::time::Duration;

use sluice_telemetry::{Dropped, SHUTDOWN, Signal, Signals, Telemetry};
use tokio::net::TcpListener;

use crate::{assert_balanced, start, tracer, traces, until};
use sluice_testkit::{Collector, Mood};

const QUEUE: usize = 60;
/// Traces of three spans: far more than the queue holds.
const TRACES: usize = 100;

fn towards<'a>(endpoint: &'a str, protocol: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", endpoint),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "60"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "30"),
    ]
}

/// Ends within its bound, with some grace for a busy machine, and leaves nothing unaccounted for.
async fn ends(telemetry: &Telemetry, signals: &Signals, made: usize) {
    let ended = tokio::time::timeout(SHUTDOWN + Duration::from_secs(8), telemetry.shutdown()).await;
    assert!(ended.is_ok(), "the end did not come");
    assert_balanced(signals.books(), Signal::Traces, made as u64 * 3);
}

/// More than fits, at once: `traces` has no way to wait, so that it returns is the proof.
fn flood(signals: &Signals) {
    traces(&tracer(signals), TRACES);
    let full = signals.books().dropped(Signal::Traces, Dropped::QueueFull);
    // Two batches at most may have left the queue meanwhile.
    assert!(full as usize >= TRACES * 3 - 2 * QUEUE, "{full}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_refuses() {
    for protocol in ["grpc", "http/protobuf"] {
        // Bound and dropped: nobody listens there.
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let endpoint = format!("http://127.0.0.1:{port}/v1/traces");
        let (telemetry, signals) = start(&towards(&endpoint, protocol), "refused");
        flood(&signals);
        ends(&telemetry, &signals, TRACES).await;
        assert_eq!(signals.books().exported(Signal::Traces), 0, "{protocol}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_accepts_and_says_nothing() {
    for protocol in ["grpc", "http/protobuf"] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let holding = tokio::spawn(async move {
            let mut held = Vec::new();
            while let Ok(connection) = listener.accept().await {
                held.push(connection);
            }
        });
        let (telemetry, signals) = start(&towards(&endpoint, protocol), "silent");
        flood(&signals);
        ends(&telemetry, &signals, TRACES).await;
        assert_eq!(signals.books().exported(Signal::Traces), 0, "{protocol}");
        assert!(signals.books().dropped(Signal::Traces, Dropped::Shutdown) > 0, "{protocol}");
        holding.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_reads_and_never_answers_is_given_up_after_the_timeout() {
    let collector = Collector::start(Mood::Hangs).await.unwrap();
    let endpoint = format!("{}/v1/traces", collector.endpoint);
    let mut variables = towards(&endpoint, "http/protobuf");
    variables.extend([("OTEL_EXPORTER_OTLP_TIMEOUT", "50"), ("OTEL_BSP_EXPORT_TIMEOUT", "100")]);
    let (telemetry, signals) = start(&variables, "hanging");
    traces(&tracer(&signals), 10);
    let books = signals.books().clone();
    until("the batch to be given up", || books.dropped(Signal::Traces, Dropped::SendFailed) == 30).await;
    collector.set(Mood::Takes);
    traces(&tracer(&signals), 10);
    until("the next one to arrive", || books.exported(Signal::Traces) == 30).await;
    ends(&telemetry, &signals, 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_collector_gets_what_it_can_take() {
    let collector = Collector::start(Mood::Slow(Duration::from_millis(200))).await.unwrap();
    let endpoint = format!("{}/v1/traces", collector.endpoint);
    let (telemetry, signals) = start(&towards(&endpoint, "http/protobuf"), "slow");
    flood(&signals);
    ends(&telemetry, &signals, TRACES).await;
    assert!(signals.books().exported(Signal::Traces) >= 30, "{:?}", signals.books());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_be_asked_again_is_and_what_may_not_is_not() {
    let collector = Collector::start(Mood::Refuses(503)).await.unwrap();
    let endpoint = format!("{}/v1/traces", collector.endpoint);
    let (telemetry, signals) = start(&towards(&endpoint, "http/protobuf"), "again");
    traces(&tracer(&signals), 1);
    until("a second try", || collector.asked() >= 2).await;
    collector.set(Mood::Takes);
    let books = signals.books().clone();
    until("the third to be taken", || books.exported(Signal::Traces) == 3).await;
    collector.set(Mood::Refuses(400));
    let before = collector.asked();
    traces(&tracer(&signals), 1);
    until("the refusal", || books.dropped(Signal::Traces, Dropped::Rejected) == 3).await;
    ends(&telemetry, &signals, 2).await;
    assert_eq!(collector.asked(), before + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_without_the_tls_that_was_promised() {
    let collector = Collector::start(Mood::Takes).await.unwrap();
    for protocol in ["grpc", "http/protobuf"] {
        let endpoint = format!("{}/v1/traces", collector.endpoint.replace("http:", "https:"));
        let (telemetry, signals) = start(&towards(&endpoint, protocol), "plain");
        flood(&signals);
        ends(&telemetry, &signals, TRACES).await;
        assert_eq!((signals.books().exported(Signal::Traces), collector.asked()), (0, 0), "{protocol}");
    }
}
