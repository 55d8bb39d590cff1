//! What rules a route and its targets: the compiled form of `ModelRoute` and `ReliabilityPolicy`.
//!
//! ```text
//! RoutePolicy ─┬─ models, format, tenant, lanes, degraded …   (what clients see)
//!              └─ TargetPolicy × n ─┬─ provider, endpoint, model, credential   (where it goes)
//!                                   └─ Rules: one Group per policy group      (what rules it)
//! ```
//!
//! A value of these types is valid by construction of its maker: `sluice-policy` compiles them from
//! resources, `sluice-proto` refuses bad ones at the wire. Nothing behind that checks again.

mod route;
mod rules;

pub use route::*;
pub use rules::*;
