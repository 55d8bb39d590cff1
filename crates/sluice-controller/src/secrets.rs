//! The Secrets that routes name, and no others.
//!
//! The watch shows every Secret of its namespaces without content. Only those that a route names are read, and kept in
//! memory for as long as one does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sluice_core::policy::Credential;
use sluice_policy::compile::Compiled;
use sluice_policy::index::{Index, Key};

/// One version of a Secret.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Version {
    uid: String,
    resource_version: String,
}

impl Version {
    pub(crate) fn of(meta: &ObjectMeta) -> Self {
        Self {
            uid: meta.uid.clone().unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
        }
    }
}

/// Which Secrets there are, which are named, and which have been read.
#[derive(Debug, Default)]
pub(crate) struct Secrets {
    there: BTreeMap<Key, Version>,
    read: BTreeMap<Key, Version>,
    /// Asked for, and not come yet.
    asked: BTreeMap<Key, Asked>,
}

#[derive(Debug)]
struct Asked {
    version: Version,
    /// It could not be read at once: nothing waits for it any more.
    late: bool,
}

impl Secrets {
    pub(crate) fn seen(&mut self, key: Key, version: Version) {
        self.there.insert(key, version);
    }

    pub(crate) fn gone(&mut self, key: &Key) {
        self.there.remove(key);
        self.read.remove(key);
        self.asked.remove(key);
    }

    /// Takes one that was asked for. Whether it is still wanted.
    pub(crate) fn came(&mut self, secret: &Secret) -> bool {
        let key = Key::of(&secret.metadata);
        let wanted = self.asked.remove(&key).is_some() && self.there.contains_key(&key);
        if wanted {
            self.read.insert(key, Version::of(&secret.metadata));
        }
        wanted
    }

    /// It can't be read yet; that is still tried.
    pub(crate) fn late(&mut self, key: &Key) {
        if let Some(asked) = self.asked.get_mut(key) {
            asked.late = true;
        }
    }

    /// Namespaces where something is about to come: what is compiled without it would change at once.
    pub(crate) fn awaited_namespaces(&self) -> BTreeSet<Arc<str>> {
        let awaited = self.asked.iter().filter(|(_, asked)| !asked.late);
        awaited.map(|(key, _)| key.namespace.clone()).collect()
    }

    /// What is to be read now, and what is to be forgotten, when these are named.
    pub(crate) fn named(&mut self, named: &BTreeSet<Key>) -> (Vec<Key>, Vec<Key>) {
        let mut wanted = Vec::new();
        for key in named {
            let Some(version) = self.there.get(key) else { continue };
            let known = self.asked.get(key).map(|asked| &asked.version).or_else(|| self.read.get(key));
            if known != Some(version) {
                self.asked.insert(key.clone(), Asked { version: version.clone(), late: false });
                wanted.push(key.clone());
            }
        }
        let forgotten: Vec<Key> = self.read.keys().filter(|key| !named.contains(*key)).cloned().collect();
        for key in &forgotten {
            self.read.remove(key);
        }
        (wanted, forgotten)
    }
}

/// The Secrets that routes name, also those that cannot be compiled now.
pub(crate) fn named_by(index: &Index, compiled: &Compiled) -> BTreeSet<Key> {
    let mut named = BTreeSet::new();
    for (namespace, policies) in &compiled.namespaces {
        let targets = policies.routes.iter().flat_map(|route| &route.policy.targets);
        let keys = targets.filter_map(|target| match &target.credential {
            Credential::Secret(key) => Some(&key.name),
            Credential::Passthrough | Credential::None => None,
        });
        let held = policies.held_keys.iter().map(|key| &key.name);
        named.extend(keys.chain(held).map(|name| Key { namespace: namespace.clone(), name: name.clone() }));
    }
    // The newest version of a route that stays at an older one: what it waits for may be this.
    for (key, entry) in index.routes() {
        let targets = entry.newest.iter().flat_map(|route| &route.spec.targets);
        let names = targets.filter_map(|target| target.credential.secret_ref.as_ref());
        named.extend(names.map(|secret| Key::new(&key.namespace, &secret.name)));
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        Version { uid: "uid".to_owned(), resource_version: text.to_owned() }
    }

    fn secret(name: &str, version: &str) -> Secret {
        let metadata = ObjectMeta {
            namespace: Some("ns".to_owned()),
            name: Some(name.to_owned()),
            uid: Some("uid".to_owned()),
            resource_version: Some(version.to_owned()),
            ..ObjectMeta::default()
        };
        Secret { metadata, ..Secret::default() }
    }

    #[test]
    fn only_what_is_named_is_read_once_per_version_and_forgotten_after() {
        let (key, other) = (Key::new("ns", "key"), Key::new("ns", "other"));
        let (named, nothing) = (BTreeSet::from([key.clone()]), BTreeSet::new());
        let mut secrets = Secrets::default();
        assert_eq!(secrets.named(&named), (vec![], vec![]), "it does not exist");
        secrets.seen(key.clone(), version("1"));
        secrets.seen(other, version("1"));
        assert_eq!(secrets.named(&named), (vec![key.clone()], vec![]));
        assert_eq!(secrets.named(&named), (vec![], vec![]), "it was asked for");
        assert!(secrets.came(&secret("key", "1")));
        assert_eq!(secrets.named(&named), (vec![], vec![]));
        // A rotation.
        secrets.seen(key.clone(), version("2"));
        assert_eq!(secrets.named(&named), (vec![key.clone()], vec![]));
        assert_eq!(secrets.awaited_namespaces(), ["ns".into()].into());
        secrets.late(&key);
        assert!(secrets.awaited_namespaces().is_empty());
        assert!(secrets.came(&secret("key", "2")));
        // No route names it any more; later one does.
        assert_eq!(secrets.named(&nothing), (vec![], vec![key.clone()]));
        assert_eq!(secrets.named(&named), (vec![key.clone()], vec![]));
        secrets.gone(&key);
        assert!(!secrets.came(&secret("key", "2")), "deleted while it was read");
    }
}
