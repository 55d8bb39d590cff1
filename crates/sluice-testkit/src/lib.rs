//! Harnesses for tests. Nothing here is part of the product.
//!
//! Servers are real ones, on 127.0.0.1, each in a directory of its own that goes with it. A server that is not
//! installed is an error with the command that was missing, never a test that passes without it.
//!
//! | module | |
//! |---|---|
//! | [`redis`] | redis-server: one, a cluster, a primary with Sentinels |
//! | [`collector`] | an OTLP collector that keeps what it gets, or misbehaves |
//! | [`jaeger`] | Jaeger: spans in, spans out |
//! | [`prometheus`] | Prometheus, scraping given ports |
//! | [`proxy`] | a TCP proxy that counts commands, and cuts, swallows or delays them |
//! | [`sdk`] | the official Python SDKs, playing the scripts of `e2e/sdk` |
//! | [`tls`] | certificates for one test |

pub mod collector;
mod http;
pub mod jaeger;
pub mod prometheus;
pub mod proxy;
pub mod redis;
mod resp;
pub mod sdk;
pub mod tls;
mod tool;

pub use collector::{Collector, Mood};
pub use jaeger::{Jaeger, JaegerSpan};
pub use prometheus::Prometheus;
pub use proxy::{CountingProxy, ProxyMode};
pub use redis::{RedisCluster, RedisOptions, RedisSentinel, RedisServer};
pub use sdk::Sdk;
