//! The body of an answer: whole at once, or played as a script.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use http_body::{Body, Frame, SizeHint};

use crate::ledger::CallGuard;
use crate::stats::Outcome;

/// The script ends this exchange without an answer; the HTTP server closes or resets in turn.
#[derive(Debug, thiserror::Error)]
#[error("the scenario ends this exchange")]
pub(crate) struct Abort;

type Script = Pin<Box<dyn Stream<Item = Result<Bytes, Abort>> + Send>>;

pub(crate) enum AnswerBody {
    /// The call is over when its bytes are handed to the connection.
    Whole {
        data: Bytes,
        call: Option<Box<CallGuard>>,
    },
    Script(Script),
}

impl AnswerBody {
    /// A body that belongs to no call.
    pub(crate) fn plain(data: impl Into<Bytes>) -> Self {
        Self::Whole { data: data.into(), call: None }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Abort;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Abort>>> {
        match self.get_mut() {
            Self::Whole { data, call } => {
                if let Some(mut call) = call.take() {
                    call.finish(Outcome::Completed);
                }
                let data = std::mem::take(data);
                Poll::Ready((!data.is_empty()).then(|| Ok(Frame::data(data))))
            }
            Self::Script(script) => {
                script.as_mut().poll_next(cx).map(|item| item.map(|item| item.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole { data, call: None } if data.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole { data, .. } => SizeHint::with_exact(data.len() as u64),
            Self::Script(_) => SizeHint::default(),
        }
    }
}
