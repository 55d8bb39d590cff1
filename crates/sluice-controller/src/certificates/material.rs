//! Authorities and the serving certificate: what there is, what is due, and how it is made.
//!
//! Why two lives that overlap: an agent trusts the authorities in its mounted ConfigMap, and kubelet brings a new one there
//! with a delay. A new authority is therefore published a day before anything is signed by it, and an old one stays
//! trusted until it ends. [`Material::due`] is pure; a replica that does what is due, again and again, comes to rest.

use std::time::Duration;

use anyhow::Context as _;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use serde::{Deserialize, Serialize};

const DAY: u64 = 24 * 60 * 60;
/// Clocks of other machines may be behind by this many seconds.
const SKEW: u64 = 60 * 60;

/// How long what is made is good for, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lives {
    pub(crate) authority: u64,
    pub(crate) serving: u64,
    /// How long an authority is published before it signs.
    pub(crate) published_before: u64,
}

impl Default for Lives {
    /// A year, 90 days, a day.
    fn default() -> Self {
        Self { authority: 365 * DAY, serving: 90 * DAY, published_before: DAY }
    }
}

impl Lives {
    /// For tests that watch a rotation happen: a day takes a second.
    #[doc(hidden)]
    #[must_use]
    pub fn of_seconds() -> Self {
        let Self { authority, serving, published_before } = Self::default();
        Self {
            authority: authority / DAY,
            serving: serving / DAY,
            published_before: 5 * published_before / DAY,
        }
    }

    /// How often to look for what is due: often enough for the shortest of them.
    pub(crate) fn look(&self) -> Duration {
        Duration::from_secs((self.published_before / 4).clamp(1, 60))
    }
}

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

impl Due {
    /// What has been done, for logs.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Authority => "a new authority is published",
            Self::Serving => "a new serving certificate is used",
            Self::Forget => "an authority has ended and is not trusted any more",
        }
    }
}

impl Material {
    /// What is due, if anything. `names` are the names that it serves under.
    pub(crate) fn due(&self, lives: &Lives, names: &[String], now: u64) -> Option<Due> {
        if self.authorities.iter().any(|authority| authority.ends <= now) {
            return Some(Due::Forget);
        }
        if self.authorities.last().is_none_or(|newest| is_old(newest.made, newest.ends, now)) {
            return Some(Due::Authority);
        }
        let signer = self.position(&self.signer(lives, now)?.name);
        let good = self.serving.as_ref().is_some_and(|serving| {
            names.iter().all(|name| serving.names.contains(name))
                // A newer one: a replica whose clock is ahead has signed already.
                && self.position(&serving.authority) >= signer
                && !is_old(serving.made, serving.ends, now)
        });
        (!good).then_some(Due::Serving)
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.authorities.iter().position(|authority| authority.name == name)
    }

    /// Does what is due.
    ///
    /// # Errors
    /// When keys can't be made.
    pub(crate) fn carry_out(
        &mut self,
        due: Due,
        lives: &Lives,
        names: &[String],
        now: u64,
    ) -> anyhow::Result<()> {
        match due {
            Due::Forget => self.authorities.retain(|authority| now < authority.ends),
            Due::Authority => self.authorities.push(Authority::make(now, lives.authority)?),
            Due::Serving => {
                let signer = self.signer(lives, now).context("there is no authority")?;
                self.serving = Some(signer.sign(&self.all_names(names, now), lives.serving, now)?);
            }
        }
        Ok(())
    }

    /// Ours, and those of a certificate that is still young: two versions of the controller that serve under different
    /// names, side by side during an upgrade, would otherwise sign in turns for ever.
    fn all_names(&self, names: &[String], now: u64) -> Vec<String> {
        let young = self.serving.iter().filter(|serving| !is_old(serving.made, serving.ends, now));
        let others = young.flat_map(|serving| &serving.names).filter(|name| !names.contains(name));
        names.iter().chain(others).cloned().collect()
    }

    /// All authorities, as clients are to trust them.
    pub(crate) fn bundle(&self) -> String {
        self.authorities.iter().map(|authority| authority.certificate.as_str()).collect()
    }

    pub(crate) fn serving(&self) -> Option<&Serving> {
        self.serving.as_ref()
    }

    /// When the serving certificate and the last authority end, in seconds since 1970.
    pub(crate) fn ends(&self) -> (Option<u64>, Option<u64>) {
        (
            self.serving.as_ref().map(|serving| serving.ends),
            self.authorities.last().map(|authority| authority.ends),
        )
    }

    /// The newest that has been published for long enough, or else the oldest.
    fn signer(&self, lives: &Lives, now: u64) -> Option<&Authority> {
        let published =
            self.authorities.iter().rev().find(|authority| authority.made + lives.published_before <= now);
        published.or(self.authorities.first())
    }
}

/// Two thirds of its life are over. What was made this second is never old, however short its life.
fn is_old(made: u64, ends: u64, now: u64) -> bool {
    now > made && now >= made + ends.saturating_sub(made) / 3 * 2
}

impl Authority {
    fn make(now: u64, life: u64) -> anyhow::Result<Self> {
        let key = KeyPair::generate()?;
        let name = format!("Sluice CA {now}");
        let ends = now + life;
        let certificate = params(&name, now, ends)?.self_signed(&key)?.pem();
        Ok(Self { name, certificate, key: key.serialize_pem(), made: now, ends })
    }

    fn sign(&self, names: &[String], life: u64, now: u64) -> anyhow::Result<Serving> {
        // The name and the key are what signing needs of an authority.
        let issuer = Issuer::new(params(&self.name, self.made, self.ends)?, KeyPair::from_pem(&self.key)?);
        let key = KeyPair::generate()?;
        // Never beyond the end of who signs.
        let ends = (now + life).min(self.ends);
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
    use proptest::prelude::*;

    use super::*;

    const START: u64 = 1_800_000_000;

    fn names() -> Vec<String> {
        vec!["sluice-controller.sluice-system.svc".to_owned()]
    }

    /// Does everything that is due.
    fn settle(material: &mut Material, now: u64) -> Vec<Due> {
        let (lives, mut done) = (Lives::default(), Vec::new());
        while let Some(due) = material.due(&lives, &names(), now) {
            material.carry_out(due, &lives, &names(), now).unwrap();
            done.push(due);
            assert!(done.len() < 10, "it does not come to rest: {done:?}");
        }
        done
    }

    /// Whether a client that trusts `bundle` takes the serving certificate.
    fn trusts(bundle: &str, material: &Material, now: u64) -> bool {
        use std::sync::Arc;

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
    }

    #[test]
    fn versions_that_serve_under_other_names_agree_on_all_of_them_until_the_next_renewal() {
        let (lives, mut material) = (Lives::default(), Material::default());
        settle(&mut material, START);
        let other = vec!["elsewhere.svc".to_owned()];
        assert_eq!(material.due(&lives, &other, START), Some(Due::Serving), "another name");
        material.carry_out(Due::Serving, &lives, &other, START).unwrap();
        assert_eq!(material.due(&lives, &other, START), None);
        assert_eq!(material.due(&lives, &names(), START), None, "they would sign in turns");
        assert!(trusts(&material.bundle(), &material, START));
        let later = START + 61 * DAY;
        material.carry_out(Due::Serving, &lives, &other, later).unwrap();
        assert_eq!(material.serving().unwrap().names, other);
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

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// Replicas whose clocks differ, and which are all away for anything from seconds to two years at a time.
        #[test]
        fn replicas_with_other_clocks_come_to_rest_and_serve_what_the_newest_bundle_trusts(
            steps in prop::collection::vec((1_u64..730 * 24, 0_u64..600, 0_u64..600), 1..12),
        ) {
            let (lives, mut material, mut now) = (Lives::default(), Material::default(), START);
            for (hours, ahead, behind) in steps {
                now += hours * 60 * 60;
                let clocks = [now + ahead, now - behind];
                let mut turns = 0;
                while let Some((due, clock)) = clocks
                    .into_iter()
                    .find_map(|clock| Some((material.due(&lives, &names(), clock)?, clock)))
                {
                    material.carry_out(due, &lives, &names(), clock).unwrap();
                    turns += 1;
                    prop_assert!(turns <= 8, "they work in turns");
                }
                prop_assert!(trusts(&material.bundle(), &material, now));
                prop_assert!(material.authorities.len() <= 2);
            }
        }
    }

    #[test]
    fn what_is_stored_is_what_was_made() {
        let mut material = Material::default();
        settle(&mut material, START);
        let stored = serde_json::to_string(&material).unwrap();
        assert!(serde_json::from_str::<Material>(&stored).unwrap() == material);
    }
}
