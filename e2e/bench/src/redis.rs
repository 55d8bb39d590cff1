//! The Redis of a round, and what an admission costs it.
//!
//! What one `EVALSHA` takes is measured with the agent's own call: MONITOR shows one, and it is repeated with
//! fresh nonces, so that the script runs its whole way each time.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::process::{Process, Usage, free_port};
use crate::stats::percentile;

/// Calls whose round trips are measured.
const REPEATS: usize = 2_000;

pub struct Redis {
    process: Process,
    pub port: u16,
}

/// What the server has done so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Work {
    /// `EVALSHA` calls, and the time inside them.
    pub calls: u64,
    pub inside: Duration,
    pub usage: Usage,
}

impl Redis {
    pub async fn start(core: usize, directory: &Path) -> anyhow::Result<Self> {
        let port = free_port().await?;
        let log = directory.join("redis.log");
        let port_text = port.to_string();
        let line = [
            "redis-server",
            "--port",
            &port_text,
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--maxmemory-policy",
            "noeviction",
        ];
        let mut process = Process::start("redis-server", core, &log, &line)?;
        process.listening(port, &log).await?;
        Ok(Self { process, port })
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub async fn work(&self) -> anyhow::Result<Work> {
        let mut client = Client::open(self.port).await?;
        let stats = client.call(&["INFO", "commandstats"]).await?;
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:")).unwrap_or_default();
        let fields: HashMap<&str, &str> = line.split(',').filter_map(|field| field.split_once('=')).collect();
        let number = |name| fields.get(name).and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        Ok(Work {
            calls: number("calls"),
            inside: Duration::from_micros(number("usec")),
            usage: self.process.usage()?,
        })
    }

    /// Waits for the next `EVALSHA` that `cause` makes somebody send.
    pub async fn see_evalsha(
        &self,
        cause: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<Vec<Vec<u8>>> {
        let mut client = Client::open(self.port).await?;
        client.call(&["MONITOR"]).await?;
        cause.await?;
        let seen = async {
            loop {
                let line = client.line().await?;
                let words = words(&line);
                if words.first().is_some_and(|word| word.eq_ignore_ascii_case(b"evalsha")) {
                    return anyhow::Ok(words);
                }
            }
        };
        timeout(Duration::from_secs(5), seen).await.context("nobody sent an EVALSHA")?
    }

    /// The median round trip of a call like the one seen, one in flight.
    pub async fn repeat(&self, seen: &[Vec<u8>]) -> anyhow::Result<Duration> {
        let nonce =
            nonce(seen).context("the EVALSHA seen has no key with a nonce: has the key layout changed?")?;
        let mut client = Client::open(self.port).await?;
        let mut samples = Vec::with_capacity(REPEATS);
        for number in 0..REPEATS {
            let fresh = format!("{number:0width$x}", width = nonce.len());
            let call: Vec<Vec<u8>> =
                seen.iter().map(|word| replace(word, &nonce, fresh.as_bytes())).collect();
            let sent = Instant::now();
            client.call(&call).await.with_context(|| {
                let words: Vec<_> = call.iter().map(|word| String::from_utf8_lossy(word)).collect();
                format!("repeating {words:?}")
            })?;
            samples.push(sent.elapsed());
        }
        Ok(percentile(&mut samples, 50.0))
    }

    pub async fn stop(self) -> anyhow::Result<()> {
        self.process.stop().await
    }
}

/// The part of the key `…:adm:<nonce>` behind its last colon.
fn nonce(words: &[Vec<u8>]) -> Option<Vec<u8>> {
    let key = words.iter().find(|word| memchr::memmem::find(word, b":adm:").is_some())?;
    let at = memchr::memmem::rfind(key, b":")?;
    Some(key[at + 1..].to_vec())
}

fn replace(word: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    match memchr::memmem::find(word, old) {
        Some(at) => [&word[..at], new, &word[at + old.len()..]].concat(),
        None => word.to_vec(),
    }
}

/// The quoted words of a line of MONITOR.
fn words(line: &str) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut bytes = line.bytes();
    while bytes.any(|byte| byte == b'"') {
        let mut word = Vec::new();
        while let Some(byte) = bytes.next() {
            match byte {
                b'"' => break,
                b'\\' => match bytes.next() {
                    Some(b'x') => {
                        let mut digit =
                            || bytes.next().and_then(|byte| char::from(byte).to_digit(16)).unwrap_or(0);
                        word.push((digit() * 16 + digit()) as u8);
                    }
                    Some(b'n') => word.push(b'\n'),
                    Some(b'r') => word.push(b'\r'),
                    Some(b't') => word.push(b'\t'),
                    Some(other) => word.push(other),
                    None => {}
                },
                _ => word.push(byte),
            }
        }
        words.push(word);
    }
    words
}

/// As much of RESP as is needed here.
struct Client(BufReader<TcpStream>);

impl Client {
    async fn open(port: u16) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a command; a reply that is an array is read and thrown away.
    async fn call<S: AsRef<[u8]>>(&mut self, command: &[S]) -> anyhow::Result<String> {
        let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
        for word in command {
            let word = word.as_ref();
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        self.0.write_all(&bytes).await?;
        let mut replies = 1_usize;
        let mut text = String::new();
        while replies > 0 {
            replies -= 1;
            let line = self.line().await?;
            let (kind, rest) = line.split_at_checked(1).context("an empty reply")?;
            match kind {
                "-" => bail!("redis: {rest}"),
                "*" => replies += rest.parse::<usize>()?,
                "$" if rest != "-1" => {
                    let mut body = vec![0; rest.parse::<usize>()? + 2];
                    self.0.read_exact(&mut body).await?;
                    text = String::from_utf8_lossy(&body).into_owned();
                }
                _ => {}
            }
        }
        Ok(text)
    }

    async fn line(&mut self) -> anyhow::Result<String> {
        let mut line = Vec::new();
        ensure!(self.0.read_until(b'\n', &mut line).await? > 0, "redis closed the connection");
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_seen_can_be_made_again_with_another_nonce() {
        let line = r#"1750000000.1 [0 127.0.0.1:5] "EVALSHA" "abc" "2" "sluice:1:{x}:target" "sluice:1:{x}:adm:00ff" "a\"b\x00" "00ff""#;
        let seen = words(line);
        assert_eq!(seen[0], b"EVALSHA");
        assert_eq!(seen[5], b"a\"b\0");
        let nonce = nonce(&seen).unwrap_or_default();
        assert_eq!(nonce, b"00ff");
        assert_eq!(replace(&seen[4], &nonce, b"0001"), b"sluice:1:{x}:adm:0001");
        assert_eq!(replace(&seen[6], &nonce, b"0001"), b"0001");
        assert_eq!(replace(&seen[2], &nonce, b"0001"), b"2");
    }
}
