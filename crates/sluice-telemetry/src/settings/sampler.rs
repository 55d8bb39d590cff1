//! The decision at a trace's head.

use opentelemetry::trace::{SpanKind, TraceId};
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, ShouldSample};

use super::variables::{SettingsError, Variables};

/// A ratio, perhaps under the parent's word. Default: `parentbased_always_on`, as the specification has it.
///
/// What it leaves out is exported all the same when it turns out to matter: see [`crate::Keep`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadSampler {
    /// From 0 to 1, of the traces that begin here (or of all, where the parent is not asked).
    pub ratio: f64,
    pub parent_based: bool,
}

impl HeadSampler {
    pub(super) fn read(variables: &Variables<'_>) -> Result<Self, SettingsError> {
        let parent_based = |ratio| Self { ratio, parent_based: true };
        let alone = |ratio| Self { ratio, parent_based: false };
        let Some(value) = variables.get("OTEL_TRACES_SAMPLER")? else { return Ok(parent_based(1.0)) };
        Ok(match value.text.as_str() {
            "always_on" => alone(1.0),
            "always_off" => alone(0.0),
            "traceidratio" => alone(ratio(variables)?),
            "parentbased_always_on" => parent_based(1.0),
            "parentbased_always_off" => parent_based(0.0),
            "parentbased_traceidratio" => parent_based(ratio(variables)?),
            _ => {
                return Err(value.invalid(
                    "set it to always_on, always_off, traceidratio, or one of these after parentbased_",
                ));
            }
        })
    }

    /// `parent`: whether the caller's trace is sampled, if there is one.
    pub(crate) fn samples(self, parent: Option<bool>, trace: TraceId) -> bool {
        match parent.filter(|_| self.parent_based) {
            Some(sampled) => sampled,
            None if self.ratio >= 1.0 => true,
            None if self.ratio <= 0.0 => false,
            None => {
                let by_id = Sampler::TraceIdRatioBased(self.ratio);
                let result = by_id.should_sample(None, trace, "", &SpanKind::Internal, &[], &[]);
                result.decision == SamplingDecision::RecordAndSample
            }
        }
    }

    /// The same decision for the spans of the SDK.
    pub(crate) fn sdk(self) -> Sampler {
        let root = Sampler::TraceIdRatioBased(self.ratio);
        if self.parent_based { Sampler::ParentBased(Box::new(root)) } else { root }
    }
}

fn ratio(variables: &Variables<'_>) -> Result<f64, SettingsError> {
    let Some(value) = variables.get("OTEL_TRACES_SAMPLER_ARG")? else { return Ok(1.0) };
    let fix = "set it to a ratio from 0 to 1, such as 0.01";
    let ratio: f64 = value.parse(fix)?;
    if (0.0..=1.0).contains(&ratio) { Ok(ratio) } else { Err(value.invalid(fix)) }
}
