//! Server-sent events, decoded on the side while the original bytes are relayed.
//!
//! The decoder sees a *copy* of what the client gets, so it must never hold anything up and never need more
//! memory than one bounded frame: a frame beyond the bound is reported once and skipped up to the next blank
//! line, and decoding goes on behind it. An event that lies whole in one chunk is handed out as slices of
//! that chunk; only what straddles a chunk is copied, into buffers that are used again.
//!
//! Rules (WHATWG HTML, "Server-sent events", 9.2.5 and 9.2.6):
//! - lines end in LF, CR or CRLF, in any mixture, and a CRLF may be split over two chunks;
//! - one byte order mark at offset 0 is dropped;
//! - a line that begins with a colon is a comment; one space after a field's colon is dropped; a line without
//!   a colon is a field with an empty value; unknown fields (`id` and `retry` among them) mean nothing here;
//! - several `data` lines are joined by LF; a blank line dispatches; without any `data` line nothing is
//!   dispatched; an event that the end of the stream cuts off is dropped ([`Decoder::finish`] tells);
//! - bytes are not checked for UTF-8: a reader of JSON does that where it must.

use memchr::memchr2;

/// Buffers that grew beyond this for one large event are given back after it.
const KEEP_CAPACITY: usize = 64 * 1_024;
const BOM: [u8; 3] = [0xEF, 0xBB, 0xBF];

/// What a push finds, in the order of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decoded<'a> {
    Event(Event<'a>),
    /// A comment line: what providers and proxies send to keep a connection open.
    Comment,
    /// The current frame went over the bound; nothing of it is decoded. Reported once per frame.
    Oversized,
    /// The blank line behind an oversized frame, with the offset behind it.
    OversizedEnd {
        end: u64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// The `event` field; `None` when absent or empty.
    pub event: Option<&'a [u8]>,
    /// All `data` lines, joined by LF.
    pub data: &'a [u8],
    /// Offset in the stream of the frame's first byte: its first line's, comments and all.
    pub start: u64,
    /// Offset in the stream behind the blank line. The LF of a final CRLF belongs to it when it lies in the same
    /// chunk; when it comes later, [`Decoder::owes_lf`] says so.
    pub end: u64,
}

/// An incremental decoder; see the module's head.
#[derive(Debug)]
pub struct Decoder {
    max_frame: usize,
    /// Offset in the stream of the next byte to be pushed.
    offset: u64,
    /// Where the current frame began.
    frame_start: u64,
    /// Bytes of the byte order mark matched so far; `BOM.len()` once that is settled.
    bom: usize,
    after_cr: bool,
    /// The part of the current line that came in earlier chunks.
    line: Vec<u8>,
    /// `data` of the current frame that came in earlier chunks, or of more than one line.
    data: Vec<u8>,
    has_data: bool,
    event: Vec<u8>,
    skip: Skip,
}

/// Whether the current frame is over the bound, and then whether its current line has any byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Skip {
    No,
    Yes { line_empty: bool },
}

impl Decoder {
    /// `max_frame` bounds the bytes of `data` plus those of the current line.
    #[must_use]
    pub fn new(max_frame: usize) -> Self {
        Self {
            max_frame,
            offset: 0,
            frame_start: 0,
            bom: 0,
            after_cr: false,
            line: Vec::new(),
            data: Vec::new(),
            has_data: false,
            event: Vec::new(),
            skip: Skip::No,
        }
    }

    /// Decodes the next bytes of the stream.
    pub fn push(&mut self, chunk: &[u8], mut on: impl FnMut(Decoded<'_>)) {
        let base = self.offset;
        let mut at = self.skip_bom(chunk);
        // The data of the current frame while it is one line of this chunk.
        let mut borrowed: Option<&[u8]> = None;
        if self.after_cr && at < chunk.len() {
            self.after_cr = false;
            if chunk[at] == b'\n' {
                // It ends the line that the CR ended: a frame that begins here begins behind it.
                if self.frame_start == base + at as u64 {
                    self.frame_start += 1;
                }
                at += 1;
            }
        }
        while at < chunk.len() {
            let Some(length) = memchr2(b'\n', b'\r', &chunk[at..]) else {
                if !self.keep_partial_line(&chunk[at..], borrowed.map_or(0, <[u8]>::len), &mut on) {
                    borrowed = None;
                }
                break;
            };
            let line = &chunk[at..at + length];
            let mut next = at + length + 1;
            if chunk[at + length] == b'\r' {
                match chunk.get(next) {
                    Some(b'\n') => next += 1,
                    Some(_) => {}
                    None => self.after_cr = true,
                }
            }
            self.end_line(line, &mut borrowed, base + next as u64, &mut on);
            at = next;
        }
        if let Some(data) = borrowed {
            self.data.clear();
            self.data.extend_from_slice(data);
        }
        self.offset = base + chunk.len() as u64;
    }

    /// The end of the stream: whether it cut off an event (`true`), which is dropped.
    #[must_use]
    pub fn finish(&self) -> bool {
        self.mid_frame()
    }

    /// The event that the end of the stream cut off, as if its blank line had come.
    ///
    /// Event streams drop it. Accounting may look at it all the same, as some servers end their last
    /// `data: [DONE]` without a blank line.
    pub fn cut_off(&mut self, mut on: impl FnMut(Event<'_>)) {
        if self.skip != Skip::No {
            return;
        }
        let end = self.offset;
        let mut borrowed = None;
        if !self.line.is_empty() {
            self.end_line(&[], &mut borrowed, end, &mut |_| {});
        }
        self.dispatch(borrowed, end, &mut |decoded| {
            if let Decoded::Event(event) = decoded {
                on(event);
            }
        });
    }

    /// Whether the current frame has anything that a client has not dispatched yet: a field, or part of a
    /// line. Comments and blank lines are nothing.
    #[must_use]
    pub fn undispatched(&self) -> bool {
        self.has_data || !self.event.is_empty() || !self.line.is_empty()
    }

    /// Whether the current frame is over the bound and is being skipped.
    #[must_use]
    pub fn skipping(&self) -> bool {
        self.skip != Skip::No
    }

    /// Offset in the stream of the current frame's first byte.
    #[must_use]
    pub const fn frame_start(&self) -> u64 {
        self.frame_start
    }

    /// Whether the stream stands inside a frame: bytes came since the last blank line.
    #[must_use]
    pub fn mid_frame(&self) -> bool {
        self.offset > self.frame_start
    }

    /// Whether a CR was the last byte, so that an LF at the start of the next chunk belongs to it.
    #[must_use]
    pub const fn owes_lf(&self) -> bool {
        self.after_cr
    }

    /// Offset in the stream of the next byte to be pushed.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes that are kept for the current frame.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.line.len() + self.data.len() + self.event.len()
    }

    /// Consumes the byte order mark; returns how many bytes of the chunk it took.
    fn skip_bom(&mut self, chunk: &[u8]) -> usize {
        let mut at = 0;
        while self.bom < BOM.len() && at < chunk.len() {
            if chunk[at] == BOM[self.bom] {
                self.bom += 1;
                at += 1;
            } else {
                // No mark after all: what matched in an earlier chunk begins the first line.
                let earlier = self.bom - at.min(self.bom);
                self.line.extend_from_slice(&BOM[..earlier]);
                self.bom = BOM.len();
                return 0;
            }
        }
        at
    }

    /// Keeps the start of a line that a later chunk goes on with; `false` when the frame is over the bound.
    fn keep_partial_line(&mut self, part: &[u8], borrowed: usize, on: &mut impl FnMut(Decoded<'_>)) -> bool {
        if let Skip::Yes { line_empty } = &mut self.skip {
            *line_empty = false;
            return false;
        }
        if self.data.len() + borrowed + self.line.len() + part.len() > self.max_frame {
            self.start_skipping(false, on);
            return false;
        }
        self.line.extend_from_slice(part);
        true
    }

    /// A line is complete: `rest` is its part in this chunk, `end` the offset behind its terminator.
    fn end_line<'c>(
        &mut self,
        rest: &'c [u8],
        borrowed: &mut Option<&'c [u8]>,
        end: u64,
        on: &mut impl FnMut(Decoded<'_>),
    ) {
        if let Skip::Yes { line_empty } = self.skip {
            if line_empty && rest.is_empty() {
                self.reset_frame(end);
                on(Decoded::OversizedEnd { end });
            } else {
                self.skip = Skip::Yes { line_empty: true };
            }
            return;
        }
        let data_len = borrowed.map_or(self.data.len(), <[u8]>::len);
        if data_len + self.line.len() + rest.len() > self.max_frame {
            *borrowed = None;
            self.start_skipping(true, on);
        } else if self.line.is_empty() {
            if rest.is_empty() {
                self.dispatch(borrowed.take(), end, on);
                return;
            }
            match field(rest) {
                Field::Data(value) if !self.has_data => {
                    self.has_data = true;
                    *borrowed = Some(value);
                }
                Field::Data(value) => self.append_data(borrowed, value),
                Field::Event(value) => self.set_event(value),
                Field::Comment => on(Decoded::Comment),
                Field::Other => {}
            }
        } else {
            let mut line = std::mem::take(&mut self.line);
            line.extend_from_slice(rest);
            match field(&line) {
                Field::Data(value) => self.append_data(borrowed, value),
                Field::Event(value) => self.set_event(value),
                Field::Comment => on(Decoded::Comment),
                Field::Other => {}
            }
            line.clear();
            self.line = line;
        }
    }

    /// Adds a `data` line to the frame's buffer, behind an LF when it is not the first.
    fn append_data(&mut self, borrowed: &mut Option<&[u8]>, value: &[u8]) {
        if let Some(first) = borrowed.take() {
            self.data.clear();
            self.data.extend_from_slice(first);
        }
        if self.has_data {
            self.data.push(b'\n');
        }
        self.has_data = true;
        self.data.extend_from_slice(value);
    }

    fn set_event(&mut self, value: &[u8]) {
        self.event.clear();
        self.event.extend_from_slice(value);
    }

    fn dispatch(&mut self, borrowed: Option<&[u8]>, end: u64, on: &mut impl FnMut(Decoded<'_>)) {
        if self.has_data {
            let event = (!self.event.is_empty()).then_some(self.event.as_slice());
            let data = borrowed.unwrap_or(&self.data);
            on(Decoded::Event(Event { event, data, start: self.frame_start, end }));
        }
        self.reset_frame(end);
    }

    fn start_skipping(&mut self, line_empty: bool, on: &mut impl FnMut(Decoded<'_>)) {
        let start = self.frame_start;
        self.reset_frame(start);
        self.skip = Skip::Yes { line_empty };
        on(Decoded::Oversized);
    }

    fn reset_frame(&mut self, start: u64) {
        self.frame_start = start;
        self.skip = Skip::No;
        self.has_data = false;
        for buffer in [&mut self.line, &mut self.data, &mut self.event] {
            buffer.clear();
            buffer.shrink_to(KEEP_CAPACITY);
        }
    }
}

enum Field<'a> {
    Data(&'a [u8]),
    Event(&'a [u8]),
    Comment,
    Other,
}

fn field(line: &[u8]) -> Field<'_> {
    fn value(rest: &[u8]) -> Option<&[u8]> {
        match rest {
            [] => Some(rest),
            [b':', b' ', value @ ..] | [b':', value @ ..] => Some(value),
            _ => None,
        }
    }
    if let Some(value) = line.strip_prefix(b"data").and_then(value) {
        return Field::Data(value);
    }
    if let Some(value) = line.strip_prefix(b"event").and_then(value) {
        return Field::Event(value);
    }
    if line.first() == Some(&b':') { Field::Comment } else { Field::Other }
}
