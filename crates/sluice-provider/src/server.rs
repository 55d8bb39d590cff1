//! Sockets: accepting connections in the scripted way, and HTTP on them.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::conn::{ConnState, Transport, Wire};
use crate::provider::Shared;
use crate::scenario::Connections;
use crate::service;

/// Out of file descriptors, accepting again at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Streams of one HTTP/2 connection.
const MAX_STREAMS: u32 = 10_000;

/// Accepts until the provider stops.
pub(crate) async fn accept(shared: Arc<Shared>, listener: TcpListener, addr: SocketAddr) {
    let stop = shared.stop.clone();
    stop.run_until_cancelled(accept_loop(&shared, listener, addr)).await;
}

async fn accept_loop(shared: &Arc<Shared>, listener: TcpListener, addr: SocketAddr) {
    let mut mode = shared.watch_connections();
    let mut listener = Some(listener);
    loop {
        let now = *mode.borrow_and_update();
        if now == Connections::Refuse {
            listener = None;
            if mode.changed().await.is_err() {
                return;
            }
            continue;
        }
        let Some(socket) = &listener else {
            listener = bind_again(addr).await;
            continue;
        };
        tokio::select! {
            accepted = socket.accept() => match accepted {
                Ok((stream, _)) => receive(shared, stream, now),
                Err(error) => {
                    tracing::warn!(%error, "no connection could be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            changed = watch_change(&mut mode) => if changed.is_err() { return },
        }
    }
}

async fn watch_change(mode: &mut watch::Receiver<Connections>) -> Result<(), watch::error::RecvError> {
    mode.changed().await
}

async fn bind_again(addr: SocketAddr) -> Option<TcpListener> {
    match TcpListener::bind(addr).await {
        Ok(listener) => Some(listener),
        Err(error) => {
            tracing::warn!(%error, %addr, "the address could not be bound again; trying on");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

fn receive(shared: &Arc<Shared>, stream: TcpStream, mode: Connections) {
    match mode {
        Connections::Accept => {
            // Each token is a small write that must not wait for the next one.
            let _ = stream.set_nodelay(true);
            shared.tasks.spawn(connection(Arc::clone(shared), stream));
        }
        Connections::Reset => stream.arm_reset(),
        Connections::Hang => {
            let state = ConnState::open(&shared.ledger);
            let (disconnected, stop) = (shared.disconnected(), shared.stop.clone());
            let wire = Wire::new(stream, state);
            shared.tasks.spawn(async move {
                tokio::select! {
                    () = disconnected.cancelled() => {}
                    () = stop.cancelled() => {}
                }
                drop(wire);
            });
        }
        Connections::Close | Connections::Refuse => drop(stream),
    }
}

/// Serves one connection until it ends or is told to.
pub(crate) async fn connection<T: Transport>(shared: Arc<Shared>, transport: T) {
    let state = ConnState::open(&shared.ledger);
    let (disconnected, stop) = (shared.disconnected(), shared.stop.clone());
    let io = TokioIo::new(Wire::new(transport, Arc::clone(&state)));
    let service = {
        let (shared, state) = (Arc::clone(&shared), Arc::clone(&state));
        service_fn(move |request| service::handle(Arc::clone(&shared), Arc::clone(&state), request))
    };
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1().timer(TokioTimer::new()).header_read_timeout(None);
    http.http2().timer(TokioTimer::new()).max_concurrent_streams(MAX_STREAMS);
    let disconnected = async {
        disconnected.cancelled().await;
        if state.is_for_control() {
            // The answer that said so is still to be sent.
            std::future::pending::<Infallible>().await;
        }
        if shared.connections() == Connections::Reset {
            state.reset_on_close();
        }
    };
    tokio::select! {
        served = http.serve_connection(io, service) => if let Err(error) = served {
            tracing::debug!(%error, connection = state.id, "a connection ended early");
        },
        () = disconnected => {}
        () = stop.cancelled() => {}
    }
}
