//! What the other replicas said, for the one that writes: who is there, who has told everything, and the sum.
//!
//! Pure; the caller has the streams, the clock, and the list of who is live.
//!
//! Edge rules
//! - A replica that begins anew (its stream was recycled, it was restarted) is counted as it was before until it has
//!   told everything again: counts must not dip to zero because a stream did.
//! - One that says farewell has no agents any more, at once. One whose stream breaks off is remembered for
//!   [`KEPT`]: it is there, or its agents have not come to another replica yet.
//! - One that is not live any more is forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use sluice_proto::replica::ReplicaSaid;
use tokio::time::Instant;

use crate::said::Said;

/// How long a replica that broke off is counted as it was.
pub const KEPT: Duration = Duration::from_secs(10);

/// The other replicas, by a name that tells them apart.
#[derive(Debug, Default)]
pub struct Replicas {
    live: BTreeMap<Arc<str>, Replica>,
}

#[derive(Debug, Default)]
struct Replica {
    said: Said,
    /// What came since a stream began, until it is everything.
    coming: Option<Said>,
    has_reported: bool,
    lost: Option<Instant>,
}

impl Replicas {
    /// These are live, and no others.
    pub fn set_live(&mut self, live: &BTreeSet<Arc<str>>) {
        self.live.retain(|name, _| live.contains(name));
        for name in live {
            self.live.entry(name.clone()).or_default();
        }
    }

    /// A stream of a replica begins.
    pub fn began(&mut self, name: &str) {
        if let Some(replica) = self.live.get_mut(name) {
            replica.coming = Some(Said::default());
        }
    }

    pub fn heard(&mut self, name: &str, said: &ReplicaSaid) {
        let Some(replica) = self.live.get_mut(name) else { return };
        replica.coming.as_mut().unwrap_or(&mut replica.said).take(said);
        if said.whole
            && let Some(everything) = replica.coming.take()
        {
            replica.said = everything;
            replica.has_reported = true;
            replica.lost = None;
        }
    }

    /// A stream of a replica ended, or could not be had.
    pub fn ended(&mut self, name: &str, farewell: bool, now: Instant) {
        let Some(replica) = self.live.get_mut(name) else { return };
        replica.coming = None;
        if farewell {
            *replica = Replica { has_reported: true, ..Replica::default() };
        } else {
            replica.lost.get_or_insert(now);
        }
    }

    /// Whether every live replica has told everything once.
    #[must_use]
    pub fn have_all_reported(&self) -> bool {
        self.live.values().all(|replica| replica.has_reported)
    }

    /// Adds what they said.
    pub fn add_to(&self, sum: &mut Said, now: Instant) {
        let heard = self.live.values().filter(|replica| replica.lost.is_none_or(|lost| now < lost + KEPT));
        for replica in heard {
            sum.add(&replica.said);
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_proto::apply::RouteName;
    use sluice_proto::replica::AgentFacts;

    use super::*;

    fn says(agents: u32, whole: bool) -> ReplicaSaid {
        let route = RouteName { namespace: "ns".into(), name: "chat".into() };
        let facts = AgentFacts { connected: agents, in_sync: agents, ..AgentFacts::default() };
        ReplicaSaid { routes: [(route, facts)].into(), whole, ..ReplicaSaid::default() }
    }

    fn live(names: &[&str]) -> BTreeSet<Arc<str>> {
        names.iter().map(|name| Arc::from(*name)).collect()
    }

    fn agents(replicas: &Replicas, now: Instant) -> u32 {
        let mut sum = Said::default();
        replicas.add_to(&mut sum, now);
        sum.routes.values().map(|facts| facts.connected).sum()
    }

    /// The moment does not matter.
    #[allow(clippy::disallowed_methods, reason = "some moment to count from")]
    fn start() -> Instant {
        Instant::now()
    }

    #[test]
    fn all_have_reported_when_each_has_told_everything() {
        let (mut replicas, now) = (Replicas::default(), start());
        assert!(replicas.have_all_reported(), "there are no others");
        replicas.set_live(&live(&["a", "b"]));
        assert!(!replicas.have_all_reported());
        for name in ["a", "b"] {
            assert!(!replicas.have_all_reported());
            replicas.began(name);
            replicas.heard(name, &says(2, false));
            assert!(!replicas.have_all_reported(), "a part is not everything");
            replicas.heard(name, &ReplicaSaid { whole: true, ..ReplicaSaid::default() });
        }
        assert!(replicas.have_all_reported());
        assert_eq!(agents(&replicas, now), 4);
        replicas.set_live(&live(&["a", "b", "c"]));
        assert!(!replicas.have_all_reported(), "a new one");
        replicas.set_live(&live(&["a"]));
        assert_eq!((replicas.have_all_reported(), agents(&replicas, now)), (true, 2));
        replicas.heard("gone", &says(9, true));
        assert_eq!(agents(&replicas, now), 2, "only live ones count");
    }

    #[test]
    fn a_stream_that_begins_anew_does_not_dip() {
        let (mut replicas, now) = (Replicas::default(), start());
        replicas.set_live(&live(&["a"]));
        replicas.began("a");
        replicas.heard("a", &says(5, true));
        replicas.ended("a", false, now);
        replicas.began("a");
        assert_eq!(agents(&replicas, now), 5);
        replicas.heard("a", &says(3, false));
        assert_eq!(agents(&replicas, now), 5, "it has not told everything");
        replicas.heard("a", &ReplicaSaid { whole: true, ..ReplicaSaid::default() });
        assert_eq!(agents(&replicas, now + 2 * KEPT), 3, "it is heard again");
        replicas.heard("a", &says(4, false));
        assert_eq!(agents(&replicas, now), 4, "a change");
    }

    #[test]
    fn who_breaks_off_is_counted_for_a_while_and_who_takes_leave_is_not() {
        let (mut replicas, now) = (Replicas::default(), start());
        replicas.set_live(&live(&["a", "b"]));
        for name in ["a", "b"] {
            replicas.began(name);
            replicas.heard(name, &says(1, true));
        }
        replicas.ended("a", true, now);
        assert_eq!(agents(&replicas, now), 1);
        replicas.ended("b", false, now);
        // Trying again in vain does not make it younger.
        replicas.ended("b", false, now + KEPT / 2);
        assert_eq!(agents(&replicas, now + KEPT / 2), 1);
        assert_eq!(agents(&replicas, now + KEPT), 0);
        assert!(replicas.have_all_reported());
    }
}
