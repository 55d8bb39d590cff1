//! Comments to a client whose provider thinks silently, so that idle hops in between keep the connection.
//! Off unless the policy says otherwise.
//!
//! The first comment commits the answer to a 200 and to being a stream, but to no target: the attempts go on
//! behind it, and an exchange that fails after all ends with an error event instead of an error status.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use http_body::{Body as HttpBody, Frame};
use sluice_core::refusal::Refusal;
use sluice_core::wire::Operation;
use tokio::time::Sleep;

use crate::agent::Shared;
use crate::ask::Ask;
use crate::attempt::is_event_stream;
use crate::body::Body;
use crate::evidence;
use crate::exchange::{Exchange, Presence};
use crate::relay::{Cut, KEEP_ALIVE_COMMENT};
use crate::reply;

type Serving = Pin<Box<dyn Future<Output = Result<Response<Body>, Box<Refusal>>> + Send>>;

/// How often comments are due; `None`: never, for this request.
pub(crate) fn of(exchange: &Exchange, ask: &Ask) -> Option<Duration> {
    exchange.route.targets[0].policy.rules.streaming.rules.keep_alive.filter(|_| ask.facts.stream)
}

/// Awaits an answer, and begins one with comments when it takes longer than `every`.
pub(crate) async fn bridge(
    shared: &Arc<Shared>,
    ask: &Ask,
    every: Option<Duration>,
    served: impl Future<Output = Result<Response<Body>, Box<Refusal>>> + Send + 'static,
) -> Result<Response<Body>, Box<Refusal>> {
    let Some(every) = every else { return served.await };
    let mut serving: Serving = Box::pin(served);
    if let Ok(served) = tokio::time::timeout(every, &mut serving).await {
        return served;
    }
    let waiting = Waiting {
        shared: shared.clone(),
        operation: ask.operation,
        serving: Some(serving),
        answer: None,
        every,
        timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
        presence: None,
    };
    let mut response = Response::new(Body::Waiting(Box::new(waiting)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    Ok(response)
}

/// A stream that began with comments: first the wait, then the answer.
pub(crate) struct Waiting {
    shared: Arc<Shared>,
    operation: Operation,
    serving: Option<Serving>,
    answer: Option<Body>,
    every: Duration,
    timer: Pin<Box<Sleep>>,
    presence: Option<Presence>,
}

impl Waiting {
    pub(crate) fn attach(&mut self, presence: Presence) {
        self.presence = Some(presence);
    }

    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if let Some(serving) = &mut self.serving {
            match serving.as_mut().poll(cx) {
                Poll::Ready(served) => {
                    self.serving = None;
                    self.answer = Some(self.begin(served));
                }
                Poll::Pending => return self.comment(cx),
            }
        }
        let Some(answer) = &mut self.answer else { return Poll::Ready(None) };
        Pin::new(answer).poll_frame(cx)
    }

    fn comment(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        std::task::ready!(self.timer.as_mut().poll(cx));
        let next = self.shared.clock.now().saturating_add(self.every);
        self.timer.as_mut().reset(self.shared.clock.instant(next));
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(KEEP_ALIVE_COMMENT)))))
    }

    /// The status line has gone out: an answer that is no stream becomes an error event.
    fn begin(&mut self, served: Result<Response<Body>, Box<Refusal>>) -> Body {
        let presence = self.presence.take();
        let mut body = match served {
            Ok(response) if response.status().is_success() && is_event_stream(response.headers()) => {
                response.into_body()
            }
            Ok(response) => Body::full(reply::status_in_stream(self.operation, response.status())),
            Err(refusal) => {
                if let Some(presence) = &presence {
                    evidence::tell_refusal(&self.shared, presence.spans(), &refusal);
                }
                Body::full(refusal.render_in_stream(self.operation))
            }
        };
        if let Some(presence) = presence {
            presence.attach(&mut body);
        }
        body
    }
}
