//! The protocol between control plane and agents.
//!
//! Why a wire form of its own: agents and control plane are upgraded apart, so what travels is a contract
//! (`proto/sluice/v1`), while [`sluice_core::policy`] is free to follow the code. The two meet here and
//! nowhere else.
//!
//! | module | what it does |
//! |---|---|
//! | [`v1`] | the compiled protocol, with its gRPC client and server |
//! | [`encode`] | core → wire: total, nothing can go wrong |
//! | [`decode`] | wire → core: parse, don't validate; each error names field, value and bound |
//! | [`bounds`] | the bounds that decoding holds everything to |
//! | [`feature`] | what older agents do not know, and how it is withheld from them |
//! | [`apply`] | an agent's side of a snapshot: accept or reject per object, keep the last good |
//! | [`saved`] | the last good policies as a file |
//! | [`sent`] | what a control plane sends, encoded once for all who get it |
//! | [`report`] | transitions, aggregates and store health, both ways |
//! | [`replica`] | what replicas of the control plane tell one another, both ways |
//! | [`reconnect`] | how long an agent waits before it connects again |

pub mod apply;
pub mod bounds;
pub mod decode;
pub mod encode;
mod enums;
pub mod feature;
pub mod reconnect;
pub mod replica;
pub mod report;
pub mod saved;
pub mod sent;

/// The compiled protocol.
#[allow(clippy::all, clippy::pedantic, unreachable_pub, reason = "generated")]
pub mod v1 {
    tonic::include_proto!("sluice.v1");
}

impl std::fmt::Debug for v1::Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secret")
            .field("key", &self.key)
            .field("uid", &self.uid)
            .field("resource_version", &self.resource_version)
            .field("value", &"redacted")
            .finish()
    }
}

/// Largest message on the stream, both ways. A snapshot at every bound of [`bounds`] would be larger; the
/// control plane refuses to publish one (see `sluice_policy::publish`).
pub const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;
