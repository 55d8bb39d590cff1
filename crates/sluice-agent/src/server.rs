//! The listening side: accepts connections, speaks HTTP/1.1 and HTTP/2 on them, and ends them in order.
//!
//! Limits (design: limits and hardening): 100 headers and 64 KiB of them, 10 s to send them, a bounded
//! number of connections and of HTTP/2 streams. hyper bounds pending resets (rapid reset) by default.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::body::Body;
use crate::client_io::{ClientIo, Connection};
use crate::drain::Drain;

const HEADERS_MAX: usize = 100;
const HEADER_BYTES_MAX: usize = 64 * 1024;
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECTIONS_MAX: usize = 10_000;
const STREAMS_MAX: u32 = 256;
/// Before a response has set the route's own.
const WRITE_STALL: Duration = sluice_core::defaults::streaming::SLOW_CLIENT;
/// After a failed accept (out of file descriptors, say) nothing is gained by asking again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `drain` says stop, then until the last connection has ended.
pub(crate) async fn serve<H, F>(listener: TcpListener, drain: Drain, handle: H)
where
    H: Fn(Request<Incoming>, Arc<Connection>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let connections = TaskTracker::new();
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accepted = tokio::select! {
            () = drain.stopped() => break,
            accepted = accept(&listener, &room) => accepted,
        };
        match accepted {
            Ok((socket, permit)) => {
                let (handle, drain) = (handle.clone(), drain.clone());
                connections.spawn(async move {
                    serve_connection(socket, drain, handle).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = room.clone().acquire_owned().await.map_err(std::io::Error::other)?;
    let (socket, _) = listener.accept().await?;
    socket.set_nodelay(true)?;
    Ok((socket, permit))
}

async fn serve_connection<H, F>(socket: TcpStream, drain: Drain, handle: H)
where
    H: Fn(Request<Incoming>, Arc<Connection>) -> F,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let connection = Connection::new(WRITE_STALL);
    let io = TokioIo::new(ClientIo::new(socket, connection.clone()));
    let service = service_fn(move |request| {
        let response = handle(request, connection.clone());
        async move { Ok::<_, Infallible>(response.await) }
    });
    let builder = connection_builder();
    let mut served = std::pin::pin!(builder.serve_connection(io, service));
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = drain.stopped() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        // A client that hung up, sent no HTTP or stalled: its own affair, so not worth a warning.
        tracing::debug!(%error, "a client's connection ended early");
    }
}

fn connection_builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEADER_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(HEADER_BYTES_MAX as u32)
        .max_concurrent_streams(STREAMS_MAX)
        .max_send_buf_size(HEADER_BYTES_MAX)
        .keep_alive_interval(Some(Duration::from_secs(30)))
        .keep_alive_timeout(Duration::from_secs(20));
    builder
}
