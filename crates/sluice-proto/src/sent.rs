//! What a control plane sends, encoded once for all who get it.
//!
//! Why beside [`v1`]: a workload's agents get the same policies, and encoding them anew for each of a thousand streams is
//! most of what an edit costs. On the wire a message and the bytes of its encoding are the same thing, so here a snapshot
//! is bytes, and the service takes these messages in the place of its own. What differs from stream to stream or is
//! secret is put beside the shared part ([`snapshot`]): protobuf reads fields in any order.

use std::fmt;

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message as _;

use crate::v1;

/// [`v1::ControllerMessage`], one of its members at a time.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub struct ControllerMessage {
    /// A [`v1::Snapshot`].
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub snapshot: Option<Bytes>,
    #[prost(message, optional, tag = "2")]
    pub secrets: Option<v1::SecretSet>,
    #[prost(message, optional, tag = "3")]
    pub agents: Option<v1::AgentCounts>,
}

/// Without what it holds, which is secret.
impl fmt::Debug for ControllerMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.snapshot.as_ref().map(Bytes::len);
        f.debug_struct("ControllerMessage")
            .field("snapshot_bytes", &bytes)
            .field("secrets", &self.secrets)
            .field("agents", &self.agents)
            .finish()
    }
}

/// A snapshot of which the policies are encoded already. `own` is everything else.
#[must_use]
pub fn snapshot(policies: &Bytes, own: &v1::Snapshot) -> Bytes {
    let mut bytes = BytesMut::with_capacity(policies.len() + own.encoded_len());
    bytes.put_slice(policies);
    // Into a buffer that grows: it can't fail.
    let _ = own.encode(&mut bytes);
    bytes.freeze()
}

/// The service, with these messages.
#[allow(clippy::all, clippy::pedantic, unreachable_pub, reason = "generated")]
mod service {
    include!(concat!(env!("OUT_DIR"), "/sent/sluice.v1.PolicyDiscovery.rs"));
}

pub use service::policy_discovery_server;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reads_it_finds_a_message_of_the_protocol() {
        let route = |name: &str| v1::RoutePolicy { name: name.to_owned(), ..v1::RoutePolicy::default() };
        let policies = v1::Snapshot { routes: vec![route("a"), route("b")], ..v1::Snapshot::default() };
        let mut secret = v1::Secret::default();
        secret.value = b"hunter2".to_vec();
        let own = v1::Snapshot {
            version: "v1".to_owned(),
            nonce: "n".to_owned(),
            secrets: Some(v1::SecretSet { secrets: vec![secret], ..v1::SecretSet::default() }),
            agents: Some(v1::AgentCounts { by_target_id: [("t".to_owned(), 3)].into() }),
            ..v1::Snapshot::default()
        };
        let shared = Bytes::from(policies.encode_to_vec());
        let sent =
            ControllerMessage { snapshot: Some(snapshot(&shared, &own)), ..ControllerMessage::default() };
        assert!(!format!("{sent:?}").contains("104, 117, 110"), "{sent:?}");
        let read = v1::ControllerMessage::decode(sent.encode_to_vec().as_slice()).unwrap();
        let expected = v1::Snapshot { routes: policies.routes, ..own };
        assert_eq!(read.message, Some(v1::controller_message::Message::Snapshot(expected)));
        let counts = v1::AgentCounts { by_target_id: [("t".to_owned(), 4)].into() };
        let sent = ControllerMessage { agents: Some(counts.clone()), ..ControllerMessage::default() };
        let read = v1::ControllerMessage::decode(sent.encode_to_vec().as_slice()).unwrap();
        assert_eq!(read.message, Some(v1::controller_message::Message::Agents(counts)));
    }
}
