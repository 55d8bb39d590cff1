//! From a queue to a collector: batches, repetitions with a bound, and the books of what was given up.
//!
//! All of it runs on one thread of its own (see [`crate::Telemetry`]), so that a collector that hangs, or a
//! resolver that does, keeps no exchange waiting; what comes meanwhile waits in the queue, and then is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::books::{Books, Dropped, SignalBooks};
use crate::collector::{Collector, Export, SendError};
use crate::names;
use crate::queue::Queue;
use crate::settings::{Batching, Signal};

/// Before the second, third … try; the last is repeated until the batch's time is up.
const BACKOFF: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(5)];

/// One signal's way out.
pub(crate) struct Outlet {
    pub(crate) collector: Collector,
    pub(crate) books: Arc<Books>,
    pub(crate) failing: AtomicBool,
}

impl Outlet {
    pub(crate) fn new(collector: Collector, books: Arc<Books>) -> Self {
        Self { collector, books, failing: AtomicBool::new(false) }
    }

    /// Sends a request, again while that may help and there is time.
    pub(crate) async fn deliver<R: Export>(
        &self,
        request: &R,
        items: usize,
        time: Duration,
        again: impl Fn() -> bool,
    ) {
        let books = self.books.signal(R::SIGNAL);
        let in_flight = InFlight { books, items: items as u64 };
        let delivered = tokio::time::timeout(time, self.try_until_done(request, again)).await;
        in_flight.arrived();
        match delivered.unwrap_or(Err(SendError::Timeout(time))) {
            Ok(rejected) => {
                let rejected = rejected.min(items as u64);
                books.exported(items as u64 - rejected);
                books.dropped(Dropped::Rejected, rejected);
                self.say(R::SIGNAL, None);
            }
            Err(error) => {
                let reason = if error.may_pass() { Dropped::SendFailed } else { Dropped::Rejected };
                books.dropped(reason, items as u64);
                self.say(R::SIGNAL, Some(&error));
            }
        }
    }

    async fn try_until_done<R: Export>(
        &self,
        request: &R,
        again: impl Fn() -> bool,
    ) -> Result<u64, SendError> {
        let mut waits = BACKOFF.into_iter();
        let mut wait = BACKOFF[0];
        loop {
            let error = match self.collector.send(request).await {
                Ok(rejected) => return Ok(rejected),
                Err(error) => error,
            };
            if !error.may_pass() || !again() {
                return Err(error);
            }
            self.say(R::SIGNAL, Some(&error));
            wait = waits.next().unwrap_or(wait);
            tokio::time::sleep(error.retry_after().unwrap_or(wait)).await;
        }
    }

    /// One line when a collector stops taking a signal, one when it takes it again.
    fn say(&self, signal: Signal, error: Option<&SendError>) {
        let was = self.failing.swap(error.is_some(), Ordering::Relaxed);
        let signal = signal.as_str();
        match error {
            Some(error) if !was => tracing::warn!(
                target: names::log::TELEMETRY,
                signal,
                %error,
                "the collector takes nothing; what does not fit in the queue is dropped and counted"
            ),
            None if was => {
                tracing::info!(target: names::log::TELEMETRY, signal, "the collector takes telemetry again");
            }
            _ => {}
        }
    }
}

/// What is on its way when the process ends is given up, and counted.
struct InFlight<'a> {
    books: &'a SignalBooks,
    items: u64,
}

impl InFlight<'_> {
    fn arrived(mut self) {
        self.items = 0;
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.books.dropped(Dropped::Shutdown, self.items);
    }
}

/// Empties a queue until it is closed.
pub(crate) async fn empty<T, R: Export>(
    queue: Arc<Queue<T>>,
    batching: Batching,
    outlet: Outlet,
    encode: impl Fn(Vec<T>) -> R,
) {
    loop {
        queue.filled(batching.delay).await;
        let closed = queue.is_closed();
        loop {
            let batch = queue.take();
            if batch.is_empty() {
                break;
            }
            let items = batch.len();
            // A process that ends has no time to ask twice.
            outlet.deliver(&encode(batch), items, batching.timeout, || !queue.is_closed()).await;
        }
        if closed {
            return;
        }
    }
}
