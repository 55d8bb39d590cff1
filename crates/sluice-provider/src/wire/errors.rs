//! The vendors' errors.

use serde_json::{Value, json};

use crate::scenario::ErrorKind;

/// One error in the words of both vendors.
struct Words {
    status: u16,
    openai_type: &'static str,
    openai_code: Option<&'static str>,
    anthropic_type: &'static str,
    message: &'static str,
}

/// The status of an error, by whose API was called.
pub(crate) fn status(kind: ErrorKind, anthropic: bool) -> u16 {
    match kind {
        ErrorKind::Overloaded if !anthropic => 503,
        _ => words(kind).status,
    }
}

/// The error that a bare status stands for.
pub(crate) fn kind_of(status: u16) -> ErrorKind {
    match status {
        401 => ErrorKind::Authentication,
        403 => ErrorKind::Permission,
        404 => ErrorKind::NotFound,
        408 => ErrorKind::Timeout,
        413 => ErrorKind::TooLarge,
        422 => ErrorKind::Unprocessable,
        429 => ErrorKind::RateLimit,
        502 => ErrorKind::BadGateway,
        503 => ErrorKind::Unavailable,
        504 => ErrorKind::GatewayTimeout,
        529 => ErrorKind::Overloaded,
        500.. => ErrorKind::Server,
        _ => ErrorKind::BadRequest,
    }
}

/// OpenAI's form.
pub(crate) fn openai(kind: ErrorKind, message: Option<&str>) -> Value {
    let words = words(kind);
    json!({"error": {
        "message": message.unwrap_or(words.message),
        "type": words.openai_type,
        "param": null,
        "code": words.openai_code,
    }})
}

/// Anthropic's form.
pub(crate) fn anthropic(kind: ErrorKind, message: Option<&str>, seq: u64) -> Value {
    let words = words(kind);
    json!({
        "type": "error",
        "error": {"type": words.anthropic_type, "message": message.unwrap_or(words.message)},
        "request_id": format!("req_{seq:012}"),
    })
}

/// OpenAI's code, for the error event of the Responses API.
pub(crate) fn openai_code(kind: ErrorKind) -> &'static str {
    let words = words(kind);
    words.openai_code.unwrap_or(words.openai_type)
}

/// The usual message.
pub(crate) fn message(kind: ErrorKind) -> &'static str {
    words(kind).message
}

fn words(kind: ErrorKind) -> Words {
    let words = |status, openai_type, openai_code, anthropic_type, message| Words {
        status,
        openai_type,
        openai_code,
        anthropic_type,
        message,
    };
    let invalid = "invalid_request_error";
    match kind {
        ErrorKind::BadRequest => words(400, invalid, None, invalid, "The request is not valid."),
        ErrorKind::ContextLength => words(
            400,
            invalid,
            Some("context_length_exceeded"),
            invalid,
            "prompt is too long: the maximum is 8192 tokens",
        ),
        ErrorKind::Authentication => words(
            401,
            invalid,
            Some("invalid_api_key"),
            "authentication_error",
            "Incorrect API key provided.",
        ),
        ErrorKind::Permission => words(
            403,
            invalid,
            Some("permission_denied"),
            "permission_error",
            "This key may not use this resource.",
        ),
        ErrorKind::NotFound => {
            words(404, invalid, Some("model_not_found"), "not_found_error", "The model does not exist.")
        }
        ErrorKind::Timeout => {
            words(408, "timeout", Some("timeout"), "timeout_error", "The request timed out.")
        }
        ErrorKind::TooLarge => words(413, invalid, None, "request_too_large", "The request is too large."),
        ErrorKind::Unprocessable => words(422, invalid, None, invalid, "The request can't be processed."),
        ErrorKind::RateLimit => words(
            429,
            "requests",
            Some("rate_limit_exceeded"),
            "rate_limit_error",
            "Rate limit reached. Please try again later.",
        ),
        ErrorKind::SpendCap => words(
            429,
            "insufficient_quota",
            Some("insufficient_quota"),
            "rate_limit_error",
            "You exceeded your current quota (enforced_spend_limit_reached), please check your plan and billing details.",
        ),
        ErrorKind::Server => words(500, "server_error", None, "api_error", "The server had an error."),
        ErrorKind::BadGateway => words(502, "server_error", None, "api_error", "Bad gateway."),
        ErrorKind::Unavailable => words(
            503,
            "server_error",
            Some("service_unavailable"),
            "api_error",
            "The service is unavailable.",
        ),
        ErrorKind::GatewayTimeout => {
            words(504, "server_error", Some("timeout"), "timeout_error", "Gateway timeout.")
        }
        ErrorKind::Overloaded => {
            words(529, "server_error", Some("overloaded"), "overloaded_error", "Overloaded")
        }
    }
}
