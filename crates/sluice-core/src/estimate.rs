//! How many tokens a request will cost, before it is sent.
//!
//! Tokens are reserved before an attempt and settled after it, so an estimate must be cheap and rather high than
//! low: too high delays a little and is refunded, too low overruns the provider's limit. A real tokenizer costs
//! tens of megabytes and a fraction of a millisecond per request, and is another one for each model. Instead: bytes
//! of text divided by the model's own *bytes per token*, learned from the usage that each answer reports.
//!
//! The ratio moves as an exponentially weighted mean, biased: a sample that shows fewer bytes per token (more
//! tokens than estimated) moves it fast, one that shows more moves it slowly. English prose is about 4 bytes per
//! token, code about 3, Chinese and Japanese about 2.5 to 3; the initial ratio is 3.2.

use std::collections::HashMap;
use std::sync::Arc;

use crate::defaults;
use crate::policy::Quota;
use crate::wire::RequestFacts;

/// Before anything was learned.
pub const BYTES_PER_TOKEN: f64 = 3.2;
/// A learned ratio stays within these: samples outside are cut to them.
const RATIO_BOUNDS: (f64, f64) = (1.0, 6.0);
/// Weight of a sample that asks for a higher estimate, and of one that asks for a lower.
const WEIGHT_UP: f64 = 0.2;
const WEIGHT_DOWN: f64 = 0.02;
/// Too short a prompt shows the frame of a message, not its text.
const SAMPLE_BYTES_MIN: u64 = 256;
/// What the provider adds to each request: roles, separators, the priming of the answer.
const FRAME_TOKENS: u64 = 8;
/// An image, a file or a sound. OpenAI's high-detail images are 765 to 1,105 tokens, Anthropic's at most about
/// 1,600; files vary, and settle corrects.
pub const TOKENS_PER_BINARY_PART: u64 = 1_000;
/// Models whose ratio is kept; the names come from policies, so that clients can't fill it.
const MODELS_MAX: usize = 1_024;

/// Bytes per token of one model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    bytes_per_token: f64,
}

impl Default for Ratio {
    fn default() -> Self {
        Self { bytes_per_token: BYTES_PER_TOKEN }
    }
}

impl Ratio {
    /// Tokens that so many bytes of text cost, rounded up.
    #[must_use]
    pub fn estimate(self, bytes: u64) -> u64 {
        (bytes as f64 / self.bytes_per_token).ceil() as u64
    }

    /// Learns from a reported usage. Requests with binary parts or token numbers say nothing of text.
    pub fn learn(&mut self, facts: &RequestFacts, input_tokens: u64) {
        let text_only = facts.binary_parts == 0 && facts.input_token_ids == 0;
        let tokens = input_tokens.saturating_sub(FRAME_TOKENS);
        if !text_only || facts.text_bytes < SAMPLE_BYTES_MIN || tokens == 0 {
            return;
        }
        let sample = (facts.text_bytes as f64 / tokens as f64).clamp(RATIO_BOUNDS.0, RATIO_BOUNDS.1);
        let weight = if sample < self.bytes_per_token { WEIGHT_UP } else { WEIGHT_DOWN };
        self.bytes_per_token += weight * (sample - self.bytes_per_token);
    }

    #[must_use]
    pub const fn bytes_per_token(self) -> f64 {
        self.bytes_per_token
    }
}

/// The ratios of an agent's models, by the name that is sent upstream.
#[derive(Debug, Clone, Default)]
pub struct Ratios {
    models: HashMap<Arc<str>, Ratio>,
}

impl Ratios {
    #[must_use]
    pub fn of(&self, model: &str) -> Ratio {
        self.models.get(model).copied().unwrap_or_default()
    }

    /// Learns for a model. Beyond [`MODELS_MAX`] models a new one is not learned.
    pub fn learn(&mut self, model: &Arc<str>, facts: &RequestFacts, input_tokens: u64) {
        if let Some(ratio) = self.models.get_mut(model) {
            ratio.learn(facts, input_tokens);
        } else if self.models.len() < MODELS_MAX {
            let mut ratio = Ratio::default();
            ratio.learn(facts, input_tokens);
            self.models.insert(model.clone(), ratio);
        }
    }
}

/// Input tokens of a request: its text by the model's ratio, tokens given as numbers, and a flat
/// [`TOKENS_PER_BINARY_PART`].
#[must_use]
pub fn input_tokens(facts: &RequestFacts, ratio: Ratio) -> u64 {
    ratio.estimate(facts.text_bytes)
        + facts.input_token_ids
        + u64::from(facts.binary_parts) * TOKENS_PER_BINARY_PART
        + FRAME_TOKENS
}

/// What to reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    pub input: u64,
    pub output: u64,
}

impl Reservation {
    #[must_use]
    pub const fn total(self) -> u64 {
        self.input.saturating_add(self.output)
    }
}

/// No waiting makes the request fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NeverFits {
    /// The request is larger than the bucket.
    #[error(
        "the request needs {needed} tokens ({input} input, {output} output at most) and the target's quota never holds more than {burst}: {}",
        if *.input < *.burst { "lower its maximum output" } else { "shorten its input, or raise `burstTokens`" }
    )]
    Larger { needed: u64, input: u64, output: u64, burst: u64 },
    /// A limit of zero, which is no fault of the request; the field of the policy.
    #[error("the target's quota admits nothing, so raise its `{field}`, or remove it")]
    AdmitsNothing { field: &'static str },
}

/// Input estimate + maximum output. A request that names no maximum gets the policy's default, or what the bucket
/// leaves beside the input when that is less: otherwise a small quota would refuse it for ever.
///
/// `max_output` is the request's total over all choices; `generates`: the operation has output at all.
///
/// # Errors
/// [`NeverFits`] when the reservation is larger than a limited bucket, or a limit is zero.
pub fn reservation(
    input: u64,
    max_output: Option<u64>,
    generates: bool,
    quota: Option<&Quota>,
) -> Result<Reservation, NeverFits> {
    if let Some(field) = quota.and_then(zero) {
        return Err(NeverFits::AdmitsNothing { field });
    }
    let burst = quota.filter(|quota| quota.tokens_per_minute.is_some()).map(|quota| quota.burst_tokens);
    let default = quota.map_or(defaults::quota::MAX_OUTPUT_TOKENS, |quota| quota.default_max_output_tokens);
    let output = match (generates, max_output) {
        (false, _) => 0,
        (true, Some(stated)) => stated,
        // At least one token: an answer of none is no answer.
        (true, None) => default.min(burst.map_or(u64::MAX, |burst| burst.saturating_sub(input))).max(1),
    };
    let reservation = Reservation { input, output };
    match burst {
        Some(burst) if reservation.total() > burst => {
            Err(NeverFits::Larger { needed: reservation.total(), input, output, burst })
        }
        _ => Ok(reservation),
    }
}

/// The limit that admits nothing.
fn zero(quota: &Quota) -> Option<&'static str> {
    if quota.requests_per_minute == Some(0) {
        return Some("requestsPerMinute");
    }
    (quota.tokens_per_minute == Some(0)).then_some("tokensPerMinute")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::Pushback;

    fn quota(burst: u64) -> Quota {
        Quota {
            tokens_per_minute: Some(burst),
            burst_tokens: burst,
            requests_per_minute: None,
            default_max_output_tokens: 1_024,
            tenants: Vec::new(),
            pushback: Pushback::default(),
        }
    }

    fn text(bytes: u64) -> RequestFacts {
        RequestFacts { text_bytes: bytes, ..RequestFacts::default() }
    }

    #[test]
    fn it_learns_up_fast_and_down_slowly() {
        let (mut dense, mut sparse) = (Ratio::default(), Ratio::default());
        for _ in 0..10 {
            dense.learn(&text(20_000), 10_000 + FRAME_TOKENS);
            sparse.learn(&text(50_000), 10_000 + FRAME_TOKENS);
        }
        assert!(dense.bytes_per_token() < 2.2, "{dense:?}");
        assert!(sparse.bytes_per_token() < 3.6, "{sparse:?}");
        for _ in 0..500 {
            sparse.learn(&text(50_000), 10_000 + FRAME_TOKENS);
        }
        assert!((sparse.bytes_per_token() - 5.0).abs() < 0.01, "{sparse:?}");
    }

    #[test]
    fn what_says_nothing_of_text_teaches_nothing() {
        let mut ratio = Ratio::default();
        ratio.learn(&text(10), 500);
        ratio.learn(&text(10_000), 0);
        ratio.learn(&RequestFacts { binary_parts: 1, ..text(10_000) }, 90_000);
        assert_eq!(ratio, Ratio::default());
        ratio.learn(&text(1_000), 1_000_000);
        assert!(ratio.bytes_per_token() >= RATIO_BOUNDS.0);
    }

    #[test]
    fn models_are_kept_apart_and_bounded() {
        let mut ratios = Ratios::default();
        for i in 0..2 * MODELS_MAX {
            ratios.learn(&format!("m{i}").into(), &text(20_000), 10_000);
        }
        assert_eq!(ratios.models.len(), MODELS_MAX);
        assert!(ratios.of("m0").bytes_per_token() < BYTES_PER_TOKEN);
        assert_eq!(ratios.of("unknown"), Ratio::default());
    }

    #[test]
    fn a_request_without_a_maximum_fits_a_small_quota() {
        assert_eq!(reservation(30, None, true, Some(&quota(100))), Ok(Reservation { input: 30, output: 70 }));
        assert_eq!(
            reservation(30, None, true, Some(&quota(100_000))),
            Ok(Reservation { input: 30, output: 1_024 })
        );
        assert!(reservation(100, None, true, Some(&quota(100))).is_err(), "no room for an answer");
        assert!(reservation(100, None, false, Some(&quota(100))).is_ok(), "none is due");
    }

    #[test]
    fn what_never_fits_is_said_with_its_fix() {
        let error = reservation(30, Some(4_000), true, Some(&quota(100))).unwrap_err();
        assert!(error.to_string().ends_with("lower its maximum output"), "{error}");
        let error = reservation(300, Some(1), true, Some(&quota(100))).unwrap_err();
        assert!(error.to_string().contains("burstTokens"), "{error}");
    }

    #[test]
    fn an_explicit_zero_admits_nothing_and_is_named() {
        let none = |field| Err(NeverFits::AdmitsNothing { field });
        assert_eq!(reservation(0, None, true, Some(&quota(0))), none("tokensPerMinute"));
        assert_eq!(reservation(0, None, false, Some(&quota(0))), none("tokensPerMinute"));
        let requests = Quota { requests_per_minute: Some(0), ..quota(100) };
        assert_eq!(reservation(1, Some(1), true, Some(&requests)), none("requestsPerMinute"));
    }

    #[test]
    fn without_a_token_limit_everything_fits() {
        let unlimited = Quota { tokens_per_minute: None, ..quota(10) };
        assert_eq!(reservation(1 << 40, Some(5), true, Some(&unlimited)).map(|r| r.output), Ok(5));
        assert_eq!(reservation(7, None, true, None), Ok(Reservation { input: 7, output: 1_024 }));
    }

    proptest! {
        #[test]
        fn a_reservation_never_exceeds_the_bucket(
            input in 0..10_000_u64, stated in prop::option::of(0..10_000_u64), burst in 0..10_000_u64
        ) {
            match reservation(input, stated, true, Some(&quota(burst))) {
                Ok(reserved) => prop_assert!(reserved.total() <= burst),
                Err(NeverFits::Larger { needed, .. }) => prop_assert!(needed > burst),
                Err(NeverFits::AdmitsNothing { .. }) => prop_assert_eq!(burst, 0),
            }
        }
    }
}
