//! What the API server says, as changes.
//!
//! Why our resources are watched untyped: a typed list fails as a whole when one of its objects does not parse (one
//! that is older than a rule, say), and then nothing would be known of the others. Here each object is read alone, and
//! one that can't be read is told as such.
//!
//! A watch that starts again (410 Gone, an API server that restarted) lists everything anew. What it does not list any
//! more was deleted meanwhile; the follower remembers names, and tells so, also of what only a list named that failed
//! on a later page.

use std::collections::BTreeSet;
use std::fmt::{Debug, Display};

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{ApiResource, DynamicObject};
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Config, Event};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use sluice_api::{ModelRoute, ReliabilityPolicy};
use sluice_core::policy::ObjectKind;
use sluice_policy::index::{Key, Unread};
use tokio::sync::mpsc;

use crate::pods::InjectedPod;
use crate::secrets::{Ask, Reply, Version};

/// Refusals in a row before a watch is taken to have no right, some seconds by the pauses between them.
const REFUSALS: u32 = 3;

/// Seconds that a watch is asked to last. A connection that died without a word is found out five seconds later, the
/// margin that kube has: after 45 s, as client-go's pings find one out. The price is a request per watch in that time.
const LASTS: u32 = 40;

/// How anything is watched; [`follow`] is for what is told as changes, [`crate::mirror`] for the rest.
pub(crate) fn config() -> Config {
    Config::default().timeout(LASTS)
}

/// What changed in the cluster.
#[derive(Debug)]
pub(crate) enum Change {
    Route(Box<ModelRoute>),
    Policy(Box<ReliabilityPolicy>),
    /// It exists, and cannot be read.
    Unreadable(ObjectKind, Box<Unread>, String),
    /// A Secret's newest version, without its content.
    SecretVersion(Key, Version),
    /// What came of reading a Secret.
    Read(Ask, Reply),
    Pod(InjectedPod),
    Deleted(Kind, Key),
    /// All that there was when the watch began has been told, or can't be had.
    Synced(Source),
    /// The Secrets of one namespace, or of all, may not be read.
    SecretsForbidden(Option<String>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Route,
    Policy,
    Secret,
    Pod,
}

/// One watch.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    Routes,
    Policies,
    Pods,
    /// Of one namespace, or of all (`None`).
    Secrets(Option<String>),
}

impl Source {
    fn kind(&self) -> Kind {
        match self {
            Self::Routes => Kind::Route,
            Self::Policies => Kind::Policy,
            Self::Pods => Kind::Pod,
            Self::Secrets(_) => Kind::Secret,
        }
    }
}

/// Follows one source until the receiver is gone.
pub(crate) async fn follow(client: Client, source: Source, changes: mpsc::Sender<Change>) {
    match &source {
        Source::Routes => {
            let api = Api::<DynamicObject>::all_with(client, &ApiResource::erase::<ModelRoute>(&()));
            let events = watcher::watcher(api, config());
            run(events, source, read_route, changes).await;
        }
        Source::Policies => {
            let api = Api::<DynamicObject>::all_with(client, &ApiResource::erase::<ReliabilityPolicy>(&()));
            let events = watcher::watcher(api, config());
            run(events, source, read_policy, changes).await;
        }
        Source::Pods => {
            let injected = config().labels(crate::pods::INJECTED);
            let events = watcher::watcher(Api::<PartialObjectMeta<Pod>>::all(client), injected);
            run(events, source, |pod| Change::Pod(InjectedPod::of(&pod)), changes).await;
        }
        Source::Secrets(namespace) => {
            let api: Api<PartialObjectMeta<Secret>> = match namespace {
                Some(namespace) => Api::namespaced(client, namespace),
                None => Api::all(client),
            };
            let events = watcher::watcher(api, config());
            run(events, source, |secret| read_version(&secret), changes).await;
        }
    }
}

fn read_route(object: DynamicObject) -> Change {
    match object.clone().try_parse::<ModelRoute>() {
        Ok(route) => Change::Route(Box::new(route)),
        Err(error) => unreadable(ObjectKind::ModelRoute, object, &error),
    }
}

fn read_policy(object: DynamicObject) -> Change {
    match object.clone().try_parse::<ReliabilityPolicy>() {
        Ok(policy) => Change::Policy(Box::new(policy)),
        Err(error) => unreadable(ObjectKind::ReliabilityPolicy, object, &error),
    }
}

/// What can be read of it still is: its own status is to say what is wrong.
fn unreadable(kind: ObjectKind, object: DynamicObject, error: &impl Display) -> Change {
    let unread = Unread::of(object.metadata, object.data);
    let problem = format!(
        "this version of the controller can't read it: {error}; upgrade it, or use a value that it knows"
    );
    Change::Unreadable(kind, Box::new(unread), problem)
}

fn read_version(secret: &PartialObjectMeta<Secret>) -> Change {
    Change::SecretVersion(key_of(secret), Version::of(&secret.metadata))
}

fn key_of<K: Resource>(object: &K) -> Key {
    Key::of(object.meta())
}

async fn run<K>(
    events: impl futures_util::Stream<Item = watcher::Result<Event<K>>> + Send,
    source: Source,
    read: impl Fn(K) -> Change,
    changes: mpsc::Sender<Change>,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut follower = Follower { known: BTreeSet::new(), listed: BTreeSet::new(), kind: source.kind() };
    let mut events = std::pin::pin!(events.default_backoff());
    let mut rights = Rights::default();
    while let Some(event) = events.next().await {
        let told = match event {
            Ok(event) => {
                rights.heard(&event);
                follower.take(event, &source, &read)
            }
            Err(error) => {
                tracing::warn!(?source, %error, "a watch failed: it is tried again");
                if rights.are_refused(&source, &error) { without_rights(&source) } else { Vec::new() }
            }
        };
        for change in told {
            if changes.send(change).await.is_err() {
                return;
            }
        }
    }
}

/// Whether a watch was ever allowed.
#[derive(Debug, Default)]
struct Rights {
    synced: bool,
    /// In a row.
    refusals: u32,
}

impl Rights {
    fn heard<K>(&mut self, event: &Event<K>) {
        self.synced |= matches!(event, Event::InitDone);
        if self.synced {
            self.refusals = 0;
        }
    }

    /// Whether this failure shows that there is no right to see these Secrets: then everything else goes on without
    /// them. An API server that has just started refuses everyone for a moment, so once is not enough; and what was
    /// seen before stays as it was, since taking credentials away from agents would do more harm.
    fn are_refused(&mut self, source: &Source, error: &watcher::Error) -> bool {
        if self.synced || !matches!(source, Source::Secrets(_)) || !is_refusal(error) {
            return false;
        }
        self.refusals += 1;
        self.refusals == REFUSALS
    }
}

fn is_refusal(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => status.code == 403,
        _ => false,
    }
}

fn without_rights(source: &Source) -> Vec<Change> {
    let Source::Secrets(namespace) = source else { return Vec::new() };
    vec![Change::SecretsForbidden(namespace.clone()), Change::Synced(source.clone())]
}

/// Which objects there are, so that a list tells which are gone.
struct Follower {
    known: BTreeSet<Key>,
    listed: BTreeSet<Key>,
    kind: Kind,
}

impl Follower {
    fn take<K: Resource>(
        &mut self,
        event: Event<K>,
        source: &Source,
        read: &impl Fn(K) -> Change,
    ) -> Vec<Change> {
        match event {
            Event::Init => {
                // A list that failed on the way told of these, and the next one may not name them any more.
                self.known.append(&mut self.listed);
                Vec::new()
            }
            Event::InitApply(object) => {
                self.listed.insert(key_of(&object));
                vec![read(object)]
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                let gone = self.known.difference(&listed).cloned();
                let mut told: Vec<Change> = gone.map(|key| Change::Deleted(self.kind, key)).collect();
                self.known = listed;
                told.push(Change::Synced(source.clone()));
                told
            }
            Event::Apply(object) => {
                self.known.insert(key_of(&object));
                vec![read(object)]
            }
            Event::Delete(object) => {
                let key = key_of(&object);
                self.known.remove(&key);
                vec![Change::Deleted(self.kind, key)]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::api_server::{ApiServer, Fault};
    use crate::clock;

    const SECRETS: &str = "api/v1/secrets";

    fn secret(name: &str) -> PartialObjectMeta<Secret> {
        let mut secret = PartialObjectMeta::<Secret>::default();
        secret.metadata.name = Some(name.to_owned());
        secret.metadata.namespace = Some("ns".to_owned());
        secret
    }

    fn told(changes: &[Change]) -> Vec<String> {
        let tell = |change: &Change| match change {
            Change::SecretVersion(key, _) => format!("is {key}"),
            Change::Deleted(_, key) => format!("gone {key}"),
            Change::Synced(_) => "synced".to_owned(),
            other => panic!("{other:?}"),
        };
        changes.iter().map(tell).collect()
    }

    #[test]
    fn what_a_new_list_does_not_name_is_gone() {
        let source = Source::Secrets(None);
        let mut follower = Follower { known: BTreeSet::new(), listed: BTreeSet::new(), kind: Kind::Secret };
        let mut take = |event| told(&follower.take(event, &source, &|secret| read_version(&secret)));
        assert!(take(Event::Init).is_empty());
        assert_eq!(take(Event::InitApply(secret("a"))), ["is ns/a"]);
        assert_eq!(take(Event::InitApply(secret("b"))), ["is ns/b"]);
        assert_eq!(take(Event::InitDone), ["synced"]);
        assert_eq!(take(Event::Apply(secret("c"))), ["is ns/c"]);
        assert_eq!(take(Event::Delete(secret("a"))), ["gone ns/a"]);
        // The watch starts again, and b was deleted meanwhile.
        assert!(take(Event::Init).is_empty());
        assert_eq!(take(Event::InitApply(secret("c"))), ["is ns/c"]);
        assert_eq!(take(Event::InitDone), ["gone ns/b", "synced"]);
    }

    fn put(server: &ApiServer, name: &str) {
        server.put(SECRETS, json!({"metadata": {"namespace": "ns", "name": name}}));
    }

    /// Follows an API server's Secrets, for as long as the set lives.
    fn follow_secrets(server: &ApiServer) -> (mpsc::Receiver<Change>, tokio::task::JoinSet<()>) {
        let (to, changes) = mpsc::channel(1_024);
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(follow(server.client(), Source::Secrets(None), to));
        (changes, tasks)
    }

    /// What is told until everything is.
    async fn everything(changes: &mut mpsc::Receiver<Change>) -> Vec<Change> {
        let mut all = Vec::new();
        loop {
            match changes.recv().await.unwrap() {
                Change::Synced(_) => return all,
                change => all.push(change),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_only_a_list_named_that_failed_on_the_way_is_gone_when_the_next_does_not_name_it() {
        let server = ApiServer::default();
        for n in 0..=500 {
            put(&server, &format!("s-{n:03}"));
        }
        server.spoil(SECRETS, Fault::SecondPageFails);
        let (mut changes, _tasks) = follow_secrets(&server);
        while server.faults_met() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        server.remove(SECRETS, "ns", "s-000");
        server.mend(SECRETS);
        let told = told(&everything(&mut changes).await);
        assert_eq!((told[0].as_str(), told.len()), ("is ns/s-000", 500 + 500 + 1));
        assert_eq!(told.last().unwrap(), "gone ns/s-000");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_died_without_a_word_is_found_out() {
        let server = ApiServer::default();
        let (mut changes, _tasks) = follow_secrets(&server);
        everything(&mut changes).await;
        put(&server, "heard");
        assert_eq!(told(&[changes.recv().await.unwrap()]), ["is ns/heard"]);
        server.silence();
        put(&server, "missed");
        let since = clock::now();
        assert_eq!(told(&[changes.recv().await.unwrap()]), ["is ns/missed"]);
        // By a clock that stands still while anything is done.
        assert!(clock::now() - since <= Duration::from_secs(46), "{:?}", clock::now() - since);
    }

    #[test]
    fn an_object_that_cannot_be_read_is_told_alone() {
        let object = serde_json::json!({
            "apiVersion": "sluice.dev/v1alpha1", "kind": "ModelRoute",
            "metadata": {"namespace": "ns", "name": "chat", "generation": 3}, "spec": {"models": "gpt-4o"},
            "status": {"agents": {"connected": 2}},
        });
        let change = read_route(serde_json::from_value(object).unwrap());
        let Change::Unreadable(ObjectKind::ModelRoute, unread, problem) = change else {
            panic!("{change:?}")
        };
        assert_eq!(
            (Key::of(&unread.meta).to_string(), unread.meta.generation),
            ("ns/chat".to_owned(), Some(3))
        );
        assert_eq!(unread.status["agents"]["connected"], 2);
        assert!(problem.contains("expected"), "{problem}");
    }

    #[test]
    fn a_policy_that_cannot_be_read_still_says_what_it_names() {
        let object = serde_json::json!({
            "apiVersion": "sluice.dev/v1alpha1", "kind": "ReliabilityPolicy",
            "metadata": {"namespace": "ns", "name": "p"},
            "spec": {"targetRefs": [{"group": "sluice.dev", "kind": "ModelRoute", "name": "chat"}], "mode": "Later"},
        });
        let change = read_policy(serde_json::from_value(object).unwrap());
        let Change::Unreadable(ObjectKind::ReliabilityPolicy, unread, _) = change else {
            panic!("{change:?}")
        };
        assert_eq!(unread.target_refs.unwrap()[0].name, "chat");
    }

    #[test]
    fn only_refusals_that_go_on_before_anything_was_seen_mean_that_there_is_no_right() {
        let status = |code| kube::core::Status { code, ..kube::core::Status::default() };
        let failed = |code| watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status(code))));
        let secrets = Source::Secrets(Some("ns".to_owned()));
        let mut rights = Rights::default();
        let mut refused = |source: &Source, code| rights.are_refused(source, &failed(code));
        assert!(!refused(&secrets, 500) && !refused(&secrets, 403) && !refused(&secrets, 403));
        assert!(!refused(&Source::Routes, 403), "without routes there is nothing to go on with");
        assert!(refused(&secrets, 403));
        assert!(!refused(&secrets, 403), "it is told once");
        let mut rights = Rights::default();
        rights.heard(&Event::<PartialObjectMeta<Secret>>::InitDone);
        assert!((0..10).all(|_| !rights.are_refused(&secrets, &failed(403))), "it was seen before");
    }
}
