//! The client's side of a connection: a socket whose writes may not stall for ever.
//!
//! hyper stops polling a response body once its write buffer is full, so a body cannot notice that its
//! client reads nothing. The socket can: a write that stays pending longer than the route's
//! `slowClientTimeout` fails, which ends the connection, drops the body and, with it, the upstream call.
//!
//! The socket also tells the HTTP version by the client's first bytes, and gives these to hyper together with what
//! came behind them: a connection whose first read is short keeps a read buffer of twice the size, and copies the
//! first one whole, for as long as it is open.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BufMut as _;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::head_scan::HeadScan;

/// What a client of HTTP/2 sends first (RFC 9113 § 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What the exchanges of a connection tell its socket.
#[derive(Debug)]
pub(crate) struct Connection {
    write_stall_ms: AtomicU64,
    head: Mutex<HeadScan>,
}

impl Connection {
    pub(crate) fn new(write_stall: Duration) -> Arc<Self> {
        let write_stall_ms = AtomicU64::new(sluice_core::units::millis(write_stall));
        Arc::new(Self { write_stall_ms, head: Mutex::default() })
    }

    /// From the next stalled write on.
    pub(crate) fn limit_write_stall(&self, limit: Duration) {
        self.write_stall_ms.store(sluice_core::units::millis(limit), Ordering::Relaxed);
    }

    /// The request has been read to its end: the next bytes are another one's head.
    pub(crate) fn expect_head(&self) {
        self.head.lock().expect_head();
    }

    /// Whether the head that was read last has both Content-Length and Transfer-Encoding.
    pub(crate) fn framed_twice(&self) -> bool {
        self.head.lock().framed_twice()
    }

    pub(crate) fn write_stall(&self) -> Duration {
        Duration::from_millis(self.write_stall_ms.load(Ordering::Relaxed))
    }
}

/// A client's bytes, in plain text or out of TLS.
pub(crate) enum Socket {
    Plain(TcpStream),
    /// Boxed: a session is large, and most agents have none.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Socket {
    pub(crate) async fn accept(socket: TcpStream, tls: Option<TlsAcceptor>) -> io::Result<Self> {
        match tls {
            Some(tls) => Ok(Self::Tls(Box::new(tls.accept(socket).await?))),
            None => Ok(Self::Plain(socket)),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(socket) => socket.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

pub(crate) struct ClientIo {
    socket: Socket,
    connection: Arc<Connection>,
    /// Read to tell the version, and not given to hyper yet.
    first: Vec<u8>,
    /// Runs while a write is pending; allocated by the first one that is.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl ClientIo {
    pub(crate) fn new(socket: Socket, connection: Arc<Connection>) -> Self {
        Self { socket, connection, first: Vec::new(), stalled: None }
    }

    /// Whether the client speaks HTTP/2. Waits for the first byte that tells.
    pub(crate) async fn speaks_http2(&mut self) -> io::Result<bool> {
        while HTTP2_PREFACE.starts_with(&self.first) {
            let missing = HTTP2_PREFACE.len() - self.first.len();
            if missing == 0 {
                return Ok(true);
            }
            if self.socket.read_buf(&mut (&mut self.first).limit(missing)).await? == 0 {
                break;
            }
        }
        Ok(false)
    }

    /// Gives on what was read to tell the version; says whether there was any.
    fn replay(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        if self.first.is_empty() {
            return false;
        }
        let fits = self.first.len().min(buf.remaining());
        buf.put_slice(&self.first[..fits]);
        self.first = self.first.split_off(fits);
        true
    }

    fn watch<T>(&mut self, cx: &mut Context<'_>, write: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if write.is_ready() {
            self.stalled = None;
            return write;
        }
        let limit = self.connection.write_stall();
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
        match stalled.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client read nothing for the slow-client timeout",
            ))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let replayed = self.replay(buf);
        let mut read = Pin::new(&mut self.socket).poll_read(cx, buf);
        if replayed {
            // Whatever the socket says: an end or an error comes with the next read.
            read = Poll::Ready(Ok(()));
        }
        if read.is_ready() {
            self.connection.head.lock().read(&buf.filled()[before..]);
        }
        read
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.watch(cx, write)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.watch(cx, write)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.socket).poll_flush(cx) {
            // TLS has taken what it could not write yet.
            Poll::Pending => self.watch(cx, Poll::Pending),
            ready @ Poll::Ready(_) => ready,
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.socket).poll_shutdown(cx) {
            Poll::Pending => self.watch(cx, Poll::Pending),
            ready @ Poll::Ready(_) => ready,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    /// What a client's first bytes, sent in these pieces, are taken for, and what hyper reads of them.
    async fn begin(pieces: &[&[u8]]) -> (bool, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.set_nodelay(true).unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        let mut io = ClientIo::new(Socket::Plain(socket), Connection::new(Duration::from_secs(1)));
        let send = async {
            for piece in pieces {
                client.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            client.shutdown().await.unwrap();
        };
        let (http2, ()) = tokio::join!(io.speaks_http2(), send);
        let mut read = Vec::new();
        io.read_to_end(&mut read).await.unwrap();
        (http2.unwrap(), read)
    }

    #[tokio::test]
    async fn the_first_bytes_tell_the_version_and_are_not_lost() {
        let byte_by_byte: Vec<&[u8]> = HTTP2_PREFACE.chunks(1).collect();
        assert_eq!(begin(&byte_by_byte).await, (true, HTTP2_PREFACE.to_vec()));
        let get = b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n";
        assert_eq!(begin(&[get]).await, (false, get.to_vec()));
        assert_eq!(begin(&[b"PR", b"OPFIND / HTTP/1.1\r\n\r\n"]).await.1, b"PROPFIND / HTTP/1.1\r\n\r\n");
        assert_eq!(begin(&[b"PRI * HT"]).await, (false, b"PRI * HT".to_vec()));
        assert_eq!(begin(&[]).await, (false, Vec::new()));
    }

    /// A short first read makes hyper's read buffer grow to twice its size.
    #[tokio::test]
    async fn the_first_read_gives_all_that_is_there() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        let mut io = ClientIo::new(Socket::Plain(socket), Connection::new(Duration::from_secs(1)));
        let request = [b'a'; 1_000];
        client.write_all(&request).await.unwrap();
        assert!(!io.speaks_http2().await.unwrap());
        let mut read = Vec::with_capacity(2_000);
        assert_eq!(io.read_buf(&mut read).await.unwrap(), request.len());
        let mut small = [0; 10];
        io.first = b"0123456789ab".to_vec();
        io.read_exact(&mut small).await.unwrap();
        assert_eq!((&small, io.first.as_slice()), (b"0123456789", b"ab".as_slice()));
    }
}
