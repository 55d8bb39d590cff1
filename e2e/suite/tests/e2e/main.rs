//! The tests on a real cluster, by layer.
#![allow(clippy::unwrap_used, clippy::panic)]

mod admit;
