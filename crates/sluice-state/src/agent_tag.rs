//! How an agent signs what it publishes.

use sha2::{Digest, Sha256};
use sluice_core::target_id::short_name;

/// Ten characters that stand for one running agent, so that it knows its own publications. A restarted agent
/// has another tag.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AgentTag(String);

impl AgentTag {
    #[must_use]
    pub fn new(agent: &str, seed: u64) -> Self {
        let mut hash = Sha256::new();
        hash.update(seed.to_be_bytes());
        hash.update(agent.as_bytes());
        let mut text = short_name(&hash.finalize());
        text.truncate(10);
        Self(text)
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
