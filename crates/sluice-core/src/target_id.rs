//! The name of a target in the shared state.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

/// A target's id: base32 of a hash, so that neither a model's name nor a brace in it ever reaches a key.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TargetId(Arc<str>);

/// Length of an id in characters: 130 bits.
pub const TARGET_ID_LEN: usize = 26;

impl TargetId {
    /// The id of a dependency: what its breaker and its quota belong to.
    ///
    /// `dependency` is the target's `dependency`, or `route/target` where that is empty.
    #[must_use]
    pub fn of(namespace: &str, dependency: &str, endpoint: &str, model: &str) -> Self {
        let mut hash = Sha256::new();
        for part in [namespace, dependency, endpoint, model] {
            // The length in front keeps ("ab", "c") and ("a", "bc") apart.
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        Self(short_name(&hash.finalize()).into())
    }

    /// Takes an id that came over the wire.
    ///
    /// # Errors
    /// The text itself when it is no id.
    pub fn parse(text: &str) -> Result<Self, String> {
        let fits = text.len() == TARGET_ID_LEN
            && text.bytes().all(|b| b.is_ascii_lowercase() || (b'2'..=b'7').contains(&b));
        if fits { Ok(Self(text.into())) } else { Err(text.chars().take(64).collect()) }
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Base32 (lower case, no padding) of the first 130 bits of a digest: safe in keys, names and labels.
#[must_use]
pub fn short_name(digest: &[u8]) -> String {
    let mut text = data_encoding::BASE32_NOPAD.encode(digest).to_ascii_lowercase();
    text.truncate(TARGET_ID_LEN);
    text
}

impl fmt::Display for TargetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TargetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_run_together() {
        assert_ne!(TargetId::of("a", "bc", "", ""), TargetId::of("ab", "c", "", ""));
    }

    #[test]
    fn an_id_survives_the_wire() {
        let id = TargetId::of("ns", "chat/primary", "https://api.example/v1", "{gpt}");
        assert_eq!(TargetId::parse(id.as_str()), Ok(id.clone()));
        assert!(!id.as_str().contains(['{', '}']));
        assert!(TargetId::parse("{evil}").is_err());
    }
}
