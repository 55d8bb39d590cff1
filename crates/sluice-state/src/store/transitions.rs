//! What was seen of breakers: by own calls, by publications, by reading.

use std::sync::Arc;
use std::time::Duration;

use sluice_core::admission::{AdmitReply, BreakerState, SettleReply, TargetView, Transition};
use sluice_core::policy::TargetPolicy;
use tokio::sync::broadcast;

use super::Inner;
use super::known::{Entry, Seen};
use super::types::TransitionEvent;
use crate::clock;
use crate::home::HomeKind;
use crate::script;

impl Inner {
    pub(super) fn note_admit(&self, target: &Arc<TargetPolicy>, reply: &AdmitReply, home: HomeKind) {
        // A nonce that was granted before answers with its own epoch, of which nothing is to be learned here.
        let seen = Seen {
            state: reply.state,
            epoch: reply.epoch,
            open_for: reply.open_for,
            opened_by: reply.opened_by.clone(),
            home,
        };
        self.note(target, &seen, reply.transition.as_ref());
    }

    pub(super) fn note_settle(
        &self,
        target: &Arc<TargetPolicy>,
        reply: &SettleReply,
        traceparent: Option<&Arc<str>>,
        home: HomeKind,
    ) {
        let opened_here = reply.transition.as_ref().is_some_and(|t| t.to == BreakerState::Open);
        let known = || self.known.lock().known(&target.id, clock::now()).and_then(|known| known.opened_by);
        let seen = Seen {
            state: reply.state,
            epoch: reply.epoch,
            open_for: reply.open_for,
            opened_by: if opened_here { traceparent.cloned() } else { known() },
            home,
        };
        self.note(target, &seen, reply.transition.as_ref());
    }

    pub(super) fn note_view(&self, target: &Arc<TargetPolicy>, view: &TargetView, home: HomeKind) {
        let seen = Seen {
            state: view.state,
            epoch: view.epoch,
            open_for: view.open_for,
            opened_by: view.opened_by.clone(),
            home,
        };
        self.note(target, &seen, None);
    }

    fn note(&self, target: &Arc<TargetPolicy>, seen: &Seen, transition: Option<&Transition>) {
        let now = clock::now();
        let event = {
            let mut known = self.known.lock();
            let entry = known.entry(target, now);
            entry.note(seen, now, |open_for| self.random.up_to(Entry::longest_jitter(target, open_for)));
            transition.filter(|t| entry.is_news(t.epoch, seen.home)).map(|transition| TransitionEvent {
                target: target.id.clone(),
                transition: transition.clone(),
                open_for: seen.open_for,
                opened_by: seen.opened_by.clone(),
                made_here: true,
                home: seen.home,
            })
        };
        self.tell(event);
    }

    /// Takes note of a publication; those of targets outside this agent's policies are not its business.
    pub(super) fn hear(&self, payload: &str) {
        let Some(heard) = script::decode_publication(payload) else {
            tracing::debug!("a publication is no transition");
            return;
        };
        let now = clock::now();
        let event = {
            let mut known = self.known.lock();
            let Some(entry) = known.get_mut(&heard.target) else { return };
            let seen = Seen {
                state: heard.transition.to,
                epoch: heard.transition.epoch,
                open_for: heard.open_for,
                opened_by: heard.opened_by.clone(),
                home: HomeKind::Shared,
            };
            let target = Arc::clone(&entry.target);
            if entry.is_later(seen.epoch) {
                entry.note(&seen, now, |open_for: Duration| {
                    self.random.up_to(Entry::longest_jitter(&target, open_for))
                });
            }
            entry.is_news(heard.transition.epoch, HomeKind::Shared).then(|| TransitionEvent {
                target: heard.target.clone(),
                transition: heard.transition,
                open_for: heard.open_for,
                opened_by: heard.opened_by,
                made_here: heard.agent == self.tag.as_str(),
                home: HomeKind::Shared,
            })
        };
        self.tell(event);
    }

    fn tell(&self, event: Option<TransitionEvent>) {
        if let Some(event) = event {
            // Nobody listens: then nobody wants to know.
            let _ = self.transitions.send(event);
        }
    }

    pub(super) async fn hear_embedded(self: Arc<Self>, mut publications: broadcast::Receiver<Arc<str>>) {
        loop {
            match publications.recv().await {
                Ok(payload) => self.hear(&payload),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return,
            }
        }
    }
}
