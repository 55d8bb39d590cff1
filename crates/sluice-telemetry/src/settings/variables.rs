//! Environment variables as typed values. An empty value is an absent one, as OpenTelemetry's specification
//! has it; a value that can't be used is an error, where the specification would warn and go on: a collector that
//! receives nothing because of a typing error is found during the next outage.

use std::borrow::Cow;
use std::ffi::OsString;
use std::str::FromStr;
use std::time::Duration;

/// A setting that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error("{variable} is not valid Unicode: set it to plain text or unset it")]
    NotUnicode { variable: String },
    #[error("{variable}={value:?} can't be used: {fix}")]
    Invalid { variable: String, value: String, fix: String },
    #[error("{variable} names a file that can't be used, {path:?}: {cause}; name a readable PEM file")]
    File { variable: String, path: String, cause: String },
}

/// One variable's value, and its name for what is said about it.
#[derive(Debug, Clone)]
pub(super) struct Value {
    pub(super) variable: String,
    pub(super) text: String,
}

impl Value {
    pub(super) fn invalid(&self, fix: impl Into<String>) -> SettingsError {
        SettingsError::Invalid { variable: self.variable.clone(), value: self.text.clone(), fix: fix.into() }
    }

    /// For values that may hold a secret.
    pub(super) fn invalid_secret(&self, fix: impl Into<String>) -> SettingsError {
        SettingsError::Invalid {
            variable: self.variable.clone(),
            value: "[redacted]".to_owned(),
            fix: fix.into(),
        }
    }

    pub(super) fn parse<T: FromStr>(&self, fix: &str) -> Result<T, SettingsError> {
        self.text.parse().map_err(|_| self.invalid(fix))
    }
}

/// Where variables are looked up: the environment, or a table in tests.
pub(super) struct Variables<'a>(pub(super) &'a dyn Fn(&str) -> Option<OsString>);

impl Variables<'_> {
    pub(super) fn get(&self, variable: &str) -> Result<Option<Value>, SettingsError> {
        let Some(value) = (self.0)(variable) else { return Ok(None) };
        let text = value
            .into_string()
            .map_err(|_| SettingsError::NotUnicode { variable: variable.to_owned() })?
            .trim()
            .to_owned();
        Ok((!text.is_empty()).then(|| Value { variable: variable.to_owned(), text }))
    }

    pub(super) fn flag(&self, variable: &str) -> Result<Option<bool>, SettingsError> {
        let Some(value) = self.get(variable)? else { return Ok(None) };
        match value.text.to_ascii_lowercase().as_str() {
            "true" => Ok(Some(true)),
            "false" => Ok(Some(false)),
            _ => Err(value.invalid("set it to true or false")),
        }
    }

    /// A whole number from 1 on.
    pub(super) fn count(&self, variable: &str, default: usize) -> Result<usize, SettingsError> {
        let Some(value) = self.get(variable)? else { return Ok(default) };
        let fix = "set it to a whole number from 1 to 1000000";
        let count = value.parse(fix)?;
        if (1..=1_000_000).contains(&count) { Ok(count) } else { Err(value.invalid(fix)) }
    }

    /// Milliseconds from 1 to an hour.
    pub(super) fn millis(&self, variable: &str, default: Duration) -> Result<Duration, SettingsError> {
        match self.get(variable)? {
            None => Ok(default),
            Some(value) => millis(&value),
        }
    }
}

pub(super) fn millis(value: &Value) -> Result<Duration, SettingsError> {
    let fix = "set it to milliseconds, a whole number from 1 to 3600000";
    let millis: u64 = value.parse(fix)?;
    if (1..=3_600_000).contains(&millis) {
        Ok(Duration::from_millis(millis))
    } else {
        Err(value.invalid(fix))
    }
}

/// `key=value,key=value`, values percent-encoded: the W3C Baggage form that headers and resources share.
pub(super) fn pairs(text: &str) -> Result<Vec<(String, String)>, &'static str> {
    let members = text.split(',').map(str::trim).filter(|member| !member.is_empty());
    members
        .map(|member| {
            let (key, value) = member.split_once('=').ok_or("write it as key=value,key=value")?;
            let decode = |text: &str| {
                let decoded = percent_encoding::percent_decode_str(text.trim()).decode_utf8();
                decoded.map(Cow::into_owned).map_err(|_| "percent-encode UTF-8 only")
            };
            let key = decode(key)?;
            if key.is_empty() { Err("give every value a key") } else { Ok((key, decode(value)?)) }
        })
        .collect()
}
