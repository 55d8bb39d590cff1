//! Certificates for one test: a CA and a certificate for 127.0.0.1 and localhost.

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

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
