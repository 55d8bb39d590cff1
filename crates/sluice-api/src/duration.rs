//! Durations of the API: strings as in the Gateway API (GEP-2257), such as `10s` or `1m30s`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sluice_core::units::{DURATION_PATTERN, InvalidDuration, format_duration, parse_duration};

/// Longest duration string that [`DURATION_PATTERN`] lets through: four times five digits and a unit.
const MAX_LENGTH: u32 = 28;

/// A [`Duration`] that is a string such as `1m30s` in manifests, to the millisecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct DurationString(pub Duration);

impl From<Duration> for DurationString {
    fn from(duration: Duration) -> Self {
        Self(duration)
    }
}

impl From<DurationString> for Duration {
    fn from(duration: DurationString) -> Self {
        duration.0
    }
}

impl fmt::Display for DurationString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_duration(self.0))
    }
}

impl FromStr for DurationString {
    type Err = InvalidDuration;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_duration(text).map(Self)
    }
}

impl Serialize for DurationString {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DurationString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for DurationString {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "DurationString".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": DURATION_PATTERN, "maxLength": MAX_LENGTH })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_string_in_manifests() {
        let read: DurationString = serde_json::from_str("\"90s\"").unwrap();
        assert_eq!(read.0, Duration::from_secs(90));
        assert_eq!(serde_json::to_string(&read).unwrap(), "\"1m30s\"");
        assert!(serde_json::from_str::<DurationString>("\"-1s\"").is_err());
        assert!(serde_json::from_str::<DurationString>("90").is_err());
    }

    #[test]
    fn the_longest_string_of_the_pattern_fits() {
        let longest = "99999ms".repeat(4);
        assert_eq!(longest.len(), MAX_LENGTH as usize);
        assert!(longest.parse::<DurationString>().is_ok());
    }
}
