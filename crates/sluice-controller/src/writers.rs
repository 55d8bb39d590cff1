//! How what is said becomes what is written: from agents, other replicas and the shared state to status and Events.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use sluice_policy::fleet::Fleet;
use sluice_policy::publish::Publisher;
use sluice_policy::replica_service::ReplicaService;
use sluice_policy::transition_log::TransitionLog;
use sluice_proto::report::TargetTransition;
use sluice_state::{Observer, RedisConfig};
use tokio::sync::mpsc;

use crate::Parts;
use crate::breakers::Breakers;
use crate::certificates::keeper::Adopted;
use crate::clock;
use crate::config::Config;
use crate::events::{self, EventWriter};
use crate::injection::missing::MissingAgents;
use crate::peers::{Dial, Gatherer, Others};
use crate::status::{Memory, Sources, StatusWriter};
use crate::tasks::Tasks;
use crate::tokens::PeerTokens;

/// How long a look at the shared state may take: nobody waits for it.
const READ_WITHIN: Duration = Duration::from_secs(1);

/// Who says what is written.
pub(crate) struct Voices<'a> {
    pub(crate) fleet: &'a Arc<Fleet>,
    pub(crate) publisher: &'a Arc<Publisher>,
    /// From the agents.
    pub(crate) transitions: mpsc::Receiver<TargetTransition>,
    /// Where transitions from everyone come together.
    pub(crate) log: &'a Arc<TransitionLog>,
    /// `None`: nothing is injected.
    pub(crate) missing: Option<MissingAgents>,
}

/// Starts everything that writes, and what it needs.
///
/// # Errors
/// When the shared state is described so that it can't work.
pub(crate) fn start(
    parts: &Parts,
    tasks: &mut Tasks,
    config: &Config,
    adopted: Option<&Adopted>,
    voices: Voices<'_>,
) -> anyhow::Result<()> {
    let log = voices.log;
    let breakers = breakers(parts, tasks, config, voices.transitions, log)?;
    let others = others(parts, tasks, config, adopted, log);
    let (fleet, publisher) = (voices.fleet.clone(), voices.publisher.clone());
    let (notices, of_status) = mpsc::channel(events::WAITING);
    let status = StatusWriter {
        client: parts.client.clone(),
        index: parts.index.clone(),
        newest: parts.newest.clone(),
        sources: Sources { fleet, others, breakers, publisher },
        tenure: parts.tenure.clone(),
        notices,
        paces: config.paces,
        memory: Memory::default(),
    };
    tasks.finish("status", status.run(tasks.stop()));
    let events = Arc::new(EventWriter {
        client: parts.client.clone(),
        index: parts.index.clone(),
        newest: parts.newest.clone(),
        tenure: parts.tenure.clone(),
        pod: config.pod.as_str().into(),
    });
    let (of_breakers, log) = (events.clone(), log.clone());
    tasks.run("Events of breakers", async move { of_breakers.tell_transitions(&log).await });
    tasks.run("Events", async move { events.tell_notices(of_status, voices.missing).await });
    Ok(())
}

/// Hears of transitions from agents and from the shared state, and reads breakers there.
fn breakers(
    parts: &Parts,
    tasks: &mut Tasks,
    config: &Config,
    mut of_agents: mpsc::Receiver<TargetTransition>,
    log: &Arc<TransitionLog>,
) -> anyhow::Result<Arc<Breakers>> {
    let (observer, heard) = match &config.redis {
        Some(redis) => {
            let redis = RedisConfig { settle_deadline: READ_WITHIN, ..redis.clone() };
            let (observer, heard) = Observer::start(&redis).context("--redis-url")?;
            (Some(observer), Some(heard))
        }
        None => (None, None),
    };
    let breakers = Arc::new(Breakers::new(observer));
    if let Some(heard) = heard {
        tasks.run("the shared state's transitions", breakers.clone().listen(heard, log.clone()));
    }
    let to = log.clone();
    tasks.run("agents' transitions", async move {
        while let Some(told) = of_agents.recv().await {
            to.take(told, clock::now());
        }
    });
    tasks.run("transitions", breakers.clone().follow(log.clone()));
    tasks.run("breakers", breakers.clone().run(parts.newest.clone(), parts.tenure.clone()));
    Ok(breakers)
}

/// Asks the other replicas what their agents say.
fn others(
    parts: &Parts,
    tasks: &mut Tasks,
    config: &Config,
    adopted: Option<&Adopted>,
    log: &Arc<TransitionLog>,
) -> Arc<Others> {
    let (Some(own), Some(token)) = (config.pod_ip, &config.peer_token) else {
        return Arc::new(Others::none());
    };
    let name = format!("{}.{}.svc", config.service, config.namespace);
    let dial = Dial {
        tls: adopted.filter(|_| !config.insecure).map(|adopted| (adopted.clone(), name)),
        token: token.clone(),
        pod: config.pod.as_str().into(),
    };
    let service = (&*config.namespace, &*config.service);
    let (gatherer, others, watch) =
        Gatherer::new(parts.client.clone(), service, own, dial, parts.tenure.clone(), log.clone());
    tasks.run("the Service's pods", watch);
    tasks.run("other replicas", gatherer.run());
    others
}

/// Tells other replicas what the agents of this one say.
pub(crate) fn replica_service(
    parts: &Parts,
    tasks: &Tasks,
    config: &Config,
    fleet: &Arc<Fleet>,
    log: &Arc<TransitionLog>,
) -> Option<ReplicaService<PeerTokens>> {
    let recognise = PeerTokens::new(parts.client.clone(), config.peer_token.clone()?);
    Some(ReplicaService::new(fleet.clone(), log.clone(), recognise, tasks.stop()))
}
