//! What waits for an exporter: bounded by items, filled without ever waiting, emptied by one worker.
//!
//! Not the SDK's batch processors: those keep the number of drops to themselves, block a thread of their own for
//! each signal, and take spans one by one, so that a full queue tears traces apart. Here a group (one trace's
//! spans) goes in whole or not at all, and every item that is given up is counted with its reason.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Groups of items.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    waiting: Mutex<Waiting<T>>,
    capacity: usize,
    batch: usize,
    wake: Notify,
}

#[derive(Debug)]
struct Waiting<T> {
    groups: VecDeque<Vec<T>>,
    items: usize,
    closed: bool,
}

impl<T> Queue<T> {
    pub(crate) fn new(capacity: usize, batch: usize) -> Self {
        let waiting = Waiting { groups: VecDeque::new(), items: 0, closed: false };
        Self { waiting: Mutex::new(waiting), capacity, batch, wake: Notify::new() }
    }

    /// Puts a group in, or gives it back when there is no room for all of it.
    pub(crate) fn push(&self, group: Vec<T>) -> Result<(), Vec<T>> {
        let mut waiting = self.waiting.lock();
        if waiting.closed || waiting.items + group.len() > self.capacity {
            return Err(group);
        }
        waiting.items += group.len();
        let full = waiting.items >= self.batch;
        waiting.groups.push_back(group);
        drop(waiting);
        if full {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Whole groups up to the size of a batch, or one that alone exceeds it. Empty: nothing waits.
    pub(crate) fn take(&self) -> Vec<T> {
        let mut waiting = self.waiting.lock();
        let mut batch = waiting.groups.pop_front().unwrap_or_default();
        while waiting.groups.front().is_some_and(|next| batch.len() + next.len() <= self.batch) {
            batch.extend(waiting.groups.pop_front().unwrap_or_default());
        }
        waiting.items -= batch.len();
        batch
    }

    /// Nothing more comes in; the worker takes what is there and ends.
    pub(crate) fn close(&self) {
        self.waiting.lock().closed = true;
        self.wake.notify_one();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.waiting.lock().closed
    }

    /// Until there is a batch, or `delay` has passed, or the queue is closed.
    pub(crate) async fn filled(&self, delay: Duration) {
        let ready = || {
            let waiting = self.waiting.lock();
            waiting.closed || waiting.items >= self.batch
        };
        let wait = async {
            while !ready() {
                self.wake.notified().await;
            }
        };
        // That the delay passed is as good a reason to go on as a full batch.
        let _ = tokio::time::timeout(delay, wait).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_goes_in_whole_or_not_at_all() {
        let queue = Queue::new(5, 4);
        assert!(queue.push(vec![1, 2, 3]).is_ok());
        assert_eq!(queue.push(vec![4, 5, 6]), Err(vec![4, 5, 6]));
        assert!(queue.push(vec![7, 8]).is_ok());
        assert_eq!(queue.take(), [1, 2, 3], "the next group does not fit in the batch");
        assert!(queue.push(vec![9]).is_ok(), "there is room again");
        assert_eq!(queue.take(), [7, 8, 9]);
        assert!(queue.take().is_empty());
    }

    #[test]
    fn a_group_larger_than_a_batch_goes_alone() {
        let queue = Queue::new(10, 2);
        queue.push(vec![1, 2, 3]).unwrap();
        queue.push(vec![4]).unwrap();
        assert_eq!(queue.take(), [1, 2, 3]);
        assert_eq!(queue.take(), [4]);
    }

    #[test]
    fn a_closed_queue_takes_nothing_more_and_keeps_what_it_has() {
        let queue = Queue::new(10, 2);
        queue.push(vec![1]).unwrap();
        queue.close();
        assert_eq!(queue.push(vec![2]), Err(vec![2]));
        assert_eq!(queue.take(), [1]);
    }

    #[tokio::test(start_paused = true)]
    #[allow(clippy::disallowed_methods, reason = "the paused clock is what is looked at")]
    async fn the_worker_wakes_for_a_batch_at_once_and_for_less_after_the_delay() {
        let queue = Queue::new(10, 2);
        let started = tokio::time::Instant::now();
        queue.push(vec![1]).unwrap();
        queue.filled(Duration::from_secs(5)).await;
        assert_eq!(tokio::time::Instant::now() - started, Duration::from_secs(5));
        queue.push(vec![2]).unwrap();
        queue.filled(Duration::from_secs(5)).await;
        assert_eq!(tokio::time::Instant::now() - started, Duration::from_secs(5));
    }
}
