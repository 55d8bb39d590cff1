//! Pure decisions of Sluice and the words they are made of.
//!
//! Nothing in this crate opens a socket, starts a task, reads a clock or draws a random number: state
//! machines take `now` and `draw` as arguments. That is what lets the same code run in an agent, in a test
//! and in a simulation.
//!
//! | module | what it decides or names |
//! |---|---|
//! | [`units`] | duration strings, percentages, tokens |
//! | [`defaults`] | every built-in number, the single source for schema defaults and built-ins |
//! | [`policy`] | what rules a route and its targets: the compiled form of the custom resources |
//! | [`target_id`] | the name of a target in the shared state |
//! | [`admission`] | the vocabulary of `admit` and `settle` |
//! | [`outcome`] | what an attempt meant to the breaker, and whose fault it was |
//! | [`sse`] | server-sent events, decoded on the side of the relay |
//! | [`wire`] | what the providers' wire formats say, and what Sluice says in them |

pub mod admission;
pub mod defaults;
pub mod outcome;
pub mod policy;
pub mod sse;
pub mod target_id;
pub mod units;
pub mod wire;
