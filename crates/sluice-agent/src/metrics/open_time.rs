//! For how long a breaker refused because it was open, added up between the moments at which something was seen of
//! it: transitions, and readings of the page. The wait for a probe after the cool-down is not open time, since
//! nobody is refused then; so a breaker without traffic does not look like an outage that goes on.

use std::time::Duration;

#[derive(Debug, Default)]
pub(super) struct OpenTime {
    /// What was added up reaches to here.
    counted: Duration,
    /// Until when it refuses; `None`: it is not open.
    until: Option<Duration>,
}

impl OpenTime {
    /// What was seen: open for so long, or not open. Returns the time to add.
    pub(super) fn see(&mut self, now: Duration, open_for: Option<Duration>) -> Duration {
        let past = self.until.map_or(Duration::ZERO, |until| now.min(until).saturating_sub(self.counted));
        self.counted = now;
        self.until = open_for.map(|open_for| now.saturating_add(open_for));
        past
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn open_time_adds_up_and_leaves_the_wait_for_a_probe_out() {
        let mut time = OpenTime::default();
        let seen = [
            // When, open for, and what it adds.
            (0, None, 0),
            (10, Some(30), 0),
            (15, Some(25), 5),
            (25, Some(15), 10),
            // The cool-down ended at 40, nobody asked until 100.
            (90, Some(0), 15),
            (100, None, 0),
            (101, Some(45), 0),
            // Closed by what this agent heard before the time was over.
            (111, None, 10),
            (500, None, 0),
        ];
        for (at, open_for, adds) in seen {
            assert_eq!(time.see(s(at), open_for.map(s)), s(adds), "at {at}");
        }
    }
}
