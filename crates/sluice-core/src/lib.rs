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
//! | [`deadline`] | how much time an exchange has, and the names of its stages |
//! | [`route_match`] | which route serves a model |
//! | [`estimate`] | tokens that a request will cost, and what is reserved |
//! | [`limiter`] | the concurrency limit of a target |
//! | [`balance`] | the order in which targets are asked |
//! | [`relay`] | what of a stream reaches the client |
//! | [`stream`] | deadlines and verdicts of one stream |
//! | [`classify`] | what an attempt's end means |
//! | [`retry_after`] | how long a provider asks to wait |
//! | [`retry`] | backoff, retry budget and throttling |
//! | [`quantile`] | a quantile that forgets |
//! | [`refusal`] | answers that Sluice makes itself |

pub mod admission;
pub mod balance;
pub mod classify;
pub mod deadline;
pub mod defaults;
pub mod estimate;
pub mod limiter;
pub mod outcome;
pub mod policy;
pub mod quantile;
pub mod refusal;
pub mod relay;
pub mod retry;
pub mod retry_after;
pub mod route_match;
pub mod sse;
pub mod stream;
pub mod target_id;
pub mod units;
pub mod wire;
