//! Breaker transitions become a log line and a metric: one each, by the agent whose attempt made them.

use std::sync::Arc;

use sluice_state::store::TransitionEvent;
use tokio::sync::broadcast::error::RecvError;

use crate::agent::Shared;

/// Tells transitions until the agent ends.
pub(crate) async fn tell(shared: Arc<Shared>) {
    let mut events = shared.store.transitions();
    loop {
        match events.recv().await {
            Ok(event) => tell_one(&shared, &event),
            Err(RecvError::Lagged(missed)) => tracing::warn!(missed, "breaker transitions went untold"),
            Err(RecvError::Closed) => return,
        }
    }
}

fn tell_one(shared: &Shared, event: &TransitionEvent) {
    let policies = shared.policies.load();
    let targets = policies.routes.iter().flat_map(|route| &route.targets);
    let mut named = targets.filter(|target| target.policy.id == event.target).peekable();
    // Routes may share a dependency: each of its names shows the state, one tells the transition.
    let Some(first) = named.peek().map(|target| target.metrics.clone()) else { return };
    for target in named {
        target.metrics.set_state(event.transition.to);
    }
    if !event.made_here {
        return;
    }
    let transition = &event.transition;
    shared.metrics.transition(&first.name, transition);
    tracing::info!(
        target_name = first.name,
        from = transition.from.as_str(),
        to = transition.to.as_str(),
        reason = transition.reason.as_str(),
        epoch = transition.epoch,
        calls = transition.counts.calls,
        failures = transition.counts.failures,
        slow = transition.counts.slow,
        stalls = transition.counts.stalls,
        opened_by = event.opened_by.as_deref(),
        "breaker transition"
    );
}
