//! Keeps the Secret with the authorities and the serving certificate, together with every other replica.
//!
//! A look reads the Secret, does what is due, and writes the outcome over the version that it read. Whoever is second
//! is refused by the API server, looks again, and finds nothing due. A watch tells of others' writes at once; the look
//! that comes anyway finds what only time makes due.
//!
//! Edge rules
//! - No Secret: everything is made anew. Deleting it is how to stop trusting keys that got out; agents reconnect once
//!   kubelet has brought them the new authority, and serve by their last policies until then.
//! - A Secret that can't be read is left alone: a newer version of the controller may have written it. It is complained
//!   of, and a replica goes on with what it adopted before.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use tokio::sync::watch;

use super::NAME;
use super::material::{Due, Lives, Material};

/// The newest material; `None` before there is any.
pub(crate) type Adopted = watch::Receiver<Option<Arc<Material>>>;

/// Seconds since 1970.
pub(crate) type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The Secret's key. Another layout would be another key.
const MATERIAL_KEY: &str = "material.json";
/// How often a look tries again when another replica was faster.
const ATTEMPTS: usize = 5;
/// What is done in one look; a rotation is two.
const AT_ONCE: usize = 8;
const LOOK_WITHIN: Duration = Duration::from_secs(10);
/// After a look that failed.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// A look failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeepError {
    #[error("Secret {name}: {0}; the controller needs the rights to get, create and update it", name = NAME)]
    Api(#[from] kube::Error),
    #[error("Secret {name}, key {key}: {0}; delete the Secret to have everything made anew", name = NAME, key = MATERIAL_KEY)]
    Unreadable(String),
    #[error("Secret {name}: other replicas were faster {attempts} times; it is tried again", name = NAME, attempts = ATTEMPTS)]
    Contended,
    #[error("keys could not be made: {0:#}")]
    Keys(anyhow::Error),
}

/// One replica's.
pub(crate) struct Keeper {
    secrets: Api<Secret>,
    /// What agents and the API server call it.
    names: Vec<String>,
    lives: Lives,
    clock: Clock,
    adopted: watch::Sender<Option<Arc<Material>>>,
}

impl Keeper {
    pub(crate) fn new(
        client: Client,
        namespace: &str,
        service: &str,
        lives: Lives,
        clock: Clock,
    ) -> (Self, Adopted) {
        let (adopted, receiver) = watch::channel(None);
        let secrets = Api::namespaced(client, namespace);
        (Self { secrets, names: names(service, namespace), lives, clock, adopted }, receiver)
    }

    /// Runs until it is dropped.
    pub(crate) async fn run(self) {
        let only = crate::watch::config().fields(&format!("metadata.name={NAME}"));
        let mut changes = std::pin::pin!(watcher::watcher(self.secrets.clone(), only).default_backoff());
        let mut look = tokio::time::interval(self.lives.look());
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = look.tick() => {}
                change = changes.next() => match change {
                    Some(Ok(Event::Apply(_) | Event::Delete(_) | Event::InitDone)) => {}
                    Some(Ok(Event::Init | Event::InitApply(_))) => continue,
                    Some(Err(error)) => {
                        tracing::warn!(%error, secret = NAME, "a watch failed: it is tried again");
                        continue;
                    }
                    None => return,
                }
            }
            match tokio::time::timeout(LOOK_WITHIN, self.look()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(%error, "certificates could not be looked after: it is tried again");
                    look.reset_after(LOOK_AGAIN);
                }
                Err(_) => look.reset_after(LOOK_AGAIN),
            }
        }
    }

    /// Does what is due, and adopts what there is.
    pub(crate) async fn look(&self) -> Result<(), KeepError> {
        for _ in 0..ATTEMPTS {
            let found = self.secrets.get_opt(NAME).await?;
            let mut material = found.as_ref().map_or_else(|| Ok(Material::default()), read)?;
            let done = self.catch_up(&mut material).map_err(KeepError::Keys)?;
            if done.is_empty() || self.write(found, &material).await? {
                for due in done {
                    tracing::info!(what = due.as_str(), "certificates");
                }
                self.adopt(material);
                return Ok(());
            }
        }
        Err(KeepError::Contended)
    }

    fn catch_up(&self, material: &mut Material) -> anyhow::Result<Vec<Due>> {
        let (now, mut done) = ((self.clock)(), Vec::new());
        while let Some(due) = material.due(&self.lives, &self.names, now).filter(|_| done.len() < AT_ONCE) {
            material.carry_out(due, &self.lives, &self.names, now)?;
            done.push(due);
        }
        Ok(done)
    }

    /// Whether it was written: not, when another was faster.
    async fn write(&self, found: Option<Secret>, material: &Material) -> Result<bool, KeepError> {
        let json = serde_json::to_vec(material).map_err(|error| KeepError::Keys(error.into()))?;
        let data = BTreeMap::from([(MATERIAL_KEY.to_owned(), ByteString(json))]);
        let (parameters, exists) = (PostParams::default(), found.is_some());
        let mut secret = found.unwrap_or_else(new_secret);
        secret.data = Some(data);
        let written = if exists {
            self.secrets.replace(NAME, &parameters, &secret).await
        } else {
            self.secrets.create(&parameters, &secret).await
        };
        match written {
            Ok(_) => Ok(true),
            // Replaced, made, or deleted since it was read.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn adopt(&self, material: Material) {
        self.adopted.send_if_modified(|adopted| {
            let new = adopted.as_deref() != Some(&material);
            if new {
                *adopted = Some(Arc::new(material));
            }
            new
        });
    }
}

/// Under which names the Service is called, from the shortest.
fn names(service: &str, namespace: &str) -> Vec<String> {
    ["", ".svc", ".svc.cluster.local"].into_iter().map(|end| format!("{service}.{namespace}{end}")).collect()
}

fn new_secret() -> Secret {
    let labels = [("app.kubernetes.io/managed-by".to_owned(), crate::status::FIELD_MANAGER.to_owned())];
    Secret {
        metadata: ObjectMeta {
            name: Some(NAME.to_owned()),
            labels: Some(labels.into()),
            ..ObjectMeta::default()
        },
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

fn read(secret: &Secret) -> Result<Material, KeepError> {
    let json = secret.data.as_ref().and_then(|data| data.get(MATERIAL_KEY));
    let json = json.ok_or_else(|| KeepError::Unreadable("it is missing".to_owned()))?;
    serde_json::from_slice(&json.0).map_err(|error| {
        // Its own words may quote a key.
        KeepError::Unreadable(format!(
            "{:?} error at line {}, column {}",
            error.classify(),
            error.line(),
            error.column()
        ))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::api_server::ApiServer;

    const NAMESPACE: &str = "sluice-system";
    const DAY: u64 = 24 * 60 * 60;

    struct Replica {
        keeper: Arc<Keeper>,
        adopted: Adopted,
    }

    fn replica(server: &ApiServer, clock: &Arc<AtomicU64>) -> Replica {
        let clock = clock.clone();
        let clock: Clock = Arc::new(move || clock.load(Ordering::Relaxed));
        let (keeper, adopted) =
            Keeper::new(server.client(), NAMESPACE, "sluice-controller", Lives::default(), clock);
        Replica { keeper: Arc::new(keeper), adopted }
    }

    fn material(replica: &Replica) -> Arc<Material> {
        replica.adopted.borrow().clone().unwrap()
    }

    #[tokio::test]
    async fn replicas_that_start_together_serve_the_same() {
        let (server, clock) = (ApiServer::default(), Arc::new(AtomicU64::new(1_800_000_000)));
        let replicas: Vec<Replica> = (0..4).map(|_| replica(&server, &clock)).collect();
        for day in 0..400 {
            clock.fetch_add(DAY, Ordering::Relaxed);
            let mut looks = tokio::task::JoinSet::new();
            for replica in &replicas {
                let keeper = replica.keeper.clone();
                looks.spawn(async move { keeper.look().await });
            }
            for look in looks.join_all().await {
                look.unwrap();
            }
            // Who was refused has adopted what the other made; who was first has what it made.
            let first = material(&replicas[0]);
            assert!(replicas.iter().all(|replica| material(replica) == first), "day {day}");
        }
        assert!(server.conflicts() > 0, "they never raced");
        // Once for the start, and for each rotation; never to say the same again.
        assert!((6..=16).contains(&server.writes()), "{}", server.writes());
    }

    #[tokio::test]
    async fn a_deleted_secret_is_made_anew_and_a_broken_one_is_left_alone() {
        let (server, clock) = (ApiServer::default(), Arc::new(AtomicU64::new(1_800_000_000)));
        let replica = replica(&server, &clock);
        replica.keeper.look().await.unwrap();
        let first = material(&replica);
        let secrets = Api::<Secret>::namespaced(server.client(), NAMESPACE);
        secrets.delete(NAME, &kube::api::DeleteParams::default()).await.unwrap();
        replica.keeper.look().await.unwrap();
        assert!(material(&replica).bundle() != first.bundle(), "its keys are not trusted any more");

        let mut broken = secrets.get(NAME).await.unwrap();
        let text = br#"{"authorities": "-----BEGIN PRIVATE KEY-----"}"#.to_vec();
        broken.data = Some([(MATERIAL_KEY.to_owned(), ByteString(text))].into());
        secrets.replace(NAME, &PostParams::default(), &broken).await.unwrap();
        let (writes, before) = (server.writes(), material(&replica));
        let error = replica.keeper.look().await.unwrap_err().to_string();
        assert!(error.contains("delete the Secret") && !error.contains("PRIVATE"), "{error}");
        assert!(server.writes() == writes && material(&replica) == before);
    }

    #[tokio::test]
    async fn a_running_keeper_adopts_what_another_replica_makes_and_heals_a_deletion() {
        let (server, clock) = (ApiServer::default(), Arc::new(AtomicU64::new(1_800_000_000)));
        let (mut one, mut two) = (replica(&server, &clock), replica(&server, &clock));
        let mut tasks = tokio::task::JoinSet::new();
        for replica in [&mut one, &mut two] {
            let keeper = Arc::into_inner(std::mem::replace(
                &mut replica.keeper,
                self::replica(&server, &clock).keeper,
            ));
            tasks.spawn(keeper.unwrap().run());
        }
        let there = |adopted: &Option<Arc<Material>>| adopted.is_some();
        let first = one.adopted.wait_for(there).await.unwrap().clone().unwrap();
        let seen = two.adopted.wait_for(there).await.unwrap().clone().unwrap();
        assert!(first == seen);
        let secrets = Api::<Secret>::namespaced(server.client(), NAMESPACE);
        secrets.delete(NAME, &kube::api::DeleteParams::default()).await.unwrap();
        let other =
            |adopted: &Option<Arc<Material>>| adopted.as_ref().is_some_and(|material| *material != first);
        let again = one.adopted.wait_for(other).await.unwrap().clone().unwrap();
        let seen = two.adopted.wait_for(other).await.unwrap().clone().unwrap();
        assert!(again == seen);
    }
}
