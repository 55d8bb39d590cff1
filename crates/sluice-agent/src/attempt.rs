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
use http::{HeaderMap, Response, StatusCode, header};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use sluice_core::classify::{Classified, ConnectFailure, Happening, StatusFacts, classify};
use sluice_core::policy::TargetPolicy;
use sluice_core::relay::UsageChunk;
use sluice_core::retry_after::retry_after;
use sluice_core::stream::{BodyEnd, SlowThresholds, StreamRules};
use sluice_core::wire::read_answer;

use crate::agent::Shared;
use crate::ask::Ask;
use crate::body::Body;
use crate::exchange::Exchange;
use crate::flow::Flow;
use crate::grant::Grant;
use crate::headers;
use crate::relay::Relay;
use crate::targets::Target;
use crate::upstream::{Outgoing, SendFault, request};

/// An error's body, as far as it is read for classification and passed on.
const ERROR_BODY_BYTES: usize = 256 * 1024;

pub(crate) enum Ended {
    /// The answer's bytes go to the client from here on.
    Answer(Response<Body>),
    Failed(Failure),
}

/// An attempt of which nothing has reached the client.
pub(crate) struct Failure {
    pub(crate) happening: Happening,
    pub(crate) classified: Classified,
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
        let Some(outgoing) = self.outgoing(body) else {
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
                        return failed(flow, None);
                    }
                }
            }
        };
        match response {
            Ok(response) if response.status().is_success() => self.success(flow, response).await,
            Ok(response) => self.error_status(flow, response).await,
            Err(fault) => {
                flow.end_with(self.shared.clock.now(), Happening::Connect(connect_failure(fault)));
                if let Some(grant) = flow.grant() {
                    grant.not_charged();
                }
                failed(flow, None)
            }
        }
    }

    fn outgoing(&self, body: Bytes) -> Option<http::Request<http_body_util::Full<Bytes>>> {
        let rules = &self.target.policy.rules;
        request(
            self.target.origin.as_ref()?,
            &self.target.credential,
            Outgoing {
                method: &self.ask.method,
                uri: &self.ask.uri,
                headers: self.ask.outgoing_headers(),
                body,
                exchange: self.exchange.id_header(),
                attempt: self.exchange.fresh_id(self.shared),
                keep_idempotency_key: !self.moved,
                remaining: rules
                    .streaming
                    .rules
                    .propagate_deadline
                    .then(|| self.exchange.deadline.remaining(self.shared.clock.now())),
            },
        )
    }

    fn flow(&self, started: Duration, hide_usage: bool, grant: Grant) -> Flow {
        let rules = self.rules(started, grant.is_probe());
        let operation = self.ask.operation;
        if self.ask.facts.stream {
            let usage_chunk = if hide_usage { UsageChunk::Hide } else { UsageChunk::Forward };
            Flow::events(operation, usage_chunk, rules, started, self.target.clone(), grant)
        } else {
            Flow::document(operation, rules, started, self.target.clone(), grant)
        }
    }

    /// The watch's rules; a group that is only observed sets no deadline.
    fn rules(&self, started: Duration, probe: bool) -> StreamRules {
        let rules = &self.target.policy.rules;
        let deadlines = &rules.deadlines.rules;
        let observed = rules.deadlines.mode == sluice_core::policy::Mode::Observe;
        let unlimited = Duration::from_secs(365 * 86_400);
        let or_unlimited = |limit: Duration| if observed { unlimited } else { limit };
        let learned = self.learned_ttft(started);
        let mut slow = SlowThresholds::of(&rules.breaker.rules.slow, learned);
        let stream = self.ask.facts.stream;
        if !stream {
            slow.ttft = None;
        }
        StreamRules {
            first_token: if stream && !observed {
                deadlines.first_token.min(self.exchange.deadline.first_token(started))
            } else {
                unlimited
            },
            stall: or_unlimited(deadlines.stall),
            max_silence: or_unlimited(deadlines.max_silence),
            total: self.exchange.deadline.remaining(started),
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
    async fn success(&self, mut flow: Flow, response: Response<Incoming>) -> Ended {
        let (parts, mut body) = response.into_parts();
        flow.status(parts.status);
        let events = is_event_stream(&parts.headers);
        let size = body.size_hint();
        let buffer =
            usize::try_from(self.target.policy.rules.streaming.rules.buffer_bytes).unwrap_or(usize::MAX);
        let other = self.ask.operation == sluice_core::wire::Operation::Other;
        while flow.ended().is_none() && !flow.committed() && flow.out_bytes() < buffer && !(other && events) {
            tokio::select! {
                frame = body.frame() => take_frame(&mut flow, frame, self.shared.clock.now()),
                () = self.shared.clock.sleep_until(flow.next_wakeup()) => {
                    flow.wake(self.shared.clock.now());
                }
            }
        }
        let failed_before_commit = flow.ended().is_some_and(|ending| {
            !matches!(ending.happening, Happening::Finished { .. }) && !flow.committed()
        });
        let mut headers = parts.headers;
        self.mark(&mut headers);
        if failed_before_commit {
            let answer =
                answered(&flow).then(|| response_of(parts.status, headers, Body::full(flow.all_out())));
            return failed(flow, answer);
        }
        if flow.ended().is_some() {
            let whole = flow.all_out();
            flow.settle(None);
            return Ended::Answer(response_of(parts.status, headers, Body::full(whole)));
        }
        let keep_alive = self.target.policy.rules.streaming.rules.keep_alive.filter(|_| events);
        let announced = !self.ask.facts.stream;
        let mut relay = Relay::new(self.shared.clone(), Some(body), flow, events, keep_alive);
        if announced {
            relay = relay.sized(size);
        } else {
            headers.remove(header::CONTENT_LENGTH);
        }
        Ended::Answer(response_of(parts.status, headers, Body::Relay(Box::new(relay))))
    }

    /// An error status: its body tells what kind, and goes to the client when nothing else is left.
    async fn error_status(&self, mut flow: Flow, response: Response<Incoming>) -> Ended {
        let (parts, mut body) = response.into_parts();
        let mut read = BytesMut::new();
        let whole = loop {
            tokio::select! {
                frame = body.frame() => match frame {
                    Some(Ok(frame)) => {
                        if let Ok(chunk) = frame.into_data() {
                            read.extend_from_slice(&chunk);
                        }
                        if read.len() > ERROR_BODY_BYTES {
                            break false;
                        }
                    }
                    Some(Err(_)) => break false,
                    None => break true,
                },
                () = self.shared.clock.sleep_until(flow.next_wakeup()) => {
                    flow.wake(self.shared.clock.now());
                    if flow.ended().is_some() {
                        break false;
                    }
                }
            }
        };
        let read = read.freeze();
        let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let facts = read_answer(self.ask.operation, parts.status.as_u16(), content_type, &read);
        let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let pushback = retry_after(header, crate::clock::wall());
        let facts = StatusFacts { status: parts.status.as_u16(), error: facts.error, pushback };
        flow.end_with(self.shared.clock.now(), Happening::Status(facts));
        if let Some(grant) = flow.grant() {
            grant.not_charged();
        }
        let mut headers = parts.headers;
        self.mark(&mut headers);
        if !whole {
            headers.remove(header::CONTENT_LENGTH);
        }
        failed(flow, Some(response_of(parts.status, headers, Body::full(read))))
    }

    fn failed_to_send(&self, grant: Grant, failure: ConnectFailure) -> Ended {
        let happening = Happening::Connect(failure);
        let rules = &self.target.policy.rules.breaker.rules.classify;
        let own_credential = own_credential(&self.target.policy);
        let classified = classify(&happening, sluice_core::classify::Context { rules, own_credential });
        grant.finish(sluice_core::outcome::Verdict::Ignored, None);
        Ended::Failed(Failure { happening, classified, answer: None })
    }

    /// The provider's headers on their way to the client.
    fn mark(&self, headers: &mut HeaderMap) {
        // A provider's `Connection` may name anything: only the hop is cleaned, nothing is refused.
        if headers::strip_hop_by_hop(headers).is_err() {
            headers.remove(header::CONNECTION);
        }
        headers.insert(headers::SERVED_BY, self.target.served_by.clone());
        headers.insert(headers::EXCHANGE_ID, self.exchange.id_header());
    }
}

/// A failure's 429 pauses the target for everyone; its own time is clamped by the policy.
fn pause(classified: &Classified, policy: &TargetPolicy) -> Option<Duration> {
    if classified.verdict != sluice_core::outcome::Verdict::Throttled {
        return None;
    }
    let pushback =
        policy.rules.quota.as_ref().map(|quota| &quota.rules.pushback).cloned().unwrap_or_default();
    Some(classified.pushback.unwrap_or(pushback.default_pause).min(pushback.max_pause))
}

fn failed(mut flow: Flow, answer: Option<Response<Body>>) -> Ended {
    // Callers come here behind an end; a flow without one settles itself as one whose client left.
    let Some(ending) = flow.ended().cloned() else { return left(answer) };
    let wait = pause(&ending.classified, flow.policy());
    flow.settle(wait);
    Ended::Failed(Failure { happening: ending.happening, classified: ending.classified, answer })
}

fn left(answer: Option<Response<Body>>) -> Ended {
    let happening = Happening::ClientGone { slow: false, undecided_probe: false };
    let classified =
        classify(&happening, sluice_core::classify::Context { rules: &[], own_credential: false });
    Ended::Failed(Failure { happening, classified, answer })
}

/// Whether what came is an answer that can be passed on when no target is left.
fn answered(flow: &Flow) -> bool {
    flow.ended().is_some_and(|ending| {
        matches!(ending.happening, Happening::ErrorInSuccess { .. } | Happening::Empty | Happening::NotJson)
    })
}

fn take_frame(flow: &mut Flow, frame: Option<Result<http_body::Frame<Bytes>, hyper::Error>>, now: Duration) {
    match frame {
        Some(Ok(frame)) => {
            if let Ok(chunk) = frame.into_data() {
                flow.take(now, chunk);
            }
        }
        Some(Err(_)) => flow.body_ended(now, BodyEnd::Cut),
        None => flow.body_ended(now, BodyEnd::Clean),
    }
}

fn response_of(status: StatusCode, headers: HeaderMap, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.trim_start().to_ascii_lowercase().starts_with("text/event-stream"))
}

fn own_credential(policy: &TargetPolicy) -> bool {
    matches!(policy.credential, sluice_core::policy::Credential::Secret(_))
}

fn connect_failure(fault: SendFault) -> ConnectFailure {
    match fault {
        SendFault::Dns => ConnectFailure::Dns,
        SendFault::Connect => ConnectFailure::Connect,
        SendFault::Tls => ConnectFailure::Tls,
        SendFault::Reset => ConnectFailure::Reset,
    }
}
