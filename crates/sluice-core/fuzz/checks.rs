//! What must hold for any bytes. One function per fuzz target, shared with `tests/corpus.rs`.

use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use sluice_core::relay::{Relay, UsageChunk};
use sluice_core::retry_after;
use sluice_core::sse::{Decoded, Decoder};
use sluice_core::wire::{Operation, StreamReader, ask_for_usage, read_answer, replace_model};

const OPERATIONS: [Operation; 4] =
    [Operation::ChatCompletions, Operation::Completions, Operation::Responses, Operation::Messages];

/// Cuts in pieces whose sizes the input itself decides.
fn pieces(input: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = input;
    let mut turn = 0;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let size = usize::from(input[turn % input.len()] % 23) + 1;
        turn += 1;
        let (piece, more) = rest.split_at(size.min(rest.len()));
        rest = more;
        Some(piece)
    })
}

/// Decoding does not depend on chunking, and memory is bounded.
pub(crate) fn sse(input: &[u8]) {
    const MAX_FRAME: usize = 256;
    fn items(items: &mut Vec<Vec<u8>>, decoded: Decoded<'_>) {
        items.push(match decoded {
            Decoded::Event(event) => [event.event.unwrap_or(b"-"), b"|", event.data].concat(),
            Decoded::Comment => b"comment".to_vec(),
            Decoded::Oversized => b"oversized".to_vec(),
            Decoded::OversizedEnd { .. } => b"end".to_vec(),
        });
    }
    let (mut whole, mut split) = (Vec::new(), Vec::new());
    Decoder::new(MAX_FRAME).push(input, |decoded| items(&mut whole, decoded));
    let mut decoder = Decoder::new(MAX_FRAME);
    for piece in pieces(input) {
        decoder.push(piece, |decoded| items(&mut split, decoded));
        assert!(decoder.buffered() <= 2 * MAX_FRAME + 8);
    }
    assert_eq!(whole, split);
}

/// Every byte reaches the client, except usage chunks that are hidden; readers survive any event.
pub(crate) fn stream_reader(input: &[u8]) {
    for operation in OPERATIONS {
        let mut relay = Relay::new(operation, 4_096, UsageChunk::Hide);
        let (mut client, mut hidden) = (Vec::new(), false);
        for piece in pieces(input) {
            let piece = Bytes::copy_from_slice(piece);
            let note = |fact: sluice_core::wire::Fact| hidden |= fact.usage_chunk;
            relay.push(&piece, note, |bytes| client.extend_from_slice(&bytes));
        }
        client.extend_from_slice(&relay.finish(|fact| hidden |= fact.usage_chunk));
        assert!(hidden || client == input, "{operation:?}: bytes were lost");
        assert!(client.len() <= input.len());

        let mut reader = StreamReader::new(operation);
        Decoder::new(4_096).push(input, |decoded| {
            if let Decoded::Event(event) = decoded {
                let fact = reader.read(event);
                assert_eq!(fact.is_token(), fact.deltas > 0);
            }
        });
        let _ = read_answer(operation, 200, Some("application/json"), input);
    }
}

/// A body that is read can be edited, and says the same afterwards but for the edits.
pub(crate) fn read_request(input: &[u8]) {
    for operation in OPERATIONS {
        let Ok(facts) = request(operation, input) else { continue };
        let body = Bytes::copy_from_slice(input);
        let edits = replace_model(&facts, "another \"model\"").and(ask_for_usage(operation, &facts, input));
        let edited = edits.apply(&body);
        let Ok(after) = request(operation, &edited) else { panic!("an edited body cannot be read") };
        assert_eq!(after.model, "another \"model\"");
        assert_eq!(after.max_output, facts.max_output);
        assert_eq!(after.text_bytes, facts.text_bytes);
    }
}

fn request(
    operation: Operation,
    body: &[u8],
) -> Result<sluice_core::wire::RequestFacts, sluice_core::wire::RequestError> {
    sluice_core::wire::read_request(operation, body)
}

/// `name: value` lines; any wait is at most a day.
pub(crate) fn retry_after(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let headers: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once(": ")).collect();
    let now = UNIX_EPOCH + Duration::from_secs(1_767_225_601);
    let wait = retry_after::retry_after(
        |name| headers.iter().find(|(header, _)| *header == name).map(|(_, value)| *value),
        now,
    );
    assert!(wait.is_none_or(|wait| wait <= retry_after::LONGEST));
}
