//! An Event per breaker transition, on each route that has the target.
//!
//! Its name is made of target and epoch: should two replicas, or one replica twice, tell of the same transition, the API
//! server refuses the second as already there.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client, Resource as _};
use parking_lot::Mutex;
use sluice_api::ModelRoute;
use sluice_core::admission::{BreakerState, Transition};
use sluice_policy::compile::Compiled;
use sluice_policy::index::{Index, Key};
use sluice_proto::report::TargetTransition;
use tokio::sync::mpsc;

use crate::clock;
use crate::lease::Tenure;
use crate::plane::Newest;

const CONTROLLER: &str = "sluice.dev/controller";
/// Characters of a target's id in an Event's name.
const ID_CHARACTERS: usize = 10;
/// Longest name of an object.
const MAX_NAME: usize = 253;

pub(crate) struct EventWriter {
    pub(crate) client: Client,
    pub(crate) index: Arc<Mutex<Index>>,
    pub(crate) newest: Newest,
    pub(crate) tenure: Tenure,
    pub(crate) pod: Arc<str>,
}

impl EventWriter {
    /// Tells of transitions, each once, while this replica holds the lease.
    pub(crate) async fn run(self, mut transitions: mpsc::Receiver<TargetTransition>) {
        while let Some(told) = transitions.recv().await {
            let transition = &told.transition;
            tracing::info!(
                target_id = %told.target, from = transition.from.as_str(), to = transition.to.as_str(),
                reason = transition.reason.as_str(), epoch = transition.epoch, "breaker transition"
            );
            let Some(until) = *self.tenure.borrow() else { continue };
            let Some(compiled) = self.newest.borrow().clone() else { continue };
            for (key, target) in routes_with(&compiled, &told) {
                let Some(event) = self.event(&key, &target, &told) else { continue };
                let events = Api::<Event>::namespaced(self.client.clone(), &key.namespace);
                match tokio::time::timeout_at(until, events.create(&PostParams::default(), &event)).await {
                    Ok(Err(kube::Error::Api(status))) if status.code == 409 => {}
                    Ok(Err(error)) => tracing::warn!(route = %key, %error, "an Event was not written"),
                    Ok(Ok(_)) | Err(_) => {}
                }
            }
        }
    }

    fn event(&self, key: &Key, target: &str, told: &TargetTransition) -> Option<Event> {
        let index = self.index.lock();
        let route = index.routes().get(key)?.newest.as_ref()?;
        let transition = &told.transition;
        Some(Event {
            metadata: ObjectMeta {
                name: Some(name(key, told)),
                namespace: Some(key.namespace.to_string()),
                ..ObjectMeta::default()
            },
            event_time: Some(clock::micro_time()),
            action: Some("BreakerTransition".to_owned()),
            reason: Some(reason(transition).to_owned()),
            note: Some(note(target, transition)),
            type_: Some(if transition.to == BreakerState::Open { "Warning" } else { "Normal" }.to_owned()),
            regarding: Some(ObjectReference {
                api_version: Some(sluice_api::API_VERSION.to_owned()),
                kind: Some(ModelRoute::kind(&()).into_owned()),
                namespace: Some(key.namespace.to_string()),
                name: Some(key.name.to_string()),
                uid: route.metadata.uid.clone(),
                ..ObjectReference::default()
            }),
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(self.pod.to_string()),
            ..Event::default()
        })
    }
}

/// The routes that have the target, and what they call it.
fn routes_with(compiled: &Compiled, told: &TargetTransition) -> Vec<(Key, String)> {
    let routes = compiled.routes.iter();
    let found = routes.filter_map(|(key, report)| {
        let target = report.targets.iter().find(|target| target.id == told.target)?;
        Some((key.clone(), target.name.to_string()))
    });
    found.collect()
}

fn name(key: &Key, told: &TargetTransition) -> String {
    let id: String = told.target.as_str().chars().take(ID_CHARACTERS).collect();
    let end = format!(".{id}.{:x}", told.transition.epoch);
    let mut name: String = key.name.chars().take(MAX_NAME - end.len()).collect();
    name.push_str(&end);
    name
}

fn reason(transition: &Transition) -> &'static str {
    match transition.to {
        BreakerState::Open => "BreakerOpened",
        BreakerState::HalfOpen => "BreakerHalfOpen",
        BreakerState::Closed => "BreakerClosed",
    }
}

fn note(target: &str, transition: &Transition) -> String {
    let counts = &transition.counts;
    let window = if counts.calls > 0 {
        format!(
            "; of {} calls {} failed, {} were slow, {} stalled",
            counts.calls, counts.failures, counts.slow, counts.stalls
        )
    } else {
        String::new()
    };
    format!(
        "target {target}: {} → {} ({}){window}",
        transition.from.as_str(),
        transition.to.as_str(),
        transition.reason.as_str()
    )
}
