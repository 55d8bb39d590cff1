//! What keeps an exchange from adding to a target's trouble: core's four brakes, per agent and target.
//!
//! The budget is always there; gRPC's retry throttling and SRE's adaptive throttling where the policy switches
//! them on. Backoff, the fourth, is [`plan`](crate::plan)'s.

use std::time::Duration;

use sluice_core::admission::Draw;
use sluice_core::defaults::retries as d;
use sluice_core::policy::{Retries, Throttling};
use sluice_core::retry::{AdaptiveThrottle, Budget, RetryThrottle};

pub(crate) struct Brakes {
    budget: Budget,
    throttle: Option<(Throttling, RetryThrottle)>,
    /// With the K that it was made for.
    adaptive: Option<(u32, AdaptiveThrottle)>,
}

impl Brakes {
    pub(crate) fn new(rules: &Retries) -> Self {
        let budget = Budget::new(rules.budget_percent, d::BUDGET_MINIMUM, d::BUDGET_WINDOW);
        let mut brakes = Self { budget, throttle: None, adaptive: None };
        brakes.configure(rules);
        brakes
    }

    /// Takes over another policy's settings; what was counted under equal settings stays.
    pub(crate) fn configure(&mut self, rules: &Retries) {
        self.budget.set_percent(rules.budget_percent);
        if self.throttle.map(|(of, _)| of) != rules.throttling {
            self.throttle = rules.throttling.map(|of| (of, RetryThrottle::new(of)));
        }
        if self.adaptive.as_ref().map(|(k, _)| *k) != rules.adaptive_k_percent {
            self.adaptive = rules.adaptive_k_percent.map(|k| (k, AdaptiveThrottle::new(k)));
        }
    }

    /// Whether a new request may go to the target. Counts it, whatever the answer.
    pub(crate) fn admit(&mut self, now: Duration, draw: Draw) -> bool {
        self.adaptive.as_mut().is_none_or(|(_, adaptive)| adaptive.admits(now, draw))
    }

    /// When another request can be expected to be admitted; `None`: the policy throttles none.
    pub(crate) fn expected_wait(&mut self, now: Duration) -> Option<Duration> {
        Some(self.adaptive.as_mut()?.1.expected_wait(now))
    }

    /// An attempt that repeats none at this target is on its way.
    pub(crate) fn first_attempt(&mut self, now: Duration) {
        self.budget.on_first_attempt(now);
    }

    /// Takes one retry, if there is one to take.
    pub(crate) fn try_retry(&mut self, now: Duration) -> bool {
        self.throttle.is_none_or(|(_, throttle)| throttle.allows()) && self.budget.try_retry(now)
    }

    /// The target took the request and did what it could: an answer, or an error of the caller's own.
    pub(crate) fn accepted(&mut self, now: Duration) {
        if let Some((_, adaptive)) = &mut self.adaptive {
            adaptive.on_accept(now);
        }
        if let Some((_, throttle)) = &mut self.throttle {
            throttle.on_success();
        }
    }

    /// A failure that may be retried, whether it is or not.
    pub(crate) fn failed(&mut self) {
        if let Some((_, throttle)) = &mut self.throttle {
            throttle.on_failure();
        }
    }
}
