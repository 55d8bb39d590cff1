//! The event-stream decoder against a plain reading of the WHATWG rules, in every framing and chunking.
#![allow(clippy::unwrap_used, clippy::panic)]

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use sluice_core::sse::{Decoded, Decoder};

#[derive(Debug, Clone, PartialEq, Eq)]
enum Item {
    Event(String, Vec<u8>),
    Comment,
    Oversized,
}

fn event(name: &str, data: &str) -> Item {
    Item::Event(name.to_owned(), data.as_bytes().to_vec())
}

/// Decodes chunk by chunk; checks on the way that offsets are in order and memory is bounded.
fn decode(chunks: &[&[u8]], max_frame: usize) -> Vec<Item> {
    let mut decoder = Decoder::new(max_frame);
    let mut items = Vec::new();
    let mut last_end = 0;
    for chunk in chunks {
        decoder.push(chunk, |decoded| match decoded {
            Decoded::Event(event) => {
                assert!(last_end <= event.start && event.start < event.end, "{last_end} {event:?}");
                last_end = event.end;
                let name = String::from_utf8_lossy(event.event.unwrap_or_default()).into_owned();
                items.push(Item::Event(name, event.data.to_vec()));
            }
            Decoded::Comment => items.push(Item::Comment),
            Decoded::Oversized => items.push(Item::Oversized),
            Decoded::OversizedEnd { end } => {
                assert!(last_end < end);
                last_end = end;
            }
        });
        assert!(decoder.buffered() <= 2 * max_frame + 8, "{} bytes are kept", decoder.buffered());
    }
    items
}

fn whole(stream: &[u8]) -> Vec<Item> {
    decode(&[stream], 1 << 20)
}

/// The standard's own words, line by line over the whole stream, without any bound.
fn reference(stream: &[u8]) -> Vec<Item> {
    let stream = stream.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(stream);
    let mut lines: Vec<Vec<u8>> = Vec::new();
    let mut line = Vec::new();
    let mut bytes = stream.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\r' => {
                if bytes.peek() == Some(&b'\n') {
                    bytes.next();
                }
                lines.push(std::mem::take(&mut line));
            }
            b'\n' => lines.push(std::mem::take(&mut line)),
            other => line.push(other),
        }
    }
    let (mut items, mut name, mut data, mut any) = (Vec::new(), Vec::new(), Vec::new(), false);
    for line in lines {
        if line.is_empty() {
            if any {
                items.push(Item::Event(String::from_utf8_lossy(&name).into_owned(), data.clone()));
            }
            (name, data, any) = (Vec::new(), Vec::new(), false);
            continue;
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (field, value) = match colon {
            Some(0) => {
                items.push(Item::Comment);
                continue;
            }
            Some(at) => (&line[..at], line[at + 1..].strip_prefix(b" ").unwrap_or(&line[at + 1..])),
            None => (&line[..], &b""[..]),
        };
        match field {
            b"data" => {
                if any {
                    data.push(b'\n');
                }
                any = true;
                data.extend_from_slice(value);
            }
            b"event" => name = value.to_vec(),
            _ => {}
        }
    }
    items
}

fn split_at(stream: &[u8], cuts: &[usize]) -> Vec<Vec<u8>> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (stream.len() + 1)).collect();
    cuts.sort_unstable();
    let mut at = 0;
    let mut chunks = Vec::new();
    for cut in cuts {
        chunks.push(stream[at..cut].to_vec());
        at = cut;
    }
    chunks.push(stream[at..].to_vec());
    chunks
}

const DOCUMENT: &str = "\u{feff}: hello\n\nevent: message_start\ndata: {\"a\":\"日本𝄞\"}\n\ndata:no space\n\n\
data: one\ndata:\ndata:  two\n\nid: 7\nretry: 10\ndata\n\nevent: alone\n\ndata: [DONE]\n\n";

#[test]
fn every_framing_and_one_byte_per_push() {
    let want = [
        Item::Comment,
        event("message_start", "{\"a\":\"日本𝄞\"}"),
        event("", "no space"),
        event("", "one\n\n two"),
        event("", ""),
        event("", "[DONE]"),
    ];
    for ending in ["\n", "\r\n", "\r"] {
        let stream = DOCUMENT.replace('\n', ending).into_bytes();
        assert_eq!(whole(&stream), want, "{ending:?}");
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(decode(&bytes, 1 << 20), want, "{ending:?}, byte by byte");
        // Every cut in two, which is every way to split CRLF, the mark and each character.
        for cut in 0..=stream.len() {
            let (a, b) = stream.split_at(cut);
            assert_eq!(decode(&[a, b], 1 << 20), want, "{ending:?}, cut at {cut}");
        }
    }
}

#[test]
fn mixed_line_ends_and_empty_chunks() {
    assert_eq!(whole(b"data: a\r\ndata: b\n\rdata: c\r\r"), [event("", "a\nb"), event("", "c")]);
    assert_eq!(decode(&[b"data: a\r", b"", b"\n", b"", b"\r", b"\n"], 64), [event("", "a")]);
}

#[test]
fn one_byte_order_mark_at_the_start_only() {
    assert_eq!(whole(b"\xEF\xBB\xBF\xEF\xBB\xBFdata: a\n\ndata: b\n\n"), [event("", "b")]);
    assert_eq!(whole(b"data: a\n\n\xEF\xBB\xBFdata: b\n\n"), [event("", "a")]);
    // Half a mark is the start of an unknown field.
    assert_eq!(decode(&[b"\xEF", b"\xBB", b"data: a\n\ndata: b\n\n"], 64), [event("", "b")]);
    assert_eq!(decode(&[b"\xEF", b"\xBB", b"\xBF", b"data: a\n\n"], 64), [event("", "a")]);
}

#[test]
fn fields_are_whole_names() {
    assert_eq!(whole(b"dataset: a\ndat: b\n data: c\nData: d\nevents: e\n\n"), []);
    assert_eq!(whole(b"event: x\nevent:\ndata: a\n\n"), [event("", "a")], "the last event field rules");
    assert_eq!(whole(b"data:\n\n"), [event("", "")], "an empty data field still dispatches");
    assert_eq!(whole(b"data: \xFF\xFE\n\n"), [Item::Event(String::new(), vec![0xFF, 0xFE])]);
}

#[test]
fn the_end_of_the_stream_drops_half_an_event() {
    let mut decoder = Decoder::new(1 << 10);
    decoder.push(b"data: a\n\ndata: [DO", |_| {});
    assert!(decoder.finish());
    decoder.push(b"NE]", |_| {});
    let mut cut = Vec::new();
    decoder.cut_off(|event| cut.push(event.data.to_vec()));
    assert_eq!(cut, [b"[DONE]"]);
    let mut whole = Decoder::new(1 << 10);
    whole.push(b"data: a\r\n\r\n", |_| {});
    assert!(!whole.finish());
}

#[test]
fn a_frame_over_the_bound_is_skipped_and_decoding_recovers() {
    let ten_megabytes = vec![b'x'; 10 << 20];
    let mut stream = b"data: before\n\ndata: ".to_vec();
    stream.extend_from_slice(&ten_megabytes);
    stream.extend_from_slice(b"\ndata: more\nevent: e\n\n: still here\ndata: after\n\n");
    let want = [event("", "before"), Item::Oversized, Item::Comment, event("", "after")];
    assert_eq!(decode(&[&stream], 1 << 20), want);
    let chunks: Vec<&[u8]> = stream.chunks(1_399).collect();
    assert_eq!(decode(&chunks, 1 << 20), want);
}

#[test]
fn many_lines_of_one_frame_are_bounded_together() {
    let stream = b"data: 0123456789\n".repeat(1_000);
    let chunks: Vec<&[u8]> = stream.chunks(7).collect();
    assert_eq!(decode(&chunks, 100), [Item::Oversized]);
}

#[test]
fn whole_events_are_not_copied() {
    let stream = b"data: {\"a\":1}\n\nevent: x\ndata: {\"b\":2}\n\n";
    let range = stream.as_ptr_range();
    let mut decoder = Decoder::new(1 << 10);
    decoder.push(stream, |decoded| {
        let Decoded::Event(event) = decoded else { panic!("{decoded:?}") };
        assert!(range.contains(&event.data.as_ptr()), "the data lies in the chunk");
    });
}

/// Bytes that streams are made of, with the marks that matter frequent.
fn stream_bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => Just(b"\n".to_vec()),
        3 => Just(b"\r\n".to_vec()),
        2 => Just(b"\r".to_vec()),
        5 => Just(b"data: ".to_vec()),
        1 => Just(b"data".to_vec()),
        2 => Just(b"event:".to_vec()),
        2 => Just(b":".to_vec()),
        1 => Just(b" ".to_vec()),
        1 => Just(b"\xEF\xBB\xBF".to_vec()),
        1 => Just(b"\xEF\xBB".to_vec()),
        3 => "[a-z{}\"日𝄞]{0,12}".prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..6),
    ];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

/// A failure's seed is printed and kept in a file beside this one, and is run first from then on.
fn cases(cases: u32) -> ProptestConfig {
    let kept = FileFailurePersistence::WithSource("regressions");
    ProptestConfig { cases, failure_persistence: Some(Box::new(kept)), ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(1_500))]

    #[test]
    fn decoding_is_the_standards(stream in stream_bytes()) {
        prop_assert_eq!(whole(&stream), reference(&stream));
    }

    #[test]
    fn decoding_is_independent_of_chunking(
        stream in stream_bytes(), cuts in prop::collection::vec(any::<usize>(), 0..20), max_frame in 1_usize..80
    ) {
        let chunks = split_at(&stream, &cuts);
        let chunks: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
        prop_assert_eq!(decode(&chunks, max_frame), decode(&[&stream], max_frame));
    }
}
