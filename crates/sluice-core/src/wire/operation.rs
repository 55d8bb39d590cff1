//! Which call of a provider's API a request is.

use std::borrow::Cow;

use crate::policy::WireFormat;

/// A call that Sluice knows. The path decides; clients write it with or without `/v1`, as their base URL has
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `POST /v1/chat/completions`
    ChatCompletions,
    /// `POST /v1/completions`
    Completions,
    /// `POST /v1/responses`
    Responses,
    /// `POST /v1/embeddings`
    Embeddings,
    /// `GET /v1/models` and `GET /v1/models/{id}`, in both formats
    Models,
    /// `POST /v1/messages`
    Messages,
    /// `POST /v1/messages/count_tokens`
    CountTokens,
    /// Anything else: relayed as it is where the route says so, refused otherwise.
    Other,
}

impl Operation {
    /// The operation of a method and a path without its query.
    #[must_use]
    pub fn of(method: &str, path: &str) -> Self {
        let takes = |operation: &Self| operation.methods().split(", ").any(|one| one == method);
        Self::at(path).filter(takes).unwrap_or(Self::Other)
    }

    /// The operation at a path without its query, whatever the method; one slash at the end changes nothing.
    /// `None`: Sluice knows none there.
    #[must_use]
    pub fn at(path: &str) -> Option<Self> {
        Some(match unversioned(path) {
            "/chat/completions" => Self::ChatCompletions,
            "/completions" => Self::Completions,
            "/responses" => Self::Responses,
            "/embeddings" => Self::Embeddings,
            "/models" => Self::Models,
            "/messages" => Self::Messages,
            "/messages/count_tokens" => Self::CountTokens,
            _ if model_id(path).is_some() => Self::Models,
            _ => return None,
        })
    }

    /// The methods of an operation, as the header `Allow` writes them.
    #[must_use]
    pub const fn methods(self) -> &'static str {
        match self {
            Self::Models => "GET, HEAD",
            Self::Other => "",
            _ => "POST",
        }
    }

    /// The format a client of this call speaks; `None` where the path does not tell (the models list and
    /// unknown paths: Anthropic's clients send `anthropic-version`).
    #[must_use]
    pub const fn format(self) -> Option<WireFormat> {
        match self {
            Self::ChatCompletions | Self::Completions | Self::Responses | Self::Embeddings => {
                Some(WireFormat::OpenAi)
            }
            Self::Messages | Self::CountTokens => Some(WireFormat::Anthropic),
            Self::Models | Self::Other => None,
        }
    }

    /// Whether the body names a model, so that a route can be found by it.
    #[must_use]
    pub const fn names_model(self) -> bool {
        !matches!(self, Self::Models | Self::Other)
    }

    /// Whether the answer has output tokens.
    #[must_use]
    pub const fn generates(self) -> bool {
        matches!(self, Self::ChatCompletions | Self::Completions | Self::Responses | Self::Messages)
    }

    /// Whether the provider charges tokens for it.
    #[must_use]
    pub const fn charges(self) -> bool {
        self.generates() || matches!(self, Self::Embeddings)
    }

    /// Whether a stream of it reports usage only when asked (`stream_options.include_usage`).
    #[must_use]
    pub const fn usage_on_request(self) -> bool {
        matches!(self, Self::ChatCompletions | Self::Completions)
    }

    /// `gen_ai.operation.name` of OpenTelemetry's semantic conventions.
    #[must_use]
    pub const fn gen_ai_name(self) -> &'static str {
        match self {
            Self::ChatCompletions | Self::Responses | Self::Messages => "chat",
            Self::Completions => "text_completion",
            Self::Embeddings => "embeddings",
            Self::Models => "list_models",
            Self::CountTokens => "count_tokens",
            Self::Other => "other",
        }
    }
}

/// Without a slash at the end and without `/v1` at the beginning.
fn unversioned(path: &str) -> &str {
    let path = path.strip_suffix('/').unwrap_or(path);
    path.strip_prefix("/v1").filter(|rest| rest.starts_with('/')).unwrap_or(path)
}

/// The model that `/v1/models/{id}` asks for, percent-decoded; names with slashes come either way.
#[must_use]
pub fn model_id(path: &str) -> Option<Cow<'_, str>> {
    let id = unversioned(path).strip_prefix("/models/").filter(|id| !id.is_empty())?;
    Some(percent_encoding::percent_decode_str(id).decode_utf8_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_and_without_version() {
        for (method, path, operation) in [
            ("POST", "/v1/chat/completions", Operation::ChatCompletions),
            ("POST", "/chat/completions", Operation::ChatCompletions),
            ("POST", "/v1/chat/completions/", Operation::ChatCompletions),
            ("POST", "/v1/completions", Operation::Completions),
            ("POST", "/v1/responses", Operation::Responses),
            ("POST", "/v1/embeddings", Operation::Embeddings),
            ("GET", "/v1/models", Operation::Models),
            ("GET", "/v1/models/", Operation::Models),
            ("HEAD", "/v1/models", Operation::Models),
            ("GET", "/v1/models/gpt-4o", Operation::Models),
            ("GET", "/v1/models//", Operation::Other),
            ("GET", "/v1/modelsx", Operation::Other),
            ("DELETE", "/v1/models/gpt-4o", Operation::Other),
            ("POST", "/v1/chat/completions//", Operation::Other),
            ("post", "/v1/messages", Operation::Other),
            ("POST", "/v1/messages", Operation::Messages),
            ("POST", "/v1/messages/count_tokens", Operation::CountTokens),
            ("GET", "/v1/chat/completions", Operation::Other),
            ("POST", "/v1chat/completions", Operation::Other),
            ("POST", "/v1/v1/messages", Operation::Other),
            ("POST", "/v1/responses/resp_1/cancel", Operation::Other),
            ("POST", "/", Operation::Other),
            ("POST", "", Operation::Other),
        ] {
            assert_eq!(Operation::of(method, path), operation, "{method} {path}");
        }
    }

    #[test]
    fn a_models_id_is_decoded() {
        for (path, id) in [
            ("/v1/models/gpt-4o", Some("gpt-4o")),
            ("/models/gpt-4o/", Some("gpt-4o")),
            ("/v1/models/org/name", Some("org/name")),
            ("/v1/models/org%2Fname", Some("org/name")),
            ("/v1/models/a%20b%3Acloud", Some("a b:cloud")),
            ("/v1/models/50%", Some("50%")),
            ("/v1/models/%ff", Some("\u{fffd}")),
            ("/v1/models", None),
            ("/v1/models/", None),
            ("/v1/messages/x", None),
        ] {
            assert_eq!(model_id(path).as_deref(), id, "{path}");
        }
    }

    #[test]
    fn a_known_path_says_its_methods() {
        assert_eq!(Operation::at("/v1/messages/").map(Operation::methods), Some("POST"));
        assert_eq!(Operation::at("/v1/models/x").map(Operation::methods), Some("GET, HEAD"));
        assert_eq!(Operation::at("/v1/files"), None);
    }
}
