//! An answer that goes to the client as the provider gave it: what was read of it to know what it is, then the
//! rest.
//!
//! It is the answer of an attempt that failed before anything had reached the client, kept for when no other
//! target is left. Nothing reads it on the way; while it is kept, the provider waits.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use crate::exchange::Presence;
use crate::relay::Cut;

pub(crate) struct Verbatim {
    first: Option<Bytes>,
    rest: Option<Incoming>,
    /// The exchange's total deadline.
    timer: Pin<Box<Sleep>>,
    presence: Option<Presence>,
}

impl Verbatim {
    pub(crate) fn new(first: Bytes, rest: Incoming, until: Instant) -> Self {
        Self {
            first: Some(first),
            rest: Some(rest),
            timer: Box::pin(tokio::time::sleep_until(until)),
            presence: None,
        }
    }

    pub(crate) fn attach(&mut self, presence: Presence) {
        self.presence = Some(presence);
    }

    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if let Some(first) = self.first.take().filter(|first| !first.is_empty()) {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        loop {
            let Some(rest) = &mut self.rest else { return Poll::Ready(None) };
            let frame = match Pin::new(&mut *rest).poll_frame(cx) {
                Poll::Ready(frame) => frame,
                Poll::Pending => {
                    std::task::ready!(self.timer.as_mut().poll(cx));
                    self.end();
                    return Poll::Ready(Some(Err(Cut)));
                }
            };
            match frame {
                Some(Ok(frame)) => {
                    if rest.is_end_stream() {
                        self.end();
                    }
                    if let Ok(chunk) = frame.into_data() {
                        return Poll::Ready(Some(Ok(Frame::data(chunk))));
                    }
                }
                Some(Err(_)) => {
                    self.end();
                    return Poll::Ready(Some(Err(Cut)));
                }
                None => self.end(),
            }
        }
    }

    fn end(&mut self) {
        self.rest = None;
        if let Some(presence) = &mut self.presence {
            presence.answered();
        }
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().map_or(0, Bytes::len) as u64;
        let rest = self.rest.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint);
        match rest.exact() {
            Some(rest) => SizeHint::with_exact(first + rest),
            None => SizeHint::default(),
        }
    }
}
