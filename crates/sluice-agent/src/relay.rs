//! The body of an answer that is being relayed.
//!
//! It pulls: a chunk is read from the provider only when the client's connection has room for it, so a slow
//! client slows the provider down and nothing piles up here. One timer, moved lazily, serves all deadlines of
//! the stream. Dropping the body (the client left) cancels the upstream call and settles the grant.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use sluice_core::classify::Happening;
use sluice_core::stream::BodyEnd;
use tokio::time::Sleep;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::agent::Shared;
use crate::exchange::Presence;
use crate::flow::Flow;
use crate::reply;

/// The provider's answer broke off in a format that has no error event.
#[derive(Debug)]
pub(crate) struct Cut;

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the provider's answer broke off")
    }
}

impl std::error::Error for Cut {}

pub(crate) struct Relay {
    shared: Arc<Shared>,
    /// `None` once it has ended or was cancelled.
    upstream: Option<Incoming>,
    flow: Box<Flow>,
    /// Whether the client reads server-sent events, so that an early end can be told in its own format.
    events: bool,
    timer: Pin<Box<Sleep>>,
    /// Wakes the stream when the agent's grace period is over.
    drained: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    keep_alive: Option<KeepAlive>,
    size: SizeHint,
    presence: Option<Presence>,
    done: bool,
}

/// A comment after a quiet time, so that hops in between keep the connection.
struct KeepAlive {
    every: Duration,
    last_sent: Duration,
}

/// Chunks that are counted after the client has left, at most.
const LATE_CHUNKS: usize = 16;
pub(crate) const KEEP_ALIVE_COMMENT: &[u8] = b": keep-alive\n\n";

impl Relay {
    pub(crate) fn new(
        shared: Arc<Shared>,
        upstream: Option<Incoming>,
        flow: Box<Flow>,
        events: bool,
        keep_alive: Option<Duration>,
    ) -> Self {
        let now = shared.clock.now();
        let timer = Box::pin(tokio::time::sleep_until(shared.clock.instant(flow.next_wakeup())));
        let drained = Some(Box::pin(shared.drain.ended()));
        Self {
            upstream,
            flow,
            events,
            timer,
            drained,
            keep_alive: keep_alive.map(|every| KeepAlive { every, last_sent: now }),
            size: SizeHint::default(),
            presence: None,
            done: false,
            shared,
        }
    }

    /// The size that the provider announced, where nothing will be cut out.
    pub(crate) fn sized(mut self, size: SizeHint) -> Self {
        self.size = size;
        self
    }

    pub(crate) fn attach(&mut self, presence: Presence) {
        self.presence = Some(presence);
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.size
    }

    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        loop {
            if let Some(bytes) = self.flow.next_out() {
                if let Some(keep_alive) = &mut self.keep_alive {
                    keep_alive.last_sent = self.shared.clock.now();
                }
                if self.flow.delivered() {
                    // With its announced length a body is over: nobody asks for what follows.
                    self.last_words();
                }
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if self.done {
                return Poll::Ready(None);
            }
            if self.flow.ended().is_some() {
                match self.last_words() {
                    Some(Ok(bytes)) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                    Some(Err(cut)) => return Poll::Ready(Some(Err(cut))),
                    None => continue,
                }
            }
            if self.poll_upstream(cx).is_ready() {
                continue;
            }
            match self.poll_timers(cx) {
                Poll::Ready(Some(comment)) => return Poll::Ready(Some(Ok(Frame::data(comment)))),
                Poll::Ready(None) => {}
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Ready when something changed.
    fn poll_upstream(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let now = self.shared.clock.now();
        let Some(upstream) = &mut self.upstream else {
            self.flow.body_ended(now, BodyEnd::Clean);
            return Poll::Ready(());
        };
        match std::task::ready!(Pin::new(&mut *upstream).poll_frame(cx)) {
            Some(Ok(frame)) => {
                if let Ok(chunk) = frame.into_data() {
                    self.flow.take(now, chunk);
                }
                if upstream.is_end_stream() {
                    self.upstream = None;
                    self.flow.body_ended(now, BodyEnd::Clean);
                }
            }
            Some(Err(_)) => {
                self.upstream = None;
                self.flow.body_ended(now, BodyEnd::Cut);
            }
            None => {
                self.upstream = None;
                self.flow.body_ended(now, BodyEnd::Clean);
            }
        }
        Poll::Ready(())
    }

    /// Ready when something changed, with a comment to send or without.
    fn poll_timers(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(drained) = &mut self.drained
            && drained.as_mut().poll(cx).is_ready()
        {
            self.drained = None;
            self.flow.draining(self.shared.clock.now());
            return Poll::Ready(None);
        }
        let next = self.next_wakeup();
        // Deadlines mostly move into the future: the timer is moved when it fires, not at every chunk.
        if self.shared.clock.instant(next) < self.timer.deadline() {
            self.timer.as_mut().reset(self.shared.clock.instant(next));
        }
        std::task::ready!(self.timer.as_mut().poll(cx));
        let now = self.shared.clock.now();
        self.flow.wake(now);
        let comment = self.keep_alive.as_mut().and_then(|keep_alive| keep_alive.due(now));
        let next = self.next_wakeup();
        self.timer.as_mut().reset(self.shared.clock.instant(next));
        Poll::Ready(comment)
    }

    fn next_wakeup(&self) -> Duration {
        let next = self.flow.next_wakeup();
        self.keep_alive
            .as_ref()
            .map_or(next, |keep_alive| next.min(keep_alive.last_sent.saturating_add(keep_alive.every)))
    }

    /// The attempt is over: the upstream call ends, the grant goes back, and a client whose stream did not end
    /// in order is told so.
    fn last_words(&mut self) -> Option<Result<Bytes, Cut>> {
        self.done = true;
        if let Some(presence) = &mut self.presence {
            presence.answered();
        }
        self.upstream = None;
        self.drained = None;
        let ending = self.flow.ended().cloned()?;
        self.flow.settle(self.shared.clock.now());
        let happening = &ending.happening;
        if !matches!(happening, Happening::Finished { .. })
            && let Some(presence) = &self.presence
        {
            presence.broke_off(self.flow.target(), &ending);
        }
        let told = matches!(happening, Happening::Finished { .. } | Happening::ErrorInSuccess { .. });
        if told || matches!(happening, Happening::Empty | Happening::NotJson) {
            return None;
        }
        if self.events {
            let inside_event = self.flow.stops_inside_event();
            return Some(Ok(reply::stream_end(self.flow.operation, happening, inside_event)));
        }
        Some(Err(Cut))
    }
}

impl Drop for Relay {
    /// The client left. What the provider has delivered by now is counted, without waiting for more; then
    /// dropping the body cancels the call.
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let now = self.shared.clock.now();
        let mut cx = Context::from_waker(std::task::Waker::noop());
        for _ in 0..LATE_CHUNKS {
            let Some(upstream) = &mut self.upstream else { break };
            let Poll::Ready(Some(Ok(frame))) = Pin::new(upstream).poll_frame(&mut cx) else { break };
            if let Ok(chunk) = frame.into_data() {
                self.flow.take_after_disconnect(now, chunk);
            }
        }
        if self.flow.complete()
            && let Some(presence) = &mut self.presence
        {
            presence.answered();
        }
    }
}

impl KeepAlive {
    fn due(&mut self, now: Duration) -> Option<Bytes> {
        if now < self.last_sent.saturating_add(self.every) {
            return None;
        }
        self.last_sent = now;
        Some(Bytes::from_static(KEEP_ALIVE_COMMENT))
    }
}
