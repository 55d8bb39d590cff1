//! Namespaces: which ask for an agent in every pod, and which are being deleted.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Config;
use kube::{Api, Client};

use crate::injection::pod::{INJECT, asks};
use crate::mirror::{Mirrored, mirror};

/// What is remembered of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Traits {
    asks: bool,
    ending: bool,
}

/// All of them, as the API server last said.
#[derive(Debug, Clone)]
pub(crate) struct Namespaces(Mirrored<Traits>);

impl Namespaces {
    /// The future is to be run.
    pub(crate) fn follow(client: Client) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let api = Api::<PartialObjectMeta<Namespace>>::all(client);
        let (watch, mirrored) = mirror(api, Config::default(), read);
        (Self(mirrored), watch)
    }

    /// Whether they have been seen.
    pub(crate) fn are_known(&self) -> bool {
        self.0.borrow().present().is_some()
    }

    /// Whether it asks for an agent in each pod.
    pub(crate) fn asks(&self, namespace: &str) -> bool {
        self.find(namespace).is_some_and(|traits| traits.asks)
    }

    pub(crate) fn is_ending(&self, namespace: &str) -> bool {
        self.find(namespace).is_some_and(|traits| traits.ending)
    }

    pub(crate) fn that_ask(&self) -> Vec<Arc<str>> {
        let mirror = self.0.borrow();
        let all = mirror.present().into_iter().flatten();
        all.filter(|(_, traits)| traits.asks && !traits.ending).map(|(key, _)| key.name.clone()).collect()
    }

    fn find(&self, namespace: &str) -> Option<Traits> {
        self.0.borrow().present()?.get(&key(namespace)).copied()
    }
}

/// Objects without a namespace count to `default` there.
fn key(namespace: &str) -> sluice_policy::index::Key {
    sluice_policy::index::Key::new("default", namespace)
}

fn read(namespace: &PartialObjectMeta<Namespace>) -> Traits {
    let metadata = &namespace.metadata;
    let label = metadata.labels.as_ref().and_then(|labels| labels.get(INJECT));
    Traits { asks: label.is_some_and(|value| asks(value)), ending: metadata.deletion_timestamp.is_some() }
}

#[cfg(test)]
impl Namespaces {
    /// These, and whether they ask.
    pub(crate) fn of(all: &[(&str, bool)]) -> Self {
        let traits = |asks: bool| Traits { asks, ending: false };
        Self(crate::mirror::mirrored(all.iter().map(|(name, asks)| (key(name), traits(*asks)))))
    }
}
