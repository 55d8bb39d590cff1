//! The tokens of an answer. Token `i` of a call is the same in every run.

use std::borrow::Cow;

use crate::request::Ask;
use crate::scenario::{Behaviour, TextKind};

/// Output when neither the scenario nor the request says how much.
const DEFAULT_TOKENS: u64 = 20;
const DEFAULT_ARGUMENTS: &str = r#"{"city":"Paris","unit":"celsius"}"#;
/// Bytes of a fragment of tool arguments.
const FRAGMENT: usize = 6;

const PLAIN: [&str; 32] = [
    " the", " water", " keeps", " its", " own", " level", " and", " every", " gate", " holds", " back",
    " only", " what", " it", " must", " so", " boats", " pass", " in", " turn", " while", " rain", " falls",
    " on", " both", " sides", " of", " a", " long", " quiet", " summer", " day",
];
const UTF8: [&str; 16] = [
    " água",
    " größer",
    " 水門",
    " 🌊",
    " ñandú",
    " été",
    " मेघ",
    " 𝄞",
    " ключ",
    " 川の流れ",
    " ψυχή",
    " 👩‍🔬",
    " žába",
    " €",
    " नदी",
    " 한강",
];

/// What an answer says.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) reasoning: u64,
    /// All tokens, reasoning and tool fragments included.
    pub(crate) total: u64,
    body: Said,
    pub(crate) finish: Finish,
    pad: usize,
}

#[derive(Debug)]
enum Said {
    Words(&'static [&'static str]),
    Pieces(Vec<String>),
    Tool { name: String, fragments: Vec<String> },
}

/// Why the model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    Stop,
    Length,
    Tool,
}

/// One token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    Reasoning(Cow<'a, str>),
    Text(Cow<'a, str>),
    /// A fragment of the arguments.
    Tool(&'a str),
}

impl Content {
    pub(crate) fn new(behaviour: &Behaviour, ask: &Ask) -> Self {
        let wanted = behaviour.tokens.or(ask.max_tokens).unwrap_or(DEFAULT_TOKENS);
        let limit = ask.max_tokens.unwrap_or(u64::MAX);
        let tool = behaviour.tool_call.as_ref().filter(|tool| tool.always || !ask.tools.is_empty());
        let reasoning = behaviour.reasoning_tokens.unwrap_or(0);
        let (body, length) = if let Some(tool) = tool {
            let name =
                tool.name.clone().or_else(|| ask.tools.first().cloned()).unwrap_or_else(|| "lookup".into());
            let fragments = fragments(tool.arguments.as_deref().unwrap_or(DEFAULT_ARGUMENTS));
            let length = reasoning + fragments.len() as u64;
            (Said::Tool { name, fragments }, length)
        } else if let Some(text) = &behaviour.content {
            let pieces = pieces(text);
            let all = reasoning + pieces.len() as u64;
            (Said::Pieces(pieces), behaviour.tokens.map_or(all, |tokens| tokens.min(all)))
        } else {
            let words: &[&str] = match behaviour.text.unwrap_or_default() {
                TextKind::Plain => &PLAIN,
                TextKind::Utf8 => &UTF8,
            };
            (Said::Words(words), wanted)
        };
        let total = length.min(limit);
        let finish = match &body {
            _ if total < length => Finish::Length,
            Said::Tool { .. } => Finish::Tool,
            _ => Finish::Stop,
        };
        Self { reasoning: reasoning.min(total), total, body, finish, pad: behaviour.token_bytes.unwrap_or(0) }
    }

    /// The most tokens that a call may produce.
    pub(crate) fn maximum(behaviour: &Behaviour, ask: &Ask) -> u64 {
        ask.max_tokens.or(behaviour.tokens).unwrap_or(DEFAULT_TOKENS)
    }

    /// No tokens at all.
    pub(crate) fn nothing() -> Self {
        Self { reasoning: 0, total: 0, body: Said::Words(&PLAIN), finish: Finish::Stop, pad: 0 }
    }

    pub(crate) fn piece(&self, index: u64) -> Piece<'_> {
        if index < self.reasoning {
            return Piece::Reasoning(self.word(&PLAIN, index));
        }
        let index = index - self.reasoning;
        match &self.body {
            Said::Words(words) => Piece::Text(self.word(words, index)),
            Said::Pieces(pieces) => Piece::Text(Cow::Borrowed(&pieces[index as usize])),
            Said::Tool { fragments, .. } => Piece::Tool(&fragments[index as usize]),
        }
    }

    /// The name of the tool, when the answer is a tool call.
    pub(crate) fn tool(&self) -> Option<&str> {
        match &self.body {
            Said::Tool { name, .. } => Some(name),
            _ => None,
        }
    }

    pub(crate) fn reasoning_text(&self) -> String {
        (0..self.reasoning).map(|index| self.word(&PLAIN, index)).collect()
    }

    /// The text, or the arguments of the tool call.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for index in self.reasoning..self.total {
            match self.piece(index) {
                Piece::Text(piece) | Piece::Reasoning(piece) => text.push_str(&piece),
                Piece::Tool(fragment) => text.push_str(fragment),
            }
        }
        text
    }

    fn word(&self, words: &'static [&'static str], index: u64) -> Cow<'static, str> {
        // A step that shares no factor with the lengths visits all words before it repeats one.
        let word = words[(index.wrapping_mul(7) % words.len() as u64) as usize];
        let word = if index == 0 { &word[1..] } else { word };
        if word.len() >= self.pad {
            return Cow::Borrowed(word);
        }
        let mut padded = String::with_capacity(self.pad);
        padded.push_str(word);
        padded.extend(std::iter::repeat_n('x', self.pad - word.len()));
        Cow::Owned(padded)
    }
}

/// Cut before each blank, so that the pieces put together are the text.
fn pieces(text: &str) -> Vec<String> {
    let mut pieces: Vec<String> = Vec::new();
    for character in text.chars() {
        match pieces.last_mut() {
            Some(last) if character != ' ' => last.push(character),
            _ => pieces.push(character.to_string()),
        }
    }
    pieces
}

fn fragments(text: &str) -> Vec<String> {
    let mut fragments: Vec<String> = Vec::new();
    for character in text.chars() {
        match fragments.last_mut() {
            Some(last) if last.len() < FRAGMENT => last.push(character),
            _ => fragments.push(character.to_string()),
        }
    }
    fragments
}

#[cfg(test)]
mod tests {
    use super::{Content, DEFAULT_ARGUMENTS, Finish, Piece};
    use crate::request::Ask;
    use crate::scenario::{Behaviour, TextKind, ToolCall};

    #[test]
    fn how_many_tokens() {
        let count = |tokens, max_tokens| {
            let behaviour = Behaviour { tokens, ..Behaviour::default() };
            let content = Content::new(&behaviour, &Ask { max_tokens, ..Ask::default() });
            (content.total, content.finish)
        };
        assert_eq!(count(None, None), (20, Finish::Stop));
        assert_eq!(count(None, Some(300)), (300, Finish::Stop));
        assert_eq!(count(Some(5), Some(300)), (5, Finish::Stop));
        assert_eq!(count(Some(50), Some(3)), (3, Finish::Length));
    }

    #[test]
    fn text_is_whole_and_the_same_each_time() {
        let behaviour = Behaviour { tokens: Some(40), reasoning_tokens: Some(3), ..Behaviour::default() };
        let content = Content::new(&behaviour, &Ask::default());
        assert_eq!(content.text(), Content::new(&behaviour, &Ask::default()).text());
        assert!(matches!(content.piece(2), Piece::Reasoning(_)));
        assert!(matches!(content.piece(3), Piece::Text(_)));
        let given = Behaviour { content: Some("{\"a\": 1, \"b\":  2}".into()), ..Behaviour::default() };
        assert_eq!(Content::new(&given, &Ask::default()).text(), "{\"a\": 1, \"b\":  2}");
        let utf8 = Behaviour { text: Some(TextKind::Utf8), tokens: Some(16), ..Behaviour::default() };
        assert!(Content::new(&utf8, &Ask::default()).text().chars().any(|c| c.len_utf8() == 4));
    }

    #[test]
    fn tool_calls_need_tools_on_offer() {
        let behaviour = Behaviour { tool_call: Some(ToolCall::default()), ..Behaviour::default() };
        assert_eq!(Content::new(&behaviour, &Ask::default()).tool(), None);
        let content = Content::new(&behaviour, &Ask { tools: vec!["weather".into()], ..Ask::default() });
        assert_eq!((content.tool(), content.finish), (Some("weather"), Finish::Tool));
        assert_eq!(content.text(), DEFAULT_ARGUMENTS);
    }

    #[test]
    fn padding_makes_long_tokens() {
        let behaviour = Behaviour { tokens: Some(2), token_bytes: Some(1000), ..Behaviour::default() };
        assert_eq!(Content::new(&behaviour, &Ask::default()).text().len(), 2000);
    }
}
