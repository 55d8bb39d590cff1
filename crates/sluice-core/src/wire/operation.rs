//! Which call of a provider's API a request is.

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
    /// `GET /v1/models`, in both formats
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
        let path = path.strip_suffix('/').unwrap_or(path);
        let path = path.strip_prefix("/v1").filter(|rest| rest.starts_with('/')).unwrap_or(path);
        match (method, path) {
            ("POST", "/chat/completions") => Self::ChatCompletions,
            ("POST", "/completions") => Self::Completions,
            ("POST", "/responses") => Self::Responses,
            ("POST", "/embeddings") => Self::Embeddings,
            ("GET", "/models") => Self::Models,
            ("POST", "/messages") => Self::Messages,
            ("POST", "/messages/count_tokens") => Self::CountTokens,
            _ => Self::Other,
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
}
