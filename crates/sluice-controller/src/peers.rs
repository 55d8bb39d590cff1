//! The other replicas: where they are, and what their agents say.
//!
//! The holder of the Lease asks each of them (`sluice_policy::replica_service`) and keeps what they say, for status and
//! Events; the others ask nobody. They are found in the EndpointSlices of the Service, so one that does not serve agents
//! is not waited for.
//!
//! Mechanics: one task per replica dials, listens, and dials again. Each attempt reads the token and the authorities
//! anew: both are renewed while this runs. [`addresses`] is pure; so is what is made of what they say
//! (`sluice_policy::replicas`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::watcher::Config;
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
use tokio::task::JoinSet;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use tonic::{Request, Streaming};

use crate::certificates::keeper::Adopted;
use crate::clock;
use crate::lease::{Tenure, holds, over};
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
    /// Whether it is known who there is.
    known: bool,
    replicas: Replicas,
}

impl Others {
    /// There are none, or they can't be asked.
    pub(crate) fn none() -> Self {
        Self(Mutex::new(Heard { known: true, replicas: Replicas::default() }))
    }

    /// Whether each of them has told everything.
    pub(crate) fn have_reported(&self) -> bool {
        let heard = self.0.lock();
        heard.known && heard.replicas.have_all_reported()
    }

    /// Adds what they said.
    pub(crate) fn add_to(&self, sum: &mut Said) {
        self.0.lock().replicas.add_to(sum, clock::now());
    }

    /// `None`: this replica is not to know.
    fn set_live(&self, live: Option<&BTreeSet<Arc<str>>>) {
        let mut heard = self.0.lock();
        match live {
            Some(live) => {
                heard.known = true;
                heard.replicas.set_live(live);
            }
            None => *heard = Heard::default(),
        }
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
            mirror(api, Config::default().labels(&format!("{OF_SERVICE}={service}")), peers);
        let others = Arc::new(Others(Mutex::default()));
        (Self { slices, own, dial, tenure, others: others.clone(), log }, others, watch)
    }

    /// Runs until it is dropped.
    pub(crate) async fn run(mut self) {
        loop {
            if holds(&self.tenure, clock::now()) {
                let mut tenure = self.tenure.clone();
                tokio::select! {
                    () = self.gather() => return,
                    () = over(&mut tenure) => {}
                }
                // With the streams gone, nothing that they said is kept: the next holder asks anew.
                self.others.set_live(None);
            }
            if self.tenure.changed().await.is_err() {
                return;
            }
        }
    }

    /// Ends with the watch alone.
    async fn gather(&mut self) {
        let mut streams = JoinSet::new();
        let mut asked: BTreeMap<Arc<str>, tokio::task::AbortHandle> = BTreeMap::new();
        loop {
            let live = live(self.slices.borrow_and_update().present(), &self.dial.pod, self.own);
            if let Some(live) = live {
                self.others.set_live(Some(&live.keys().cloned().collect()));
                asked.retain(|name, stream| {
                    let stays = live.contains_key(name);
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
                    asked.entry(name).or_insert_with(|| streams.spawn(stream.run()));
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
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;
    use k8s_openapi::api::discovery::v1::{Endpoint as SliceEndpoint, EndpointConditions, EndpointPort};

    use super::*;

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
}
