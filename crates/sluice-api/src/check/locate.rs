//! The line of a field in a YAML document.
//!
//! The parser gives values without positions, so this looks for the path in the text by indentation. It is
//! exact for block style, which is how manifests are written; inside a flow collection (`{…}`, `[…]`) it
//! gives the line where that begins.

/// A line without comment or blank, as far as a search sees it.
#[derive(Debug, Clone, Copy)]
struct Line<'a> {
    /// From 0.
    number: usize,
    indent: usize,
    /// Without indentation.
    text: &'a str,
}

/// The line, from 0, of the field at `path` (`spec.targets[0].name`), or of the innermost object around it
/// that is found.
pub(super) fn line_of(text: &str, path: &str) -> Option<usize> {
    let mut block: Vec<Line<'_>> = text
        .lines()
        .enumerate()
        .map(|(number, line)| {
            let text = line.trim_start();
            Line { number, indent: line.len() - text.len(), text }
        })
        .filter(|line| !line.text.is_empty() && !line.text.starts_with('#'))
        .collect();
    let mut found = block.first().map(|line| line.number)?;
    for step in steps(path) {
        let next = match step {
            Step::Key(key) => member(&block, key),
            Step::Index(index) => element(&block, index),
        };
        let Some((number, inner)) = next else { break };
        found = number;
        block = inner;
    }
    Some(found)
}

#[derive(Debug, PartialEq, Eq)]
enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

fn steps(path: &str) -> Vec<Step<'_>> {
    let mut steps = Vec::new();
    for part in path.split('.') {
        let mut pieces = part.split('[');
        if let Some(key) = pieces.next().filter(|key| !key.is_empty()) {
            steps.push(Step::Key(key));
        }
        steps.extend(pieces.filter_map(|piece| piece.trim_end_matches(']').parse().ok().map(Step::Index)));
    }
    steps
}

/// The member of a mapping: its line and what is below it.
fn member<'a>(block: &[Line<'a>], key: &str) -> Option<(usize, Vec<Line<'a>>)> {
    let indent = block.first()?.indent;
    let at = block.iter().position(|line| line.indent == indent && key_of(line.text) == Some(key))?;
    let below = block[at + 1..]
        .iter()
        // a sequence may stand as far left as its key
        .take_while(|line| line.indent > indent || (line.indent == indent && is_element(line.text)))
        .copied()
        .collect();
    Some((block[at].number, below))
}

/// The element of a sequence: its line and all of it, the dash taken for indentation.
fn element<'a>(block: &[Line<'a>], index: usize) -> Option<(usize, Vec<Line<'a>>)> {
    let indent = block.first()?.indent;
    let mut starts = block
        .iter()
        .enumerate()
        .filter(|(_, line)| line.indent == indent && is_element(line.text))
        .map(|(at, _)| at);
    let at = starts.nth(index)?;
    let end = starts.next().unwrap_or(block.len());
    let mut inner = block[at..end].to_vec();
    let rest = inner[0].text[1..].trim_start();
    inner[0].indent += inner[0].text.len() - rest.len();
    inner[0].text = rest;
    if rest.is_empty() {
        inner.remove(0);
    }
    Some((block[at].number, inner))
}

fn is_element(text: &str) -> bool {
    text == "-" || text.starts_with("- ")
}

fn key_of(text: &str) -> Option<&str> {
    let (key, rest) = text.split_once(':')?;
    (rest.is_empty() || rest.starts_with([' ', '\t'])).then(|| key.trim().trim_matches(['"', '\'']))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# a comment
kind: ModelRoute
metadata:
  name: chat

spec:
  models: [a, b]
  targets:
  - name: first   # aligned with its key
    credential:
      type: None
  -
    name: second
    \"endpoint\": x
  degraded: {type: Static, static: {text: x}}
";

    #[test]
    fn finds_fields() {
        for (path, line) in [
            ("kind", 1),
            ("metadata.name", 3),
            ("spec", 5),
            ("spec.models", 6),
            ("spec.models[1]", 6),
            ("spec.targets", 7),
            ("spec.targets[0]", 8),
            ("spec.targets[0].name", 8),
            ("spec.targets[0].credential.type", 10),
            ("spec.targets[1].name", 12),
            ("spec.targets[1].endpoint", 13),
            ("spec.targets[2].endpoint", 7),
            ("spec.degraded.static.text", 14),
            ("spec.absent", 5),
            ("", 1),
        ] {
            assert_eq!(line_of(TEXT, path), Some(line), "{path}");
        }
        assert_eq!(line_of("# nothing\n", "kind"), None);
    }
}
