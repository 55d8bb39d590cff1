//! Duration strings as the Gateway API writes them (GEP-2257): `1h`, `10s`, `1m30s`, `500ms`.

use std::time::Duration;

/// Why a string is no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{value:?} is no duration: write up to four numbers of at most five digits with h, m, s or ms, largest unit first, such as 1m30s"
)]
pub struct InvalidDuration {
    pub value: String,
}

/// The pattern of a duration string, for schemas.
pub const DURATION_PATTERN: &str = "^([0-9]{1,5}(h|m|s|ms)){1,4}$";

/// Reads a duration string. Units may come in any order, as in the Gateway API; each adds to the sum.
///
/// # Errors
/// [`InvalidDuration`] when the string does not match [`DURATION_PATTERN`].
pub fn parse_duration(value: &str) -> Result<Duration, InvalidDuration> {
    let invalid = || InvalidDuration { value: value.chars().take(64).collect() };
    let mut rest = value;
    let mut total_ms = 0_u64;
    let mut parts = 0;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = match digits {
            1..=5 => rest[..digits].parse().map_err(|_| invalid())?,
            _ => return Err(invalid()),
        };
        rest = &rest[digits..];
        let (unit_ms, unit_len) = if rest.starts_with("ms") {
            (1, 2)
        } else if rest.starts_with('h') {
            (3_600_000, 1)
        } else if rest.starts_with('m') {
            (60_000, 1)
        } else if rest.starts_with('s') {
            (1_000, 1)
        } else {
            return Err(invalid());
        };
        total_ms += number * unit_ms;
        rest = &rest[unit_len..];
        parts += 1;
    }
    if parts == 0 || parts > 4 {
        return Err(invalid());
    }
    Ok(Duration::from_millis(total_ms))
}

/// Writes a duration string, to the millisecond, largest unit first.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let mut ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if ms == 0 {
        return "0s".to_owned();
    }
    let mut out = String::new();
    for (unit, unit_ms) in [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)] {
        let count = ms / unit_ms;
        if count > 0 {
            out.push_str(&count.to_string());
            out.push_str(unit);
            ms %= unit_ms;
        }
    }
    out
}

/// Whole milliseconds of a duration, saturating.
#[must_use]
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_gateway_api_reads() {
        for (text, ms) in [
            ("0s", 0),
            ("10s", 10_000),
            ("1m30s", 90_000),
            ("500ms", 500),
            ("1h", 3_600_000),
            ("1h1m1s1ms", 3_661_001),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn refuses_everything_else() {
        for text in ["", "10", "s", "-1s", "1.5s", "1d", "123456s", "1s1s1s1s1s", "1 s", "１s"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn writes_what_it_reads() {
        for text in ["0s", "10s", "1m30s", "500ms", "1h1m1s1ms"] {
            assert_eq!(format_duration(parse_duration(text).unwrap()), text);
        }
    }
}
