//! Enums, both ways from one table each, so that no direction can forget a value.

use sluice_core::admission::{BreakerState, TransitionReason};
use sluice_core::classify::CredentialFault;
use sluice_core::outcome::Verdict;
use sluice_core::policy::{
    Lane, Mode, ObjectKind, OnUnreachable, OtherPaths, Provider, SlowCounts, TargetHeader, WireFormat,
};

use crate::decode::InvalidField;
use crate::v1;

/// An enum of core with its numbers on the wire.
pub(crate) trait WireEnum: Copy {
    fn number(self) -> i32;
    fn read(number: i32, field: &'static str) -> Result<Self, InvalidField>;
}

macro_rules! wire_enum {
    ($core:ident = $wire:path { $($name:ident = $wire_name:ident),+ $(,)? }) => {
        impl WireEnum for $core {
            fn number(self) -> i32 {
                use $wire as Wire;
                match self { $(Self::$name => Wire::$wire_name as i32),+ }
            }

            fn read(number: i32, field: &'static str) -> Result<Self, InvalidField> {
                use $wire as Wire;
                match Wire::try_from(number) {
                    $(Ok(Wire::$wire_name) => Ok(Self::$name),)+
                    Ok(Wire::Unspecified) => Err(InvalidField::Missing { field }),
                    Err(_) => Err(InvalidField::Unknown { field, value: number }),
                }
            }
        }
    };
}

wire_enum!(ObjectKind = v1::ObjectKind { ModelRoute = ModelRoute, ReliabilityPolicy = ReliabilityPolicy });
wire_enum!(WireFormat = v1::WireFormat { OpenAi = Openai, Anthropic = Anthropic });
wire_enum!(Provider = v1::Provider {
    OpenAi = Openai,
    Anthropic = Anthropic,
    AzureOpenAi = AzureOpenai,
    OpenAiCompatible = OpenaiCompatible,
});
wire_enum!(Lane = v1::Lane { Interactive = Interactive, Agent = Agent, Background = Background });
wire_enum!(OtherPaths = v1::OtherPaths { Refuse = Refuse, PassThrough = PassThrough });
wire_enum!(TargetHeader = v1::TargetHeader { Ignore = Ignore, Allow = Allow });
wire_enum!(Mode = v1::Mode { Enforce = Enforce, Observe = Observe });
wire_enum!(SlowCounts = v1::SlowCounts { Slow = Slow, Failure = Failure });
wire_enum!(OnUnreachable = v1::OnUnreachable {
    LocalFallback = LocalFallback,
    FailOpen = FailOpen,
    FailClosed = FailClosed,
});
wire_enum!(Verdict = v1::Verdict {
    Success = Success,
    Failure = Failure,
    Slow = Slow,
    Stall = Stall,
    Throttled = Throttled,
    Ignored = Ignored,
    Cancelled = Cancelled,
});
wire_enum!(BreakerState = v1::BreakerState { Closed = Closed, HalfOpen = HalfOpen, Open = Open });
wire_enum!(CredentialFault = v1::CredentialFault { Refused = Refused, SpendCap = SpendCap });
wire_enum!(TransitionReason = v1::TransitionReason {
    FailureRate = FailureRate,
    SlowRate = SlowRate,
    StallRate = StallRate,
    Consecutive = Consecutive,
    CooldownEnded = CooldownEnded,
    ProbeFailed = ProbeFailed,
    ProbeThrottled = ProbeThrottled,
    ProbesSucceeded = ProbesSucceeded,
});
