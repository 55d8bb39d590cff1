//! The policies in use, joined to the live side of each target. Immutable: an exchange loads them once and
//! keeps them to its end, so an edit never changes the rules of a stream that runs.

use std::sync::Arc;

use sluice_core::defaults::streaming::BODY_BYTES;
use sluice_core::policy::{OtherPaths, RoutePolicy, SecretKey, WireFormat};
use sluice_core::route_match::RouteIndex;
use sluice_proto::apply::PolicySet;

use crate::metrics::Metrics;
use crate::targets::{Target, TargetRegistry};

/// One snapshot.
pub(crate) struct Policies {
    pub(crate) version: Arc<str>,
    pub(crate) routes: Vec<Arc<Route>>,
    index: RouteIndex,
    /// The largest body that any route takes: what is read before the route is known. Without a route the
    /// built-in one, so that the answer is that nothing serves the model, not that the body is too large.
    pub(crate) body_bytes: u64,
}

/// One route with its targets, in the order of the resource.
pub(crate) struct Route {
    pub(crate) policy: Arc<RoutePolicy>,
    /// `namespace/name`, as evidence and metrics write it.
    pub(crate) name: Arc<str>,
    pub(crate) targets: Vec<Arc<Target>>,
}

impl Policies {
    pub(crate) fn empty() -> Self {
        Self { version: "".into(), routes: Vec::new(), index: RouteIndex::default(), body_bytes: BODY_BYTES }
    }

    pub(crate) fn build(set: &PolicySet, registry: &TargetRegistry, metrics: &Metrics) -> Self {
        let index = RouteIndex::new(set.routes.to_vec());
        let routes: Vec<Arc<Route>> =
            index.routes().iter().map(|policy| Arc::new(route(set, policy, registry, metrics))).collect();
        let targets = || routes.iter().flat_map(|route| &route.targets);
        registry.retain(&targets().cloned().collect::<Vec<_>>());
        metrics.retain_routes(&routes.iter().map(|route| &*route.name).collect());
        let body_bytes = targets().map(|target| target.policy.rules.streaming.rules.body_bytes).max();
        Self { version: set.version.clone(), index, routes, body_bytes: body_bytes.unwrap_or(BODY_BYTES) }
    }

    /// The route that serves a model to clients of a format.
    pub(crate) fn route(&self, format: WireFormat, model: &str) -> Option<&Arc<Route>> {
        self.routes.get(self.index.position(format, model)?)
    }

    /// The oldest route of a format that takes paths which Sluice does not know.
    pub(crate) fn for_other_paths(&self, format: WireFormat) -> Option<&Arc<Route>> {
        self.routes.iter().find(|route| {
            route.policy.format == format && route.policy.other_paths == OtherPaths::PassThrough
        })
    }

    /// The models that clients of a format can ask for by name.
    pub(crate) fn models(&self, format: WireFormat) -> Vec<&str> {
        self.index.names(format)
    }
}

fn route(set: &PolicySet, policy: &Arc<RoutePolicy>, registry: &TargetRegistry, metrics: &Metrics) -> Route {
    let name: Arc<str> = format!("{}/{}", policy.namespace, policy.name).into();
    let targets = policy
        .targets
        .iter()
        .map(|target| {
            let target = Arc::new(target.clone());
            let secret = |key: &SecretKey| set.secret(key).cloned();
            Arc::new(registry.target(metrics, &name, target, &policy.models, secret))
        })
        .collect();
    Route { policy: policy.clone(), name, targets }
}
