//! Agents that connect, answer and report.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use parking_lot::Mutex;
use sluice_core::admission::BreakerState;
use sluice_core::target_id::TargetId;
use sluice_proto::report::{BreakerSeen, Report, StoreHealth, TargetAggregate};
use sluice_proto::v1;
use sluice_proto::v1::agent_message::Message as FromAgent;
use sluice_proto::v1::controller_message::Message as ToAgent;
use sluice_proto::v1::policy_discovery_client::PolicyDiscoveryClient;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint as Transport};

use crate::cluster::{Cluster, Generations, namespace, pod_name};

/// Agents that connect at once.
const AT_ONCE: usize = 64;
const REPORT: Duration = Duration::from_secs(1);

/// One controller.
pub(crate) struct Endpoint(Transport);

impl Endpoint {
    pub(crate) fn new(url: &str, name: &str, authorities: Option<&str>) -> anyhow::Result<Self> {
        let mut transport = Transport::from_shared(url.to_owned())?.connect_timeout(Duration::from_secs(10));
        if url.starts_with("https") {
            let authorities = authorities.context("no authorities: is sluice-ca in sluice-system?")?;
            let tls =
                ClientTlsConfig::new().domain_name(name).ca_certificate(Certificate::from_pem(authorities));
            transport = transport.tls_config(tls)?;
        }
        Ok(Self(transport))
    }
}

/// What an agent has answered: the policy's generation, and when.
#[derive(Debug, Clone, Copy)]
struct Answered {
    generation: i64,
    at: Instant,
}

pub(crate) struct Fleet {
    /// Per agent, with its namespace.
    answers: Arc<Mutex<BTreeMap<usize, (usize, Answered)>>>,
    changed: watch::Receiver<()>,
    agents: usize,
}

impl Fleet {
    pub(crate) async fn connect(cluster: &Cluster, endpoints: &Arc<Vec<Endpoint>>) -> anyhow::Result<Self> {
        let answers = Arc::new(Mutex::new(BTreeMap::new()));
        let (told, changed) = watch::channel(());
        let told = Arc::new(told);
        let places = Arc::new(tokio::sync::Semaphore::new(AT_ONCE));
        let mut agents = 0;
        for (n, agent) in cluster.agents() {
            let token = cluster.token(n, agent).await?;
            let one = Agent {
                n,
                number: agent,
                token,
                endpoints: endpoints.clone(),
                answers: answers.clone(),
                told: told.clone(),
                places: places.clone(),
            };
            tokio::spawn(one.run());
            agents += 1;
        }
        Ok(Self { answers, changed, agents })
    }

    pub(crate) fn len(&self) -> usize {
        self.agents
    }

    pub(crate) async fn all_in_sync(&self, within: Duration) -> anyhow::Result<()> {
        let mut changed = self.changed.clone();
        let all = async {
            while self.answers.lock().len() < self.agents {
                changed.changed().await?;
            }
            Ok(())
        };
        tokio::time::timeout(within, all).await?
    }

    /// When this share of the agents of one namespace, or of all, had answered these generations.
    pub(crate) async fn answered(
        &self,
        concerned: Option<usize>,
        generations: &Generations,
        share: f64,
        within: Duration,
    ) -> anyhow::Result<Instant> {
        let mut changed = self.changed.clone();
        let reached = async {
            loop {
                if let Some(at) = self.reached(concerned, generations, share) {
                    return Ok(at);
                }
                changed.changed().await?;
            }
        };
        tokio::time::timeout(within, reached).await.context("the edit did not reach the agents in time")?
    }

    fn reached(&self, concerned: Option<usize>, generations: &Generations, share: f64) -> Option<Instant> {
        let answers = self.answers.lock();
        let of = answers.values().filter(|(n, _)| concerned.is_none_or(|concerned| concerned == *n));
        let (mut all, mut at) = (0_usize, Vec::new());
        for (n, answered) in of {
            all += 1;
            if generations.get(n).is_some_and(|generation| answered.generation >= *generation) {
                at.push(answered.at);
            }
        }
        at.sort();
        let needed = (all as f64 * share).ceil() as usize;
        at.get(needed.max(1) - 1).copied()
    }
}

struct Agent {
    n: usize,
    number: usize,
    token: String,
    endpoints: Arc<Vec<Endpoint>>,
    answers: Arc<Mutex<BTreeMap<usize, (usize, Answered)>>>,
    told: Arc<watch::Sender<()>>,
    places: Arc<tokio::sync::Semaphore>,
}

impl Agent {
    async fn run(self) {
        let mut failures = 0_u32;
        loop {
            match self.serve(failures as usize).await {
                Ok(()) => failures = 0,
                Err(error) => {
                    failures += 1;
                    if failures > 8 {
                        eprintln!("agent {}: {error:#}", self.number);
                    }
                }
            }
            // Apart from one another, without a source of random numbers.
            let apart = (self.number as u64 * 7_919) % 500;
            tokio::time::sleep(Duration::from_millis(250 + apart)).await;
        }
    }

    /// One stream. With each failure the next controller is tried.
    async fn serve(&self, failures: usize) -> anyhow::Result<()> {
        let mut place = Some(self.places.acquire().await?);
        let Endpoint(transport) = &self.endpoints[(self.number + failures) % self.endpoints.len()];
        let channel = transport.connect().await?;
        let mut client =
            PolicyDiscoveryClient::new(channel).max_decoding_message_size(sluice_proto::MAX_MESSAGE_BYTES);
        let (to, outbound) = mpsc::channel(8);
        to.send(self.hello()).await?;
        let mut request = Request::new(ReceiverStream::new(outbound));
        request.metadata_mut().insert("authorization", format!("Bearer {}", self.token).parse()?);
        let mut from = client.stream(request).await?.into_inner();
        let mut reports = tokio::time::interval(REPORT);
        let mut news = None;
        loop {
            tokio::select! {
                message = from.message() => match message?.and_then(|message| message.message) {
                    Some(ToAgent::Snapshot(snapshot)) => {
                        news = Some(report(&snapshot));
                        let answered = self.answer(snapshot, &to).await?;
                        self.answers.lock().insert(self.number, (self.n, answered));
                        self.told.send_replace(());
                        drop(place.take());
                    }
                    Some(ToAgent::Secrets(_) | ToAgent::Agents(_)) => {}
                    None => return Ok(()),
                },
                // As the real one: what changed, which at rest is nothing after the first.
                _ = reports.tick() => if let Some(news) = news.take() {
                    to.send(v1::AgentMessage { message: Some(FromAgent::Report(news.encode())) }).await?;
                },
            }
        }
    }

    fn hello(&self) -> v1::AgentMessage {
        let features = sluice_proto::feature::SUPPORTED.iter().map(|feature| feature.as_str().to_owned());
        let hello = v1::Hello {
            agent_id: format!("agent-{}", self.number),
            namespace: namespace(self.n),
            pod: pod_name(self.number),
            features: features.collect(),
            build: "scale".to_owned(),
            ..v1::Hello::default()
        };
        v1::AgentMessage { message: Some(FromAgent::Hello(hello)) }
    }

    async fn answer(
        &self,
        snapshot: v1::Snapshot,
        to: &mpsc::Sender<v1::AgentMessage>,
    ) -> anyhow::Result<Answered> {
        let policies = |route: &v1::RoutePolicy| {
            let policy =
                route.sources.iter().find(|source| source.kind == v1::ObjectKind::ReliabilityPolicy as i32);
            policy.map_or(0, |policy| policy.generation)
        };
        let generation = snapshot.routes.first().map_or(0, policies);
        let accepted =
            snapshot.routes.into_iter().filter_map(|route| route.sources.into_iter().next()).collect();
        let ack =
            v1::Ack { nonce: snapshot.nonce, version: snapshot.version, accepted, rejected: Vec::new() };
        to.send(v1::AgentMessage { message: Some(FromAgent::Ack(ack)) }).await?;
        Ok(Answered { generation, at: Instant::now() })
    }
}

/// Idle, and closed.
fn report(snapshot: &v1::Snapshot) -> Report {
    let ids = snapshot
        .routes
        .iter()
        .flat_map(|route| &route.targets)
        .filter_map(|target| TargetId::parse(&target.id).ok());
    let aggregate = |target| TargetAggregate {
        target,
        in_flight: 0,
        limit: 32,
        admitted: 0,
        refused: 0,
        failed_over: 0,
        breaker: Some(BreakerSeen { state: BreakerState::Closed, epoch: 0, open_for: Duration::ZERO }),
        credential: None,
    };
    Report { targets: ids.map(aggregate).collect(), store: Some(StoreHealth::Shared), ..Report::default() }
}
