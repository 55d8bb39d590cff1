//! Durations and header values as people write them in a scenario file.

use std::time::Duration;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Reads `250ms`, `10s`, `0.4s`, `2m`, `1m30s`, `1h`. A bare `0` is allowed, any other number without a unit is
/// an error that says how to write it.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let bad = || {
        format!(
            "`{text}` is no duration: write a number and a unit (ms, s, m, h), such as 250ms, 0.4s, 10s or 1m30s"
        )
    };
    let mut rest = text.trim();
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(bad());
    }
    let mut total = 0.0_f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
        let number: f64 = rest[..digits].parse().map_err(|_| bad())?;
        rest = &rest[digits..];
        let end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        total += number
            * match &rest[..end] {
                "ms" => 0.001,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return Err(bad()),
            };
        rest = &rest[end..];
    }
    // Rounded to the microsecond, so that 0.4s is 400 ms and not a hair less.
    Ok(Duration::from_micros((total * 1e6).round() as u64))
}

fn write_duration(value: Duration) -> String {
    let micros = value.as_micros();
    if micros.is_multiple_of(1_000_000) {
        format!("{}s", micros / 1_000_000)
    } else if micros.is_multiple_of(1000) {
        format!("{}ms", micros / 1000)
    } else {
        format!("{}ms", micros as f64 / 1000.0)
    }
}

/// A [`Duration`] inside a list or an option, in text form.
#[derive(Debug, Clone, Copy)]
struct Text(Duration);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl Visitor<'_> for V {
            type Value = Text;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a duration such as 250ms, 10s or 1m30s")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Text, E> {
                parse_duration(text).map(Text).map_err(E::custom)
            }
            fn visit_u64<E: Error>(self, number: u64) -> Result<Text, E> {
                if number == 0 {
                    return Ok(Text(Duration::ZERO));
                }
                Err(E::custom(format!("`{number}` has no unit: write {number}ms or {number}s")))
            }
            fn visit_f64<E: Error>(self, number: f64) -> Result<Text, E> {
                Err(E::custom(format!("`{number}` has no unit: write {number}ms or {number}s")))
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<Text, E> {
                Err(E::invalid_value(Unexpected::Signed(number), &self))
            }
        }
        deserializer.deserialize_any(V)
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&write_duration(self.0))
    }
}

/// serde's `with` for `Option<Duration>`.
pub(crate) mod duration {
    use super::{Deserialize, Deserializer, Duration, Serialize, Serializer, Text};

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Text>::deserialize(d)?.map(|text| text.0))
    }

    #[allow(clippy::ref_option, reason = "serde's `with` passes the field by reference")]
    pub(crate) fn serialize<S: Serializer>(value: &Option<Duration>, s: S) -> Result<S::Ok, S::Error> {
        value.map(Text).serialize(s)
    }
}

/// serde's `with` for `Option<Vec<Duration>>`.
pub(crate) mod durations {
    use super::{Deserialize, Deserializer, Duration, Serialize, Serializer, Text};

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Vec<Duration>>, D::Error> {
        Ok(Option::<Vec<Text>>::deserialize(d)?.map(|list| list.into_iter().map(|text| text.0).collect()))
    }

    #[allow(clippy::ref_option, reason = "serde's `with` passes the field by reference")]
    pub(crate) fn serialize<S: Serializer>(value: &Option<Vec<Duration>>, s: S) -> Result<S::Ok, S::Error> {
        value.as_ref().map(|list| list.iter().copied().map(Text).collect::<Vec<_>>()).serialize(s)
    }
}

/// A header value: YAML numbers and booleans are taken as they are written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct HeaderText(pub String);

impl<T: Into<String>> From<T> for HeaderText {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl<'de> Deserialize<'de> for HeaderText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl Visitor<'_> for V {
            type Value = HeaderText;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a header value (text, number or boolean)")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<HeaderText, E> {
                Ok(text.into())
            }
            fn visit_u64<E: Error>(self, number: u64) -> Result<HeaderText, E> {
                Ok(number.to_string().into())
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<HeaderText, E> {
                Ok(number.to_string().into())
            }
            fn visit_f64<E: Error>(self, number: f64) -> Result<HeaderText, E> {
                Ok(number.to_string().into())
            }
            fn visit_bool<E: Error>(self, flag: bool) -> Result<HeaderText, E> {
                Ok(flag.to_string().into())
            }
        }
        deserializer.deserialize_any(V)
    }
}

#[cfg(test)]
mod tests {
    use super::{parse_duration, write_duration};
    use std::time::Duration;

    #[test]
    fn durations_read_and_write() {
        for (text, millis) in
            [("250ms", 250), ("0.4s", 400), ("10s", 10_000), ("1m30s", 90_000), ("1h", 3_600_000), ("0", 0)]
        {
            let value = parse_duration(text).unwrap();
            assert_eq!(value, Duration::from_millis(millis), "{text}");
            assert_eq!(parse_duration(&write_duration(value)).unwrap(), value);
        }
        for text in ["", "10", "s", "1x", "-1s", "1.2.3s", "forever"] {
            assert!(parse_duration(text).unwrap_err().contains("250ms"), "{text}");
        }
    }
}
