//! The provider over real sockets, and over in-memory streams under virtual time.
#![cfg(test)]

mod anthropic;
mod binary;
mod control;
mod counts;
mod faults;
mod framing;
mod limits;
mod openai;
mod scenarios;
mod support;
mod timing;
