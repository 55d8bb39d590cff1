//! A process's exporters: one thread, one runtime, whatever the number of agents in the process.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::logs::tonic::group_logs_by_resource_and_scope;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::logs::{LogBatch, SdkLoggerProvider};
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::books::{Books, Dropped};
use crate::clock;
use crate::collector::{Collector, TlsError};
use crate::deliver::{Outlet, empty};
use crate::metrics::{MetricSource, Window, export};
use crate::names::attribute;
use crate::queue::Queue;
use crate::settings::{Exporter, Settings, Signal};
use crate::sink::{Record, RecordSink, SpanSink};
use crate::trace::Tracer;

/// How long a process that ends waits for its collector.
pub const SHUTDOWN: Duration = Duration::from_secs(2);

/// Who is sending, where the environment does not say otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// `service.name`, such as `sluice-agent`.
    pub service: &'static str,
    /// `service.instance.id`: the pod's name, the agent's.
    pub instance: String,
    /// `service.namespace`.
    pub namespace: Option<String>,
}

/// Telemetry could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the telemetry thread can't be started: {0}; free some threads or memory")]
    Thread(#[from] std::io::Error),
}

/// The exporters of a process.
pub struct Telemetry {
    settings: Settings,
    /// None: nothing is exported.
    worker: Option<Worker>,
}

struct Worker {
    runtime: Handle,
    /// Dropped to end the thread.
    stop: Mutex<Option<oneshot::Sender<()>>>,
    jobs: Arc<Mutex<Vec<Job>>>,
    closing: watch::Sender<bool>,
}

/// A worker of one queue, and how its queue is closed and what it left is counted.
struct Job {
    task: JoinHandle<()>,
    close: Box<dyn Fn() + Send + Sync>,
    give_up: Box<dyn Fn() + Send + Sync>,
}

impl Telemetry {
    /// Starts the exporters' thread, if there is anything to export.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(settings: Settings) -> Result<Self, StartError> {
        let worker = if settings.exports() { Some(Worker::start()?) } else { None };
        Ok(Self { settings, worker })
    }

    /// The signals of one resource: of the process, or of one of its agents.
    ///
    /// # Errors
    /// When a collector's TLS settings can't be used.
    pub fn signals(&self, identity: &Identity) -> Result<Signals, StartError> {
        let books = Arc::new(Books::new());
        let resource = resource(&self.settings, identity);
        let mut signals = Signals { books: books.clone(), spans: None, records: None, metrics: None };
        let Some(worker) = &self.worker else { return Ok(signals) };
        let outlet = |exporter: &Exporter| -> Result<Outlet, TlsError> {
            // Connections belong to the telemetry thread's runtime.
            let _inside = worker.runtime.enter();
            Ok(Outlet::new(Collector::new(exporter.clone())?, books.clone()))
        };
        if let Some(exporter) = &self.settings.traces {
            let sink = worker.spans(&self.settings, outlet(exporter)?, &resource);
            let provider = SdkTracerProvider::builder()
                .with_sampler(self.settings.sampler.sdk())
                .with_span_processor(sink.clone())
                .build();
            signals.spans = Some(Spans { sink, provider, settings: self.settings.clone() });
        }
        if let Some(exporter) = &self.settings.logs {
            let sink = worker.records(&self.settings, outlet(exporter)?, &resource);
            signals.records = Some(SdkLoggerProvider::builder().with_log_processor(sink).build());
        }
        if let Some(exporter) = &self.settings.metrics {
            signals.metrics = Some(MetricsWay {
                worker: worker.runtime.clone(),
                jobs: worker.jobs.clone(),
                closing: worker.closing.subscribe(),
                outlet: Mutex::new(Some(outlet(exporter)?)),
                resource: ResourceAttributesWithSchema::from(&resource).attributes.0,
                interval: self.settings.metric_interval,
                timeout: self.settings.metric_timeout,
            });
        }
        Ok(signals)
    }

    /// Sends what waits, for [`SHUTDOWN`] at most; what is left then is given up and counted.
    pub async fn shutdown(&self) {
        let Some(worker) = &self.worker else { return };
        worker.closing.send_replace(true);
        let mut jobs = std::mem::take(&mut *worker.jobs.lock());
        for job in &jobs {
            (job.close)();
        }
        let emptied = async {
            for job in &mut jobs {
                // A worker that panicked has nothing to wait for.
                let _ = (&mut job.task).await;
            }
        };
        let in_time = tokio::time::timeout(SHUTDOWN, emptied).await.is_ok();
        for job in &mut jobs {
            if !in_time {
                job.task.abort();
                // Until the worker is gone, what it holds is not in the books; being gone takes no time.
                let _ = tokio::time::timeout(SHUTDOWN / 10, &mut job.task).await;
            }
            (job.give_up)();
        }
        worker.stop.lock().take();
    }
}

impl Worker {
    fn start() -> Result<Self, std::io::Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        std::thread::Builder::new().name("telemetry".to_owned()).spawn(move || {
            // An error is the sender's end, which is what is waited for.
            let _ = runtime.block_on(stopped);
            // A resolver that hangs is left behind.
            runtime.shutdown_background();
        })?;
        let stop = Mutex::new(Some(stop));
        Ok(Self { runtime: handle, stop, jobs: Arc::default(), closing: watch::Sender::new(false) })
    }

    fn spans(&self, settings: &Settings, outlet: Outlet, resource: &Resource) -> SpanSink {
        let queue = Arc::new(Queue::<SpanData>::new(settings.spans.queue, settings.spans.batch));
        let books = outlet.books.clone();
        let sink = SpanSink::new(queue.clone(), books.clone());
        let resource = ResourceAttributesWithSchema::from(resource);
        let encode = move |batch| ExportTraceServiceRequest {
            resource_spans: group_spans_by_resource_and_scope(batch, &resource),
        };
        let task = self.runtime.spawn(empty(queue.clone(), settings.spans, outlet, encode));
        self.job(task, queue, books, Signal::Traces);
        sink
    }

    fn records(&self, settings: &Settings, outlet: Outlet, resource: &Resource) -> RecordSink {
        let queue = Arc::new(Queue::<Record>::new(settings.records.queue, settings.records.batch));
        let books = outlet.books.clone();
        let sink = RecordSink::new(queue.clone(), books.clone());
        let resource = ResourceAttributesWithSchema::from(resource);
        let encode = move |batch: Vec<Record>| {
            let borrowed: Vec<_> = batch.iter().map(|(record, scope)| (record, scope)).collect();
            let resource_logs = group_logs_by_resource_and_scope(&LogBatch::new(&borrowed), &resource);
            ExportLogsServiceRequest { resource_logs }
        };
        let task = self.runtime.spawn(empty(queue.clone(), settings.records, outlet, encode));
        self.job(task, queue, books, Signal::Logs);
        sink
    }

    fn job<T: Send + 'static>(
        &self,
        task: JoinHandle<()>,
        queue: Arc<Queue<T>>,
        books: Arc<Books>,
        signal: Signal,
    ) {
        let closed = queue.clone();
        let close = Box::new(move || closed.close());
        let give_up = Box::new(move || {
            loop {
                let left = queue.take();
                if left.is_empty() {
                    return;
                }
                books.signal(signal).dropped(Dropped::Shutdown, left.len() as u64);
            }
        });
        self.jobs.lock().push(Job { task, close, give_up });
    }
}

/// The signals of one resource. What is not exported costs nothing.
pub struct Signals {
    books: Arc<Books>,
    spans: Option<Spans>,
    records: Option<SdkLoggerProvider>,
    metrics: Option<MetricsWay>,
}

struct Spans {
    sink: SpanSink,
    provider: SdkTracerProvider,
    settings: Settings,
}

struct MetricsWay {
    worker: Handle,
    jobs: Arc<Mutex<Vec<Job>>>,
    closing: watch::Receiver<bool>,
    /// Taken by the one source.
    outlet: Mutex<Option<Outlet>>,
    resource: Vec<opentelemetry_proto::tonic::common::v1::KeyValue>,
    interval: Duration,
    timeout: Duration,
}

impl Signals {
    /// Of a process that exports nothing.
    pub fn off() -> Self {
        Self { books: Arc::new(Books::new()), spans: None, records: None, metrics: None }
    }

    /// Makes exchanges' spans. `clock` is monotonic; `draw` gives 64 random bits.
    pub fn tracer(
        &self,
        clock: impl Fn() -> Duration + Send + Sync + 'static,
        draw: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Tracer {
        match &self.spans {
            None => Tracer::off(),
            Some(Spans { sink, settings, .. }) => {
                Tracer::new(sink.clone(), settings.sampler, settings.continue_traces, clock, draw)
            }
        }
    }

    /// What became of everything.
    pub fn books(&self) -> &Arc<Books> {
        &self.books
    }

    /// Exports a registry from now on: at each interval, and at the end. One source per resource; a second one is
    /// not exported.
    pub fn export_metrics(&self, source: Arc<dyn MetricSource>) {
        let Some(way) = &self.metrics else { return };
        let Some(outlet) = way.outlet.lock().take() else { return };
        let (mut closing, resource) = (way.closing.clone(), way.resource.clone());
        let (interval, timeout) = (way.interval, way.timeout);
        let started = clock::wall();
        let task = way.worker.spawn(async move {
            loop {
                // That the process ends, or the interval does, is the same reason: a last reading, or the next.
                let _ = tokio::time::timeout(interval, closing.wait_for(|closing| *closing)).await;
                let last = *closing.borrow();
                let window = Window { started, now: clock::wall() };
                if let Some((request, points)) = export(source.as_ref(), &resource, window) {
                    outlet.deliver(&request, points, timeout, || !*closing.borrow()).await;
                }
                if last {
                    return;
                }
            }
        });
        way.jobs.lock().push(Job { task, close: Box::new(|| {}), give_up: Box::new(|| {}) });
    }

    pub(crate) fn tracer_provider(&self) -> Option<&SdkTracerProvider> {
        self.spans.as_ref().map(|spans| &spans.provider)
    }

    pub(crate) fn logger_provider(&self) -> Option<&SdkLoggerProvider> {
        self.records.as_ref()
    }
}

/// The environment's word stands above ours, but for the instance: several agents may share a process.
fn resource(settings: &Settings, identity: &Identity) -> Resource {
    let mut attributes = vec![
        KeyValue::new(attribute::SERVICE_NAME, identity.service),
        KeyValue::new(attribute::SERVICE_VERSION, env!("CARGO_PKG_VERSION")),
        KeyValue::new("telemetry.sdk.name", "opentelemetry"),
        KeyValue::new("telemetry.sdk.language", "rust"),
    ];
    if let Some(namespace) = &identity.namespace {
        attributes.push(KeyValue::new(attribute::SERVICE_NAMESPACE, namespace.clone()));
    }
    let said = settings.resource.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
    attributes.extend(said);
    if let Some(name) = &settings.service_name {
        attributes.push(KeyValue::new(attribute::SERVICE_NAME, name.clone()));
    }
    attributes.push(KeyValue::new(attribute::SERVICE_INSTANCE_ID, identity.instance.clone()));
    Resource::builder_empty().with_attributes(attributes).build()
}
