//! What this agent has seen of its targets.
//!
//! A breaker that was seen open is left alone until its time is over, whatever is answered meanwhile: the
//! scripts never close a breaker before its time, so an answer that says so comes from a server that has lost
//! writes. Each agent waits a little longer than the breaker, by its own jitter, so that they don't all ask
//! for the first probe at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sluice_core::admission::{AdmitAnswer, AdmitReply, BreakerState, TargetView, WindowCounts};
use sluice_core::policy::TargetPolicy;
use sluice_core::target_id::TargetId;
use tokio::time::Instant;

use super::types::Known;
use crate::home::HomeKind;

/// The most that an agent waits on top of a cool-down.
const LONGEST_JITTER: Duration = Duration::from_secs(2);
/// Targets remembered; beyond it the ones not asked for longest are forgotten.
const MAX_TARGETS: usize = 10_000;

/// One look at a breaker.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub state: BreakerState,
    pub epoch: u64,
    pub open_for: Duration,
    pub opened_by: Option<Arc<str>>,
    pub home: HomeKind,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub target: Arc<TargetPolicy>,
    pub agents: Option<u32>,
    /// The derived policy, with what it was derived from.
    pub local: Option<(Arc<TargetPolicy>, u32, Arc<TargetPolicy>)>,
    /// In which outage the local home took over what was seen.
    pub adopted: u64,
    state: BreakerState,
    epoch: u64,
    home: HomeKind,
    opened_by: Option<Arc<str>>,
    /// The breaker's own time.
    open_until: Instant,
    /// This agent's: later by its jitter.
    ask_at: Instant,
    used: Instant,
    /// The newest transition told, per home.
    told: [u64; 2],
}

#[derive(Debug, Default)]
pub(super) struct KnownTargets {
    entries: HashMap<TargetId, Entry>,
    /// Counts of agents pushed for targets that were not asked for yet.
    agents: HashMap<TargetId, u32>,
}

impl KnownTargets {
    pub(super) fn entry(&mut self, target: &Arc<TargetPolicy>, now: Instant) -> &mut Entry {
        if !self.entries.contains_key(&target.id) && self.entries.len() >= MAX_TARGETS {
            self.forget_oldest();
        }
        let agents = self.agents.get(&target.id).copied();
        let entry = self.entries.entry(target.id.clone()).or_insert_with(|| Entry {
            target: Arc::clone(target),
            agents,
            local: None,
            adopted: 0,
            state: BreakerState::Closed,
            epoch: 0,
            home: HomeKind::Shared,
            opened_by: None,
            open_until: now,
            ask_at: now,
            used: now,
            told: [0; 2],
        });
        if !Arc::ptr_eq(&entry.target, target) {
            entry.target = Arc::clone(target);
        }
        entry.used = now;
        entry
    }

    pub(super) fn get_mut(&mut self, id: &TargetId) -> Option<&mut Entry> {
        self.entries.get_mut(id)
    }

    pub(super) fn set_agents(&mut self, id: &TargetId, agents: u32) {
        if self.agents.len() >= MAX_TARGETS && !self.agents.contains_key(id) {
            self.agents.clear();
        }
        self.agents.insert(id.clone(), agents);
        if let Some(entry) = self.entries.get_mut(id) {
            entry.agents = Some(agents);
        }
    }

    pub(super) fn known(&self, id: &TargetId, now: Instant) -> Option<Known> {
        self.entries.get(id).map(|entry| entry.known(now))
    }

    /// Targets whose state is to be read: all, or those not closed alone; at most `most`.
    pub(super) fn targets(&self, not_closed: bool, most: usize) -> Vec<Arc<TargetPolicy>> {
        self.entries
            .values()
            .filter(|entry| !not_closed || entry.state != BreakerState::Closed)
            .take(most)
            .map(|entry| Arc::clone(&entry.target))
            .collect()
    }

    fn forget_oldest(&mut self) {
        let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(id, _)| id.clone());
        if let Some(id) = oldest {
            self.entries.remove(&id);
        }
    }
}

impl Entry {
    /// Takes note of a look at the breaker. `jitter` is the agent's own, for a breaker that has just opened.
    pub(super) fn note(&mut self, seen: &Seen, now: Instant, jitter: impl FnOnce(Duration) -> Duration) {
        let still_open = self.state == BreakerState::Open && now < self.open_until;
        // The same opening: the first look at it came with the least delay.
        if self.state == BreakerState::Open
            && seen.state == BreakerState::Open
            && (seen.epoch, seen.home) == (self.epoch, self.home)
        {
            return;
        }
        if still_open && seen.state != BreakerState::Open {
            return;
        }
        if seen.home == self.home && seen.epoch < self.epoch && seen.state != BreakerState::Open {
            return;
        }
        let until = now + seen.open_for;
        if seen.state == BreakerState::Open {
            if !still_open || until > self.open_until {
                self.open_until = until;
                self.ask_at = if seen.open_for.is_zero() { now } else { until + jitter(seen.open_for) };
            }
        } else {
            self.open_until = now;
            self.ask_at = now;
        }
        self.state = seen.state;
        self.epoch = seen.epoch;
        self.home = seen.home;
        self.opened_by.clone_from(&seen.opened_by);
    }

    /// The most that this agent waits on top of a cool-down of its target.
    pub(super) fn longest_jitter(target: &TargetPolicy, open_for: Duration) -> Duration {
        let percent = target.rules.breaker.rules.cooldown.jitter_percent.min(100);
        (open_for * percent / 100).min(LONGEST_JITTER)
    }

    /// The refusal of a target that is known to be open.
    pub(super) fn refusal(&self, now: Instant) -> Option<AdmitReply> {
        if self.state != BreakerState::Open || now >= self.ask_at {
            return None;
        }
        Some(AdmitReply {
            answer: AdmitAnswer::Open,
            observed: None,
            retry_after: self.ask_at - now,
            state: BreakerState::Open,
            epoch: self.epoch,
            open_for: self.open_until.saturating_duration_since(now),
            tokens_left: None,
            rate_percent: 100,
            transition: None,
            opened_by: self.opened_by.clone(),
        })
    }

    /// Whether an epoch is later than what is known. Publications may come late: only such are news.
    pub(super) fn is_later(&self, epoch: u64) -> bool {
        epoch > self.epoch
    }

    /// What the local home begins from.
    pub(super) fn view(&self, now: Instant) -> TargetView {
        TargetView {
            state: self.state,
            epoch: self.epoch,
            open_for: self.open_until.saturating_duration_since(now),
            counts: WindowCounts::default(),
            probes_out: 0,
            tokens_left: None,
            paused_for: Duration::ZERO,
            rate_percent: 100,
            ramping: false,
            opened_by: self.opened_by.clone(),
        }
    }

    /// Whether a transition is news; each epoch is told once per home.
    pub(super) fn is_news(&mut self, epoch: u64, home: HomeKind) -> bool {
        let told = &mut self.told[home as usize];
        let news = epoch > *told;
        *told = epoch.max(*told);
        news
    }

    fn known(&self, now: Instant) -> Known {
        let open = self.state == BreakerState::Open;
        Known {
            state: self.state,
            epoch: self.epoch,
            open_for: if open { self.ask_at.saturating_duration_since(now) } else { Duration::ZERO },
            awaiting_probe: open && now >= self.open_until,
            opened_by: self.opened_by.clone(),
            home: self.home,
        }
    }
}
