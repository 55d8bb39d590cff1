//! What is wrong, where, and what to do about it.

use std::borrow::Cow;
use std::fmt;

use serde_json::Value;

/// Longest value that a problem shows, in characters.
const SHOWN: usize = 60;

/// Longest word of a manifest that a message quotes, in characters.
pub(super) const QUOTED: usize = 80;

/// Longest part of a problem's line; a message of our own is shorter, one of a parser may not be.
const PART: usize = 400;

/// At most so many characters of a text, with an ellipsis for the rest.
pub(super) fn cut(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

/// Something that is wrong with a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file's name as it was given.
    pub file: String,
    /// The line of the field, from 1, as far as it is known.
    pub line: Option<usize>,
    /// `kind/name`, as far as it could be read.
    pub object: Option<String>,
    /// The field's path, such as `spec.targets[0].endpoint`; empty: the document itself.
    pub field: String,
    /// The value, shortened; never a secret.
    pub value: Option<String>,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub fix: String,
}

impl Problem {
    /// A problem of a file or document as a whole, to be filled in.
    pub(super) fn of_file(file: &str, line: Option<usize>) -> Self {
        Self {
            file: file.to_owned(),
            line,
            object: None,
            field: String::new(),
            value: None,
            message: String::new(),
            fix: String::new(),
        }
    }
}

/// `file:line: kind/name: field: value: message — fix`, without the parts that are not known.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        for part in
            [self.object.as_deref(), Some(self.field.as_str()), self.value.as_deref()].into_iter().flatten()
        {
            if !part.is_empty() {
                write!(f, ": {}", cut(part, PART))?;
            }
        }
        write!(f, ": {}", cut(&self.message, PART))?;
        if !self.fix.is_empty() {
            write!(f, " — {}", cut(&self.fix, PART))?;
        }
        Ok(())
    }
}

/// A value as a problem may show it: short, on one line, and without anything that looks like a credential.
/// People paste keys into wrong fields, and this output lands in CI logs.
pub(super) fn shown(field: &str, value: &Value) -> Option<String> {
    if !(value.is_string() || value.is_number() || value.is_boolean()) {
        return None;
    }
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if looks_secret(field, &text) {
        return Some("(hidden)".to_owned());
    }
    let text = match text.split_once("://") {
        // userinfo, query and fragment of an URL can carry credentials
        Some((scheme, rest)) => {
            let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
            let hidden = if host.len() < rest.len() { "(hidden)@" } else { "" };
            let end = host.find(['?', '#']).unwrap_or(host.len());
            let tail = if end < host.len() { "…" } else { "" };
            format!("{scheme}://{hidden}{}{tail}", &host[..end])
        }
        None => text,
    };
    let short = cut(&text, SHOWN);
    Some(if value.is_string() { format!("{short:?}") } else { short.into_owned() })
}

fn looks_secret(field: &str, text: &str) -> bool {
    let leaf = field.rsplit('.').next().unwrap_or(field).to_ascii_lowercase();
    let named = ["password", "secret", "apikey", "api_key", "api-key", "authorization", "bearer"]
        .iter()
        .any(|word| leaf.contains(word))
        || leaf == "token"
        || ["accesstoken", "authtoken", "_token", "-token"].iter().any(|word| leaf.ends_with(word));
    let in_credential = field.contains(".credential") && leaf != "type";
    let prefixed = ["sk-", "sk_", "Bearer ", "eyJ", "AIza", "xai-", "gsk_"]
        .iter()
        .any(|prefix| text.starts_with(prefix));
    named || in_credential || prefixed
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn credentials_are_not_shown() {
        for (field, value) in [
            ("spec.targets[0].apiKey", "abcdef"),
            ("spec.targets[0].credential.secretRef.key", "abcdef"),
            ("spec.models[0]", "sk-abcdef"),
            ("spec.targets[0].endpoint", "https://user:abcdef@host/v1"),
            ("spec.targets[0].endpoint", "https://host/v1?key=abcdef"),
            ("spec.targets[0].endpoint", "https://host/v1#abcdef"),
        ] {
            let text = shown(field, &json!(value)).unwrap();
            assert!(!text.contains("abcdef"), "{field}: {text}");
        }
    }

    #[test]
    fn everything_else_is_shown_short_and_on_one_line() {
        assert_eq!(shown("spec.quota.tokensPerMinute", &json!("12")).as_deref(), Some("\"12\""));
        assert_eq!(shown("spec.quota.tokensPerMinute", &json!(-1)).as_deref(), Some("-1"));
        assert_eq!(shown("a", &json!("x\ny")).as_deref(), Some("\"x\\ny\""));
        let long = shown("a", &json!("é".repeat(300_000))).unwrap();
        assert_eq!(long.chars().count(), SHOWN + 3);
        assert_eq!(shown("a", &json!({ "b": "c" })), None);
    }
}
