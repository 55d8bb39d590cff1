//! Numbers as a person reads them at a glance: short, and of the same width from one second to the next.

use std::fmt::Write as _;
use std::time::Duration;

use sluice_core::admission::WindowCounts;

/// `1,204`.
pub(super) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `820`, `82.1k`, `8.0M`; a debt has its sign.
pub(super) fn short(number: i64) -> String {
    let size = number.unsigned_abs();
    let sign = if number < 0 { "-" } else { "" };
    match size {
        0..1_000 => format!("{sign}{size}"),
        1_000..100_000 => format!("{sign}{}.{}k", size / 1_000, size % 1_000 / 100),
        100_000..1_000_000 => format!("{sign}{}k", size / 1_000),
        1_000_000..100_000_000 => format!("{sign}{}.{}M", size / 1_000_000, size % 1_000_000 / 100_000),
        _ => format!("{sign}{}M", size / 1_000_000),
    }
}

/// `0.0/s`, `12.1/s`, `1,204/s`.
pub(super) fn rate(per_second: f64) -> String {
    if per_second < 100.0 {
        format!("{per_second:.1}/s")
    } else {
        format!("{}/s", thousands(per_second.round() as u64))
    }
}

/// `0.31 s`, `4.2 s`, `12 s`.
pub(super) fn seconds(ms: u64) -> String {
    match ms {
        0..1_000 => format!("0.{:02} s", ms / 10),
        1_000..10_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        _ => format!("{} s", ms / 1_000),
    }
}

/// A countdown, rounded up, so that it ends at `1 s` and not at `0 s`: `12 s`, `2 min 05 s`.
pub(super) fn countdown(left: Duration) -> String {
    let seconds = left.as_millis().div_ceil(1_000);
    if seconds < 100 { format!("{seconds} s") } else { format!("{} min {:02} s", seconds / 60, seconds % 60) }
}

/// Time since the start: `0:23.4`, `1:02:03`.
pub(super) fn clock(at: Duration) -> String {
    let seconds = at.as_secs();
    if seconds < 3_600 {
        format!("{}:{:02}.{}", seconds / 60, seconds % 60, at.subsec_millis() / 100)
    } else {
        format!("{}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
    }
}

/// `14 calls, 9 failed, 2 slow`.
pub(super) fn counts(counts: &WindowCounts) -> String {
    let mut text = format!("{} calls", counts.calls);
    for (count, what) in [(counts.failures, "failed"), (counts.slow, "slow"), (counts.stalls, "stalled")] {
        if count > 0 {
            let _ = write!(text, ", {count} {what}");
        }
    }
    text
}

/// At most `width` characters; what is cut shows.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    if width == 0 { kept } else { kept + "…" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_short() {
        let pairs = [
            (0, "0"),
            (999, "999"),
            (1_000, "1.0k"),
            (82_149, "82.1k"),
            (100_000, "100k"),
            (8_000_000, "8.0M"),
            (250_000_000, "250M"),
            (-1_500, "-1.5k"),
        ];
        for (number, text) in pairs {
            assert_eq!(short(number), text);
        }
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(thousands(number), text);
        }
        for (number, text) in [(0.04, "0.0/s"), (12.06, "12.1/s"), (1_204.4, "1,204/s")] {
            assert_eq!(rate(number), text);
        }
    }

    #[test]
    fn times_read_like_times() {
        for (ms, text) in [(0, "0.00 s"), (312, "0.31 s"), (4_260, "4.2 s"), (12_900, "12 s")] {
            assert_eq!(seconds(ms), text);
        }
        for (ms, text) in [(0, "0 s"), (1, "1 s"), (11_001, "12 s"), (125_000, "2 min 05 s")] {
            assert_eq!(countdown(Duration::from_millis(ms)), text);
        }
        for (ms, text) in [(0, "0:00.0"), (83_450, "1:23.4"), (3_723_000, "1:02:03")] {
            assert_eq!(clock(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn a_cut_shows() {
        assert_eq!(cut("primary", 7), "primary");
        assert_eq!(cut("primary", 4), "pri…");
        assert_eq!(cut("primary", 0), "");
    }
}
