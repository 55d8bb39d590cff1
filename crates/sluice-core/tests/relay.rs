//! What a relayed stream looks like to the client, and what accounting sees of it, in every chunking.
#![allow(clippy::unwrap_used, clippy::panic)]

use bytes::Bytes;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use sluice_core::relay::{Relay, UsageChunk};
use sluice_core::wire::Operation;

const FRAME: usize = 1 << 20;

struct Outcome {
    client: Vec<u8>,
    tokens: u32,
    terminal: bool,
    usage: Option<u64>,
    tail: Bytes,
}

fn relay(operation: Operation, usage_chunk: UsageChunk, chunks: &[&[u8]], max_frame: usize) -> Outcome {
    let mut relay = Relay::new(operation, max_frame, usage_chunk);
    let (mut client, mut tokens, mut terminal) = (Vec::new(), 0, false);
    for chunk in chunks {
        let chunk = Bytes::copy_from_slice(chunk);
        relay.push(
            &chunk,
            |fact| {
                tokens += fact.deltas;
                terminal |= fact.terminal;
            },
            |bytes| {
                assert!(!bytes.is_empty());
                client.extend_from_slice(&bytes);
            },
        );
        assert!(relay.held() <= max_frame, "{} bytes are held", relay.held());
    }
    let tail = relay.finish(|fact| terminal |= fact.terminal);
    let usage = relay.usage().map(sluice_core::wire::Usage::total);
    Outcome { client, tokens, terminal, usage, tail }
}

fn chat(ending: &str) -> (String, String) {
    let usage =
        "data: {\"id\":\"x\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2}}\n\n";
    let stream = format!(
        ": up\n\n{}{}{}{usage}data: [DONE]\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}],\"usage\":null}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"日\"}}],\"usage\":null}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"𝄞\"},\"finish_reason\":\"stop\"}],\"usage\":null}\n\n",
    );
    let without = stream.replace(usage, "");
    (stream.replace('\n', ending), without.replace('\n', ending))
}

#[test]
fn an_event_that_comments_keep_open_is_not_held_for_ever() {
    let mut relay = Relay::new(Operation::ChatCompletions, 256, UsageChunk::Hide);
    let mut forwarded = 0;
    for bytes in std::iter::once("data: {\"choices\":[]}\n").chain(std::iter::repeat_n(": ping\n", 10_000)) {
        relay.push(&Bytes::from_static(bytes.as_bytes()), |_| {}, |bytes| forwarded += bytes.len());
        assert!(relay.held() <= 256);
    }
    assert!(forwarded > 60_000, "{forwarded}");
    assert!(relay.stops_inside_event(), "an error event needs a blank line before it");
}

#[test]
fn the_hidden_usage_chunk_is_cut_out_wherever_the_stream_is_split() {
    for ending in ["\n", "\r\n", "\r"] {
        let (stream, without) = chat(ending);
        let stream = stream.as_bytes();
        let mut splits: Vec<Vec<&[u8]>> = vec![stream.chunks(1).collect(), vec![stream]];
        for cut in 0..=stream.len() {
            splits.push(vec![&stream[..cut], b"", &stream[cut..]]);
        }
        for chunks in &splits {
            let got = relay(Operation::ChatCompletions, UsageChunk::Hide, chunks, FRAME);
            assert_eq!(String::from_utf8_lossy(&got.client), without, "{ending:?}, {} chunks", chunks.len());
            assert_eq!((got.tokens, got.terminal, got.usage), (2, true, Some(11)));
            let got = relay(Operation::ChatCompletions, UsageChunk::Forward, chunks, FRAME);
            assert_eq!(got.client, stream, "byte for byte");
        }
    }
}

#[test]
fn a_cut_stream_stops_at_an_event_boundary() {
    let (stream, _) = chat("\n");
    let cut = stream.find("𝄞").unwrap();
    let got = relay(Operation::ChatCompletions, UsageChunk::Forward, &[&stream.as_bytes()[..cut]], FRAME);
    assert!(got.client.ends_with(b"\n\n"));
    assert!(!got.tail.is_empty() && !got.terminal);
    assert_eq!([got.client, got.tail.to_vec()].concat(), &stream.as_bytes()[..cut]);
}

#[test]
fn a_last_event_without_its_blank_line_counts() {
    let (stream, without) = chat("\n");
    for missing in 1..=2 {
        let chunks = [&stream.as_bytes()[..stream.len() - missing]];
        let got = relay(Operation::ChatCompletions, UsageChunk::Hide, &chunks, FRAME);
        assert!(got.terminal);
        let whole = [got.client, got.tail.to_vec()].concat();
        assert_eq!(whole, &without.as_bytes()[..without.len() - missing]);
    }
}

#[test]
fn a_frame_over_the_bound_is_relayed_without_being_held() {
    let mut stream = b"data: {\"choices\":[{\"delta\":{\"content\":\"".to_vec();
    stream.extend(std::iter::repeat_n(b'x', 100_000));
    stream.extend_from_slice(b"\"}}]}\n\ndata: [DONE]\n\n");
    let chunks: Vec<&[u8]> = stream.chunks(1_000).collect();
    let got = relay(Operation::ChatCompletions, UsageChunk::Hide, &chunks, 4_096);
    assert_eq!(got.client, stream);
    assert_eq!((got.tokens, got.terminal), (1, true), "content, and the end behind it is seen");
}

#[test]
fn comments_wait_for_nothing() {
    let mut relay = Relay::new(Operation::Messages, FRAME, UsageChunk::Forward);
    let mut pings = 0;
    let mut client = Vec::new();
    relay.push(
        &Bytes::from_static(b": keep-alive\n"),
        |fact| pings += u32::from(fact.ping),
        |bytes| client.extend_from_slice(&bytes),
    );
    assert_eq!((client.as_slice(), pings), (&b": keep-alive\n"[..], 1));
}

/// A failure's seed is printed and kept in a file beside this one, and is run first from then on.
fn cases(cases: u32) -> ProptestConfig {
    let kept = FileFailurePersistence::WithSource("regressions");
    ProptestConfig { cases, failure_persistence: Some(Box::new(kept)), ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn whatever_comes_reaches_the_client(
        pieces in prop::collection::vec(prop_oneof![
            Just(&b"\n"[..]), Just(&b"\r"[..]), Just(&b"\r\n\r\n"[..]), Just(&b"data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}"[..]),
            Just(&b"data: "[..]), Just(&b":"[..]), Just(&b"\xEF\xBB\xBF"[..]), Just(&b"abc"[..]), Just(&b"\xF0\x9D"[..])
        ], 0..40),
        size in 1_usize..50, max_frame in 8_usize..200
    ) {
        let stream = pieces.concat();
        let chunks: Vec<&[u8]> = stream.chunks(size).collect();
        let got = relay(Operation::ChatCompletions, UsageChunk::Hide, &chunks, max_frame);
        prop_assert_eq!([got.client, got.tail.to_vec()].concat(), stream);
    }

    #[test]
    fn hiding_is_independent_of_chunking(cuts in prop::collection::vec(any::<usize>(), 0..30), crlf in 0_usize..3) {
        let (stream, without) = chat(["\n", "\r\n", "\r"][crlf]);
        let stream = stream.as_bytes();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (stream.len() + 1)).collect();
        cuts.sort_unstable();
        let mut chunks = Vec::new();
        let mut at = 0;
        for cut in cuts.into_iter().chain([stream.len()]) {
            chunks.push(&stream[at..cut]);
            at = cut;
        }
        let got = relay(Operation::ChatCompletions, UsageChunk::Hide, &chunks, FRAME);
        prop_assert_eq!(String::from_utf8(got.client).unwrap(), without);
    }
}
