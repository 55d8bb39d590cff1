//! What is to be told yet: which notice is next, and what becomes of one that was tried. Pure.
//!
//! Notices come in two lines, which take turns: what the status writer sends, and pods without an agent. Ten thousand
//! such pods are no reason to keep a refused route to oneself for a quarter of an hour.
//!
//! Edge rules
//! - Told is what the API server has, or will not have; one that it could not take goes to the end of its line, and is
//!   given up after [`TRIES`].
//! - One that this replica could not tell for want of the Lease keeps its place: nobody else knows of it, as the status
//!   that it came with is written. After an hour it is no news any more.
//! - Pods are those that are without an agent now: one that got its agent is not waited for.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::notice::Notice;

/// Notices of the status writer that wait here; more wait in its channel.
const WAITING: usize = 1_024;
/// How long a name is remembered, so that it is not offered again: for as long as API servers keep Events.
const TOLD_FOR: Duration = Duration::from_hours(1);
/// Names that are remembered: more than there are pods without an agent.
const TOLD: usize = 16_384;
/// An Event is tried so often, and again after this: an API server that is away for a moment is no reason to keep it to
/// oneself.
pub(super) const TRIES: u32 = 30;
pub(super) const AGAIN: Duration = Duration::from_secs(1);

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The API server has it, or will not have it.
    Done,
    /// It could not be written now.
    Failed,
    /// It is not this replica's to write any more.
    Over,
}

/// Names that have been told lately.
#[derive(Debug, Default)]
pub(super) struct Told(BTreeMap<String, Instant>);

impl Told {
    pub(super) fn has(&self, notice: &Notice, now: Instant) -> bool {
        self.0.get(&name(notice)).is_some_and(|at| now < *at + TOLD_FOR)
    }

    pub(super) fn remember(&mut self, notice: &Notice, now: Instant) {
        if self.0.len() >= TOLD {
            self.0.retain(|_, at| now < *at + TOLD_FOR);
        }
        if self.0.len() >= TOLD {
            // The API server knows the names too.
            self.0.clear();
        }
        self.0.insert(name(notice), now);
    }
}

/// With its namespace.
fn name(notice: &Notice) -> String {
    format!("{}/{}", notice.namespace(), notice.name())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Line {
    Status,
    #[default]
    Pods,
}

/// One that is to be told.
#[derive(Debug, PartialEq)]
pub(super) struct Waiting {
    pub(super) notice: Notice,
    line: Line,
    since: Instant,
    tries: u32,
    /// When it may be tried.
    from: Instant,
}

impl Waiting {
    fn new(notice: Notice, line: Line, now: Instant) -> Self {
        Self { notice, line, since: now, tries: 0, from: now }
    }
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    status: VecDeque<Waiting>,
    pods: VecDeque<Waiting>,
    /// Whose turn it was last.
    last: Line,
    told: Told,
}

impl Queue {
    pub(super) fn has_room(&self) -> bool {
        self.status.len() < WAITING
    }

    /// Takes one of the status writer's.
    pub(super) fn take(&mut self, notice: Notice, now: Instant) {
        self.status.push_back(Waiting::new(notice, Line::Status, now));
    }

    /// These pods are without an agent, and no others.
    pub(super) fn set_pods(&mut self, notices: impl Iterator<Item = Notice>, now: Instant) {
        let before = std::mem::take(&mut self.pods).into_iter();
        let mut before: BTreeMap<String, Waiting> =
            before.map(|waiting| (name(&waiting.notice), waiting)).collect();
        let untold = notices.filter(|notice| !self.told.has(notice, now));
        self.pods = untold
            .map(|notice| before.remove(&name(&notice)).unwrap_or(Waiting::new(notice, Line::Pods, now)))
            .collect();
    }

    /// When the next one may be told; `None`: there is none.
    pub(super) fn due(&self) -> Option<Instant> {
        let first = [&self.status, &self.pods].into_iter().filter_map(VecDeque::front);
        first.map(|waiting| waiting.from).min()
    }

    /// The next one that may be told now.
    pub(super) fn next(&mut self, now: Instant) -> Option<Waiting> {
        let turns = match self.last {
            Line::Status => [Line::Pods, Line::Status],
            Line::Pods => [Line::Status, Line::Pods],
        };
        for line in turns {
            while let Some(waiting) = self.line(line).pop_front_if(|waiting| waiting.from <= now) {
                if now < waiting.since + TOLD_FOR && !self.told.has(&waiting.notice, now) {
                    self.last = line;
                    return Some(waiting);
                }
            }
        }
        None
    }

    /// One that was given by [`Self::next`] has been tried.
    pub(super) fn tried(&mut self, mut waiting: Waiting, outcome: Outcome, now: Instant) {
        match outcome {
            Outcome::Done => self.told.remember(&waiting.notice, now),
            Outcome::Over => self.line(waiting.line).push_front(waiting),
            Outcome::Failed => {
                (waiting.tries, waiting.from) = (waiting.tries + 1, now + AGAIN);
                if waiting.tries < TRIES {
                    self.line(waiting.line).push_back(waiting);
                }
            }
        }
    }

    fn line(&mut self, line: Line) -> &mut VecDeque<Waiting> {
        match line {
            Line::Status => &mut self.status,
            Line::Pods => &mut self.pods,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::events::notice::tests::{of_pod, of_route};

    /// Whose turn it is, by the object's name.
    fn turn(queue: &mut Queue, now: Instant) -> Option<(String, Waiting)> {
        let waiting = queue.next(now)?;
        let name = waiting.notice.name();
        Some((name.split('.').next().unwrap().to_owned(), waiting))
    }

    /// Tries the next one.
    fn tell(queue: &mut Queue, outcome: Outcome, now: Instant) -> Option<String> {
        let (name, waiting) = turn(queue, now)?;
        queue.tried(waiting, outcome, now);
        Some(name)
    }

    #[test]
    fn the_lines_take_turns_and_each_thing_is_told_once() {
        let (mut queue, now) = (Queue::default(), clock::now());
        assert_eq!((queue.due(), queue.next(now)), (None, None));
        let pods = ["p1", "p2", "p3"];
        queue.set_pods(pods.map(of_pod).into_iter(), now);
        for route in ["r1", "r1", "r2"] {
            queue.take(of_route(route), now);
        }
        assert_eq!(queue.due(), Some(now));
        let told: Vec<String> = std::iter::from_fn(|| tell(&mut queue, Outcome::Done, now)).collect();
        assert_eq!(told, ["r1", "p1", "r2", "p2", "p3"]);
        queue.set_pods(pods.map(of_pod).into_iter(), now);
        queue.take(of_route("r2"), now);
        assert_eq!(tell(&mut queue, Outcome::Done, now), None);
        // API servers have forgotten it by then.
        queue.set_pods(pods.map(of_pod).into_iter(), now + TOLD_FOR);
        assert_eq!(tell(&mut queue, Outcome::Done, now + TOLD_FOR).unwrap(), "p1");
    }

    #[test]
    fn what_was_not_taken_is_tried_again_at_the_end_of_its_line_until_it_is_given_up() {
        let (mut queue, mut now) = (Queue::default(), clock::now());
        queue.take(of_route("a"), now);
        queue.take(of_route("b"), now);
        assert_eq!(tell(&mut queue, Outcome::Failed, now).unwrap(), "a");
        assert_eq!(tell(&mut queue, Outcome::Done, now).unwrap(), "b");
        assert_eq!((tell(&mut queue, Outcome::Done, now), queue.due()), (None, Some(now + AGAIN)));
        for _ in 1..TRIES {
            now += AGAIN;
            assert_eq!(tell(&mut queue, Outcome::Failed, now).unwrap(), "a");
        }
        assert_eq!(queue.due(), None, "given up");
        // It comes again: it has not been told.
        queue.take(of_route("a"), now);
        assert_eq!(tell(&mut queue, Outcome::Done, now).unwrap(), "a");
    }

    #[test]
    fn what_waits_for_the_lease_keeps_its_place_for_an_hour() {
        let (mut queue, now) = (Queue::default(), clock::now());
        queue.take(of_route("a"), now);
        queue.take(of_route("b"), now);
        for _ in 0..2 * TRIES {
            assert_eq!(tell(&mut queue, Outcome::Over, now).unwrap(), "a");
        }
        assert_eq!(tell(&mut queue, Outcome::Done, now + TOLD_FOR), None);
        assert_eq!(queue.due(), None);
    }

    #[test]
    fn a_pod_that_got_its_agent_is_not_waited_for_and_the_others_keep_their_tries() {
        let (mut queue, now) = (Queue::default(), clock::now());
        queue.set_pods(["p1", "p2"].map(of_pod).into_iter(), now);
        assert_eq!(tell(&mut queue, Outcome::Failed, now).unwrap(), "p1");
        queue.set_pods(["p1", "p3"].map(of_pod).into_iter(), now);
        let (name, waiting) = turn(&mut queue, now + AGAIN).unwrap();
        assert_eq!((name.as_str(), waiting.tries), ("p1", 1));
        assert_eq!(tell(&mut queue, Outcome::Done, now + AGAIN).unwrap(), "p3");
        assert_eq!(queue.next(now + AGAIN), None);
    }

    #[test]
    fn it_is_bounded() {
        let (mut queue, now) = (Queue::default(), clock::now());
        for n in 0..WAITING {
            assert!(queue.has_room());
            queue.take(of_route(&format!("r{n}")), now);
        }
        assert!(!queue.has_room());
        let mut told = Told::default();
        for n in 0..2 * TOLD {
            told.remember(&of_route(&format!("r{n}")), now);
            assert!(told.0.len() <= TOLD);
        }
    }
}
