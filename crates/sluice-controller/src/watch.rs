//! What the API server says, as changes.
//!
//! Why our resources are watched untyped: a typed list fails as a whole when one of its objects does not parse (one
//! that is older than a rule, say), and then nothing would be known of the others. Here each object is read alone, and
//! one that can't be read is told as such.
//!
//! A watch that starts again (410 Gone, an API server that restarted) lists everything anew. What it does not list any
//! more was deleted meanwhile; the follower remembers names, and tells so.

use std::collections::BTreeSet;
use std::fmt::Debug;

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
use sluice_policy::index::Key;
use tokio::sync::mpsc;

use crate::pods::InjectedPod;
use crate::secrets::Version;

/// What changed in the cluster.
#[derive(Debug)]
pub(crate) enum Change {
    Route(Box<ModelRoute>),
    Policy(Box<ReliabilityPolicy>),
    /// It exists, and cannot be read.
    Unreadable(ObjectKind, Key, String),
    /// A Secret's newest version, without its content.
    SecretVersion(Key, Version),
    /// A Secret that was asked for.
    Secret(Box<Secret>),
    /// One that was asked for can't be read yet.
    SecretLate(Key),
    Pod(InjectedPod),
    Deleted(Kind, Key),
    /// All that there was when the watch began has been told, or can't be had.
    Synced(Source),
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
            let events = watcher::watcher(api, Config::default());
            run(events, source, read_route, changes).await;
        }
        Source::Policies => {
            let api = Api::<DynamicObject>::all_with(client, &ApiResource::erase::<ReliabilityPolicy>(&()));
            let events = watcher::watcher(api, Config::default());
            run(events, source, read_policy, changes).await;
        }
        Source::Pods => {
            let injected = Config::default().labels(crate::pods::INJECTED);
            let events = watcher::watcher(Api::<PartialObjectMeta<Pod>>::all(client), injected);
            run(events, source, |pod| Change::Pod(InjectedPod::of(&pod)), changes).await;
        }
        Source::Secrets(namespace) => {
            let api: Api<PartialObjectMeta<Secret>> = match namespace {
                Some(namespace) => Api::namespaced(client, namespace),
                None => Api::all(client),
            };
            let events = watcher::watcher(api, Config::default());
            run(events, source, |secret| read_version(&secret), changes).await;
        }
    }
}

fn read_route(object: DynamicObject) -> Change {
    let key = key_of(&object);
    match object.try_parse::<ModelRoute>() {
        Ok(route) => Change::Route(Box::new(route)),
        Err(error) => Change::Unreadable(ObjectKind::ModelRoute, key, error.to_string()),
    }
}

fn read_policy(object: DynamicObject) -> Change {
    let key = key_of(&object);
    match object.try_parse::<ReliabilityPolicy>() {
        Ok(policy) => Change::Policy(Box::new(policy)),
        Err(error) => Change::Unreadable(ObjectKind::ReliabilityPolicy, key, error.to_string()),
    }
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
    let mut synced = false;
    while let Some(event) = events.next().await {
        let told = match event {
            Ok(event) => {
                synced |= matches!(event, Event::InitDone);
                follower.take(event, &source, &read)
            }
            Err(error) => {
                tracing::warn!(?source, %error, "a watch failed: it is tried again");
                // Without the right to see one namespace's Secrets, everything else goes on.
                let give_up = !synced && matches!(source, Source::Secrets(_));
                synced |= give_up;
                if give_up { vec![Change::Synced(source.clone())] } else { Vec::new() }
            }
        };
        for change in told {
            if changes.send(change).await.is_err() {
                return;
            }
        }
    }
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
                self.listed.clear();
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
    use super::*;

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

    #[test]
    fn an_object_that_cannot_be_read_is_told_alone() {
        let object = serde_json::json!({
            "apiVersion": "sluice.dev/v1alpha1", "kind": "ModelRoute",
            "metadata": {"namespace": "ns", "name": "chat"}, "spec": {"models": "gpt-4o"},
        });
        let change = read_route(serde_json::from_value(object).unwrap());
        let Change::Unreadable(ObjectKind::ModelRoute, key, problem) = change else { panic!("{change:?}") };
        assert_eq!(key.to_string(), "ns/chat");
        assert!(problem.contains("expected"), "{problem}");
    }
}
