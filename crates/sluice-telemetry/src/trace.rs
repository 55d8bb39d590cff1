//! The spans of exchanges: recorded cheaply, decided at the end.
//!
//! # Why not one `tracing` span each
//! Whether an exchange matters (a transition, a probe, a failover, an error) is known when it ends, so each one has to be
//! recorded, also the 99 % that a ratio of 1 % leaves out. What that costs for three spans with twenty attributes
//! (`examples/exchange_cost.rs`, x86-64):
//!
//! | | instructions per exchange |
//! |---|---|
//! | `tracing` spans through tracing-opentelemetry, recorded and dropped | 25,800 |
//! | the same, entered at ten polls | 44,900 |
//! | these records, dropped | 4,300 |
//! | no exporter | 180 |
//!
//! So an exchange's spans are records of this module: identities are drawn at the start, so that a `traceparent`
//! can go upstream and into a breaker's hash; attributes are numbers, fixed words and shared strings, so that nothing
//! is copied or formatted; the last record to end gives the whole trace to the exporter's queue, or drops it. What
//! happens a few times a minute (policies, the store, the control plane) is `tracing` spans through
//! tracing-opentelemetry, see [`crate::subscriber`]. The two meet in OpenTelemetry's current context:
//! [`Span::scope`] makes a record's context the current one, and log lines and `tracing` spans inside belong to it.
//!
//! # Rules
//! - A span ends when it is dropped; ending it is a matter of *when*, never of whether.
//! - Attributes, events, links and spans are bounded; what is beyond is counted in the span, as OTLP has it.
//! - Times are the trace's start on the wall clock plus what the given monotonic clock says has passed, so that a
//!   clock that is set does not turn a span inside out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    Event, Link, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{Context, InstrumentationScope, Key, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use parking_lot::Mutex;

use crate::names::attribute;
use crate::sink::SpanSink;
use crate::{HeadSampler, clock, context};

const ATTRIBUTES: usize = 64;
const EVENTS: usize = 32;
const LINKS: usize = 8;
const SPANS: usize = 32;
/// What a span usually has of its own; one allocation holds it.
const USUAL_ATTRIBUTES: usize = 8;

/// Why a trace is exported although the ratio left it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Keep {
    Transition = 1,
    Probe = 2,
    Failover = 4,
    Error = 8,
}

impl Keep {
    const ALL: [Self; 4] = [Self::Transition, Self::Probe, Self::Failover, Self::Error];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Transition => "transition",
            Self::Probe => "probe",
            Self::Failover => "failover",
            Self::Error => "error",
        }
    }
}

/// Makes traces. Without an exporter it makes none, at the cost of a test.
#[derive(Clone, Default)]
pub struct Tracer(Option<Arc<Source>>);

struct Source {
    sink: SpanSink,
    sampler: HeadSampler,
    continues: bool,
    scope: InstrumentationScope,
    clock: Box<dyn Fn() -> Duration + Send + Sync>,
    draw: Box<dyn Fn() -> u64 + Send + Sync>,
}

impl Tracer {
    /// A tracer that records nothing.
    pub fn off() -> Self {
        Self(None)
    }

    /// `clock` is monotonic; `draw` gives 64 random bits.
    pub(crate) fn new(
        sink: SpanSink,
        sampler: HeadSampler,
        continues: bool,
        clock: impl Fn() -> Duration + Send + Sync + 'static,
        draw: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        let scope = InstrumentationScope::builder("sluice").with_version(env!("CARGO_PKG_VERSION")).build();
        let (clock, draw) = (Box::new(clock), Box::new(draw));
        Self(Some(Arc::new(Source { sink, sampler, continues, scope, clock, draw })))
    }

    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The first span of a trace here. `parent` is the caller's span, if it has told one.
    pub fn root(&self, parent: Option<&SpanContext>, kind: SpanKind, name: impl Into<StringValue>) -> Span {
        let Some(source) = &self.0 else { return Span(None) };
        let parent = parent.filter(|_| source.continues);
        let id = parent.map_or_else(|| fresh_trace(source), SpanContext::trace_id);
        let trace = Arc::new(Trace {
            id,
            sampled: source.sampler.samples(parent.map(SpanContext::is_sampled), id),
            state: parent.map_or(TraceState::NONE, |parent| parent.trace_state().clone()),
            started: (clock::wall(), (source.clock)()),
            root_parent: parent.map_or(SpanId::INVALID, SpanContext::span_id),
            keep: AtomicU8::new(0),
            ended: Mutex::new(Vec::with_capacity(4)),
            source: source.clone(),
        });
        let parent = trace.root_parent;
        Span::begin(trace, parent, kind, name.into())
    }
}

fn fresh_trace(source: &Source) -> TraceId {
    let id = u128::from((source.draw)()) << 64 | u128::from((source.draw)()) | 1;
    TraceId::from(id)
}

/// What the spans of one trace share. The last of them to go gives it away.
struct Trace {
    id: TraceId,
    sampled: bool,
    state: TraceState,
    started: (SystemTime, Duration),
    /// The caller's span.
    root_parent: SpanId,
    keep: AtomicU8,
    #[allow(clippy::vec_box, reason = "a record moves from its span as a pointer")]
    ended: Mutex<Vec<Box<Record>>>,
    source: Arc<Source>,
}

/// A span while it is cheap.
struct Record {
    id: SpanId,
    parent: SpanId,
    kind: SpanKind,
    name: StringValue,
    started: Duration,
    ended: Duration,
    shared: Option<Arc<[KeyValue]>>,
    attributes: Vec<KeyValue>,
    events: Vec<Event>,
    links: Vec<Link>,
    dropped_attributes: u32,
    dropped_events: u32,
    dropped_links: u32,
    status: Status,
}

/// A span of an exchange. Ends when dropped. Without an exporter everything here does nothing.
#[derive(Default)]
#[must_use = "a span that is dropped has ended"]
pub struct Span(Option<Live>);

struct Live {
    trace: Arc<Trace>,
    /// Some until it ends.
    record: Option<Box<Record>>,
}

impl Span {
    /// A span that records nothing.
    pub const fn none() -> Self {
        Self(None)
    }

    fn begin(trace: Arc<Trace>, parent: SpanId, kind: SpanKind, name: StringValue) -> Self {
        let now = (trace.source.clock)();
        let record = Box::new(Record {
            id: SpanId::from((trace.source.draw)() | 1),
            parent,
            kind,
            name,
            started: now,
            ended: now,
            shared: None,
            attributes: Vec::with_capacity(USUAL_ATTRIBUTES),
            events: Vec::new(),
            links: Vec::new(),
            dropped_attributes: 0,
            dropped_events: 0,
            dropped_links: 0,
            status: Status::Unset,
        });
        Self(Some(Live { trace, record: Some(record) }))
    }

    fn record(&mut self) -> Option<&mut Record> {
        self.0.as_mut().and_then(|live| live.record.as_deref_mut())
    }

    pub fn is_recording(&self) -> bool {
        self.0.is_some()
    }

    /// A span inside this one.
    pub fn child(&self, kind: SpanKind, name: impl Into<StringValue>) -> Self {
        let Some(Live { trace, record: Some(record) }) = &self.0 else { return Self(None) };
        Self::begin(trace.clone(), record.id, kind, name.into())
    }

    /// Attributes that are the same for many spans, such as a target's: made once, shared by all.
    pub fn share(&mut self, attributes: &Arc<[KeyValue]>) {
        if let Some(record) = self.record() {
            record.shared = Some(attributes.clone());
        }
    }

    /// Sets an attribute. Strings should be fixed or shared (`Arc<str>`): others are copied per exchange.
    pub fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        let Some(record) = self.record() else { return };
        if record.attributes.len() < ATTRIBUTES {
            record.attributes.push(KeyValue::new(Key::from_static_str(key), value));
        } else {
            record.dropped_attributes += 1;
        }
    }

    /// Something that happened now.
    pub fn event(&mut self, name: &'static str, attributes: Vec<KeyValue>) {
        let Some(live) = &self.0 else { return };
        let at = live.trace.wall((live.trace.source.clock)());
        let Some(record) = self.record() else { return };
        if record.events.len() < EVENTS {
            record.events.push(Event::new(name, at, attributes, 0));
        } else {
            record.dropped_events += 1;
        }
    }

    /// A link to another trace's span.
    pub fn link(&mut self, to: SpanContext, attributes: Vec<KeyValue>) {
        let Some(record) = self.record() else { return };
        if record.links.len() < LINKS {
            record.links.push(Link::new(to, attributes, 0));
        } else {
            record.dropped_links += 1;
        }
    }

    /// The span failed: `error.type`, and the trace is kept.
    pub fn fail(&mut self, error_type: impl Into<StringValue>) {
        self.fail_by_caller(error_type);
        self.keep(Keep::Error);
    }

    /// The span failed for a fault of its caller, or its caller left: `error.type`, but no reason to keep the trace,
    /// since one caller's bug would fill the collector.
    pub fn fail_by_caller(&mut self, error_type: impl Into<StringValue>) {
        self.set(attribute::ERROR_TYPE, Value::String(error_type.into()));
        if let Some(record) = self.record() {
            record.status = Status::error("");
        }
    }

    /// Exports the trace whatever the ratio.
    pub fn keep(&self, why: Keep) {
        if let Some(live) = &self.0 {
            live.trace.keep.fetch_or(why as u8, Ordering::Relaxed);
        }
    }

    /// What others may know of this span.
    pub fn context(&self) -> Option<SpanContext> {
        let Some(Live { trace, record: Some(record) }) = &self.0 else { return None };
        Some(trace.context(record.id))
    }

    /// As a header or in a breaker's hash.
    pub fn traceparent(&self) -> Option<String> {
        let Some(Live { trace, record: Some(record) }) = &self.0 else { return None };
        Some(context::traceparent(&SpanContext::new(
            trace.id,
            record.id,
            trace.flags(),
            false,
            TraceState::NONE,
        )))
    }

    /// Log lines and `tracing` spans made inside belong to this span.
    pub fn scope<R>(&self, inside: impl FnOnce() -> R) -> R {
        let _attached = self.context().map(|own| Context::new().with_remote_span_context(own).attach());
        inside()
    }

    /// The span is over.
    pub fn end(self) {
        drop(self);
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let Some(mut record) = self.record.take() else { return };
        record.ended = (self.trace.source.clock)();
        let mut ended = self.trace.ended.lock();
        // One that fails again and again must not grow without end; the first ones tell the story.
        if ended.len() < SPANS {
            ended.push(record);
        }
    }
}

impl Trace {
    fn flags(&self) -> TraceFlags {
        if self.sampled { TraceFlags::SAMPLED } else { TraceFlags::NOT_SAMPLED }
    }

    fn context(&self, span: SpanId) -> SpanContext {
        SpanContext::new(self.id, span, self.flags(), false, self.state.clone())
    }

    fn wall(&self, at: Duration) -> SystemTime {
        let (wall, started) = self.started;
        wall + at.saturating_sub(started)
    }

    fn span_data(&self, record: Record, kept_for: Option<&Value>) -> SpanData {
        let is_root = record.parent == self.root_parent;
        let mut attributes = record.attributes;
        attributes.extend(record.shared.iter().flat_map(|shared| shared.iter().cloned()));
        if let Some(kept_for) = kept_for.filter(|_| is_root) {
            attributes.push(KeyValue::new(attribute::SAMPLING_KEPT_FOR, kept_for.clone()));
        }
        let (mut events, mut links) = (SpanEvents::default(), SpanLinks::default());
        (events.events, events.dropped_count) = (record.events, record.dropped_events);
        (links.links, links.dropped_count) = (record.links, record.dropped_links);
        SpanData {
            // What is exported is sampled, whatever was decided at the head: collectors may look.
            span_context: SpanContext::new(
                self.id,
                record.id,
                TraceFlags::SAMPLED,
                false,
                self.state.clone(),
            ),
            parent_span_id: record.parent,
            parent_span_is_remote: is_root && self.root_parent != SpanId::INVALID,
            span_kind: record.kind,
            name: record.name.as_str().to_owned().into(),
            start_time: self.wall(record.started),
            end_time: self.wall(record.ended),
            attributes,
            dropped_attributes_count: record.dropped_attributes,
            events,
            links,
            status: record.status,
            instrumentation_scope: self.source.scope.clone(),
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let keep = *self.keep.get_mut();
        if !self.sampled && keep == 0 {
            return;
        }
        let kept_for = (!self.sampled).then(|| {
            let reasons = Keep::ALL.into_iter().filter(|reason| keep & *reason as u8 != 0);
            Value::Array(reasons.map(|reason| StringValue::from(reason.as_str())).collect::<Vec<_>>().into())
        });
        let ended = std::mem::take(self.ended.get_mut());
        let spans = ended.into_iter().map(|record| self.span_data(*record, kept_for.as_ref())).collect();
        self.source.sink.put(spans);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::books::{Books, Dropped};
    use crate::queue::Queue;
    use crate::settings::Signal;

    struct Bench {
        queue: Arc<Queue<SpanData>>,
        books: Arc<Books>,
        tracer: Tracer,
        now: Arc<AtomicU64>,
    }

    fn bench(ratio: f64) -> Bench {
        let queue = Arc::new(Queue::new(8, 8));
        let books = Arc::new(Books::new());
        let sink = SpanSink::new(queue.clone(), books.clone());
        let now = Arc::new(AtomicU64::new(0));
        let (clock, draws) = (now.clone(), AtomicU64::new(1));
        let tracer = Tracer::new(
            sink,
            HeadSampler { ratio, parent_based: true },
            true,
            move || Duration::from_millis(clock.load(Ordering::Relaxed)),
            move || draws.fetch_add(2, Ordering::Relaxed),
        );
        Bench { queue, books, tracer, now }
    }

    fn caller(flags: &str) -> SpanContext {
        context::parse_traceparent(&format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}"))
            .unwrap()
    }

    #[test]
    fn an_unsampled_trace_is_dropped_unless_it_matters() {
        let bench = bench(0.0);
        let server = bench.tracer.root(None, SpanKind::Server, "POST /v1/chat/completions");
        server.child(SpanKind::Client, "chat m").end();
        server.end();
        assert!(bench.queue.take().is_empty());
        for why in Keep::ALL {
            let server = bench.tracer.root(None, SpanKind::Server, "POST /v1/chat/completions");
            let attempt = server.child(SpanKind::Client, "chat m");
            attempt.keep(why);
            attempt.end();
            assert!(bench.queue.take().is_empty(), "the exchange goes on");
            server.end();
            let spans = bench.queue.take();
            assert_eq!(spans.len(), 2, "{why:?}");
            let root = &spans[1];
            let kept = root.attributes.iter().find(|a| a.key.as_str() == attribute::SAMPLING_KEPT_FOR);
            assert_eq!(kept.unwrap().value.to_string(), format!("[\"{}\"]", why.as_str()));
            assert!(spans.iter().all(|span| span.span_context.is_sampled()));
        }
        assert_eq!(bench.books.dropped_in_all(Signal::Traces), 0, "what is left out is not a loss");
    }

    #[test]
    fn a_callers_fault_is_marked_and_not_kept() {
        for (ratio, spans) in [(0.0, 0), (1.0, 1)] {
            let bench = bench(ratio);
            bench.tracer.root(None, SpanKind::Server, "POST").fail_by_caller("model_not_found");
            let exported = bench.queue.take();
            assert_eq!(exported.len(), spans);
            assert!(exported.iter().all(|span| span.status == Status::error("")));
        }
    }

    #[test]
    fn an_attempt_may_end_after_its_exchange() {
        let bench = bench(1.0);
        let server = bench.tracer.root(None, SpanKind::Server, "POST");
        let mut attempt = server.child(SpanKind::Client, "chat m");
        server.end();
        assert!(bench.queue.take().is_empty());
        bench.now.store(7, Ordering::Relaxed);
        attempt.event("sluice.breaker.transition", vec![KeyValue::new("to", "open")]);
        attempt.end();
        let spans = bench.queue.take();
        assert_eq!(spans.len(), 2);
        let attempt = &spans[1];
        assert_eq!(attempt.events[0].timestamp, attempt.start_time + Duration::from_millis(7));
        assert_eq!(attempt.end_time, attempt.start_time + Duration::from_millis(7));
        assert_eq!(spans[0].end_time, spans[0].start_time);
        assert_eq!(attempt.parent_span_id, spans[0].span_context.span_id());
    }

    #[test]
    fn a_callers_trace_is_continued_and_its_word_heard() {
        for (flags, ratio, exported) in [("01", 0.0, true), ("00", 1.0, false)] {
            let bench = bench(ratio);
            let server = bench.tracer.root(Some(&caller(flags)), SpanKind::Server, "POST");
            let text = server.traceparent().unwrap();
            assert!(text.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-"), "{text}");
            assert!(text.ends_with(flags), "the caller's decision goes on: {text}");
            server.end();
            let spans = bench.queue.take();
            assert_eq!(!spans.is_empty(), exported);
            for span in spans {
                assert!(span.parent_span_is_remote);
                assert_eq!(span.parent_span_id, caller(flags).span_id());
            }
        }
    }

    #[test]
    fn a_ratio_takes_about_its_share() {
        let bench = bench(0.25);
        let source = bench.tracer.0.as_ref().unwrap();
        let mut rng: rand::rngs::SmallRng = rand::SeedableRng::seed_from_u64(4);
        let sampled = (0..10_000)
            .filter(|_| source.sampler.samples(None, TraceId::from(rand::Rng::random::<u128>(&mut rng))))
            .count();
        assert!((2_300..2_700).contains(&sampled), "{sampled}");
    }

    #[test]
    fn what_one_span_holds_is_bounded() {
        let bench = bench(1.0);
        let mut span = bench.tracer.root(None, SpanKind::Server, "POST");
        for n in 0..100_i64 {
            span.set("n", n);
            span.event("e", Vec::new());
            span.link(caller("01"), Vec::new());
        }
        span.end();
        let span = bench.queue.take().remove(0);
        assert_eq!((span.attributes.len(), span.dropped_attributes_count), (64, 36));
        assert_eq!((span.events.len(), span.events.dropped_count), (32, 68));
        assert_eq!((span.links.len(), span.links.dropped_count), (8, 92));
    }

    #[test]
    fn a_full_queue_drops_whole_traces_and_counts_their_spans() {
        let bench = bench(1.0);
        for _ in 0..3 {
            let server = bench.tracer.root(None, SpanKind::Server, "POST");
            let chat = server.child(SpanKind::Internal, "chat m");
            chat.child(SpanKind::Client, "chat m").end();
        }
        assert_eq!(bench.queue.take().len(), 6);
        assert_eq!(bench.books.dropped(Signal::Traces, Dropped::QueueFull), 3);
    }

    #[test]
    fn log_lines_in_a_spans_scope_know_it() {
        let bench = bench(1.0);
        let span = bench.tracer.root(None, SpanKind::Server, "POST");
        let seen = span.scope(|| Context::current().span().span_context().clone());
        assert_eq!(seen.span_id(), span.context().unwrap().span_id());
        assert!(!Context::current().has_active_span());
    }

    #[test]
    fn without_an_exporter_there_is_nothing() {
        let mut span = Tracer::off().root(Some(&caller("01")), SpanKind::Server, "POST");
        span.set("n", 1);
        span.fail("timeout");
        assert!(!span.is_recording() && span.traceparent().is_none());
        assert!(!span.child(SpanKind::Client, "chat").is_recording());
    }
}
