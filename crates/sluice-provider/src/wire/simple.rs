//! The APIs that generate no tokens: embeddings, models, token counts, and the echo of everything else.

use serde_json::{Value, json};

use crate::request::Ask;
use crate::wire::CREATED;

const MODELS: [&str; 3] = ["gpt-4o", "gpt-4o-mini", "claude-sonnet-4-5"];

/// Embeddings: vectors that depend on their number alone.
pub(crate) fn embeddings(ask: &Ask, input_tokens: u64, report: bool) -> Value {
    let data: Vec<Value> = (0..ask.inputs)
        .map(|index| {
            let vector: Vec<f32> = (0..ask.dimensions).map(|at| ((index + at) % 16) as f32 / 16.0).collect();
            let embedding = if ask.base64 {
                let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
                Value::from(base64(&bytes))
            } else {
                json!(vector)
            };
            json!({"object": "embedding", "index": index, "embedding": embedding})
        })
        .collect();
    let mut answer = json!({"object": "list", "model": ask.model, "data": data});
    if report {
        answer["usage"] = json!({"prompt_tokens": input_tokens, "total_tokens": input_tokens});
    }
    answer
}

/// The list of models, or one of them; none when it isn't on the list.
pub(crate) fn models(path: &str, listed: &[String], anthropic: bool) -> Option<Value> {
    let listed: Vec<&str> =
        if listed.is_empty() { MODELS.to_vec() } else { listed.iter().map(String::as_str).collect() };
    let model = |id: &str| {
        if anthropic {
            json!({"type": "model", "id": id, "display_name": id, "created_at": "2025-10-09T08:53:20Z"})
        } else {
            json!({"id": id, "object": "model", "created": CREATED, "owned_by": "scripted"})
        }
    };
    if let Some((_, id)) = path.split_once("/v1/models/") {
        return listed.contains(&id).then(|| model(id));
    }
    let data: Vec<Value> = listed.iter().map(|id| model(id)).collect();
    Some(if anthropic {
        json!({"data": data, "has_more": false, "first_id": listed.first(), "last_id": listed.last()})
    } else {
        json!({"object": "list", "data": data})
    })
}

/// Standard base64 with padding: what the OpenAI SDK asks for by default.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits =
            group.iter().fold(0_u32, |bits, byte| (bits << 8) | u32::from(*byte)) << (8 * (3 - group.len()));
        for place in 0..4 {
            let index = (bits >> (18 - 6 * place)) & 63;
            text.push(if place <= group.len() { char::from(ALPHABET[index as usize]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_with_padding() {
        assert_eq!(
            ["", "f", "fo", "foo", "foob"].map(|text| base64(text.as_bytes())),
            ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]
        );
    }
}
