//! The tests on a real cluster, by layer.
#![allow(clippy::unwrap_used, clippy::panic)]

mod admit;
mod inject;
mod policy;
mod traffic;
