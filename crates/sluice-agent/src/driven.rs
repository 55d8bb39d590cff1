//! A streamed answer over HTTP/2, carried by a task of its own.
//!
//! Over HTTP/1.1 a client that reads nothing stops the socket, and [`client_io`](crate::client_io) ends the
//! connection. Over HTTP/2 the socket goes on (it serves other streams) and hyper waits for the client's window
//! without polling the body, so that no deadline of the stream would be seen. Here the body is polled by this
//! task; a frame that nobody takes for the slow-client timeout drops it, which cancels the upstream call and
//! settles the grant. What is left is a stream without a body, which costs its bounded buffer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body::Frame;
use http_body_util::BodyExt as _;
use tokio::sync::mpsc;

use crate::body::Body;
use crate::relay::Cut;

type Item = Result<Frame<Bytes>, Cut>;

pub(crate) struct Driven {
    frames: mpsc::Receiver<Item>,
    /// Whether the body was carried to its end; one that was not must not look as if.
    complete: Arc<AtomicBool>,
    done: bool,
}

impl Driven {
    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        let frame = std::task::ready!(self.frames.poll_recv(cx));
        if frame.is_some() {
            return Poll::Ready(frame);
        }
        let cut = !std::mem::replace(&mut self.done, true) && !self.complete.load(Ordering::Acquire);
        Poll::Ready(cut.then_some(Err(Cut)))
    }
}

/// Hands a streamed body to a task; what is there already stays as it is.
pub(crate) fn drive(response: Response<Body>, slow_client: Duration) -> Response<Body> {
    if matches!(response.body(), Body::Full(_)) {
        return response;
    }
    response.map(|body| {
        let (sender, frames) = mpsc::channel(1);
        let complete = Arc::new(AtomicBool::new(false));
        tokio::spawn(carry(body, sender, complete.clone(), slow_client));
        Body::Driven(Driven { frames, complete, done: false })
    })
}

async fn carry(mut body: Body, frames: mpsc::Sender<Item>, complete: Arc<AtomicBool>, slow_client: Duration) {
    loop {
        let frame = tokio::select! {
            // The client left.
            () = frames.closed() => return,
            frame = body.frame() => frame,
        };
        let Some(frame) = frame else { return complete.store(true, Ordering::Release) };
        match tokio::time::timeout(slow_client, frames.send(frame)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return,
            Err(_) => {
                tracing::debug!("a client read nothing of its stream for the slow-client timeout");
                return;
            }
        }
    }
}
