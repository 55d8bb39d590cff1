//! JSON strings, written without a detour where nothing has to be escaped.

use std::borrow::Cow;

/// The text as a JSON string, without the quotes.
pub(crate) fn escape(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\') {
        return Cow::Borrowed(text);
    }
    let quoted = serde_json::Value::from(text).to_string();
    Cow::Owned(quoted[1..quoted.len() - 1].to_owned())
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn escapes_what_json_must() {
        assert_eq!(escape("gate 水"), "gate 水");
        assert_eq!(escape("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
