//! The page at `/metrics`: a registry whose every family has a row in [`crate::names::metric`].
//!
//! The Prometheus client writes OpenMetrics, where a counter's family lacks the `_total` of its series. Scrapers
//! that don't ask for that get Prometheus' own text format, in which comments carry the series' name; the rest is
//! the same.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{self, Registry};

use crate::books::Books;
use crate::names::metric::{self, Kind, Metric, Section};

/// How the page is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextFormat {
    /// Version 0.0.4, which everything reads.
    Prometheus,
    /// Version 1.0.0, for those who ask.
    OpenMetrics,
}

impl TextFormat {
    /// By a request's `Accept`.
    pub fn accepted(accept: Option<&str>) -> Self {
        let asked = accept.is_some_and(|accept| accept.contains("application/openmetrics-text"));
        if asked { Self::OpenMetrics } else { Self::Prometheus }
    }

    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct VersionLabel {
    version: &'static str,
}

/// Families with rows.
#[derive(Debug)]
pub struct Page {
    registry: Registry,
    rows: Vec<&'static Metric>,
}

impl Page {
    /// With what every process has.
    pub fn new(books: &Books) -> Self {
        let mut page = Self { registry: Registry::default(), rows: Vec::new() };
        let build = Family::<VersionLabel, Gauge>::default();
        build.get_or_create(&VersionLabel { version: env!("CARGO_PKG_VERSION") }).set(1);
        page.register(&metric::BUILD_INFO, build);
        books.register(&mut page);
        page
    }

    /// Adds a family under its row's name.
    pub fn register(&mut self, row: &'static Metric, family: impl registry::Metric) {
        self.registry.register(row.registered_name(), row.help, family);
        self.rows.push(row);
    }

    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The whole page; empty when a family can't be written.
    pub fn text(&self, format: TextFormat) -> String {
        let mut page = String::new();
        if text::encode(&mut page, &self.registry).is_err() {
            return String::new();
        }
        match format {
            TextFormat::OpenMetrics => page,
            TextFormat::Prometheus => prometheus(&page),
        }
    }

    /// What this page and the rows that it should have say differently: families without a row, rows without a
    /// family, other types, other labels. For tests.
    pub fn misfits(&self, sections: &[Section]) -> Vec<String> {
        let wanted =
            sections.iter().chain([&metric::EVERY_PROCESS]).flat_map(|(_, rows)| rows.iter().copied());
        let wanted: Vec<&Metric> = wanted.collect();
        let missing = wanted.iter().filter(|row| !self.rows.contains(row));
        let mut misfits: Vec<String> = missing.map(|row| format!("{} is not registered", row.name)).collect();
        let extra = self.rows.iter().filter(|row| !wanted.contains(row));
        misfits.extend(extra.map(|row| format!("{} has no row here", row.name)));
        let page = self.text(TextFormat::Prometheus);
        let mut types = BTreeMap::new();
        for line in page.lines() {
            if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) {
                types.insert(name, kind);
            } else if !line.starts_with('#') {
                misfits.extend(misfit(line, &types));
            }
        }
        misfits
    }
}

/// Of one series.
fn misfit(line: &str, types: &BTreeMap<&str, &str>) -> Option<String> {
    let (series, labels) = match line.split_once('{') {
        Some((series, rest)) => (series, rest.rsplit_once('}').map_or("", |(labels, _)| labels)),
        None => (line.split(' ').next().unwrap_or_default(), ""),
    };
    let of_histogram = ["_bucket", "_sum", "_count"]
        .into_iter()
        .filter_map(|suffix| series.strip_suffix(suffix))
        .find(|family| types.get(family) == Some(&Kind::Histogram.as_str()));
    let family = of_histogram.unwrap_or(series);
    let Some(row) = metric::scraped_as(family) else { return Some(format!("{family} has no row")) };
    if types.get(family) != Some(&row.kind.as_str()) {
        return Some(format!("{family} is a {:?}", types.get(family)));
    }
    let mut has: Vec<&str> = label_names(labels).filter(|name| *name != "le").collect();
    let mut wanted: Vec<String> = row.labels.iter().map(|label| label.replace('.', "_")).collect();
    has.sort_unstable();
    wanted.sort_unstable();
    (has != wanted).then(|| format!("{family} has the labels {has:?}, its row says {wanted:?}"))
}

/// Of `a="1",b="2"`; a value may hold anything but a plain quote.
fn label_names(labels: &str) -> impl Iterator<Item = &str> {
    let mut rest = labels;
    std::iter::from_fn(move || {
        let (name, value) = rest.split_once("=\"")?;
        let mut escaped = false;
        let end = value.find(|c: char| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        })?;
        rest = &value[end + 1..];
        Some(name.trim_start_matches(','))
    })
}

/// OpenMetrics as Prometheus' text format, version 0.0.4.
fn prometheus(open_metrics: &str) -> String {
    let mut page = String::with_capacity(open_metrics.len());
    let mut help = None;
    for line in open_metrics.lines() {
        if let Some(told) = line.strip_prefix("# HELP ").and_then(|line| line.split_once(' ')) {
            help = Some(told);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' '))
        {
            let suffix = if kind == Kind::Counter.as_str() { "_total" } else { "" };
            if let Some((_, text)) = help.take() {
                // Writing to a string can't fail.
                let _ = writeln!(page, "# HELP {name}{suffix} {text}");
            }
            let _ = writeln!(page, "# TYPE {name}{suffix} {kind}");
        } else if !line.starts_with('#') {
            page.push_str(line);
            page.push('\n');
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::histogram::Histogram;

    use super::*;

    type Labels = Vec<(&'static str, &'static str)>;

    fn page() -> Page {
        Page::new(&Books::new())
    }

    #[test]
    fn counters_are_named_as_their_series_where_openmetrics_was_not_asked_for() {
        let mut page = page();
        let attempts = Family::<Labels, Counter>::default();
        page.register(&metric::ATTEMPTS, attempts.clone());
        attempts.get_or_create(&vec![("name", "a\"b\\")]).inc_by(2);
        let text = page.text(TextFormat::Prometheus);
        let series = "sluice_attempts_total{name=\"a\\\"b\\\\\"} 2\n";
        let help = metric::ATTEMPTS.help;
        let wanted =
            format!("# HELP sluice_attempts_total {help}.\n# TYPE sluice_attempts_total counter\n{series}");
        assert!(text.contains(&wanted), "{text}");
        assert!(!text.contains("# EOF"), "{text}");
        let text = page.text(TextFormat::OpenMetrics);
        assert!(text.contains("# TYPE sluice_attempts counter\n") && text.ends_with("# EOF\n"), "{text}");
        let without = page.misfits(&[]);
        assert_eq!(without, ["sluice.attempts has no row here"]);
        assert_eq!(page.misfits(&[("", &[&metric::ATTEMPTS])]), Vec::<String>::new());
    }

    #[test]
    fn what_does_not_fit_its_row_is_told() {
        let mut page = page();
        let wrong_labels = Family::<Labels, Counter>::default();
        wrong_labels.get_or_create(&vec![("model", "from a request")]).inc();
        page.register(&metric::ATTEMPTS, wrong_labels);
        page.register(&metric::IN_FLIGHT, Counter::<u64>::default());
        let histogram = Histogram::new([1.0]);
        page.register(&metric::STORE_DURATION, histogram.clone());
        histogram.observe(0.5);
        let rows: &[&Metric] =
            &[&metric::ATTEMPTS, &metric::IN_FLIGHT, &metric::STORE_DURATION, &metric::RETRIES];
        let misfits = page.misfits(&[("", rows)]);
        assert_eq!(misfits.len(), 3, "{misfits:?}");
        for (misfit, told) in misfits.iter().zip(["sluice.retries", "[\"model\"]", "sluice_in_flight_total"])
        {
            assert!(misfit.contains(told), "{misfit}");
        }
    }

    #[test]
    fn who_asks_for_openmetrics_gets_it() {
        let asks = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2";
        assert_eq!(TextFormat::accepted(Some(asks)), TextFormat::OpenMetrics);
        for plain in [None, Some("*/*"), Some("text/plain")] {
            assert_eq!(TextFormat::accepted(plain), TextFormat::Prometheus);
        }
    }
}
