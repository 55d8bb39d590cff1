//! How long what was written is left alone, so that a quarrel over its content is a slow one.
//!
//! After a write, or an attempt at one, a second's pause; should it be written again within [`QUIET`] of that, twice the
//! pause, and so on up to [`LONGEST`]. What stayed as it was for [`QUIET`] begins anew.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_mins(1);
const QUIET: Duration = Duration::from_mins(1);

#[derive(Debug)]
struct Pause {
    until: Instant,
    length: Duration,
}

/// By what was written.
#[derive(Debug)]
pub(crate) struct Pauses<K>(BTreeMap<K, Pause>);

impl<K: Ord> Default for Pauses<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Pauses<K> {
    /// Whether it is to be left alone now.
    pub(crate) fn rests(&self, what: &K, now: Instant) -> bool {
        self.0.get(what).is_some_and(|pause| now < pause.until)
    }

    pub(crate) fn wrote(&mut self, what: K, now: Instant) {
        self.0.retain(|_, pause| now < pause.until + QUIET);
        let length = self.0.get(&what).map_or(FIRST, |pause| (pause.length * 2).min(LONGEST));
        self.0.insert(what, Pause { until: now + length, length });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn a_quarrel_slows_down_and_a_change_now_and_then_is_answered_at_once() {
        let (mut pauses, mut now) = (Pauses::default(), clock::now());
        let mut lengths = Vec::new();
        for _ in 0..9 {
            let began = now;
            pauses.wrote("a", now);
            while pauses.rests(&"a", now) {
                now += Duration::from_secs(1);
            }
            lengths.push((now - began).as_secs());
        }
        assert_eq!(lengths, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert!(!pauses.rests(&"b", now), "another one");
        now += QUIET;
        pauses.wrote("a", now);
        assert!(pauses.rests(&"a", now) && !pauses.rests(&"a", now + FIRST));
    }
}
