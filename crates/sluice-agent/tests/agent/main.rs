//! A real agent on a real socket before the scripted provider, path by path. One binary, since every test needs the
//! whole agent and linking it takes longer than most of them.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::panic)]

#[path = "../harness/mod.rs"]
mod harness;

mod breaker;
mod cancellation;
mod control_plane;
mod credentials;
mod deadlines;
mod drain;
mod failover;
mod fleet;
mod gateway;
mod hardening;
mod keep_alive;
mod logs;
mod observe;
mod other_paths;
mod process;
mod quota;
mod refusals;
mod restart;
mod retries;
mod serving;
mod slow_clients;
mod store;
mod streams;
mod telemetry;
