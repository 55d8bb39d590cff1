//! The scripts of `lua/`, how they are asked, and how their replies are read: the one place that knows.
//!
//! Redis scripts can't share code, so what they share is put into each, where it says so, when the program starts.
//! The text never depends on anything else: no source is generated, and each script has one SHA-1.

mod decode;
mod encode;

use std::sync::LazyLock;

pub use decode::{
    Heard, ReplyError, ReplyItem, decode_admit, decode_publication, decode_settle, decode_view,
};
pub use encode::{CHANNEL, Call, Keys, encode_admit, encode_adopt, encode_settle, encode_view};

/// The files of `lua/shared/`.
const SHARED: [(&str, &str); 14] = [
    ("bucket", include_str!("../../../../lua/shared/bucket.lua")),
    ("count_window", include_str!("../../../../lua/shared/count_window.lua")),
    ("lifetime", include_str!("../../../../lua/shared/lifetime.lua")),
    ("numbers", include_str!("../../../../lua/shared/numbers.lua")),
    ("own", include_str!("../../../../lua/shared/own.lua")),
    ("permits", include_str!("../../../../lua/shared/permits.lua")),
    ("publish", include_str!("../../../../lua/shared/publish.lua")),
    ("pushback", include_str!("../../../../lua/shared/pushback.lua")),
    ("reference", include_str!("../../../../lua/shared/reference.lua")),
    ("reshaped", include_str!("../../../../lua/shared/reshaped.lua")),
    ("settings", include_str!("../../../../lua/shared/settings.lua")),
    ("state", include_str!("../../../../lua/shared/state.lua")),
    ("time_window", include_str!("../../../../lua/shared/time_window.lua")),
    ("wait", include_str!("../../../../lua/shared/wait.lua")),
];

/// Heads a line that names what a script, or one block of it, uses: those files stand in its place, also in a shared
/// file. Every function costs its making each time its line is passed, so what is rarely needed stands where it is.
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
    for line in part.lines().map(str::trim) {
        if let Some(uses) = line.strip_prefix(USES) {
            for (_, part) in uses.split(' ').filter_map(|used| SHARED.iter().find(|(name, _)| *name == used))
            {
                push_code(text, part);
            }
        } else if !line.is_empty() && !line.starts_with("--") {
            text.push_str(line);
            text.push('\n');
        }
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
    #[test]
    fn whatever_a_file_uses_is_there() {
        let bodies = [
            include_str!("../../../../lua/admit.lua"),
            include_str!("../../../../lua/settle.lua"),
            include_str!("../../../../lua/view.lua"),
            include_str!("../../../../lua/adopt.lua"),
        ];
        let mut unused: std::collections::HashSet<_> = SHARED.iter().map(|(name, _)| *name).collect();
        for text in bodies.into_iter().chain(SHARED.map(|(_, text)| text)) {
            let lines = text.lines().filter_map(|line| line.trim().strip_prefix(USES));
            for used in lines.flat_map(|line| line.split(' ')) {
                assert!(SHARED.iter().any(|(name, _)| *name == used), "{used}");
                unused.remove(used);
            }
        }
        assert!(unused.is_empty(), "{unused:?}");
    }

    #[test]
    fn the_scripts_publish_where_agents_listen() {
        for name in [ScriptName::Admit, ScriptName::Settle] {
            assert!(name.script().text().contains(&format!("'PUBLISH', '{CHANNEL}'")), "{name:?}");
        }
    }
}
