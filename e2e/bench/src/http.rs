//! A client connection of HTTP/1.1, with next to no cost of its own: what it spends, every peer seems to spend.

use anyhow::{Context as _, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Answers are small and chunks smaller.
const BUFFER: usize = 16 * 1_024;

pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// Bytes of the buffer that are filled, and those of them that are used up.
    filled: usize,
    used: usize,
}

enum Framing {
    Length(usize),
    Chunked,
}

impl Connection {
    pub async fn open(port: u16) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: vec![0; BUFFER], filled: 0, used: 0 })
    }

    /// Sends a request and reads its answer; `on_body` sees the body in the pieces that arrive.
    pub async fn exchange(&mut self, request: &[u8], mut on_body: impl FnMut(&[u8])) -> anyhow::Result<()> {
        self.stream.write_all(request).await?;
        match self.read_head().await? {
            Framing::Length(length) => self.read_exactly(length, &mut on_body).await,
            Framing::Chunked => loop {
                let size = self.read_chunk_size().await?;
                self.read_exactly(size, &mut on_body).await?;
                // Every chunk ends with CRLF, and so does the empty list of trailers.
                self.read_exactly(2, &mut |_| {}).await?;
                if size == 0 {
                    return Ok(());
                }
            },
        }
    }

    fn waiting(&self) -> &[u8] {
        &self.buffer[self.used..self.filled]
    }

    async fn fill(&mut self) -> anyhow::Result<()> {
        if self.used == self.filled {
            (self.used, self.filled) = (0, 0);
        } else if self.filled == self.buffer.len() {
            self.buffer.copy_within(self.used..self.filled, 0);
            (self.used, self.filled) = (0, self.filled - self.used);
            ensure!(self.filled < self.buffer.len(), "a head or a chunk's size over {BUFFER} bytes");
        }
        let read = self.stream.read(&mut self.buffer[self.filled..]).await?;
        ensure!(read > 0, "the connection ended in an answer");
        self.filled += read;
        Ok(())
    }

    async fn read_head(&mut self) -> anyhow::Result<Framing> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; 32];
            let mut response = httparse::Response::new(&mut headers);
            let parsed = response.parse(self.waiting()).context("the answer's head")?;
            if let httparse::Status::Complete(length) = parsed {
                let status = response.code.unwrap_or(0);
                let framing = framing(response.headers)?;
                self.used += length;
                ensure!(status == 200, "status {status}");
                return Ok(framing);
            }
            self.fill().await?;
        }
    }

    async fn read_exactly(
        &mut self,
        mut length: usize,
        on_body: &mut impl FnMut(&[u8]),
    ) -> anyhow::Result<()> {
        while length > 0 {
            if self.used == self.filled {
                self.fill().await?;
            }
            let waiting = self.waiting();
            let taken = waiting.len().min(length);
            on_body(&waiting[..taken]);
            self.used += taken;
            length -= taken;
        }
        Ok(())
    }

    async fn read_chunk_size(&mut self) -> anyhow::Result<usize> {
        loop {
            match httparse::parse_chunk_size(self.waiting()) {
                Ok(httparse::Status::Complete((length, size))) => {
                    self.used += length;
                    return Ok(usize::try_from(size)?);
                }
                Ok(httparse::Status::Partial) => self.fill().await?,
                Err(_) => bail!("no chunk size where one is due"),
            }
        }
    }
}

fn framing(headers: &[httparse::Header<'_>]) -> anyhow::Result<Framing> {
    for header in headers {
        if header.name.eq_ignore_ascii_case("content-length") {
            return Ok(Framing::Length(std::str::from_utf8(header.value)?.trim().parse()?));
        }
        if header.name.eq_ignore_ascii_case("transfer-encoding") {
            return Ok(Framing::Chunked);
        }
    }
    bail!("an answer without a length")
}
