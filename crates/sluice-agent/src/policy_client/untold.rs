//! Breaker transitions of this agent that the control plane may not have heard of. Of a transition in the shared state
//! one agent hears, so one that it keeps to itself never becomes an Event.
//!
//! Why apart from the streams: these are recycled, and a control plane may be away for hours; breakers go on all the
//! while. So transitions are collected for as long as the agent follows its control plane, and what was told lately is
//! told again on the next stream, since the one that it went out on may have been dead already. Target and epoch tell a
//! repetition from news.
//!
//! So many are kept; of more the oldest are forgotten.

use std::collections::VecDeque;
use std::time::Duration;

use sluice_proto::bounds::TRANSITIONS;
use sluice_proto::report::TargetTransition;
use sluice_state::store::TransitionEvent;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// A dead stream is found out by then: HTTP/2 asks every 20 s, and waits for as long.
const LATELY: Duration = Duration::from_mins(1);

pub(super) struct Untold {
    made: broadcast::Receiver<TransitionEvent>,
    waiting: VecDeque<TargetTransition>,
    /// On a stream, and when.
    told: VecDeque<(Duration, TargetTransition)>,
}

impl Untold {
    /// Those that are made from now on.
    pub(super) fn new(made: broadcast::Receiver<TransitionEvent>) -> Self {
        Self { made, waiting: VecDeque::new(), told: VecDeque::new() }
    }

    /// Collects, until there is something that may be told. Nothing is lost when it is dropped before.
    pub(super) async fn wait(&mut self, may_tell: bool) {
        while self.waiting.is_empty() || !may_tell {
            self.hear().await;
        }
    }

    /// Takes what there is to tell, at most as many as fit into a report.
    pub(super) fn take(&mut self, now: Duration) -> Vec<TargetTransition> {
        let taken: Vec<_> = self.waiting.drain(..).collect();
        for transition in &taken {
            put(&mut self.told, (now, transition.clone()));
        }
        taken
    }

    /// There is another stream.
    pub(super) fn repeat(&mut self, now: Duration) {
        let untold = std::mem::take(&mut self.waiting);
        let lately = self.told.drain(..).filter(|(at, _)| now.saturating_sub(*at) < LATELY);
        for transition in lately.map(|(_, transition)| transition).chain(untold) {
            put(&mut self.waiting, transition);
        }
    }

    async fn hear(&mut self) {
        match self.made.recv().await {
            Ok(TransitionEvent { target, transition, made_here: true, .. }) => {
                put(&mut self.waiting, TargetTransition { target, transition });
            }
            // Who made it tells it.
            Ok(_) => {}
            Err(RecvError::Lagged(missed)) => {
                tracing::warn!(missed, "breaker transitions go untold to the control plane");
            }
            // The agent ends.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

fn put<T>(kept: &mut VecDeque<T>, one: T) {
    if kept.len() >= TRANSITIONS {
        kept.pop_front();
    }
    kept.push_back(one);
}

#[cfg(test)]
mod tests {
    use sluice_core::admission::{BreakerState, Transition, TransitionReason, WindowCounts};
    use sluice_core::target_id::TargetId;
    use sluice_state::HomeKind;

    use super::*;

    fn event(epoch: u64, made_here: bool) -> TransitionEvent {
        let transition = Transition {
            from: BreakerState::Closed,
            to: BreakerState::Open,
            reason: TransitionReason::FailureRate,
            epoch,
            counts: WindowCounts::default(),
        };
        let target = TargetId::of("ns", "a", "https://x", "");
        let (open_for, opened_by, home) = (Duration::ZERO, None, HomeKind::Shared);
        TransitionEvent { target, transition, open_for, opened_by, made_here, home }
    }

    fn epochs(transitions: &[TargetTransition]) -> Vec<u64> {
        transitions.iter().map(|told| told.transition.epoch).collect()
    }

    #[tokio::test]
    async fn what_was_made_between_streams_is_told_and_what_was_told_lately_is_told_again() {
        let (made, events) = broadcast::channel(8);
        let mut untold = Untold::new(events);
        let at = Duration::from_secs;
        for (epoch, made_here) in [(1, true), (2, false), (3, true)] {
            made.send(event(epoch, made_here)).unwrap();
        }
        untold.repeat(at(0));
        untold.wait(true).await;
        assert_eq!(epochs(&untold.take(at(0))), [1], "another agent's is not ours to tell");
        untold.wait(true).await;
        assert_eq!(epochs(&untold.take(at(50))), [3]);
        made.send(event(4, true)).unwrap();
        untold.repeat(at(70));
        untold.wait(true).await;
        assert_eq!(epochs(&untold.take(at(70))), [3], "the first was told long ago");
        untold.wait(true).await;
        assert_eq!(epochs(&untold.take(at(71))), [4]);
        untold.repeat(at(72));
        assert_eq!(epochs(&untold.take(at(72))), [3, 4], "in their order");
    }

    #[tokio::test]
    async fn only_so_many_are_kept_and_the_newest_of_them() {
        let (made, events) = broadcast::channel(2 * TRANSITIONS);
        let mut untold = Untold::new(events);
        let last = TRANSITIONS as u64 + 5;
        for epoch in 1..=last {
            made.send(event(epoch, true)).unwrap();
            untold.hear().await;
        }
        let told = untold.take(Duration::ZERO);
        assert_eq!(epochs(&told), (6..=last).collect::<Vec<_>>());
        untold.repeat(Duration::ZERO);
        assert_eq!(untold.take(Duration::ZERO), told);
        // An agent that is kept from hearing goes on with what comes next.
        for epoch in 1..=3 * TRANSITIONS as u64 {
            made.send(event(epoch, true)).unwrap();
        }
        untold.hear().await;
        untold.wait(true).await;
        assert_eq!(epochs(&untold.take(Duration::ZERO)), [TRANSITIONS as u64 + 1]);
    }
}
