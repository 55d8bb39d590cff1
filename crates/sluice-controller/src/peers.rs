//! The other replicas: where they are, and what their agents say.
//!
//! The holder of the Lease asks each of them (`sluice_policy::replica_service`) and keeps what they say, for status and
//! Events; the others ask nobody. They are found in the EndpointSlices of the Service, so one that does not serve agents
//! is not waited for.
//!
//! Mechanics: one task per replica dials, listens, and dials again. Each attempt reads the token and the authorities
//! anew: both are renewed while this runs. [`live`] is pure; so is what is made of what they say
//! (`sluice_policy::replicas`).
//!
//! Edge rules
//! - What they said is forgotten with the tenure, and a tenure may end and begin between two looks of whoever reads
//!   it. So it is here that it is known whether what was heard is everything, and sum and verdict are given together.
//! - A pod that keeps its name and gets another address is dialled there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client};
use parking_lot::Mutex;
use sluice_policy::index::Key;
use sluice_policy::replica_service::MAX_REPLICA_MESSAGE_BYTES;
use sluice_policy::replicas::Replicas;
use sluice_policy::said::Said;
use sluice_policy::transition_log::TransitionLog;
use sluice_proto::replica::ReplicaSaid;
use sluice_proto::v1;
use sluice_proto::v1::replica_sync_client::ReplicaSyncClient;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use tonic::{Request, Streaming};

use crate::certificates::keeper::Adopted;
use crate::clock;
use crate::lease::{Tenure, held, over};
use crate::mirror::{Mirrored, mirror};

/// The Service's port where replicas and agents are served.
const PORT: &str = "policy";
const OF_SERVICE: &str = "kubernetes.io/service-name";
const DIAL_WITHIN: Duration = Duration::from_secs(3);
const DIAL_AGAIN: Duration = Duration::from_secs(1);
/// A replica that vanished without a word is found out after both.
const KEEP_ALIVE: Duration = Duration::from_secs(3);
const KEEP_ALIVE_WITHIN: Duration = Duration::from_secs(3);
/// Longest token.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// How another replica is called.
#[derive(Clone)]
pub(crate) struct Dial {
    /// Who to trust, and the name that is in their certificate; `None`: without TLS.
    pub(crate) tls: Option<(Adopted, String)>,
    /// The file with this replica's own token.
    pub(crate) token: PathBuf,
    /// This replica's pod.
    pub(crate) pod: Arc<str>,
}

/// What the others said.
#[derive(Debug)]
pub(crate) struct Others(Mutex<Heard>);

#[derive(Debug, Default)]
struct Heard {
    /// Since when they are asked; `None`: they are not.
    since: Option<Instant>,
    /// Whether it is known who there is.
    known: bool,
    replicas: Replicas,
}

impl Others {
    /// There are none, or they can't be asked.
    pub(crate) fn none() -> Self {
        Self(Mutex::new(Heard { known: true, ..Heard::default() }))
    }

    /// Adds what they said. Whether that is everything: each has told all that it has to tell, or has had `patience`
    /// for it.
    pub(crate) fn add_to(&self, sum: &mut Said, patience: Duration, now: Instant) -> bool {
        let heard = self.0.lock();
        heard.replicas.add_to(sum, now);
        heard.since.is_some_and(|since| now >= since + patience)
            || (heard.known && heard.replicas.have_all_reported())
    }

    /// They are asked from now on.
    pub(crate) fn begin(&self, now: Instant) {
        *self.0.lock() = Heard { since: Some(now), ..Heard::default() };
    }

    /// These are there, and no others.
    pub(crate) fn set_live(&self, live: &BTreeSet<Arc<str>>) {
        let mut heard = self.0.lock();
        heard.known = true;
        heard.replicas.set_live(live);
    }

    /// Nothing that they said counts any more.
    pub(crate) fn forget(&self) {
        *self.0.lock() = Heard::default();
    }
}

/// A pod of the Service. One that is in two slices, for IPv4 and IPv6, is one.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Peer {
    name: Arc<str>,
    at: SocketAddr,
}

/// Asks the others, while this replica holds the lease.
pub(crate) struct Gatherer {
    slices: Mirrored<Vec<Peer>>,
    /// Its own address: it is among those of the Service, as is its pod.
    own: IpAddr,
    dial: Dial,
    tenure: Tenure,
    others: Arc<Others>,
    log: Arc<TransitionLog>,
}

impl Gatherer {
    /// `service` is the Service that the replicas are behind. The future is to be run.
    pub(crate) fn new(
        client: Client,
        (namespace, service): (&str, &str),
        own: IpAddr,
        dial: Dial,
        tenure: Tenure,
        log: Arc<TransitionLog>,
    ) -> (Self, Arc<Others>, impl Future<Output = ()> + Send + 'static) {
        let api = Api::<EndpointSlice>::namespaced(client, namespace);
        let (watch, slices) =
            mirror(api, crate::watch::config().labels(&format!("{OF_SERVICE}={service}")), peers);
        let others = Arc::new(Others(Mutex::default()));
        (Self { slices, own, dial, tenure, others: others.clone(), log }, others, watch)
    }

    /// Runs until it is dropped.
    pub(crate) async fn run(mut self) {
        while held(&mut self.tenure).await {
            self.others.begin(clock::now());
            let mut tenure = self.tenure.clone();
            tokio::select! {
                () = self.gather() => return,
                () = over(&mut tenure) => {}
            }
            // With the streams gone, nothing that they said is kept: whoever is the holder next asks anew.
            self.others.forget();
        }
    }

    /// Ends with the watch alone.
    async fn gather(&mut self) {
        let mut streams = JoinSet::new();
        let mut asked: BTreeMap<(Arc<str>, SocketAddr), AbortHandle> = BTreeMap::new();
        loop {
            let live = live(self.slices.borrow_and_update().present(), &self.dial.pod, self.own);
            if let Some(live) = live {
                self.others.set_live(&live.keys().cloned().collect());
                asked.retain(|(name, address), stream| {
                    let stays = live.get(name) == Some(address);
                    if !stays {
                        stream.abort();
                    }
                    stays
                });
                for (name, address) in live {
                    let stream = Stream {
                        name: name.clone(),
                        address,
                        dial: self.dial.clone(),
                        others: self.others.clone(),
                        log: self.log.clone(),
                    };
                    asked.entry((name, address)).or_insert_with(|| streams.spawn(stream.run()));
                }
            }
            tokio::select! {
                changed = self.slices.changed() => if changed.is_err() { return },
                Some(_) = streams.join_next() => {}
            }
        }
    }
}

/// The Service's pods that serve: also those that are ending, as they still have agents.
fn peers(slice: &EndpointSlice) -> Vec<Peer> {
    let mut ports = slice.ports.iter().flatten();
    let port = ports.find(|port| port.name.as_deref() == Some(PORT)).and_then(|port| port.port);
    let Some(port) = port.and_then(|port| u16::try_from(port).ok()) else { return Vec::new() };
    let serving = slice.endpoints.iter().filter(|endpoint| {
        let conditions = endpoint.conditions.as_ref();
        // Neither is told: to be taken as serving.
        conditions.and_then(|of| of.serving.or(of.ready)).unwrap_or(true)
    });
    let peer = |endpoint: &k8s_openapi::api::discovery::v1::Endpoint| {
        let at = SocketAddr::new(endpoint.addresses.first()?.parse().ok()?, port);
        let pod = endpoint.target_ref.as_ref().and_then(|target| target.name.as_deref());
        Some(Peer { name: pod.map_or_else(|| at.to_string().into(), Into::into), at })
    };
    serving.filter_map(peer).collect()
}

/// The others, by name. `None`: it is not known yet.
fn live(
    slices: Option<&BTreeMap<Key, Vec<Peer>>>,
    own_pod: &str,
    own: IpAddr,
) -> Option<BTreeMap<Arc<str>, SocketAddr>> {
    let others = slices?.values().flatten().filter(|peer| *peer.name != *own_pod && peer.at.ip() != own);
    Some(others.map(|peer| (peer.name.clone(), peer.at)).collect())
}

/// What one replica says.
struct Stream {
    name: Arc<str>,
    address: SocketAddr,
    dial: Dial,
    others: Arc<Others>,
    log: Arc<TransitionLog>,
}

impl Stream {
    /// Runs until it is aborted.
    async fn run(self) {
        loop {
            let farewell = match self.listen().await {
                Ok(()) => true,
                Err(error) => {
                    tracing::debug!(
                        replica = &*self.name,
                        error = format!("{error:#}"),
                        "another replica is not heard"
                    );
                    false
                }
            };
            self.others.0.lock().replicas.ended(&self.name, farewell, clock::now());
            tokio::time::sleep(DIAL_AGAIN).await;
        }
    }

    /// Until it says farewell.
    async fn listen(&self) -> anyhow::Result<()> {
        let mut said = self.dial.ask(self.address).await?;
        self.others.0.lock().replicas.began(&self.name);
        while let Some(message) = said.message().await? {
            let said = ReplicaSaid::decode(message)?;
            self.others.0.lock().replicas.heard(&self.name, &said);
            let now = clock::now();
            for transition in said.transitions {
                self.log.take(transition, now);
            }
        }
        Ok(())
    }
}

impl Dial {
    async fn ask(&self, address: SocketAddr) -> anyhow::Result<Streaming<v1::ReplicaSaid>> {
        let token = tokio::fs::read_to_string(&self.token).await;
        let token = token.with_context(|| format!("--peer-token {}", self.token.display()))?;
        anyhow::ensure!(
            token.len() <= MAX_TOKEN_BYTES,
            "--peer-token {}: it is no token",
            self.token.display()
        );
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))?
            .connect_timeout(DIAL_WITHIN)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE_WITHIN)
            .keep_alive_while_idle(true);
        if let Some((adopted, name)) = &self.tls {
            let material = adopted.borrow().clone().context("there are no certificates yet")?;
            let authorities = Certificate::from_pem(material.bundle());
            endpoint =
                endpoint.tls_config(ClientTlsConfig::new().ca_certificate(authorities).domain_name(name))?;
        }
        let channel = endpoint.connect().await?;
        let mut client = ReplicaSyncClient::new(channel).max_decoding_message_size(MAX_REPLICA_MESSAGE_BYTES);
        let mut request = Request::new(v1::WatchRequest { replica: self.pod.to_string() });
        request.metadata_mut().insert("authorization", format!("Bearer {}", token.trim()).parse()?);
        let asked =
            tokio::time::timeout(DIAL_WITHIN, client.watch(request)).await.context("no answer in time")?;
        Ok(asked?.into_inner())
    }
}

#[cfg(test)]
impl Others {
    /// One of them tells this.
    pub(crate) fn tell(&self, name: &str, said: &ReplicaSaid) {
        let replicas = &mut self.0.lock().replicas;
        replicas.began(name);
        replicas.heard(name, said);
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;
    use k8s_openapi::api::discovery::v1::{Endpoint as SliceEndpoint, EndpointConditions, EndpointPort};
    use serde_json::{Value, json};
    use tokio::net::TcpListener;

    use super::*;
    use crate::api_server::ApiServer;

    const SLICES: &str = "apis/discovery.k8s.io/v1/endpointslices";
    const SECOND: Duration = Duration::from_secs(1);

    fn endpoint(pod: &str, ip: &str, ready: Option<bool>, serving: Option<bool>) -> SliceEndpoint {
        let name = Some(pod.to_owned()).filter(|pod| !pod.is_empty());
        SliceEndpoint {
            addresses: vec![ip.to_owned()],
            conditions: Some(EndpointConditions { ready, serving, terminating: None }),
            target_ref: Some(ObjectReference { name, ..ObjectReference::default() }),
            ..SliceEndpoint::default()
        }
    }

    fn slice(ports: &[(&str, i32)], endpoints: Vec<SliceEndpoint>) -> EndpointSlice {
        let ports = ports.iter().map(|(name, port)| EndpointPort {
            name: Some((*name).to_owned()),
            port: Some(*port),
            ..EndpointPort::default()
        });
        EndpointSlice { ports: Some(ports.collect()), endpoints, ..EndpointSlice::default() }
    }

    fn names(peers: &[Peer]) -> Vec<String> {
        peers.iter().map(|peer| format!("{} {}", peer.name, peer.at)).collect()
    }

    #[test]
    fn replicas_are_those_that_serve_also_while_they_end() {
        let endpoints = vec![
            endpoint("ready", "10.0.0.1", Some(true), Some(true)),
            endpoint("ending", "10.0.0.2", Some(false), Some(true)),
            endpoint("starting", "10.0.0.3", Some(false), Some(false)),
            endpoint("", "10.0.0.4", None, None),
            endpoint("six", "fd00::5", Some(true), None),
            endpoint("odd", "no address", Some(true), Some(true)),
        ];
        let found = peers(&slice(&[("webhook", 9_443), ("policy", 8_112)], endpoints.clone()));
        let expected = [
            "ready 10.0.0.1:8112",
            "ending 10.0.0.2:8112",
            "10.0.0.4:8112 10.0.0.4:8112",
            "six [fd00::5]:8112",
        ];
        assert_eq!(names(&found), expected);
        assert!(peers(&slice(&[("webhook", 9_443)], endpoints)).is_empty());
    }

    #[test]
    fn the_others_are_all_but_oneself_and_each_once() {
        let own: IpAddr = "10.0.0.1".parse().unwrap();
        assert_eq!(live(None, "me", own), None);
        let of = |me: &str, other: &str| {
            let endpoints = vec![endpoint("me", me, None, None), endpoint("other", other, None, None)];
            peers(&slice(&[("policy", 8_112)], endpoints))
        };
        // A Service of two families has a slice for each.
        let slices = BTreeMap::from([
            (Key::new("ns", "four"), of("10.0.0.1", "10.0.0.2")),
            (Key::new("ns", "six"), of("fd00::1", "fd00::2")),
        ]);
        let names: Vec<_> = live(Some(&slices), "me", own).unwrap().into_keys().collect();
        assert_eq!(names, [Arc::from("other")]);
    }

    fn object(pod: &str, at: SocketAddr) -> Value {
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "slice", "namespace": "system", "labels": {OF_SERVICE: "controller"}},
            "addressType": "IPv4", "ports": [{"name": PORT, "port": at.port()}],
            "endpoints": [{"addresses": [at.ip().to_string()], "targetRef": {"kind": "Pod", "name": pod}}]})
    }

    /// Asks those that the API server knows, for as long as the set lives.
    fn gather(server: &ApiServer, tenure: Tenure) -> (Arc<Others>, JoinSet<()>) {
        let dial = Dial { tls: None, token: "/dev/null".into(), pod: "me".into() };
        let (service, own) = (("system", "controller"), IpAddr::from([10, 0, 0, 1]));
        let (gatherer, others, watch) =
            Gatherer::new(server.client(), service, own, dial, tenure, Arc::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(watch);
        tasks.spawn(gatherer.run());
        (others, tasks)
    }

    #[test]
    fn what_is_heard_is_everything_when_each_has_told_or_had_time_for_it() {
        let (others, start, patience) = (Others::none(), clock::now(), 15 * SECOND);
        let told = |others: &Others, at: Instant| others.add_to(&mut Said::default(), patience, at);
        assert!(told(&others, start), "there are none");
        others.begin(start);
        assert!(!told(&others, start), "nobody knows who there is");
        others.set_live(&["a".into(), "b".into()].into());
        let everything = ReplicaSaid { whole: true, ..ReplicaSaid::default() };
        others.tell("a", &everything);
        assert!(!told(&others, start + 14 * SECOND) && told(&others, start + patience));
        others.tell("b", &everything);
        assert!(told(&others, start + SECOND));
        others.forget();
        assert!(!told(&others, start + 100 * SECOND), "nobody is asked");
        others.begin(start + 100 * SECOND);
        others.set_live(&["a".into()].into());
        assert!(!told(&others, start + 114 * SECOND) && told(&others, start + 115 * SECOND));
    }

    /// Whoever looks now and then sees a lease that was held all the time.
    #[tokio::test(start_paused = true)]
    async fn a_lease_that_was_lost_for_a_moment_is_a_new_beginning() {
        let (server, patience) = (ApiServer::default(), 15 * SECOND);
        // It listens, and tells nothing.
        let silent = TcpListener::bind("127.0.0.2:0").await.unwrap();
        server.put(SLICES, object("other", silent.local_addr().unwrap()));
        let renew = || Some(clock::now() + 10 * SECOND);
        let (sender, tenure) = tokio::sync::watch::channel(renew());
        let (others, _tasks) = gather(&server, tenure);
        let told = || others.add_to(&mut Said::default(), patience, clock::now());
        let waits = async || {
            assert!(!told());
            for _ in 0..2 {
                tokio::time::sleep(7 * SECOND).await;
                assert!(!told());
                sender.send_replace(renew());
            }
            tokio::time::sleep(2 * SECOND).await;
            assert!(told(), "it had its time");
        };
        waits().await;
        sender.send_replace(renew());
        tokio::time::sleep(10 * SECOND + Duration::from_millis(5)).await;
        sender.send_replace(renew());
        waits().await;
    }

    #[tokio::test]
    async fn a_pod_that_has_another_address_now_is_asked_there() {
        let server = ApiServer::default();
        let before = TcpListener::bind("127.0.0.2:0").await.unwrap();
        let after = TcpListener::bind("127.0.0.3:0").await.unwrap();
        let (at_before, at_after) = (before.local_addr().unwrap(), after.local_addr().unwrap());
        server.put(SLICES, object("other", at_before));
        let (_sender, tenure) = tokio::sync::watch::channel(Some(clock::now() + 3_600 * SECOND));
        let (_others, _tasks) = gather(&server, tenure);
        let bound = 60 * SECOND;
        let (_asked, _) = tokio::time::timeout(bound, before.accept()).await.unwrap().unwrap();
        server.change(SLICES, "system", "slice", |slice| *slice = object("other", at_after));
        let (_asked, _) = tokio::time::timeout(bound, after.accept()).await.unwrap().unwrap();
    }
}
