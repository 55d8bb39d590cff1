//! What a controller measures beside what every control plane does: injection and certificates.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use sluice_telemetry::Page;
use sluice_telemetry::names::metric as rows;

use crate::certificates::material::Material;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CertificateLabel {
    certificate: &'static str,
}

#[derive(Debug, Default)]
pub(crate) struct ControllerMetrics {
    injections: Family<OutcomeLabel, Counter>,
    pods_without_agent: Family<ReasonLabel, Gauge>,
    bundles: Family<StateLabel, Gauge>,
    certificates: Family<CertificateLabel, Gauge>,
}

impl ControllerMetrics {
    pub(crate) fn register(&self, page: &mut Page) {
        page.register(&rows::INJECTIONS, self.injections.clone());
        page.register(&rows::PODS_WITHOUT_AGENT, self.pods_without_agent.clone());
        page.register(&rows::AUTHORITY_NAMESPACES, self.bundles.clone());
        page.register(&rows::CERTIFICATE_EXPIRATION, self.certificates.clone());
    }

    /// A pod that is to be made was looked at.
    pub(crate) fn judged(&self, outcome: &'static str) {
        self.injections.get_or_create_owned(&OutcomeLabel { outcome }).inc();
    }

    /// Pods without an agent, by reason; `None`: another replica counts them.
    pub(crate) fn without_agent(&self, counts: Option<&[(&'static str, usize)]>) {
        self.pods_without_agent.clear();
        for (reason, count) in counts.unwrap_or_default() {
            set(&self.pods_without_agent, &ReasonLabel { reason }, *count);
        }
    }

    /// Namespaces whose ConfigMap is as it should be, is not, or can't be written.
    pub(crate) fn bundles(&self, published: usize, behind: usize, unwatched: usize) {
        for (state, count) in [("published", published), ("behind", behind), ("unwatched", unwatched)] {
            set(&self.bundles, &StateLabel { state }, count);
        }
    }

    pub(crate) fn adopted(&self, material: &Material) {
        let (serving, authority) = material.ends();
        for (certificate, ends) in [("serving", serving), ("authority", authority)] {
            let Some(ends) = ends else { continue };
            let family = self.certificates.get_or_create_owned(&CertificateLabel { certificate });
            family.set(i64::try_from(ends).unwrap_or(i64::MAX));
        }
    }
}

fn set<L>(family: &Family<L, Gauge>, label: &L, value: usize)
where
    L: Clone + std::hash::Hash + Eq,
{
    family.get_or_create_owned(label).set(i64::try_from(value).unwrap_or(i64::MAX));
}

#[cfg(test)]
mod tests {
    use sluice_telemetry::Books;

    use super::*;

    #[test]
    fn every_family_fits_its_row_and_every_row_has_a_family() {
        let metrics = ControllerMetrics::default();
        let mut page = Page::new(&Books::new());
        metrics.register(&mut page);
        metrics.judged("injected");
        metrics.without_agent(Some(&[("not-injected", 2)]));
        metrics.bundles(3, 1, 0);
        assert_eq!(page.misfits(rows::CONTROLLER), Vec::<String>::new());
    }
}
