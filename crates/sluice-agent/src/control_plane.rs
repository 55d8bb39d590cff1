//! How the control plane is reached: its address, the authorities that vouch for it, the token that vouches for us.
//!
//! Authorities and token are files, read anew for each connection: kubelet replaces the token every hour, the controller
//! rotates its authority, and the file with the authorities may be younger than the pod. So nothing needs a restart, and
//! a connection that stands is left alone.
//!
//! In plain text (`http://`) an agent can be tried out on one machine; a token goes over loopback only.

use std::error::Error;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::Uri;
use tonic::metadata::AsciiMetadataValue;
use tonic::metadata::errors::InvalidMetadataValue;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};

use crate::trust::{self, FileFault};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a file is looked at while something waits for it to change.
const FILE_POLL: Duration = Duration::from_secs(1);
const MOST_BYTES: usize = 1024 * 1024;

const CA: &str = "SLUICE_CONTROL_PLANE_CA";
const TOKEN: &str = "SLUICE_TOKEN";

/// Where policies come from.
#[derive(Debug, Clone)]
pub struct ControlPlane {
    endpoint: Endpoint,
    authorities: Option<PathBuf>,
    token: Option<PathBuf>,
}

/// Settings that no agent should start with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidControlPlane {
    #[error(
        "SLUICE_CONTROL_PLANE is {url:?}, which is no http or https URL: write https://sluice-controller.sluice-system.svc:8112"
    )]
    Url { url: String },
    #[error(
        "SLUICE_CONTROL_PLANE is {url} and SLUICE_CONTROL_PLANE_CA is not set: name the file with the authorities that sign its certificate"
    )]
    NoAuthorities { url: String },
    #[error(
        "SLUICE_CONTROL_PLANE_CA is set and SLUICE_CONTROL_PLANE is {url}, in plain text: write https://, or leave SLUICE_CONTROL_PLANE_CA out"
    )]
    AuthoritiesInPlainText { url: String },
    #[error(
        "SLUICE_TOKEN is set and SLUICE_CONTROL_PLANE is {url}, in plain text and on another machine, where others can read the token: write https://, or leave SLUICE_TOKEN out"
    )]
    TokenInPlainText { url: String },
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreachable {
    #[error(transparent)]
    File(#[from] FileFault),
    #[error("the control plane does not answer: {}", chain(.0))]
    Connect(#[from] tonic::transport::Error),
    #[error("the control plane does not answer within {} s", CONNECT_TIMEOUT.as_secs())]
    Timeout,
    #[error("the token is none that a header can carry")]
    Token(#[from] InvalidMetadataValue),
}

impl ControlPlane {
    /// A control plane at an http or https URL.
    ///
    /// `authorities`: a PEM file with one or more of them, needed for https; it may not exist yet. `token`: a file whose
    /// content is sent as a bearer token.
    ///
    /// # Errors
    /// [`InvalidControlPlane`] when these would be unsafe, or can't work.
    pub fn new(
        url: &str,
        authorities: Option<PathBuf>,
        token: Option<PathBuf>,
    ) -> Result<Self, InvalidControlPlane> {
        let told = || url.to_owned();
        let uri: Uri = url.parse().map_err(|_| InvalidControlPlane::Url { url: told() })?;
        match (uri.scheme_str(), uri.host()) {
            (Some("https"), Some(_)) if authorities.is_none() => {
                Err(InvalidControlPlane::NoAuthorities { url: told() })
            }
            (Some("http"), Some(_)) if authorities.is_some() => {
                Err(InvalidControlPlane::AuthoritiesInPlainText { url: told() })
            }
            (Some("http"), Some(_)) if token.is_some() && !is_loopback(&uri) => {
                Err(InvalidControlPlane::TokenInPlainText { url: told() })
            }
            (Some("http" | "https"), Some(_)) => Ok(Self { endpoint: uri.into(), authorities, token }),
            _ => Err(InvalidControlPlane::Url { url: told() }),
        }
    }

    /// A connection with what the files say now, and the token for the stream's head.
    pub(crate) async fn connect(&self) -> Result<(Channel, Option<AsciiMetadataValue>), Unreachable> {
        let mut endpoint = self
            .endpoint
            .clone()
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(Duration::from_secs(20))
            .keep_alive_while_idle(true);
        if let Some(path) = &self.authorities {
            let authorities = trust::authorities(CA, path).await?;
            endpoint = endpoint.tls_config(ClientTlsConfig::new().trust_anchors(authorities.roots))?;
        }
        let bearer = match &self.token {
            Some(path) => {
                let token = trust::token(TOKEN, path).await?;
                let mut bearer = AsciiMetadataValue::try_from(format!("Bearer {}", *token))?;
                bearer.set_sensitive(true);
                Some(bearer)
            }
            None => None,
        };
        // The handshakes of TLS and HTTP/2 included.
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, endpoint.connect());
        Ok((connecting.await.map_err(|_| Unreachable::Timeout)??, bearer))
    }

    /// What the files hold now.
    pub(crate) async fn files(&self) -> Files {
        let mut digests = [None, None];
        for (place, path) in [&self.authorities, &self.token].into_iter().enumerate() {
            let Some(path) = path else { continue };
            let content = trust::read("", path, MOST_BYTES).await.ok();
            digests[place] = content.map(|content| trust::digest(&content));
        }
        Files(digests)
    }

    /// Waits until the files hold something else.
    pub(crate) async fn changed(&self, before: &Files) {
        if self.authorities.is_none() && self.token.is_none() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(FILE_POLL).await;
            if self.files().await != *before {
                return;
            }
        }
    }
}

/// As it is, and without a token: for agents beside their control plane in one process.
impl From<Endpoint> for ControlPlane {
    fn from(endpoint: Endpoint) -> Self {
        Self { endpoint, authorities: None, token: None }
    }
}

/// Fingerprints of authorities and token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Files([Option<[u8; 32]>; 2]);

/// `localhost` is this machine by RFC 6761; other names are what a resolver says.
fn is_loopback(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default();
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    match bare.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

/// An error with its causes: the outermost alone says "transport error".
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        // Some wrap a cause and say the same.
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str, ca: bool, token: bool) -> Option<InvalidControlPlane> {
        let path = |given: bool| given.then(|| PathBuf::from("/file"));
        ControlPlane::new(url, path(ca), path(token)).err()
    }

    #[test]
    fn a_token_is_never_sent_where_others_can_read_it() {
        for url in [
            "http://127.0.0.1:8112",
            "http://[::1]:8112",
            "http://localhost:8112",
            "http://[::ffff:127.0.0.1]:1",
        ] {
            assert_eq!(refused(url, false, true), None, "{url}");
        }
        for url in [
            "http://10.0.0.1:8112",
            "http://controller:8112",
            "http://localhost.example:1",
            "http://0.0.0.0:1",
        ] {
            let error = refused(url, false, true).unwrap();
            assert_eq!(error, InvalidControlPlane::TokenInPlainText { url: url.to_owned() });
            for part in ["SLUICE_TOKEN", url, "https://"] {
                assert!(error.to_string().contains(part), "{error}");
            }
            assert_eq!(refused(url, false, false), None, "without a token it may be tried out: {url}");
        }
    }

    #[test]
    fn authorities_belong_to_https_and_to_nothing_else() {
        assert_eq!(refused("https://controller:8112", true, true), None);
        let missing = refused("https://controller:8112", false, true).unwrap();
        assert!(matches!(missing, InvalidControlPlane::NoAuthorities { .. }));
        let unused = refused("http://127.0.0.1:8112", true, false).unwrap();
        assert!(matches!(unused, InvalidControlPlane::AuthoritiesInPlainText { .. }));
        for url in ["", "controller:8112", "ftp://controller", "https://", "unix:/run/x", "/path"] {
            assert!(matches!(refused(url, true, true), Some(InvalidControlPlane::Url { .. })), "{url}");
        }
    }
}
