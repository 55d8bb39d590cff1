//! One connection: whether its peer has left, and the ways to end it that HTTP doesn't know.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::ledger::Ledger;

/// What a connection and the calls on it tell each other.
#[derive(Debug)]
pub(crate) struct ConnState {
    ledger: Arc<Ledger>,
    pub(crate) id: u64,
    left: AtomicBool,
    reset: AtomicBool,
    control: AtomicBool,
    http2: AtomicBool,
}

impl ConnState {
    pub(crate) fn open(ledger: &Arc<Ledger>) -> Arc<Self> {
        Arc::new(Self {
            ledger: Arc::clone(ledger),
            id: ledger.open_connection(),
            left: AtomicBool::new(false),
            reset: AtomicBool::new(false),
            control: AtomicBool::new(false),
            http2: AtomicBool::new(false),
        })
    }

    /// Changes when silent calls are told to go on.
    pub(crate) fn gate(&self) -> watch::Receiver<u64> {
        self.ledger.gate()
    }

    /// The peer has closed or reset the connection.
    pub(crate) fn peer_left(&self) -> bool {
        self.left.load(Relaxed)
    }

    pub(crate) fn used_for_control(&self) {
        self.control.store(true, Relaxed);
    }

    pub(crate) fn is_for_control(&self) -> bool {
        self.control.load(Relaxed)
    }

    pub(crate) fn speaks_http2(&self) {
        self.http2.store(true, Relaxed);
    }

    /// Ends one call by a reset: on HTTP/2 its stream's, which needs nothing here, elsewhere the connection's.
    pub(crate) fn reset_call(&self) {
        if !self.http2.load(Relaxed) {
            self.reset_on_close();
        }
    }

    /// When the connection is dropped it is reset instead of closed.
    pub(crate) fn reset_on_close(&self) {
        self.reset.store(true, Relaxed);
    }
}

/// A transport that can be reset. Only TCP can: elsewhere it is a plain end.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Makes the drop a reset.
    fn arm_reset(&self) {}
}

impl Transport for TcpStream {
    fn arm_reset(&self) {
        // A socket that refuses the option gets closed in the usual way.
        let _ = self.set_zero_linger();
    }
}

/// Any other transport, such as an in-memory duplex stream.
impl Transport for Box<dyn Stream> {}

/// A byte stream in both directions.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for T {}

/// The transport as the HTTP server sees it.
pub(crate) struct Wire<T: Transport> {
    transport: T,
    state: Arc<ConnState>,
}

impl<T: Transport> Wire<T> {
    pub(crate) fn new(transport: T, state: Arc<ConnState>) -> Self {
        Self { transport, state }
    }

    fn note<R>(&self, result: &Poll<io::Result<R>>) {
        if matches!(result, Poll::Ready(Err(_))) {
            self.state.left.store(true, Relaxed);
        }
    }
}

impl<T: Transport> AsyncRead for Wire<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.transport).poll_read(cx, buf);
        self.note(&result);
        if matches!(result, Poll::Ready(Ok(()))) && buf.remaining() > 0 && buf.filled().len() == before {
            self.state.left.store(true, Relaxed);
        }
        result
    }
}

impl<T: Transport> AsyncWrite for Wire<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.transport).poll_write(cx, data);
        self.note(&result);
        result
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.transport).poll_write_vectored(cx, data);
        self.note(&result);
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.state.reset.load(Relaxed) {
            // A shutdown would send the FIN that the reset is meant to replace.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.transport).poll_shutdown(cx)
    }
}

impl<T: Transport> Drop for Wire<T> {
    fn drop(&mut self) {
        if self.state.reset.load(Relaxed) {
            self.transport.arm_reset();
        }
        self.state.ledger.close_connection();
    }
}
