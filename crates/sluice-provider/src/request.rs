//! What a request asks for, in one form for all APIs.

use serde::Deserialize;
use serde::de::IgnoredAny;

/// Which API a path belongs to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Api {
    Chat,
    Completions,
    Responses,
    Embeddings,
    Models,
    Messages,
    CountTokens,
    #[default]
    Echo,
}

/// What a request asks for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ask {
    pub(crate) api: Api,
    pub(crate) model: String,
    pub(crate) stream: bool,
    /// The largest of the limits that the request names.
    pub(crate) max_tokens: Option<u64>,
    pub(crate) include_usage: bool,
    /// The names of the tools on offer.
    pub(crate) tools: Vec<String>,
    /// A quarter of the body's bytes, rounded up.
    pub(crate) input_tokens: u64,
    /// Embeddings: how many.
    pub(crate) inputs: usize,
    /// Embeddings: of how many numbers.
    pub(crate) dimensions: usize,
    /// Embeddings: as base64.
    pub(crate) base64: bool,
}

#[derive(Deserialize)]
struct Body {
    model: Option<String>,
    stream: Option<bool>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    max_output_tokens: Option<u64>,
    stream_options: Option<StreamOptions>,
    tools: Option<Vec<Tool>>,
    #[serde(default)]
    input: Inputs,
    dimensions: Option<usize>,
    encoding_format: Option<String>,
}

#[derive(Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// OpenAI's chat nests the name, its responses and Anthropic's messages don't.
#[derive(Deserialize)]
struct Tool {
    name: Option<String>,
    function: Option<Function>,
}

#[derive(Deserialize)]
struct Function {
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(untagged)]
enum Inputs {
    Many(Vec<IgnoredAny>),
    One(IgnoredAny),
    #[default]
    None,
}

impl Api {
    /// By the end of the path, so that one provider can play several endpoints under prefixes.
    pub(crate) fn of(path: &str) -> Self {
        let ends = |end: &str| path.ends_with(end);
        if ends("/chat/completions") {
            Self::Chat
        } else if ends("/v1/completions") || (ends("/completions") && deployment(path).is_some()) {
            Self::Completions
        } else if ends("/v1/responses") {
            Self::Responses
        } else if ends("/embeddings") {
            Self::Embeddings
        } else if ends("/v1/messages/count_tokens") {
            Self::CountTokens
        } else if ends("/v1/messages") {
            Self::Messages
        } else if ends("/v1/models") || path.contains("/v1/models/") {
            Self::Models
        } else {
            Self::Echo
        }
    }

    /// Whether errors have Anthropic's form.
    pub(crate) fn is_anthropic(self) -> bool {
        matches!(self, Self::Messages | Self::CountTokens)
    }

    /// Whether answers consist of tokens.
    pub(crate) fn generates(self) -> bool {
        matches!(self, Self::Chat | Self::Completions | Self::Responses | Self::Messages)
    }

    fn reads_json(self) -> bool {
        !matches!(self, Self::Models | Self::Echo)
    }
}

impl Ask {
    /// Reads a request.
    ///
    /// # Errors
    /// What a provider says about a body that it can't read.
    pub(crate) fn read(path: &str, body: &[u8]) -> Result<Self, String> {
        let api = Api::of(path);
        let input_tokens = (body.len() as u64).div_ceil(4);
        if !api.reads_json() {
            return Ok(Self { api, input_tokens, ..Self::default() });
        }
        let body: Body = serde_json::from_slice(body)
            .map_err(|error| format!("We could not parse the JSON body of your request: {error}"))?;
        let model = body.model.or_else(|| deployment(path).map(str::to_owned));
        let model = model.filter(|model| !model.is_empty()).ok_or("you must provide a model parameter")?;
        Ok(Self {
            api,
            model,
            stream: body.stream.unwrap_or(false),
            max_tokens: [body.max_tokens, body.max_completion_tokens, body.max_output_tokens]
                .into_iter()
                .flatten()
                .max(),
            include_usage: body.stream_options.and_then(|options| options.include_usage).unwrap_or(false),
            tools: body
                .tools
                .unwrap_or_default()
                .into_iter()
                .filter_map(|tool| tool.function.map(|function| function.name).or(tool.name))
                .collect(),
            input_tokens,
            inputs: match body.input {
                // A list of numbers is one input in tokens.
                Inputs::Many(list) => list.len().max(1),
                Inputs::One(_) | Inputs::None => 1,
            },
            dimensions: body.dimensions.unwrap_or(8).min(4096),
            base64: body.encoding_format.as_deref() == Some("base64"),
        })
    }
}

/// Azure names the model in the path.
fn deployment(path: &str) -> Option<&str> {
    path.split_once("/deployments/")?.1.split('/').next()
}

#[cfg(test)]
mod tests {
    use super::{Api, Ask};

    #[test]
    fn paths() {
        for (path, api) in [
            ("/v1/chat/completions", Api::Chat),
            ("/eu/v1/chat/completions", Api::Chat),
            ("/openai/deployments/d/chat/completions", Api::Chat),
            ("/openai/deployments/d/completions", Api::Completions),
            ("/v1/completions", Api::Completions),
            ("/v1/responses", Api::Responses),
            ("/v1/messages", Api::Messages),
            ("/v1/messages/count_tokens", Api::CountTokens),
            ("/v1/embeddings", Api::Embeddings),
            ("/v1/models", Api::Models),
            ("/v1/models/gpt-4o", Api::Models),
            ("/v1/files", Api::Echo),
        ] {
            assert_eq!(Api::of(path), api, "{path}");
        }
    }

    #[test]
    fn reads_what_matters() {
        let body = br#"{"model":"m","stream":true,"max_tokens":5,"max_completion_tokens":9,"messages":[],
            "stream_options":{"include_usage":true},"tools":[{"type":"function","function":{"name":"f"}},{"name":"g"}]}"#;
        let ask = Ask::read("/v1/chat/completions", body).unwrap();
        assert_eq!(
            (ask.model.as_str(), ask.stream, ask.max_tokens, ask.include_usage),
            ("m", true, Some(9), true)
        );
        assert_eq!(ask.tools, ["f", "g"]);
        assert_eq!(ask.input_tokens, body.len().div_ceil(4) as u64);
        assert!(Ask::read("/v1/chat/completions", b"{").unwrap_err().contains("JSON"));
        assert!(Ask::read("/v1/chat/completions", b"{}").unwrap_err().contains("model"));
        assert_eq!(Ask::read("/openai/deployments/d/chat/completions", b"{}").unwrap().model, "d");
    }
}
