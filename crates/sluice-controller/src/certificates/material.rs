//! Authorities and the serving certificate: what there is, what is due, and how it is made.
//!
//! Why two lives that overlap: an agent trusts the authorities in its mounted ConfigMap, and kubelet brings a new one there
//! with a delay. A new authority is therefore published a day before anything is signed by it, and an old one stays
//! trusted until it ends. [`Material::due`] is pure; a replica that does what is due, again and again, comes to rest.

use anyhow::Context as _;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use serde::{Deserialize, Serialize};

const DAY: u64 = 24 * 60 * 60;
/// How long an authority is good for.
const AUTHORITY_LIFE: u64 = 365 * DAY;
/// How long the serving certificate is good for.
const SERVING_LIFE: u64 = 90 * DAY;
/// How long an authority is published before it signs.
const PUBLISHED_BEFORE: u64 = DAY;
/// Clocks of other machines may be behind by this much.
const SKEW: u64 = 60 * 60;

/// An authority. All times are seconds since 1970.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Authority {
    name: String,
    certificate: String,
    key: String,
    made: u64,
    ends: u64,
}

/// The certificate that this control plane serves with.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Serving {
    authority: String,
    names: Vec<String>,
    pub(crate) certificate: String,
    pub(crate) key: String,
    made: u64,
    ends: u64,
}

/// Everything; the newest authority last.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Material {
    authorities: Vec<Authority>,
    serving: Option<Serving>,
}

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    Authority,
    Serving,
    Forget,
}

impl Material {
    /// What is due, if anything. `names` are the names that it serves under.
    pub(crate) fn due(&self, names: &[String], now: u64) -> Option<Due> {
        if self.authorities.iter().any(|authority| authority.ends <= now) {
            return Some(Due::Forget);
        }
        if self.authorities.last().is_none_or(|newest| is_old(newest.made, newest.ends, now)) {
            return Some(Due::Authority);
        }
        let signer = self.signer(now)?;
        let good = self.serving.as_ref().is_some_and(|serving| {
            serving.names == names
                && serving.authority == signer.name
                && !is_old(serving.made, serving.ends, now)
        });
        (!good).then_some(Due::Serving)
    }

    /// Does what is due.
    ///
    /// # Errors
    /// When keys can't be made.
    pub(crate) fn carry_out(&mut self, due: Due, names: &[String], now: u64) -> anyhow::Result<()> {
        match due {
            Due::Forget => self.authorities.retain(|authority| now < authority.ends),
            Due::Authority => self.authorities.push(Authority::make(now)?),
            Due::Serving => {
                let signer = self.signer(now).context("there is no authority")?;
                self.serving = Some(signer.sign(names, now)?);
            }
        }
        Ok(())
    }

    /// All authorities, as clients are to trust them.
    pub(crate) fn bundle(&self) -> String {
        self.authorities.iter().map(|authority| authority.certificate.as_str()).collect()
    }

    pub(crate) fn serving(&self) -> Option<&Serving> {
        self.serving.as_ref()
    }

    /// The newest that has been published for long enough, or else the oldest.
    fn signer(&self, now: u64) -> Option<&Authority> {
        let published =
            self.authorities.iter().rev().find(|authority| authority.made + PUBLISHED_BEFORE <= now);
        published.or(self.authorities.first())
    }
}

/// Two thirds of its life are over.
fn is_old(made: u64, ends: u64, now: u64) -> bool {
    now >= made + ends.saturating_sub(made) / 3 * 2
}

impl Authority {
    fn make(now: u64) -> anyhow::Result<Self> {
        let key = KeyPair::generate()?;
        let name = format!("Sluice CA {now}");
        let ends = now + AUTHORITY_LIFE;
        let certificate = params(&name, now, ends)?.self_signed(&key)?.pem();
        Ok(Self { name, certificate, key: key.serialize_pem(), made: now, ends })
    }

    fn sign(&self, names: &[String], now: u64) -> anyhow::Result<Serving> {
        // The name and the key are what signing needs of an authority.
        let issuer = Issuer::new(params(&self.name, self.made, self.ends)?, KeyPair::from_pem(&self.key)?);
        let key = KeyPair::generate()?;
        // Never beyond the end of who signs.
        let ends = (now + SERVING_LIFE).min(self.ends);
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = named("sluice-controller");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = (time(now - SKEW)?, time(ends)?);
        let certificate = params.signed_by(&key, &issuer)?.pem();
        Ok(Serving {
            authority: self.name.clone(),
            names: names.to_vec(),
            certificate,
            key: key.serialize_pem(),
            made: now,
            ends,
        })
    }
}

fn params(name: &str, made: u64, ends: u64) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    (params.not_before, params.not_after) = (time(made - SKEW)?, time(ends)?);
    Ok(params)
}

fn named(name: &str) -> DistinguishedName {
    let mut named = DistinguishedName::new();
    named.push(DnType::CommonName, name);
    named
}

fn time(seconds: u64) -> anyhow::Result<time::OffsetDateTime> {
    Ok(time::OffsetDateTime::from_unix_timestamp(i64::try_from(seconds)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_800_000_000;

    fn names() -> Vec<String> {
        vec!["sluice-controller.sluice-system.svc".to_owned()]
    }

    /// Does everything that is due.
    fn settle(material: &mut Material, now: u64) -> Vec<Due> {
        let mut done = Vec::new();
        while let Some(due) = material.due(&names(), now) {
            material.carry_out(due, &names(), now).unwrap();
            done.push(due);
            assert!(done.len() < 10, "it does not come to rest: {done:?}");
        }
        done
    }

    /// Whether a client that trusts `bundle` takes the serving certificate.
    fn trusts(bundle: &str, material: &Material, now: u64) -> bool {
        use std::sync::Arc;
        use std::time::Duration;

        use rustls::client::WebPkiServerVerifier;
        use rustls::client::danger::ServerCertVerifier as _;
        use rustls::pki_types::pem::PemObject as _;
        use rustls::pki_types::{CertificateDer, ServerName, UnixTime};

        let mut roots = rustls::RootCertStore::empty();
        for ca in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
            roots.add(ca.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        let certificate =
            CertificateDer::from_pem_slice(material.serving().unwrap().certificate.as_bytes()).unwrap();
        let name = ServerName::try_from(names()[0].clone()).unwrap();
        let at = UnixTime::since_unix_epoch(Duration::from_secs(now));
        verifier.verify_server_cert(&certificate, &[], &name, &[], at).is_ok()
    }

    #[test]
    fn a_first_start_makes_one_of_each_and_rests() {
        let mut material = Material::default();
        assert_eq!(settle(&mut material, START), [Due::Authority, Due::Serving]);
        assert_eq!(settle(&mut material, START + DAY), []);
        assert!(trusts(&material.bundle(), &material, START + DAY));
        let other = vec!["elsewhere.svc".to_owned()];
        assert_eq!(material.due(&other, START), Some(Due::Serving), "another name");
    }

    #[test]
    fn over_years_every_client_that_is_a_day_behind_trusts_what_is_served() {
        let mut material = Material::default();
        settle(&mut material, START);
        let mut bundles = vec![material.bundle()];
        let (mut authorities, mut servings) = (0, 0);
        for day in 1..1_500 {
            let now = START + day * DAY;
            for due in settle(&mut material, now) {
                authorities += u32::from(due == Due::Authority);
                servings += u32::from(due == Due::Serving);
            }
            let behind = bundles.last().unwrap();
            assert!(trusts(behind, &material, now), "day {day}");
            assert!(trusts(&material.bundle(), &material, now), "day {day}");
            assert!(material.authorities.len() <= 2, "day {day}");
            bundles.push(material.bundle());
        }
        assert!(authorities >= 5, "{authorities}");
        assert!(servings >= 20, "{servings}");
    }

    #[test]
    fn what_is_stored_is_what_was_made() {
        let mut material = Material::default();
        settle(&mut material, START);
        let stored = serde_json::to_string(&material).unwrap();
        assert!(serde_json::from_str::<Material>(&stored).unwrap() == material);
    }
}
