//! The scripted model provider.

mod behaviour;
mod body;
mod clock;
mod conn;
mod content;
mod control;
mod director;
mod json;
mod ledger;
mod pace;
mod playback;
mod provider;
mod quota;
mod random;
mod redact;
mod request;
pub mod scenario;
mod server;
mod service;
mod sse;
mod stats;
mod units;
mod wire;

pub use provider::{Provider, WaitError};
pub use redact::fingerprint;
pub use scenario::{Behaviour, Scenario, ScenarioError};
pub use stats::{Call, Counts, Outcome, Stats};
pub use units::{HeaderText, parse_duration};
