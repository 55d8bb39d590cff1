//! Where finished spans and log records go: the exporter's queue, from our own records and from the SDK alike.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::{Context, InstrumentationScope};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::logs::{LogProcessor, SdkLogRecord};
use opentelemetry_sdk::trace::{SpanData, SpanProcessor};

use crate::books::{Books, Dropped};
use crate::queue::Queue;
use crate::settings::Signal;

/// A log record and the scope that the SDK names beside it.
pub(crate) type Record = (SdkLogRecord, InstrumentationScope);

fn put<T>(queue: &Queue<T>, books: &Books, signal: Signal, group: Vec<T>) {
    if let Err(group) = queue.push(group) {
        let reason = if queue.is_closed() { Dropped::Shutdown } else { Dropped::QueueFull };
        books.signal(signal).dropped(reason, group.len() as u64);
    }
}

/// Takes spans; never waits.
#[derive(Debug, Clone)]
pub(crate) struct SpanSink {
    queue: Arc<Queue<SpanData>>,
    books: Arc<Books>,
}

impl SpanSink {
    pub(crate) fn new(queue: Arc<Queue<SpanData>>, books: Arc<Books>) -> Self {
        Self { queue, books }
    }

    pub(crate) fn put(&self, trace: Vec<SpanData>) {
        put(&self.queue, &self.books, Signal::Traces, trace);
    }
}

impl SpanProcessor for SpanSink {
    fn on_start(&self, _span: &mut opentelemetry_sdk::trace::Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() {
            self.put(vec![span]);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    /// The queue's own worker flushes it: see [`crate::Telemetry::shutdown`].
    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Takes log records; never waits.
#[derive(Debug, Clone)]
pub(crate) struct RecordSink {
    queue: Arc<Queue<Record>>,
    books: Arc<Books>,
}

impl RecordSink {
    pub(crate) fn new(queue: Arc<Queue<Record>>, books: Arc<Books>) -> Self {
        Self { queue, books }
    }
}

impl LogProcessor for RecordSink {
    fn emit(&self, record: &mut SdkLogRecord, scope: &InstrumentationScope) {
        put(&self.queue, &self.books, Signal::Logs, vec![(record.clone(), scope.clone())]);
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    /// As with spans.
    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}
