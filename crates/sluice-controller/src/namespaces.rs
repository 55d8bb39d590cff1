//! Namespaces: which ask for an agent in every pod, and which are being deleted.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::PartialObjectMeta;
use kube::{Api, Client};

use crate::injection::pod::{INJECT, asks};
use crate::mirror::{Mirrored, mirror};
use crate::watch;

/// A pod's creation waits for the answer.
const ASK_WITHIN: Duration = Duration::from_secs(1);

/// What is remembered of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Traits {
    asks: bool,
    ending: bool,
}

/// All of them, as the API server last said.
#[derive(Clone)]
pub(crate) struct Namespaces {
    api: Api<PartialObjectMeta<Namespace>>,
    mirrored: Mirrored<Traits>,
}

impl Namespaces {
    /// The future is to be run.
    pub(crate) fn follow(client: Client) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let api = Api::<PartialObjectMeta<Namespace>>::all(client);
        let (watch, mirrored) = mirror(api.clone(), watch::config(), read);
        (Self { api, mirrored }, watch)
    }

    /// Whether they have been seen.
    pub(crate) fn are_known(&self) -> bool {
        self.mirrored.borrow().present().is_some()
    }

    /// Whether it asks for an agent in each pod.
    pub(crate) fn asks(&self, namespace: &str) -> bool {
        self.find(namespace).is_some_and(|traits| traits.asks)
    }

    /// The same, asked anew: the watch may be a moment behind the label.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub(crate) async fn asks_now(&self, namespace: &str) -> kube::Result<bool> {
        let found = tokio::time::timeout(ASK_WITHIN, self.api.get_metadata_opt(namespace)).await;
        let found = found.map_err(|_| kube::Error::Service("it took too long".into()))??;
        Ok(found.is_some_and(|found| traits(&found.metadata).asks))
    }

    pub(crate) fn is_ending(&self, namespace: &str) -> bool {
        self.find(namespace).is_some_and(|traits| traits.ending)
    }

    pub(crate) fn that_ask(&self) -> Vec<Arc<str>> {
        let mirror = self.mirrored.borrow();
        let all = mirror.present().into_iter().flatten();
        all.filter(|(_, traits)| traits.asks && !traits.ending).map(|(key, _)| key.name.clone()).collect()
    }

    fn find(&self, namespace: &str) -> Option<Traits> {
        self.mirrored.borrow().present()?.get(&key(namespace)).copied()
    }
}

/// Objects without a namespace count to `default` there.
fn key(namespace: &str) -> sluice_policy::index::Key {
    sluice_policy::index::Key::new("default", namespace)
}

fn read(namespace: &PartialObjectMeta<Namespace>) -> Traits {
    traits(&namespace.metadata)
}

fn traits(metadata: &ObjectMeta) -> Traits {
    let label = metadata.labels.as_ref().and_then(|labels| labels.get(INJECT));
    Traits { asks: label.is_some_and(|value| asks(value)), ending: metadata.deletion_timestamp.is_some() }
}

#[cfg(test)]
impl Namespaces {
    /// These, and whether they ask.
    pub(crate) fn of(client: Client, all: &[(&str, bool)]) -> Self {
        let traits = |asks: bool| Traits { asks, ending: false };
        let mirrored = crate::mirror::mirrored(all.iter().map(|(name, asks)| (key(name), traits(*asks))));
        Self { api: Api::all(client), mirrored }
    }
}
