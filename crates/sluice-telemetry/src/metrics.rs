//! Metrics over OTLP, read from the Prometheus client's registry.
//!
//! The other way round (the SDK's instruments with a Prometheus reader) would cost a hash of the attributes at each
//! count, where a handle of the Prometheus client is one atomic add, and there is no maintained Prometheus exporter
//! for the SDK. So the registry is the one place where numbers live; every interval it is encoded as Prometheus'
//! own messages (by the client's encoder) and translated here. Names and units come from [`crate::names::metric`];
//! a family that has no row there goes out under its Prometheus name rather than not at all.

use std::time::SystemTime;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum, metric, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prometheus_client::encoding::prometheus_protobuf::encode;
use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model as scraped;
use prometheus_client::registry::Registry;

use crate::clock::unix_nanos;
use crate::names;

/// Whoever keeps a registry.
pub trait MetricSource: Send + Sync + 'static {
    /// Brings gauges up to date that are read from elsewhere, and shows the registry.
    fn read(&self, reader: &mut dyn FnMut(&Registry));
}

/// The moment of an encoding, and since when the counters count.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) started: SystemTime,
    pub(crate) now: SystemTime,
}

/// A whole request and the number of its points. None: the registry can't be encoded.
pub(crate) fn export(
    source: &dyn MetricSource,
    resource: &[KeyValue],
    window: Window,
) -> Option<(ExportMetricsServiceRequest, usize)> {
    let mut families = None;
    source.read(&mut |registry| families = encode(registry).ok());
    let metrics: Vec<Metric> = families?.iter().filter_map(|family| translate(family, window)).collect();
    let points = metrics.iter().map(points).sum();
    let scope = InstrumentationScope {
        name: "sluice".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let request = ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(Resource { attributes: resource.to_vec(), ..Resource::default() }),
            scope_metrics: vec![ScopeMetrics { scope: Some(scope), metrics, schema_url: String::new() }],
            schema_url: String::new(),
        }],
    };
    Some((request, points))
}

fn points(metric: &Metric) -> usize {
    match &metric.data {
        Some(metric::Data::Gauge(gauge)) => gauge.data_points.len(),
        Some(metric::Data::Sum(sum)) => sum.data_points.len(),
        Some(metric::Data::Histogram(histogram)) => histogram.data_points.len(),
        _ => 0,
    }
}

/// Summaries and untyped families have no counterpart, and we have none.
fn translate(family: &scraped::MetricFamily, window: Window) -> Option<Metric> {
    let row = names::metric::scraped_as(&family.name);
    let labels = row.map_or(&[][..], |row| row.labels);
    let series = family.metric.iter();
    let data = match family.r#type() {
        scraped::MetricType::Gauge => {
            let points =
                series.filter_map(|one| Some(number(one, one.gauge.as_ref()?.value, labels, window)));
            metric::Data::Gauge(Gauge { data_points: points.collect() })
        }
        scraped::MetricType::Counter => {
            let points = series.filter_map(|one| {
                let point = number(one, one.counter.as_ref()?.value, labels, window);
                Some(NumberDataPoint { start_time_unix_nano: unix_nanos(window.started), ..point })
            });
            metric::Data::Sum(Sum {
                data_points: points.collect(),
                aggregation_temporality: AggregationTemporality::Cumulative as i32,
                is_monotonic: true,
            })
        }
        scraped::MetricType::Histogram => metric::Data::Histogram(Histogram {
            data_points: series.filter_map(|one| histogram(one, labels, window)).collect(),
            aggregation_temporality: AggregationTemporality::Cumulative as i32,
        }),
        _ => return None,
    };
    Some(Metric {
        name: row.map_or(family.name.as_str(), |row| row.name).to_owned(),
        description: row.map_or(family.help.as_str(), |row| row.help).to_owned(),
        unit: row.map_or("", |row| row.unit.ucum()).to_owned(),
        metadata: Vec::new(),
        data: Some(data),
    })
}

fn number(metric: &scraped::Metric, value: f64, labels: &[&str], window: Window) -> NumberDataPoint {
    NumberDataPoint {
        attributes: attributes(&metric.label, labels),
        time_unix_nano: unix_nanos(window.now),
        value: Some(number_data_point::Value::AsDouble(value)),
        ..NumberDataPoint::default()
    }
}

/// Prometheus' buckets contain the ones below them, OTLP's don't; the one without a bound is what remains.
fn histogram(metric: &scraped::Metric, labels: &[&str], window: Window) -> Option<HistogramDataPoint> {
    let histogram = metric.histogram.as_ref()?;
    let bounded = || histogram.bucket.iter().filter(|bucket| bucket.upper_bound < f64::MAX);
    let up_to = bounded().map(|bucket| bucket.cumulative_count).chain([histogram.sample_count]);
    let below = [0].into_iter().chain(bounded().map(|bucket| bucket.cumulative_count));
    Some(HistogramDataPoint {
        attributes: attributes(&metric.label, labels),
        start_time_unix_nano: unix_nanos(window.started),
        time_unix_nano: unix_nanos(window.now),
        count: histogram.sample_count,
        sum: Some(histogram.sample_sum),
        bucket_counts: up_to.zip(below).map(|(up_to, below)| up_to.saturating_sub(below)).collect(),
        explicit_bounds: bounded().map(|bucket| bucket.upper_bound).collect(),
        ..HistogramDataPoint::default()
    })
}

fn attributes(labels: &[scraped::LabelPair], names: &[&str]) -> Vec<KeyValue> {
    let attribute = |label: &scraped::LabelPair| {
        let own = names.iter().find(|name| name.replace('.', "_") == label.name);
        KeyValue {
            key: own.copied().unwrap_or(&label.name).to_owned(),
            value: Some(AnyValue { value: Some(any_value::Value::StringValue(label.value.clone())) }),
            ..KeyValue::default()
        }
    };
    // An empty label is an absent one, as Prometheus has it.
    labels.iter().filter(|label| !label.value.is_empty()).map(attribute).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family;
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;

    type Labels = Vec<(&'static str, &'static str)>;
    type Histograms = Family<Labels, prometheus_client::metrics::histogram::Histogram>;

    struct Source(Registry);

    impl MetricSource for Source {
        fn read(&self, reader: &mut dyn FnMut(&Registry)) {
            reader(&self.0);
        }
    }

    fn exported(registry: Registry) -> (Vec<Metric>, usize) {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let window = Window { started: at(1), now: at(2) };
        let (mut request, points) = export(&Source(registry), &[], window).unwrap();
        (request.resource_metrics.remove(0).scope_metrics.remove(0).metrics, points)
    }

    fn texts(attributes: &[KeyValue]) -> Vec<(&str, String)> {
        attributes
            .iter()
            .map(|one| match one.value.as_ref().and_then(|value| value.value.as_ref()) {
                Some(any_value::Value::StringValue(text)) => (one.key.as_str(), text.clone()),
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn counters_are_monotonic_sums_under_their_own_names() {
        let mut registry = Registry::default();
        let family = Family::<Labels, Counter>::default();
        let row = &names::metric::BREAKER_TRANSITIONS;
        registry.register(row.registered_name(), row.help, family.clone());
        let labels = vec![("name", "ns/r/t"), ("from", "closed"), ("to", "open"), ("reason", "failures")];
        family.get_or_create(&labels).inc_by(3);
        let (metrics, points) = exported(registry);
        assert_eq!((metrics.len(), points), (1, 1));
        assert_eq!(metrics[0].name, "llm.circuit_breaker.transitions");
        let Some(metric::Data::Sum(sum)) = &metrics[0].data else { panic!("{metrics:?}") };
        assert!(sum.is_monotonic);
        let point = &sum.data_points[0];
        assert_eq!(point.value, Some(number_data_point::Value::AsDouble(3.0)));
        assert_eq!(point.start_time_unix_nano, 1_000_000_000);
        assert_eq!(point.time_unix_nano, 2_000_000_000);
        assert_eq!(texts(&point.attributes)[0], ("name", "ns/r/t".to_owned()));
    }

    #[test]
    fn gauges_have_no_start() {
        let mut registry = Registry::default();
        let gauge: Gauge = Gauge::default();
        registry.register("sluice_unlisted", "A family without a row", gauge.clone());
        gauge.set(-2);
        let (metrics, _) = exported(registry);
        assert_eq!(metrics[0].name, "sluice_unlisted");
        let Some(metric::Data::Gauge(gauge)) = &metrics[0].data else { panic!("{metrics:?}") };
        assert_eq!(gauge.data_points[0].value, Some(number_data_point::Value::AsDouble(-2.0)));
        assert_eq!(gauge.data_points[0].start_time_unix_nano, 0);
    }

    #[test]
    fn histograms_keep_their_bounds_and_dotted_attributes() {
        let mut registry = Registry::default();
        let family: Histograms = Family::new_with_constructor(|| {
            prometheus_client::metrics::histogram::Histogram::new([0.5, 1.0])
        });
        let row = &names::metric::OPERATION_DURATION;
        registry.register(row.registered_name(), row.help, family.clone());
        let histogram = family.get_or_create_owned(&vec![("gen_ai_request_model", "m")]);
        for value in [0.25, 0.75, 0.75, 3.0] {
            histogram.observe(value);
        }
        let (metrics, _) = exported(registry);
        assert_eq!((metrics[0].name.as_str(), metrics[0].unit.as_str()), (row.name, "s"));
        let Some(metric::Data::Histogram(data)) = &metrics[0].data else { panic!("{metrics:?}") };
        let point = &data.data_points[0];
        assert_eq!(point.explicit_bounds, [0.5, 1.0]);
        assert_eq!(point.bucket_counts, [1, 2, 1]);
        assert_eq!((point.count, point.sum), (4, Some(4.75)));
        assert_eq!(texts(&point.attributes), [("gen_ai.request.model", "m".to_owned())]);
    }
}
