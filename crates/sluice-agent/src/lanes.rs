//! The place of the lane queue in the pipeline: between reading a request and asking for a target.
//!
//! An exchange waits here for its turn when all that could serve it is full: bounded in length and in wait,
//! the deadline checked on the way in and on the way out. Until adaptive limits come, a target's fixed limit
//! refuses at once instead (see [`Target::take_slot`](crate::targets::Target::take_slot)), so what is left to
//! do is the check that starts every wait: is there time at all?

use std::time::Duration;

/// The deadline was over before the exchange could start.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Expired;

/// Waits for an exchange's turn.
pub(crate) fn enter(remaining: Duration) -> Result<(), Expired> {
    if remaining.is_zero() { Err(Expired) } else { Ok(()) }
}
