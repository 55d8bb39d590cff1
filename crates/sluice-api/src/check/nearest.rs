//! The known word that a misspelt one most likely means.

/// The word among `known` that takes the fewest edits to reach, if those are few for its length.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A word this much longer than any field's name means none of them, and the table is quadratic.
    if word.len() > 64 {
        return None;
    }
    let wanted = word.to_lowercase();
    known
        .into_iter()
        .map(|candidate| (distance(&wanted, &candidate.to_lowercase()), candidate))
        .filter(|(edits, candidate)| *edits <= (candidate.len().max(word.len()) / 3).max(1))
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein distance, row by row.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, right) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(left != *right);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_meant() {
        let known = ["firstToken", "total", "stall", "maxSilence"];
        assert_eq!(nearest("firstoken", known), Some("firstToken"));
        assert_eq!(nearest("Total", known), Some("total"));
        assert_eq!(nearest("max_silence", known), Some("maxSilence"));
        assert_eq!(nearest("budget", known), None);
        assert_eq!(nearest(&"x".repeat(300_000), known), None);
    }

    #[test]
    fn counts_edits() {
        for (a, b, edits) in
            [("", "", 0), ("a", "", 1), ("", "abc", 3), ("kitten", "sitting", 3), ("stall", "stall", 0)]
        {
            assert_eq!(distance(a, b), edits, "{a} {b}");
        }
    }
}
