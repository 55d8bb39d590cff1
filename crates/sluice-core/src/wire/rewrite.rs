//! The two edits a request's body may get. Everything outside the edited values stays byte for byte, so
//! that a provider sees what the client wrote: number formats, order, white space, unknown members.

use std::ops::Range;

use bytes::Bytes;

use super::{Operation, RequestFacts};

/// Replacements in a body, applied in one copy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Edits {
    edits: Vec<(Range<usize>, Vec<u8>)>,
}

impl Edits {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    /// Both sets of edits; they must not overlap.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.edits.extend(other.edits);
        self.edits.sort_by_key(|(span, _)| span.start);
        self
    }

    /// The edited body; the body itself when there is nothing to edit.
    #[must_use]
    pub fn apply(&self, body: &Bytes) -> Bytes {
        if self.edits.is_empty() {
            return body.clone();
        }
        let added: usize = self.edits.iter().map(|(_, text)| text.len()).sum();
        let mut out = Vec::with_capacity(body.len() + added);
        let mut at = 0;
        for (span, text) in &self.edits {
            out.extend_from_slice(&body[at..span.start]);
            out.extend_from_slice(text);
            at = span.end;
        }
        out.extend_from_slice(&body[at..]);
        out.into()
    }
}

/// Puts another model's name in place of the one asked for. No edit when they are the same.
#[must_use]
pub fn replace_model(facts: &RequestFacts, model: &str) -> Edits {
    if facts.model == model || facts.model_span.is_empty() {
        return Edits::default();
    }
    let quoted = serde_json::Value::from(model).to_string().into_bytes();
    Edits { edits: vec![(facts.model_span.clone(), quoted)] }
}

/// Asks for the usage chunk on behalf of accounting, when the operation needs asking and the client did not
/// ask; the chunk is then to be hidden from it. Other stream options stay.
#[must_use]
pub fn ask_for_usage(operation: Operation, facts: &RequestFacts, body: &[u8]) -> Edits {
    if !operation.usage_on_request() || !facts.stream || facts.include_usage {
        return Edits::default();
    }
    let Some(span) = facts.stream_options_span.clone() else {
        let Some(brace) = body.iter().position(|byte| *byte == b'{') else { return Edits::default() };
        let member = br#""stream_options":{"include_usage":true},"#.to_vec();
        return Edits { edits: vec![(brace + 1..brace + 1, member)] };
    };
    let options: serde_json::Value = serde_json::from_slice(&body[span.clone()]).unwrap_or_default();
    let mut options = match options {
        serde_json::Value::Object(options) => options,
        serde_json::Value::Null => serde_json::Map::new(),
        // Not for Sluice to mend: the provider will refuse it.
        _ => return Edits::default(),
    };
    options.insert("include_usage".to_owned(), true.into());
    Edits { edits: vec![(span, serde_json::Value::Object(options).to_string().into_bytes())] }
}
