//! Certificates for one test: a CA and a certificate for 127.0.0.1 and localhost.

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

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
        let ca_key = KeyPair::generate()?;
        let mut ca = CertificateParams::new(Vec::new())?;
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_certificate = ca.self_signed(&ca_key)?;
        let issuer = Issuer::new(ca, ca_key);
        let key = KeyPair::generate()?;
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let certificate = CertificateParams::new(names)?.signed_by(&key, &issuer)?;
        Ok(Self {
            ca_pem: ca_certificate.pem(),
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        })
    }
}
