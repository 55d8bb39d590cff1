//! Breaker transitions become a metric, an event on a span, and a line in the log: once each, by the agent whose call
//! made them.
//!
//! The scripts tell a transition twice to the agent that made it: in the reply to its call, and in a publication. The
//! reply is where the attempt's span is, so the span's event and the log line in its scope are made there (see
//! [`caused`]). The publication is what is left when a reply is lost; it may also come first. So the line waits a
//! moment for its reply, and [`Told`] sees to it that there is one.
//!
//! What other agents made is news of a breaker's state: a line at debug, and nothing else.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sluice_core::admission::Transition;
use sluice_core::target_id::TargetId;
use sluice_state::HomeKind;
use sluice_state::store::TransitionEvent;
use sluice_telemetry::names::{attribute, event, log};
use sluice_telemetry::{Keep, KeyValue};
use tokio::sync::broadcast::error::RecvError;
use tracing::Level;

use crate::agent::Shared;
use crate::spans::SharedSpan;
use crate::targets::Target;

/// How long a transition's line waits for the reply to the call that made it.
const REPLY_GRACE: Duration = Duration::from_secs(2);
/// Transitions that wait, or are remembered. A breaker makes a few a minute.
const REMEMBERED: usize = 256;

/// The transitions whose line is written.
#[derive(Default)]
pub(crate) struct Told(Mutex<VecDeque<(TargetId, HomeKind, u64)>>);

impl Told {
    /// Whether this is the first time that anyone asks.
    fn is_first(&self, target: &TargetId, home: HomeKind, epoch: u64) -> bool {
        let mut told = self.0.lock();
        if told.iter().any(|(known, at, of)| known == target && (*at, *of) == (home, epoch)) {
            return false;
        }
        if told.len() == REMEMBERED {
            told.pop_front();
        }
        told.push_back((target.clone(), home, epoch));
        true
    }
}

/// A call for an attempt made a transition. Without a span this is left to the publication.
pub(crate) fn caused(
    told: &Told,
    target: &Target,
    home: HomeKind,
    span: &SharedSpan,
    transition: &Transition,
) {
    if !span.is_recording() {
        return;
    }
    span.with(|span| {
        span.event(event::BREAKER_TRANSITION, attributes(transition));
        span.keep(Keep::Transition);
    });
    if told.is_first(&target.policy.id, home, transition.epoch) {
        span.scope(|| write_line(target, transition));
    }
}

fn attributes(transition: &Transition) -> Vec<KeyValue> {
    let counts = &transition.counts;
    let number = |name, count: u32| KeyValue::new(name, i64::from(count));
    vec![
        KeyValue::new(attribute::BREAKER_FROM, transition.from.as_str()),
        KeyValue::new(attribute::BREAKER_TO, transition.to.as_str()),
        KeyValue::new(attribute::BREAKER_REASON, transition.reason.as_str()),
        KeyValue::new(attribute::BREAKER_EPOCH, i64::try_from(transition.epoch).unwrap_or(i64::MAX)),
        number(attribute::BREAKER_CALLS, counts.calls),
        number(attribute::BREAKER_FAILURES, counts.failures),
        number(attribute::BREAKER_SLOW, counts.slow),
        number(attribute::BREAKER_STALLS, counts.stalls),
    ]
}

fn write_line(target: &Target, transition: &Transition) {
    tracing::event!(
        name: event::BREAKER_TRANSITION,
        target: log::TRANSITION,
        Level::INFO,
        { attribute::ROUTE } = &*target.attributes.route,
        { attribute::TARGET } = &*target.attributes.name,
        { attribute::BREAKER_FROM } = transition.from.as_str(),
        { attribute::BREAKER_TO } = transition.to.as_str(),
        { attribute::BREAKER_REASON } = transition.reason.as_str(),
        { attribute::BREAKER_EPOCH } = transition.epoch,
        { attribute::BREAKER_CALLS } = transition.counts.calls,
        { attribute::BREAKER_FAILURES } = transition.counts.failures,
        { attribute::BREAKER_SLOW } = transition.counts.slow,
        { attribute::BREAKER_STALLS } = transition.counts.stalls,
        "breaker transition"
    );
}

/// A transition of this agent that is known by its publication so far.
struct Waiting {
    until: Duration,
    target: Arc<Target>,
    event: TransitionEvent,
}

/// Tells transitions until the agent ends.
pub(crate) async fn tell(shared: Arc<Shared>) {
    let mut events = shared.store.transitions();
    let mut waiting = VecDeque::<Waiting>::new();
    loop {
        let until = waiting.front().map(|first| first.until);
        tokio::select! {
            event = events.recv() => match event {
                Ok(event) => waiting.extend(tell_one(&shared, event)),
                Err(RecvError::Lagged(missed)) => tracing::warn!(missed, "breaker transitions went untold"),
                Err(RecvError::Closed) => return,
            },
            () = shared.clock.sleep_until(until.unwrap_or_default()), if until.is_some() => {
                waiting.pop_front().iter().for_each(|one| tell_without_span(&shared, one));
            }
        }
        if waiting.len() > REMEMBERED {
            waiting.pop_front().iter().for_each(|one| tell_without_span(&shared, one));
        }
    }
}

/// The metrics of a transition; what is left of it to tell, should its reply be lost.
fn tell_one(shared: &Shared, event: TransitionEvent) -> Option<Waiting> {
    let policies = shared.policies.load();
    let targets = policies.routes.iter().flat_map(|route| &route.targets);
    let mut named = targets.filter(|target| target.policy.id == event.target).peekable();
    // Routes may share a dependency: each of its names shows the state, one tells the transition.
    let first = (*named.peek()?).clone();
    for target in named {
        target.metrics.see(shared.clock.now(), event.transition.to, event.open_for);
    }
    let transition = &event.transition;
    if !event.made_here {
        tracing::event!(
            Level::DEBUG,
            { attribute::ROUTE } = &*first.attributes.route,
            { attribute::TARGET } = &*first.attributes.name,
            { attribute::BREAKER_FROM } = transition.from.as_str(),
            { attribute::BREAKER_TO } = transition.to.as_str(),
            { attribute::BREAKER_EPOCH } = transition.epoch,
            "another agent's breaker transition"
        );
        return None;
    }
    first.metrics.transition(transition);
    let grace = if shared.tracer.is_on() { REPLY_GRACE } else { Duration::ZERO };
    let waiting = Waiting { until: shared.clock.now().saturating_add(grace), target: first, event };
    if grace.is_zero() {
        tell_without_span(shared, &waiting);
        return None;
    }
    Some(waiting)
}

fn tell_without_span(shared: &Shared, Waiting { target, event, .. }: &Waiting) {
    if shared.told.is_first(&event.target, event.home, event.transition.epoch) {
        write_line(target, &event.transition);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_transition_is_told_once_and_few_are_remembered() {
        let told = Told::default();
        let id = |name: &str| TargetId::of("default", name, "http://a/v1", "");
        assert!(told.is_first(&id("a"), HomeKind::Shared, 1));
        assert!(!told.is_first(&id("a"), HomeKind::Shared, 1));
        assert!(told.is_first(&id("a"), HomeKind::Local, 1), "another home's breaker");
        assert!(told.is_first(&id("b"), HomeKind::Shared, 1));
        for epoch in 2..1_000 {
            assert!(told.is_first(&id("a"), HomeKind::Shared, epoch));
        }
        assert_eq!(told.0.lock().len(), REMEMBERED);
    }
}
