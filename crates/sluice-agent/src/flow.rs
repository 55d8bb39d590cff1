//! One provider's answer while it comes in: its body, what the watch makes of it, and the grant it spends.
//!
//! Held back or relayed, streamed or plain, every chunk goes through [`Flow::take`]: the bytes for the client
//! come out at one side, verdicts and tokens go to the grant at the other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use sluice_core::classify::Happening;
use sluice_core::relay::{Relay as Decoder, UsageChunk};
use sluice_core::stream::{BodyEnd, Ending, Step, StreamRules, StreamWatch};
use sluice_core::wire::{Operation, ProviderError, read_answer};

use crate::agent::Shared;
use crate::grant::{Grant, pause};
use crate::metrics::Ended;
use crate::spans;
use crate::targets::Target;

/// A stream is over with its last event. The end of its body is waited for only so long: it mostly comes in the
/// same packet, and then the connection can serve another call.
const BODY_END_GRACE: Duration = Duration::from_secs(1);
/// How much of a plain answer is kept for reading its usage, from its end.
const ANSWER_COPY_BYTES: usize = 1024 * 1024;

pub(crate) struct Flow {
    pub(crate) operation: Operation,
    target: Arc<Target>,
    grant: Option<Grant>,
    watch: StreamWatch,
    side: Side,
    /// For the client, in order.
    out: VecDeque<Bytes>,
    out_bytes: usize,
    ended: Option<Ending>,
    seen_first_token: bool,
    /// Whether the client has been given any of it.
    forwarded: bool,
    started: Duration,
    completed: Option<Duration>,
}

/// What reads the copy.
enum Side {
    Events(Box<Decoder>),
    /// One JSON document; `None` once it has grown beyond what is kept.
    Document {
        status: StatusCode,
        copy: Option<BytesMut>,
    },
}

impl Flow {
    /// An answer that should be an event stream.
    pub(crate) fn events(
        operation: Operation,
        usage_chunk: UsageChunk,
        rules: StreamRules,
        started: Duration,
        target: Arc<Target>,
        grant: Grant,
    ) -> Self {
        let max_frame = sluice_core::defaults::streaming::FRAME_BYTES;
        let side = Side::Events(Box::new(Decoder::new(operation, max_frame, usage_chunk)));
        Self::new(operation, side, rules, started, target, grant)
    }

    /// An answer that is one document.
    pub(crate) fn document(
        operation: Operation,
        rules: StreamRules,
        started: Duration,
        target: Arc<Target>,
        grant: Grant,
    ) -> Self {
        // The status is set with the headers.
        let side = Side::Document { status: StatusCode::OK, copy: Some(BytesMut::new()) };
        Self::new(operation, side, rules, started, target, grant)
    }

    fn new(
        operation: Operation,
        side: Side,
        rules: StreamRules,
        started: Duration,
        target: Arc<Target>,
        grant: Grant,
    ) -> Self {
        Self {
            operation,
            target,
            grant: Some(grant),
            watch: StreamWatch::new(rules, started),
            side,
            out: VecDeque::new(),
            out_bytes: 0,
            ended: None,
            seen_first_token: false,
            forwarded: false,
            started,
            completed: None,
        }
    }

    /// The next chunk of the body.
    pub(crate) fn take(&mut self, now: Duration, chunk: Bytes) {
        if self.ended.is_some() {
            return;
        }
        self.watch.on_bytes(now, &chunk);
        let Self { watch, grant, side, out, out_bytes, ended, .. } = self;
        let mut forward = |bytes: Bytes| {
            *out_bytes += bytes.len();
            out.push_back(bytes);
        };
        match side {
            Side::Events(decoder) => {
                let on_fact = |fact: sluice_core::wire::Fact| {
                    if let Some(grant) = grant.as_mut() {
                        grant.saw_deltas(fact.deltas);
                        if let Some(usage) = fact.usage {
                            grant.saw_usage(usage);
                        }
                    }
                    if ended.is_none() {
                        step(watch.on_fact(now, &fact), grant, ended);
                    }
                };
                decoder.push(&chunk, on_fact, forward);
            }
            Side::Document { copy, .. } => {
                if let Some(kept) = copy {
                    kept.extend_from_slice(&chunk);
                    if kept.len() > ANSWER_COPY_BYTES {
                        *copy = None;
                    }
                }
                forward(chunk);
            }
        }
        if self.watch.terminal() {
            self.completed.get_or_insert(now);
        }
        self.note_first_token(now);
    }

    /// Latency is scored at the first token, while the slot is held to the end.
    fn note_first_token(&mut self, now: Duration) {
        if self.seen_first_token {
            return;
        }
        let Some(ttft) = self.watch.ttft() else { return };
        self.seen_first_token = true;
        if let Some(grant) = &self.grant {
            self.target.calls.first_token(self.operation, grant.model(), ttft);
            spans::attempt_first_token(grant.span(), ttft);
        }
        // Only a deadline that is observed lets a later one come.
        if ttft > self.target.policy.rules.deadlines.rules.first_token {
            self.target.metrics.observed("first-token-deadline");
        }
        self.target.live.first_token(now, ttft);
    }

    /// A timer ran out (or not yet: that does no harm).
    pub(crate) fn wake(&mut self, now: Duration) {
        if self.ended.is_some() {
            return;
        }
        if self.body_due().is_some_and(|due| now >= due) {
            return self.body_ended(now, BodyEnd::Clean);
        }
        let next = self.watch.on_wakeup(now);
        step(next, &mut self.grant, &mut self.ended);
    }

    /// When the end of a complete stream's body is no longer waited for.
    fn body_due(&self) -> Option<Duration> {
        Some(self.completed?.saturating_add(BODY_END_GRACE))
    }

    /// What the provider had delivered when its client had left already.
    pub(crate) fn take_after_disconnect(&mut self, now: Duration, chunk: Bytes) {
        let before = self.watch.deltas();
        self.take(now, chunk);
        self.target.metrics.tokens_after_disconnect.inc_by(self.watch.deltas() - before);
    }

    /// Whether all of an answer that ended in order has been handed on.
    pub(crate) fn delivered(&self) -> bool {
        let finished = |ending: &Ending| matches!(ending.happening, Happening::Finished { .. });
        self.out.is_empty() && self.ended.as_ref().is_some_and(finished)
    }

    /// Whether the format's last event came: a client may leave then.
    pub(crate) fn complete(&self) -> bool {
        self.watch.terminal()
    }

    /// The provider's body ended.
    pub(crate) fn body_ended(&mut self, now: Duration, end: BodyEnd) {
        if self.ended.is_some() {
            return;
        }
        let Self { watch, grant, side, .. } = self;
        let Side::Events(decoder) = side else {
            self.ended = Some(self.document_ended(now, end));
            return;
        };
        let held = decoder.finish(|fact| {
            if let (Some(grant), Some(usage)) = (grant.as_mut(), fact.usage) {
                grant.saw_usage(usage);
            }
            watch.on_fact(now, &fact);
        });
        let mut ending = watch.on_end(now, end);
        // Half an event would swallow the error event that follows it.
        let cut = matches!(ending.happening, Happening::Cut { .. });
        if !cut && !held.is_empty() {
            self.out_bytes += held.len();
            self.out.push_back(held);
        }
        if ending.happening == Happening::NotJson
            && let Some(error) = self.error_document()
        {
            let happening = Happening::ErrorInSuccess { error, pushback: None };
            ending = self.watch.end_with(now, happening);
        }
        self.ended = Some(ending);
    }

    /// The error that came as one JSON document where a stream was due. Nothing has been forwarded then.
    fn error_document(&self) -> Option<ProviderError> {
        let held: Vec<u8> = self.out.iter().flat_map(|bytes| bytes.iter().copied()).collect();
        read_answer(self.operation, 200, None, &held).error
    }

    fn document_ended(&mut self, now: Duration, end: BodyEnd) -> Ending {
        let Side::Document { status, copy } = &self.side else { return self.watch.on_end(now, end) };
        let (status, copy) = (*status, copy.as_deref());
        if end == BodyEnd::Cut {
            return self.watch.end_with(now, Happening::Cut { first_token: self.forwarded });
        }
        let Some(body) = copy else { return self.watch.end_with(now, Happening::Finished { slow: false }) };
        let facts = read_answer(self.operation, status.as_u16(), None, body);
        if let (Some(grant), Some(usage)) = (self.grant.as_mut(), facts.usage) {
            grant.saw_usage(usage);
        }
        let happening = if let Some(error) = facts.error {
            Happening::ErrorInSuccess { error, pushback: None }
        } else if facts.empty {
            Happening::Empty
        } else if facts.not_json {
            Happening::NotJson
        } else {
            let slow = self.watch.document_slow(now, facts.usage.map(|usage| usage.output));
            Happening::Finished { slow }
        };
        self.watch.end_with(now, happening)
    }

    /// The answer is encoded, or of a kind that Sluice does not read: it passes unread.
    pub(crate) fn unread(&mut self, status: StatusCode) {
        self.side = Side::Document { status, copy: None };
    }

    /// The status came: what a document's body means depends on it.
    pub(crate) fn status(&mut self, answered: StatusCode) {
        if let Side::Document { status, .. } = &mut self.side {
            *status = answered;
        }
    }

    pub(crate) fn draining(&mut self, now: Duration) {
        if self.ended.is_none() {
            self.ended = Some(self.watch.on_draining(now));
        }
    }

    /// Ends the attempt for a reason that its body does not tell.
    pub(crate) fn end_with(&mut self, now: Duration, happening: Happening) {
        if self.ended.is_none() {
            self.ended = Some(self.watch.end_with(now, happening));
        }
    }

    /// The end of an attempt of which nothing reached the client; the grant is settled with it.
    pub(crate) fn finish(mut self: Box<Self>, now: Duration) -> Ending {
        if self.ended.is_none() {
            self.ended = Some(self.watch.on_client_gone(now));
        }
        self.settle(now);
        self.ended.take().unwrap_or_else(|| self.watch.on_client_gone(now))
    }

    /// The end of an attempt whose whole answer goes to the client now. The answer goes first: where the scripts run
    /// in this process, settling takes about as long as everything else that was done for it. The slot does not wait:
    /// a client that asks again at once must find it free.
    pub(crate) fn finish_behind_answer(mut self: Box<Self>, shared: &Shared) {
        if let Some(grant) = &mut self.grant {
            grant.free_slot();
        }
        let now = shared.clock.now();
        shared.settling.spawn(async move { self.finish(now) });
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    pub(crate) fn ended(&self) -> Option<&Ending> {
        self.ended.as_ref()
    }

    /// Whether the client may see what came so far.
    pub(crate) fn committed(&self) -> bool {
        self.watch.committed()
    }

    pub(crate) fn next_wakeup(&self) -> Duration {
        let next = self.watch.next_wakeup();
        self.body_due().map_or(next, |due| next.min(due))
    }

    pub(crate) fn next_out(&mut self) -> Option<Bytes> {
        let bytes = self.out.pop_front()?;
        self.forwarded = true;
        self.out_bytes = self.out_bytes.saturating_sub(bytes.len());
        Some(bytes)
    }

    /// Everything that is there, as one piece where it is one.
    pub(crate) fn all_out(&mut self) -> Bytes {
        self.out_bytes = 0;
        if self.out.len() == 1 {
            return self.out.pop_front().unwrap_or_default();
        }
        self.out
            .drain(..)
            .fold(BytesMut::new(), |mut all, bytes| {
                all.extend_from_slice(&bytes);
                all
            })
            .freeze()
    }

    /// Bytes held back.
    pub(crate) fn out_bytes(&self) -> usize {
        self.out_bytes
    }

    pub(crate) fn grant(&mut self) -> Option<&mut Grant> {
        self.grant.as_mut()
    }

    /// Whether an error event is to begin with a blank line: what was forwarded stops inside an event.
    pub(crate) fn stops_inside_event(&self) -> bool {
        matches!(&self.side, Side::Events(decoder) if decoder.stops_inside_event())
    }

    /// Gives the grant back with the verdict of the end.
    pub(crate) fn settle(&mut self, now: Duration) {
        let Some(ending) = &self.ended else { return };
        let Some(mut grant) = self.grant.take() else { return };
        if matches!(ending.happening, Happening::Finished { .. }) {
            grant.usage_is_final();
        }
        if matches!(ending.happening, Happening::NotJson | Happening::Empty) {
            grant.not_charged();
        }
        self.note_no_first_token(now);
        self.note_end(now, ending, &grant);
        spans::attempt_ended(grant.span(), ending);
        // The watch knows which verdict is to be settled: slow calls may count as failures.
        let verdict = ending.verdict.unwrap_or(ending.classified.verdict);
        grant.finish(verdict, pause(verdict, ending.classified.pushback, &self.target.policy));
    }

    fn note_end(&self, now: Duration, ending: &Ending, grant: &Grant) {
        let well = matches!(ending.happening, Happening::Finished { .. });
        let ended = Ended {
            took: now.saturating_sub(self.started),
            error: (!well).then_some(ending.classified.reason),
            usage: grant.reported(),
        };
        self.target.calls.ended(self.operation, grant.model(), ended);
        if matches!(&ending.happening, Happening::Status(facts) if facts.status == 429) {
            self.target.metrics.throttled.inc();
        }
    }

    /// The limiter hears of a stream whose first token never came.
    fn note_no_first_token(&self, now: Duration) {
        if matches!(self.side, Side::Events(_)) && !self.seen_first_token {
            self.target.live.no_first_token(now, now.saturating_sub(self.started));
        }
    }
}

impl Drop for Flow {
    /// The client left (nothing else drops a flow that has not ended): what is certain of the attempt is said,
    /// the rest is settled as cancelled.
    fn drop(&mut self) {
        let Some(now) = self.grant.as_ref().map(Grant::now) else { return };
        if self.ended.is_none() {
            // A client that has read the last event need not wait for the connection's end.
            self.ended = Some(if self.watch.terminal() {
                self.watch.on_end(now, BodyEnd::Clean)
            } else {
                self.watch.on_client_gone(now)
            });
        }
        self.settle(now);
    }
}

fn step(next: Step, grant: &mut Option<Grant>, ended: &mut Option<Ending>) {
    match next {
        Step::Continue => {}
        Step::Verdict(verdict) => {
            if let Some(grant) = grant {
                grant.verdict(verdict);
            }
        }
        Step::End(ending) => *ended = Some(ending),
    }
}
