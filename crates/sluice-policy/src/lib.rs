//! The control plane without Kubernetes: resources in, policies and conditions out, pushed to agents.
//!
//! Why without Kubernetes: `sluice run`, the simulator and the tests need the same decisions as the
//! controller, and none of them has an API server. What reads a cluster or a directory feeds the same
//! [`Index`]; what writes status reads the same [`Compiled`].
//!
//! ```text
//! watches, files → Index ─ compile() → Compiled ─┬─ Publisher ─ Discovery (gRPC) ⇄ agents
//!  (events)       (holds)    (pure)              │                  └─ Fleet (what they answer and report)
//!                                                └─ status (conditions, with the Fleet's facts)
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | [`index`] | keeps the newest and the last good version of every object |
//! | [`compile`] | merges policies into routes: pure, deterministic |
//! | [`publish`] | per scope the newest snapshot, by content hash |
//! | [`callers`] | who calls, before it is known who that is |
//! | [`service`] | the gRPC service: hello, snapshots, answers, reports |
//! | [`fleet`] | what the connected agents said |
//! | [`said`], [`replicas`] | what the agents of all replicas said, added up |
//! | [`replica_service`] | the gRPC service that tells other replicas |
//! | [`transition_log`] | breaker transitions, each once |
//! | [`conditions`], [`status`] | what is written back to the resources |
//! | [`metrics`] | what it measures of itself |
//! | [`files`] | a directory of manifests as the source |
//! | [`random`] | the one source of random numbers, seeded and logged |

pub mod callers;
mod clock;
pub mod compile;
pub mod conditions;
pub mod files;
pub mod fleet;
pub mod index;
pub mod metrics;
pub mod publish;
pub mod random;
pub mod replica_service;
pub mod replicas;
pub mod said;
pub mod service;
pub mod status;
pub mod transition_log;

pub use compile::{Compiled, compile};
pub use index::Index;
