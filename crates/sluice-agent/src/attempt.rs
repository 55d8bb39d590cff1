//! One upstream call, from sending it to the moment its answer may go to the client, or failed before that.
//!
//! ```text
//! send ─ headers ─┬─ error status ── read the bounded body ──────────────► Failed
//!                 ├─ event stream ── hold back until the first token ─┬──► Answer (relayed)
//!                 │                                                   └──► Failed (nothing has left)
//!                 └─ document ────── hold back up to the buffer ───────┴─► Answer
//! ```
//! Nothing reaches the client here, so every failure may be followed by another attempt.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use sluice_core::classify::{Classified, ConnectFailure, Context, Happening, StatusFacts, classify};
use sluice_core::outcome::Verdict;
use sluice_core::policy::{Mode, TargetPolicy};
use sluice_core::relay::UsageChunk;
use sluice_core::retry_after::retry_after;
use sluice_core::stream::{BodyEnd, Ending, SlowThresholds, StreamRules};
use sluice_core::wire::{Operation, read_answer};

use crate::agent::Shared;
use crate::ask::Ask;
use crate::body::Body;
use crate::exchange::{Exchange, fresh_id};
use crate::flow::Flow;
use crate::grant::{Grant, pause};
use crate::headers;
use crate::relay::Relay;
use crate::spans;
use crate::targets::Target;
use crate::unserved::Outlook;
use crate::upstream::{Outgoing, SendFault, request};
use crate::verbatim::Verbatim;

/// An error's body, as far as it is read for classification; the rest goes on unread.
const ERROR_BODY_BYTES: usize = 64 * 1024;
/// In place of a deadline that is only observed.
pub(crate) const UNLIMITED: Duration = Duration::from_hours(365 * 24);

pub(crate) enum Ended {
    /// The answer's bytes go to the client from here on.
    Answer(Response<Body>),
    Failed(Failure),
}

/// An attempt of which nothing has reached the client.
pub(crate) struct Failure {
    pub(crate) happening: Happening,
    pub(crate) classified: Classified,
    /// Before which the target is not to be asked again: what the provider asked for, or the pause that it
    /// caused.
    pub(crate) wait: Option<Duration>,
    /// What the provider answered, for when no other target is left.
    pub(crate) answer: Option<Response<Body>>,
}

/// What an attempt works with.
pub(crate) struct Attempt<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) exchange: &'a Exchange,
    pub(crate) ask: &'a Ask,
    pub(crate) target: &'a Arc<Target>,
    /// Whether an earlier attempt went to another provider.
    pub(crate) moved: bool,
}

impl Attempt<'_> {
    pub(crate) async fn run(&self, mut grant: Grant) -> Ended {
        let started = self.shared.clock.now();
        let (body, hide_usage) = self.ask.body_for(&self.target.policy);
        let Some(outgoing) = self.outgoing(body, &grant) else {
            grant.not_charged();
            return self.failed_to_send(grant, ConnectFailure::Protocol);
        };
        grant.sent();
        let mut flow = self.flow(started, hide_usage, grant);
        let sent = self.shared.upstream.send(outgoing);
        tokio::pin!(sent);
        let response = loop {
            tokio::select! {
                response = &mut sent => break response,
                () = self.shared.clock.sleep_until(flow.next_wakeup()) => {
                    flow.wake(self.shared.clock.now());
                    if flow.ended().is_some() {
                        return self.failed(flow, None);
                    }
                }
            }
        };
        if let (Ok(response), Some(grant)) = (&response, flow.grant()) {
            spans::attempt_answered(grant.span(), response.status());
        }
        match response {
            Ok(response) if response.status().is_success() => self.success(flow, response).await,
            // A switch of protocols that nobody asked for: what follows is no HTTP.
            Ok(response) if response.status().is_informational() => {
                self.no_answer(flow, ConnectFailure::Protocol)
            }
            Ok(response) => self.error_status(flow, response).await,
            Err(fault) => self.no_answer(flow, connect_failure(fault)),
        }
    }

    fn no_answer(&self, mut flow: Box<Flow>, failure: ConnectFailure) -> Ended {
        flow.end_with(self.shared.clock.now(), Happening::Connect(failure));
        if let Some(grant) = flow.grant() {
            grant.not_charged();
        }
        self.failed(flow, None)
    }

    fn outgoing(&self, body: Bytes, grant: &Grant) -> Option<http::Request<http_body_util::Full<Bytes>>> {
        let streaming = &self.target.policy.rules.streaming.rules;
        let mut outgoing = self.ask.outgoing_headers(self.shared.mark);
        if streaming.propagate_trace {
            headers::tell_trace(grant.span().context(), &self.ask.headers, &mut outgoing);
        }
        request(
            self.target.origin.as_ref()?,
            &self.target.credential,
            Outgoing {
                method: &self.ask.method,
                uri: &self.ask.uri,
                headers: outgoing,
                body,
                exchange: self.exchange.id_header(),
                attempt: fresh_id(self.shared),
                keep_idempotency_key: !self.moved,
                remaining: streaming
                    .propagate_deadline
                    .then(|| self.exchange.deadline.remaining(self.shared.clock.now())),
            },
        )
    }

    /// Boxed: it moves through several futures, each of which would have room for it.
    fn flow(&self, started: Duration, hide_usage: bool, grant: Grant) -> Box<Flow> {
        let rules = self.rules(started, grant.is_probe());
        let operation = self.ask.operation;
        if self.ask.facts.stream {
            let usage_chunk = if hide_usage { UsageChunk::Hide } else { UsageChunk::Forward };
            Box::new(Flow::events(operation, usage_chunk, rules, started, self.target.clone(), grant))
        } else {
            Box::new(Flow::document(operation, rules, started, self.target.clone(), grant))
        }
    }

    /// The watch's rules; a group that is only observed sets no deadline, except to a probe, whose permit is a
    /// lease.
    fn rules(&self, started: Duration, probe: bool) -> StreamRules {
        let rules = &self.target.policy.rules;
        let deadlines = &rules.deadlines.rules;
        let remaining = self.exchange.deadline.remaining(started);
        let observed = rules.deadlines.mode == Mode::Observe && !probe;
        let unless_observed = |limit: Duration| if observed { UNLIMITED } else { limit };
        let mut slow = SlowThresholds::of(&rules.breaker.rules.slow, self.learned_ttft(started));
        let stream = self.ask.facts.stream;
        if !stream {
            slow.ttft = None;
        }
        let first_token = deadlines.first_token.min(self.exchange.deadline.first_token(started));
        StreamRules {
            first_token: if stream { unless_observed(first_token) } else { UNLIMITED },
            first_token_is_callers: self.exchange.deadline.first_token_is_callers(started),
            stall: unless_observed(deadlines.stall),
            max_silence: unless_observed(deadlines.max_silence),
            total: if probe { remaining.min(deadlines.total) } else { remaining },
            total_is_callers: self.exchange.deadline.is_callers(),
            slow,
            probe,
            classify: rules.breaker.rules.classify.clone(),
            own_credential: own_credential(&self.target.policy),
        }
    }

    /// The target's own p95, where the policy measures slowness by it.
    fn learned_ttft(&self, now: Duration) -> Option<Duration> {
        let relative = self.target.policy.rules.breaker.rules.slow.relative_percent.is_some();
        relative.then(|| self.target.live.healthy_ttft.lock().percentile(now, 95)).flatten()
    }

    /// A 2xx: its bytes are held back until the client may have them.
    async fn success(&self, mut flow: Box<Flow>, response: Response<Incoming>) -> Ended {
        let (parts, mut body) = response.into_parts();
        let mut headers = parts.headers;
        self.mark(&mut headers);
        // Nothing can be added to an encoded stream.
        let events = is_event_stream(&headers) && !is_encoded(&headers);
        let unread = self.ask.operation == Operation::Other || is_encoded(&headers);
        if unread {
            flow.unread(parts.status);
        } else {
            flow.status(parts.status);
        }
        if self.ask.facts.stream {
            // A chunk may be cut out, an error event may be added.
            headers.remove(header::CONTENT_LENGTH);
        }
        let size = body.size_hint();
        let buffer =
            usize::try_from(self.target.policy.rules.streaming.rules.buffer_bytes).unwrap_or(usize::MAX);
        let mut upstream = Upstream::Open;
        while !unread && flow.ended().is_none() && !flow.committed() && flow.out_bytes() < buffer {
            tokio::select! {
                frame = body.frame() => upstream = take_frame(&mut flow, frame, self.shared.clock.now()),
                () = self.shared.clock.sleep_until(flow.next_wakeup()) => {
                    flow.wake(self.shared.clock.now());
                }
            }
        }
        let response = |body| response_of(parts.status, headers, body);
        match flow.ended().map(|ending| &ending.happening) {
            Some(Happening::Finished { .. }) => {
                let whole = flow.all_out();
                flow.finish_behind_answer(self.shared);
                Ended::Answer(response(Body::full(whole)))
            }
            Some(happening) if !flow.committed() => {
                let answer =
                    is_answer(happening).then(|| response(self.rest(flow.all_out(), body, upstream)));
                self.failed(flow, answer)
            }
            _ => {
                let keep_alive = self.target.policy.rules.streaming.rules.keep_alive.filter(|_| events);
                let body = matches!(upstream, Upstream::Open).then_some(body);
                let mut relay = Relay::new(self.shared.clone(), body, flow, events, keep_alive);
                if !self.ask.facts.stream {
                    relay = relay.sized(size);
                }
                Ended::Answer(response(Body::Relay(Box::new(relay))))
            }
        }
    }

    /// An answer as the provider gave it: what was read of it, and what is still to come.
    fn rest(&self, read: Bytes, body: Incoming, upstream: Upstream) -> Body {
        if matches!(upstream, Upstream::Ended) {
            return Body::full(read);
        }
        let now = self.shared.clock.now();
        let until = now.saturating_add(self.exchange.deadline.remaining(now));
        Body::Verbatim(Box::new(Verbatim::new(read, body, self.shared.clock.instant(until))))
    }

    /// An error status: its body tells what kind, and goes to the client when nothing else is left.
    async fn error_status(&self, mut flow: Box<Flow>, response: Response<Incoming>) -> Ended {
        let (parts, mut body) = response.into_parts();
        let mut read = BytesMut::new();
        let mut upstream = Upstream::Open;
        while flow.ended().is_none() && read.len() < ERROR_BODY_BYTES {
            tokio::select! {
                frame = body.frame() => {
                    let Some(Ok(frame)) = frame else {
                        upstream = Upstream::Ended;
                        break;
                    };
                    read.extend_from_slice(&frame.into_data().unwrap_or_default());
                }
                () = self.shared.clock.sleep_until(flow.next_wakeup()) => {
                    flow.wake(self.shared.clock.now());
                }
            }
        }
        let read = read.freeze();
        let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let facts = StatusFacts {
            status: parts.status.as_u16(),
            error: read_answer(self.ask.operation, parts.status.as_u16(), text("content-type"), &read).error,
            pushback: retry_after(text, crate::clock::wall()),
        };
        flow.end_with(self.shared.clock.now(), Happening::Status(facts));
        if let Some(grant) = flow.grant() {
            grant.not_charged();
        }
        let mut headers = parts.headers;
        self.mark(&mut headers);
        if flow.ended().is_some_and(|ending| Outlook::forbids_retry(&ending.classified)) {
            headers.insert(headers::SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        if matches!(upstream, Upstream::Ended) && self.ask.method != http::Method::HEAD {
            // It may have broken off: the length is what was read.
            headers.remove(header::CONTENT_LENGTH);
        }
        let answer = response_of(parts.status, headers, self.rest(read, body, upstream));
        self.failed(flow, Some(answer))
    }

    /// The attempt is over and nothing of it has reached the client.
    fn failed(&self, flow: Box<Flow>, answer: Option<Response<Body>>) -> Ended {
        let Ending { happening, classified, .. } = flow.finish(self.shared.clock.now());
        let pause = pause(classified.verdict, classified.pushback, &self.target.policy);
        let wait = pause.or(classified.pushback);
        Ended::Failed(Failure { happening, classified, wait, answer })
    }

    fn failed_to_send(&self, grant: Grant, failure: ConnectFailure) -> Ended {
        let happening = Happening::Connect(failure);
        let rules = &self.target.policy.rules.breaker.rules.classify;
        let own_credential = own_credential(&self.target.policy);
        let classified = classify(&happening, Context { rules, own_credential });
        spans::attempt_failed(grant.span(), &classified);
        grant.finish(Verdict::Ignored, None);
        Ended::Failed(Failure { happening, classified, wait: None, answer: None })
    }

    /// The provider's headers on their way to the client.
    fn mark(&self, headers: &mut HeaderMap) {
        headers::clean_answer(headers);
        headers.insert(headers::SERVED_BY, self.target.served_by.clone());
        headers.insert(headers::EXCHANGE_ID, self.exchange.id_header());
    }
}

/// Whether what came is an answer that can be passed on when no target is left.
fn is_answer(happening: &Happening) -> bool {
    matches!(happening, Happening::ErrorInSuccess { .. } | Happening::Empty | Happening::NotJson)
}

/// The body of a provider's answer.
#[derive(Clone, Copy)]
enum Upstream {
    Open,
    Ended,
}

fn take_frame(
    flow: &mut Flow,
    frame: Option<Result<http_body::Frame<Bytes>, hyper::Error>>,
    now: Duration,
) -> Upstream {
    match frame {
        Some(Ok(frame)) => {
            if let Ok(chunk) = frame.into_data() {
                flow.take(now, chunk);
            }
            return Upstream::Open;
        }
        Some(Err(_)) => flow.body_ended(now, BodyEnd::Cut),
        None => flow.body_ended(now, BodyEnd::Clean),
    }
    Upstream::Ended
}

fn response_of(status: StatusCode, headers: HeaderMap, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

pub(crate) fn is_event_stream(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.trim_start().to_ascii_lowercase().starts_with("text/event-stream"))
}

/// It was asked not to be. What came all the same can be passed on, but not read.
fn is_encoded(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_ENCODING)
        .is_some_and(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity"))
}

/// Whether a refused credential is the target's matter and not the caller's: also where it has none, since the
/// caller's was taken away.
fn own_credential(policy: &TargetPolicy) -> bool {
    !matches!(policy.credential, sluice_core::policy::Credential::Passthrough)
}

fn connect_failure(fault: SendFault) -> ConnectFailure {
    match fault {
        SendFault::Dns => ConnectFailure::Dns,
        SendFault::Connect => ConnectFailure::Connect,
        SendFault::Tls => ConnectFailure::Tls,
        SendFault::Timeout => ConnectFailure::Timeout,
        SendFault::Reset => ConnectFailure::Reset,
    }
}
