//! The agent's end of the policy stream: says hello, applies what comes, answers object by object, reports.
//!
//! A stream that ends (the control plane recycles them), or a control plane that is away, changes nothing
//! for traffic: the last good policies stay, and the agent connects again after a jittered pause.
//!
//! Edge rules
//! - Pauses grow until a stream has lasted: a control plane that pushes and dies is not asked four times a second.
//! - A refused credential is no weather: the first pause after it is long. But a file that changes (a renewed token, the
//!   authorities of a younger ConfigMap) ends every pause.
//! - An agent without policies keeps its application waiting, so it asks at least every four seconds.
//! - The log tells of a reason once, and of its end.
//! - Nothing is reported before the stream's first snapshot: the control plane takes reports of targets that it has
//!   given to the agent on this stream, and of no others. What happens meanwhile waits.

mod untold;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sluice_proto::apply::Applied;
use sluice_proto::feature::SUPPORTED;
use sluice_proto::report::{Hello, Report};
use sluice_proto::v1::policy_discovery_client::PolicyDiscoveryClient;
use sluice_proto::v1::{AgentMessage, ControllerMessage, agent_message, controller_message};
use sluice_proto::{MAX_MESSAGE_BYTES, reconnect};
use tokio::sync::mpsc;
use tonic::{Code, Status};

use crate::agent::Shared;
use crate::control_plane::{ControlPlane, Unreachable};
use crate::report::Told;
use untold::Untold;

/// From the hello to the head of the answer, a review of the token included.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Messages on their way out; what does not fit is reported by the next aggregate.
const OUTGOING: usize = 64;
/// A stream that lived so long was well.
const LASTED: Duration = Duration::from_secs(10);
/// Failures that the pause after a refused credential starts at: four to eight seconds.
const REFUSED: u32 = 5;
/// Failures that count for an agent without policies: two to four seconds.
const UNSERVED: u32 = 4;

/// How things stand with the control plane.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It has not been asked yet, or there is none.
    #[default]
    Unasked,
    Connected,
    Away(Arc<str>),
}

/// Why there is no stream.
#[derive(Debug, thiserror::Error)]
enum NoStream {
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    #[error("the control plane refuses this agent ({:?}): {}", .0.code(), .0.message())]
    Refused(Status),
    #[error("the control plane did not answer the hello within {} s", ANSWER_WITHIN.as_secs())]
    Silent,
    #[error("the control plane has no stream for this agent now ({:?}): {}", .0.code(), .0.message())]
    Declined(Status),
    /// It had begun.
    #[error("the policy stream ended ({:?}): {}", .0.code(), .0.message())]
    Ended(Status),
}

/// Follows the control plane until the agent drains.
pub(crate) async fn follow(shared: Arc<Shared>, control_plane: ControlPlane, mut applied: Applied) {
    let mut failures = 0_u32;
    let mut untold = Untold::new(shared.store.transitions());
    while !shared.drain.stopping() {
        let files = control_plane.files().await;
        let started = shared.clock.now();
        let ended = tokio::select! {
            () = shared.drain.stopped() => return,
            ended = stream(&shared, &control_plane, &mut applied, &mut untold) => ended,
        };
        let lasted =
            matches!(ended, NoStream::Ended(_)) && shared.clock.now().saturating_sub(started) >= LASTED;
        failures = if lasted { 0 } else { failures.saturating_add(1) };
        let counted = match &ended {
            NoStream::Refused(_) => failures.max(REFUSED),
            _ if applied.current().version.is_empty() => failures.min(UNSERVED),
            _ => failures,
        };
        tell(&shared.standing, &ended);
        tokio::select! {
            () = shared.drain.stopped() => return,
            () = tokio::time::sleep(reconnect::pause(counted, shared.random.draw())) => {}
            () = control_plane.changed(&files) => failures = 0,
            () = untold.wait(false) => {}
        }
    }
}

/// One stream, from hello to its end.
async fn stream(
    shared: &Arc<Shared>,
    control_plane: &ControlPlane,
    applied: &mut Applied,
    untold: &mut Untold,
) -> NoStream {
    let begun = begin(shared, control_plane, applied).await;
    let (mut incoming, outgoing) = match begun {
        Ok(begun) => begun,
        Err(no_stream) => return no_stream,
    };
    let before = std::mem::replace(&mut *shared.standing.lock(), Standing::Connected);
    match before {
        Standing::Connected => tracing::debug!("the policy stream goes on"),
        Standing::Unasked | Standing::Away(_) => tracing::info!("connected to the control plane"),
    }
    match relay(shared, applied, untold, &mut incoming, &outgoing).await {
        Ok(()) => NoStream::Ended(Status::unavailable("it is over")),
        Err(status) => NoStream::Ended(status),
    }
}

type Incoming = tonic::Streaming<ControllerMessage>;

/// From nothing to a stream that the control plane has agreed to.
async fn begin(
    shared: &Shared,
    control_plane: &ControlPlane,
    applied: &Applied,
) -> Result<(Incoming, mpsc::Sender<AgentMessage>), NoStream> {
    let (channel, bearer) = control_plane.connect().await?;
    let mut client = PolicyDiscoveryClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let (outgoing, messages) = mpsc::channel(OUTGOING);
    let hello = agent_message::Message::Hello(hello(shared, applied).encode());
    send(&outgoing, hello).await.map_err(NoStream::Declined)?;
    let mut request = tonic::Request::new(tokio_stream::wrappers::ReceiverStream::new(messages));
    if let Some(bearer) = bearer {
        request.metadata_mut().insert("authorization", bearer);
    }
    let answered = tokio::time::timeout(ANSWER_WITHIN, client.stream(request)).await;
    match answered.map_err(|_| NoStream::Silent)? {
        Ok(answer) => Ok((answer.into_inner(), outgoing)),
        Err(status) if is_refusal(&status) => Err(NoStream::Refused(status)),
        Err(status) => Err(NoStream::Declined(status)),
    }
}

/// No waiting mends it.
fn is_refusal(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unauthenticated | Code::PermissionDenied | Code::InvalidArgument | Code::Unimplemented
    )
}

/// Both ways, until either side ends it.
async fn relay(
    shared: &Arc<Shared>,
    applied: &mut Applied,
    untold: &mut Untold,
    incoming: &mut Incoming,
    outgoing: &mpsc::Sender<AgentMessage>,
) -> Result<(), Status> {
    untold.repeat(shared.clock.now());
    let mut told = Told::default();
    // Whether the control plane knows which targets this agent has.
    let mut given = false;
    let mut reports = tokio::time::interval(REPORT_INTERVAL);
    reports.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            message = incoming.message() => match message? {
                Some(message) => {
                    given |= matches!(message.message, Some(controller_message::Message::Snapshot(_)));
                    take(shared, applied, message, outgoing).await?;
                }
                None => return Ok(()),
            },
            () = untold.wait(given) => {
                let report = Report { transitions: untold.take(shared.clock.now()), ..Report::default() };
                send(outgoing, agent_message::Message::Report(report.encode())).await?;
            },
            _ = reports.tick(), if given => {
                // Most agents are idle at most of their targets: a fleet that says so every second is a load of its own.
                let Some(report) = told.news(crate::report::aggregate(shared)) else { continue };
                send(outgoing, agent_message::Message::Report(report.encode())).await?;
            }
        }
    }
}

async fn send(outgoing: &mpsc::Sender<AgentMessage>, message: agent_message::Message) -> Result<(), Status> {
    let sent = outgoing.send(AgentMessage { message: Some(message) }).await;
    sent.map_err(|_| Status::unavailable("the stream is closed"))
}

/// The end of a stream that had begun is only debug's: the next one tells whether anything is wrong.
fn tell(standing: &Mutex<Standing>, ended: &NoStream) {
    if let NoStream::Ended(status) = ended
        && !is_refusal(status)
    {
        return tracing::debug!(reason = %ended, "the control plane ended the policy stream");
    }
    let now = Standing::Away(ended.to_string().into());
    let before = std::mem::replace(&mut *standing.lock(), now.clone());
    if before == now {
        tracing::debug!(reason = %ended, "still no policy stream");
    } else {
        tracing::warn!(reason = %ended, "no policy stream: the policies in use, if there are any, stay");
    }
}

fn hello(shared: &Shared, applied: &Applied) -> Hello {
    Hello {
        agent_id: shared.id.clone(),
        namespace: shared.identity.namespace.as_str().into(),
        pod: shared.identity.name.as_str().into(),
        labels: shared.identity.labels.clone(),
        features: SUPPORTED.iter().copied().collect::<BTreeSet<_>>(),
        build: env!("CARGO_PKG_VERSION").into(),
        applied_version: applied.current().version.clone(),
    }
}

async fn take(
    shared: &Arc<Shared>,
    applied: &mut Applied,
    message: ControllerMessage,
    outgoing: &mpsc::Sender<AgentMessage>,
) -> Result<(), Status> {
    match message.message {
        Some(controller_message::Message::Snapshot(snapshot)) => {
            let (set, ack) = applied.apply(snapshot);
            for rejection in &ack.rejected {
                tracing::warn!(
                    object = %rejection.object,
                    error = %rejection.error,
                    "policy rejected: its last good version stays in use"
                );
            }
            shared.use_policies(&set, &ack.rejected);
            send(outgoing, agent_message::Message::Ack(ack.encode())).await?;
        }
        Some(controller_message::Message::Secrets(secrets)) => {
            let set = applied.rotate(secrets);
            shared.use_secrets(&set);
        }
        Some(controller_message::Message::Agents(counts)) => {
            let set = applied.count(&counts);
            shared.use_counts(&set);
        }
        None => {
            tracing::debug!("a message of a kind that this agent does not know");
            return Ok(());
        }
    }
    shared.last_good.send_replace(applied.current());
    Ok(())
}
