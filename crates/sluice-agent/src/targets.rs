//! What the agent knows of a target: its policy, which an edit replaces, and its live side, which outlives
//! edits (slots in flight, what was learned of it, its counters).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use http::HeaderValue;
use parking_lot::Mutex;
use sluice_core::admission::{AdmitReply, BreakerState};
use sluice_core::classify::CredentialFault;
use sluice_core::estimate::Ratio;
use sluice_core::limiter::Limiter;
use sluice_core::policy::{Credential, Mode, ModelPattern, SecretKey, SecretValue, TargetPolicy};
use sluice_core::quantile::DecayingHistogram;
use sluice_core::target_id::TargetId;

use crate::brakes::Brakes;
use crate::clock::Clock;
use crate::metrics::{CallMetrics, Metrics, TargetMetrics};
use crate::spans::TargetAttributes;
use crate::upstream::{CredentialHeader, Origin};

/// What is shown of latency forgets fast, so that a recovery shows.
const SHOWN_HALF_LIFE: Duration = Duration::from_secs(10);

/// One target of one route, as an exchange sees it.
pub(crate) struct Target {
    pub(crate) policy: Arc<TargetPolicy>,
    pub(crate) origin: Option<Origin>,
    pub(crate) credential: CredentialHeader,
    pub(crate) live: Arc<TargetLive>,
    pub(crate) metrics: Arc<TargetMetrics>,
    pub(crate) calls: Arc<CallMetrics>,
    pub(crate) attributes: TargetAttributes,
    /// The target's name, for the answers that it gives.
    pub(crate) served_by: HeaderValue,
}

/// What outlives a policy: shared by all routes of this agent that name the same dependency.
pub(crate) struct TargetLive {
    pub(crate) limiter: Mutex<Limiter>,
    in_flight: AtomicU32,
    pub(crate) brakes: Mutex<Brakes>,
    /// Bytes of text that make a token, as its usage reports show.
    pub(crate) ratio: Mutex<Ratio>,
    /// TTFT of all attempts: what is shown.
    pub(crate) ttft: Mutex<DecayingHistogram>,
    /// TTFT while the breaker is closed: what slow is measured by.
    pub(crate) healthy_ttft: Mutex<DecayingHistogram>,
    /// Whether the last admission found the breaker closed.
    healthy: AtomicBool,
    tokens_left: Mutex<Option<i64>>,
    /// How long slots are held: a moving mean.
    held: Mutex<Option<Duration>>,
    /// What the provider last said against the target's own credential; gone when it takes it.
    credential: Mutex<Option<CredentialFault>>,
}

/// A place in flight to a target; held until the stream ends.
pub(crate) struct Slot {
    live: Arc<TargetLive>,
    metrics: Arc<TargetMetrics>,
    clock: Clock,
    taken: Duration,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let now = self.clock.now();
        let held = now.saturating_sub(self.taken);
        let mut mean = self.live.held.lock();
        *mean = Some(mean.map_or(held, |mean| (mean * 7 + held) / 8));
        drop(mean);
        self.live.in_flight.fetch_sub(1, Ordering::AcqRel);
        self.metrics.in_flight.dec();
    }
}

impl TargetLive {
    /// Latency is scored here, while the slot is held until the stream ends.
    pub(crate) fn first_token(&self, now: Duration, ttft: Duration) {
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        self.limiter.lock().on_first_token(now, ttft, in_flight);
        self.ttft.lock().record(now, ttft);
        if self.healthy.load(Ordering::Relaxed) {
            self.healthy_ttft.lock().record(now, ttft);
        }
    }

    /// No first token came for `waited`.
    pub(crate) fn no_first_token(&self, now: Duration, waited: Duration) {
        self.limiter.lock().on_no_first_token(now, waited);
        // A lower bound: without it a target that answers nobody looks as fast as its last answers. A wait that
        // ended early says nothing.
        let mut ttft = self.ttft.lock();
        if ttft.percentile(now, 50).is_none_or(|median| waited > median) {
            ttft.record(now, waited);
        }
    }

    /// When a slot is expected to be free. By Little's law slots are given back at the rate of `in flight / time
    /// held`. `None`: none has been held yet.
    pub(crate) fn slot_expected(&self) -> Option<Duration> {
        let held = (*self.held.lock())?;
        Some(held / self.in_flight.load(Ordering::Relaxed).max(1))
    }

    /// What an admission told of the target's state.
    pub(crate) fn see(&self, reply: &AdmitReply) {
        self.healthy.store(reply.state == BreakerState::Closed, Ordering::Relaxed);
        if reply.tokens_left.is_some() {
            *self.tokens_left.lock() = reply.tokens_left;
        }
    }

    pub(crate) fn credential_fault(&self, fault: Option<CredentialFault>) {
        *self.credential.lock() = fault;
    }

    pub(crate) fn credential(&self) -> Option<CredentialFault> {
        *self.credential.lock()
    }

    pub(crate) fn tokens_left(&self) -> Option<i64> {
        *self.tokens_left.lock()
    }
}

impl Target {
    /// A place in flight, unless the limit is reached. An observed limit is counted but never refuses.
    pub(crate) fn take_slot(&self, clock: Clock) -> Option<Slot> {
        let limit = self.live.limiter.lock().limit();
        let enforced = self.policy.rules.concurrency.mode == Mode::Enforce;
        let take = |in_flight: u32| (!enforced || in_flight < limit).then_some(in_flight + 1);
        let before = self.live.in_flight.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).ok()?;
        if before >= limit {
            self.metrics.observed("limiter-full");
        }
        self.metrics.in_flight.inc();
        let (live, metrics) = (self.live.clone(), self.metrics.clone());
        Some(Slot { live, metrics, clock, taken: clock.now() })
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.live.in_flight.load(Ordering::Acquire)
    }

    pub(crate) fn limit(&self) -> u32 {
        self.live.limiter.lock().limit()
    }
}

/// The live sides by id, and the metric handles by name.
#[derive(Default)]
pub(crate) struct TargetRegistry {
    live: Mutex<HashMap<TargetId, Arc<TargetLive>>>,
    metrics: Mutex<HashMap<String, Handles>>,
}

#[derive(Clone)]
struct Handles {
    target: Arc<TargetMetrics>,
    calls: Arc<CallMetrics>,
}

impl TargetRegistry {
    /// The target of a new policy, joined to what is known of it.
    pub(crate) fn target(
        &self,
        metrics: &Metrics,
        route: &Arc<str>,
        policy: Arc<TargetPolicy>,
        models: &[ModelPattern],
        secrets: impl Fn(&SecretKey) -> Option<SecretValue>,
    ) -> Target {
        let live = self.live(&policy);
        let handles = self.handles(metrics, &format!("{route}/{}", policy.name), &policy, models);
        let origin = Origin::parse(&policy.endpoint);
        Target {
            attributes: TargetAttributes::of(route, &policy, origin.as_ref()),
            origin,
            served_by: HeaderValue::from_str(&policy.name).unwrap_or_else(|_| HeaderValue::from_static("?")),
            credential: credential(&policy, secrets),
            policy,
            live,
            metrics: handles.target,
            calls: handles.calls,
        }
    }

    /// Those that are there, unless an edit gives the series of calls other labels.
    fn handles(
        &self,
        metrics: &Metrics,
        name: &str,
        policy: &TargetPolicy,
        models: &[ModelPattern],
    ) -> Handles {
        let calls = metrics.calls(name, policy, models);
        let mut all = self.metrics.lock();
        if let Some(known) = all.get_mut(name) {
            if !known.calls.is_same(&calls) {
                known.calls.forget();
                known.calls = Arc::new(calls);
            }
            return known.clone();
        }
        let handles = Handles { target: Arc::new(metrics.target(name)), calls: Arc::new(calls) };
        all.insert(name.to_owned(), handles.clone());
        handles
    }

    fn live(&self, policy: &TargetPolicy) -> Arc<TargetLive> {
        let rules = &policy.rules;
        let mut live = self.live.lock();
        let known = live.entry(policy.id.clone()).or_insert_with(|| {
            Arc::new(TargetLive {
                limiter: Mutex::new(Limiter::new(&rules.concurrency.rules)),
                in_flight: AtomicU32::new(0),
                brakes: Mutex::new(Brakes::new(&rules.retries.rules)),
                ratio: Mutex::new(Ratio::default()),
                ttft: Mutex::new(DecayingHistogram::new(SHOWN_HALF_LIFE)),
                healthy_ttft: Mutex::new(DecayingHistogram::new(DecayingHistogram::HALF_LIFE)),
                healthy: AtomicBool::new(true),
                tokens_left: Mutex::new(None),
                held: Mutex::new(None),
                credential: Mutex::new(None),
            })
        });
        known.limiter.lock().configure(&rules.concurrency.rules);
        known.brakes.lock().configure(&rules.retries.rules);
        known.clone()
    }

    /// Forgets targets that no route names any more: the live side once nothing is in flight to it, the series of
    /// its metrics at once.
    pub(crate) fn retain(&self, named: &[Arc<Target>]) {
        let ids: HashSet<&TargetId> = named.iter().map(|target| &target.policy.id).collect();
        self.live.lock().retain(|id, live| ids.contains(id) || live.in_flight.load(Ordering::Acquire) > 0);
        let names: HashSet<&str> = named.iter().map(|target| &*target.metrics.name).collect();
        self.metrics.lock().retain(|name, handles| {
            let keep = names.contains(&**name);
            if !keep {
                handles.target.forget();
                handles.calls.forget();
            }
            keep
        });
    }
}

fn credential(
    policy: &TargetPolicy,
    secrets: impl Fn(&SecretKey) -> Option<SecretValue>,
) -> CredentialHeader {
    match &policy.credential {
        Credential::None => CredentialHeader::Nobodys,
        Credential::Passthrough => CredentialHeader::Theirs,
        Credential::Secret(key) => secrets(key)
            .and_then(|secret| crate::headers::credential(policy.provider, secret.expose()))
            .map_or(CredentialHeader::Missing, |(name, value)| CredentialHeader::Ours(name, value)),
    }
}
