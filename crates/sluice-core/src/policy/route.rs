//! Routes and targets.

use std::fmt;
use std::sync::Arc;

use zeroize::Zeroizing;

use super::Rules;
use crate::target_id::TargetId;

/// A custom resource that something was compiled from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectRef {
    pub kind: ObjectKind,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub generation: i64,
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind.as_str(), self.namespace, self.name)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectKind {
    ModelRoute,
    ReliabilityPolicy,
}

impl ObjectKind {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ModelRoute => "ModelRoute",
            Self::ReliabilityPolicy => "ReliabilityPolicy",
        }
    }
}

/// One compiled route: the unit that agents accept or reject.
#[derive(Debug, Clone, PartialEq)]
pub struct RoutePolicy {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    /// When the route was created, milliseconds since 1970: the older of two equal matches wins.
    pub created_ms: u64,
    /// The objects it was compiled from, the route first.
    pub sources: Vec<ObjectRef>,
    /// Model names that clients ask for.
    pub models: Vec<ModelPattern>,
    pub format: WireFormat,
    pub tenant: TenantSource,
    pub lanes: LaneChoice,
    pub degraded: Degraded,
    /// Whether paths that Sluice does not know go to the first target as they are.
    pub other_paths: OtherPaths,
    /// Whether a caller may name a target in `x-sluice-target`.
    pub target_header: TargetHeader,
    /// In the order of the resource; at least one.
    pub targets: Vec<TargetPolicy>,
}

/// `gpt-4o`, or `chat-*` for every name that begins so.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ModelPattern {
    Exact(Arc<str>),
    /// The text before the `*`; empty matches everything.
    Prefix(Arc<str>),
}

impl ModelPattern {
    #[must_use]
    pub fn parse(text: &str) -> Self {
        text.strip_suffix('*').map_or_else(|| Self::Exact(text.into()), |prefix| Self::Prefix(prefix.into()))
    }
}

impl fmt::Display for ModelPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name),
            Self::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}

/// What the clients of a route speak. Every target of the route must speak it too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WireFormat {
    OpenAi,
    Anthropic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Provider {
    OpenAi,
    Anthropic,
    AzureOpenAi,
    OpenAiCompatible,
}

impl Provider {
    #[must_use]
    pub const fn format(self) -> WireFormat {
        match self {
            Self::OpenAi | Self::AzureOpenAi | Self::OpenAiCompatible => WireFormat::OpenAi,
            Self::Anthropic => WireFormat::Anthropic,
        }
    }

    /// `gen_ai.provider.name` of OpenTelemetry's semantic conventions; theirs has no word for the compatible ones.
    #[must_use]
    pub const fn gen_ai_name(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
            Self::AzureOpenAi => "azure.ai.openai",
            Self::OpenAiCompatible => "openai_compatible",
        }
    }
}

/// Whom an exchange is accounted to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantSource {
    /// Everything is one tenant, the workload's.
    Workload,
    /// The value of a header, `default` where it is absent.
    Header { header: Arc<str>, default: Arc<str> },
}

/// The lane of an exchange: the first rule that matches, or the default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneChoice {
    pub default: Lane,
    pub rules: Vec<LaneRule>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneRule {
    pub header: Arc<str>,
    pub value: Arc<str>,
    pub lane: Lane,
}

/// A priority class. The order is the order in which they are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    Interactive,
    Agent,
    Background,
}

impl Lane {
    pub const ALL: [Self; 3] = [Self::Interactive, Self::Agent, Self::Background];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Interactive => "interactive",
            Self::Agent => "agent",
            Self::Background => "background",
        }
    }
}

/// What a client gets when no target can serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Degraded {
    /// An honest error.
    Reject,
    /// A fixed text in the client's format.
    Static { text: Arc<str> },
    /// Another backend gets the request as it came.
    Backend { endpoint: Arc<str> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherPaths {
    Refuse,
    PassThrough,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetHeader {
    Ignore,
    Allow,
}

/// One dependency: provider + endpoint + model + region + credential, with one breaker and one quota.
#[derive(Debug, Clone, PartialEq)]
pub struct TargetPolicy {
    pub name: Arc<str>,
    pub id: TargetId,
    pub provider: Provider,
    /// Base URL with the version segment and without a trailing slash, such as `https://api.openai.com/v1`.
    pub endpoint: Arc<str>,
    /// The model's name upstream; `None`: as the client asked.
    pub model: Option<Arc<str>>,
    pub region: Arc<str>,
    pub credential: Credential,
    /// Lower first.
    pub priority: u32,
    /// Share among targets of one priority; 0 takes part only when all others are passed over.
    pub weight: u32,
    pub price: Option<Price>,
    pub rules: Rules,
}

/// Where the credential of a target comes from. The secret itself travels beside the policies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// The value of a Secret's key; what the caller sent is taken away.
    Secret(SecretKey),
    /// What the caller sent.
    Passthrough,
    /// None; what the caller sent is taken away.
    None,
}

/// A key of a Secret in the route's own namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SecretKey {
    pub name: Arc<str>,
    pub key: Arc<str>,
}

/// A secret value that is wiped when dropped and never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(Arc<Zeroizing<Vec<u8>>>);

impl SecretValue {
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Zeroizing::new(bytes)))
    }

    /// The value, for the one place that writes it into a header.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue(redacted)")
    }
}

/// Micro-units of currency per million tokens: `2.50` is 2,500,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Price {
    pub input_per_million_micros: u64,
    pub output_per_million_micros: u64,
}
