//! Where one signal goes: `OTEL_EXPORTER_OTLP_{SIGNAL}_*`, else `OTEL_EXPORTER_OTLP_*`.

use std::fmt;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::variables::{SettingsError, Value, Variables, millis, pairs};

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// The ports that are registered for OTLP.
const GRPC_PORT: u16 = 4317;
const HTTP_PORT: u16 = 4318;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    Traces,
    Metrics,
    Logs,
}

impl Signal {
    /// As in the variables' names.
    const fn infix(self) -> &'static str {
        match self {
            Self::Traces => "TRACES",
            Self::Metrics => "METRICS",
            Self::Logs => "LOGS",
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Traces => "traces",
            Self::Metrics => "metrics",
            Self::Logs => "logs",
        }
    }

    const fn http_path(self) -> &'static str {
        match self {
            Self::Traces => "/v1/traces",
            Self::Metrics => "/v1/metrics",
            Self::Logs => "/v1/logs",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Grpc,
    /// `http/protobuf`.
    Http,
}

/// One signal's way to its collector.
#[derive(Clone)]
pub struct Exporter {
    pub protocol: Protocol,
    /// With gRPC the collector's origin; with HTTP the whole URL.
    pub endpoint: Uri,
    /// Sent with every request; the values are secrets.
    pub headers: HeaderMap,
    /// Of one request, connecting included.
    pub timeout: Duration,
    pub gzip: bool,
    pub(crate) tls: Tls,
}

/// What is trusted and shown when the endpoint is https.
#[derive(Default)]
pub(crate) struct Tls {
    /// Empty: the system's.
    pub(crate) authorities: Vec<CertificateDer<'static>>,
    pub(crate) client: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
}

impl Clone for Tls {
    fn clone(&self) -> Self {
        let client = self.client.as_ref().map(|(chain, key)| (chain.clone(), key.clone_key()));
        Self { authorities: self.authorities.clone(), client }
    }
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<_> = self.headers.keys().collect();
        f.debug_struct("Exporter")
            .field("protocol", &self.protocol)
            .field("endpoint", &self.endpoint)
            .field("headers", &headers)
            .field("timeout", &self.timeout)
            .field("gzip", &self.gzip)
            .finish_non_exhaustive()
    }
}

/// The signal's own variable, else the general one.
struct Lookup<'a> {
    variables: &'a Variables<'a>,
    signal: Signal,
}

impl Lookup<'_> {
    fn own(&self, name: &str) -> Result<Option<Value>, SettingsError> {
        self.variables.get(&format!("OTEL_EXPORTER_OTLP_{}_{name}", self.signal.infix()))
    }

    fn general(&self, name: &str) -> Result<Option<Value>, SettingsError> {
        self.variables.get(&format!("OTEL_EXPORTER_OTLP_{name}"))
    }

    fn either(&self, name: &str) -> Result<Option<Value>, SettingsError> {
        Ok(self.own(name)?.or(self.general(name)?))
    }
}

impl Exporter {
    /// None: this signal is not exported. That is so unless `OTEL_{SIGNAL}_EXPORTER=otlp` or an endpoint says
    /// otherwise: a proxy in every pod must not call localhost because nobody told it anything. (The
    /// specification's default is `otlp` to localhost.)
    pub(super) fn read(variables: &Variables<'_>, signal: Signal) -> Result<Option<Self>, SettingsError> {
        let lookup = Lookup { variables, signal };
        let own_endpoint = lookup.own("ENDPOINT")?;
        let endpoint = own_endpoint.clone().or(lookup.general("ENDPOINT")?);
        let exporter = variables.get(&format!("OTEL_{}_EXPORTER", signal.infix()))?;
        match exporter.as_ref().map(|value| value.text.as_str()) {
            None if endpoint.is_none() => return Ok(None),
            None | Some("otlp") => {}
            Some("none") => return Ok(None),
            Some(_) => {
                return exporter.map_or(Ok(None), |value| Err(value.invalid("set it to otlp or none")));
            }
        }
        let protocol = protocol(&lookup, endpoint.as_ref())?;
        let endpoint = match endpoint {
            Some(value) => endpoint_of(&lookup, &value, protocol, own_endpoint.is_some())?,
            None => default_endpoint(protocol, signal),
        };
        Ok(Some(Self {
            protocol,
            endpoint,
            headers: headers(&lookup)?,
            timeout: lookup.either("TIMEOUT")?.map_or(Ok(DEFAULT_TIMEOUT), |value| millis(&value))?,
            gzip: gzip(&lookup)?,
            tls: tls(&lookup)?,
        }))
    }
}

/// The specification's default is `http/protobuf`; an endpoint on gRPC's registered port means gRPC.
fn protocol(lookup: &Lookup<'_>, endpoint: Option<&Value>) -> Result<Protocol, SettingsError> {
    let Some(value) = lookup.either("PROTOCOL")? else {
        let port = endpoint.and_then(|value| uri(&value.text).ok()).and_then(|uri| uri.port_u16());
        return Ok(if port == Some(GRPC_PORT) { Protocol::Grpc } else { Protocol::Http });
    };
    match value.text.as_str() {
        "grpc" => Ok(Protocol::Grpc),
        "http/protobuf" => Ok(Protocol::Http),
        "http/json" => Err(value.invalid("JSON is not spoken here: set it to http/protobuf or grpc")),
        _ => Err(value.invalid("set it to grpc or http/protobuf")),
    }
}

fn uri(text: &str) -> Result<Uri, http::uri::InvalidUri> {
    if text.contains("://") { text.parse() } else { format!("https://{text}").parse() }
}

fn default_endpoint(protocol: Protocol, signal: Signal) -> Uri {
    let (port, path) = match protocol {
        Protocol::Grpc => (GRPC_PORT, "/"),
        Protocol::Http => (HTTP_PORT, signal.http_path()),
    };
    Uri::builder()
        .scheme("http")
        .authority(format!("localhost:{port}"))
        .path_and_query(path)
        .build()
        .unwrap_or_default()
}

/// `own`: the signal's own endpoint is used as it stands; to the general one HTTP appends the signal's path.
fn endpoint_of(
    lookup: &Lookup<'_>,
    value: &Value,
    protocol: Protocol,
    own: bool,
) -> Result<Uri, SettingsError> {
    const FIX: &str = "set it to a URL such as http://collector:4318";
    if value.text.contains('@') {
        return Err(value.invalid_secret("take the credentials out and set OTEL_EXPORTER_OTLP_HEADERS"));
    }
    let mut text = value.text.clone();
    if !text.contains("://") {
        // gRPC endpoints may come without a scheme; then OTEL_EXPORTER_OTLP_INSECURE says which.
        if protocol == Protocol::Http {
            return Err(value.invalid(FIX));
        }
        let own = lookup.variables.flag(&format!("OTEL_EXPORTER_OTLP_{}_INSECURE", lookup.signal.infix()))?;
        let insecure = own.or(lookup.variables.flag("OTEL_EXPORTER_OTLP_INSECURE")?).unwrap_or(false);
        text = format!("{}://{text}", if insecure { "http" } else { "https" });
    }
    let uri: Uri = text.parse().map_err(|_| value.invalid(FIX))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none_or(str::is_empty) {
        return Err(value.invalid(FIX));
    }
    if protocol == Protocol::Grpc || own {
        return Ok(uri);
    }
    let path = uri.path().trim_end_matches('/').to_owned() + lookup.signal.http_path();
    let mut parts = uri.into_parts();
    parts.path_and_query = Some(path.parse().map_err(|_| value.invalid(FIX))?);
    Uri::from_parts(parts).map_err(|_| value.invalid(FIX))
}

fn headers(lookup: &Lookup<'_>) -> Result<HeaderMap, SettingsError> {
    let Some(value) = lookup.either("HEADERS")? else { return Ok(HeaderMap::new()) };
    let invalid = |fix: &str| value.invalid_secret(fix);
    let mut headers = HeaderMap::new();
    for (name, text) in pairs(&value.text).map_err(invalid)? {
        let name = HeaderName::try_from(name).map_err(|_| invalid("use header names that HTTP allows"))?;
        let mut text = HeaderValue::try_from(text).map_err(|_| invalid("use values that HTTP allows"))?;
        text.set_sensitive(true);
        headers.insert(name, text);
    }
    Ok(headers)
}

fn gzip(lookup: &Lookup<'_>) -> Result<bool, SettingsError> {
    let Some(value) = lookup.either("COMPRESSION")? else { return Ok(false) };
    match value.text.as_str() {
        "gzip" => Ok(true),
        "none" => Ok(false),
        _ => Err(value.invalid("set it to gzip or none")),
    }
}

fn tls(lookup: &Lookup<'_>) -> Result<Tls, SettingsError> {
    let certificates = |value: &Value| {
        let read =
            CertificateDer::pem_file_iter(&value.text).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        match read {
            Ok(certificates) if certificates.is_empty() => Err(file(value, "it holds no certificate")),
            Ok(certificates) => Ok(certificates),
            Err(error) => Err(file(value, &error.to_string())),
        }
    };
    let authorities = lookup.either("CERTIFICATE")?.map_or(Ok(Vec::new()), |value| certificates(&value))?;
    let client = match (lookup.either("CLIENT_CERTIFICATE")?, lookup.either("CLIENT_KEY")?) {
        (None, None) => None,
        (Some(chain), Some(key)) => {
            let key_der = PrivateKeyDer::from_pem_file(&key.text);
            Some((certificates(&chain)?, key_der.map_err(|error| file(&key, &error.to_string()))?))
        }
        (Some(alone), None) => return Err(alone.invalid("set OTEL_EXPORTER_OTLP_CLIENT_KEY as well")),
        (None, Some(alone)) => return Err(alone.invalid("set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE as well")),
    };
    Ok(Tls { authorities, client })
}

fn file(value: &Value, cause: &str) -> SettingsError {
    SettingsError::File {
        variable: value.variable.clone(),
        path: value.text.clone(),
        cause: cause.to_owned(),
    }
}
