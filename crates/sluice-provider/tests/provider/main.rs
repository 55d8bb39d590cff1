//! The provider over real sockets.
#![cfg(test)]

mod openai;
mod support;
