//! The bounds that decoding holds every message to.
//!
//! Why here as well as in the schema: an agent trusts its own checks alone. A bound of the schema is at most
//! the bound here, so whatever the API server admits can travel.

use std::time::Duration;

/// Routes in one snapshot.
pub const ROUTES: usize = 1_024;
/// Secret keys in one snapshot.
pub const SECRETS: usize = 1_024;
/// Bytes of one secret value.
pub const SECRET_BYTES: usize = 64 * 1_024;
/// Objects that one route is compiled from.
pub const SOURCES: usize = 256;
/// Model patterns of a route.
pub const MODELS: usize = 64;
/// Targets of a route.
pub const TARGETS: usize = 16;
/// Rules that choose a lane.
pub const LANE_RULES: usize = 16;
/// Rules that classify answers.
pub const CLASSIFY_RULES: usize = 16;
/// Tenants that a quota names.
pub const TENANTS: usize = 16;
/// Bytes of a Kubernetes name, of a header's name or value, of a model's or a tenant's name. The schema allows
/// 253 characters of up to four bytes.
pub const NAME_BYTES: usize = 1_024;
/// Bytes of an endpoint.
pub const ENDPOINT_BYTES: usize = 2_048;
/// Bytes of a static degraded answer.
pub const STATIC_BYTES: usize = 64 * 1_024;
/// Longest duration of any kind.
pub const DURATION: Duration = Duration::from_hours(7 * 24);
/// Buckets of a time window: the scripts' work per call is constant.
pub const BUCKETS: u32 = 16;
/// Outcomes of a count window.
pub const WINDOW_CALLS: u32 = 1_000;
/// Probes between admission and verdict.
pub const PROBES: u32 = 16;
/// Successful probes that close a breaker.
pub const PROBE_SUCCESSES: u32 = 100;
/// A count such as minimum calls, in-flight limits, queue lengths, priorities and weights.
pub const COUNT: u32 = 1_000_000;
/// A percentage that may exceed 100, such as the growth of a cool-down.
pub const MULTIPLE_PERCENT: u32 = 10_000;
/// Attempts of one exchange.
pub const ATTEMPTS: u32 = 16;
/// Tokens or requests per minute, tokens of a burst. The scripts count in thousandths below 2^53.
pub const TOKENS: u64 = 1_000_000_000_000;
/// Micro-units of currency per million tokens.
pub const PRICE_MICROS: u64 = 1_000_000_000_000;
/// Bytes of a stream's buffer.
pub const BUFFER_BYTES: u64 = 16 * 1_024 * 1_024;
/// Bytes of a request's body.
pub const BODY_BYTES: u64 = 1_024 * 1_024 * 1_024;
/// Integers that survive a double: revisions, epochs, milliseconds since 1970.
pub const EXACT_INTEGER: u64 = (1 << 53) - 1;

/// Bytes of an error or a reason in an agent's message; longer ones are cut.
pub const ERROR_BYTES: usize = 512;
/// Features in a hello.
pub const FEATURES: usize = 64;
/// Labels in a hello.
pub const LABELS: usize = 64;
/// Transitions in one report.
pub const TRANSITIONS: usize = 256;
/// Targets in one report.
pub const REPORTED_TARGETS: usize = 1_024;

/// Routes, and targets, in one message between replicas of the control plane.
pub const REPLICA_ENTRIES: usize = 1_000;
