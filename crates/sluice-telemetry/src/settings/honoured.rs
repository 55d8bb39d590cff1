//! The variables that are honoured, one row each: `docs/telemetry.md` has them, and a test compares them with what
//! is looked up.

/// A variable, or one per signal where the name has `{SIGNAL}`: `TRACES`, `METRICS`, `LOGS`.
#[derive(Debug, Clone, Copy)]
pub struct Honoured {
    pub variable: &'static str,
    /// As a reader of the documentation wants it; empty: none.
    pub default: &'static str,
    pub meaning: &'static str,
}

const fn honoured(variable: &'static str, default: &'static str, meaning: &'static str) -> Honoured {
    Honoured { variable, default, meaning }
}

/// `OTEL_EXPORTER_OTLP_{SIGNAL}_X` stands for the general `OTEL_EXPORTER_OTLP_X` too, over which it wins.
pub const HONOURED: &[Honoured] = &[
    honoured("OTEL_SDK_DISABLED", "`false`", "`true`: nothing is exported"),
    honoured(
        "OTEL_{SIGNAL}_EXPORTER",
        "`otlp` where an endpoint is set, else `none`",
        "`otlp` or `none`; the specification's own default would call localhost from every pod",
    ),
    honoured(
        "OTEL_EXPORTER_OTLP_{SIGNAL}_ENDPOINT",
        "`http://localhost:4318` (`4317` with gRPC)",
        "the collector's URL; `/v1/traces` and so on are appended to the general one with HTTP",
    ),
    honoured(
        "OTEL_EXPORTER_OTLP_{SIGNAL}_PROTOCOL",
        "`http/protobuf`; `grpc` at port 4317",
        "`grpc` or `http/protobuf`",
    ),
    honoured(
        "OTEL_EXPORTER_OTLP_{SIGNAL}_HEADERS",
        "",
        "`name=value,…`, percent-encoded; the values are secrets",
    ),
    honoured("OTEL_EXPORTER_OTLP_{SIGNAL}_TIMEOUT", "`10000`", "ms for one request"),
    honoured("OTEL_EXPORTER_OTLP_{SIGNAL}_COMPRESSION", "`none`", "`gzip` or `none`"),
    honoured(
        "OTEL_EXPORTER_OTLP_{SIGNAL}_INSECURE",
        "`false`",
        "`true`: a gRPC endpoint without a scheme is plain text",
    ),
    honoured("OTEL_EXPORTER_OTLP_{SIGNAL}_CERTIFICATE", "the system's", "PEM file of authorities to trust"),
    honoured("OTEL_EXPORTER_OTLP_{SIGNAL}_CLIENT_CERTIFICATE", "", "PEM file of the certificate to show"),
    honoured("OTEL_EXPORTER_OTLP_{SIGNAL}_CLIENT_KEY", "", "PEM file of its key"),
    honoured(
        "OTEL_SERVICE_NAME",
        "`sluice-agent`, `sluice-controller`, `sluice-control-plane`",
        "`service.name`",
    ),
    honoured("OTEL_RESOURCE_ATTRIBUTES", "", "`key=value,…` added to the resource of everything"),
    honoured(
        "OTEL_TRACES_SAMPLER",
        "`parentbased_always_on`",
        "`always_on`, `always_off`, `traceidratio`, or one of them after `parentbased_`; traces with a transition, a \
         probe, a failover or an error are exported all the same",
    ),
    honoured("OTEL_TRACES_SAMPLER_ARG", "`1`", "the ratio, from 0 to 1"),
    honoured(
        "OTEL_PROPAGATORS",
        "`tracecontext`",
        "`tracecontext`, or `none`: callers' traces are not continued; `baggage` is accepted and never forwarded",
    ),
    honoured("OTEL_BSP_SCHEDULE_DELAY", "`5000`", "ms that a span waits for company"),
    honoured("OTEL_BSP_EXPORT_TIMEOUT", "`30000`", "ms for one batch of spans, its repetitions included"),
    honoured(
        "OTEL_BSP_MAX_QUEUE_SIZE",
        "`2048`",
        "spans that may wait; what comes beyond is dropped and counted",
    ),
    honoured("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "`512`", "spans in one request"),
    honoured("OTEL_BLRP_SCHEDULE_DELAY", "`1000`", "ms that a log record waits for company"),
    honoured("OTEL_BLRP_EXPORT_TIMEOUT", "`30000`", "ms for one batch of records, its repetitions included"),
    honoured("OTEL_BLRP_MAX_QUEUE_SIZE", "`2048`", "records that may wait"),
    honoured("OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", "`512`", "records in one request"),
    honoured("OTEL_METRIC_EXPORT_INTERVAL", "`60000`", "ms between two exports of the metrics"),
    honoured("OTEL_METRIC_EXPORT_TIMEOUT", "`30000`", "ms for one of them, its repetitions included"),
];

impl Honoured {
    /// The variables that this row stands for.
    pub fn variables(&self) -> Vec<String> {
        const SIGNAL: &str = "{SIGNAL}";
        if !self.variable.contains(SIGNAL) {
            return vec![self.variable.to_owned()];
        }
        let own = ["TRACES", "METRICS", "LOGS"].map(|signal| self.variable.replace(SIGNAL, signal));
        let general = self.variable.starts_with("OTEL_EXPORTER_OTLP_");
        let general = general.then(|| self.variable.replace("{SIGNAL}_", ""));
        general.into_iter().chain(own).collect()
    }
}
