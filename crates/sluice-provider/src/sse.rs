//! Writing server-sent events in every form that the standard allows.

use bytes::{BufMut, Bytes, BytesMut};

use crate::scenario::{Framing, LineEnd};

/// Room for a few dozen events at a time.
const BLOCK: usize = 8 * 1024;

/// Collects events, to be handed out as one chunk.
#[derive(Debug)]
pub(crate) struct Sink {
    framing: Framing,
    line_end: &'static [u8],
    buffer: BytesMut,
    begun: bool,
}

impl Sink {
    pub(crate) fn new(framing: Framing) -> Self {
        let line_end: &[u8] = match framing.line_end {
            LineEnd::Lf => b"\n",
            LineEnd::Crlf => b"\r\n",
            LineEnd::Cr => b"\r",
        };
        Self { framing, line_end, buffer: BytesMut::new(), begun: false }
    }

    /// An event; `data` is one line.
    pub(crate) fn event(&mut self, name: Option<&str>, data: &[&[u8]]) {
        self.begin();
        if self.framing.comments {
            self.line("", b"in between");
        }
        if let Some(name) = name {
            self.line("event", name.as_bytes());
        }
        if self.framing.split_data {
            let joined = data.concat();
            // Before the second member: JSON allows a line feed there, and no id has a comma.
            let cut = joined.iter().position(|byte| *byte == b',').unwrap_or(joined.len());
            let (first, second) = joined.split_at(cut);
            self.line("data", first);
            if !second.is_empty() {
                self.line("data", second);
            }
        } else {
            self.field("data");
            for part in data {
                self.buffer.put_slice(part);
            }
            self.buffer.put_slice(self.line_end);
        }
        self.buffer.put_slice(self.line_end);
    }

    /// A comment and the blank line after it.
    pub(crate) fn comment(&mut self, text: &str) {
        self.begin();
        self.line("", text.as_bytes());
        self.buffer.put_slice(self.line_end);
    }

    /// What has been collected since the last time.
    pub(crate) fn take(&mut self) -> Bytes {
        self.buffer.split().freeze()
    }

    /// What has been collected as the end of the stream.
    pub(crate) fn take_last(&mut self) -> Bytes {
        let mut last = self.buffer.split();
        if !self.framing.final_blank {
            let end = last.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n')).map_or(0, |at| at + 1);
            last.truncate(end);
        }
        last.freeze()
    }

    pub(crate) fn byte_per_write(&self) -> bool {
        self.framing.byte_per_write
    }

    fn begin(&mut self) {
        if !self.begun {
            self.begun = true;
            if self.framing.bom {
                self.buffer.put_slice("\u{feff}".as_bytes());
            }
        }
        if self.buffer.capacity() - self.buffer.len() < 512 {
            self.buffer.reserve(BLOCK);
        }
    }

    fn field(&mut self, name: &str) {
        self.buffer.put_slice(name.as_bytes());
        self.buffer.put_slice(if self.framing.space { b": " } else { b":" });
    }

    fn line(&mut self, name: &str, value: &[u8]) {
        self.field(name);
        self.buffer.put_slice(value);
        self.buffer.put_slice(self.line_end);
    }
}

#[cfg(test)]
mod tests {
    use super::Sink;
    use crate::scenario::{Framing, LineEnd};

    fn written(framing: Framing) -> String {
        let mut sink = Sink::new(framing);
        sink.event(Some("x"), &[b"{\"a\":1", b",\"b\":2}"]);
        String::from_utf8(sink.take_last().to_vec()).unwrap()
    }

    #[test]
    fn framings() {
        let usual = Framing::default;
        assert_eq!(written(usual()), "event: x\ndata: {\"a\":1,\"b\":2}\n\n");
        assert_eq!(
            written(Framing { line_end: LineEnd::Cr, space: false, ..usual() }),
            "event:x\rdata:{\"a\":1,\"b\":2}\r\r"
        );
        assert_eq!(
            written(Framing { line_end: LineEnd::Crlf, bom: true, comments: true, ..usual() }),
            "\u{feff}: in between\r\nevent: x\r\ndata: {\"a\":1,\"b\":2}\r\n\r\n"
        );
        assert_eq!(
            written(Framing { split_data: true, final_blank: false, ..usual() }),
            "event: x\ndata: {\"a\":1\ndata: ,\"b\":2}"
        );
    }
}
