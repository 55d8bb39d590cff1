//! Where the scripts run: Redis for the fleet, or the embedded interpreter.

use std::pin::Pin;

use sluice_core::admission::{AdmitAsk, AdmitReply, SettleAsk, SettleReply, TargetView};
use sluice_core::policy::TargetPolicy;

use crate::agent_tag::AgentTag;
use crate::error::StoreError;

/// The answer of a home, awaited.
pub type HomeFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A place where the state of targets lives. Each call is one run of one script, and atomic.
pub trait Home: Send + Sync {
    /// Asks for leave to send one attempt.
    fn admit<'a>(
        &'a self,
        agent: &'a AgentTag,
        target: &'a TargetPolicy,
        ask: &'a AdmitAsk,
    ) -> HomeFuture<'a, AdmitReply>;

    /// Says what an attempt meant and used.
    fn settle<'a>(
        &'a self,
        agent: &'a AgentTag,
        target: &'a TargetPolicy,
        ask: &'a SettleAsk,
    ) -> HomeFuture<'a, SettleReply>;

    /// Reads a target's state.
    fn view<'a>(&'a self, target: &'a TargetPolicy) -> HomeFuture<'a, TargetView>;
}

/// Which home answered. A permit or reservation is settled where it was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HomeKind {
    Shared,
    /// The agent's own, while the shared one is away.
    Local,
}
