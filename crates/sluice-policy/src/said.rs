//! What agents say, summed up: of one replica, and of all of them.
//!
//! One replica of the control plane writes status for all, so it needs what the agents of the others say. That travels
//! as changes ([`Said::since`], [`Said::take`]) and is added up ([`Said::add`]). Pure: streams and time are elsewhere.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sluice_api::status::{BreakerState as ApiBreakerState, BreakerStatus};
use sluice_core::admission::BreakerState;
use sluice_core::target_id::TargetId;
use sluice_proto::apply::RouteName;
use sluice_proto::bounds;
use sluice_proto::replica::{AgentFacts, BreakerSaid, ReplicaSaid};
use sluice_proto::report::BreakerSeen;

/// A sum. A route without agents is not there, nor is a breaker that none of them has seen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Said {
    pub routes: BTreeMap<RouteName, AgentFacts>,
    pub breakers: BTreeMap<TargetId, BreakerSaid>,
}

impl Said {
    /// Adds what other agents say.
    pub fn add(&mut self, other: &Self) {
        for (route, facts) in &other.routes {
            match self.routes.get_mut(route) {
                Some(sum) => sum.add(facts),
                None => {
                    self.routes.insert(route.clone(), facts.clone());
                }
            }
        }
        for (target, said) in &other.breakers {
            match self.breakers.get_mut(target) {
                Some(newest) => *newest = newer(*newest, *said),
                None => {
                    self.breakers.insert(target.clone(), *said);
                }
            }
        }
    }

    /// What someone has to be told who knows `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> ReplicaSaid {
        let gone = before.routes.keys().filter(|route| !self.routes.contains_key(*route));
        let gone = gone.map(|route| (route.clone(), AgentFacts::default()));
        let new = self.routes.iter().filter(|(route, facts)| before.routes.get(*route) != Some(*facts));
        let routes = new.map(|(route, facts)| (route.clone(), facts.clone())).chain(gone).collect();
        let gone = before.breakers.keys().filter(|target| !self.breakers.contains_key(*target));
        let gone = gone.map(|target| (target.clone(), None));
        let new = self.breakers.iter().filter(|(target, said)| before.breakers.get(*target) != Some(*said));
        let breakers = new.map(|(target, said)| (target.clone(), Some(*said))).chain(gone).collect();
        ReplicaSaid { routes, breakers, ..ReplicaSaid::default() }
    }

    /// Takes what [`Self::since`] gave, or a part of it.
    pub fn take(&mut self, said: &ReplicaSaid) {
        for (route, facts) in &said.routes {
            if facts.connected == 0 {
                self.routes.remove(route);
            } else {
                self.routes.insert(route.clone(), facts.clone());
            }
        }
        for (target, said) in &said.breakers {
            match said {
                Some(said) => self.breakers.insert(target.clone(), *said),
                None => self.breakers.remove(target),
            };
        }
    }

    /// The breakers as a status shows them.
    #[must_use]
    pub fn breaker_statuses(&self) -> BTreeMap<TargetId, BreakerStatus> {
        self.breakers.iter().map(|(target, said)| (target.clone(), breaker_status(said))).collect()
    }
}

/// Of two looks at one breaker: of the later epoch, or else what holds longer, or else what says why.
fn newer(one: BreakerSaid, other: BreakerSaid) -> BreakerSaid {
    let rank = |said: &BreakerSaid| (said.seen.epoch, said.seen.open_for, said.reason.is_some());
    if rank(&other) > rank(&one) { other } else { one }
}

/// One breaker as a status shows it.
#[must_use]
pub fn breaker_status(said: &BreakerSaid) -> BreakerStatus {
    BreakerStatus {
        state: shown(said.seen),
        since: since(said.seen.epoch),
        reason: said.reason.map(|reason| reason.as_str().to_owned()),
    }
}

/// An open breaker whose cool-down is over waits for a request to probe with.
fn shown(seen: BreakerSeen) -> ApiBreakerState {
    match seen.state {
        BreakerState::Closed => ApiBreakerState::Closed,
        BreakerState::HalfOpen => ApiBreakerState::HalfOpen,
        BreakerState::Open if seen.open_for == Duration::ZERO => ApiBreakerState::AwaitingProbe,
        BreakerState::Open => ApiBreakerState::Open,
    }
}

/// An epoch is the state's own clock in milliseconds when it began, unless the clock stepped back; the
/// epoch of a breaker that never changed says nothing.
fn since(epoch: u64) -> Option<Time> {
    let ms = i64::try_from(epoch).ok().filter(|ms| *ms > 1_000_000_000_000)?;
    k8s_openapi::jiff::Timestamp::from_second(ms / 1_000).ok().map(Time)
}

/// A message in parts that are within the bounds. The last one carries what is no list; nothing to say is one part.
#[must_use]
pub fn parts(said: ReplicaSaid) -> Vec<ReplicaSaid> {
    let ReplicaSaid { routes, breakers, transitions, whole } = said;
    let (mut routes, mut breakers) = (routes.into_iter().peekable(), breakers.into_iter().peekable());
    let mut transitions = transitions.into_iter().peekable();
    let mut parts = Vec::new();
    loop {
        let mut part = ReplicaSaid {
            routes: routes.by_ref().take(bounds::REPLICA_ENTRIES).collect(),
            breakers: breakers.by_ref().take(bounds::REPLICA_ENTRIES).collect(),
            transitions: transitions.by_ref().take(bounds::TRANSITIONS).collect(),
            whole: false,
        };
        let more = routes.peek().is_some() || breakers.peek().is_some() || transitions.peek().is_some();
        part.whole = whole && !more;
        parts.push(part);
        if !more {
            return parts;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::btree_map;
    use proptest::prelude::*;
    use sluice_core::admission::TransitionReason;

    use super::*;

    fn target(n: u8) -> TargetId {
        TargetId::of("ns", "dependency", "https://x", &n.to_string())
    }

    fn route(n: u8) -> RouteName {
        RouteName { namespace: "ns".into(), name: format!("route-{n}").into() }
    }

    fn breaker(state: BreakerState, epoch: u64, open_for: u64) -> BreakerSaid {
        BreakerSaid {
            seen: BreakerSeen { state, epoch, open_for: Duration::from_millis(open_for) },
            reason: None,
        }
    }

    fn facts() -> impl Strategy<Value = AgentFacts> {
        (1..4_u32, 0..3_u32, 0..2_u32, 0..2_u32).prop_map(|(connected, in_sync, rejecting, cut_off)| {
            AgentFacts { connected, in_sync, rejecting, cut_off, ..AgentFacts::default() }
        })
    }

    fn said() -> impl Strategy<Value = Said> {
        let breakers = (0..3_usize, 0..3_u64, 0..2_u64)
            .prop_map(|(state, epoch, open_for)| breaker(BreakerState::ALL[state], epoch, open_for));
        (btree_map(0..5_u8, facts(), 0..5), btree_map(0..5_u8, breakers, 0..5)).prop_map(
            |(routes, breakers)| Said {
                routes: routes.into_iter().map(|(n, facts)| (route(n), facts)).collect(),
                breakers: breakers.into_iter().map(|(n, said)| (target(n), said)).collect(),
            },
        )
    }

    proptest! {
        #[test]
        fn whoever_takes_the_changes_knows_the_same(before in said(), after in said()) {
            let mut known = before.clone();
            for part in parts(after.since(&before)) {
                // As it travels.
                known.take(&ReplicaSaid::decode(part.encode()).unwrap());
            }
            prop_assert_eq!(known, after);
        }

        #[test]
        fn the_sum_does_not_depend_on_the_order(one in said(), two in said(), three in said()) {
            let sum = |all: [&Said; 3]| all.into_iter().fold(Said::default(), |mut sum, said| {
                sum.add(said);
                sum
            });
            let counts = |sum: &Said| sum.routes.clone();
            let newest = |sum: &Said| {
                sum.breakers.iter().map(|(id, said)| (id.clone(), said.seen.epoch)).collect::<Vec<_>>()
            };
            let (forth, back) = (sum([&one, &two, &three]), sum([&three, &two, &one]));
            prop_assert_eq!(counts(&forth), counts(&back));
            prop_assert_eq!(newest(&forth), newest(&back));
        }
    }

    #[test]
    fn nothing_new_is_one_empty_part_and_much_is_several() {
        let mut much = Said::default();
        for n in 0..2_500_u32 {
            let name = RouteName { namespace: "ns".into(), name: n.to_string().into() };
            much.routes.insert(name, AgentFacts { connected: 1, ..AgentFacts::default() });
        }
        assert_eq!(parts(much.since(&much)), [ReplicaSaid::default()]);
        let told = parts(ReplicaSaid { whole: true, ..much.since(&Said::default()) });
        let sizes: Vec<_> = told.iter().map(|part| (part.routes.len(), part.whole)).collect();
        assert_eq!(sizes, [(1_000, false), (1_000, false), (500, true)]);
    }

    #[test]
    fn the_later_epoch_rules_and_a_reason_is_kept() {
        let mut sum =
            Said { breakers: [(target(1), breaker(BreakerState::Open, 5, 9))].into(), ..Said::default() };
        let closed = breaker(BreakerState::Closed, 7, 0);
        let why = BreakerSaid { reason: Some(TransitionReason::ProbesSucceeded), ..closed };
        for other in [closed, why, closed] {
            sum.add(&Said { breakers: [(target(1), other)].into(), ..Said::default() });
        }
        assert_eq!(sum.breakers[&target(1)], why);
    }

    #[test]
    fn a_cool_down_that_is_over_waits_for_a_probe_and_an_epoch_says_since_when() {
        let status = breaker_status(&breaker(BreakerState::Open, 1_800_000_000_123, 0));
        assert_eq!(status.state, ApiBreakerState::AwaitingProbe);
        assert_eq!(status.since.unwrap().0.as_second(), 1_800_000_000);
        assert_eq!(breaker_status(&breaker(BreakerState::Closed, 3, 0)).since, None);
    }
}
