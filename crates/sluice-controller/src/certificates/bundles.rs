//! The ConfigMap with the trusted authorities, in each namespace that uses it.
//!
//! Which namespaces: those with a ModelRoute, those that ask for injection, those with an agent's pod, and our own. The
//! holder of the Lease looks each second and writes what differs from what the watch shows; a quiet cluster sees no
//! write. The webhook does not wait for that: kubelet looks for an optional ConfigMap once when a pod starts and then a
//! minute later, so whichever replica injects an agent first sees to it that there is one ([`Published::ensure`]).
//!
//! Edge rules
//! - One that is there and is ours is kept up to date also when nothing uses it any more: what mounts it may come back.
//! - Should someone else insist on another content, that is a slow quarrel, see [`Pauses`].
//! - Namespaces that this controller may not look into are told of, once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::json;
use sluice_policy::index::{Index, Key};
use tokio::time::Instant;

use super::keeper::Adopted;
use super::pauses::Pauses;
use super::{BUNDLE_KEY, NAME, WRITE_WITHIN};
use crate::clock;
use crate::lease::{Tenure, holds, within_tenure};
use crate::metrics::ControllerMetrics;
use crate::mirror::{Mirrored, mirror};
use crate::namespaces::Namespaces;
use crate::pods::Pods;
use crate::status::FIELD_MANAGER;
use crate::watch;

const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Between two looks at which namespaces use it.
const LOOK: Duration = Duration::from_secs(1);
/// Writes at once.
const AT_ONCE: usize = 8;
/// How long a pod's creation waits for the ConfigMap of its namespace.
const ENSURE_WITHIN: Duration = Duration::from_secs(1);

/// A ConfigMap of that name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    bundle: String,
    ours: bool,
}

/// What a namespace has, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// What it should.
    Current,
    /// Another content, or nobody's.
    Other,
    Missing,
    /// The watch has not shown everything yet.
    Unknown,
    /// This controller was not told to look there.
    Unwatched,
}

/// Why a namespace has none.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unpublished {
    #[error("namespace {0} is not among those that the controller looks into: add it to watchNamespaces")]
    Unwatched(String),
    #[error("there is no certificate yet")]
    NoCertificate,
    #[error("ConfigMap {name} could not be written: {0}", name = NAME)]
    Api(#[from] kube::Error),
    #[error("ConfigMap {name} could not be written in time", name = NAME)]
    Late,
}

/// What there is, and the way to write it.
pub(crate) struct Published {
    client: Client,
    adopted: Adopted,
    /// By namespace; `None`: of all.
    seen: BTreeMap<Option<Arc<str>>, Mirrored<Seen>>,
}

impl Published {
    /// Looks into these namespaces; `None`: into all. The futures are to be run.
    pub(crate) fn new(
        client: Client,
        adopted: Adopted,
        namespaces: Option<&BTreeSet<Arc<str>>>,
    ) -> (Self, Vec<impl Future<Output = ()> + Send + 'static>) {
        let scopes: Vec<Option<Arc<str>>> = match namespaces {
            Some(namespaces) => namespaces.iter().cloned().map(Some).collect(),
            None => vec![None],
        };
        let (mut seen, mut watches) = (BTreeMap::new(), Vec::new());
        for scope in scopes {
            let api = match &scope {
                Some(namespace) => Api::<ConfigMap>::namespaced(client.clone(), namespace),
                None => Api::all(client.clone()),
            };
            let only = watch::config().fields(&format!("metadata.name={NAME}"));
            let (watch, mirrored) = mirror(api, only, read);
            watches.push(watch);
            seen.insert(scope, mirrored);
        }
        (Self { client, adopted, seen }, watches)
    }

    /// Sees to it that a namespace has one before a pod there needs it.
    pub(crate) async fn ensure(&self, namespace: &str) -> Result<(), Unpublished> {
        match self.state(namespace, "") {
            // An older one has authorities that are trusted still; the holder of the Lease brings it up to date.
            State::Current | State::Other => Ok(()),
            State::Unwatched => Err(Unpublished::Unwatched(namespace.to_owned())),
            State::Missing | State::Unknown => {
                let bundle = self.bundle().ok_or(Unpublished::NoCertificate)?;
                self.apply(namespace, &bundle, ENSURE_WITHIN).await
            }
        }
    }

    fn bundle(&self) -> Option<String> {
        self.adopted.borrow().as_ref().map(|material| material.bundle())
    }

    /// With what it should have.
    fn state(&self, namespace: &str, bundle: &str) -> State {
        let by_name = self.seen.get(&Some(namespace.into())).or_else(|| self.seen.get(&None));
        let Some(mirrored) = by_name else { return State::Unwatched };
        let mirror = mirrored.borrow();
        let Some(present) = mirror.present() else { return State::Unknown };
        match present.get(&Key::new(namespace, NAME)) {
            None => State::Missing,
            Some(seen) if seen.ours && seen.bundle == bundle => State::Current,
            Some(_) => State::Other,
        }
    }

    /// Namespaces where there is one of ours.
    fn present(&self) -> BTreeSet<Arc<str>> {
        let mut namespaces = BTreeSet::new();
        for mirrored in self.seen.values() {
            let mirror = mirrored.borrow();
            let ours = mirror.present().into_iter().flatten().filter(|(_, seen)| seen.ours);
            namespaces.extend(ours.map(|(key, _)| key.namespace.clone()));
        }
        namespaces
    }

    async fn apply(&self, namespace: &str, bundle: &str, within: Duration) -> Result<(), Unpublished> {
        let config_map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": NAME, "labels": { MANAGED_BY: FIELD_MANAGER } },
            "data": { BUNDLE_KEY: bundle },
        });
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let config_maps = Api::<ConfigMap>::namespaced(self.client.clone(), namespace);
        let patch = Patch::Apply(&config_map);
        let applied = tokio::time::timeout(within, config_maps.patch(NAME, &parameters, &patch)).await;
        applied.map_err(|_| Unpublished::Late)??;
        Ok(())
    }
}

fn read(config_map: &ConfigMap) -> Seen {
    let labels = config_map.metadata.labels.as_ref();
    Seen {
        bundle: config_map.data.as_ref().and_then(|data| data.get(BUNDLE_KEY)).cloned().unwrap_or_default(),
        ours: labels.and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|by| by == FIELD_MANAGER),
    }
}

/// Who uses it.
pub(crate) struct Users {
    pub(crate) own: Arc<str>,
    pub(crate) index: Arc<Mutex<Index>>,
    pub(crate) pods: Arc<Pods>,
    pub(crate) namespaces: Namespaces,
}

impl Users {
    fn namespaces(&self) -> BTreeSet<Arc<str>> {
        let mut users = BTreeSet::from([self.own.clone()]);
        users.extend(self.index.lock().routes().keys().map(|key| key.namespace.clone()));
        users.extend(self.pods.namespaces());
        users.extend(self.namespaces.that_ask());
        users
    }
}

/// Writes them, while this replica holds the lease.
pub(crate) struct BundleWriter {
    published: Arc<Published>,
    users: Users,
    tenure: Tenure,
    metrics: Arc<ControllerMetrics>,
    pauses: Pauses<Arc<str>>,
    /// Namespaces that were told of.
    complained: BTreeSet<Arc<str>>,
}

impl BundleWriter {
    pub(crate) fn new(
        published: Arc<Published>,
        users: Users,
        tenure: Tenure,
        metrics: Arc<ControllerMetrics>,
    ) -> Self {
        Self { published, users, tenure, metrics, pauses: Pauses::default(), complained: BTreeSet::new() }
    }

    /// Runs until it is dropped.
    pub(crate) async fn run(mut self) {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            let (tenure, now) = (self.tenure.clone(), clock::now());
            let Some(bundle) = self.published.bundle().filter(|_| holds(&tenure, now)) else { continue };
            let due = self.due(&bundle, now);
            // A tenure that ends takes the writes on their way with it.
            let _ = within_tenure(&tenure, self.write(due, bundle)).await;
        }
    }

    /// The namespaces to write to now.
    fn due(&mut self, bundle: &str, now: Instant) -> Vec<Arc<str>> {
        let (mut wanted, mut published, mut behind) = (self.users.namespaces(), 0, Vec::new());
        wanted.extend(self.published.present());
        // Nothing can be made in one that is being deleted.
        wanted.retain(|namespace| !self.users.namespaces.is_ending(namespace));
        let mut unwatched = BTreeSet::new();
        for namespace in wanted {
            match self.published.state(&namespace, bundle) {
                State::Current => published += 1,
                State::Other | State::Missing => behind.push(namespace),
                State::Unknown => {}
                State::Unwatched => drop(unwatched.insert(namespace)),
            }
        }
        self.metrics.bundles(published, behind.len(), unwatched.len());
        for namespace in unwatched.difference(&self.complained) {
            tracing::warn!(
                %namespace,
                "uses Sluice, but is not among the namespaces that this controller looks into: its agents cannot trust the control plane; add it to watchNamespaces"
            );
        }
        self.complained = unwatched;
        behind.retain(|namespace| !self.pauses.rests(namespace, now));
        behind
    }

    async fn write(&mut self, due: Vec<Arc<str>>, bundle: String) {
        let (published, bundle) = (self.published.clone(), Arc::<str>::from(bundle));
        let mut answers = futures_util::stream::iter(due)
            .map(|namespace| {
                let (published, bundle) = (published.clone(), bundle.clone());
                async move { (published.apply(&namespace, &bundle, WRITE_WITHIN).await, namespace) }
            })
            .buffer_unordered(AT_ONCE);
        while let Some((answer, namespace)) = answers.next().await {
            self.pauses.wrote(namespace.clone(), clock::now());
            match answer {
                Ok(()) => tracing::info!(%namespace, config_map = NAME, "authorities published"),
                Err(error) => {
                    tracing::warn!(%namespace, %error, "authorities were not published: it is tried again");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_server::{ApiServer, Fault};
    use crate::certificates::keeper::{Clock, Keeper};
    use crate::certificates::material::Lives;

    struct World {
        server: ApiServer,
        keeper: Keeper,
        writer: BundleWriter,
        index: Arc<Mutex<Index>>,
        tasks: tokio::task::JoinSet<()>,
        /// Kept: without it nobody holds the lease.
        _tenure: tokio::sync::watch::Sender<Option<Instant>>,
    }

    /// With this many seconds since 1970, and these namespaces to look into.
    fn world(clock: Clock, namespaces: Option<&[&str]>) -> World {
        let server = ApiServer::default();
        let (keeper, adopted) =
            Keeper::new(server.client(), "sluice-system", "sluice-controller", Lives::default(), clock);
        let namespaces = namespaces.map(|names| names.iter().map(|name| Arc::from(*name)).collect());
        let (published, watches) = Published::new(server.client(), adopted, namespaces.as_ref());
        let mut tasks = tokio::task::JoinSet::new();
        for watch in watches {
            tasks.spawn(watch);
        }
        let index = Arc::new(Mutex::new(Index::default()));
        let users = Users {
            own: "sluice-system".into(),
            index: index.clone(),
            pods: Arc::default(),
            namespaces: Namespaces::of(server.client(), &[("asks", true), ("other", false)]),
        };
        let (sender, tenure) = tokio::sync::watch::channel(Some(clock::now() + Duration::from_hours(1)));
        let writer = BundleWriter::new(Arc::new(published), users, tenure, Arc::default());
        World { server, keeper, writer, index, tasks, _tenure: sender }
    }

    fn fixed() -> Clock {
        Arc::new(|| 1_800_000_000)
    }

    fn route(namespace: &str) -> sluice_api::ModelRoute {
        serde_json::from_value(json!({
            "apiVersion": "sluice.dev/v1alpha1", "kind": "ModelRoute",
            "metadata": {"namespace": namespace, "name": "chat"},
            "spec": {"models": ["*"], "targets": []},
        }))
        .unwrap()
    }

    impl World {
        async fn bundle_of(&self, namespace: &str) -> Option<String> {
            let config_maps = Api::<ConfigMap>::namespaced(self.server.client(), namespace);
            Some(read(&config_maps.get_opt(NAME).await.unwrap()?).bundle)
        }

        /// Until the watches show what is there.
        async fn synced(&mut self, is: impl Fn(&Published) -> bool) {
            let published = self.writer.published.clone();
            while !is(&published) {
                tokio::task::yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn each_namespace_that_uses_it_gets_it_and_a_quiet_cluster_sees_no_write() {
        let mut world = world(fixed(), None);
        world.index.lock().apply_route(route("routes"), 0);
        world.keeper.look().await.unwrap();
        let bundle = world.writer.published.bundle().unwrap();
        world.synced(|published| published.state("asks", "") == State::Missing).await;
        let due = world.writer.due(&bundle, clock::now());
        assert_eq!(due.iter().map(|name| &**name).collect::<Vec<_>>(), ["asks", "routes", "sluice-system"]);
        world.writer.write(due, bundle.clone()).await;
        assert_eq!(world.bundle_of("routes").await.unwrap(), bundle);
        assert_eq!(world.bundle_of("other").await, None);
        world.synced(|published| published.present().len() == 3).await;
        let (writes, later) = (world.server.writes(), clock::now() + Duration::from_secs(2));
        assert_eq!(world.writer.due(&bundle, clock::now()), Vec::<Arc<str>>::new());
        assert_eq!(world.server.writes(), writes);

        // Someone writes something else; someone deletes one.
        let asks = Api::<ConfigMap>::namespaced(world.server.client(), "asks");
        let other = json!({"data": {BUNDLE_KEY: "nonsense"}});
        asks.patch(NAME, &PatchParams::apply("someone").force(), &Patch::Apply(&other)).await.unwrap();
        let routes = Api::<ConfigMap>::namespaced(world.server.client(), "routes");
        routes.delete(NAME, &kube::api::DeleteParams::default()).await.unwrap();
        world.synced(|published| published.state("routes", "") == State::Missing).await;
        assert_eq!(world.writer.due(&bundle, clock::now()), Vec::<Arc<str>>::new(), "no quarrel");
        let due = world.writer.due(&bundle, later);
        assert_eq!(due.iter().map(|name| &**name).collect::<Vec<_>>(), ["asks", "routes"]);
        // The route is gone, and its ConfigMap is ours: what mounts it may come back.
        world.index.lock().delete_route(&Key::new("routes", "chat"));
        world.writer.write(due, bundle.clone()).await;
        world.synced(|published| published.present().len() == 3).await;
        assert_eq!(world.writer.due("next", later + Duration::from_mins(2)).len(), 3);
    }

    #[tokio::test]
    async fn only_namespaces_that_it_may_look_into_are_tried_and_a_refusal_is_retried() {
        let mut world = world(fixed(), Some(&["sluice-system", "asks"]));
        world.index.lock().apply_route(route("elsewhere"), 0);
        world.keeper.look().await.unwrap();
        let bundle = world.writer.published.bundle().unwrap();
        world.synced(|published| published.state("asks", "") == State::Missing).await;
        world.synced(|published| published.state("sluice-system", "") == State::Missing).await;
        world.server.forbid("asks", true);
        let due = world.writer.due(&bundle, clock::now());
        assert_eq!(due.len(), 2, "{due:?}");
        assert_eq!(world.writer.complained.iter().map(|name| &**name).collect::<Vec<_>>(), ["elsewhere"]);
        world.writer.write(due, bundle.clone()).await;
        world.server.forbid("asks", false);
        let due = world.writer.due(&bundle, clock::now() + Duration::from_secs(2));
        world.writer.write(due, bundle.clone()).await;
        assert!(world.bundle_of("asks").await.is_some());
        assert_eq!(world.bundle_of("elsewhere").await, None);
        let told = world.writer.published.ensure("elsewhere").await.unwrap_err().to_string();
        assert!(told.contains("watchNamespaces"), "{told}");
    }

    #[tokio::test]
    async fn whoever_injects_first_does_not_wait_for_the_writer() {
        let mut world = world(fixed(), None);
        let told = world.writer.published.ensure("new").await.unwrap_err();
        assert!(matches!(told, Unpublished::NoCertificate), "{told}");
        world.keeper.look().await.unwrap();
        world.writer.published.ensure("new").await.unwrap();
        assert_eq!(world.bundle_of("new").await, world.writer.published.bundle());
        world.synced(|published| published.state("new", "") == State::Other).await;
        let writes = world.server.writes();
        world.writer.published.ensure("new").await.unwrap();
        assert_eq!(world.server.writes(), writes);
        world.tasks.shutdown().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_nobody_answers_is_given_up_and_tried_again() {
        const CONFIG_MAPS: &str = "api/v1/configmaps";
        let World { server, keeper, writer, mut tasks, _tenure, .. } = world(fixed(), None);
        keeper.look().await.unwrap();
        server.spoil(CONFIG_MAPS, Fault::Vanishes);
        tasks.spawn(writer.run());
        while server.faults_met() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        server.mend(CONFIG_MAPS);
        let written = async {
            while server.get(CONFIG_MAPS, "asks", NAME).is_none() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(2 * WRITE_WITHIN, written).await.unwrap();
    }
}
