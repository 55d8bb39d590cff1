//! The only loop of the request path: pick a target, admit, send; on failure the next one, or the same again.
//!
//! Which target comes next is [`Plan`]'s to say, whether it may be asked is the shared state's, what an
//! attempt's end means is `classify`'s. Here they are only carried out.

use std::sync::Arc;
use std::time::Duration;

use http::Response;
use sluice_core::admission::{AdmitAnswer, AdmitAsk, BreakerState};
use sluice_core::balance::{self, Candidate, PassedOver};
use sluice_core::classify::Happening;
use sluice_core::estimate::{self, Reservation};
use sluice_core::policy::Mode;
use sluice_core::refusal::Refusal;
use sluice_state::store::Admission;

use crate::agent::Shared;
use crate::ask::{Ask, quota_tenant};
use crate::attempt::{Attempt, Ended, Failure};
use crate::backend;
use crate::body::Body;
use crate::client_auth::CallersCredential;
use crate::exchange::Exchange;
use crate::grant::Grant;
use crate::plan::{Plan, Step};
use crate::policies::Route;
use crate::reply;
use crate::spans::SharedSpan;
use crate::targets::Target;
use crate::transitions;
use crate::unserved::Unserved;
use crate::upstream::CredentialHeader;

/// A record of an admission outlives its exchange by this much.
const RECORD_GRACE: Duration = Duration::from_mins(1);

/// Serves an exchange from the first target that can, or says why none could.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    exchange: Arc<Exchange>,
    ask: Arc<Ask>,
) -> Result<Response<Body>, Box<Refusal>> {
    let served = tokio::select! {
        biased;
        served = run_or_degrade(&shared, &exchange, &ask) => served,
        () = shared.drain.ended() => return Err(Box::new(reply::draining(&exchange, shared.clock.now()))),
    };
    served.or_else(|unserved| reply::unserved(&exchange, &ask, unserved, shared.clock.now()))
}

/// The targets, then the route's other backend, where it has one.
async fn run_or_degrade(
    shared: &Arc<Shared>,
    exchange: &Exchange,
    ask: &Ask,
) -> Result<Response<Body>, Unserved> {
    let unserved = match run(shared, exchange, &exchange.route, ask).await {
        Ok(response) => return Ok(response),
        Err(unserved) => unserved,
    };
    exchange.spans.unserved(unserved.attempts);
    if !unserved.may_degrade() {
        return Err(unserved);
    }
    // Boxed: few exchanges need the room.
    Box::pin(backend::answer(shared, exchange, ask)).await.ok_or(unserved)
}

async fn run(
    shared: &Arc<Shared>,
    exchange: &Exchange,
    route: &Route,
    ask: &Ask,
) -> Result<Response<Body>, Unserved> {
    let mut run = Run::new(shared, exchange, route, ask);
    let mut plan = run.plan();
    loop {
        let now = shared.clock.now();
        let remaining = exchange.deadline.remaining(now);
        if remaining.is_zero() {
            run.unserved.out_of_time = true;
            break;
        }
        let budget = |place: usize| route.targets[place].live.brakes.lock().try_retry(now);
        let (place, again) = match plan.next(remaining, shared.random.draw(), budget) {
            Step::Try(place) => (place, false),
            Step::Retry { target, wait } => {
                shared.clock.sleep_until(now.saturating_add(wait)).await;
                (target, true)
            }
            Step::Stop => break,
        };
        let target = &route.targets[place];
        let grant = match run.admit(target, again).await {
            Ok(grant) => grant,
            Err((why, when)) => {
                run.pass_over(place, why, when);
                continue;
            }
        };
        plan.attempted();
        run.unserved.attempts = plan.attempts();
        let moved = run.note_attempt(place, again);
        let attempt = Attempt { shared, exchange, ask, target, moved };
        match attempt.run(grant).await {
            Ended::Answer(response) => {
                run.note_answer(place);
                return Ok(response);
            }
            Ended::Failed(failure) => {
                plan.failed(place, &failure.classified, failure.wait);
                run.note_failure(place, failure);
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
    /// The target that would have served, had it been able to.
    first_choice: Option<usize>,
    /// The target of the first attempt.
    first_asked: Option<usize>,
    /// Targets that were passed over or failed since the last attempt.
    behind: Vec<usize>,
}

impl<'a> Run<'a> {
    fn new(shared: &'a Arc<Shared>, exchange: &'a Exchange, route: &'a Route, ask: &'a Ask) -> Self {
        Self {
            shared,
            exchange,
            route,
            ask,
            unserved: Unserved::default(),
            first_choice: None,
            first_asked: None,
            behind: Vec::new(),
        }
    }

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
                closed: self.is_without_credential(target).then_some(PassedOver::NoCredential),
            })
            .collect();
        let allowed = self.route.policy.target_header == sluice_core::policy::TargetHeader::Allow;
        let named = self.ask.named_target.as_deref().filter(|_| allowed);
        let order = balance::order(&candidates, named, self.shared.random.draw());
        let closed = order.passed_over.iter().filter(|(_, why)| *why != PassedOver::NotNamed);
        let considered = order.ask.first().into_iter().chain(closed.clone().map(|(place, _)| place));
        self.first_choice = considered.copied().min_by_key(|place| targets[*place].policy.priority);
        for (place, why) in closed {
            self.pass_over(*place, *why, None);
        }
        let first = order.ask.first().map(|place| &targets[*place].policy.rules.retries);
        let may_retry = self.ask.sdk_retries == 0 && first.is_some_and(|group| group.mode == Mode::Enforce);
        let rules = first.map(|group| group.rules.clone()).unwrap_or_default();
        Plan::new(order.ask, rules, may_retry)
    }

    fn is_without_credential(&self, target: &Target) -> bool {
        match target.credential {
            CredentialHeader::Missing => true,
            CredentialHeader::Theirs => self.ask.callers_credential == CallersCredential::Spent,
            CredentialHeader::Ours(..) | CredentialHeader::Nobodys => false,
        }
    }

    /// ONE round trip to the shared state: breaker permit and token reservation, both or neither.
    async fn admit(
        &mut self,
        target: &Arc<Target>,
        again: bool,
    ) -> Result<Grant, (PassedOver, Option<Duration>)> {
        let now = self.shared.clock.now();
        let reservation = self.reservation(target)?;
        if !again && !self.throttle_admits(target, now) {
            return Err((PassedOver::Throttled, target.live.brakes.lock().expected_wait(now)));
        }
        let Some(slot) = target.take_slot(self.shared.clock) else {
            return Err((PassedOver::LimiterFull, target.live.slot_expected()));
        };
        let deadlines = &target.policy.rules.deadlines.rules;
        let remaining = self.exchange.deadline.remaining(now).min(deadlines.total);
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
        target.metrics.answered(reply.answer, reservation.total());
        if let Some(took) = admission.took {
            self.shared.metrics.store_duration.observe(took.as_secs_f64());
        }
        if let Some(observed) = reply.observed {
            target.metrics.observed(observed.as_str());
        }
        target.live.see(reply);
        match passed_over(reply.answer) {
            None => {
                let span = self.exchange.spans.attempt(target, self.ask, self.unserved.attempts, reply);
                self.note_transition(target, &admission, &span);
                let grant = Grant::new(self.shared, target, slot, &admission, self.ask, tenant, reservation);
                Ok(grant.within(span))
            }
            Some(why) => {
                self.note_transition(target, &admission, self.exchange.spans.without_attempt());
                self.exchange.spans.declined(target, why, reply);
                Err((why, Some(reply.retry_after.max(open_for(reply)))))
            }
        }
    }

    /// The admission itself may make a transition: the first probe opens the breaker half.
    fn note_transition(&self, target: &Target, admission: &Admission, span: &SharedSpan) {
        if let Some(transition) = &admission.reply.transition {
            transitions::caused(&self.shared.told, target, admission.home, span, transition);
        }
    }

    /// Adaptive throttling, where the policy has it.
    fn throttle_admits(&self, target: &Target, now: Duration) -> bool {
        let admits = target.live.brakes.lock().admit(now, self.shared.random.draw());
        let observed = target.policy.rules.retries.mode == Mode::Observe;
        if !admits && observed {
            target.metrics.observed("throttled");
        }
        admits || observed
    }

    fn reservation(&mut self, target: &Target) -> Result<Reservation, (PassedOver, Option<Duration>)> {
        let input = if self.ask.operation.charges() {
            estimate::input_tokens(&self.ask.facts, *target.live.ratio.lock())
        } else {
            0
        };
        let quota = target.policy.rules.quota.as_ref();
        let enforced = quota.filter(|quota| quota.mode == Mode::Enforce);
        let max_output = self.ask.facts.max_output.total();
        let generates = self.ask.operation.generates();
        estimate::reservation(input, max_output, generates, enforced.map(|quota| &quota.rules)).map_err(
            |never_fits| {
                self.unserved.never_fits.get_or_insert(never_fits);
                (PassedOver::NeverFits, None)
            },
        )
    }

    fn pass_over(&mut self, place: usize, why: PassedOver, again: Option<Duration>) {
        self.route.targets[place].metrics.passed_over(why);
        self.exchange.spans.passed_over(&self.route.targets[place], why);
        self.behind.push(place);
        self.unserved.passed_over.push((self.route.targets[place].clone(), why, again));
    }

    /// Whether the attempt goes to another provider than the first one did.
    fn note_attempt(&mut self, place: usize, again: bool) -> bool {
        let targets = &self.route.targets;
        let target = &targets[place];
        target.metrics.attempts.inc();
        if again {
            target.metrics.retries.inc();
        } else {
            target.live.brakes.lock().first_attempt(self.shared.clock.now());
        }
        for behind in self.behind.drain(..).filter(|behind| *behind != place) {
            targets[behind].metrics.failovers.inc();
        }
        let first = &targets[*self.first_asked.get_or_insert(place)].policy;
        (&first.endpoint, first.provider) != (&target.policy.endpoint, target.policy.provider)
    }

    fn note_answer(&self, place: usize) {
        let target = &self.route.targets[place];
        target.live.brakes.lock().accepted(self.shared.clock.now());
        target.live.credential_fault(None);
        let failed_over = self.first_choice != Some(place);
        if failed_over {
            self.shared.metrics.failed_over.inc();
        }
        self.exchange.spans.served(target, self.unserved.attempts, failed_over);
    }

    fn note_failure(&mut self, place: usize, failure: Failure) {
        let target = &self.route.targets[place];
        let classified = &failure.classified;
        tracing::debug!(
            target_name = %target.metrics.name,
            reason = classified.reason,
            "an attempt failed before anything of it reached the client"
        );
        let callers_own =
            matches!(failure.happening, Happening::Status(_)) && !classified.retry && !classified.failover;
        let mut brakes = target.live.brakes.lock();
        match (classified.retry, callers_own) {
            (true, _) => brakes.failed(),
            (false, true) => brakes.accepted(self.shared.clock.now()),
            (false, false) => {}
        }
        drop(brakes);
        if let Some(fault) = classified.credential {
            target.metrics.credential_fault(fault);
            target.live.credential_fault(Some(fault));
        }
        self.behind.push(place);
        self.unserved.failed(target, failure);
    }
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
