//! The data plane: a streaming proxy for model APIs, one per pod.
//!
//! ```text
//!  application ──► server ──► pipeline ──► attempts ──► attempt ──► upstream ──► provider
//!                                 ▲            │  ▲         │
//!                            policies      admit  └─────────┴── settle
//!                                 ▲            ▼
//!  control plane ──► policy_client          sluice-state (Redis, or this process)
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | [`args`], [`config`] | what it is told |
//! | [`agent`] | start, end, and what the parts share |
//! | `pipeline` | the request path on one page |
//! | `ask`, `body_room`, `head_scan`, `headers` | reading a request |
//! | `exchange`, `lanes` | one client request: identity, deadline, its turn |
//! | `spans`, `evidence` | what its trace and the log say of it |
//! | `attempts`, `plan`, `brakes`, `unserved` | which target next, when again, and what is told when none served |
//! | `attempt`, `flow`, `grant` | one upstream call, its answer, and what it was given |
//! | `relay`, `verbatim`, `keep_alive`, `driven`, `body` | the answer on its way to the client |
//! | `reply`, `backend` | what is answered when no target serves; errors become responses, in `reply` only |
//! | `server`, `client_io`, [`tls`], `drain` | connections of clients |
//! | [`client_auth`] | who may spend at a gateway |
//! | `upstream` | connections to providers |
//! | `policies`, `targets` | what rules |
//! | [`control_plane`], `policy_client`, `last_good`, `trust` | where it comes from |
//! | `metrics`, `transitions`, `report`, `state`, `admin` | what is shown |
//! | `clock`, `random` | the only sources of time and chance |

pub mod agent;
pub mod args;
pub mod client_auth;
pub mod config;
pub mod control_plane;
pub mod state;
pub mod tls;

mod admin;
mod ask;
mod attempt;
mod attempts;
mod backend;
mod body;
mod body_room;
mod brakes;
mod client_io;
mod clock;
mod drain;
mod driven;
mod evidence;
mod exchange;
mod flow;
mod grant;
mod head_scan;
mod headers;
mod keep_alive;
mod lanes;
mod last_good;
mod metrics;
mod pipeline;
mod plan;
mod policies;
mod policy_client;
mod random;
mod relay;
mod reply;
mod report;
mod server;
mod spans;
mod targets;
mod transitions;
mod trust;
mod unserved;
mod upstream;
mod verbatim;

pub use agent::Agent;
pub use config::AgentConfig;
pub use control_plane::ControlPlane;
