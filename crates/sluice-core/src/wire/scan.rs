//! Finds members of a JSON document without building anything.
//!
//! A stream has thousands of events and accounting needs two or three facts of each. A search for the bytes
//! `"usage"` would be fooled by an answer that talks about usage; a full parse costs more than the rest of the
//! relay. So: walk the text once, skipping strings whole (which is what makes text unable to fool it), count
//! brackets, and hand out each member's key with the text from its value on. Only values that are accounted
//! are then parsed.
//!
//! The document is not checked: of broken JSON it hands out what it finds before the break. A key that is
//! written with escapes (`"us\u0061ge"`) is compared as written; no provider writes one.

use std::ops::ControlFlow;

use memchr::memchr2;

/// One member of an object.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member<'a> {
    /// 1 in the outermost object; arrays count too: `choices[0].delta.content` is at 4.
    pub(super) depth: u32,
    pub(super) key: &'a [u8],
    /// The document from the first byte of the value on.
    pub(super) value: Value<'a>,
}

/// A document from the first byte of a value on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Value<'a>(&'a [u8]);

impl<'a> Value<'a> {
    /// A string with at least one character.
    pub(super) fn is_text(self) -> bool {
        matches!(self.0, [b'"', second, ..] if *second != b'"')
    }

    pub(super) fn is_object(self) -> bool {
        self.0.first() == Some(&b'{')
    }

    pub(super) fn is_null(self) -> bool {
        self.0.first() == Some(&b'n')
    }

    /// An array with at least one element.
    pub(super) fn is_filled_array(self) -> bool {
        self.array_element().is_some_and(|byte| byte != b']')
    }

    pub(super) fn is_empty_array(self) -> bool {
        self.array_element() == Some(b']')
    }

    fn array_element(self) -> Option<u8> {
        let rest = self.0.strip_prefix(b"[")?;
        rest.get(skip_space(rest, 0)).copied()
    }

    /// The characters of a string as written, escapes and all.
    pub(super) fn string(self) -> Option<&'a [u8]> {
        let end = string_end(self.0, 0)?;
        self.0.get(1..end - 1)
    }

    /// Parses the one value that begins here.
    pub(super) fn parse<T: serde::Deserialize<'a>>(self) -> Option<T> {
        serde_json::Deserializer::from_slice(self.0).into_iter::<T>().next()?.ok()
    }
}

/// Calls `on` for each member in the order of the text until it breaks.
pub(super) fn members<'a>(json: &'a [u8], mut on: impl FnMut(Member<'a>) -> ControlFlow<()>) {
    let mut depth = 0_u32;
    let mut at = 0;
    while let Some(&byte) = json.get(at) {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let Some(end) = string_end(json, at) else { return };
                let colon = skip_space(json, end);
                if json.get(colon) != Some(&b':') {
                    at = colon;
                    continue;
                }
                let value = skip_space(json, colon + 1);
                let member = Member { depth, key: &json[at + 1..end - 1], value: Value(&json[value..]) };
                if on(member).is_break() {
                    return;
                }
                at = value;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
}

/// The offset behind the closing quote of the string that begins at `start`.
fn string_end(json: &[u8], start: usize) -> Option<usize> {
    if json.get(start) != Some(&b'"') {
        return None;
    }
    let mut at = start + 1;
    // Most strings are short, and for those a plain loop beats the set-up of a vector search.
    let near = json.len().min(at + 24);
    loop {
        while at < near && !matches!(json[at], b'"' | b'\\') {
            at += 1;
        }
        if at >= near {
            at += memchr2(b'"', b'\\', json.get(at..)?)?;
        }
        if json[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

fn skip_space(json: &[u8], mut at: usize) -> usize {
    while matches!(json.get(at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(json: &str) -> Vec<(u32, String, bool)> {
        let mut all = Vec::new();
        members(json.as_bytes(), |m| {
            all.push((m.depth, String::from_utf8_lossy(m.key).into_owned(), m.value.is_text()));
            ControlFlow::Continue(())
        });
        all
    }

    #[test]
    fn text_cannot_fool_it() {
        let json = r#"{"content":"\"usage\":{\"a\":1},\\","x":"usage", "usage" : null}"#;
        assert_eq!(
            found(json),
            [(1, "content".into(), true), (1, "x".into(), true), (1, "usage".into(), false)]
        );
    }

    #[test]
    fn counts_depth_through_arrays() {
        let json = r#"{"choices":[{"index":0,"delta":{"content":""}}],"usage":{"a":{}}}"#;
        let depth = |key: &str| found(json).into_iter().find(|(_, k, _)| k == key).map(|(d, ..)| d);
        assert_eq!(depth("choices"), Some(1));
        assert_eq!(depth("delta"), Some(3));
        assert_eq!(depth("content"), Some(4));
        assert_eq!(depth("usage"), Some(1));
    }

    #[test]
    fn broken_text_ends_it_quietly() {
        for json in ["", "{", "{\"", "{\"a", "{\"a\"", "{\"a\":", "{\"a\\", "}}]]", "{\"a\":\"b\\\""] {
            let _ = found(json);
        }
    }

    #[test]
    fn parses_one_value_and_leaves_the_rest() {
        let mut usage = None;
        members(br#"{"usage":{"n":3},"b":1}"#, |m| {
            usage = m.value.parse::<std::collections::BTreeMap<String, u64>>();
            ControlFlow::Break(())
        });
        assert_eq!(usage.unwrap()["n"], 3);
    }
}
