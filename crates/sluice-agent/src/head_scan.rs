//! Sees a request that is framed twice: with `Content-Length` and with `Transfer-Encoding`, or with two
//! `Content-Length`s.
//!
//! hyper takes the first kind by its Transfer-Encoding, drops the other header and closes the connection
//! behind it, and of two equal lengths drops one; both are safe, as every request that leaves the agent is
//! framed anew. A gateway should still refuse them (RFC 9112 § 6.3 allows it, and nobody sends it in good faith), but behind hyper's parser it cannot
//! be told any more. So the bytes of each head are looked at on their way in: names only, one comparison per
//! line.
//!
//! A head that arrives in one read with the end of the request before it is not looked at; hyper's safe
//! reading is what is left there.

use memchr::memchr;

/// Enough of a line to tell its name.
const NAME_MAX: usize = 18;

#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
enum Phase {
    #[default]
    Head,
    /// Behind a head: nothing is looked at until the next one is due.
    Idle,
    /// HTTP/2 frames its bodies itself.
    Http2,
}

#[derive(Debug, Default)]
pub(crate) struct HeadScan {
    phase: Phase,
    /// The beginning of a line that a read cut.
    line: Vec<u8>,
    content_lengths: u8,
    transfer_encoding: bool,
}

impl HeadScan {
    /// The next bytes are a head.
    pub(crate) fn expect_head(&mut self) {
        if self.phase == Phase::Idle {
            *self = Self::default();
        }
    }

    /// Takes what was read.
    pub(crate) fn read(&mut self, mut bytes: &[u8]) {
        while self.phase == Phase::Head && !bytes.is_empty() {
            let (line, rest) = match memchr(b'\n', bytes) {
                Some(end) => (&bytes[..end], Some(&bytes[end + 1..])),
                None => (bytes, None),
            };
            let room = NAME_MAX.saturating_sub(self.line.len());
            match rest {
                Some(rest) if self.line.is_empty() => {
                    self.end_line(line);
                    bytes = rest;
                }
                Some(rest) => {
                    let mut whole = std::mem::take(&mut self.line);
                    whole.extend_from_slice(&line[..line.len().min(room)]);
                    self.end_line(&whole);
                    bytes = rest;
                }
                None => {
                    self.line.extend_from_slice(&line[..line.len().min(room)]);
                    return;
                }
            }
        }
    }

    fn end_line(&mut self, line: &[u8]) {
        match line.first() {
            None | Some(b'\r') => self.phase = Phase::Idle,
            Some(b'P') if line.starts_with(b"PRI * HTTP/2") => self.phase = Phase::Http2,
            Some(b'c' | b'C') => {
                self.content_lengths =
                    self.content_lengths.saturating_add(named(line, b"content-length").into());
            }
            Some(b't' | b'T') => self.transfer_encoding |= named(line, b"transfer-encoding"),
            _ => {}
        }
    }

    /// Whether the head that was read last is framed twice.
    pub(crate) fn framed_twice(&self) -> bool {
        self.content_lengths > 1 || (self.content_lengths == 1 && self.transfer_encoding)
    }
}

fn named(line: &[u8], name: &[u8]) -> bool {
    line.len() > name.len() && line[name.len()] == b':' && line[..name.len()].eq_ignore_ascii_case(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWICE: &[u8] =
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-length: 3\r\nX: y\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n";
    const ONCE: &[u8] = b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding-X: chunked\r\n\r\nabc";

    #[test]
    fn a_head_framed_twice_is_seen_however_it_is_cut() {
        for cut in 0..TWICE.len() {
            let mut scan = HeadScan::default();
            scan.read(&TWICE[..cut]);
            scan.read(&TWICE[cut..]);
            assert!(scan.framed_twice(), "cut at {cut}");
        }
        let mut scan = HeadScan::default();
        for byte in TWICE {
            scan.read(&[*byte]);
        }
        assert!(scan.framed_twice());
    }

    #[test]
    fn two_lengths_are_seen() {
        let mut scan = HeadScan::default();
        scan.read(b"POST / HTTP/1.1\r\nContent-Length: 3\r\ncontent-length: 3\r\n\r\n");
        assert!(scan.framed_twice());
        scan.expect_head();
        scan.read(ONCE);
        assert!(!scan.framed_twice());
    }

    #[test]
    fn a_body_is_not_taken_for_a_head() {
        let mut scan = HeadScan::default();
        scan.read(ONCE);
        scan.read(b"\r\ntransfer-encoding: chunked\r\n");
        assert!(!scan.framed_twice());
        scan.expect_head();
        scan.read(TWICE);
        assert!(scan.framed_twice());
    }

    #[test]
    fn http2_is_left_alone() {
        let mut scan = HeadScan::default();
        scan.read(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        scan.expect_head();
        scan.read(TWICE);
        assert!(!scan.framed_twice());
    }

    #[test]
    fn a_long_line_takes_no_memory() {
        let mut scan = HeadScan::default();
        for _ in 0..1_000 {
            scan.read(&[b'a'; 1_000]);
        }
        assert!(scan.line.capacity() <= 64);
    }
}
