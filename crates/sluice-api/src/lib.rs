//! The custom resources of Sluice: `ModelRoute` and `ReliabilityPolicy` of `sluice.dev/v1alpha1`.
//!
//! The Rust types are the source: the CRDs in `crds/`, the reference in `docs/api.md` and the offline check
//! are made from them, so what `sluice check` refuses is what an API server refuses.
//!
//! | module | what it holds |
//! |---|---|
//! | [`route`] | `ModelRoute`: what clients ask for and which targets can serve it |
//! | [`policy`] | `ReliabilityPolicy`: the groups of rules, each present or absent |
//! | [`status`] | what the controller writes back |
//! | [`conditions`] | types and reasons of conditions |
//! | [`duration`] | duration strings |
//! | [`crd`] | the CRDs as an API server takes them |
//! | [`check`] | manifests in, typed resources or problems with file, field, value and fix out |
//! | [`reference`] | the field reference, from the schema |
//!
//! Integers are refused outside their bounds rather than clamped, zeros are kept as zeros, and a group that
//! is absent stays absent: defaults are applied inside a group that is present.

pub mod check;
pub mod conditions;
pub mod crd;
pub mod duration;
mod enums;
pub mod policy;
pub mod reference;
pub mod route;
mod rule;
pub mod status;

pub use policy::{ReliabilityPolicy, ReliabilityPolicySpec};
pub use route::{ModelRoute, ModelRouteSpec};

/// The API group of both resources.
pub const GROUP: &str = "sluice.dev";
/// The only version so far, served and stored.
pub const VERSION: &str = "v1alpha1";
/// Group and version, as in `apiVersion`.
pub const API_VERSION: &str = "sluice.dev/v1alpha1";
