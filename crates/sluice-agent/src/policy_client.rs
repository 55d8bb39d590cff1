//! The agent's end of the policy stream: says hello, applies what comes, answers object by object, reports.
//!
//! A stream that ends (the control plane recycles them), or a control plane that is away, changes nothing
//! for traffic: the last good policies stay, and the agent connects again after a jittered pause.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sluice_proto::apply::Applied;
use sluice_proto::feature::SUPPORTED;
use sluice_proto::report::{Hello, Report, TargetTransition};
use sluice_proto::v1::policy_discovery_client::PolicyDiscoveryClient;
use sluice_proto::v1::{AgentMessage, ControllerMessage, agent_message, controller_message};
use sluice_proto::{MAX_MESSAGE_BYTES, reconnect};
use tokio::sync::mpsc;
use tonic::transport::{Channel, Endpoint};

use crate::agent::Shared;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Messages on their way out; what does not fit is reported by the next aggregate.
const OUTGOING: usize = 64;

/// Follows the control plane until the agent drains.
pub(crate) async fn follow(shared: Arc<Shared>, control_plane: Endpoint) {
    let endpoint = control_plane
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(Duration::from_secs(20))
        .keep_alive_while_idle(true);
    let mut applied = Applied::new();
    let mut failures = 0_u32;
    while !shared.drain.stopping() {
        let before = applied.current().version.clone();
        let ended = tokio::select! {
            () = shared.drain.stopped() => return,
            ended = stream(&shared, &endpoint, &mut applied) => ended,
        };
        failures = if applied.current().version == before { failures.saturating_add(1) } else { 0 };
        let pause = reconnect::pause(failures, shared.random.draw());
        match ended {
            Ok(()) => tracing::debug!(?pause, "the control plane ended the policy stream"),
            Err(error) => tracing::warn!(
                error = error.as_ref(),
                ?pause,
                "no policy stream: the last good policies stay in use"
            ),
        }
        tokio::select! {
            () = shared.drain.stopped() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

type StreamError = Box<dyn std::error::Error + Send + Sync>;

/// One stream, from hello to its end.
async fn stream(shared: &Arc<Shared>, endpoint: &Endpoint, applied: &mut Applied) -> Result<(), StreamError> {
    let channel: Channel = endpoint.connect().await?;
    let mut client = PolicyDiscoveryClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let (outgoing, messages) = mpsc::channel(OUTGOING);
    send(&outgoing, agent_message::Message::Hello(hello(shared, applied).encode())).await?;
    let messages = tokio_stream::wrappers::ReceiverStream::new(messages);
    let mut incoming = client.stream(messages).await?.into_inner();
    let mut transitions = shared.store.transitions();
    let mut reports = tokio::time::interval(REPORT_INTERVAL);
    reports.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            message = incoming.message() => match message? {
                Some(message) => take(shared, applied, message, &outgoing).await?,
                None => return Ok(()),
            },
            event = transitions.recv() => {
                // A lagging receiver has missed some; the states come with the next aggregate.
                let Ok(event) = event else { continue };
                if event.made_here {
                    let transition = TargetTransition { target: event.target, transition: event.transition };
                    let report = Report { transitions: vec![transition], ..Report::default() };
                    send(&outgoing, agent_message::Message::Report(report.encode())).await?;
                }
            },
            _ = reports.tick() => {
                let report = crate::report::aggregate(shared);
                send(&outgoing, agent_message::Message::Report(report.encode())).await?;
            }
        }
    }
}

async fn send(
    outgoing: &mpsc::Sender<AgentMessage>,
    message: agent_message::Message,
) -> Result<(), StreamError> {
    outgoing.send(AgentMessage { message: Some(message) }).await.map_err(Into::into)
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
) -> Result<(), StreamError> {
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
        None => tracing::debug!("a message of a kind that this agent does not know"),
    }
    Ok(())
}
