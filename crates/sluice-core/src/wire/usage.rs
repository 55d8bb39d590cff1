//! Tokens as providers report them.

use serde::{Deserialize, Deserializer};

/// A report beyond this is nonsense and is cut to it; well below 2^50, so that milli-tokens stay exact.
const LARGEST: u64 = 1_000_000_000_000;

/// What a provider says it counted for one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// All input tokens, those read from or written to a cache included.
    pub input: u64,
    /// All output tokens, reasoning included.
    pub output: u64,
    /// Of `input`: read from the provider's prompt cache.
    pub cached_input: u64,
    /// Of `output`: reasoning.
    pub reasoning: u64,
}

impl Usage {
    /// What is charged to the quota: input + output. Cached input is charged in full: OpenAI counts it
    /// against the tokens-per-minute limit, and where a provider does not (Anthropic's cache reads), charging it
    /// errs on the side that cannot overrun the limit.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.input.saturating_add(self.output)
    }
}

/// A usage object of any format: each provider fills the names it knows.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct WireUsage {
    #[serde(deserialize_with = "count")]
    prompt_tokens: Option<u64>,
    #[serde(deserialize_with = "count")]
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<Details>,
    completion_tokens_details: Option<Details>,
    #[serde(deserialize_with = "count")]
    input_tokens: Option<u64>,
    #[serde(deserialize_with = "count")]
    output_tokens: Option<u64>,
    input_tokens_details: Option<Details>,
    output_tokens_details: Option<Details>,
    #[serde(deserialize_with = "count")]
    cache_creation_input_tokens: Option<u64>,
    #[serde(deserialize_with = "count")]
    cache_read_input_tokens: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct Details {
    #[serde(deserialize_with = "count")]
    cached_tokens: Option<u64>,
    #[serde(deserialize_with = "count")]
    reasoning_tokens: Option<u64>,
}

impl WireUsage {
    /// Lays a later report over this one: the fields it has replace, the others stay. Anthropic's reports
    /// are cumulative and only the first has the input, so summing would be wrong.
    pub(super) fn update(&mut self, later: &Self) {
        fn last<T: Copy>(field: &mut Option<T>, later: Option<T>) {
            if later.is_some() {
                *field = later;
            }
        }
        last(&mut self.prompt_tokens, later.prompt_tokens);
        last(&mut self.completion_tokens, later.completion_tokens);
        last(&mut self.prompt_tokens_details, later.prompt_tokens_details);
        last(&mut self.completion_tokens_details, later.completion_tokens_details);
        last(&mut self.input_tokens, later.input_tokens);
        last(&mut self.output_tokens, later.output_tokens);
        last(&mut self.input_tokens_details, later.input_tokens_details);
        last(&mut self.output_tokens_details, later.output_tokens_details);
        last(&mut self.cache_creation_input_tokens, later.cache_creation_input_tokens);
        last(&mut self.cache_read_input_tokens, later.cache_read_input_tokens);
    }

    /// `None` when the report has no count of tokens at all.
    pub(super) fn usage(&self) -> Option<Usage> {
        let input = self.prompt_tokens.or(self.input_tokens);
        let output = self.completion_tokens.or(self.output_tokens);
        if input.is_none() && output.is_none() {
            return None;
        }
        // Anthropic's `input_tokens` is what the cache had no part in; OpenAI's includes it.
        let cache_read = self.cache_read_input_tokens.unwrap_or(0);
        let cache_written = self.cache_creation_input_tokens.unwrap_or(0);
        let details = |a: Option<Details>, b: Option<Details>| a.or(b).unwrap_or_default();
        let of_input = details(self.prompt_tokens_details, self.input_tokens_details);
        let of_output = details(self.completion_tokens_details, self.output_tokens_details);
        Some(Usage {
            input: (input.unwrap_or(0) + cache_read + cache_written).min(LARGEST),
            output: output.unwrap_or(0),
            cached_input: of_input.cached_tokens.unwrap_or(cache_read),
            reasoning: of_output.reasoning_tokens.unwrap_or(0),
        })
    }
}

/// A count that some servers write as a float, as null or as −1.
fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    struct Count;
    impl<'de> serde::de::Visitor<'de> for Count {
        type Value = Option<u64>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a number of tokens")
        }
        fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
            Ok(Some(value.min(LARGEST)))
        }
        fn visit_i64<E>(self, _negative: i64) -> Result<Self::Value, E> {
            Ok(None)
        }
        fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
            Ok((value >= 0.0).then(|| (value as u64).min(LARGEST)))
        }
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
        fn visit_str<E>(self, _text: &str) -> Result<Self::Value, E> {
            Ok(None)
        }
        fn visit_bool<E>(self, _value: bool) -> Result<Self::Value, E> {
            Ok(None)
        }
        fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            while map.next_entry::<serde::de::IgnoredAny, serde::de::IgnoredAny>()?.is_some() {}
            Ok(None)
        }
        fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            while seq.next_element::<serde::de::IgnoredAny>()?.is_some() {}
            Ok(None)
        }
    }
    deserializer.deserialize_any(Count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Option<Usage> {
        serde_json::from_str::<WireUsage>(json).unwrap().usage()
    }

    #[test]
    fn every_format() {
        assert_eq!(
            read(
                r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,
                "prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":2}}"#
            ),
            Some(Usage { input: 10, output: 5, cached_input: 4, reasoning: 2 })
        );
        assert_eq!(
            read(
                r#"{"input_tokens":10,"output_tokens":5,"input_tokens_details":{"cached_tokens":4},
                "output_tokens_details":{"reasoning_tokens":2}}"#
            ),
            Some(Usage { input: 10, output: 5, cached_input: 4, reasoning: 2 })
        );
        assert_eq!(
            read(
                r#"{"input_tokens":10,"cache_creation_input_tokens":100,"cache_read_input_tokens":1000,"output_tokens":5}"#
            ),
            Some(Usage { input: 1110, output: 5, cached_input: 1000, reasoning: 0 })
        );
        assert_eq!(
            read(r#"{"prompt_tokens":10,"total_tokens":10}"#),
            Some(Usage { input: 10, ..Usage::default() })
        );
    }

    #[test]
    fn odd_values_are_not_believed() {
        assert_eq!(read("{}"), None);
        assert_eq!(read(r#"{"prompt_tokens":null,"completion_tokens":-1}"#), None);
        assert_eq!(
            read(r#"{"prompt_tokens":1e30,"completion_tokens":7.0}"#).map(|u| (u.input, u.output)),
            Some((LARGEST, 7))
        );
        assert_eq!(read(r#"{"prompt_tokens":"12","completion_tokens":[1],"input_tokens":{}}"#), None);
    }

    #[test]
    fn later_reports_replace() {
        let mut all: WireUsage = serde_json::from_str(r#"{"input_tokens":25,"output_tokens":1}"#).unwrap();
        all.update(&serde_json::from_str(r#"{"output_tokens":9}"#).unwrap());
        all.update(&serde_json::from_str(r#"{"output_tokens":15}"#).unwrap());
        assert_eq!(all.usage().map(|u| (u.input, u.output)), Some((25, 15)));
    }
}
