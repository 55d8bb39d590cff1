//! The tests on a real cluster, by layer.
#![allow(clippy::unwrap_used, clippy::panic)]

mod admit;
mod ha;
mod helm;
mod inject;
mod policy;
mod traffic;
