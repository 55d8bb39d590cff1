//! What an attempt meant to the breaker, and whose fault it was.

/// One outcome per attempt, given once, as soon as it is certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The call was answered in time.
    Success,
    /// The provider failed: an error status, a connect error, a first-token deadline.
    Failure,
    /// The provider answered, too slowly.
    Slow,
    /// The stream stopped: stalled, was cut, or had no terminal event.
    Stall,
    /// 429: counted by nobody; a probe reopens the breaker for its Retry-After.
    Throttled,
    /// It says nothing of the provider: the caller's own error, for example.
    Ignored,
    /// The attempt ended before anything was known of it.
    Cancelled,
}

impl Verdict {
    /// Every verdict, in the order of their codes.
    pub const ALL: [Self; 7] = [
        Self::Success,
        Self::Failure,
        Self::Slow,
        Self::Stall,
        Self::Throttled,
        Self::Ignored,
        Self::Cancelled,
    ];

    /// Whether it can open a breaker; none other can.
    #[must_use]
    pub const fn may_open(self) -> bool {
        matches!(self, Self::Failure | Self::Slow | Self::Stall | Self::Throttled)
    }

    /// The word in metrics, traces and `/state`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Slow => "slow",
            Self::Stall => "stall",
            Self::Throttled => "throttled",
            Self::Ignored => "ignored",
            Self::Cancelled => "cancelled",
        }
    }
}
