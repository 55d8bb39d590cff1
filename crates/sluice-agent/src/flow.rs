//! One provider's answer while it comes in: its body, what the watch makes of it, and the grant it spends.
//!
//! Held back or relayed, streamed or plain, every chunk goes through [`Flow::take`]: the bytes for the client
//! come out at one side, verdicts and tokens go to the grant at the other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use sluice_core::relay::{Relay as Decoder, UsageChunk};
use sluice_core::stream::{BodyEnd, Ending, Step, StreamRules, StreamWatch};
use sluice_core::wire::{Operation, read_answer};

use crate::grant::Grant;
use crate::targets::Target;

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
        self.note_first_token(now);
    }

    /// Latency is scored at the first token, while the slot is held to the end.
    fn note_first_token(&mut self, now: Duration) {
        if self.seen_first_token {
            return;
        }
        let Some(ttft) = self.watch.ttft() else { return };
        self.seen_first_token = true;
        self.target.metrics.ttft.observe(ttft.as_secs_f64());
        self.target.live.first_token(now, ttft);
    }

    /// A timer ran out (or not yet: that does no harm).
    pub(crate) fn wake(&mut self, now: Duration) {
        if self.ended.is_none() {
            let next = self.watch.on_wakeup(now);
            step(next, &mut self.grant, &mut self.ended);
        }
    }

    /// The provider's body ended.
    pub(crate) fn body_ended(&mut self, now: Duration, end: BodyEnd) {
        if self.ended.is_some() {
            return;
        }
        let Self { watch, grant, side, out, .. } = self;
        if let Side::Events(decoder) = side {
            let held = decoder.finish(|fact| {
                if let (Some(grant), Some(usage)) = (grant.as_mut(), fact.usage) {
                    grant.saw_usage(usage);
                }
                watch.on_fact(now, &fact);
            });
            if end == BodyEnd::Clean && !held.is_empty() {
                out.push_back(held);
            }
            self.ended = Some(self.watch.on_end(now, end));
        } else {
            self.ended = Some(self.document_ended(now, end));
        }
    }

    fn document_ended(&mut self, now: Duration, end: BodyEnd) -> Ending {
        use sluice_core::classify::Happening;
        let Side::Document { status, copy } = &self.side else { return self.watch.on_end(now, end) };
        let (status, copy) = (*status, copy.as_deref());
        if end == BodyEnd::Cut {
            return self.watch.end_with(now, Happening::Cut { first_token: true });
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
    pub(crate) fn end_with(&mut self, now: Duration, happening: sluice_core::classify::Happening) {
        if self.ended.is_none() {
            self.ended = Some(self.watch.end_with(now, happening));
        }
    }

    pub(crate) fn ended(&self) -> Option<&Ending> {
        self.ended.as_ref()
    }

    /// Whether the client may see what came so far.
    pub(crate) fn committed(&self) -> bool {
        self.watch.committed()
    }

    pub(crate) fn next_wakeup(&self) -> Duration {
        self.watch.next_wakeup()
    }

    pub(crate) fn next_out(&mut self) -> Option<Bytes> {
        let bytes = self.out.pop_front()?;
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

    pub(crate) fn policy(&self) -> &sluice_core::policy::TargetPolicy {
        &self.target.policy
    }

    /// Bytes held back.
    pub(crate) fn out_bytes(&self) -> usize {
        self.out_bytes
    }

    pub(crate) fn grant(&mut self) -> Option<&mut Grant> {
        self.grant.as_mut()
    }

    /// Gives the grant back with the verdict of the end.
    pub(crate) fn settle(&mut self, pause: Option<Duration>) {
        let Some(ending) = &self.ended else { return };
        let verdict = ending.classified.verdict;
        if let Some(grant) = self.grant.take() {
            grant.finish(verdict, pause);
        }
    }
}

impl Drop for Flow {
    /// The client left (nothing else drops a flow that has not ended): what is certain of the attempt is said,
    /// the rest is settled as cancelled.
    fn drop(&mut self) {
        if self.ended.is_some() {
            self.settle(None);
            return;
        }
        let Some(grant) = self.grant.take() else { return };
        let now = grant.now();
        let ending = self.watch.on_client_gone(now);
        grant.finish(ending.classified.verdict, None);
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
