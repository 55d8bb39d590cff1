//! Connections that come in: TCP, and TLS on top of it with a certificate that changes while connections live.
//!
//! Why not the server's own TLS: it reads its certificate once. Here each handshake asks [`Shown`] for the newest, so a
//! renewal reaches new connections without a restart and leaves the others alone. Sessions are not resumed, since a
//! resumed one would go on under the certificate of the first.
//!
//! Mechanics: one task accepts; each handshake has a task of its own, its deadline, and one of so many places. A
//! connection holds a place of its own until it is closed. Where no place is free, the next client waits in the
//! listener's backlog.
//!
//! Everyone can connect, and whoever does not show a credential could hold every place: see [`guests`].

mod guests;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use arc_swap::ArcSwapOption;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use sluice_policy::callers::Caller;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

use guests::{Guests, Stay};

const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// Handshakes at once: many times the guests of one address, which would otherwise be enough to keep all others waiting.
const HANDSHAKES: usize = 1_024;
/// A system without a free descriptor is asked again after this.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// The certificate that new connections are shown.
#[derive(Debug, Default)]
pub(crate) struct Shown(ArcSwapOption<CertifiedKey>);

impl Shown {
    /// Shows another one from now on. Both arguments are PEM.
    ///
    /// # Errors
    /// When they can't be used; the one before is shown on.
    pub(crate) fn show(&self, certificate: &str, key: &str) -> anyhow::Result<()> {
        let chain = CertificateDer::pem_slice_iter(certificate.as_bytes());
        let chain = chain.collect::<Result<Vec<_>, _>>().context("the certificate")?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).context("the key")?;
        let shown = CertifiedKey::from_der(chain, key, &ring::default_provider())?;
        self.0.store(Some(Arc::new(shown)));
        Ok(())
    }
}

impl ResolvesServerCert for Shown {
    /// `None` before there is one: the handshake fails, and the client comes again.
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load_full()
    }
}

/// TLS with what is shown. `protocol` is the one that clients may agree to: `h2` or `http/1.1`.
///
/// # Errors
/// When the cryptography offers no version of TLS.
pub(crate) fn tls(shown: Arc<Shown>, protocol: &str) -> anyhow::Result<Arc<rustls::ServerConfig>> {
    let provider = Arc::new(ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(shown);
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// What a listener takes.
pub(crate) struct Bounds {
    /// `None`: connections without TLS.
    pub(crate) tls: Option<Arc<rustls::ServerConfig>>,
    /// Connections at once.
    pub(crate) connections: usize,
    pub(crate) handshake_within: Duration,
    /// Handshakes at once.
    pub(crate) handshakes: usize,
    /// `None`: clients are not asked who they are.
    pub(crate) guests: Option<Guests>,
}

impl Bounds {
    pub(crate) fn new(tls: Option<Arc<rustls::ServerConfig>>, connections: usize) -> Self {
        let (handshake_within, handshakes) = (HANDSHAKE_WITHIN, HANDSHAKES);
        Self { tls, connections, handshake_within, handshakes, guests: None }
    }

    /// For clients that authenticate their streams.
    pub(crate) fn with_guests(self) -> Self {
        Self { guests: Some(Guests::default()), ..self }
    }
}

/// The connections of a listener that are ready to be served, until `stop` or until nobody takes them.
pub(crate) fn accept(
    listener: TcpListener,
    bounds: Bounds,
    stop: CancellationToken,
) -> ReceiverStream<io::Result<Connection>> {
    let (ready, stream) = mpsc::channel(1);
    tokio::spawn(async move {
        let taken = ready.clone();
        tokio::select! {
            () = run(listener, bounds, ready) => {}
            () = stop.cancelled() => {}
            () = taken.closed() => {}
        }
    });
    ReceiverStream::new(stream)
}

/// Ends only when it is dropped; handshakes on their way are bounded by their deadline.
async fn run(listener: TcpListener, bounds: Bounds, ready: mpsc::Sender<io::Result<Connection>>) {
    let (acceptor, guests) = (bounds.tls.map(TlsAcceptor::from), bounds.guests);
    let places = Arc::new(Semaphore::new(bounds.connections));
    let handshakes = Arc::new(Semaphore::new(bounds.handshakes));
    loop {
        let (place, handshake) =
            (places.clone().acquire_owned().await, handshakes.clone().acquire_owned().await);
        // Neither is ever closed.
        let (Ok(place), Ok(handshake)) = (place, handshake) else { return };
        let (socket, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let caller = Caller::new(Some(peer));
        let stay = match guests.as_ref().map(|guests| guests.take_in(caller.clone())) {
            Some(None) => {
                tracing::debug!(%peer, "a connection is closed: too many of its address show no credential");
                continue;
            }
            stay => stay.flatten(),
        };
        let (acceptor, ready, within) = (acceptor.clone(), ready.clone(), bounds.handshake_within);
        tokio::spawn(async move {
            match tokio::time::timeout(within, open(socket, acceptor)).await {
                // Nobody takes it any more: it is closed.
                Ok(Ok(stream)) => {
                    let connection = Connection { stream, caller, stay, _place: place };
                    drop(ready.send(Ok(connection)).await);
                }
                // A client that does not trust us says so on its side.
                Ok(Err(error)) => tracing::debug!(%peer, %error, "a TLS handshake failed"),
                Err(_) => tracing::debug!(%peer, "a TLS handshake took too long"),
            }
            drop(handshake);
        });
    }
}

async fn open(socket: TcpStream, acceptor: Option<TlsAcceptor>) -> io::Result<Stream> {
    socket.set_nodelay(true)?;
    Ok(match acceptor {
        Some(acceptor) => Stream::Tls(Box::new(acceptor.accept(socket).await?)),
        None => Stream::Plain(socket),
    })
}

/// One that is ready to be served.
pub(crate) struct Connection {
    stream: Stream,
    caller: Caller,
    stay: Option<Stay>,
    _place: OwnedSemaphorePermit,
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // A server always reads: of HTTP/2 even while nothing is asked.
        if self.stay.as_mut().is_some_and(|stay| stay.poll(context).is_ready()) {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "no stream was authenticated")));
        }
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::SocketAddr;

    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, RootCertStore};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpSocket;
    use tokio_rustls::TlsConnector;
    use tokio_stream::StreamExt as _;

    use super::*;
    use crate::certificates::material::{Lives, Material};
    use crate::clock;

    const NAME: &str = "sluice-controller.sluice-system.svc";
    const LIVES: Lives = Lives { authority: 10_000, serving: 1_000, published_before: 100 };

    fn catch_up(material: &mut Material, now: u64) {
        let names = [NAME.to_owned()];
        while let Some(due) = material.due(&LIVES, &names, now) {
            material.carry_out(due, &LIVES, &names, now).unwrap();
        }
    }

    fn show(shown: &Shown, material: &Material) {
        let serving = material.serving().unwrap();
        shown.show(&serving.certificate, &serving.key).unwrap();
    }

    /// Sends back whatever it is sent.
    async fn echo(bounds: Bounds) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut connections = accept(listener, bounds, CancellationToken::new());
        tokio::spawn(async move {
            while let Some(Ok(connection)) = connections.next().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = tokio::io::split(connection);
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        address
    }

    pub(crate) type Client = tokio_rustls::client::TlsStream<TcpStream>;

    /// A client that trusts a bundle, and no one else.
    pub(crate) async fn connect(address: SocketAddr, bundle: &str, protocol: &str) -> io::Result<Client> {
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
            roots.add(authority.unwrap()).unwrap();
        }
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let socket = TcpStream::connect(address).await?;
        TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(NAME).unwrap(), socket).await
    }

    async fn works(client: &mut Client) {
        client.write_all(b"ping").await.unwrap();
        let mut answer = [0; 4];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"ping");
    }

    pub(crate) fn certificate(client: &Client) -> CertificateDer<'static> {
        client.get_ref().1.peer_certificates().unwrap()[0].clone()
    }

    #[tokio::test]
    async fn a_rotation_reaches_new_connections_and_leaves_old_ones_and_old_trust_alone() {
        let now = clock::unix_ms() / 1_000;
        let mut material = Material::default();
        catch_up(&mut material, now - 7_000);
        let old_trust = material.bundle();
        // A new authority is published, and the serving certificate is renewed by the old one.
        catch_up(&mut material, now);
        let both = material.bundle();
        assert_ne!(old_trust, both);
        let shown = Arc::new(Shown::default());
        let address = echo(Bounds::new(Some(tls(shown.clone(), "h2").unwrap()), 10)).await;
        assert!(connect(address, &both, "h2").await.is_err(), "there is no certificate yet");
        show(&shown, &material);
        let mut first = connect(address, &old_trust, "h2").await.unwrap();
        works(&mut first).await;
        assert_eq!(first.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));

        // The new authority has been published for long enough: it signs.
        catch_up(&mut material, now + LIVES.published_before);
        show(&shown, &material);
        let mut second = connect(address, &both, "h2").await.unwrap();
        works(&mut second).await;
        assert_ne!(certificate(&first), certificate(&second));
        works(&mut first).await;
        assert!(connect(address, &old_trust, "h2").await.is_err(), "nobody has brought it the new authority");

        assert!(shown.show("", "").is_err());
        works(&mut connect(address, &both, "h2").await.unwrap()).await;
    }

    #[tokio::test]
    async fn who_does_not_shake_hands_is_let_go_and_holds_nobody_up_for_longer() {
        let mut material = Material::default();
        catch_up(&mut material, clock::unix_ms() / 1_000);
        let shown = Arc::new(Shown::default());
        show(&shown, &material);
        let mut bounds = Bounds::new(Some(tls(shown, "h2").unwrap()), 10);
        (bounds.handshakes, bounds.handshake_within) = (1, Duration::from_secs(2));
        let address = echo(bounds).await;
        let mut silent = TcpStream::connect(address).await.unwrap();
        // The only place for a handshake is taken; it becomes free when the silent one is let go.
        works(&mut connect(address, &material.bundle(), "h2").await.unwrap()).await;
        assert_eq!(silent.read(&mut [0]).await.unwrap(), 0, "closed");
    }

    async fn connect_from(from: &str, to: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(from.parse().unwrap(), 0)).unwrap();
        socket.connect(to).await.unwrap()
    }

    async fn is_closed(client: &mut TcpStream) -> bool {
        matches!(client.read(&mut [0]).await, Ok(0) | Err(_))
    }

    /// What a server does with a connection: it reads, until that ends.
    fn serve(mut connection: Connection) {
        tokio::spawn(async move { while connection.read(&mut [0]).await.is_ok_and(|read| read > 0) {} });
    }

    #[tokio::test]
    async fn who_shows_no_credential_is_in_the_way_of_its_own_address_alone() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let guests = Guests::new(2, Duration::from_mins(10));
        let bounds = Bounds { guests: Some(guests), ..Bounds::new(None, 10) };
        let mut connections = accept(listener, bounds, CancellationToken::new());
        let mut next = async || connections.next().await.unwrap().unwrap();
        let (mut one, first) = (connect_from("127.0.0.9", address).await, next().await);
        let (_two, second) = (connect_from("127.0.0.9", address).await, next().await);
        assert!(is_closed(&mut connect_from("127.0.0.9", address).await).await, "one too many");
        let (_other, other) = (connect_from("127.0.0.8", address).await, next().await);
        serve(other);
        // One of them is known: it is a guest no longer, however many of its address are.
        let streams = [first.connect_info().serve(), first.connect_info().serve()];
        let caller = first.connect_info();
        serve(first);
        serve(second);
        let third = loop {
            let mut third = connect_from("127.0.0.9", address).await;
            tokio::select! {
                connection = next() => {
                    serve(connection);
                    break third;
                }
                closed = is_closed(&mut third) => assert!(closed),
            }
        };
        // When its streams have ended it is a guest again, and there is no place.
        let mut served = caller.served();
        drop(streams);
        served.wait_for(|streams| *streams == 0).await.unwrap();
        assert!(is_closed(&mut one).await);
        drop(third);
    }

    #[tokio::test]
    async fn a_connection_holds_its_place_until_it_is_closed_and_stop_closes_the_listener() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let mut connections = accept(listener, Bounds::new(None, 1), stop.clone());
        let (_one, _two) =
            (TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap());
        let first = connections.next().await.unwrap().unwrap();
        assert!(first.connect_info().address().unwrap().ip().is_loopback());
        let second = tokio::time::timeout(Duration::from_millis(50), connections.next()).await;
        assert!(second.is_err(), "there is one place");
        drop(first);
        connections.next().await.unwrap().unwrap();
        stop.cancel();
        assert!(connections.next().await.is_none());
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    }
}
