//! The upstream side: one pooled client for all targets, and the request that an attempt sends.

use std::error::Error as _;
use std::time::Duration;

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::headers;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const IDLE_TIMEOUT: Duration = Duration::from_mins(1);
const IDLE_PER_TARGET: usize = 256;
/// hyper's read buffer of one connection: what is read ahead of a slow client.
const READ_BUFFER_BYTES: usize = 64 * 1024;
/// The same of an HTTP/2 stream; a connection has room for sixty-four that nobody reads.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 64 * STREAM_WINDOW_BYTES;
/// A connection that answers no ping is dead, whatever TCP thinks.
const PING_EVERY: Duration = Duration::from_secs(30);

pub(crate) struct Upstream {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

/// Why no answer began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendFault {
    Dns,
    Connect,
    Tls,
    /// Connecting took too long.
    Timeout,
    /// The connection ended before the answer's headers.
    Reset,
}

impl Upstream {
    /// # Errors
    /// When the system has no certificate store that can be read.
    pub(crate) fn new() -> std::io::Result<Self> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let tls = HttpsConnectorBuilder::new()
            .with_provider_and_native_roots(rustls::crypto::ring::default_provider())?
            .https_or_http()
            .enable_all_versions()
            .wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(IDLE_PER_TARGET)
            .timer(TokioTimer::new())
            .http1_max_buf_size(READ_BUFFER_BYTES)
            .http2_initial_stream_window_size(STREAM_WINDOW_BYTES)
            .http2_initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .http2_keep_alive_interval(PING_EVERY)
            .build(tls);
        Ok(Self { client })
    }

    /// Sends one attempt. Dropping the future cancels the call: the provider sees its connection (or its
    /// HTTP/2 stream) close.
    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, SendFault> {
        self.client.request(request).await.map_err(|error| fault(&error))
    }
}

fn fault(error: &ClientError) -> SendFault {
    if error.is_connect() { connect_fault(error.source()) } else { SendFault::Reset }
}

fn connect_fault(mut cause: Option<&(dyn std::error::Error + 'static)>) -> SendFault {
    while let Some(error) = cause {
        if is_tls(error) {
            return SendFault::Tls;
        }
        if let Some(io) = error.downcast_ref::<std::io::Error>()
            && io.kind() == std::io::ErrorKind::TimedOut
        {
            return SendFault::Timeout;
        }
        // hyper-util's connector says so in words only.
        if error.to_string().starts_with("dns error") {
            return SendFault::Dns;
        }
        cause = error.source();
    }
    SendFault::Connect
}

/// An I/O error that wraps another is not in the other's chain of sources: `source()` steps over what it wraps.
/// hyper-rustls wraps tokio-rustls' error, which wraps that of rustls.
fn is_tls(error: &(dyn std::error::Error + 'static)) -> bool {
    error.is::<rustls::Error>()
        || error
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref)
            .is_some_and(|wrapped| is_tls(wrapped))
}

/// A target's endpoint, taken apart once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    scheme: Scheme,
    authority: Authority,
    /// Without a trailing slash: `/v1`.
    path: String,
}

impl Origin {
    pub(crate) fn parse(endpoint: &str) -> Option<Self> {
        let parts = endpoint.parse::<Uri>().ok()?.into_parts();
        Some(Self {
            scheme: parts.scheme?,
            authority: parts.authority?,
            path: parts.path_and_query?.path().trim_end_matches('/').to_owned(),
        })
    }

    pub(crate) fn host(&self) -> &str {
        self.authority.host()
    }

    pub(crate) fn port(&self) -> u16 {
        let default = if self.scheme == Scheme::HTTPS { 443 } else { 80 };
        self.authority.port_u16().unwrap_or(default)
    }

    /// The address of a client's path at this endpoint. The version segment is the endpoint's own: a client
    /// that asks for `/v1/chat/completions` reaches `<endpoint>/chat/completions`.
    pub(crate) fn uri(&self, client: &Uri) -> Option<Uri> {
        let path = client.path();
        let path = path.strip_prefix("/v1").filter(|rest| rest.starts_with('/')).unwrap_or(path);
        let query = client.query();
        let mut target =
            String::with_capacity(self.path.len() + path.len() + query.map_or(0, |query| query.len() + 1));
        target.push_str(&self.path);
        target.push_str(path);
        if let Some(query) = query {
            target.push('?');
            target.push_str(query);
        }
        let path_and_query = PathAndQuery::try_from(target).ok()?;
        Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(path_and_query)
            .build()
            .ok()
    }
}

/// What a target does with credentials, made once per policy.
#[derive(Debug, Clone)]
pub(crate) enum CredentialHeader {
    /// Ours, instead of the caller's.
    Ours(HeaderName, HeaderValue),
    /// The caller's.
    Theirs,
    /// Nobody's.
    Nobodys,
    /// Ours, but the secret is missing: the target is passed over.
    Missing,
}

/// The parts of an exchange's request that every attempt shares.
pub(crate) struct Outgoing<'a> {
    pub(crate) method: &'a Method,
    pub(crate) uri: &'a Uri,
    /// Cleaned of hop-by-hop headers and of the agent's own.
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) exchange: HeaderValue,
    pub(crate) attempt: HeaderValue,
    /// Whether the caller's idempotency key may go along: only to the provider that saw it first.
    pub(crate) keep_idempotency_key: bool,
    /// What is left of the exchange's deadline, where the policy passes it on.
    pub(crate) remaining: Option<Duration>,
}

/// The request of one attempt; `None` when the client's path is none that a URI can carry.
pub(crate) fn request(
    origin: &Origin,
    credential: &CredentialHeader,
    out: Outgoing<'_>,
) -> Option<Request<Full<Bytes>>> {
    let uri = origin.uri(out.uri)?;
    let mut headers = out.headers;
    if !matches!(credential, CredentialHeader::Theirs) {
        headers::strip_credentials(&mut headers);
    }
    if let CredentialHeader::Ours(name, value) = credential {
        headers.insert(name.clone(), value.clone());
    }
    // Usage must be readable: no compressed answers.
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(headers::EXCHANGE_ID, out.exchange);
    headers.insert(headers::ATTEMPT_ID, out.attempt);
    if !out.keep_idempotency_key {
        headers.remove(headers::IDEMPOTENCY_KEY);
    }
    if let Some(remaining) = out.remaining {
        headers.insert(headers::TIMEOUT_MS, HeaderValue::from(sluice_core::units::millis(remaining)));
    }
    let mut request = Request::new(Full::new(out.body));
    *request.method_mut() = out.method.clone();
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    Some(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_handshake_is_found_however_often_it_is_wrapped() {
        use std::io::{Error, ErrorKind};
        let refused = || rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let once = Error::new(ErrorKind::InvalidData, refused());
        let twice = Error::other(Error::new(ErrorKind::InvalidData, refused()));
        for error in [once, twice] {
            assert!(matches!(connect_fault(Some(&error)), SendFault::Tls));
        }
        let refused = Error::from(ErrorKind::ConnectionRefused);
        assert!(matches!(connect_fault(Some(&refused)), SendFault::Connect));
        let late = Error::from(ErrorKind::TimedOut);
        assert!(matches!(connect_fault(Some(&late)), SendFault::Timeout));
    }

    #[test]
    fn the_version_segment_is_the_endpoints() {
        let origin = Origin::parse("https://models.example:8443/api/v2/").unwrap();
        let uri = origin.uri(&"/v1/chat/completions?x=1".parse().unwrap()).unwrap();
        assert_eq!(uri, "https://models.example:8443/api/v2/chat/completions?x=1");
        assert_eq!(origin.uri(&"/v1beta".parse().unwrap()).unwrap().path(), "/api/v2/v1beta");
        assert_eq!((origin.host(), origin.port()), ("models.example", 8443));
        assert_eq!(Origin::parse("https://models.example/v1").unwrap().port(), 443);
    }

    #[test]
    fn our_key_replaces_the_callers() {
        let origin = Origin::parse("http://127.0.0.1:1/v1").unwrap();
        let mut theirs = HeaderMap::new();
        theirs.insert("x-api-key", HeaderValue::from_static("theirs"));
        theirs.insert("authorization", HeaderValue::from_static("theirs"));
        let (name, value) = headers::credential(sluice_core::policy::Provider::Anthropic, b"ours").unwrap();
        let sent = request(
            &origin,
            &CredentialHeader::Ours(name, value),
            Outgoing {
                method: &Method::POST,
                uri: &"/v1/messages".parse().unwrap(),
                headers: theirs,
                body: Bytes::new(),
                exchange: HeaderValue::from_static("e"),
                attempt: HeaderValue::from_static("a"),
                keep_idempotency_key: true,
                remaining: None,
            },
        )
        .unwrap();
        assert_eq!(sent.headers()["x-api-key"], "ours");
        assert!(!sent.headers().contains_key("authorization"));
    }
}
