//! What can go wrong with the shared state. None of it is ever the provider's fault.

use std::fmt;

use crate::script::ReplyError;

/// A call of a home that has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("state store: {kind}: {detail}")]
pub struct StoreError {
    pub kind: StoreErrorKind,
    /// What the server or the socket said; never a credential.
    pub detail: String,
}

impl StoreError {
    #[must_use]
    pub fn new(kind: StoreErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into() }
    }
}

impl From<ReplyError> for StoreError {
    fn from(error: ReplyError) -> Self {
        Self::new(StoreErrorKind::BadReply, error.to_string())
    }
}

/// The kinds, as they stand in metrics and conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreErrorKind {
    /// No connection: refused, reset, no route, name not resolved.
    Connect,
    /// No answer within the deadline.
    Timeout,
    /// The connection ended with the command under way.
    Closed,
    /// The small breaker on the store is open: nothing was sent.
    Skipped,
    Tls,
    /// Wrong user or password.
    Auth,
    /// The user lacks a right.
    NoPerm,
    /// A key holds another type.
    WrongType,
    /// The server's memory is full.
    OutOfMemory,
    /// The script is not there, even after it was loaded.
    NoScript,
    /// A replica, or a primary that has lost its place.
    ReadOnly,
    /// The server is reading its data set.
    Loading,
    /// The cluster, or the slot's primary, is away.
    ClusterDown,
    /// Another client's script blocks the server.
    Busy,
    /// The keys of one call are in different slots.
    CrossSlot,
    /// The admission was settled before it was asked for.
    Settled,
    /// The script refused an argument.
    BadArgument,
    BadReply,
    /// The configuration can't work: a URL, a CA file.
    Config,
    Other,
}

impl StoreErrorKind {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::Closed => "closed",
            Self::Skipped => "skipped",
            Self::Tls => "tls",
            Self::Auth => "auth",
            Self::NoPerm => "noperm",
            Self::WrongType => "wrongtype",
            Self::OutOfMemory => "oom",
            Self::NoScript => "noscript",
            Self::ReadOnly => "readonly",
            Self::Loading => "loading",
            Self::ClusterDown => "clusterdown",
            Self::Busy => "busy",
            Self::CrossSlot => "crossslot",
            Self::Settled => "settled",
            Self::BadArgument => "bad-argument",
            Self::BadReply => "bad-reply",
            Self::Config => "config",
            Self::Other => "other",
        }
    }

    /// Whether the call may have taken effect all the same.
    #[must_use]
    pub const fn is_lost(self) -> bool {
        matches!(self, Self::Timeout | Self::Closed | Self::BadReply)
    }

    /// Whether the connection it came over is of no more use: gone, or to a server that has lost its place.
    #[must_use]
    pub const fn ends_connection(self) -> bool {
        matches!(self, Self::Closed | Self::Connect | Self::Tls | Self::ReadOnly)
    }

    /// Whether it says something of the store, and not of one call or one target.
    #[must_use]
    pub const fn is_outage(self) -> bool {
        !matches!(
            self,
            Self::Skipped
                | Self::Settled
                | Self::BadArgument
                | Self::BadReply
                | Self::WrongType
                | Self::CrossSlot
        )
    }

    /// Reads the first words of an error that a server or a script answered.
    #[must_use]
    pub fn of_message(message: &str) -> Self {
        const KINDS: [(&str, StoreErrorKind); 17] = [
            ("SLUICE this admission", StoreErrorKind::Settled),
            ("SLUICE", StoreErrorKind::BadArgument),
            ("NOSCRIPT", StoreErrorKind::NoScript),
            ("NOPERM", StoreErrorKind::NoPerm),
            // A script's own command without a right has another head.
            ("permissions", StoreErrorKind::NoPerm),
            ("user executing the script can't", StoreErrorKind::NoPerm),
            ("WRONGPASS", StoreErrorKind::Auth),
            ("NOAUTH", StoreErrorKind::Auth),
            ("WRONGTYPE", StoreErrorKind::WrongType),
            ("OOM", StoreErrorKind::OutOfMemory),
            ("READONLY", StoreErrorKind::ReadOnly),
            ("MASTERDOWN", StoreErrorKind::ReadOnly),
            ("LOADING", StoreErrorKind::Loading),
            ("CLUSTERDOWN", StoreErrorKind::ClusterDown),
            ("BUSY", StoreErrorKind::Busy),
            ("CROSSSLOT", StoreErrorKind::CrossSlot),
            ("TRYAGAIN", StoreErrorKind::ClusterDown),
        ];
        KINDS.iter().find(|(word, _)| message.contains(word)).map_or(Self::Other, |&(_, kind)| kind)
    }
}

impl fmt::Display for StoreErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
