//! The books: counting calls and tokens as they happen, and remembering the most recent calls.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until};

use crate::clock;
use crate::conn::ConnState;
use crate::pace::Pace;
use crate::quota::Buckets;
use crate::stats::{Call, Counts, Outcome, Stats};

/// Models beyond so many are counted together, so that random names can't grow the books.
const MAX_MODELS: usize = 1000;

#[derive(Debug)]
pub(crate) struct Ledger {
    books: Mutex<Books>,
    next_seq: AtomicU64,
    next_connection: AtomicU64,
    /// Tasks in `wait`; while there are none, changes cost no notification.
    waiters: AtomicUsize,
    changed: Notify,
    /// Changes whenever silent calls are told to go on.
    gate: watch::Sender<u64>,
}

#[derive(Debug)]
struct Books {
    total: Page,
    models: BTreeMap<String, Page>,
    connections: u64,
    open_connections: u64,
    calls: VecDeque<Arc<Mutex<Call>>>,
    since: Instant,
}

/// Counts with their tokens apart, which are counted without the lock.
#[derive(Debug, Default)]
struct Page {
    counts: Counts,
    tokens: Arc<Tokens>,
}

#[derive(Debug, Default)]
struct Tokens {
    output: AtomicU64,
    after_cancel: AtomicU64,
}

impl Page {
    fn snapshot(&self) -> Counts {
        let mut counts = self.counts.clone();
        counts.output_tokens = self.tokens.output.load(SeqCst);
        counts.tokens_after_cancel = self.tokens.after_cancel.load(SeqCst);
        counts
    }

    /// Zeros, except for what is still in flight.
    fn reset(&mut self) {
        let Counts { in_flight, stalled, .. } = self.counts;
        self.counts =
            Counts { started: in_flight, in_flight, max_in_flight: in_flight, stalled, ..Counts::default() };
        self.tokens.output.store(0, Relaxed);
        self.tokens.after_cancel.store(0, Relaxed);
    }
}

impl Ledger {
    pub(crate) fn new() -> Self {
        let books = Books {
            total: Page::default(),
            models: BTreeMap::new(),
            connections: 0,
            open_connections: 0,
            calls: VecDeque::new(),
            since: clock::now(),
        };
        Self {
            books: Mutex::new(books),
            next_seq: AtomicU64::new(1),
            next_connection: AtomicU64::new(1),
            waiters: AtomicUsize::new(0),
            changed: Notify::new(),
            gate: watch::Sender::new(0),
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        let books = self.books.lock();
        Stats {
            total: books.total.snapshot(),
            models: books.models.iter().map(|(name, page)| (name.clone(), page.snapshot())).collect(),
            connections: books.connections,
            open_connections: books.open_connections,
        }
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        let calls: Vec<_> = self.books.lock().calls.iter().cloned().collect();
        calls.iter().map(|call| call.lock().clone()).collect()
    }

    pub(crate) fn reset(&self) {
        let mut books = self.books.lock();
        books.total.reset();
        books.models.retain(|_, page| page.counts.in_flight > 0);
        books.models.values_mut().for_each(Page::reset);
        books.calls.clear();
        books.connections = books.open_connections;
        books.since = clock::now();
        drop(books);
        self.notify();
    }

    pub(crate) fn open_connection(&self) -> u64 {
        let mut books = self.books.lock();
        books.connections += 1;
        books.open_connections += 1;
        drop(books);
        self.notify();
        self.next_connection.fetch_add(1, Relaxed)
    }

    pub(crate) fn close_connection(&self) {
        self.books.lock().open_connections -= 1;
        self.notify();
    }

    /// Tells the calls that are silent now to go on.
    pub(crate) fn release(&self) {
        self.gate.send_modify(|releases| *releases += 1);
    }

    /// Changes with the next release.
    pub(crate) fn gate(&self) -> watch::Receiver<u64> {
        self.gate.subscribe()
    }

    /// Returns what `done` finds; it is asked again after every change.
    pub(crate) async fn wait<T>(&self, mut done: impl FnMut(&Self) -> Option<T>) -> T {
        // In one order with the counters of tokens, which no lock protects: either this task sees a change, or
        // whoever made it sees this task.
        self.waiters.fetch_add(1, SeqCst);
        let _leave = Leave(&self.waiters);
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Registered before the question, so that no change falls between.
            changed.as_mut().enable();
            if let Some(found) = done(self) {
                return found;
            }
            changed.await;
        }
    }

    fn notify(&self) {
        if self.waiters.load(SeqCst) > 0 {
            self.changed.notify_waiters();
        }
    }

    /// Counts an arrival. `call` has what is known of the request; `keep` is how many calls are remembered.
    pub(crate) fn begin(
        self: &Arc<Self>,
        mut call: Call,
        arrived: Instant,
        keep: usize,
        conn: &Arc<ConnState>,
    ) -> CallGuard {
        let mut books = self.books.lock();
        call.seq = self.next_seq.fetch_add(1, Relaxed);
        call.at_ms = arrived.saturating_duration_since(books.since).as_millis() as u64;
        let model = if books.models.contains_key(&call.model) || books.models.len() < MAX_MODELS {
            call.model.clone()
        } else {
            "_other".to_owned()
        };
        books.total.started();
        books.models.entry(model.clone()).or_default().started();
        let tokens = [
            Arc::clone(&books.total.tokens),
            Arc::clone(&books.models.entry(model.clone()).or_default().tokens),
        ];
        let seq = call.seq;
        let record = (keep > 0).then(|| Arc::new(Mutex::new(call)));
        if let Some(record) = &record {
            while books.calls.len() >= keep {
                books.calls.pop_front();
            }
            books.calls.push_back(Arc::clone(record));
        }
        drop(books);
        self.notify();
        CallGuard {
            ledger: Arc::clone(self),
            conn: Arc::clone(conn),
            model,
            record,
            tokens,
            seq,
            arrived,
            produced: 0,
            answered: false,
            over: false,
            stalled: false,
            reserved: None,
            slot: None,
            keep_generating: None,
        }
    }

    fn change(&self, model: &str, change: impl Fn(&mut Counts)) {
        let mut books = self.books.lock();
        change(&mut books.total.counts);
        // Absent only when a reset fell between two steps of a call.
        if let Some(page) = books.models.get_mut(model) {
            change(&mut page.counts);
        }
        drop(books);
        self.notify();
    }
}

impl Page {
    fn started(&mut self) {
        self.counts.started += 1;
        self.counts.in_flight += 1;
        self.counts.max_in_flight = self.counts.max_in_flight.max(self.counts.in_flight);
    }
}

struct Leave<'a>(&'a AtomicUsize);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// A call in flight. Dropping it before it is over means that the client has left.
#[derive(Debug)]
pub(crate) struct CallGuard {
    ledger: Arc<Ledger>,
    conn: Arc<ConnState>,
    model: String,
    record: Option<Arc<Mutex<Call>>>,
    tokens: [Arc<Tokens>; 2],
    seq: u64,
    pub(crate) arrived: Instant,
    produced: u64,
    answered: bool,
    over: bool,
    stalled: bool,
    /// Quotas to settle at the end, and the output that they reserved.
    reserved: Option<([Option<Arc<Buckets>>; 2], u64)>,
    slot: Option<OwnedSemaphorePermit>,
    /// How many tokens to produce even if the client leaves, and when.
    keep_generating: Option<(u64, Pace)>,
}

impl CallGuard {
    pub(crate) fn seq(&self) -> u64 {
        self.seq
    }

    pub(crate) fn reserve(&mut self, quotas: [Option<Arc<Buckets>>; 2], max_output: u64) {
        self.reserved = Some((quotas, max_output));
    }

    /// Keeps a slot of the saturated server until the call is over.
    pub(crate) fn hold(&mut self, slot: OwnedSemaphorePermit) {
        self.slot = Some(slot);
    }

    /// Goes on producing up to `total` tokens when the client has left.
    pub(crate) fn keep_generating(&mut self, total: u64, pace: Pace) {
        self.keep_generating = Some((total, pace));
    }

    /// The headers are on their way.
    pub(crate) fn answered(&mut self, status: u16, input_tokens: u64) {
        self.answered = true;
        self.ledger.change(&self.model, |counts| {
            *counts.by_status.entry(status).or_default() += 1;
            counts.input_tokens += input_tokens;
        });
        self.record(|call, ms| {
            call.status = Some(status);
            call.headers_ms = Some(ms);
        });
    }

    /// Tokens were produced.
    pub(crate) fn produced(&mut self, count: u64) {
        if count == 0 {
            return;
        }
        let first = self.produced == 0;
        self.produced += count;
        let late = self.conn.peer_left() || self.over;
        for tokens in &self.tokens {
            tokens.output.fetch_add(count, SeqCst);
            if late {
                tokens.after_cancel.fetch_add(count, SeqCst);
            }
        }
        if let Some(record) = &self.record {
            let mut call = record.lock();
            call.tokens = self.produced;
            if first {
                call.first_token_ms = Some((clock::now() - self.arrived).as_millis() as u64);
            }
        }
        self.ledger.notify();
    }

    /// The call is silent, or no longer.
    pub(crate) fn stall(&mut self, stalled: bool) {
        if std::mem::replace(&mut self.stalled, stalled) != stalled {
            self.ledger.change(&self.model, |counts| {
                counts.stalled = if stalled { counts.stalled + 1 } else { counts.stalled - 1 };
            });
        }
    }

    /// Silent until [`Ledger::release`].
    pub(crate) async fn hang(&mut self) {
        let mut gate = self.ledger.gate();
        self.stall(true);
        // An error would mean that the ledger is gone, which this call holds.
        let _ = gate.changed().await;
        self.stall(false);
    }

    /// The call is over.
    pub(crate) fn finish(&mut self, outcome: Outcome) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        self.slot = None;
        self.stall(false);
        if let Some((quotas, max_output)) = self.reserved.take() {
            let now = clock::now();
            quotas.into_iter().flatten().for_each(|quota| quota.settle(max_output, self.produced, now));
        }
        self.record(|call, ms| {
            call.outcome = outcome;
            call.ended_ms = Some(ms);
        });
        self.ledger.change(&self.model, |counts| {
            counts.in_flight -= 1;
            *match outcome {
                Outcome::Completed | Outcome::InFlight => &mut counts.completed,
                Outcome::Cut => &mut counts.cut,
                Outcome::StreamError => &mut counts.stream_errors,
                Outcome::CancelledBeforeHeaders => &mut counts.cancelled_before_headers,
                Outcome::CancelledMidStream => &mut counts.cancelled_mid_stream,
            } += 1;
        });
    }

    fn cancel(&mut self) {
        self.finish(if self.answered {
            Outcome::CancelledMidStream
        } else {
            Outcome::CancelledBeforeHeaders
        });
        let Some((total, pace)) = self.keep_generating.take() else { return };
        // Outside a runtime nothing can go on, and at its end nothing should.
        let Ok(runtime) = Handle::try_current() else { return };
        let mut rest = Self {
            ledger: Arc::clone(&self.ledger),
            conn: Arc::clone(&self.conn),
            model: self.model.clone(),
            record: self.record.clone(),
            tokens: self.tokens.clone(),
            seq: self.seq,
            arrived: self.arrived,
            produced: self.produced,
            answered: self.answered,
            over: true,
            stalled: false,
            reserved: None,
            slot: None,
            keep_generating: None,
        };
        runtime.spawn(async move {
            let mut due = pace.first_token_at().filter(|_| rest.produced == 0);
            while rest.produced < total {
                if let Some(due) = due {
                    sleep_until(due).await;
                }
                rest.produced(1);
                due = pace.after_token(rest.produced, due.unwrap_or_else(clock::now));
            }
        });
    }

    fn record(&self, change: impl FnOnce(&mut Call, u64)) {
        if let Some(record) = &self.record {
            let ms = (clock::now() - self.arrived).as_millis() as u64;
            change(&mut record.lock(), ms);
        }
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        if !self.over {
            self.cancel();
        }
    }
}
