//! The scripts of `lua/`, how they are asked, and how their replies are read: the one place that knows.
//!
//! Redis scripts can't share code, so what they share is put behind the first line of each when the program
//! starts. The text never depends on anything else: no source is generated, and each script has one SHA-1.

mod decode;
mod encode;

use std::sync::LazyLock;

pub use decode::{
    Heard, ReplyError, ReplyItem, decode_admit, decode_publication, decode_settle, decode_view,
};
pub use encode::{CHANNEL, Call, Keys, encode_admit, encode_adopt, encode_settle, encode_view};

/// The files of `lua/shared/`, each before those that use it.
const SHARED: [(&str, &str); 6] = [
    ("numbers", include_str!("../../../../lua/shared/numbers.lua")),
    ("settings", include_str!("../../../../lua/shared/settings.lua")),
    ("window", include_str!("../../../../lua/shared/window.lua")),
    ("breaker", include_str!("../../../../lua/shared/breaker.lua")),
    ("reference", include_str!("../../../../lua/shared/reference.lua")),
    ("bucket", include_str!("../../../../lua/shared/bucket.lua")),
];

/// Heads the line that names what a script uses. Every function costs its making in each call, so a script
/// gets no others.
const USES: &str = "-- uses ";

/// One of the scripts, by what it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScriptName {
    Admit,
    Settle,
    View,
    /// In the embedded home alone.
    Adopt,
}

impl ScriptName {
    pub const ALL: [Self; 4] = [Self::Admit, Self::Settle, Self::View, Self::Adopt];
    /// Those that run in Redis.
    pub const SHARED: [Self; 3] = [Self::Admit, Self::Settle, Self::View];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Admit => "admit",
            Self::Settle => "settle",
            Self::View => "view",
            Self::Adopt => "adopt",
        }
    }

    /// The whole text and its SHA-1.
    #[must_use]
    pub fn script(self) -> &'static Script {
        static SCRIPTS: LazyLock<[Script; 4]> = LazyLock::new(|| {
            [
                Script::assemble(include_str!("../../../../lua/admit.lua")),
                Script::assemble(include_str!("../../../../lua/settle.lua")),
                Script::assemble(include_str!("../../../../lua/view.lua")),
                Script::assemble(include_str!("../../../../lua/adopt.lua")),
            ]
        });
        match self {
            Self::Admit => &SCRIPTS[0],
            Self::Settle => &SCRIPTS[1],
            Self::View => &SCRIPTS[2],
            Self::Adopt => &SCRIPTS[3],
        }
    }
}

#[derive(Debug)]
pub struct Script {
    text: String,
    sha1: String,
}

impl Script {
    fn assemble(body: &str) -> Self {
        let (shebang, rest) = body.split_once('\n').unwrap_or((body, ""));
        let mut text = String::with_capacity(32 * 1024);
        text.push_str(shebang);
        text.push('\n');
        let uses = rest.lines().next().and_then(|line| line.strip_prefix(USES)).unwrap_or_default();
        for (name, part) in SHARED {
            if uses.split(' ').any(|used| used == name) {
                push_code(&mut text, part);
            }
        }
        push_code(&mut text, rest);
        let sha1 = redis::Script::new(&text).get_hash().to_owned();
        Self { text, sha1 }
    }

    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    #[must_use]
    pub fn sha1(&self) -> &str {
        &self.sha1
    }
}

/// Comments and indentation stay in the repository.
fn push_code(text: &mut String, part: &str) {
    for line in part.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("--")) {
        text.push_str(line);
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_begins_with_its_shebang_and_differs() {
        let mut seen = std::collections::HashSet::new();
        for name in ScriptName::ALL {
            let script = name.script();
            assert!(script.text().starts_with("#!lua"), "{name:?}");
            assert_eq!(script.sha1().len(), 40);
            assert!(seen.insert(script.sha1().to_owned()), "{name:?}");
        }
        assert!(ScriptName::View.script().text().starts_with("#!lua flags=no-writes\n"));
    }
}
