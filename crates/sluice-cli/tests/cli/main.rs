//! The `sluice` command as its users meet it: the built binary, its output and its exit status.
//!
//! Everything is awaited with a generous bound and nothing is timed. Servers listen on 127.0.0.1.
#![allow(clippy::unwrap_used, clippy::panic)]

mod check;
mod client;
mod command;
mod edits;
mod load;
mod manifests;
mod redis;
mod scenario;
mod secrets;
mod serving;
mod starts;
mod telemetry;
mod tls;
