//! Targets of a namespace that share a dependency share one breaker and one quota, so they must agree on them.
//!
//! The older has the word: the younger of two that differ is refused, before it could fight over settings in the
//! shared state.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_core::policy::{RoutePolicy, TargetPolicy};

/// Two targets name one dependency and differ.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "target {target:?} names the dependency {dependency:?} with another {field} than the older {older}: \
     use the same, or another dependency"
)]
pub struct Mismatch {
    pub target: Arc<str>,
    pub dependency: Arc<str>,
    pub field: &'static str,
    /// Route and target.
    pub older: String,
}

/// The dependencies of a namespace, as its oldest targets have them.
#[derive(Debug, Default)]
pub(super) struct Dependencies {
    known: BTreeMap<Arc<str>, (String, TargetPolicy)>,
}

impl Dependencies {
    /// Takes a route's dependencies, all or none. Routes must come from the oldest to the youngest.
    pub(super) fn admit(
        &mut self,
        route: &RoutePolicy,
        dependencies: &[Option<Arc<str>>],
    ) -> Result<(), Mismatch> {
        let mut with_route = self.known.clone();
        for (target, dependency) in route.targets.iter().zip(dependencies) {
            let Some(dependency) = dependency else { continue };
            let owner = || (format!("{}/{}", route.name, target.name), target.clone());
            let (older, known) = with_route.entry(Arc::clone(dependency)).or_insert_with(owner);
            if let Some(field) = difference(known, target) {
                return Err(Mismatch {
                    target: Arc::clone(&target.name),
                    dependency: Arc::clone(dependency),
                    field,
                    older: older.clone(),
                });
            }
        }
        self.known = with_route;
        Ok(())
    }
}

/// The first thing that two targets of one dependency disagree on. Where a group came from is no difference.
fn difference(one: &TargetPolicy, other: &TargetPolicy) -> Option<&'static str> {
    let breaker = |target: &TargetPolicy| (target.rules.breaker.rules.clone(), target.rules.breaker.mode);
    let quota =
        |target: &TargetPolicy| target.rules.quota.as_ref().map(|quota| (quota.rules.clone(), quota.mode));
    [
        ("provider", one.provider == other.provider),
        ("endpoint", one.endpoint == other.endpoint),
        ("model", one.model == other.model),
        ("credential", one.credential == other.credential),
        ("breaker", breaker(one) == breaker(other)),
        ("quota", quota(one) == quota(other)),
    ]
    .into_iter()
    .find_map(|(field, equal)| (!equal).then_some(field))
}
