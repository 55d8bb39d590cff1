//! How much time an exchange has: the policy's total, shortened by the caller's own deadline.
//!
//! - `x-sluice-timeout-ms` is the caller's word and bounds the whole exchange.
//! - `x-stainless-timeout` and `x-stainless-read-timeout` (seconds) are what the official SDKs send of their
//!   own timeout. It is a *read* timeout: it bounds the wait for a plain answer as a whole, but only the silence
//!   inside a stream. So it shortens the total of plain answers, and of streams the first-token deadline,
//!   since nothing is sent before the first token.
//!
//! A longer time than the policy's changes nothing. Garbage (text, zero, negative numbers, NaN, infinities) in the
//! SDKs' headers is as if absent, since nobody wrote it; in `x-sluice-timeout-ms` it is an error, since a caller who
//! wrote it means to be bound by it. Time is the time since any fixed moment.

use std::time::Duration;

use crate::policy::Deadlines;

/// Where an exchange stands: the words of refusals and of the deadline's checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Reading the request.
    Receive,
    /// Finding the route.
    Route,
    /// Estimating tokens.
    Estimate,
    /// Going into the lane's queue.
    Enqueue,
    /// In the queue, and coming out of it.
    Dequeue,
    /// Choosing a target.
    Target,
    /// Asking the shared state.
    Admit,
    /// The upstream call, before its first token.
    Attempt,
    /// Waiting for the next attempt.
    Backoff,
    /// Relaying the answer.
    Relay,
}

impl Stage {
    /// The word in metrics, logs and errors.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Receive => "receive",
            Self::Route => "route",
            Self::Estimate => "estimate",
            Self::Enqueue => "enqueue",
            Self::Dequeue => "dequeue",
            Self::Target => "target",
            Self::Admit => "admit",
            Self::Attempt => "attempt",
            Self::Backoff => "backoff",
            Self::Relay => "relay",
        }
    }
}

/// What the caller says of its own patience.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallersDeadline {
    /// `x-sluice-timeout-ms`
    pub stated: Option<Duration>,
    /// The SDK's read timeout.
    pub hint: Option<Duration>,
}

/// A caller's own deadline that is no time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`x-sluice-timeout-ms` is `{value}`: send milliseconds, 1 or more, or leave it out")]
pub struct UnreadableDeadline {
    value: String,
}

impl CallersDeadline {
    /// Reads the headers; `header` looks a lower-case name up.
    ///
    /// # Errors
    /// When `x-sluice-timeout-ms` is not a number of at least one.
    pub fn read<'h>(header: impl Fn(&str) -> Option<&'h str>) -> Result<Self, UnreadableDeadline> {
        /// Characters of a value that an error shows.
        const SHOWN: usize = 80;
        let seconds = |name| header(name).and_then(|value| positive(value, 1.0));
        let stated = header("x-sluice-timeout-ms").map(|value| {
            positive(value, 0.001)
                .ok_or_else(|| UnreadableDeadline { value: value.chars().take(SHOWN).collect() })
        });
        Ok(Self {
            stated: stated.transpose()?,
            hint: seconds("x-stainless-timeout").or_else(|| seconds("x-stainless-read-timeout")),
        })
    }
}

fn positive(value: &str, unit: f64) -> Option<Duration> {
    let value = value.trim();
    // Rust reads "inf" and "nan" as numbers.
    if !value.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let seconds = value.parse::<f64>().ok()? * unit;
    let duration = Duration::try_from_secs_f64(seconds).ok()?;
    (duration >= Duration::from_millis(1)).then_some(duration)
}

/// The deadlines of one exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    started: Duration,
    total: Duration,
    first_token: Duration,
    /// How long the caller waits for the first byte of a stream, from the arrival on.
    patience: Option<Duration>,
    callers: bool,
    received: Option<Duration>,
}

impl Budget {
    /// `started`: the arrival of the exchange.
    #[must_use]
    pub fn new(policy: &Deadlines, caller: CallersDeadline, streamed: bool, started: Duration) -> Self {
        let hint = if streamed { None } else { caller.hint };
        let theirs = [caller.stated, hint].into_iter().flatten().min();
        let callers = theirs.is_some_and(|theirs| theirs < policy.total);
        Self {
            started,
            total: theirs.map_or(policy.total, |theirs| theirs.min(policy.total)),
            first_token: policy.first_token,
            patience: if streamed { caller.hint } else { None },
            callers,
            received: [caller.stated, caller.hint].into_iter().flatten().min(),
        }
    }

    /// What is left of the total; zero when it has passed.
    #[must_use]
    pub fn remaining(&self, now: Duration) -> Duration {
        self.total.saturating_sub(now.saturating_sub(self.started))
    }

    #[must_use]
    pub fn expired(&self, now: Duration) -> bool {
        self.remaining(now).is_zero()
    }

    /// Whether waiting for `wait` and then being served for `service` still fits.
    #[must_use]
    pub fn fits(&self, now: Duration, wait: Duration, service: Duration) -> bool {
        wait.saturating_add(service) <= self.remaining(now)
    }

    /// The first-token deadline of an attempt that starts now, within what remains. The caller's own patience
    /// began with the exchange, so a later attempt has less of it.
    #[must_use]
    pub fn first_token(&self, now: Duration) -> Duration {
        let policys = self.first_token.min(self.remaining(now));
        self.patience(now).map_or(policys, |left| left.min(policys))
    }

    /// The first-token deadline of an attempt that starts now is the caller's, shorter than the policy's: its
    /// passing says nothing of a provider.
    #[must_use]
    pub fn first_token_is_callers(&self, now: Duration) -> bool {
        self.patience(now).is_some_and(|left| left < self.first_token)
    }

    fn patience(&self, now: Duration) -> Option<Duration> {
        Some(self.patience?.saturating_sub(now.saturating_sub(self.started)))
    }

    /// What is left until the caller stops waiting for an answer to begin, or the total ends.
    #[must_use]
    pub fn remaining_to_begin(&self, now: Duration) -> Duration {
        let remaining = self.remaining(now);
        self.patience(now).map_or(remaining, |left| left.min(remaining))
    }

    /// The total, from the start.
    #[must_use]
    pub const fn total(&self) -> Duration {
        self.total
    }

    /// The total is the caller's, shorter than the policy's: its passing says nothing of a provider.
    #[must_use]
    pub const fn is_callers(&self) -> bool {
        self.callers
    }

    /// What the caller sent, as evidence in refusals.
    #[must_use]
    pub const fn received(&self) -> Option<Duration> {
        self.received
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn read(headers: &[(&str, &str)]) -> CallersDeadline {
        CallersDeadline::read(|name| headers.iter().find(|(n, _)| *n == name).map(|(_, v)| *v)).unwrap()
    }

    fn refused(value: &str) -> Option<String> {
        let header = |name: &str| (name == "x-sluice-timeout-ms").then_some(value);
        CallersDeadline::read(header).err().map(|error| error.to_string())
    }

    #[test]
    fn headers_and_garbage() {
        assert_eq!(read(&[("x-sluice-timeout-ms", "1500")]).stated, Some(ms(1_500)));
        assert_eq!(read(&[("x-stainless-timeout", "600")]).hint, Some(ms(600_000)));
        assert_eq!(read(&[("x-stainless-read-timeout", "2.5")]).hint, Some(ms(2_500)));
        for garbage in ["", "0", "-5", "soon", "nan", "inf", "1e400", "0.0000001", "NotGiven", "0x10"] {
            assert!(refused(garbage).is_some_and(|error| error.contains(garbage)), "{garbage:?}");
            assert_eq!(
                read(&[("x-stainless-timeout", garbage)]).hint.filter(|d| *d < ms(1)),
                None,
                "{garbage:?}"
            );
        }
    }

    #[test]
    fn a_refused_deadline_names_header_value_and_fix() {
        assert_eq!(
            refused("-5").unwrap(),
            "`x-sluice-timeout-ms` is `-5`: send milliseconds, 1 or more, or leave it out"
        );
        assert!(refused(&"9".repeat(60_000)).is_some_and(|error| error.len() < 200));
        assert_eq!(refused("1"), None);
    }

    #[test]
    fn the_caller_can_only_shorten() {
        let policy = Deadlines::default();
        let long = Budget::new(&policy, read(&[("x-sluice-timeout-ms", "900000")]), false, ms(0));
        assert_eq!((long.total(), long.is_callers()), (policy.total, false));
        let short = Budget::new(&policy, read(&[("x-sluice-timeout-ms", "2000")]), true, ms(100));
        assert!(short.is_callers());
        assert_eq!(short.remaining(ms(600)), ms(1_500));
        assert_eq!(short.first_token(ms(600)), ms(1_500));
        assert!(short.fits(ms(600), ms(500), ms(1_000)));
        assert!(!short.fits(ms(600), ms(501), ms(1_000)));
        assert!(!short.expired(ms(2_099)) && short.expired(ms(2_100)));
        assert_eq!(short.remaining(ms(0)), ms(2_000), "a clock that stepped back");
    }

    #[test]
    fn an_sdks_read_timeout_bounds_plain_answers_and_first_tokens() {
        let policy = Deadlines::default();
        let hint = read(&[("x-stainless-timeout", "5")]);
        let plain = Budget::new(&policy, hint, false, ms(0));
        assert_eq!((plain.total(), plain.is_callers()), (ms(5_000), true));
        let streamed = Budget::new(&policy, hint, true, ms(0));
        assert_eq!((streamed.total(), streamed.first_token(ms(0))), (policy.total, ms(5_000)));
        assert_eq!(streamed.received(), Some(ms(5_000)));
        assert!(streamed.first_token_is_callers(ms(0)));
        assert_eq!(streamed.remaining_to_begin(ms(4_999)), ms(1));
        assert_eq!(streamed.remaining_to_begin(ms(6_000)), ms(0));
        assert_eq!(plain.remaining_to_begin(ms(4_000)), ms(1_000));
        assert_eq!(streamed.first_token(ms(4_000)), ms(1_000), "a second attempt has what the first left");
        let patient = Budget::new(&policy, read(&[("x-stainless-timeout", "600")]), true, ms(0));
        assert_eq!(patient.first_token(ms(0)), policy.first_token);
        assert!(!patient.first_token_is_callers(ms(0)) && !plain.first_token_is_callers(ms(0)));
    }
}
