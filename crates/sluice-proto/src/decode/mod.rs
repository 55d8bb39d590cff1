//! Wire → core. What comes out is within [`bounds`](crate::bounds) and free of contradictions, so nothing
//! behind it checks again; what cannot come out says which field, which value, which bound.
//!
//! Errors nest as the messages do: [`InvalidRoute`] ⊃ [`InvalidTarget`] ⊃ [`InvalidField`]. Their text is meant
//! for the person who wrote the resource and never holds more than 64 characters of what came.

mod field;
mod route;
mod rules;

use sluice_core::policy::{ObjectRef, RoutePolicy, Rules};

pub(crate) use field::{Field, name, present, text};
pub(crate) use route::secret_key;

use crate::v1;

/// What can be wrong with one field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidField {
    #[error("{field} is missing: set it")]
    Missing { field: &'static str },
    #[error(
        "{field} has the value number {value}, which this version does not know: upgrade it, or use another value"
    )]
    Unknown { field: &'static str, value: i32 },
    #[error("{field} is {value}: use {min} to {max}")]
    OutOfRange { field: &'static str, value: u64, min: u64, max: u64 },
    #[error("{field} is {seconds} s and {nanos} ns: use a duration from 0s to 168h")]
    Duration { field: &'static str, seconds: i64, nanos: i32 },
    #[error("{field} has {length} bytes: use at most {max}")]
    TooLong { field: &'static str, length: usize, max: usize },
    #[error("{field} has {count} entries: use {min} to {max}")]
    Count { field: &'static str, count: usize, min: usize, max: usize },
    #[error("{field} has {value:?} twice: name each once")]
    Duplicate { field: &'static str, value: String },
    #[error("{field} is {value:?}: use {want}")]
    Malformed { field: &'static str, value: String, want: &'static str },
    #[error("{field} contradicts {other}: {fix}")]
    Contradiction { field: &'static str, other: &'static str, fix: &'static str },
}

/// What can be wrong with one target of a route.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTarget {
    #[error(transparent)]
    Field(#[from] InvalidField),
    #[error("{group}: {reason}")]
    Group { group: &'static str, reason: InvalidField },
}

/// What can be wrong with one route.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRoute {
    #[error(transparent)]
    Field(#[from] InvalidField),
    #[error("target {name:?}: {reason}")]
    Target { name: String, reason: InvalidTarget },
    /// The first source is what agents answer about.
    #[error("sources begin with {found}: put ModelRoute {namespace}/{name} first")]
    Source { found: String, namespace: String, name: String },
}

/// Decodes one compiled route.
///
/// # Errors
/// The first thing that is wrong, in the order of the message's fields.
pub fn route(route: v1::RoutePolicy) -> Result<RoutePolicy, InvalidRoute> {
    route::route(route)
}

/// Decodes the rules of one target.
///
/// # Errors
/// The first thing that is wrong, group by group.
pub fn rules(rules: v1::Rules) -> Result<Rules, InvalidTarget> {
    rules::rules(rules)
}

/// Decodes a reference to a resource.
///
/// # Errors
/// [`InvalidField`] for an unknown kind, an empty name, or a negative generation.
pub fn object(object: v1::ObjectRef) -> Result<ObjectRef, InvalidField> {
    route::object(object)
}
