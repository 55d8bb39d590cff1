//! Reading one field.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::InvalidField;
use crate::bounds;

/// A field's name, carried to where its value is read.
#[derive(Clone, Copy)]
pub(crate) struct Field(pub(crate) &'static str);

impl Field {
    pub(crate) fn within(self, value: u32, range: RangeInclusive<u32>) -> Result<u32, InvalidField> {
        self.within_u64(value.into(), u64::from(*range.start())..=u64::from(*range.end()))?;
        Ok(value)
    }

    pub(crate) fn within_u64(self, value: u64, range: RangeInclusive<u64>) -> Result<u64, InvalidField> {
        if range.contains(&value) {
            Ok(value)
        } else {
            Err(InvalidField::OutOfRange { field: self.0, value, min: *range.start(), max: *range.end() })
        }
    }

    pub(crate) fn percent(self, value: u32) -> Result<u32, InvalidField> {
        self.within(value, 0..=100)
    }

    pub(crate) fn count(self, value: u32) -> Result<u32, InvalidField> {
        self.within(value, 0..=bounds::COUNT)
    }

    pub(crate) fn duration(self, value: Option<prost_types::Duration>) -> Result<Duration, InvalidField> {
        let value = present(value, self.0)?;
        let invalid = || InvalidField::Duration { field: self.0, seconds: value.seconds, nanos: value.nanos };
        let seconds = u64::try_from(value.seconds).map_err(|_| invalid())?;
        let nanos = u32::try_from(value.nanos).map_err(|_| invalid())?;
        // A protobuf duration keeps its nanoseconds below one second; Duration::new would carry, or panic.
        if seconds > bounds::DURATION.as_secs() || nanos > 999_999_999 {
            return Err(invalid());
        }
        let duration = Duration::new(seconds, nanos);
        if duration > bounds::DURATION { Err(invalid()) } else { Ok(duration) }
    }

    /// An absent duration stays absent.
    pub(crate) fn optional_duration(
        self,
        value: Option<prost_types::Duration>,
    ) -> Result<Option<Duration>, InvalidField> {
        value.map(|value| self.duration(Some(value))).transpose()
    }

    pub(crate) fn entries<T>(
        self,
        list: Vec<T>,
        range: RangeInclusive<usize>,
    ) -> Result<Vec<T>, InvalidField> {
        if range.contains(&list.len()) {
            Ok(list)
        } else {
            Err(InvalidField::Count {
                field: self.0,
                count: list.len(),
                min: *range.start(),
                max: *range.end(),
            })
        }
    }

    pub(crate) fn distinct<'a>(self, values: impl Iterator<Item = &'a str>) -> Result<(), InvalidField> {
        let mut seen = BTreeSet::new();
        for value in values {
            if !seen.insert(value) {
                return Err(InvalidField::Duplicate { field: self.0, value: excerpt(value) });
            }
        }
        Ok(())
    }

    /// The name of an HTTP header: a token of RFC 9110.
    pub(crate) fn header(self, value: String) -> Result<Arc<str>, InvalidField> {
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if value.bytes().all(token) {
            name(value, self.0)
        } else {
            Err(self.malformed(&value, "letters, digits and hyphens"))
        }
    }

    /// A base URL: scheme, host, and no slash at the end.
    pub(crate) fn endpoint(self, value: String) -> Result<Arc<str>, InvalidField> {
        let value = text(value, self.0, bounds::ENDPOINT_BYTES)?;
        let host = value.strip_prefix("https://").or_else(|| value.strip_prefix("http://"));
        let plain = !value.contains(|c: char| c.is_whitespace() || c.is_control());
        if plain && !value.ends_with('/') && host.is_some_and(|host| !host.is_empty()) {
            Ok(value)
        } else {
            Err(self.malformed(&value, "an http or https URL without a slash at the end"))
        }
    }

    pub(crate) fn malformed(self, value: &str, want: &'static str) -> InvalidField {
        InvalidField::Malformed { field: self.0, value: excerpt(value), want }
    }
}

pub(crate) fn present<T>(value: Option<T>, field: &'static str) -> Result<T, InvalidField> {
    value.ok_or(InvalidField::Missing { field })
}

/// A text of at most `max` bytes, possibly empty.
pub(crate) fn text(value: String, field: &'static str, max: usize) -> Result<Arc<str>, InvalidField> {
    if value.len() > max {
        Err(InvalidField::TooLong { field, length: value.len(), max })
    } else {
        Ok(value.into())
    }
}

/// A text that is not empty.
pub(crate) fn name(value: String, field: &'static str) -> Result<Arc<str>, InvalidField> {
    if value.is_empty() {
        Err(InvalidField::Missing { field })
    } else {
        text(value, field, bounds::NAME_BYTES)
    }
}

/// Enough of a value to recognise it.
pub(crate) fn excerpt(value: &str) -> String {
    value.chars().take(64).collect()
}
