//! Facts of a request's body.
//!
//! One pass over bytes that may be megabytes: a visitor takes the few members that matter, counts the text of
//! those that cost tokens, and skips the rest unread. Strings without escapes are never copied. Serde's own
//! reading of keys is used (not a search for bytes), so that a member cannot hide from Sluice behind an escape
//! and still be seen by the provider; the members that decide money or routing may occur once only, as
//! parsers differ in which of two they believe.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::Operation;
use super::text::{Role, Text, TextOf};

/// Longest model name.
const MODEL_MAX: usize = 256;
/// Nothing asks for more output than this; larger numbers are cut to it, so that the buckets' arithmetic in
/// fractions of a token stays exact.
const OUTPUT_MAX: u64 = 1 << 32;

/// What a body asks for. Nothing of its text is kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestFacts {
    pub model: String,
    pub stream: bool,
    pub max_output: MaxOutput,
    /// The client asked for the usage chunk (`stream_options.include_usage`).
    pub include_usage: bool,
    /// Bytes of text that cost input tokens: messages, prompts, instructions, tools; as UTF-8, without JSON's
    /// own marks and without binary data.
    pub text_bytes: u64,
    /// Input given as token numbers (`prompt` or `input` arrays of integers).
    pub input_token_ids: u64,
    /// Images, files and sounds, inline or by URL.
    pub binary_parts: u32,
    pub has_tools: bool,
    /// `store`: the provider keeps the answer.
    pub stored: bool,
    /// `background`: the provider goes on when the connection ends.
    pub background: bool,
    /// Where the model's value is in the body, quotes included.
    pub(crate) model_span: Range<usize>,
    /// Where the value of `stream_options` is.
    pub(crate) stream_options_span: Option<Range<usize>>,
}

/// The longest answer that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MaxOutput {
    /// The larger of `max_completion_tokens`, `max_tokens` and `max_output_tokens` that is present.
    pub per_choice: Option<u64>,
    /// `n` (or `best_of`), times the number of prompts; at least 1.
    pub choices: u64,
}

impl MaxOutput {
    /// Over all choices; `None` when no maximum is named.
    #[must_use]
    pub fn total(self) -> Option<u64> {
        self.per_choice.map(|tokens| tokens.saturating_mul(self.choices.max(1)).min(OUTPUT_MAX))
    }
}

/// Why a body cannot be routed. The texts are for the client; they never quote the body.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error(
        "the body is no JSON object (line {line}, column {column}): send the request's JSON uncompressed and in UTF-8"
    )]
    Malformed { line: usize, column: usize },
    #[error("`model` is missing: name the model that should answer")]
    ModelMissing,
    #[error("`model` must be a string of 1 to {MODEL_MAX} characters: name the model that should answer")]
    ModelInvalid,
    #[error("`{field}` occurs more than once in the body: send it once")]
    Repeated { field: &'static str },
    #[error("`{field}` must be {expected}: correct it or leave it out")]
    Invalid { field: &'static str, expected: &'static str },
}

/// Reads a body in one pass.
///
/// # Errors
/// [`RequestError`], whose text names field and fix.
pub fn read_request(operation: Operation, body: &[u8]) -> Result<RequestFacts, RequestError> {
    let mut pass = Pass { body, operation, found: Found::default(), error: None };
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let read = deserializer.deserialize_map(&mut pass).and_then(|()| deserializer.end());
    if let Err(error) = read {
        return Err(pass
            .error
            .unwrap_or(RequestError::Malformed { line: error.line(), column: error.column() }));
    }
    pass.found.facts()
}

#[derive(Default)]
struct Found<'de> {
    model: Option<&'de RawValue>,
    model_start: usize,
    max: [Option<u64>; 3],
    choices: Option<u64>,
    best_of: Option<u64>,
    prompts: u64,
    seen: Vec<&'static str>,
    facts: RequestFacts,
}

impl Found<'_> {
    fn facts(mut self) -> Result<RequestFacts, RequestError> {
        let raw = self.model.ok_or(RequestError::ModelMissing)?;
        let model: Cow<'_, str> = serde_json::from_str(raw.get()).map_err(|_| RequestError::ModelInvalid)?;
        if model.is_empty() || model.chars().count() > MODEL_MAX {
            return Err(RequestError::ModelInvalid);
        }
        let choices = self.choices.max(self.best_of).unwrap_or(1).max(1);
        self.facts.max_output = MaxOutput {
            per_choice: self.max.into_iter().flatten().max(),
            choices: choices.saturating_mul(self.prompts.max(1)),
        };
        self.facts.model_span = self.model_start..self.model_start + raw.get().len();
        self.facts.model = model.into_owned();
        Ok(self.facts)
    }
}

struct Pass<'de> {
    body: &'de [u8],
    operation: Operation,
    found: Found<'de>,
    error: Option<RequestError>,
}

impl<'de> Visitor<'de> for &mut Pass<'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Key>()? {
            self.member(key, &mut map)?;
        }
        Ok(())
    }
}

impl<'de> Pass<'de> {
    fn member<A: MapAccess<'de>>(&mut self, key: Key, map: &mut A) -> Result<(), A::Error> {
        if let Some(field) = key.once() {
            if self.found.seen.contains(&field) {
                return self.refuse(RequestError::Repeated { field });
            }
            self.found.seen.push(field);
        }
        match key {
            Key::Model => {
                let raw: &'de RawValue = map.next_value()?;
                self.found.model_start = self.offset_of(raw);
                self.found.model = Some(raw);
            }
            Key::StreamOptions => {
                let raw: &'de RawValue = map.next_value()?;
                let start = self.offset_of(raw);
                self.found.facts.stream_options_span = Some(start..start + raw.get().len());
                let options: serde_json::Value = serde_json::from_str(raw.get()).unwrap_or_default();
                self.found.facts.include_usage = options.get("include_usage") == Some(&true.into());
            }
            Key::Stream => self.found.facts.stream = self.boolean("stream", map)?,
            Key::Store => self.found.facts.stored = self.boolean("store", map)?,
            Key::Background => self.found.facts.background = self.boolean("background", map)?,
            Key::Max(index, field) => self.found.max[index] = self.number(field, map)?,
            Key::N => self.found.choices = self.number("n", map)?,
            Key::BestOf => self.found.best_of = self.number("best_of", map)?,
            Key::Prompt => {
                let mut text = Text::default();
                map.next_value_seed(TextOf { text: &mut text, role: Role::Input })?;
                // Each string of a completion's array, and each array of numbers, is a prompt of its own.
                if self.operation == Operation::Completions {
                    self.found.prompts = text.prompts;
                }
                self.add(&text);
            }
            Key::Text => {
                let mut text = Text::default();
                map.next_value_seed(TextOf { text: &mut text, role: Role::Text })?;
                self.add(&text);
            }
            Key::Tools => {
                let text = self.schema(map)?;
                self.found.facts.has_tools |= text.elements > 0;
            }
            Key::Schema => {
                self.schema(map)?;
            }
            Key::Other => {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn schema<A: MapAccess<'de>>(&mut self, map: &mut A) -> Result<Text, A::Error> {
        let mut text = Text::default();
        map.next_value_seed(TextOf { text: &mut text, role: Role::Schema })?;
        self.add(&text);
        Ok(text)
    }

    fn add(&mut self, text: &Text) {
        self.found.facts.text_bytes += text.bytes;
        self.found.facts.input_token_ids += text.numbers;
        self.found.facts.binary_parts = self.found.facts.binary_parts.saturating_add(text.binary_parts);
    }

    /// The raw value is a slice of the body; its address tells where.
    fn offset_of(&self, raw: &RawValue) -> usize {
        (raw.get().as_ptr() as usize).saturating_sub(self.body.as_ptr() as usize)
    }

    fn boolean<A: MapAccess<'de>>(&mut self, field: &'static str, map: &mut A) -> Result<bool, A::Error> {
        match map.next_value::<serde_json::Value>()? {
            serde_json::Value::Bool(value) => Ok(value),
            serde_json::Value::Null => Ok(false),
            _ => self.refuse(RequestError::Invalid { field, expected: "true or false" }),
        }
    }

    fn number<A: MapAccess<'de>>(
        &mut self,
        field: &'static str,
        map: &mut A,
    ) -> Result<Option<u64>, A::Error> {
        let value = map.next_value::<serde_json::Value>()?;
        if value.is_null() {
            return Ok(None);
        }
        let number = value.as_u64().or_else(|| value.as_f64().filter(|n| *n >= 0.0).map(|n| n as u64));
        match number {
            Some(number) => Ok(Some(number.min(OUTPUT_MAX))),
            None => self.refuse(RequestError::Invalid { field, expected: "a number that is not negative" }),
        }
    }

    fn refuse<T, E: serde::de::Error>(&mut self, error: RequestError) -> Result<T, E> {
        self.error = Some(error);
        Err(E::custom("refused"))
    }
}

/// The members that matter.
#[derive(Debug, Clone, Copy)]
enum Key {
    Model,
    Stream,
    StreamOptions,
    Max(usize, &'static str),
    N,
    BestOf,
    Prompt,
    Text,
    Tools,
    Schema,
    Store,
    Background,
    Other,
}

impl Key {
    /// The name, where two of it would mean different things to different parsers.
    const fn once(self) -> Option<&'static str> {
        match self {
            Self::Model => Some("model"),
            Self::Stream => Some("stream"),
            Self::StreamOptions => Some("stream_options"),
            Self::Max(_, field) => Some(field),
            Self::N => Some("n"),
            Self::BestOf => Some("best_of"),
            _ => None,
        }
    }
}

impl<'de> serde::Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl Visitor<'_> for KeyVisitor {
            type Value = Key;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a member's name")
            }
            fn visit_str<E>(self, name: &str) -> Result<Key, E> {
                Ok(match name {
                    "model" => Key::Model,
                    "stream" => Key::Stream,
                    "stream_options" => Key::StreamOptions,
                    "max_tokens" => Key::Max(0, "max_tokens"),
                    "max_completion_tokens" => Key::Max(1, "max_completion_tokens"),
                    "max_output_tokens" => Key::Max(2, "max_output_tokens"),
                    "n" => Key::N,
                    "best_of" => Key::BestOf,
                    "prompt" | "input" => Key::Prompt,
                    "messages" | "system" | "instructions" | "suffix" => Key::Text,
                    "tools" | "functions" => Key::Tools,
                    "response_format" | "text" => Key::Schema,
                    "store" => Key::Store,
                    "background" => Key::Background,
                    _ => Key::Other,
                })
            }
        }
        deserializer.deserialize_identifier(KeyVisitor)
    }
}
