//! The body of an answer: nothing, bytes that are there, or a stream.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

use crate::driven::Driven;
use crate::keep_alive::Waiting;
use crate::relay::Relay;
use crate::verbatim::Verbatim;

pub(crate) enum Body {
    Full(Option<Bytes>),
    Relay(Box<Relay>),
    Verbatim(Box<Verbatim>),
    Waiting(Box<Waiting>),
    Driven(Driven),
}

impl Body {
    pub(crate) fn full(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self::Full((!bytes.is_empty()).then_some(bytes))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    /// A relayed stream ends with an error event of its own format instead of an error here, wherever the
    /// format has one; elsewhere the connection is cut, which is what happened upstream too.
    type Error = crate::relay::Cut;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
            Self::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Relay(relay) => relay.poll_frame(cx),
            Self::Verbatim(verbatim) => verbatim.poll_frame(cx),
            Self::Waiting(waiting) => waiting.poll_frame(cx),
            Self::Driven(driven) => driven.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Relay(relay) => relay.size_hint(),
            Self::Verbatim(verbatim) => verbatim.size_hint(),
            Self::Waiting(_) | Self::Driven(_) => SizeHint::default(),
        }
    }
}
