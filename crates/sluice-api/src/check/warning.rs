//! What is well-formed and most likely not meant: a policy for something that the files do not have.
//!
//! An API server takes such a policy and its status says `TargetNotFound`; so these are warnings.

use crate::policy::{TargetKind, TargetRef};
use crate::{ModelRoute, ReliabilityPolicy};

use super::nearest::nearest;
use super::{Manifests, ObjectName};

impl Manifests {
    /// One line per reference of a policy that leads nowhere within these files, in the order of the policies.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let of_policy = |policy: &ReliabilityPolicy| {
            let namespace = policy.metadata.namespace.clone().unwrap_or_default();
            let object = ObjectName {
                kind: "ReliabilityPolicy".to_owned(),
                namespace: namespace.clone(),
                name: policy.metadata.name.clone().unwrap_or_default(),
            };
            let place = self.places.get(&object).map_or("", String::as_str).to_owned();
            let refs = policy.spec.target_refs.iter().enumerate();
            let nowhere = refs.filter_map(|(index, reference)| {
                let (field, why) = self.leads_nowhere(&namespace, reference)?;
                Some(format!("{place}: {object}: spec.targetRefs[{index}].{field}: {why}"))
            });
            nowhere.collect::<Vec<_>>()
        };
        self.policies.iter().flat_map(of_policy).collect()
    }

    fn leads_nowhere(&self, namespace: &str, reference: &TargetRef) -> Option<(&'static str, String)> {
        if reference.kind != TargetKind::ModelRoute {
            return None;
        }
        let in_namespace = |route: &&ModelRoute| route.metadata.namespace.as_deref() == Some(namespace);
        let routes: Vec<&ModelRoute> = self.routes.iter().filter(in_namespace).collect();
        let name = |route: &&ModelRoute| route.metadata.name.as_deref() == Some(reference.name.as_str());
        let Some(route) = routes.iter().copied().find(|route| name(route)) else {
            // One that is there and broken has a problem of its own.
            let is_it = |object: &&ObjectName| {
                object.kind == "ModelRoute" && object.namespace == namespace && object.name == reference.name
            };
            if self.broken.iter().any(|object| is_it(&object)) {
                return None;
            }
            let known = routes.iter().filter_map(|route| route.metadata.name.as_deref());
            return Some(("name", missing(&format!("ModelRoute {namespace}"), &reference.name, known)));
        };
        let section = reference.section_name.as_deref()?;
        let targets = || route.spec.targets.iter().map(|target| target.name.as_str());
        if targets().any(|target| target == section) {
            return None;
        }
        Some(("sectionName", missing(&format!("target {}", reference.name), section, targets())))
    }
}

fn missing<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let fix = nearest(name, known)
        .map_or_else(|| "name another, or apply it too".to_owned(), |known| format!("did you mean {known}?"));
    format!("these files have no {what}/{name} — {fix}")
}
