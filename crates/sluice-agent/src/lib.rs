//! The data plane: a streaming proxy for model APIs
