//! Where the attempts of one exchange go: first every target once, in order; then retries.
//!
//! Going on to the next target is failover: it costs nothing but the bound on attempts. Trying a target again
//! is a retry: it must be worth it (the failure says so, the wait fits, the SDK in front is not retrying
//! already) and the target's retry budget must allow it.

use std::time::Duration;

use sluice_core::admission::Draw;
use sluice_core::classify::Classified;
use sluice_core::policy::Retries;
use sluice_core::retry;

/// What the exchange does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The next target of the order.
    Try(usize),
    /// The same target again, after a wait.
    Retry { target: usize, wait: Duration },
    /// Nothing is left.
    Stop,
}

pub(crate) struct Plan {
    /// Places in the route's targets.
    order: Vec<usize>,
    next: usize,
    attempts: u32,
    retries: u32,
    rules: Retries,
    /// Whether retries are ours: not when the caller's SDK is retrying.
    may_retry: bool,
    /// Targets whose failure allows a retry, with the wait that the provider asked for.
    retryable: Vec<(usize, Option<Duration>)>,
    /// A failure that no other attempt can mend.
    settled: bool,
}

impl Plan {
    pub(crate) fn new(order: Vec<usize>, rules: Retries, sdk_retries: u32) -> Self {
        Self {
            order,
            next: 0,
            attempts: 0,
            retries: 0,
            rules,
            may_retry: sdk_retries == 0,
            retryable: Vec::new(),
            settled: false,
        }
    }

    /// `budget` takes one retry out of a target's budget, if it has one.
    pub(crate) fn next(
        &mut self,
        remaining: Duration,
        draw: Draw,
        mut budget: impl FnMut(usize) -> bool,
    ) -> Step {
        if self.settled || self.attempts >= self.rules.max_attempts {
            return Step::Stop;
        }
        if let Some(target) = self.order.get(self.next) {
            self.next += 1;
            return Step::Try(*target);
        }
        if !self.may_retry {
            return Step::Stop;
        }
        while !self.retryable.is_empty() {
            let (target, asked) = self.retryable.remove(0);
            let Retries { backoff_base, backoff_max, .. } = self.rules;
            let wait = retry::backoff(backoff_base, backoff_max, self.retries, asked, draw);
            if wait < remaining && wait <= self.rules.retry_after_max && budget(target) {
                self.retries += 1;
                return Step::Retry { target, wait };
            }
        }
        Step::Stop
    }

    /// An attempt is on its way.
    pub(crate) fn attempted(&mut self) {
        self.attempts += 1;
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// An attempt failed before anything of it reached the client.
    pub(crate) fn failed(&mut self, target: usize, classified: &Classified) {
        if !classified.failover && !classified.retry {
            self.settled = true;
        }
        if !classified.failover {
            // Another target would answer the same.
            self.next = self.order.len();
        }
        if classified.retry {
            self.retryable.push((target, classified.pushback));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_core::outcome::Verdict;

    const FAR: Duration = Duration::from_secs(300);

    fn failure(retry: bool, failover: bool, pushback: Option<Duration>) -> Classified {
        Classified { verdict: Verdict::Failure, retry, failover, pushback, credential: None, reason: "test" }
    }

    fn plan(targets: usize, max_attempts: u32, sdk_retries: u32) -> Plan {
        let rules = Retries { max_attempts, ..Retries::default() };
        Plan::new((0..targets).collect(), rules, sdk_retries)
    }

    fn next(plan: &mut Plan) -> Step {
        plan.next(FAR, Draw::new(0), |_| true)
    }

    #[test]
    fn every_target_comes_before_any_retry() {
        let mut plan = plan(2, 3, 0);
        for target in [0, 1] {
            assert_eq!(next(&mut plan), Step::Try(target));
            plan.attempted();
            plan.failed(target, &failure(true, true, None));
        }
        assert!(matches!(next(&mut plan), Step::Retry { target: 0, .. }));
        plan.attempted();
        assert_eq!(next(&mut plan), Step::Stop, "three attempts are all");
    }

    #[test]
    fn a_target_that_is_passed_over_costs_no_attempt() {
        let mut plan = plan(4, 1, 0);
        for target in 0..4 {
            assert_eq!(next(&mut plan), Step::Try(target));
        }
        assert_eq!(next(&mut plan), Step::Stop);
    }

    #[test]
    fn the_callers_own_error_ends_it() {
        let mut plan = plan(2, 3, 0);
        next(&mut plan);
        plan.attempted();
        plan.failed(0, &failure(false, false, None));
        assert_eq!(next(&mut plan), Step::Stop);
    }

    #[test]
    fn an_sdk_that_retries_gets_failover_but_no_retry() {
        let mut plan = plan(2, 3, 1);
        for target in [0, 1] {
            assert_eq!(next(&mut plan), Step::Try(target));
            plan.attempted();
            plan.failed(target, &failure(true, true, None));
        }
        assert_eq!(next(&mut plan), Step::Stop);
    }

    #[test]
    fn the_latest_retry_after_is_waited_for_if_it_fits() {
        let mut plan = plan(1, 3, 0);
        for (asked_s, expected) in [(1, Some(1)), (20, Some(20)), (61, None)] {
            if plan.attempts() == 0 {
                next(&mut plan);
            }
            plan.attempted();
            plan.failed(0, &failure(true, true, Some(Duration::from_secs(asked_s))));
            plan.attempts = 1;
            match next(&mut plan) {
                Step::Retry { wait, .. } => assert_eq!(Some(wait.as_secs()), expected),
                step => assert!(expected.is_none(), "{step:?}"),
            }
        }
    }

    #[test]
    fn no_budget_no_retry() {
        let mut plan = plan(1, 3, 0);
        next(&mut plan);
        plan.attempted();
        plan.failed(0, &failure(true, true, None));
        assert_eq!(plan.next(FAR, Draw::new(0), |_| false), Step::Stop);
    }
}
