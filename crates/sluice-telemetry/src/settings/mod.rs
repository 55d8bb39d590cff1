//! What to send and where, from OpenTelemetry's own environment variables, so that whoever runs a collector
//! already knows them.
//!
//! [`HONOURED`] lists them.

mod exporter;
mod honoured;
mod sampler;
mod variables;

use std::ffi::OsString;
use std::time::Duration;

pub(crate) use exporter::Tls;
pub use exporter::{Exporter, Protocol, Signal};
pub use honoured::{HONOURED, Honoured};
pub use sampler::HeadSampler;
pub use variables::SettingsError;
use variables::{Variables, pairs};

/// A queue in front of an exporter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batching {
    /// Items that may wait; what comes beyond is dropped and counted.
    pub queue: usize,
    /// Items in one request.
    pub batch: usize,
    /// How long an item waits for company.
    pub delay: Duration,
    /// How long one batch may take, its repetitions included.
    pub timeout: Duration,
}

/// Everything that the environment says.
#[derive(Debug, Clone)]
pub struct Settings {
    pub traces: Option<Exporter>,
    pub metrics: Option<Exporter>,
    pub logs: Option<Exporter>,
    pub sampler: HeadSampler,
    /// Whether a caller's trace is continued.
    pub continue_traces: bool,
    /// `OTEL_SERVICE_NAME`; wins over the one in `resource`.
    pub service_name: Option<String>,
    pub resource: Vec<(String, String)>,
    pub spans: Batching,
    pub records: Batching,
    /// Default 60 s.
    pub metric_interval: Duration,
    /// Default 30 s.
    pub metric_timeout: Duration,
}

impl Settings {
    /// Reads the process's environment.
    ///
    /// # Errors
    /// The first variable that can't be used.
    pub fn from_env() -> Result<Self, SettingsError> {
        Self::read(&|variable| std::env::var_os(variable))
    }

    /// Reads variables from a given place.
    ///
    /// # Errors
    /// The first variable that can't be used.
    pub fn read(lookup: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, SettingsError> {
        let variables = Variables(lookup);
        let enabled = !variables.flag("OTEL_SDK_DISABLED")?.unwrap_or(false);
        let exporter = |signal| if enabled { Exporter::read(&variables, signal) } else { Ok(None) };
        let resource = match variables.get("OTEL_RESOURCE_ATTRIBUTES")? {
            Some(value) => pairs(&value.text).map_err(|fix| value.invalid(fix))?,
            None => Vec::new(),
        };
        Ok(Self {
            traces: exporter(Signal::Traces)?,
            metrics: exporter(Signal::Metrics)?,
            logs: exporter(Signal::Logs)?,
            sampler: HeadSampler::read(&variables)?,
            continue_traces: continue_traces(&variables)?,
            service_name: variables.get("OTEL_SERVICE_NAME")?.map(|value| value.text),
            resource,
            spans: batching(&variables, "BSP", Duration::from_secs(5))?,
            records: batching(&variables, "BLRP", Duration::from_secs(1))?,
            metric_interval: variables.millis("OTEL_METRIC_EXPORT_INTERVAL", Duration::from_mins(1))?,
            metric_timeout: variables.millis("OTEL_METRIC_EXPORT_TIMEOUT", Duration::from_secs(30))?,
        })
    }

    /// Whether anything is sent.
    pub fn exports(&self) -> bool {
        self.traces.is_some() || self.metrics.is_some() || self.logs.is_some()
    }
}

/// The batch processors' variables and defaults.
fn batching(variables: &Variables<'_>, infix: &str, delay: Duration) -> Result<Batching, SettingsError> {
    let name = |what| format!("OTEL_{infix}_{what}");
    let queue = variables.count(&name("MAX_QUEUE_SIZE"), 2048)?;
    let batch = variables.count(&name("MAX_EXPORT_BATCH_SIZE"), 512)?;
    if batch > queue
        && let Some(value) = variables.get(&name("MAX_EXPORT_BATCH_SIZE"))?
    {
        return Err(value.invalid(format!("it must not exceed {}, which is {queue}", name("MAX_QUEUE_SIZE"))));
    }
    Ok(Batching {
        queue,
        batch: batch.min(queue),
        delay: variables.millis(&name("SCHEDULE_DELAY"), delay)?,
        timeout: variables.millis(&name("EXPORT_TIMEOUT"), Duration::from_secs(30))?,
    })
}

fn continue_traces(variables: &Variables<'_>) -> Result<bool, SettingsError> {
    let Some(value) = variables.get("OTEL_PROPAGATORS")? else { return Ok(true) };
    let mut continued = false;
    for name in value.text.split(',').map(str::trim) {
        match name {
            "tracecontext" => continued = true,
            "none" | "baggage" => {}
            _ => return Err(value.invalid("set it to tracecontext, or to none")),
        }
    }
    Ok(continued)
}
