//! The listening side: accepts connections, speaks HTTP/1.1 and HTTP/2 on them, and ends them in order.
//!
//! Limits (design: limits and hardening): 100 headers and 64 KiB of them, 10 s to send them, a bounded
//! number of connections and of HTTP/2 streams. hyper bounds pending resets (rapid reset) by default.
//!
//! A client that ends its sending side (`printf … | nc -N`) counts as gone, as it does with nginx, Envoy and Go's
//! server. On the wire it cannot be told from one that has closed its socket: both send the same FIN, and only a
//! write would tell them apart, of which there is none while a provider thinks. An abandoned call that runs on is
//! billed; a client that half-closes is rare and can send its request otherwise. So no `half_close` here.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use crate::body::Body;
use crate::client_io::{ClientIo, Connection, Socket};
use crate::drain::Drain;
use crate::headers;

const CONNECTIONS_MAX: usize = 10_000;
const STREAMS_MAX: u32 = 256;
/// Before a response has set the route's own.
const WRITE_STALL: Duration = sluice_core::defaults::streaming::SLOW_CLIENT;
/// Streams that were told to end get this long to write their last event; then the connection is cut.
const END_GRACE: Duration = Duration::from_secs(2);
/// After a failed accept (out of file descriptors, say) nothing is gained by asking again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `drain` says stop, then until the last connection has ended.
pub(crate) async fn serve<H, F>(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    drain: Drain,
    header_timeout: Duration,
    handle: H,
) where
    H: Fn(Request<Incoming>, Arc<Connection>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let connections = TaskTracker::new();
    let versions = Arc::new(Versions::new(header_timeout));
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accepted = tokio::select! {
            () = drain.stopped() => break,
            accepted = accept(&listener, &room) => accepted,
        };
        match accepted {
            Ok((socket, permit)) => {
                let (handle, drain, versions) = (handle.clone(), drain.clone(), versions.clone());
                let tls = tls.clone();
                connections.spawn(async move {
                    serve_connection(socket, tls, &versions, drain, handle).await;
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

async fn serve_connection<H, F>(
    socket: TcpStream,
    tls: Option<TlsAcceptor>,
    versions: &Versions,
    drain: Drain,
    handle: H,
) where
    H: Fn(Request<Incoming>, Arc<Connection>) -> F,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let connection = Connection::new(WRITE_STALL);
    let begin = async {
        let socket = Socket::accept(socket, tls).await?;
        let mut io = ClientIo::new(socket, connection.clone());
        Ok::<_, std::io::Error>((io.speaks_http2().await?, io))
    };
    let begun = tokio::select! {
        // As long as a head may take; from there on HTTP/1.1 counts anew.
        begun = timeout(versions.first_bytes, begin) => begun,
        () = drain.stopped() => return,
    };
    let Ok(Ok((http2, io))) = begun else {
        return tracing::debug!("a connection ended before its first request");
    };
    let leaving = drain.clone();
    let service = service_fn(move |request| {
        // Boxed: hyper keeps the place of this future for as long as the connection lives, and an exchange is done
        // with it when its answer begins.
        let response = Box::pin(handle(request, connection.clone()));
        let leaving = leaving.clone();
        async move {
            let mut response = response.await;
            if !http2 && leaving.leaving() {
                // The client's next request goes elsewhere before this side closes.
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let io = TokioIo::new(io);
    if http2 {
        until_ended(versions.http2.serve_connection(io, service), &drain).await;
    } else {
        until_ended(versions.http1.serve_connection(io, service), &drain).await;
    }
}

async fn until_ended<C>(connection: C, drain: &Drain)
where
    C: GracefulConnection<Error = hyper::Error>,
{
    let mut served = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = drain.stopped() => {
            served.as_mut().graceful_shutdown();
            tokio::select! {
                ended = served.as_mut() => ended,
                () = cut(drain) => return tracing::warn!("a connection did not end in time and is cut"),
            }
        }
    };
    if let Err(error) = ended {
        // A client that hung up, sent no HTTP or stalled: its own affair, so not worth a warning.
        tracing::debug!(%error, "a client's connection ended early");
    }
}

async fn cut(drain: &Drain) {
    drain.ended().await;
    tokio::time::sleep(END_GRACE).await;
}

/// How connections are served, by what their client speaks.
struct Versions {
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    first_bytes: Duration,
}

impl Versions {
    fn new(header_timeout: Duration) -> Self {
        let mut http1 = http1::Builder::new();
        http1
            .timer(TokioTimer::new())
            .header_read_timeout(header_timeout)
            .max_headers(headers::MOST)
            .max_header_size(headers::MOST_BYTES)
            .max_buf_size(headers::MOST_BYTES);
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .max_header_list_size(headers::MOST_BYTES as u32)
            .max_concurrent_streams(STREAMS_MAX)
            .max_send_buf_size(headers::MOST_BYTES)
            .keep_alive_interval(Some(Duration::from_secs(30)))
            .keep_alive_timeout(Duration::from_secs(20));
        Self { http1, http2, first_bytes: header_timeout }
    }
}
