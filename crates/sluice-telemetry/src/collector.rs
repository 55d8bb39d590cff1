//! One request to a collector: OTLP over gRPC or over HTTP, both on the hyper and rustls that the agent serves
//! with.
//!
//! Not opentelemetry-otlp: its exporters read the environment once more and ignore what they can't use, bring
//! their own channel or an HTTP client of their own, and take metrics only from the SDK's instruments. The
//! messages are opentelemetry-proto's, the official ones.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_proto::tonic::collector::logs::v1::{ExportLogsServiceRequest, ExportLogsServiceResponse};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use prost::Message;
use rustls::ClientConfig;
use rustls::crypto::ring;
use tonic::Code;
use tonic::codec::CompressionEncoding;
use tonic_prost::ProstCodec;

use crate::clock;
use crate::settings::{Exporter, Protocol, Signal, Tls};

/// A collector that says more than this about a request is not read further.
const RESPONSE_BYTES: usize = 64 * 1024;
const USER_AGENT: &str = concat!("sluice/", env!("CARGO_PKG_VERSION"));

/// A signal's request.
pub(crate) trait Export: Message + Clone + 'static {
    type Response: Message + Default + 'static;
    const SIGNAL: Signal;
    const METHOD: &'static str;
    /// How many items of an accepted request were not taken.
    fn rejected(response: &Self::Response) -> i64;
}

macro_rules! export {
    ($request:ty, $response:ty, $signal:ident, $method:literal, $rejected:ident) => {
        impl Export for $request {
            type Response = $response;
            const SIGNAL: Signal = Signal::$signal;
            const METHOD: &'static str = $method;
            fn rejected(response: &$response) -> i64 {
                response.partial_success.as_ref().map_or(0, |partial| partial.$rejected)
            }
        }
    };
}

export!(
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
    Traces,
    "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    rejected_spans
);
export!(
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
    Metrics,
    "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    rejected_data_points
);
export!(
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
    Logs,
    "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
    rejected_log_records
);

/// Why a request was not accepted. No text of it comes from our own headers.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("{0}")]
    Unreachable(String),
    #[error("answered {status}")]
    Http { status: StatusCode, retry_after: Option<Duration> },
    #[error("answered {code:?}: {message}")]
    Grpc { code: Code, message: String },
    #[error("the answer can't be read: {0}")]
    Answer(String),
}

impl SendError {
    /// Whether the same request may succeed later: as OTLP's specification has it.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Timeout(_) | Self::Unreachable(_) => true,
            Self::Http { status, .. } => matches!(status.as_u16(), 429 | 502 | 503 | 504),
            Self::Grpc { code, .. } => matches!(
                code,
                Code::Cancelled
                    | Code::DeadlineExceeded
                    | Code::Aborted
                    | Code::OutOfRange
                    | Code::Unavailable
                    | Code::DataLoss
            ),
            Self::Answer(_) => false,
        }
    }

    /// When the collector wants to be asked again.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        if let Self::Http { retry_after, .. } = self { *retry_after } else { None }
    }
}

/// A collector's address could not be prepared for.
#[derive(Debug, thiserror::Error)]
#[error(
    "the TLS settings of the collector can't be used: {0}; correct OTEL_EXPORTER_OTLP_*CERTIFICATE and *KEY"
)]
pub struct TlsError(#[from] std::io::Error);

pub(crate) struct Collector {
    client: Client<HttpsConnector<HttpConnector>, tonic::body::Body>,
    exporter: Exporter,
}

impl Collector {
    pub(crate) fn new(exporter: Exporter) -> Result<Self, TlsError> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(exporter.timeout));
        let tls = tls(&exporter.endpoint, &exporter.tls)?;
        let connector = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        let grpc = exporter.protocol == Protocol::Grpc;
        let connector = if grpc {
            connector.enable_http2().wrap_connector(tcp)
        } else {
            connector.enable_http1().wrap_connector(tcp)
        };
        let client = Client::builder(TokioExecutor::new()).http2_only(grpc).build(connector);
        Ok(Self { client, exporter })
    }

    /// Sends one request. `Ok` has the number of items that the collector did not take.
    pub(crate) async fn send<R: Export>(&self, request: &R) -> Result<u64, SendError> {
        let timeout = self.exporter.timeout;
        let sending = async {
            match self.exporter.protocol {
                Protocol::Grpc => self.send_grpc(request.clone()).await,
                Protocol::Http => self.send_http(request).await,
            }
        };
        let response =
            tokio::time::timeout(timeout, sending).await.map_err(|_| SendError::Timeout(timeout))??;
        Ok(u64::try_from(R::rejected(&response)).unwrap_or(0))
    }

    async fn send_grpc<R: Export>(&self, message: R) -> Result<R::Response, SendError> {
        let mut grpc = tonic::client::Grpc::with_origin(self.client.clone(), self.exporter.endpoint.clone());
        grpc = grpc.max_decoding_message_size(RESPONSE_BYTES);
        if self.exporter.gzip {
            // Servers written in Go answer as they were asked.
            grpc =
                grpc.send_compressed(CompressionEncoding::Gzip).accept_compressed(CompressionEncoding::Gzip);
        }
        grpc.ready().await.map_err(|error| SendError::Unreachable(chain(&error)))?;
        let mut request = tonic::Request::new(message);
        let headers: &mut HeaderMap = request.metadata_mut().as_mut();
        headers.extend(self.exporter.headers.clone());
        headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        let method = http::uri::PathAndQuery::from_static(R::METHOD);
        let codec: ProstCodec<R, R::Response> = ProstCodec::default();
        match grpc.unary(request, method, codec).await {
            Ok(response) => Ok(response.into_inner()),
            // A transport that failed comes as a status with a cause.
            Err(status) if std::error::Error::source(&status).is_some() => {
                Err(SendError::Unreachable(chain(&status)))
            }
            Err(status) => {
                let message = status.message().chars().take(200).collect();
                Err(SendError::Grpc { code: status.code(), message })
            }
        }
    }

    async fn send_http<R: Export>(&self, message: &R) -> Result<R::Response, SendError> {
        let mut request = Request::post(self.exporter.endpoint.clone());
        if let Some(headers) = request.headers_mut() {
            headers.extend(self.exporter.headers.clone());
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
            headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
            if self.exporter.gzip {
                headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            }
        }
        let plain = message.encode_to_vec();
        let body = if self.exporter.gzip { gzip(&plain) } else { plain };
        let request = request
            .body(tonic::body::Body::new(Full::new(Bytes::from(body))))
            .map_err(|error| SendError::Unreachable(chain(&error)))?;
        let response =
            self.client.request(request).await.map_err(|error| SendError::Unreachable(chain(&error)))?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, RESPONSE_BYTES).collect().await;
        if !head.status.is_success() {
            return Err(SendError::Http { status: head.status, retry_after: retry_after(&head.headers) });
        }
        let body = body.map_err(|error| SendError::Answer(error.to_string()))?.to_bytes();
        // A collector may answer with nothing, or in the JSON that it was not asked for.
        if head.headers.get(header::CONTENT_TYPE).is_none_or(|kind| kind != "application/x-protobuf") {
            return Ok(R::Response::default());
        }
        R::Response::decode(body).map_err(|error| SendError::Answer(error.to_string()))
    }
}

fn gzip(plain: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = GzEncoder::new(Vec::with_capacity(plain.len() / 4), Compression::fast());
    // Writing to memory does not fail.
    let _ = encoder.write_all(plain);
    encoder.finish().unwrap_or_default()
}

/// Seconds, or a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at: SystemTime = httpdate::parse_http_date(text).ok()?;
    Some(at.duration_since(clock::wall()).unwrap_or(Duration::ZERO))
}

/// The system's authorities unless some are given; none are read for a collector without TLS.
fn tls(endpoint: &Uri, tls: &Tls) -> Result<ClientConfig, std::io::Error> {
    let invalid = |error: rustls::Error| std::io::Error::other(error.to_string());
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(invalid)?;
    let builder = if endpoint.scheme_str() == Some("https") && tls.authorities.is_empty() {
        builder.with_native_roots()?
    } else {
        let mut roots = rustls::RootCertStore::empty();
        for authority in &tls.authorities {
            roots.add(authority.clone()).map_err(invalid)?;
        }
        builder.with_root_certificates(roots)
    };
    match &tls.client {
        Some((chain, key)) => builder.with_client_auth_cert(chain.clone(), key.clone_key()).map_err(invalid),
        None => Ok(builder.with_no_client_auth()),
    }
}

/// An error and its causes in one line: hyper says "client error (Connect)" and leaves the reason to its source.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
