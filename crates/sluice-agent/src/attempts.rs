//! The only loop of the request path: pick a target, admit, send; on failure the next one, or the same again.
//!
//! Which target comes next is [`Plan`]'s to say, whether it may be asked is the shared state's, what an
//! attempt's end means is `classify`'s. Here they are only carried out.

use std::sync::Arc;
use std::time::Duration;

use http::Response;
use sluice_core::admission::{AdmitAnswer, AdmitAsk, BreakerState};
use sluice_core::balance::{self, Candidate, PassedOver};
use sluice_core::classify::{Classified, Happening};
use sluice_core::estimate::{self, NeverFits, Reservation};
use sluice_core::refusal::Refusal;

use crate::agent::Shared;
use crate::ask::{Ask, quota_tenant};
use crate::attempt::{Attempt, Ended, Failure};
use crate::body::Body;
use crate::exchange::Exchange;
use crate::grant::Grant;
use crate::plan::{Plan, Step};
use crate::policies::Route;
use crate::reply;
use crate::targets::Target;
use crate::upstream::CredentialHeader;

/// A record of an admission outlives its exchange by this much.
const RECORD_GRACE: Duration = Duration::from_secs(60);

/// Why nothing was served.
pub(crate) struct Unserved {
    /// Every target that was not asked, and when asking again may help.
    pub(crate) passed_over: Vec<(Arc<Target>, PassedOver, Option<Duration>)>,
    pub(crate) never_fits: Option<NeverFits>,
    /// The last attempt that failed, if one was made.
    pub(crate) failed: Option<(Arc<Target>, Happening, Classified)>,
    /// What the provider said then.
    pub(crate) answer: Option<Response<Body>>,
    pub(crate) attempts: u32,
}

/// Serves an exchange from the first target that can, or says why none could.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    exchange: Arc<Exchange>,
    ask: Arc<Ask>,
) -> Result<Response<Body>, Refusal> {
    match run(&shared, &exchange, &exchange.route, &ask).await {
        Ok(response) => Ok(response),
        Err(unserved) => reply::unserved(&exchange, &ask, unserved, shared.clock.now()),
    }
}

async fn run(
    shared: &Arc<Shared>,
    exchange: &Exchange,
    route: &Route,
    ask: &Ask,
) -> Result<Response<Body>, Unserved> {
    let mut run = Run { shared, exchange, route, ask, unserved: Unserved::none(), first_asked: None };
    let mut plan = run.plan();
    loop {
        let now = shared.clock.now();
        let draw = shared.random.draw();
        let budget = |place: usize| route.targets[place].live.budget.lock().try_retry(now);
        let place = match plan.next(exchange.deadline.remaining(now), draw, budget) {
            Step::Try(place) => place,
            Step::Retry { target, wait } => {
                wait_to_retry(shared, &route.targets[target], wait).await;
                target
            }
            Step::Stop => break,
        };
        let target = &route.targets[place];
        let grant = match run.admit(target).await {
            Ok(grant) => grant,
            Err((why, again)) => {
                run.pass_over(target, why, again);
                continue;
            }
        };
        plan.attempted();
        run.unserved.attempts = plan.attempts();
        let moved = run.note_attempt(place);
        let attempt = Attempt { shared, exchange, ask, target, moved };
        match attempt.run(grant).await {
            Ended::Answer(response) => return Ok(response),
            Ended::Failed(failure) => {
                plan.failed(place, &failure.classified);
                run.note_failure(target, failure);
            }
        }
    }
    Err(run.unserved)
}

struct Run<'a> {
    shared: &'a Arc<Shared>,
    exchange: &'a Exchange,
    route: &'a Route,
    ask: &'a Ask,
    unserved: Unserved,
    /// The target of the first attempt.
    first_asked: Option<usize>,
}

impl Unserved {
    fn none() -> Self {
        Self { passed_over: Vec::new(), never_fits: None, failed: None, answer: None, attempts: 0 }
    }
}

impl<'a> Run<'a> {
    /// The order in which targets are asked. A target whose breaker is known to be open is not even asked.
    fn plan(&mut self) -> Plan {
        let targets = &self.route.targets;
        let candidates: Vec<Candidate<'_>> = targets
            .iter()
            .map(|target| Candidate {
                name: &target.policy.name,
                priority: target.policy.priority,
                weight: target.policy.weight,
                in_flight: target.in_flight(),
                closed: matches!(target.credential, CredentialHeader::Missing)
                    .then_some(PassedOver::NoCredential),
            })
            .collect();
        let allowed = self.route.policy.target_header == sluice_core::policy::TargetHeader::Allow;
        let named = self.ask.named_target.as_deref().filter(|_| allowed);
        let order = balance::order(&candidates, named, self.shared.random.draw());
        for (place, why) in order.passed_over {
            if why != PassedOver::NotNamed {
                self.pass_over(&targets[place], why, None);
            }
        }
        let first = order.ask.first().map(|place| &targets[*place]);
        let rules = first.map(|target| target.policy.rules.retries.rules.clone()).unwrap_or_default();
        Plan::new(order.ask, rules, self.ask.sdk_retries)
    }

    /// ONE round trip to the shared state: breaker permit and token reservation, both or neither.
    async fn admit(&mut self, target: &Arc<Target>) -> Result<Grant, (PassedOver, Option<Duration>)> {
        let reservation = self.reservation(target)?;
        let Some(slot) = target.take_slot() else { return Err((PassedOver::LimiterFull, None)) };
        let deadlines = &target.policy.rules.deadlines.rules;
        let remaining = self.exchange.deadline.remaining(self.shared.clock.now());
        let until_verdict =
            if self.ask.facts.stream { deadlines.first_token.min(remaining) } else { remaining };
        let ask = AdmitAsk {
            nonce: self.shared.random.nonce(),
            tokens: reservation.total(),
            tenant: quota_tenant(&target.policy, &self.exchange.tenant),
            lease: until_verdict + sluice_core::defaults::breaker::PROBE_LEASE_GRACE,
            record_ttl: deadlines.total + RECORD_GRACE,
            draw: self.shared.random.draw(),
            traceparent: self.ask.traceparent.clone(),
        };
        let tenant = ask.tenant.clone();
        let admission = self
            .shared
            .store
            .admit(&target.policy, ask)
            .await
            .map_err(|_| (PassedOver::StoreUnavailable, Some(Duration::from_secs(1))))?;
        let reply = &admission.reply;
        target.metrics.answered(reply.answer, reply.state);
        target.live.see(reply);
        match passed_over(reply.answer) {
            None => Ok(Grant::new(self.shared, target, slot, &admission, self.ask, tenant, reservation)),
            Some(why) => Err((why, Some(reply.retry_after.max(open_for(reply))))),
        }
    }

    fn reservation(&mut self, target: &Target) -> Result<Reservation, (PassedOver, Option<Duration>)> {
        let input = if self.ask.operation.charges() {
            estimate::input_tokens(&self.ask.facts, *target.live.ratio.lock())
        } else {
            0
        };
        let quota = target.policy.rules.quota.as_ref();
        let enforced = quota.filter(|quota| quota.mode == sluice_core::policy::Mode::Enforce);
        let max_output = self.ask.facts.max_output.total();
        let generates = self.ask.operation.generates();
        estimate::reservation(input, max_output, generates, enforced.map(|quota| &quota.rules)).map_err(
            |never_fits| {
                self.unserved.never_fits.get_or_insert(never_fits);
                (PassedOver::NeverFits, None)
            },
        )
    }

    fn pass_over(&mut self, target: &Arc<Target>, why: PassedOver, again: Option<Duration>) {
        target.metrics.failovers.inc();
        self.unserved.passed_over.push((target.clone(), why, again));
    }

    /// Whether the attempt goes to another target than the first one did.
    fn note_attempt(&mut self, place: usize) -> bool {
        let target = &self.route.targets[place];
        target.metrics.attempts.inc();
        target.live.budget.lock().on_first_attempt(self.shared.clock.now());
        *self.first_asked.get_or_insert(place) != place
    }

    fn note_failure(&mut self, target: &Arc<Target>, failure: Failure) {
        tracing::debug!(
            target_name = %target.metrics.name,
            reason = failure.classified.reason,
            "an attempt failed before anything of it reached the client"
        );
        if failure.classified.failover {
            target.metrics.failovers.inc();
        }
        self.unserved.answer = failure.answer;
        self.unserved.failed = Some((target.clone(), failure.happening, failure.classified));
    }
}

async fn wait_to_retry(shared: &Shared, target: &Target, wait: Duration) {
    target.metrics.retries.inc();
    shared.clock.sleep_until(shared.clock.now().saturating_add(wait)).await;
}

fn open_for(reply: &sluice_core::admission::AdmitReply) -> Duration {
    if reply.state == BreakerState::Open { reply.open_for } else { Duration::ZERO }
}

fn passed_over(answer: AdmitAnswer) -> Option<PassedOver> {
    Some(match answer {
        AdmitAnswer::Admitted | AdmitAnswer::Probe => return None,
        AdmitAnswer::Open => PassedOver::Open,
        AdmitAnswer::ProbesBusy => PassedOver::ProbesBusy,
        AdmitAnswer::Ramping => PassedOver::Ramping,
        AdmitAnswer::TokensExhausted => PassedOver::TokensExhausted,
        AdmitAnswer::RequestsExhausted => PassedOver::RequestsExhausted,
        AdmitAnswer::Paused => PassedOver::Paused,
    })
}
