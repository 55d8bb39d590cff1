//! The fuzz targets' checks over their corpus and over changed copies of it: the same inputs on every run.
//!
//! `SLUICE_FUZZ_SEED` and `SLUICE_FUZZ_ROUNDS` choose others; a failure prints both and the input.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

#[path = "../fuzz/checks.rs"]
mod checks;

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % bound.max(1) as u64) as usize
    }
}

/// One to four small changes: a byte, a cut, a repetition, a mark that matters, a piece of another input.
fn change(input: &[u8], corpus: &[Vec<u8>], draws: &mut Draws) -> Vec<u8> {
    const MARKS: [&[u8]; 10] =
        [b"\n", b"\r", b"\r\n\r\n", b"data: ", b"\"", b"\\", b"{", b"]", b"\xEF\xBB\xBF", b"\xF0\x9D"];
    let mut out = input.to_vec();
    for _ in 0..=draws.below(4) {
        let at = draws.below(out.len() + 1);
        match draws.below(5) {
            0 if at < out.len() => out[at] = draws.below(256) as u8,
            1 => out.truncate(at),
            2 => {
                let end = (at + draws.below(40)).min(out.len());
                let again = out[at..end].to_vec();
                out.splice(at..at, again);
            }
            3 => {
                let mark = MARKS[draws.below(MARKS.len())];
                out.splice(at..at, mark.iter().copied());
            }
            _ => {
                let other = &corpus[draws.below(corpus.len())];
                let from = draws.below(other.len() + 1);
                out.splice(at..at, other[from..].iter().copied());
            }
        }
        out.truncate(16 << 10);
    }
    out
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn run(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut paths: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", folder.display());
    let corpus: Vec<Vec<u8>> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
    let (seed, rounds) = (number("SLUICE_FUZZ_SEED", 1), number("SLUICE_FUZZ_ROUNDS", 3_000));
    let mut draws = Draws(seed);
    let changed =
        (0..rounds).map(|round| change(&corpus[round as usize % corpus.len()], &corpus, &mut draws));
    for input in corpus.iter().cloned().chain(changed) {
        assert!(
            catch_unwind(AssertUnwindSafe(|| check(&input))).is_ok(),
            "{target} fails (SLUICE_FUZZ_SEED={seed} SLUICE_FUZZ_ROUNDS={rounds}) for {}",
            input.escape_ascii()
        );
    }
}

#[test]
fn sse() {
    run("sse", checks::sse);
}

#[test]
fn retry_after() {
    run("retry_after", checks::retry_after);
}

#[test]
fn read_request() {
    run("read_request", checks::read_request);
}

#[test]
fn stream_reader() {
    run("stream_reader", checks::stream_reader);
}
