//! What an attempt's end means: to the breaker, to a retry, to failover, to the credential.
//!
//! One table (below, in the order of the code) so that it can be read, tested row by row, and overridden by a
//! policy. "Retry" and "failover" are what the *kind of end* allows; whether the client has already got
//! bytes, whether the budget has room, and whether the wait fits are the caller's, who knows them.
//!
//! | what happened | breaker | retry | failover |
//! |---|---|---|---|
//! | connect, TLS or DNS error, reset before headers | failure | yes | yes |
//! | first-token deadline | failure; slow, if already past the slow threshold | yes | yes |
//! | total deadline, the policy's, before the first token | failure (or slow) | no time left | no |
//! | total deadline otherwise | ignored (or slow) | no | no |
//! | finished, past a slow threshold | slow | – | – |
//! | stall, cut stream, no terminal event | stall | no | no |
//! | cut or ended before the first token | failure | yes | yes |
//! | 500, 502, 503, 504, 529, 408, other 5xx but 501 and 505 | failure | yes | yes |
//! | 429 | throttled, with its pushback | yes | yes |
//! | 429, 402 or 403 that is a spend cap | ignored; credential | no | yes |
//! | 401, 403 | ignored; credential, when it is ours | no | when it is ours |
//! | other 4xx, 3xx, 501, 505 | ignored | no | no |
//! | 200 with an error | as the status that its type stands for | | |
//! | 200 but empty, or HTML where JSON or SSE is due | failure | yes | yes |
//! | client gone | ignored; slow, past the slow threshold; a probe without verdict: cancelled | – | – |
//! | agent draining | cancelled | – | – |
//!
//! 501 and 505 say that the request can't be served by this server at all, which a retry does not change and
//! which is no sign of trouble. A slow call is [`Verdict::Slow`] here even where the policy counts slow calls as
//! failures; what is settled then is a failure, and [`crate::stream`] sees to that.

use std::time::Duration;

use crate::outcome::Verdict;
use crate::policy::ClassifyRule;
use crate::wire::ProviderError;

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening {
    Connect(ConnectFailure),
    /// No first token in time. `slow`: the slow threshold had passed.
    FirstTokenDeadline {
        slow: bool,
    },
    TotalDeadline {
        /// The caller's own deadline, which was shorter than the policy's: it says nothing of the provider.
        callers: bool,
        first_token: bool,
        slow: bool,
    },
    /// An answer with a status other than 2xx.
    Status(StatusFacts),
    /// A 200 with an error in its body or as an event of its stream.
    ErrorInSuccess {
        error: ProviderError,
        pushback: Option<Duration>,
    },
    /// A 200 without any content.
    Empty,
    /// A 200 with something else than JSON or SSE.
    NotJson,
    /// The body broke off: connection reset, missing end of the chunked body, or an end without the
    /// format's terminal event.
    Cut {
        first_token: bool,
    },
    /// Nothing came for the stall time, or no token for the silence time.
    Stalled,
    Finished {
        slow: bool,
    },
    ClientGone {
        slow: bool,
        /// It held a probe permit whose verdict was not known yet.
        undecided_probe: bool,
    },
    /// The agent shuts down.
    Draining,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConnectFailure {
    Dns,
    Connect,
    Tls,
    /// The connection was lost before the answer's headers.
    Reset,
    /// Connecting took too long.
    Timeout,
    /// What came is no HTTP.
    Protocol,
}

impl ConnectFailure {
    /// The word in metrics, logs and errors.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Dns => "dns",
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Reset => "reset",
            Self::Timeout => "connect-timeout",
            Self::Protocol => "protocol",
        }
    }
}

/// An answer with an error status, as far as the table asks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StatusFacts {
    pub status: u16,
    /// From the body, where it could be read.
    pub error: Option<ProviderError>,
    /// From the headers; see [`crate::retry_after`].
    pub pushback: Option<Duration>,
}

/// What the table needs to know besides.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The policy's own rows, before the built-in ones; the first match rules.
    pub rules: &'a [ClassifyRule],
    /// The credential is the target's, not the caller's.
    pub own_credential: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classified {
    pub verdict: Verdict,
    /// The same target may be asked again before the first byte has reached the client.
    pub retry: bool,
    /// Another target may be asked before the first byte has reached the client.
    pub failover: bool,
    /// How long the provider asked to wait, unclamped; `None`: it named no time.
    pub pushback: Option<Duration>,
    /// What is wrong with the credential, for a condition on the route.
    pub credential: Option<CredentialFault>,
    /// The word in metrics, traces and logs.
    pub reason: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CredentialFault {
    /// 401, 403: the target's credential is refused.
    Refused,
    /// The account's money or its quota is used up; waiting does not help.
    SpendCap,
}

impl CredentialFault {
    /// The word in metrics and at `/state`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::SpendCap => "spend-cap",
        }
    }
}

/// Looks the end of an attempt up in the table.
#[must_use]
pub fn classify(happening: &Happening, context: Context<'_>) -> Classified {
    match happening {
        Happening::Status(facts) => {
            let row = status_row(facts.status, facts.error.as_ref(), facts.pushback, context.own_credential);
            overridden(row, facts.status, facts.error.as_ref(), context.rules)
        }
        Happening::ErrorInSuccess { error, pushback } => {
            let row = status_row(error.status, Some(error), *pushback, context.own_credential);
            overridden(row, error.status, Some(error), context.rules)
        }
        other => transport_row(other),
    }
}

/// The rows that have no status.
fn transport_row(happening: &Happening) -> Classified {
    let slow_or = |slow: bool, verdict| if slow { Verdict::Slow } else { verdict };
    match *happening {
        Happening::Connect(failure) => row(Verdict::Failure, failure.as_str()).again(),
        Happening::FirstTokenDeadline { slow } => {
            row(slow_or(slow, Verdict::Failure), "first-token-deadline").again()
        }
        Happening::TotalDeadline { callers, first_token, slow } => {
            let verdict = if callers || first_token { Verdict::Ignored } else { Verdict::Failure };
            row(slow_or(slow, verdict), if callers { "callers-deadline" } else { "total-deadline" })
        }
        Happening::Empty => row(Verdict::Failure, "empty-answer").again(),
        Happening::NotJson => row(Verdict::Failure, "not-json").again(),
        Happening::Cut { first_token: false } => row(Verdict::Failure, "cut-before-first-token").again(),
        Happening::Cut { first_token: true } => row(Verdict::Stall, "cut"),
        Happening::Stalled => row(Verdict::Stall, "stall"),
        Happening::Finished { slow } => {
            if slow {
                row(Verdict::Slow, "slow")
            } else {
                row(Verdict::Success, "success")
            }
        }
        Happening::ClientGone { slow, undecided_probe } => {
            let verdict = if undecided_probe { Verdict::Cancelled } else { Verdict::Ignored };
            row(slow_or(slow, verdict), "client-gone")
        }
        Happening::Draining => row(Verdict::Cancelled, "draining"),
        // Looked up by status before.
        Happening::Status(_) | Happening::ErrorInSuccess { .. } => row(Verdict::Ignored, "status"),
    }
}

fn status_row(
    status: u16,
    error: Option<&ProviderError>,
    pushback: Option<Duration>,
    own_credential: bool,
) -> Classified {
    if matches!(status, 402 | 403 | 429) && error.is_some_and(is_spend_cap) {
        return Classified {
            failover: true,
            credential: own_credential.then_some(CredentialFault::SpendCap),
            ..row(Verdict::Ignored, "spend-cap")
        };
    }
    match status {
        429 => Classified { pushback, ..row(Verdict::Throttled, "throttled").again() },
        401 | 403 => Classified {
            failover: own_credential,
            credential: own_credential.then_some(CredentialFault::Refused),
            ..row(Verdict::Ignored, "credential")
        },
        408 => row(Verdict::Failure, "timeout-status").again(),
        501 | 505 => row(Verdict::Ignored, "not-supported"),
        529 => Classified { pushback, ..row(Verdict::Failure, "overloaded").again() },
        500..=599 => Classified { pushback, ..row(Verdict::Failure, "server-error").again() },
        400..=499 => row(Verdict::Ignored, "caller-error"),
        _ => row(Verdict::Ignored, "unexpected-status"),
    }
}

/// A policy's own row changes what the breaker is told. A status that the policy calls a failure may fail over;
/// whether the same target is asked again stays with the built-in row ("never other 4xx").
fn overridden(
    built_in: Classified,
    status: u16,
    error: Option<&ProviderError>,
    rules: &[ClassifyRule],
) -> Classified {
    let matches = |rule: &&ClassifyRule| {
        let by_status = rule.statuses.is_none_or(|(first, last)| (first..=last).contains(&status));
        let by_type = rule.error_type.as_deref().is_none_or(|wanted| {
            error.is_some_and(|error| {
                error.kind.as_deref() == Some(wanted) || error.code.as_deref() == Some(wanted)
            })
        });
        by_status && by_type
    };
    match rules.iter().find(matches) {
        Some(rule) => Classified {
            verdict: rule.verdict,
            failover: built_in.failover || rule.verdict == Verdict::Failure,
            ..built_in
        },
        None => built_in,
    }
}

/// Codes and types that mean "no more money or quota", which no wait of ours heals.
///
/// Sources: OpenAI's error codes (`insufficient_quota`, `billing_hard_limit_reached`, `billing_not_active`),
/// Anthropic's `billing_error` and `enforced_spend_limit_reached`, DeepSeek's and OpenRouter's 402.
fn is_spend_cap(error: &ProviderError) -> bool {
    const WORDS: [&str; 10] = [
        "insufficient_quota",
        "billing_hard_limit_reached",
        "billing_not_active",
        "billing_error",
        "enforced_spend_limit_reached",
        "spend_limit_reached",
        "credit_balance_too_low",
        "insufficient_balance",
        "insufficient_credits",
        "access_terminated",
    ];
    let is = |word: &Option<Box<str>>| word.as_deref().is_some_and(|word| WORDS.contains(&word));
    is(&error.kind) || is(&error.code)
}

const fn row(verdict: Verdict, reason: &'static str) -> Classified {
    Classified { verdict, retry: false, failover: false, pushback: None, credential: None, reason }
}

impl Classified {
    const fn again(mut self) -> Self {
        self.retry = true;
        self.failover = true;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Context<'_> = Context { rules: &[], own_credential: true };

    fn status(status: u16) -> Happening {
        Happening::Status(StatusFacts { status, ..StatusFacts::default() })
    }

    fn error(kind: &str, code: &str, status: u16) -> ProviderError {
        ProviderError {
            kind: (!kind.is_empty()).then(|| kind.into()),
            code: (!code.is_empty()).then(|| code.into()),
            status,
        }
    }

    #[test]
    fn the_table_row_by_row() {
        use Verdict::{Cancelled, Failure, Ignored, Slow, Stall, Success, Throttled};
        let rows = [
            (Happening::Connect(ConnectFailure::Tls), Failure, true, true),
            (Happening::FirstTokenDeadline { slow: false }, Failure, true, true),
            (Happening::FirstTokenDeadline { slow: true }, Slow, true, true),
            (
                Happening::TotalDeadline { callers: false, first_token: false, slow: false },
                Failure,
                false,
                false,
            ),
            (
                Happening::TotalDeadline { callers: true, first_token: false, slow: false },
                Ignored,
                false,
                false,
            ),
            (Happening::TotalDeadline { callers: true, first_token: false, slow: true }, Slow, false, false),
            (
                Happening::TotalDeadline { callers: false, first_token: true, slow: false },
                Ignored,
                false,
                false,
            ),
            (Happening::Finished { slow: true }, Slow, false, false),
            (Happening::Finished { slow: false }, Success, false, false),
            (Happening::Stalled, Stall, false, false),
            (Happening::Cut { first_token: true }, Stall, false, false),
            (Happening::Cut { first_token: false }, Failure, true, true),
            (status(500), Failure, true, true),
            (status(502), Failure, true, true),
            (status(503), Failure, true, true),
            (status(504), Failure, true, true),
            (status(529), Failure, true, true),
            (status(599), Failure, true, true),
            (status(408), Failure, true, true),
            (status(501), Ignored, false, false),
            (status(429), Throttled, true, true),
            (status(401), Ignored, false, true),
            (status(403), Ignored, false, true),
            (status(400), Ignored, false, false),
            (status(404), Ignored, false, false),
            (status(409), Ignored, false, false),
            (status(413), Ignored, false, false),
            (status(422), Ignored, false, false),
            (status(302), Ignored, false, false),
            (Happening::Empty, Failure, true, true),
            (Happening::NotJson, Failure, true, true),
            (Happening::ClientGone { slow: false, undecided_probe: false }, Ignored, false, false),
            (Happening::ClientGone { slow: true, undecided_probe: false }, Slow, false, false),
            (Happening::ClientGone { slow: false, undecided_probe: true }, Cancelled, false, false),
            (Happening::Draining, Cancelled, false, false),
        ];
        for (happening, verdict, retry, failover) in rows {
            let got = classify(&happening, OURS);
            assert_eq!((got.verdict, got.retry, got.failover), (verdict, retry, failover), "{happening:?}");
        }
    }

    #[test]
    fn a_spend_cap_is_not_retried() {
        for (kind, code, at) in [
            ("insufficient_quota", "insufficient_quota", 429),
            ("rate_limit_error", "enforced_spend_limit_reached", 429),
            ("", "billing_hard_limit_reached", 429),
            ("billing_error", "", 403),
            ("", "insufficient_balance", 402),
        ] {
            let facts = StatusFacts {
                status: at,
                error: Some(error(kind, code, at)),
                pushback: Some(Duration::ZERO),
            };
            let got = classify(&Happening::Status(facts), OURS);
            assert_eq!(got.verdict, Verdict::Ignored, "{code}");
            assert_eq!((got.retry, got.failover), (false, true), "{code}");
            assert_eq!(got.credential, Some(CredentialFault::SpendCap), "{code}");
            assert_eq!(got.pushback, None, "a spend cap is no pause: {code}");
        }
    }

    #[test]
    fn a_callers_own_credential_is_the_callers_matter() {
        let theirs = Context { own_credential: false, ..OURS };
        let got = classify(&status(401), theirs);
        assert_eq!((got.failover, got.credential), (false, None));
    }

    #[test]
    fn an_error_inside_a_success_counts_as_its_type_says() {
        for (kind, at, verdict) in [
            ("overloaded_error", 529, Verdict::Failure),
            ("rate_limit_error", 429, Verdict::Throttled),
            ("invalid_request_error", 400, Verdict::Ignored),
            ("unheard_of", 500, Verdict::Failure),
        ] {
            let happening = Happening::ErrorInSuccess { error: error(kind, "", at), pushback: None };
            assert_eq!(classify(&happening, OURS).verdict, verdict, "{kind}");
        }
    }

    #[test]
    fn a_policys_row_comes_first() {
        let rules = [
            ClassifyRule { statuses: Some((404, 404)), error_type: None, verdict: Verdict::Failure },
            ClassifyRule {
                statuses: None,
                error_type: Some("content_filter".into()),
                verdict: Verdict::Ignored,
            },
            ClassifyRule { statuses: Some((500, 599)), error_type: None, verdict: Verdict::Ignored },
        ];
        let context = Context { rules: &rules, own_credential: true };
        let missing = classify(&status(404), context);
        assert_eq!((missing.verdict, missing.retry, missing.failover), (Verdict::Failure, false, true));
        assert_eq!(classify(&status(503), context).verdict, Verdict::Ignored);
        assert!(
            classify(&status(503), context).retry,
            "the breaker is told nothing; the caller still gets help"
        );
        let filtered = StatusFacts {
            status: 400,
            error: Some(error("x", "content_filter", 400)),
            ..StatusFacts::default()
        };
        assert_eq!(classify(&Happening::Status(filtered), context).verdict, Verdict::Ignored);
        assert_eq!(classify(&status(400), context).verdict, Verdict::Ignored);
    }

    #[test]
    fn pushback_is_kept_where_it_means_something() {
        let with = |status| {
            Happening::Status(StatusFacts { status, error: None, pushback: Some(Duration::from_secs(7)) })
        };
        assert_eq!(classify(&with(429), OURS).pushback, Some(Duration::from_secs(7)));
        assert_eq!(classify(&with(503), OURS).pushback, Some(Duration::from_secs(7)));
        assert_eq!(classify(&with(400), OURS).pushback, None);
    }
}
