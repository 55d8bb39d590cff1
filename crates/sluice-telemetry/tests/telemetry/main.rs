//! The crate against real collectors: Jaeger, and one of the tests' own that can be told to misbehave.
#![allow(clippy::unwrap_used, clippy::panic)]

mod faults;
mod jaeger;
mod lines;
mod signals;

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluice_telemetry::{Books, Identity, Settings, Signal, Signals, SpanKind, Telemetry, Tracer};

/// Settings of these variables, and of queues that don't dawdle.
fn settings(variables: &[(&str, &str)]) -> Settings {
    let prompt = [("OTEL_BSP_SCHEDULE_DELAY", "20"), ("OTEL_BLRP_SCHEDULE_DELAY", "20")];
    let table: HashMap<&str, &str> = prompt.into_iter().chain(variables.iter().copied()).collect();
    Settings::read(&|variable| table.get(variable).map(OsString::from)).unwrap()
}

fn identity(service: &'static str) -> Identity {
    Identity { service, instance: "agent-1".to_owned(), namespace: Some("default".to_owned()) }
}

fn start(variables: &[(&str, &str)], service: &'static str) -> (Telemetry, Signals) {
    let telemetry = Telemetry::start(settings(variables)).unwrap();
    let signals = telemetry.signals(&identity(service)).unwrap();
    (telemetry, signals)
}

/// All tracers draw from here, so that no two traces of a run share an identity.
static DRAWS: AtomicU64 = AtomicU64::new(0x1234_5678);

/// A clock that moves a millisecond at each look, and draws that are all different.
fn tracer(signals: &Signals) -> Tracer {
    let now = AtomicU64::new(0);
    signals.tracer(
        move || Duration::from_millis(now.fetch_add(1, Ordering::Relaxed)),
        || DRAWS.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed).rotate_left(17),
    )
}

/// Traces of three spans.
fn traces(tracer: &Tracer, count: usize) {
    for _ in 0..count {
        let server = tracer.root(None, SpanKind::Server, "POST /v1/chat/completions");
        let chat = server.child(SpanKind::Internal, "chat m");
        chat.child(SpanKind::Client, "chat m").end();
    }
}

/// Everything that was made is somewhere.
fn assert_balanced(books: &Books, signal: Signal, made: u64) {
    let (exported, dropped) = (books.exported(signal), books.dropped_in_all(signal));
    assert_eq!(exported + dropped, made, "{exported} exported, {dropped} dropped: {books:?}");
}

/// Waits for a condition, with a generous bound.
async fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let waited = async {
        while !is_true() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(30), waited).await.is_ok(), "waited in vain for {what}");
}
