//! The client's side of a connection: a socket whose writes may not stall for ever.
//!
//! hyper stops polling a response body once its write buffer is full, so a body cannot notice that its
//! client reads nothing. The socket can: a write that stays pending longer than the route's
//! `slowClientTimeout` fails, which ends the connection, drops the body and, with it, the upstream call.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use crate::head_scan::HeadScan;

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

pub(crate) struct ClientIo {
    socket: TcpStream,
    connection: Arc<Connection>,
    /// Runs while a write is pending; allocated by the first one that is.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl ClientIo {
    pub(crate) fn new(socket: TcpStream, connection: Arc<Connection>) -> Self {
        Self { socket, connection, stalled: None }
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
        let read = Pin::new(&mut self.socket).poll_read(cx, buf);
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
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
