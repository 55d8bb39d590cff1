//! Types and reasons of the conditions in the status of both resources.
//!
//! A condition is positive: `True` is the good state. `observedGeneration` is set on each, and
//! `lastTransitionTime` changes only when `status` does.

/// The resource is valid and attached.
pub const ACCEPTED: &str = "Accepted";
/// Every object that the resource names exists and can be used.
pub const RESOLVED_REFS: &str = "ResolvedRefs";
/// The agents work by it.
pub const PROGRAMMED: &str = "Programmed";
/// The shared state is reachable and fit for its purpose.
pub const STATE_STORE_READY: &str = "StateStoreReady";
/// The provider takes the credentials of every target.
pub const CREDENTIALS_VALID: &str = "CredentialsValid";

/// Reasons, by the condition they go with.
pub mod reason {
    /// `Accepted=True`.
    pub const ACCEPTED: &str = "Accepted";
    /// `Accepted=False`: an older policy rules everything that this one would.
    pub const CONFLICTED: &str = "Conflicted";
    /// `Accepted=False`: the resource contradicts itself, its target or its namespace.
    pub const INVALID: &str = "Invalid";
    /// `Accepted=False`: no such route, or no such target in the route.
    pub const TARGET_NOT_FOUND: &str = "TargetNotFound";
    /// `Accepted=False`: a younger route asks for another dependency's name with different settings.
    pub const DEPENDENCY_MISMATCH: &str = "DependencyMismatch";

    /// `ResolvedRefs=True`.
    pub const RESOLVED_REFS: &str = "ResolvedRefs";
    /// `ResolvedRefs=False`: no such Secret in the namespace.
    pub const SECRET_NOT_FOUND: &str = "SecretNotFound";
    /// `ResolvedRefs=False`: the Secret has no such key.
    pub const SECRET_KEY_NOT_FOUND: &str = "SecretKeyNotFound";
    /// `ResolvedRefs=False`: the controller may not read the Secrets of the namespace.
    pub const SECRET_NOT_READABLE: &str = "SecretNotReadable";
    /// `ResolvedRefs=False`: the value can't be sent as a header.
    pub const SECRET_INVALID: &str = "SecretInvalid";

    /// `Programmed=True`: every connected agent works by this generation.
    pub const PROGRAMMED: &str = "Programmed";
    /// `Programmed=False`: some groups are ruled by an older policy, or some agents reject it.
    pub const PARTIALLY_PROGRAMMED: &str = "PartiallyProgrammed";
    /// `Programmed=False`: more specific policies rule everything that this one would.
    pub const OVERRIDDEN: &str = "Overridden";
    /// `Programmed=Unknown`: agents have not answered yet.
    pub const RECONCILING: &str = "Reconciling";
    /// `Programmed=Unknown`: no agent is connected.
    pub const NO_AGENTS: &str = "NoAgents";
    /// `Programmed=False`: the last good version stays in use.
    pub const HELD: &str = "Held";
    /// `Programmed=False`: what one agent would get is larger than a message; agents keep what they have.
    pub const TOO_LARGE: &str = "TooLarge";
    /// `Programmed=False`: an agent does not know a field that this resource uses.
    pub const UNSUPPORTED_FIELD: &str = "UnsupportedField";

    /// `StateStoreReady=True`.
    pub const READY: &str = "Ready";
    /// `StateStoreReady=False`: agents use their own state.
    pub const UNREACHABLE: &str = "Unreachable";
    /// `StateStoreReady=False`: the instance may evict the state (its `maxmemory-policy`).
    pub const MAY_EVICT: &str = "MayEvict";

    /// `CredentialsValid=True`.
    pub const VALID: &str = "Valid";
    /// `CredentialsValid=False`: the provider answered 401 or 403.
    pub const REJECTED: &str = "Rejected";
    /// `CredentialsValid=False`: the provider says that the account's quota is exhausted for good.
    pub const QUOTA_EXHAUSTED: &str = "QuotaExhausted";
}
