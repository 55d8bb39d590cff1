//! What one watch shows, kept: for those who look at it rather than follow each change.
//!
//! A watch that starts again lists everything anew; what it showed before stays until the list is whole.

use std::collections::BTreeMap;
use std::fmt::Debug;

use futures_util::StreamExt as _;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Config, Event};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use sluice_policy::index::Key;
use tokio::sync::watch;

/// The newest of a watch.
pub(crate) type Mirrored<V> = watch::Receiver<Mirror<V>>;

/// Objects by name, each as far as it matters.
#[derive(Debug)]
pub(crate) struct Mirror<V> {
    present: BTreeMap<Key, V>,
    coming: BTreeMap<Key, V>,
    synced: bool,
}

impl<V> Default for Mirror<V> {
    fn default() -> Self {
        Self { present: BTreeMap::new(), coming: BTreeMap::new(), synced: false }
    }
}

impl<V: PartialEq> Mirror<V> {
    /// `None` before everything was seen for the first time.
    pub(crate) fn present(&self) -> Option<&BTreeMap<Key, V>> {
        self.synced.then_some(&self.present)
    }

    /// Takes an event. Whether anything that matters changed.
    fn take<K: Resource>(&mut self, event: Event<K>, read: impl Fn(&K) -> V) -> bool {
        match event {
            Event::Init => {
                self.coming.clear();
                false
            }
            Event::InitApply(object) => {
                self.coming.insert(Key::of(object.meta()), read(&object));
                false
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.coming);
                let changed = !self.synced || listed != self.present;
                (self.present, self.synced) = (listed, true);
                changed
            }
            Event::Apply(object) => {
                let (key, new) = (Key::of(object.meta()), read(&object));
                let changed = self.present.get(&key) != Some(&new);
                self.present.insert(key, new);
                changed
            }
            Event::Delete(object) => self.present.remove(&Key::of(object.meta())).is_some(),
        }
    }
}

/// Follows a watch; the first part is to be run, the second shows the newest.
pub(crate) fn mirror<K, V>(
    api: Api<K>,
    config: Config,
    read: fn(&K) -> V,
) -> (impl Future<Output = ()> + Send + 'static, Mirrored<V>)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Default,
    V: PartialEq + Send + Sync + 'static,
{
    let (sender, receiver) = watch::channel(Mirror::default());
    let run = async move {
        let mut events = std::pin::pin!(watcher::watcher(api, config).default_backoff());
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    sender.send_if_modified(|mirror| mirror.take(event, read));
                }
                Err(error) => {
                    let kind = K::kind(&K::DynamicType::default()).into_owned();
                    tracing::warn!(kind, %error, "a watch failed: it is tried again");
                }
            }
        }
    };
    (run, receiver)
}

#[cfg(test)]
pub(crate) fn mirrored<V: PartialEq>(present: impl IntoIterator<Item = (Key, V)>) -> Mirrored<V> {
    let mirror = Mirror { present: present.into_iter().collect(), coming: BTreeMap::new(), synced: true };
    // The receiver shows the last value after the sender is gone.
    watch::channel(mirror).1
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Namespace;

    use super::*;

    fn namespace(name: &str, label: &str) -> Namespace {
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(name.to_owned());
        namespace.metadata.labels = Some([("is".to_owned(), label.to_owned())].into());
        namespace
    }

    fn label(namespace: &Namespace) -> String {
        namespace.metadata.labels.as_ref().unwrap()["is"].clone()
    }

    fn names(mirror: &Mirror<String>) -> Vec<&str> {
        mirror.present().unwrap().keys().map(|key| &*key.name).collect()
    }

    #[test]
    fn it_shows_the_newest_and_says_when_something_changed() {
        let mut mirror = Mirror::default();
        assert!(!mirror.take(Event::Init, label));
        assert!(!mirror.take(Event::InitApply(namespace("a", "1")), label));
        assert!(mirror.present().is_none(), "it has not seen everything");
        assert!(mirror.take(Event::InitDone, label));
        assert!(!mirror.take(Event::Apply(namespace("a", "1")), label), "the same");
        assert!(mirror.take(Event::Apply(namespace("a", "2")), label));
        assert!(mirror.take(Event::Apply(namespace("b", "1")), label));
        assert!(!mirror.take(Event::Delete(namespace("c", "1")), label));
        // The watch starts again, and a was deleted meanwhile.
        assert!(!mirror.take(Event::Init, label));
        assert!(!mirror.take(Event::InitApply(namespace("b", "1")), label));
        assert_eq!(names(&mirror), ["a", "b"], "until the list is whole");
        assert!(mirror.take(Event::InitDone, label));
        assert_eq!(names(&mirror), ["b"]);
        assert!(
            !mirror.take(Event::Init, label) && !mirror.take(Event::InitApply(namespace("b", "1")), label)
        );
        assert!(!mirror.take(Event::InitDone, label), "nothing changed");
    }
}
