//! How long a provider asks to wait: `Retry-After` and its many cousins.
//!
//! The headers are read in the order in which the official SDKs read them, so that Sluice and a client with
//! retries of its own wait alike, then the vendors' reset headers:
//!
//! 1. `retry-after-ms`: milliseconds, a float;
//! 2. `retry-after`: seconds, a float, or an HTTP date (a past one is zero);
//! 3. `x-ratelimit-reset-requests`, `-tokens` (OpenAI, Azure, Groq): a Go duration (`6m0s`, `21ms`) or seconds.
//!    They come with every answer, so only those count whose `x-ratelimit-remaining-…` is 0, the longest of
//!    them; when none says what remains, the shortest;
//! 4. `anthropic-ratelimit-*-reset`: RFC 3339; by the same rule with `…-remaining`;
//! 5. `x-ratelimit-reset`, `ratelimit-reset`: seconds, or seconds or milliseconds since 1970.
//!
//! Negative numbers (Azure's −1 means "don't know"), NaN, infinities and text that is nothing of this are as if
//! absent. Zero is an answer: "now". What is beyond a day is cut to a day ([`LONGEST`]); what an exchange or a
//! pause can bear is for the caller to clamp, who must first ask whether the *real* wait fits.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// No wait is longer.
pub const LONGEST: Duration = Duration::from_hours(24);

/// Reads how long to wait. `header` looks a lower-case name up; several values: the first.
#[must_use]
pub fn retry_after<'h>(header: impl Fn(&str) -> Option<&'h str>, now: SystemTime) -> Option<Duration> {
    let wait = header("retry-after-ms")
        .and_then(|value| number(value, 0.001))
        .or_else(|| header("retry-after").and_then(|value| seconds_or_date(value, now)))
        .or_else(|| vendor_reset(&header, &OPENAI, |value| go_duration(value).or_else(|| number(value, 1.0))))
        .or_else(|| vendor_reset(&header, &ANTHROPIC, |value| rfc3339(value, now)))
        .or_else(|| {
            ["x-ratelimit-reset", "ratelimit-reset"]
                .iter()
                .find_map(|name| header(name).and_then(|value| epoch_or_seconds(value, now)))
        })?;
    Some(wait.min(LONGEST))
}

/// Pairs of headers: what remains of a limit, and when it is whole again.
const OPENAI: [(&str, &str); 2] = [
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
];
const ANTHROPIC: [(&str, &str); 4] = [
    ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"),
    ("anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"),
    ("anthropic-ratelimit-input-tokens-remaining", "anthropic-ratelimit-input-tokens-reset"),
    ("anthropic-ratelimit-output-tokens-remaining", "anthropic-ratelimit-output-tokens-reset"),
];

fn vendor_reset<'h>(
    header: &impl Fn(&str) -> Option<&'h str>,
    pairs: &[(&str, &str)],
    read: impl Fn(&str) -> Option<Duration>,
) -> Option<Duration> {
    let resets = || pairs.iter().filter_map(|(left, reset)| Some((header(left), read(header(reset)?)?)));
    let spent = resets().filter(|(left, _)| left.is_some_and(|left| left.trim() == "0"));
    spent.map(|(_, wait)| wait).max().or_else(|| {
        // A limit that says it has something left is not what refused.
        resets().filter(|(left, _)| left.is_none()).map(|(_, wait)| wait).min()
    })
}

/// A number of `unit` seconds.
fn number(value: &str, unit: f64) -> Option<Duration> {
    let value = value.trim();
    // Rust reads "inf", "nan" and "infinity" as numbers; a header has digits.
    if !value.starts_with(|c: char| c.is_ascii_digit() || c == '.' || c == '+') {
        return None;
    }
    let seconds = value.parse::<f64>().ok()? * unit;
    if seconds.is_nan() || seconds < 0.0 {
        return None;
    }
    Some(Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST))
}

fn seconds_or_date(value: &str, now: SystemTime) -> Option<Duration> {
    number(value, 1.0).or_else(|| {
        let date = httpdate::parse_http_date(value.trim()).ok()?;
        Some(date.duration_since(now).unwrap_or(Duration::ZERO))
    })
}

fn rfc3339(value: &str, now: SystemTime) -> Option<Duration> {
    let at = SystemTime::from(value.trim().parse::<jiff::Timestamp>().ok()?);
    Some(at.duration_since(now).unwrap_or(Duration::ZERO))
}

/// Servers disagree on whether a reset is a time or a wait. A wait of more than a year is a time: seconds since
/// 1970, or milliseconds when even that would lie far ahead.
fn epoch_or_seconds(value: &str, now: SystemTime) -> Option<Duration> {
    const YEAR: f64 = 365.0 * 86_400.0;
    const MILLIS: f64 = 1e11;
    let wait = number(value, 1.0).filter(|_| value.trim().parse::<f64>().is_ok_and(|n| n < YEAR));
    wait.or_else(|| {
        let number: f64 = value.trim().parse().ok()?;
        let seconds = if number >= MILLIS { number / 1_000.0 } else { number };
        let at = UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(seconds).ok()?)?;
        Some(at.duration_since(now).unwrap_or(Duration::ZERO))
    })
}

/// Go's `time.Duration.String`: `1h15m30.918s`, `6m0s`, `21ms`, `0s`, `2µs`.
fn go_duration(value: &str) -> Option<Duration> {
    let mut rest = value.trim();
    let mut seconds = 0.0_f64;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        seconds += number
            * match &rest[..letters] {
                "d" => 86_400.0,
                "h" => 3_600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" | "μs" => 1e-6,
                "ns" => 1e-9,
                _ => return None,
            };
        rest = &rest[letters..];
    }
    Some(Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 2026-01-01T00:00:00Z
    const NOW_S: u64 = 1_767_225_600;

    fn read(headers: &[(&str, &str)]) -> Option<Duration> {
        let now = UNIX_EPOCH + Duration::from_secs(NOW_S);
        retry_after(|name| headers.iter().find(|(n, _)| *n == name).map(|(_, v)| *v), now)
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn retry_after_in_every_form() {
        for (value, want) in [
            ("7", Some(ms(7_000))),
            (" 7 ", Some(ms(7_000))),
            ("0.5", Some(ms(500))),
            ("0", Some(ms(0))),
            ("-1", None),
            ("1e9", Some(LONGEST)),
            ("1e400", Some(LONGEST)),
            ("soon", None),
            ("", None),
            ("nan", None),
            ("inf", None),
            ("infinity", None),
            ("0x10", None),
            ("Thu, 01 Jan 2026 00:00:30 GMT", Some(ms(30_000))),
            ("Wed, 01 Jan 2025 00:00:00 GMT", Some(ms(0))),
            ("Thu, 01 Jan 2099 00:00:00 GMT", Some(LONGEST)),
            ("Thu, 99 Jan 2026 00:00:30 GMT", None),
        ] {
            assert_eq!(read(&[("retry-after", value)]), want, "{value:?}");
        }
    }

    #[test]
    fn the_sdks_order() {
        assert_eq!(read(&[("retry-after-ms", "1500"), ("retry-after", "20")]), Some(ms(1_500)));
        assert_eq!(read(&[("retry-after-ms", "-1"), ("retry-after", "20")]), Some(ms(20_000)));
        assert_eq!(read(&[("retry-after", "-1"), ("x-ratelimit-reset-requests", "2s")]), Some(ms(2_000)));
        assert_eq!(read(&[]), None);
    }

    #[test]
    fn openais_resets() {
        let both = [("x-ratelimit-reset-requests", "8.64s"), ("x-ratelimit-reset-tokens", "6m0s")];
        assert_eq!(read(&both), Some(ms(8_640)), "unknown what ran out: the shortest");
        let mut spent = both.to_vec();
        spent.extend([("x-ratelimit-remaining-requests", "9"), ("x-ratelimit-remaining-tokens", "0")]);
        assert_eq!(read(&spent), Some(ms(360_000)), "the one that ran out");
        let azure = [
            ("x-ratelimit-reset-requests", "-1"),
            ("x-ratelimit-reset-tokens", "-1"),
            ("x-ratelimit-remaining-requests", "-1"),
        ];
        assert_eq!(read(&azure), None);
        assert_eq!(read(&[("x-ratelimit-reset-tokens", "12")]), Some(ms(12_000)), "some write seconds");
        let plenty = [("x-ratelimit-remaining-tokens", "99"), ("x-ratelimit-reset-tokens", "5s")];
        assert_eq!(read(&plenty), None, "not what refused");
    }

    #[test]
    fn go_durations() {
        for (text, want) in [
            ("1h15m30.918s", Some(ms(4_530_918))),
            ("6m0s", Some(ms(360_000))),
            ("21ms", Some(ms(21))),
            ("0s", Some(ms(0))),
            ("1d", Some(ms(86_400_000))),
            ("1500µs", Some(Duration::from_micros(1_500))),
            ("5", None),
            ("s", None),
            ("1.2.3s", None),
            ("-1s", None),
            ("1y", None),
            ("", None),
        ] {
            assert_eq!(go_duration(text), want, "{text:?}");
        }
    }

    #[test]
    fn anthropics_resets() {
        let reset = ("anthropic-ratelimit-tokens-reset", "2026-01-01T00:00:10Z");
        assert_eq!(read(&[reset, ("anthropic-ratelimit-tokens-remaining", "0")]), Some(ms(10_000)));
        assert_eq!(read(&[("anthropic-ratelimit-requests-reset", "2025-01-01T00:00:00Z")]), Some(ms(0)));
        assert_eq!(read(&[("anthropic-ratelimit-requests-reset", "tomorrow")]), None);
    }

    #[test]
    fn epoch_or_wait() {
        let at = (NOW_S + 42).to_string();
        assert_eq!(read(&[("x-ratelimit-reset", &at)]), Some(ms(42_000)));
        assert_eq!(read(&[("x-ratelimit-reset", &format!("{at}000"))]), Some(ms(42_000)));
        assert_eq!(read(&[("x-ratelimit-reset", "42")]), Some(ms(42_000)));
        assert_eq!(read(&[("ratelimit-reset", "3")]), Some(ms(3_000)));
        assert_eq!(read(&[("x-ratelimit-reset", "-1")]), None);
        assert_eq!(read(&[("x-ratelimit-reset", "1000000000")]), Some(ms(0)), "2001 is past");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_ignored(name in 0..8_usize, text in "\\PC{0,40}") {
            let names = ["retry-after-ms", "retry-after", "x-ratelimit-reset-requests", "x-ratelimit-reset-tokens",
                "anthropic-ratelimit-tokens-reset", "x-ratelimit-reset", "ratelimit-reset", "x-ratelimit-remaining-tokens"];
            if let Some(wait) = read(&[(names[name], &text)]) {
                prop_assert!(wait <= LONGEST);
            }
        }
    }
}
