//! Log lines: text for people, JSON for collectors, both with the span that they belong to.

use std::fmt;
use std::str::FromStr;

use opentelemetry::Context;
use opentelemetry::trace::TraceContextExt as _;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    #[default]
    Text,
    /// One object per line.
    Json,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("log format {0:?} is unknown: set it to text or json")]
pub struct UnknownLogFormat(String);

impl FromStr for LogFormat {
    type Err = UnknownLogFormat;

    fn from_str(text: &str) -> Result<Self, UnknownLogFormat> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(UnknownLogFormat(text.to_owned())),
        }
    }
}

/// Adds `trace_id` and `span_id` of OpenTelemetry's current context to a format of tracing-subscriber, which has no
/// place for fields that come from elsewhere: the line is made and the ids are put in before its end.
pub(crate) struct WithSpan<F> {
    inner: F,
    json: bool,
}

impl<F> WithSpan<F> {
    pub(crate) fn text(inner: F) -> Self {
        Self { inner, json: false }
    }

    pub(crate) fn json(inner: F) -> Self {
        Self { inner, json: true }
    }
}

impl<S, N, F> FormatEvent<S, N> for WithSpan<F>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let Some(span) = Context::map_current(|current| {
            current.has_active_span().then(|| current.span().span_context().clone())
        }) else {
            return self.inner.format_event(ctx, writer, event);
        };
        let mut line = String::new();
        self.inner.format_event(ctx, Writer::new(&mut line), event)?;
        let (trace, span) = (span.trace_id(), span.span_id());
        let line = line.trim_end_matches('\n');
        match line.strip_suffix('}').filter(|_| self.json) {
            Some(open) => writeln!(writer, "{open},\"trace_id\":\"{trace}\",\"span_id\":\"{span}\"}}"),
            None => writeln!(writer, "{line} trace_id={trace} span_id={span}"),
        }
    }
}
