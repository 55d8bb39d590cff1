//! N agents as one: what `/state` says of each, added up for a screen.
//!
//! Counters add up, and so do places in flight and limits, as each agent has its own. What the agents share
//! (the breaker, the bucket, a pause) is one thing that each saw at its own time:
//! - the breaker is the one of the highest epoch, as epochs only grow and an agent that has not asked for a
//!   while still shows the last one; of equal epochs the worst state rules. While a store is out of reach its
//!   agent goes by a breaker of its own, epochs can't be compared, and the worst state alone decides;
//! - of tokens left, and of the refill rate, the lowest; of pauses, the longest;
//! - a median of medians is no median, but near enough for a sparkline, and the p95 is the worst agent's.

use std::time::Duration;

use sluice_agent::state::{AgentState, BreakerView, RouteState, TargetState};
use sluice_core::admission::WindowCounts;

/// A breaker's state on the screen, the worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Status {
    #[default]
    Closed,
    HalfOpen,
    /// The cool-down is over; the next call probes.
    AwaitingProbe,
    Open,
}

impl Status {
    fn of(breaker: &BreakerView) -> Self {
        match breaker.state {
            "open" => Self::Open,
            "awaiting-probe" => Self::AwaitingProbe,
            "half-open" => Self::HalfOpen,
            _ => Self::Closed,
        }
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half-open",
            Self::AwaitingProbe => "awaiting-probe",
            Self::Open => "open",
        }
    }
}

/// All agents together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fleet {
    pub agents: usize,
    /// The versions in use; more than one while an edit is on its way.
    pub versions: Vec<String>,
    /// Objects that an agent refused, with the reason.
    pub rejected: Vec<(String, String)>,
    pub store: Store,
    pub traffic: Traffic,
    pub targets: Vec<Target>,
}

/// The shared state, as the agents reach it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Store {
    /// `redis` or `embedded`.
    pub home: &'static str,
    /// Agents that can't reach it.
    pub away: usize,
    /// Why not.
    pub reason: Option<String>,
    /// Admissions that agents decided alone.
    pub fallback_admissions: u64,
    pub settles_waiting: u64,
    pub settles_dropped: u64,
}

/// Exchanges since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    pub total: u64,
    pub refused: u64,
    pub failed_over: u64,
    pub cancelled: u64,
    pub in_flight: u64,
}

impl Traffic {
    /// Not refused.
    #[must_use]
    pub fn admitted(&self) -> u64 {
        self.total.saturating_sub(self.refused)
    }
}

/// One target of one route.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Target {
    /// `namespace/route/target`.
    pub key: String,
    /// Its name in the shared state; the same for all targets of one dependency.
    pub id: String,
    /// As short as it can be without being the name of another target as well.
    pub label: String,
    pub status: Status,
    pub epoch: u64,
    pub open_for: Duration,
    pub window: WindowCounts,
    pub probes_out: u32,
    pub ramping: bool,
    pub in_flight: u32,
    pub limit: u32,
    pub tokens_left: Option<i64>,
    pub burst_tokens: Option<u64>,
    pub rate_percent: u32,
    pub paused_for: Duration,
    /// Attempts that were admitted.
    pub attempts: u64,
    pub retries: u64,
    /// Exchanges that went on past this target.
    pub failovers: u64,
    /// Attempts that were not admitted.
    pub passed_over: u64,
    pub ttft_p50_ms: Option<u64>,
    pub ttft_p95_ms: Option<u64>,
}

impl Fleet {
    /// Adds up what the agents say.
    #[must_use]
    pub fn of(agents: &[AgentState]) -> Self {
        let mut fleet = Self { agents: agents.len(), ..Self::default() };
        let mut views = Vec::new();
        let comparable = agents.iter().all(|agent| agent.store.reachable);
        for agent in agents {
            fleet.add_agent(agent);
            for route in &agent.routes {
                for target in &route.targets {
                    views.push((route, target));
                }
            }
        }
        for (route, target) in views {
            fleet.add_target(route, target, comparable);
        }
        fleet.label_targets();
        fleet
    }

    fn add_agent(&mut self, agent: &AgentState) {
        let version = &agent.policy_version;
        if !version.is_empty() && !self.versions.contains(version) {
            self.versions.push(version.clone());
        }
        for refused in &agent.rejected {
            if !self.rejected.iter().any(|(object, _)| *object == refused.object) {
                self.rejected.push((refused.object.clone(), refused.error.clone()));
            }
        }
        let store = &mut self.store;
        store.home = agent.store.home;
        store.away += usize::from(!agent.store.reachable);
        store.reason = store.reason.take().or_else(|| agent.store.reason.clone());
        store.fallback_admissions += agent.store.fallback_admissions;
        store.settles_waiting += agent.store.settles_waiting;
        store.settles_dropped += agent.store.settles_dropped;
        let traffic = &mut self.traffic;
        traffic.total += agent.exchanges.total;
        traffic.refused += agent.exchanges.refused;
        traffic.failed_over += agent.exchanges.failed_over;
        traffic.cancelled += agent.exchanges.cancelled;
        traffic.in_flight += agent.exchanges.in_flight;
    }

    fn add_target(&mut self, route: &RouteState, seen: &TargetState, comparable: bool) {
        let key = format!("{}/{}/{}", route.namespace, route.name, seen.name);
        match self.targets.iter_mut().find(|target| target.key == key) {
            Some(known) => known.add(seen, comparable),
            None => self.targets.push(Target::of(key, seen)),
        }
    }

    /// The target's name alone, unless two routes have a target of that name; and so on outwards.
    fn label_targets(&mut self) {
        let keys: Vec<String> = self.targets.iter().map(|target| target.key.clone()).collect();
        for parts in 1..=3 {
            let labels: Vec<&str> = keys.iter().map(|key| last_parts(key, parts)).collect();
            let distinct = labels.iter().enumerate().all(|(at, label)| !labels[..at].contains(label));
            if distinct || parts == 3 {
                for (target, label) in self.targets.iter_mut().zip(labels) {
                    label.clone_into(&mut target.label);
                }
                return;
            }
        }
    }
}

fn last_parts(key: &str, parts: usize) -> &str {
    key.rmatch_indices('/').nth(parts - 1).map_or(key, |(at, _)| &key[at + 1..])
}

impl Target {
    fn of(key: String, seen: &TargetState) -> Self {
        let mut target = Self { key, id: seen.id.clone(), rate_percent: 100, ..Self::default() };
        target.see_breaker(&seen.breaker);
        target.add_counters(seen);
        target
    }

    fn add(&mut self, seen: &TargetState, comparable: bool) {
        let status = Status::of(&seen.breaker);
        let newer = if comparable {
            (seen.breaker.epoch, status) > (self.epoch, self.status)
        } else {
            status > self.status
        };
        if newer {
            self.see_breaker(&seen.breaker);
        }
        self.add_counters(seen);
    }

    fn see_breaker(&mut self, breaker: &BreakerView) {
        self.status = Status::of(breaker);
        self.epoch = breaker.epoch;
        self.open_for = Duration::from_millis(breaker.open_for_ms);
        self.window = WindowCounts {
            calls: breaker.calls,
            failures: breaker.failures,
            slow: breaker.slow,
            stalls: breaker.stalls,
        };
        self.probes_out = breaker.probes_out;
        self.ramping = breaker.ramping;
    }

    fn add_counters(&mut self, seen: &TargetState) {
        let lowest = |known: Option<i64>, new: Option<i64>| match (known, new) {
            (Some(known), Some(new)) => Some(known.min(new)),
            (known, new) => known.or(new),
        };
        self.in_flight += seen.in_flight;
        self.limit += seen.limit;
        self.tokens_left = lowest(self.tokens_left, seen.tokens_left);
        self.burst_tokens = self.burst_tokens.max(seen.burst_tokens);
        self.rate_percent = self.rate_percent.min(seen.rate_percent);
        self.paused_for = self.paused_for.max(Duration::from_millis(seen.paused_for_ms));
        let (before, new) = (self.attempts, seen.attempts);
        self.ttft_p50_ms = match (self.ttft_p50_ms, seen.ttft_p50_ms) {
            (Some(known), Some(added)) if before + new > 0 => {
                Some((known * before + added * new) / (before + new))
            }
            (known, added) => known.or(added),
        };
        self.ttft_p95_ms = self.ttft_p95_ms.max(seen.ttft_p95_ms);
        self.attempts += new;
        self.retries += seen.retries;
        self.failovers += seen.failovers;
        self.passed_over += seen.rejections.iter().map(|(_, count)| count).sum::<u64>();
    }
}

#[cfg(test)]
mod tests {
    use super::super::synthetic::{agent, target};
    use super::*;

    #[test]
    fn counters_and_limits_add_up() {
        let mut one = agent("a", vec![target("primary"), target("fallback")]);
        let mut two = agent("b", vec![target("primary"), target("fallback")]);
        one.exchanges.total = 10;
        two.exchanges.total = 5;
        two.exchanges.refused = 2;
        one.routes[0].targets[0].attempts = 9;
        one.routes[0].targets[0].rejections = vec![("open", 3), ("paused", 1)];
        two.routes[0].targets[0].in_flight = 4;
        let fleet = Fleet::of(&[one, two]);
        assert_eq!((fleet.agents, fleet.traffic.admitted(), fleet.traffic.refused), (2, 13, 2));
        assert_eq!(fleet.targets.len(), 2);
        let primary = &fleet.targets[0];
        assert_eq!((primary.label.as_str(), primary.attempts, primary.passed_over), ("primary", 9, 4));
        assert_eq!((primary.in_flight, primary.limit), (4, 64));
    }

    #[test]
    fn the_newest_breaker_rules_while_the_store_is_there() {
        let mut stale = agent("a", vec![target("primary")]);
        let mut fresh = agent("b", vec![target("primary")]);
        stale.routes[0].targets[0].breaker.state = "open";
        stale.routes[0].targets[0].breaker.epoch = 1;
        fresh.routes[0].targets[0].breaker.state = "half-open";
        fresh.routes[0].targets[0].breaker.epoch = 2;
        for agents in [[stale.clone(), fresh.clone()], [fresh.clone(), stale.clone()]] {
            assert_eq!(Fleet::of(&agents).targets[0].status, Status::HalfOpen);
        }
        stale.store.reachable = false;
        for agents in [[stale.clone(), fresh.clone()], [fresh, stale]] {
            assert_eq!(Fleet::of(&agents).targets[0].status, Status::Open, "apart, the worst rules");
        }
    }

    #[test]
    fn labels_are_as_short_as_they_can_be() {
        let mut one = agent("a", vec![target("primary")]);
        let mut other = one.routes[0].clone();
        other.name = "embeddings".into();
        one.routes.push(other);
        let labels: Vec<String> = Fleet::of(&[one]).targets.into_iter().map(|target| target.label).collect();
        assert_eq!(labels, ["chat/primary", "embeddings/primary"]);
    }

    #[test]
    fn the_scarcest_bucket_and_the_longest_pause_show() {
        let mut one = agent("a", vec![target("primary")]);
        let mut two = agent("b", vec![target("primary")]);
        one.routes[0].targets[0].tokens_left = Some(900);
        two.routes[0].targets[0].tokens_left = Some(-50);
        two.routes[0].targets[0].rate_percent = 90;
        two.routes[0].targets[0].paused_for_ms = 5_000;
        let shown = Fleet::of(&[one, two]).targets.remove(0);
        assert_eq!((shown.tokens_left, shown.rate_percent), (Some(-50), 90));
        assert_eq!(shown.paused_for, Duration::from_secs(5));
    }
}
