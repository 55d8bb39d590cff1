//! The model provider under the peers: one JSON answer or one event stream, at next to no cost.
//!
//! It is in the process of the load generator, on the same core and clock: each event carries the time at which
//! it was written, and the reader subtracts. The scripted provider of the workspace is not used here: what it
//! can do costs more than what is measured.

use std::cell::Cell;
use std::fmt::Write as _;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use memchr::memmem;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep_until};

/// Before and behind the time in an event's text.
pub const MARK: u8 = b'@';

/// How streams are played.
#[derive(Debug, Clone, Copy)]
pub struct Script {
    /// Events with text.
    pub events: u32,
    /// Between two of them, and before the first.
    pub gap: Duration,
}

/// What connections share.
pub struct Mock {
    pub script: Cell<Script>,
    /// Of the times in events.
    pub origin: Instant,
    answer: Vec<u8>,
}

const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

impl Mock {
    /// Serves on a loopback port from now on; returns the port.
    pub async fn start() -> anyhow::Result<(Rc<Self>, u16)> {
        let mock = Rc::new(Self {
            script: Cell::new(Script { events: 50, gap: Duration::from_millis(10) }),
            origin: Instant::now(),
            answer: answer(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        spawn_local({
            let mock = Rc::clone(&mock);
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let mock = Rc::clone(&mock);
                    // A peer that goes away ends its connection, and that is all.
                    spawn_local(async move { mock.serve(stream).await });
                }
            }
        });
        Ok((mock, port))
    }

    async fn serve(&self, mut stream: TcpStream) -> anyhow::Result<()> {
        stream.set_nodelay(true)?;
        let mut request = Vec::with_capacity(4_096);
        loop {
            request.clear();
            let Some(body_at) = read_request(&mut stream, &mut request).await? else { return Ok(()) };
            let body = &request[body_at..];
            if memmem::find(body, b"\"stream\":true").is_some() {
                let usage = memmem::find(body, b"include_usage").is_some();
                self.play(&mut stream, usage).await?;
            } else {
                stream.write_all(&self.answer).await?;
            }
        }
    }

    async fn play(&self, stream: &mut TcpStream, usage: bool) -> anyhow::Result<()> {
        let script = self.script.get();
        stream.write_all(HEAD.as_bytes()).await?;
        let mut due = Instant::now();
        let mut event = String::with_capacity(512);
        for _ in 0..script.events {
            if !script.gap.is_zero() {
                due += script.gap;
                sleep_until(due).await;
            }
            event.clear();
            let now = self.origin.elapsed().as_nanos();
            write!(
                event,
                "data: {{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\"created\":1750000000,\"model\":\"gpt-4o\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{0}{now}{0} \"}},\"finish_reason\":null}}]}}\n\n",
                char::from(MARK)
            )?;
            write_chunk(stream, event.as_bytes()).await?;
        }
        let mut end = String::from(
            "data: {\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\"created\":1750000000,\"model\":\"gpt-4o\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
        );
        if usage {
            write!(
                end,
                "data: {{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\"created\":1750000000,\"model\":\"gpt-4o\",\"choices\":[],\"usage\":{{\"prompt_tokens\":40,\"completion_tokens\":{0},\"total_tokens\":{1}}}}}\n\n",
                script.events,
                script.events + 40
            )?;
        }
        end.push_str("data: [DONE]\n\n");
        write_chunk(stream, end.as_bytes()).await?;
        stream.write_all(b"0\r\n\r\n").await?;
        Ok(())
    }
}

/// Size, bytes and end in one write: one event, one segment.
async fn write_chunk(stream: &mut TcpStream, bytes: &[u8]) -> anyhow::Result<()> {
    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
    chunk.extend_from_slice(bytes);
    chunk.extend_from_slice(b"\r\n");
    stream.write_all(&chunk).await?;
    Ok(())
}

/// Reads a request with a Content-Length; returns where its body begins. `None`: the connection ended.
async fn read_request(stream: &mut TcpStream, request: &mut Vec<u8>) -> anyhow::Result<Option<usize>> {
    loop {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut parsed = httparse::Request::new(&mut headers);
        if let httparse::Status::Complete(body_at) = parsed.parse(request).context("the request's head")? {
            let length =
                parsed.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
            let length: usize = match length {
                Some(header) => std::str::from_utf8(header.value)?.trim().parse()?,
                None => 0,
            };
            while request.len() < body_at + length {
                ensure!(stream.read_buf(request).await? > 0, "the connection ended in a request");
            }
            return Ok(Some(body_at));
        }
        if stream.read_buf(request).await? == 0 {
            return Ok(None);
        }
    }
}

fn answer() -> Vec<u8> {
    let text = "A gateway that counts tokens before they are spent has to guess, and to put right its guess afterwards. ";
    let body = format!(
        "{{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion\",\"created\":1750000000,\"model\":\"gpt-4o\",\"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":\"{}\"}},\"finish_reason\":\"stop\"}}],\"usage\":{{\"prompt_tokens\":40,\"completion_tokens\":88,\"total_tokens\":128}}}}",
        text.repeat(4)
    );
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}
