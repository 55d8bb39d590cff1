//! What an Event tells of one object, and its name. Pure.
//!
//! The name is made of what is told: should two replicas, or one replica twice, tell the same, the API server refuses the
//! second as already there. A breaker's transition is named by target and epoch; a condition by its words and the
//! moment when it came to be so, which the status keeps; a pod without an agent by its uid.

use data_encoding::HEXLOWER;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime, ObjectMeta};
use sha2::{Digest as _, Sha256};
use sluice_core::admission::{BreakerState, Transition};
use sluice_core::policy::ObjectKind;
use sluice_policy::index::Key;
use sluice_proto::report::TargetTransition;

use crate::injection::missing::MissingAgent;

/// Who tells.
const CONTROLLER: &str = "sluice.dev/controller";
/// Characters of a target's id in an Event's name.
const ID_CHARACTERS: usize = 10;
/// Bytes of a hash in an Event's name.
const HASH_BYTES: usize = 8;
/// Longest name of an object.
const MAX_NAME: usize = 253;
/// Longest note and longest name of an instance that API servers take.
const MAX_NOTE: usize = 1_024;
const MAX_INSTANCE: usize = 128;

/// One thing that is told once.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Notice {
    /// The object that it is about, whose namespace is the Event's.
    regarding: ObjectReference,
    /// What comes after the object's name in the Event's.
    end: String,
    action: &'static str,
    reason: String,
    note: String,
    warning: bool,
}

/// An object of ours, of which something is told.
pub(crate) struct About<'a> {
    pub(crate) kind: ObjectKind,
    pub(crate) key: &'a Key,
    pub(crate) uid: Option<&'a str>,
    pub(crate) generation: i64,
}

impl Notice {
    /// A breaker's transition, told of a route that has the target.
    pub(crate) fn transition(route: &About<'_>, target: &str, told: &TargetTransition) -> Self {
        let transition = &told.transition;
        let id: String = told.target.as_str().chars().take(ID_CHARACTERS).collect();
        Self {
            regarding: route.reference(),
            end: format!("{id}.{:x}", transition.epoch),
            action: "BreakerTransition",
            reason: transition_reason(transition).to_owned(),
            note: transition_note(target, transition),
            warning: transition.to == BreakerState::Open,
        }
    }

    /// A condition that came to be, or whose words changed.
    pub(crate) fn condition(object: &About<'_>, condition: &Condition) -> Self {
        let since = condition.last_transition_time.0.to_string();
        let words = [&condition.type_, &condition.status, &condition.reason, &condition.message, &since];
        Self {
            regarding: object.reference(),
            end: hash(&words.map(String::as_str)),
            action: "Reconcile",
            reason: condition.reason.clone(),
            note: condition.message.clone(),
            warning: condition.status != "True",
        }
    }

    /// Agents refuse a route and keep what they have.
    pub(crate) fn rejection(route: &About<'_>, rejecting: u32, connected: u32, why: &str) -> Self {
        Self {
            regarding: route.reference(),
            end: hash(&["rejected", &route.generation.to_string(), why]),
            action: "Program",
            reason: "AgentRejected".to_owned(),
            note: format!("{rejecting} of {connected} agents reject it and keep what they have: {why}"),
            warning: true,
        }
    }

    /// A pod asked for an agent and runs without one.
    pub(crate) fn missing_agent(missing: &MissingAgent) -> Self {
        let regarding = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(missing.pod.namespace.to_string()),
            name: Some(missing.pod.name.to_string()),
            uid: Some(missing.uid.to_string()),
            ..ObjectReference::default()
        };
        Self {
            regarding,
            end: hash(&["agent", &missing.uid]),
            action: "Inject",
            reason: "AgentMissing".to_owned(),
            note: missing.why.note().to_owned(),
            warning: true,
        }
    }

    pub(crate) fn namespace(&self) -> &str {
        self.regarding.namespace.as_deref().unwrap_or_default()
    }

    pub(crate) fn name(&self) -> String {
        let end = format!(".{}", self.end);
        let object = self.regarding.name.as_deref().unwrap_or_default();
        let mut name: String = object.chars().take(MAX_NAME - end.len()).collect();
        name.push_str(&end);
        name
    }

    pub(crate) fn event(&self, instance: &str, now: MicroTime) -> Event {
        Event {
            metadata: ObjectMeta {
                name: Some(self.name()),
                namespace: Some(self.namespace().to_owned()),
                ..ObjectMeta::default()
            },
            event_time: Some(now),
            action: Some(self.action.to_owned()),
            reason: Some(self.reason.clone()),
            note: Some(cut(&self.note, MAX_NOTE)),
            type_: Some(if self.warning { "Warning" } else { "Normal" }.to_owned()),
            regarding: Some(self.regarding.clone()),
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(cut(instance, MAX_INSTANCE)),
            ..Event::default()
        }
    }
}

impl About<'_> {
    fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(sluice_api::API_VERSION.to_owned()),
            kind: Some(self.kind.as_str().to_owned()),
            namespace: Some(self.key.namespace.to_string()),
            name: Some(self.key.name.to_string()),
            uid: self.uid.map(str::to_owned),
            ..ObjectReference::default()
        }
    }
}

/// Tells these words apart from all others.
fn hash(words: &[&str]) -> String {
    let mut hash = Sha256::new();
    for word in words {
        hash.update(word.len().to_be_bytes());
        hash.update(word);
    }
    HEXLOWER.encode(&hash.finalize()[..HASH_BYTES])
}

fn cut(text: &str, bytes: usize) -> String {
    text[..text.floor_char_boundary(bytes)].to_owned()
}

fn transition_reason(transition: &Transition) -> &'static str {
    match transition.to {
        BreakerState::Open => "BreakerOpened",
        BreakerState::HalfOpen => "BreakerHalfOpen",
        BreakerState::Closed => "BreakerClosed",
    }
}

fn transition_note(target: &str, transition: &Transition) -> String {
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

#[cfg(test)]
pub(super) mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;
    use sluice_core::admission::{TransitionReason, WindowCounts};
    use sluice_core::target_id::TargetId;

    use super::*;
    use crate::injection::missing::Why;

    /// Of a route's condition.
    pub(in crate::events) fn of_route(name: &str) -> Notice {
        let key = Key::new("team", name);
        let about = About { kind: ObjectKind::ModelRoute, key: &key, uid: None, generation: 1 };
        Notice::condition(&about, &condition("Secret a does not exist", 1))
    }

    /// Of a pod without an agent.
    pub(in crate::events) fn of_pod(name: &str) -> Notice {
        Notice::missing_agent(&missing(name))
    }

    pub(in crate::events) fn missing(name: &str) -> MissingAgent {
        MissingAgent { pod: Key::new("team", name), uid: name.into(), why: Why::NotInjected }
    }

    pub(in crate::events) fn told(target: &str, epoch: u64) -> TargetTransition {
        let (from, to) = (BreakerState::Closed, BreakerState::Open);
        let counts = WindowCounts { calls: 10, failures: 6, slow: 1, stalls: 0 };
        let reason = TransitionReason::FailureRate;
        TargetTransition {
            target: TargetId::of("ns", target, "https://x", ""),
            transition: Transition { from, to, reason, epoch, counts },
        }
    }

    fn condition(message: &str, since: i64) -> Condition {
        Condition {
            type_: "ResolvedRefs".to_owned(),
            status: "False".to_owned(),
            reason: "SecretNotFound".to_owned(),
            message: message.to_owned(),
            observed_generation: Some(1),
            last_transition_time: Time(Timestamp::from_second(since).unwrap()),
        }
    }

    #[test]
    fn a_transition_is_named_by_target_and_epoch_and_says_what_the_window_held() {
        let key = Key::new("ns", "chat");
        let route = About { kind: ObjectKind::ModelRoute, key: &key, uid: Some("u"), generation: 1 };
        let notice = Notice::transition(&route, "primary", &told("a", 0x1ff));
        let event = notice.event(&"p".repeat(200), MicroTime(Timestamp::UNIX_EPOCH));
        let name = notice.name();
        let (target, epoch) = name.rsplit_once('.').unwrap();
        assert!(target.starts_with("chat.") && epoch == "1ff", "{name}");
        assert_eq!(event.metadata.namespace.as_deref(), Some("ns"));
        assert_eq!(
            (event.reason.as_deref(), event.type_.as_deref()),
            (Some("BreakerOpened"), Some("Warning"))
        );
        assert_eq!(
            event.note.as_deref(),
            Some(
                "target primary: closed → open (failure-rate); of 10 calls 6 failed, 1 were slow, 0 stalled"
            )
        );
        assert_eq!(event.reporting_instance.map(|name| name.len()), Some(MAX_INSTANCE));
        let others =
            [told("a", 0x200), told("b", 0x1ff)].map(|told| Notice::transition(&route, "x", &told).name());
        assert!(others.iter().all(|name| *name != notice.name()));
    }

    #[test]
    fn a_condition_is_another_when_it_says_something_else_or_came_again() {
        let key = Key::new("ns", "chat");
        let route = || About { kind: ObjectKind::ModelRoute, key: &key, uid: None, generation: 1 };
        let name = |condition: &Condition| Notice::condition(&route(), condition).name();
        let first = name(&condition("Secret a does not exist", 1));
        assert_eq!(first, name(&condition("Secret a does not exist", 1)));
        assert_ne!(first, name(&condition("Secret b does not exist", 1)));
        assert_ne!(first, name(&condition("Secret a does not exist", 2)), "it was there meanwhile");
    }

    #[test]
    fn a_long_name_and_a_long_note_are_cut() {
        let key = Key::new("ns", &"x".repeat(253));
        let route = About { kind: ObjectKind::ModelRoute, key: &key, uid: None, generation: 1 };
        let notice = Notice::rejection(&route, 1, 2, &"é".repeat(1_000));
        assert_eq!(notice.name().len(), MAX_NAME);
        let event = notice.event("pod", MicroTime(Timestamp::UNIX_EPOCH));
        assert!(event.note.unwrap().len() <= MAX_NOTE);
    }
}
