//! TLS on the side of clients, for a gateway. The files are read again every few seconds; a new certificate is used by
//! the next handshake, and connections that stand are left alone.
//!
//! Certificate and key are two files, which whoever writes them may swap one after the other: a pair that does not match,
//! or cannot be read, leaves the one in use.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

use crate::trust::{self, FileFault, digest};

const RELOAD_EVERY: Duration = Duration::from_secs(2);
const MOST_BYTES: usize = 1024 * 1024;

const CERTIFICATE: &str = "SLUICE_TLS_CERT";
const KEY: &str = "SLUICE_TLS_KEY";

/// PEM files: a chain with the server's own certificate first, and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Why the files cannot be served with.
#[derive(Debug, thiserror::Error)]
enum InvalidPair {
    #[error(transparent)]
    File(#[from] FileFault),
    #[error("{KEY} {path} has no key: put one in it, in PEM", path = path.display())]
    NoKey { path: PathBuf },
    #[error("{CERTIFICATE} and {KEY} do not go together: {0}")]
    Unfit(rustls::Error),
    #[error("TLS cannot be set up: {0}")]
    Setup(rustls::Error),
}

/// The certificate in use.
pub struct ListenerTls {
    files: TlsFiles,
    pair: Arc<Pair>,
    /// Of the files as they were at the start.
    digest: [u8; 32],
    acceptor: TlsAcceptor,
}

#[derive(Debug)]
struct Pair(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for Pair {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

impl ListenerTls {
    /// What the files hold now; what they hold later once the agent serves.
    ///
    /// # Errors
    /// When a file cannot be read, or the two do not go together.
    pub async fn load(files: TlsFiles) -> anyhow::Result<Self> {
        let (pair, digest) = read(&files).await?;
        let pair = Arc::new(Pair(ArcSwap::from_pointee(pair)));
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(InvalidPair::Setup)?
            .with_no_client_auth()
            .with_cert_resolver(pair.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { files, pair, digest, acceptor: TlsAcceptor::from(Arc::new(config)) })
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.clone()
    }

    /// Reads the files again and again.
    pub(crate) async fn follow(self: Arc<Self>) {
        let (mut used, mut told) = (self.digest, None);
        loop {
            tokio::time::sleep(RELOAD_EVERY).await;
            let failure = match read(&self.files).await {
                Ok((pair, digest)) => {
                    if used != digest {
                        tracing::info!("a new certificate is in use");
                        self.pair.0.store(Arc::new(pair));
                        used = digest;
                    }
                    None
                }
                Err(error) => Some(error.to_string()),
            };
            if let Some(error) = failure.as_ref().filter(|_| failure != told) {
                tracing::error!(error, "the certificate in use stays");
            }
            told = failure;
        }
    }
}

/// The pair, and what tells it from another.
async fn read(files: &TlsFiles) -> Result<(CertifiedKey, [u8; 32]), InvalidPair> {
    let certificate = trust::read(CERTIFICATE, &files.certificate, MOST_BYTES).await?;
    let key = trust::read(KEY, &files.key, MOST_BYTES).await?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&certificate).filter_map(Result::ok).collect();
    if chain.is_empty() {
        let path = files.certificate.clone();
        return Err(FileFault::NoCertificate { variable: CERTIFICATE, path }.into());
    }
    let parsed =
        PrivateKeyDer::from_pem_slice(&key).map_err(|_| InvalidPair::NoKey { path: files.key.clone() })?;
    let pair = CertifiedKey::from_der(chain, parsed, &default_provider()).map_err(InvalidPair::Unfit)?;
    Ok((pair, digest(&[digest(&certificate), digest(&key)].concat())))
}
