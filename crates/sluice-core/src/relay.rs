//! What of a stream goes to the client, and what its side copy says.
//!
//! The client gets the original bytes, with two exceptions, both decided here:
//! - the chunk that `stream_options.include_usage` adds is cut out when Sluice asked for it and the client did
//!   not;
//! - an event that is not complete yet is held until its blank line comes. No client dispatches it sooner, so
//!   nobody waits for it; and a stream that breaks off can then end with a well-formed error event, which
//!   would otherwise run into half an event and be lost in the client's parser. A frame over the decoder's
//!   bound is not held.
//!
//! Bytes that lie in one chunk are forwarded as slices of it; only a straddling event is copied.

use bytes::{Bytes, BytesMut};

use crate::sse::{Decoded, Decoder};
use crate::wire::{Delta, Fact, Operation, StreamReader, Usage};

/// Whether the usage chunk reaches the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageChunk {
    /// The client asked for it, or nobody did.
    Forward,
    /// Sluice asked for it on its own.
    Hide,
}

/// One stream on its way from a provider to a client.
#[derive(Debug)]
pub struct Relay {
    decoder: Decoder,
    reader: StreamReader,
    usage_chunk: UsageChunk,
    /// Neither a frame's data nor the frame as a whole, comments and all, is held beyond this.
    max_frame: u64,
    /// The start of an event whose end has not come.
    held: BytesMut,
    /// A frame that was cut out ended in CR at the end of its chunk: an LF may still belong to it.
    cut_lf: bool,
}

impl Relay {
    /// `max_frame`: the bound of one event, [`crate::defaults::streaming::FRAME_BYTES`].
    #[must_use]
    pub fn new(operation: Operation, max_frame: usize, usage_chunk: UsageChunk) -> Self {
        Self {
            decoder: Decoder::new(max_frame),
            reader: StreamReader::new(operation),
            usage_chunk,
            max_frame: max_frame as u64,
            held: BytesMut::new(),
            cut_lf: false,
        }
    }

    /// Takes the next bytes from the provider: `on_fact` hears what they say, event by event; `forward` gets what
    /// goes to the client, in order, none of it empty.
    pub fn push(&mut self, chunk: &Bytes, mut on_fact: impl FnMut(Fact), mut forward: impl FnMut(Bytes)) {
        let base = self.decoder.offset();
        let mut cuts: Vec<(u64, u64)> = Vec::new();
        let (reader, usage_chunk, max_frame) = (&mut self.reader, self.usage_chunk, self.max_frame);
        self.decoder.push(chunk, |decoded| {
            let fact = match decoded {
                Decoded::Event(event) => {
                    let fact = reader.read(event);
                    // The start of a longer frame has gone out: what is left of it must follow.
                    let whole = event.end - event.start <= max_frame;
                    if whole && fact.usage_chunk && usage_chunk == UsageChunk::Hide {
                        cuts.push((event.start, event.end));
                    }
                    fact
                }
                Decoded::Comment => Fact { ping: true, ..Fact::default() },
                // What is too large to decode is content; nothing else is that large.
                Decoded::Oversized => Fact { delta: Delta::Token, deltas: 1, ..Fact::default() },
                Decoded::OversizedEnd { .. } => return,
            };
            on_fact(fact);
        });
        self.emit(chunk, base, &cuts, &mut forward);
    }

    fn emit(&mut self, chunk: &Bytes, base: u64, cuts: &[(u64, u64)], forward: &mut impl FnMut(Bytes)) {
        let mut send = |bytes: Bytes| {
            if !bytes.is_empty() {
                forward(bytes);
            }
        };
        let mut cursor = 0;
        if let Some(first) = chunk.first()
            && std::mem::take(&mut self.cut_lf)
            && *first == b'\n'
        {
            cursor = 1;
        }
        // What is held is the start of one frame: it goes, whole, wherever that frame goes.
        let held_is_cut = cuts.first().is_some_and(|(start, _)| *start < base);
        let frame = self.decoder.offset() - self.decoder.frame_start();
        let hold = self.decoder.undispatched() && !self.decoder.skipping() && frame <= self.max_frame;
        let hold_from =
            if hold { self.decoder.frame_start().saturating_sub(base) as usize } else { chunk.len() };
        let frame_goes_on = hold && self.decoder.frame_start() < base;
        if held_is_cut {
            self.held.clear();
        } else if !frame_goes_on {
            send(self.held.split().freeze());
        }
        for (start, end) in cuts {
            let (start, end) = (start.saturating_sub(base) as usize, (end - base) as usize);
            send(chunk.slice(cursor..start.max(cursor)));
            cursor = end;
            self.cut_lf = end == chunk.len() && self.decoder.owes_lf();
        }
        let hold_from = hold_from.max(cursor);
        send(chunk.slice(cursor..hold_from));
        self.held.extend_from_slice(&chunk[hold_from..]);
    }

    /// The end of the provider's body: what was held, for a body that ended in order. A stream that is cut gets
    /// its error event instead.
    ///
    /// A last event without its blank line still counts for accounting (some servers end `data: [DONE]` so).
    #[must_use]
    pub fn finish(&mut self, mut on_fact: impl FnMut(Fact)) -> Bytes {
        let mut hide = false;
        let (reader, usage_chunk) = (&mut self.reader, self.usage_chunk);
        self.decoder.cut_off(|event| {
            let fact = reader.read(event);
            // Half an event must not pass for a token.
            if fact.terminal || fact.usage.is_some() {
                hide = fact.usage_chunk && usage_chunk == UsageChunk::Hide;
                on_fact(Fact { delta: Delta::None, deltas: 0, ..fact });
            }
        });
        if hide { Bytes::new() } else { self.held.split().freeze() }
    }

    /// Whether what was forwarded stops inside an event (one too large to hold): an error event needs a blank
    /// line before it.
    #[must_use]
    pub fn stops_inside_event(&self) -> bool {
        self.decoder.skipping() || (self.decoder.undispatched() && self.held.is_empty())
    }

    /// Bytes held back for want of their blank line.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Usage as reported so far; `None`: settle by estimate.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.reader.usage()
    }
}
