//! Conditions: what is to be said, and how it joins what was said before.
//!
//! A condition's `lastTransitionTime` changes only when its `status` does. Rewriting it on every pass would make
//! every pass a write, every write an event, and every event a pass.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use sluice_api::status::MAX_MESSAGE;

/// One condition that is to be said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// One of [`sluice_api::conditions`].
    pub type_: &'static str,
    pub status: Status,
    /// One of [`sluice_api::conditions::reason`].
    pub reason: &'static str,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    True,
    False,
    Unknown,
}

impl Status {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl Draft {
    pub(crate) fn new(
        type_: &'static str,
        status: Status,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self { type_, status, reason, message: message.into() }
    }
}

/// Joins drafts with the conditions of the object's present status. Conditions of other types, which other
/// writers own, stay; a type of ours that is not drafted any more goes.
#[must_use]
pub fn join(
    present: &[Condition],
    drafts: Vec<Draft>,
    ours: &[&str],
    generation: i64,
    now: &Time,
) -> Vec<Condition> {
    let mut joined: Vec<Condition> = present
        .iter()
        .filter(|condition| !ours.contains(&condition.type_.as_str()))
        .filter(|condition| drafts.iter().all(|draft| draft.type_ != condition.type_))
        .cloned()
        .collect();
    joined.extend(drafts.into_iter().map(|draft| {
        let before = present.iter().find(|condition| condition.type_ == draft.type_);
        let unchanged = before.filter(|condition| condition.status == draft.status.as_str());
        Condition {
            last_transition_time: unchanged
                .map_or_else(|| now.clone(), |condition| condition.last_transition_time.clone()),
            message: cut(draft.message),
            observed_generation: Some(generation),
            reason: draft.reason.to_owned(),
            status: draft.status.as_str().to_owned(),
            type_: draft.type_.to_owned(),
        }
    }));
    joined.sort_by(|one, other| one.type_.cmp(&other.type_));
    joined
}

/// Cuts a message at the schema's bound, between characters.
pub(crate) fn cut(mut message: String) -> String {
    message.truncate(message.floor_char_boundary(MAX_MESSAGE));
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Time {
        Time(k8s_openapi::jiff::Timestamp::from_second(seconds).unwrap())
    }

    fn draft(status: Status, message: &str) -> Draft {
        Draft::new("Accepted", status, "Reason", message)
    }

    #[test]
    fn the_time_changes_with_the_status_alone() {
        let first = join(&[], vec![draft(Status::True, "one")], &["Accepted"], 1, &at(1));
        let second = join(&first, vec![draft(Status::True, "two")], &["Accepted"], 2, &at(2));
        assert_eq!(second[0].last_transition_time, at(1));
        assert_eq!((second[0].message.as_str(), second[0].observed_generation), ("two", Some(2)));
        let third = join(&second, vec![draft(Status::False, "two")], &["Accepted"], 2, &at(3));
        assert_eq!(third[0].last_transition_time, at(3));
    }

    #[test]
    fn the_same_again_is_the_same_object() {
        let first = join(&[], vec![draft(Status::True, "one")], &["Accepted"], 1, &at(1));
        assert_eq!(join(&first, vec![draft(Status::True, "one")], &["Accepted"], 1, &at(9)), first);
    }

    #[test]
    fn other_writers_conditions_stay_and_ours_go_when_not_drafted() {
        let other = Condition {
            type_: "Theirs".into(),
            ..join(&[], vec![draft(Status::True, "")], &[], 1, &at(1))[0].clone()
        };
        let present = join(&[other], vec![draft(Status::True, "one")], &["Accepted"], 1, &at(1));
        assert_eq!(present.len(), 2);
        let after = join(&present, vec![], &["Accepted"], 1, &at(2));
        assert_eq!(after.iter().map(|c| c.type_.as_str()).collect::<Vec<_>>(), ["Theirs"]);
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        let long = join(&[], vec![draft(Status::True, &"é".repeat(2_000))], &[], 1, &at(1));
        assert!(long[0].message.len() <= MAX_MESSAGE);
    }
}
