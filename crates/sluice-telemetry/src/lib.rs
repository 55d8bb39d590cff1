//! OpenTelemetry for every process of Sluice: one set-up, one source of names, one way out.
//!
//! ```text
//! exchanges ── trace::Span (records) ─────────────┐
//! tracing ─┬── tracing-opentelemetry ── SDK ──────┤── queue ── deliver ── collector (gRPC, HTTP)
//!          ├── log records (transitions, refusals)┘                          ▲
//!          └── log lines ── stderr                    registry ── metrics ───┘
//! ```
//! - Exchanges are recorded and decided at the end, see [`trace`]; everything else is `tracing`'s, see [`subscriber`].
//! - Numbers live in the Prometheus client's registry alone, see [`page`] and [`metrics`].
//! - Whatever a collector does (refuse, hang, answer slowly, vanish), an exchange pays for a push into a bounded
//!   queue; what does not fit is dropped and counted, see [`Books`].
//! - No prompt, answer or key is in any signal: nothing here takes text from a body, and what is set on spans are
//!   policy's names, fixed words and numbers.
//!
//! The order of calls: [`Settings::from_env`], [`Telemetry::start`], [`Telemetry::signals`] per resource,
//! [`subscriber()`] once, [`Signals::tracer`], [`Signals::export_metrics`], and at the end [`Telemetry::shutdown`].

mod books;
mod clock;
mod collector;
pub mod context;
mod deliver;
mod log_format;
pub mod metrics;
pub mod names;
pub mod page;
mod queue;
pub mod reference;
pub mod settings;
mod sink;
pub mod subscriber;
mod telemetry;
pub mod trace;

pub use books::{Books, Dropped};
pub use collector::TlsError;
pub use log_format::{LogFormat, UnknownLogFormat};
pub use metrics::MetricSource;
pub use opentelemetry::trace::{SpanContext, SpanKind};
pub use opentelemetry::{KeyValue, StringValue, Value};
pub use page::{Page, TextFormat};
pub use settings::{HeadSampler, Settings, SettingsError, Signal};
pub use subscriber::{Logging, subscriber};
pub use telemetry::{Identity, SHUTDOWN, Signals, StartError, Telemetry};
pub use trace::{Keep, Span, Tracer};
