//! Facts of answers that are not streamed, and of error bodies.

use serde::Deserialize;
use serde_json::Value as Json;

use super::scan::Value;
use super::usage::WireUsage;
use super::{Operation, Usage};

/// Longest error type or code that is kept, in characters.
const WORD_MAX: usize = 64;

/// What a body says besides its text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AnswerFacts {
    pub usage: Option<Usage>,
    pub error: Option<ProviderError>,
    /// Nothing, or nothing but white space; or a generated answer without any choice.
    pub empty: bool,
    /// Something else than the JSON that is due: a proxy's HTML page, cut-off or broken JSON.
    pub not_json: bool,
}

/// An error that a provider reported, without its message, which may quote the prompt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProviderError {
    /// The error's `type`, as written, such as `overloaded_error`.
    pub kind: Option<Box<str>>,
    /// The error's `code`, as written, such as `insufficient_quota`.
    pub code: Option<Box<str>>,
    /// The HTTP status that the type or code stands for; 500 for unknown ones, as nobody reports an error for
    /// nothing.
    pub status: u16,
}

impl ProviderError {
    pub(super) fn of_code(code: Option<&[u8]>) -> Self {
        let code = code.map(|bytes| word(&String::from_utf8_lossy(bytes)));
        Self { kind: None, status: status_of(None, code.as_deref()), code }
    }

    fn of_json(error: &Json) -> Option<Self> {
        let text = |name: &str| match error.get(name) {
            Some(Json::String(text)) => Some(word(text)),
            Some(Json::Number(number)) => Some(word(&number.to_string())),
            _ => None,
        };
        match error {
            Json::Object(_) => {
                let (kind, code) = (text("type"), text("code"));
                Some(Self { status: status_of(kind.as_deref(), code.as_deref()), kind, code })
            }
            // `{"error": "model not found"}`: a message alone.
            Json::String(_) => Some(Self { kind: None, code: None, status: 500 }),
            _ => None,
        }
    }
}

fn word(text: &str) -> Box<str> {
    text.chars().take(WORD_MAX).collect()
}

/// The status that an error inside a 200 would have had, by the formats' own tables.
fn status_of(kind: Option<&str>, code: Option<&str>) -> u16 {
    if let Some(status) = code.and_then(|code| code.parse().ok()).filter(|status| (400..600).contains(status))
    {
        return status;
    }
    [code, kind].into_iter().flatten().find_map(known_status).unwrap_or(500)
}

fn known_status(word: &str) -> Option<u16> {
    Some(match word {
        "invalid_request_error"
        | "invalid_prompt"
        | "context_length_exceeded"
        | "BadRequestError"
        | "content_filter"
        | "content_policy_violation" => 400,
        "authentication_error" | "invalid_api_key" => 401,
        "billing_error" => 402,
        "permission_error" | "permission_denied" => 403,
        "not_found_error" | "model_not_found" => 404,
        "request_too_large" => 413,
        "rate_limit_error"
        | "rate_limit_exceeded"
        | "tokens"
        | "requests"
        | "insufficient_quota"
        | "too_many_requests" => 429,
        "api_error" | "server_error" | "internal_error" => 500,
        "service_unavailable" | "engine_overloaded" => 503,
        "timeout_error" | "timeout" => 504,
        "overloaded_error" | "overloaded" => 529,
        _ => return None,
    })
}

/// The `error` member of a streamed event; `null`, `false` and the like are none.
pub(super) fn error_member(value: Value<'_>) -> Option<ProviderError> {
    if value.is_null() {
        return None;
    }
    if let Some(error) = value.parse::<Json>() {
        return ProviderError::of_json(&error);
    }
    // Cut off or broken, but an object: the error is certain, its type is not.
    value.is_object().then(|| ProviderError::of_code(None))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Body {
    // Odd counts must not make the whole answer unreadable.
    usage: Option<Json>,
    error: Option<Json>,
    status: Option<Json>,
    choices: Option<Elements>,
}

/// An array of which only its being empty matters.
#[derive(Debug)]
struct Elements {
    any: bool,
}

impl<'de> Deserialize<'de> for Elements {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Elements;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an array")
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Elements, A::Error> {
                let mut any = false;
                while seq.next_element::<serde::de::IgnoredAny>()?.is_some() {
                    any = true;
                }
                Ok(Elements { any })
            }
        }
        deserializer.deserialize_seq(Visitor)
    }
}

/// Reads an answer that is not streamed, or the body of an error.
///
/// `content_type` is the header's value. `empty` and `not_json` are told for a success of an operation that
/// Sluice knows only: the table calls both a failure of the provider.
#[must_use]
pub fn read_answer(
    operation: Operation,
    status: u16,
    content_type: Option<&str>,
    body: &[u8],
) -> AnswerFacts {
    let success = (200..300).contains(&status) && operation != Operation::Other;
    let text = body.trim_ascii();
    if text.is_empty() {
        return AnswerFacts { empty: success, ..AnswerFacts::default() };
    }
    let html =
        text[0] == b'<' || content_type.is_some_and(|value| value.trim_start().starts_with("text/html"));
    let parsed = if html { None } else { serde_json::from_slice::<Body>(text).ok() };
    let Some(parsed) = parsed else {
        return AnswerFacts { not_json: success, ..AnswerFacts::default() };
    };
    let error = parsed.error.as_ref().and_then(ProviderError::of_json);
    let failed = operation == Operation::Responses && parsed.status.as_ref() == Some(&Json::from("failed"));
    let error = error.or_else(|| failed.then(|| ProviderError::of_code(None)));
    let no_choice = operation.usage_on_request() && !parsed.choices.is_some_and(|choices| choices.any);
    AnswerFacts {
        usage: parsed
            .usage
            .and_then(|usage| WireUsage::deserialize(usage).ok())
            .and_then(|usage| usage.usage()),
        empty: success && error.is_none() && no_choice,
        error,
        not_json: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(body: &str) -> AnswerFacts {
        read_answer(Operation::ChatCompletions, 200, Some("application/json"), body.as_bytes())
    }

    #[test]
    fn usage_of_a_plain_answer() {
        let facts = chat(
            r#"{"id":"x","choices":[{"message":{"content":"\"error\": \"usage\""}}],
            "usage":{"prompt_tokens":3,"completion_tokens":4}}"#,
        );
        assert_eq!(facts.usage.map(Usage::total), Some(7));
        assert!(facts.error.is_none() && !facts.empty && !facts.not_json);
    }

    #[test]
    fn empty_html_and_broken() {
        assert!(chat("").empty);
        assert!(chat(" \r\n").empty);
        assert!(chat(r#"{"choices":[]}"#).empty);
        assert!(chat("<!doctype html><title>502</title>").not_json);
        assert!(chat(r#"{"choices":[{"mess"#).not_json);
        assert!(chat("[]").not_json || chat("[]").empty);
        let html = read_answer(Operation::Messages, 200, Some("text/html; charset=utf-8"), b"hello");
        assert!(html.not_json);
        // Errors may have any body.
        assert_eq!(read_answer(Operation::Messages, 502, None, b"<html>"), AnswerFacts::default());
        assert_eq!(read_answer(Operation::Other, 200, None, b"plain"), AnswerFacts::default());
    }

    #[test]
    fn errors_of_every_shape() {
        for (body, kind, code, status) in [
            (
                r#"{"error":{"type":"insufficient_quota","code":"insufficient_quota","message":"m"}}"#,
                "insufficient_quota",
                "insufficient_quota",
                429,
            ),
            (
                r#"{"type":"error","error":{"type":"overloaded_error","message":"m"}}"#,
                "overloaded_error",
                "",
                529,
            ),
            (
                r#"{"error":{"message":"m","type":"BadRequestError","code":400}}"#,
                "BadRequestError",
                "400",
                400,
            ),
            (
                r#"{"error":{"type":"tokens","code":"rate_limit_exceeded"}}"#,
                "tokens",
                "rate_limit_exceeded",
                429,
            ),
            (r#"{"error":{"type":"what","code":null}}"#, "what", "", 500),
            (r#"{"error":"no such model"}"#, "", "", 500),
        ] {
            let error = chat(body).error.unwrap();
            assert_eq!(error.kind.as_deref().unwrap_or(""), kind, "{body}");
            assert_eq!(error.code.as_deref().unwrap_or(""), code, "{body}");
            assert_eq!(error.status, status, "{body}");
        }
        assert!(chat(r#"{"error":null,"choices":[{}]}"#).error.is_none());
    }

    #[test]
    fn a_failed_response_is_an_error() {
        let facts = read_answer(
            Operation::Responses,
            200,
            None,
            br#"{"status":"failed","error":{"code":"server_error","message":"m"},"usage":null}"#,
        );
        assert_eq!(facts.error.map(|error| error.status), Some(500));
    }

    #[test]
    fn a_long_code_is_cut() {
        let body = format!(r#"{{"error":{{"code":"{}"}}}}"#, "x".repeat(500));
        assert_eq!(chat(&body).error.unwrap().code.unwrap().len(), WORD_MAX);
    }
}
