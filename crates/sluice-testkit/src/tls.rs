//! Certificates for one test, a CA and a certificate for 127.0.0.1 and localhost; and TLS in front of a server that
//! has none.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

#[derive(Clone)]
pub struct TestCertificates {
    pub ca_pem: String,
    pub certificate_pem: String,
    pub key_pem: String,
}

impl TestCertificates {
    /// A CA of its own, and a certificate that it signed.
    ///
    /// # Errors
    /// When keys can't be made.
    pub fn generate() -> Result<Self> {
        Self::until(4096)
    }

    /// The same, out of date: the certificate ended long ago.
    ///
    /// # Errors
    /// When keys can't be made.
    pub fn expired() -> Result<Self> {
        Self::until(2001)
    }

    fn until(year: i32) -> Result<Self> {
        let ca_key = KeyPair::generate()?;
        let mut ca = CertificateParams::new(Vec::new())?;
        // A name of its own: OpenSSL takes a certificate whose issuer is its subject for self-signed.
        ca.distinguished_name.push(DnType::CommonName, "CA of a test");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_certificate = ca.self_signed(&ca_key)?;
        let issuer = Issuer::new(ca, ca_key);
        let key = KeyPair::generate()?;
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let mut certificate = CertificateParams::new(names)?;
        certificate.not_before = rcgen::date_time_ymd(2000, 1, 1);
        certificate.not_after = rcgen::date_time_ymd(year, 1, 1);
        let certificate = certificate.signed_by(&key, &issuer)?;
        Ok(Self {
            ca_pem: ca_certificate.pem(),
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        })
    }
}

/// Takes TLS connections and passes what comes over them to a server on this machine.
pub struct TlsFront {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl TlsFront {
    /// Listens on a free port, for a server on another one. `protocol` is the one that it agrees to in the handshake:
    /// `h2` or `http/1.1`.
    ///
    /// # Errors
    /// When the certificates can't be used, or no port can be had.
    pub async fn start(certificates: &TestCertificates, protocol: &str, server: SocketAddr) -> Result<Self> {
        let chain = vec![CertificateDer::from_pem_slice(certificates.certificate_pem.as_bytes())?];
        let key = PrivateKeyDer::from_pem_slice(certificates.key_pem.as_bytes())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .context("the certificate")?;
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let accepting = tokio::spawn(accept(listener, TlsAcceptor::from(Arc::new(config)), server));
        Ok(Self { address, accepting })
    }

    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }
}

impl Drop for TlsFront {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, server: SocketAddr) {
    while let Ok((socket, _)) = listener.accept().await {
        let tls = tls.clone();
        tokio::spawn(async move {
            // A client that does not trust us, or leaves, is no fault of the front.
            if let Ok(mut client) = tls.accept(socket).await
                && let Ok(mut server) = TcpStream::connect(server).await
            {
                let _ = copy_bidirectional(&mut client, &mut server).await;
            }
        });
    }
}
