//! What an older agent does not know, and how it is kept from it.
//!
//! Why features and not versions: agents are built from branches and upgraded one by one, so a number says
//! little of what one can do. Protobuf drops fields that a reader does not know, silently; a policy that
//! is silently weaker than its author wrote is the fault that features prevent: what an agent does not name is
//! taken out *and reported*, in the snapshot to the agent and in the status of the resource to its author.
//!
//! Everything in the first `policy.proto` that no variant here names is known to every agent. A new field or
//! a new `oneof` member arrives together with a variant here.

use std::collections::BTreeSet;

use sluice_core::policy::{Concurrency, Degraded, RoutePolicy};

/// Something an agent may or may not be able to carry out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Feature {
    /// `concurrency.aimd`; withheld: a fixed limit of its initial value.
    ConcurrencyAimd,
    /// `degraded.static`; withheld: an honest error.
    DegradedStatic,
    /// `degraded.backend`; withheld: an honest error.
    DegradedBackend,
    /// `breaker.slow.relativePercent`; withheld: the absolute thresholds alone.
    SlowRelative,
    /// `retries.throttling`; withheld: the budget alone.
    RetryThrottling,
    /// `retries.adaptive`; withheld: the budget alone.
    AdaptiveThrottling,
    /// `streaming.tracePropagation`; withheld: providers are told no trace.
    TracePropagation,
    /// Secrets that the control plane can't read now and agents keep; withheld: they are withdrawn. No part of a route:
    /// who puts a set of secrets together withholds it.
    HeldSecrets,
}

/// What agents of this build carry out: they name exactly this in their hello.
pub const SUPPORTED: &[Feature] = &Feature::ALL;

impl Feature {
    pub const ALL: [Self; 8] = [
        Self::ConcurrencyAimd,
        Self::DegradedStatic,
        Self::DegradedBackend,
        Self::SlowRelative,
        Self::RetryThrottling,
        Self::AdaptiveThrottling,
        Self::TracePropagation,
        Self::HeldSecrets,
    ];

    /// The name on the wire and in conditions.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ConcurrencyAimd => "concurrency-aimd",
            Self::DegradedStatic => "degraded-static",
            Self::DegradedBackend => "degraded-backend",
            Self::SlowRelative => "slow-relative",
            Self::RetryThrottling => "retry-throttling",
            Self::AdaptiveThrottling => "adaptive-throttling",
            Self::TracePropagation => "trace-propagation",
            Self::HeldSecrets => "held-secrets",
        }
    }

    /// `None` for a name that this build does not know: an agent may be newer than its control plane.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|feature| feature.as_str() == name)
    }

    /// Takes the feature out of a route. Whether it was there.
    fn withhold(self, route: &mut RoutePolicy) -> bool {
        match self {
            Self::DegradedStatic => replace_degraded(route, |d| matches!(d, Degraded::Static { .. })),
            Self::DegradedBackend => replace_degraded(route, |d| matches!(d, Degraded::Backend { .. })),
            Self::ConcurrencyAimd => in_any_target(route, |rules| {
                let Concurrency::Aimd(aimd) = &rules.concurrency.rules else { return false };
                // The built-in limit is no wish of the author: nothing to report.
                let asked_for = rules.concurrency.source.is_some();
                rules.concurrency.rules = Concurrency::Fixed { limit: aimd.initial };
                asked_for
            }),
            Self::SlowRelative => {
                in_any_target(route, |rules| rules.breaker.rules.slow.relative_percent.take().is_some())
            }
            Self::RetryThrottling => {
                in_any_target(route, |rules| rules.retries.rules.throttling.take().is_some())
            }
            Self::AdaptiveThrottling => {
                in_any_target(route, |rules| rules.retries.rules.adaptive_k_percent.take().is_some())
            }
            Self::TracePropagation => {
                in_any_target(route, |rules| std::mem::take(&mut rules.streaming.rules.propagate_trace))
            }
            Self::HeldSecrets => false,
        }
    }
}

/// Takes everything out of a route that an agent with these features does not know, and says what it was.
pub fn withhold(route: &mut RoutePolicy, known: &BTreeSet<Feature>) -> Vec<Feature> {
    Feature::ALL
        .into_iter()
        .filter(|feature| !known.contains(feature))
        .filter(|feature| feature.withhold(route))
        .collect()
}

fn replace_degraded(route: &mut RoutePolicy, is: fn(&Degraded) -> bool) -> bool {
    let found = is(&route.degraded);
    if found {
        route.degraded = Degraded::Reject;
    }
    found
}

/// Goes through all targets, whether or not an earlier one had the feature.
fn in_any_target(
    route: &mut RoutePolicy,
    mut take: impl FnMut(&mut sluice_core::policy::Rules) -> bool,
) -> bool {
    route.targets.iter_mut().fold(false, |found, target| take(&mut target.rules) | found)
}
