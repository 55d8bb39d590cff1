//! An exchange that no target served: what came of its attempts, and which of them its client is told.
//!
//! Several targets fail for several reasons, and the client gets one answer, which also says whether to come back.
//! The last word is not the best one: a fallback whose account is empty says "never", while the first target will be
//! well in a second. So the most hopeful end is told:
//! 1. one that is the caller's own fault, because it holds whoever serves;
//! 2. one after which coming back soon may help;
//! 3. one after which it may help later than an SDK waits;
//! 4. the rest.
//!
//! Of equals, what a provider said goes before what Sluice would say of it, then the last. A target that was only
//! passed over is told where it is more hopeful than every attempt.

use std::sync::Arc;
use std::time::Duration;

use http::Response;
use sluice_core::balance::PassedOver;
use sluice_core::classify::{Classified, Happening};
use sluice_core::estimate::NeverFits;
use sluice_core::policy::{Credential, TargetPolicy};
use sluice_core::refusal::SDK_PATIENCE;

use crate::attempt::Failure;
use crate::body::Body;
use crate::reply;
use crate::targets::Target;

/// Why nothing was served.
#[derive(Default)]
pub(crate) struct Unserved {
    /// Every target that was not asked, and when asking again may help.
    pub(crate) passed_over: Vec<(Arc<Target>, PassedOver, Option<Duration>)>,
    pub(crate) never_fits: Option<NeverFits>,
    /// The most hopeful of the attempts that failed.
    pub(crate) failed: Option<Failed>,
    /// Every attempt that failed, and how.
    pub(crate) failures: Vec<(Arc<Target>, &'static str)>,
    pub(crate) attempts: u32,
    /// The deadline passed before the next attempt.
    pub(crate) out_of_time: bool,
}

/// An attempt that failed before anything of it reached the client.
pub(crate) struct Failed {
    pub(crate) target: Arc<Target>,
    pub(crate) happening: Happening,
    /// The word for it.
    pub(crate) reason: &'static str,
    /// What the provider said, where it may be passed on.
    pub(crate) answer: Option<Response<Body>>,
    pub(crate) outlook: Outlook,
}

/// What coming back may bring; more is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outlook {
    Never,
    /// Later than an SDK waits.
    Far,
    Soon,
    /// The request itself is at fault: nothing else is to be said of it.
    CallersOwn,
}

impl Unserved {
    /// An attempt failed; at most one answer is kept, since its provider waits.
    pub(crate) fn failed(&mut self, target: &Arc<Target>, failure: Failure) {
        self.failures.push((target.clone(), failure.classified.reason));
        let failed = Failed::new(target.clone(), failure);
        let rank = |failed: &Failed| (failed.outlook, failed.answer.is_some());
        if self.failed.as_ref().is_none_or(|best| rank(&failed) >= rank(best)) {
            self.failed = Some(failed);
        }
    }

    /// Whether the route's answer for bad times is due: not where the request itself is at fault.
    pub(crate) fn may_degrade(&self) -> bool {
        self.failed.as_ref().is_none_or(|failed| failed.outlook != Outlook::CallersOwn)
    }

    /// Whether a target that was not asked is the better one to tell of.
    pub(crate) fn passed_over_is_better(&self) -> bool {
        let Some(failed) = self.failed.as_ref().filter(|_| !self.out_of_time) else {
            return self.failed.is_none();
        };
        let outlooks = self.passed_over.iter().map(|(_, why, again)| Outlook::of_target(*why, *again));
        outlooks.max().is_some_and(|best| best > failed.outlook)
    }
}

impl Failed {
    fn new(target: Arc<Target>, failure: Failure) -> Self {
        let Failure { happening, classified, answer, .. } = failure;
        // The caller has no part in it: its SDK must not say that its own key is wrong.
        let answer = answer.filter(|_| credential_refused(&target.policy, &happening).is_none());
        let outlook = Outlook::of_attempt(&target.policy, &happening, &classified, answer.is_some());
        Self { target, happening, reason: classified.reason, answer, outlook }
    }
}

impl Outlook {
    fn of_attempt(
        target: &TargetPolicy,
        happening: &Happening,
        classified: &Classified,
        answered: bool,
    ) -> Self {
        if !answered {
            let retryable = reply::failed_reason(target, happening).retryable();
            return if retryable { Self::Soon } else { Self::Never };
        }
        match (classified.failover, classified.retry) {
            (false, false) => Self::CallersOwn,
            (true, false) => Self::Never,
            (_, true) => Self::within(classified.pushback),
        }
    }

    fn of_target(why: PassedOver, again: Option<Duration>) -> Self {
        let asked = !matches!(why, PassedOver::NotNamed | PassedOver::Tried);
        if asked && reply::reason_of(why).retryable() { Self::within(again) } else { Self::Never }
    }

    fn within(wait: Option<Duration>) -> Self {
        if wait.is_some_and(|wait| wait > SDK_PATIENCE) { Self::Far } else { Self::Soon }
    }

    /// Whether the SDK in front must not come back by itself with a provider's error.
    pub(crate) fn forbids_retry(classified: &Classified) -> bool {
        let only_another_target_helps = classified.failover && !classified.retry;
        only_another_target_helps || Self::within(classified.pushback) == Self::Far
    }
}

/// The status with which the provider refused what the target sent as its credential, or that it sent none (then a
/// 403 speaks of the request). Never the caller's own credential.
pub(crate) fn credential_refused(target: &TargetPolicy, happening: &Happening) -> Option<u16> {
    let status = match happening {
        Happening::Status(facts) => facts.status,
        Happening::ErrorInSuccess { error, .. } => error.status,
        _ => return None,
    };
    match (&target.credential, status) {
        (Credential::Secret(_), 401 | 403) | (Credential::None, 401) => Some(status),
        _ => None,
    }
}
