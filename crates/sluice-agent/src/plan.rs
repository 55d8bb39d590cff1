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

/// A pause begins for everyone when its settlement arrives, a little after the answer that asked for it: who
/// comes back with the answer's own time meets its last milliseconds.
const SETTLE_LAG: Duration = Duration::from_millis(50);

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
    may_retry: bool,
    /// Targets whose failure allows a retry, with the wait that the provider asked for.
    retryable: Vec<(usize, Option<Duration>)>,
    /// A failure that no other attempt can mend.
    settled: bool,
}

impl Plan {
    /// `may_retry`: not when the caller's SDK is retrying, or the policy only observes.
    pub(crate) fn new(order: Vec<usize>, rules: Retries, may_retry: bool) -> Self {
        Self {
            order,
            next: 0,
            attempts: 0,
            retries: 0,
            rules,
            may_retry,
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
        while let Some((target, asked)) = self.soonest() {
            let Retries { backoff_base, backoff_max, retry_after_max, .. } = self.rules;
            let pushback = asked.map(|asked| asked.saturating_add(SETTLE_LAG));
            let wait = retry::backoff(backoff_base, backoff_max, self.retries, pushback, draw);
            let fits = wait < remaining && asked.is_none_or(|asked| asked <= retry_after_max);
            if fits && budget(target) {
                self.retries += 1;
                return Step::Retry { target, wait };
            }
        }
        Step::Stop
    }

    /// The target that may be asked again first; of equals the one that failed first.
    fn soonest(&mut self) -> Option<(usize, Option<Duration>)> {
        let (place, _) = self.retryable.iter().enumerate().min_by_key(|(_, (_, asked))| *asked)?;
        Some(self.retryable.remove(place))
    }

    /// An attempt is on its way.
    pub(crate) fn attempted(&mut self) {
        self.attempts += 1;
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// An attempt failed before anything of it reached the client; `wait`: before which the target is not to
    /// be asked again.
    pub(crate) fn failed(&mut self, target: usize, classified: &Classified, wait: Option<Duration>) {
        if !classified.failover && !classified.retry {
            self.settled = true;
        }
        if !classified.failover {
            // Another target would answer the same.
            self.next = self.order.len();
        }
        if classified.retry {
            self.retryable.push((target, wait));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_core::outcome::Verdict;

    const FAR: Duration = Duration::from_mins(5);

    fn failure(retry: bool, failover: bool) -> Classified {
        Classified {
            verdict: Verdict::Failure,
            retry,
            failover,
            pushback: None,
            credential: None,
            reason: "test",
        }
    }

    fn plan(targets: usize, max_attempts: u32, may_retry: bool) -> Plan {
        let rules = Retries { max_attempts, ..Retries::default() };
        Plan::new((0..targets).collect(), rules, may_retry)
    }

    fn next(plan: &mut Plan) -> Step {
        plan.next(FAR, Draw::new(0), |_| true)
    }

    #[test]
    fn every_target_comes_before_any_retry() {
        let mut plan = plan(2, 3, true);
        for target in [0, 1] {
            assert_eq!(next(&mut plan), Step::Try(target));
            plan.attempted();
            plan.failed(target, &failure(true, true), None);
        }
        assert!(matches!(next(&mut plan), Step::Retry { target: 0, .. }));
        plan.attempted();
        assert_eq!(next(&mut plan), Step::Stop, "three attempts are all");
    }

    #[test]
    fn a_target_that_is_passed_over_costs_no_attempt() {
        let mut plan = plan(4, 1, true);
        for target in 0..4 {
            assert_eq!(next(&mut plan), Step::Try(target));
        }
        assert_eq!(next(&mut plan), Step::Stop);
    }

    #[test]
    fn the_callers_own_error_ends_it() {
        let mut plan = plan(2, 3, true);
        next(&mut plan);
        plan.attempted();
        plan.failed(0, &failure(false, false), None);
        assert_eq!(next(&mut plan), Step::Stop);
    }

    #[test]
    fn an_sdk_that_retries_gets_failover_but_no_retry() {
        let mut plan = plan(2, 3, false);
        for target in [0, 1] {
            assert_eq!(next(&mut plan), Step::Try(target));
            plan.attempted();
            plan.failed(target, &failure(true, true), None);
        }
        assert_eq!(next(&mut plan), Step::Stop);
    }

    #[test]
    fn the_latest_retry_after_is_waited_for_if_it_fits() {
        let mut plan = plan(1, 3, true);
        for (asked_s, expected) in [(1, Some(1)), (20, Some(20)), (61, None)] {
            if plan.attempts() == 0 {
                next(&mut plan);
            }
            plan.attempted();
            plan.failed(0, &failure(true, true), Some(Duration::from_secs(asked_s)));
            plan.attempts = 1;
            match next(&mut plan) {
                Step::Retry { wait, .. } => assert_eq!(Some(wait.as_secs()), expected),
                step => assert!(expected.is_none(), "{step:?}"),
            }
        }
    }

    #[test]
    fn of_several_targets_the_soonest_is_asked_again() {
        let mut plan = plan(2, 9, true);
        for (target, asked_s) in [(0, 20), (1, 3)] {
            next(&mut plan);
            plan.failed(target, &failure(true, true), Some(Duration::from_secs(asked_s)));
        }
        assert!(matches!(next(&mut plan), Step::Retry { target: 1, .. }));
        assert!(matches!(next(&mut plan), Step::Retry { target: 0, .. }));
    }

    #[test]
    fn no_budget_no_retry() {
        let mut plan = plan(1, 3, true);
        next(&mut plan);
        plan.attempted();
        plan.failed(0, &failure(true, true), None);
        assert_eq!(plan.next(FAR, Draw::new(0), |_| false), Step::Stop);
    }
}
