//! What Sluice itself answers: errors and the list of models, in the client's wire format.
//!
//! The shapes are those that the official SDKs turn into their typed exceptions. Both choose the exception by
//! the HTTP status; inside a stream the status is 200 long since, so
//! - OpenAI's SDKs raise `APIError` for any event whose data has a non-empty `error`. That holds for
//!   Responses as well, whose own error event has `code` and `message` outermost: the event made here has
//!   both, so that typed readers find the one and the SDK's check finds the other;
//! - Anthropic's SDKs raise for `event: error` and read `error.type`.

use bytes::Bytes;
use serde_json::{Value, json};

use super::Operation;
use crate::policy::WireFormat;

/// An error in words.
#[derive(Debug, Clone)]
pub struct ErrorText<'a> {
    /// `error.type`, in the format's own vocabulary.
    pub kind: &'a str,
    /// `error.code` (OpenAI); Anthropic has no codes, there it goes into `sluice.code`.
    pub code: &'a str,
    pub message: &'a str,
    /// The evidence, as the member `sluice` of the error; `Null`: none.
    pub evidence: Value,
}

/// The body of an error answer.
#[must_use]
pub fn error_body(format: WireFormat, error: &ErrorText<'_>) -> Bytes {
    json_bytes(&match format {
        WireFormat::OpenAi => json!({ "error": error_object(format, error) }),
        WireFormat::Anthropic => json!({ "type": "error", "error": error_object(format, error) }),
    })
}

/// The event that ends a stream which cannot go on. The caller sends a blank line first when the relayed
/// bytes stop inside an event.
#[must_use]
pub fn stream_error(operation: Operation, error: &ErrorText<'_>) -> Bytes {
    match operation {
        Operation::Messages | Operation::CountTokens => {
            let data = json!({ "type": "error", "error": error_object(WireFormat::Anthropic, error) });
            frame(Some("error"), &data)
        }
        Operation::Responses => {
            let mut data = json!({
                "type": "error",
                "code": error.code,
                "message": error.message,
                "param": null,
                "sequence_number": 0,
            });
            data["error"] = error_object(WireFormat::OpenAi, error);
            frame(Some("error"), &data)
        }
        _ => frame(None, &json!({ "error": error_object(WireFormat::OpenAi, error) })),
    }
}

fn error_object(format: WireFormat, error: &ErrorText<'_>) -> Value {
    let mut object = match format {
        WireFormat::OpenAi => {
            json!({ "message": error.message, "type": error.kind, "param": null, "code": error.code })
        }
        WireFormat::Anthropic => json!({ "type": error.kind, "message": error.message }),
    };
    if !error.evidence.is_null() {
        object["sluice"] = error.evidence.clone();
    }
    object
}

/// The answer to `GET /v1/models`: the names that clients may ask for.
#[must_use]
pub fn models_body<'a>(format: WireFormat, names: impl IntoIterator<Item = &'a str>) -> Bytes {
    let names: Vec<&str> = names.into_iter().collect();
    let data: Vec<Value> = names.iter().map(|name| model_object(format, name)).collect();
    json_bytes(&match format {
        WireFormat::OpenAi => json!({ "object": "list", "data": data }),
        WireFormat::Anthropic => {
            json!({ "data": data, "has_more": false, "first_id": names.first(), "last_id": names.last() })
        }
    })
}

/// The answer to `GET /v1/models/{id}`.
#[must_use]
pub fn model_body(format: WireFormat, name: &str) -> Bytes {
    json_bytes(&model_object(format, name))
}

fn model_object(format: WireFormat, name: &str) -> Value {
    match format {
        WireFormat::OpenAi => json!({ "id": name, "object": "model", "created": 0, "owned_by": "sluice" }),
        WireFormat::Anthropic => {
            json!({ "type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z" })
        }
    }
}

pub(super) fn json_bytes(value: &Value) -> Bytes {
    value.to_string().into()
}

/// One server-sent event. JSON has no raw line ends, so one `data` line holds it.
pub(super) fn frame(event: Option<&str>, data: &Value) -> Bytes {
    event
        .map_or_else(|| format!("data: {data}\n\n"), |event| format!("event: {event}\ndata: {data}\n\n"))
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sse::{Decoded, Decoder};
    use crate::wire::StreamReader;

    const ERROR: ErrorText<'_> = ErrorText {
        kind: "overloaded_error",
        code: "cut",
        message: "a \"quoted\"\nline",
        evidence: Value::Null,
    };

    #[test]
    fn bodies_have_the_formats_shape() {
        let openai: Value = serde_json::from_slice(&error_body(WireFormat::OpenAi, &ERROR)).unwrap();
        assert_eq!(openai["error"]["type"], "overloaded_error");
        assert_eq!(openai["error"]["code"], "cut");
        assert!(openai["error"].get("sluice").is_none());
        let error = ErrorText { evidence: json!({ "stage": "queue" }), ..ERROR };
        let anthropic: Value = serde_json::from_slice(&error_body(WireFormat::Anthropic, &error)).unwrap();
        assert_eq!(anthropic["type"], "error");
        assert_eq!(anthropic["error"]["type"], "overloaded_error");
        assert_eq!(anthropic["error"]["sluice"]["stage"], "queue");
    }

    #[test]
    fn our_own_reader_sees_the_error_event() {
        for operation in
            [Operation::ChatCompletions, Operation::Completions, Operation::Responses, Operation::Messages]
        {
            let mut decoder = Decoder::new(1 << 20);
            let mut reader = StreamReader::new(operation);
            let mut errors = 0;
            decoder.push(&stream_error(operation, &ERROR), |decoded| {
                let Decoded::Event(event) = decoded else { panic!("{decoded:?}") };
                errors += u32::from(reader.read(event).error.is_some());
                let data: Value = serde_json::from_slice(event.data).unwrap();
                assert!(data["error"].is_object(), "the SDK's check");
            });
            assert_eq!(errors, 1, "{operation:?}");
        }
    }

    #[test]
    fn models_in_both_formats() {
        let openai: Value = serde_json::from_slice(&models_body(WireFormat::OpenAi, ["a", "b"])).unwrap();
        assert_eq!(openai["data"][1]["id"], "b");
        let none: Value = serde_json::from_slice(&models_body(WireFormat::Anthropic, [])).unwrap();
        assert_eq!(none["first_id"], Value::Null);
    }
}
