//! Just enough of Redis' protocol to drive servers from tests and to count what passes a proxy.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Sends one command over a connection of its own and waits for the reply, as text: arrays line by line,
/// errors as errors.
pub(crate) fn command(port: u16, words: &[&str]) -> Result<String> {
    let stream = TcpStream::connect(("127.0.0.1", port)).context("connecting to redis-server")?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        // Writing to a string can't fail.
        let _ = write!(request, "${}\r\n{word}\r\n", word.len());
    }
    (&stream).write_all(request.as_bytes())?;
    reply(&mut BufReader::new(&stream)).with_context(|| format!("{words:?}"))
}

fn reply(reader: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let (kind, rest) = line.trim_end().split_at_checked(1).context("the connection was closed")?;
    match kind {
        "+" | ":" => Ok(rest.to_owned()),
        "-" => bail!("{rest}"),
        "$" => {
            let Ok(len) = rest.parse::<usize>() else { return Ok(String::new()) };
            let mut bytes = vec![0; len + 2];
            reader.read_exact(&mut bytes)?;
            bytes.truncate(len);
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
        "*" => {
            let count = rest.parse::<usize>().unwrap_or(0);
            let mut lines = Vec::with_capacity(count);
            for _ in 0..count {
                lines.push(reply(reader)?);
            }
            Ok(lines.join("\n"))
        }
        _ => bail!("{kind:?} begins no reply"),
    }
}

/// Names the commands in a stream of requests, however it is cut into reads.
#[derive(Debug, Default)]
pub(crate) struct CommandNames {
    buffer: Vec<u8>,
}

impl CommandNames {
    /// Takes what was read; returns the names of the commands that are complete.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<String> {
        self.buffer.extend_from_slice(bytes);
        let mut names = Vec::new();
        while let Some((name, used)) = first_command(&self.buffer) {
            names.push(name);
            self.buffer.drain(..used);
        }
        names
    }
}

fn first_command(bytes: &[u8]) -> Option<(String, usize)> {
    let (count, mut at) = number(bytes, 0, b'*')?;
    let mut name = String::new();
    for index in 0..count {
        let (len, start) = number(bytes, at, b'$')?;
        let word = bytes.get(start..start + len)?;
        bytes.get(start + len..start + len + 2)?;
        if index == 0 {
            name = String::from_utf8_lossy(word).to_ascii_uppercase();
        }
        at = start + len + 2;
    }
    Some((name, at))
}

/// A number behind `kind`, up to the end of its line; where the next line begins.
fn number(bytes: &[u8], at: usize, kind: u8) -> Option<(usize, usize)> {
    let rest = bytes.get(at..)?;
    if *rest.first()? != kind {
        return None;
    }
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let number = std::str::from_utf8(&rest[1..end]).ok()?.parse().ok()?;
    Some((number, at + end + 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_named_however_they_are_cut() {
        let stream = b"*1\r\n$4\r\nping\r\n*2\r\n$3\r\nGET\r\n$5\r\na\r\nbc\r\n*1\r\n$4\r\nTIME\r\n";
        for size in 1..stream.len() {
            let mut names = CommandNames::default();
            let seen: Vec<String> = stream.chunks(size).flat_map(|chunk| names.feed(chunk)).collect();
            assert_eq!(seen, ["PING", "GET", "TIME"], "in pieces of {size}");
        }
    }
}
