//! An OTLP collector as the agent finds it on good days and bad ones: it takes everything, it never answers, or
//! it refuses. It runs beside the load, so that its work is not the peer's.

use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::{JoinHandle, spawn_local};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    Takes,
    /// Reads, and never answers.
    Hangs,
    /// Answers 503.
    Refuses,
    /// Nobody listens there.
    Down,
}

/// Ends with its holder.
pub struct Collector {
    pub port: u16,
    _held: Option<TcpSocket>,
    serving: Option<JoinHandle<()>>,
}

impl Collector {
    pub fn start(mood: Mood) -> anyhow::Result<Self> {
        // Bound and not listening: nobody else gets the port, and whoever connects is refused.
        let socket = TcpSocket::new_v4()?;
        socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        let port = socket.local_addr()?.port();
        if mood == Mood::Down {
            return Ok(Self { port, _held: Some(socket), serving: None });
        }
        let listener = socket.listen(64)?;
        let serving = Some(spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // An exporter that goes away ends its connection, and that is all.
                spawn_local(async move { serve(stream, mood).await });
            }
        }));
        Ok(Self { port, _held: None, serving })
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        if let Some(serving) = &self.serving {
            serving.abort();
        }
    }
}

async fn serve(mut stream: TcpStream, mood: Mood) -> anyhow::Result<()> {
    let mut request = Vec::new();
    while read_request(&mut stream, &mut request).await? {
        let answer: &[u8] = match mood {
            Mood::Takes => b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            Mood::Refuses => b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n",
            Mood::Hangs | Mood::Down => continue,
        };
        stream.write_all(answer).await?;
    }
    Ok(())
}

/// Takes one request off the connection; false: it has ended.
async fn read_request(stream: &mut TcpStream, request: &mut Vec<u8>) -> anyhow::Result<bool> {
    loop {
        let mut headers = [httparse::EMPTY_HEADER; 32];
        let mut parsed = httparse::Request::new(&mut headers);
        if let httparse::Status::Complete(head) = parsed.parse(request)? {
            let length =
                parsed.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
            let length = length.and_then(|header| std::str::from_utf8(header.value).ok()?.parse().ok());
            let whole = head + length.unwrap_or(0);
            if request.len() >= whole {
                request.drain(..whole);
                return Ok(true);
            }
        }
        if stream.read_buf(request).await? == 0 {
            return Ok(false);
        }
    }
}
