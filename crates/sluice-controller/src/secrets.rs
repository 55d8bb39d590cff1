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
    /// Those that routes name.
    named: BTreeSet<Key>,
}

#[derive(Debug)]
struct Asked {
    version: Version,
    /// It could not be read at once: nothing waits for it any more.
    late: bool,
}

impl Secrets {
    /// Whether a route names it.
    pub(crate) fn seen(&mut self, key: Key, version: Version) -> bool {
        let named = self.named.contains(&key);
        self.there.insert(key, version);
        named
    }

    /// Whether a route names it.
    pub(crate) fn gone(&mut self, key: &Key) -> bool {
        self.there.remove(key);
        self.read.remove(key);
        self.asked.remove(key);
        self.named.contains(key)
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

    /// What is to be read now, and what is to be forgotten, when of a namespace these are named.
    pub(crate) fn named(&mut self, namespace: &Arc<str>, named: &BTreeSet<Key>) -> (Vec<Key>, Vec<Key>) {
        let mut wanted = Vec::new();
        for key in named {
            let Some(version) = self.there.get(key) else { continue };
            let known = self.asked.get(key).map(|asked| &asked.version).or_else(|| self.read.get(key));
            if known != Some(version) {
                self.asked.insert(key.clone(), Asked { version: version.clone(), late: false });
                wanted.push(key.clone());
            }
        }
        let first = Key { namespace: namespace.clone(), name: "".into() };
        let before: Vec<Key> =
            self.named.range(first..).take_while(|key| key.namespace == *namespace).cloned().collect();
        let mut forgotten = Vec::new();
        for key in before.into_iter().filter(|key| !named.contains(key)) {
            self.named.remove(&key);
            if self.read.remove(&key).is_some() {
                forgotten.push(key);
            }
        }
        self.named.extend(named.iter().cloned());
        (wanted, forgotten)
    }
}

/// The Secrets that a namespace's routes name, also those that cannot be compiled now.
pub(crate) fn named_by(index: &Index, compiled: &Compiled, namespace: &Arc<str>) -> BTreeSet<Key> {
    let mut named = BTreeSet::new();
    let mut name = |name: &str| named.insert(Key { namespace: namespace.clone(), name: name.into() });
    if let Some(policies) = compiled.namespaces.get(namespace) {
        for target in policies.routes.iter().flat_map(|route| &route.policy.targets) {
            if let Credential::Secret(key) = &target.credential {
                name(&key.name);
            }
        }
        for key in &policies.held_keys {
            name(&key.name);
        }
    }
    // The newest version of a route that stays at an older one: what it waits for may be this.
    let first = Key { namespace: namespace.clone(), name: "".into() };
    let routes = index.routes().range(first..).take_while(|(key, _)| key.namespace == *namespace);
    for target in routes.flat_map(|(_, entry)| &entry.newest).flat_map(|route| &route.spec.targets) {
        if let Some(secret) = &target.credential.secret_ref {
            name(&secret.name);
        }
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
        let (mut secrets, ns) = (Secrets::default(), "ns".into());
        assert_eq!(secrets.named(&ns, &named), (vec![], vec![]), "it does not exist");
        assert!(secrets.seen(key.clone(), version("1")), "a route waits for it");
        assert!(!secrets.seen(other, version("1")));
        assert_eq!(secrets.named(&ns, &named), (vec![key.clone()], vec![]));
        assert_eq!(secrets.named(&ns, &named), (vec![], vec![]), "it was asked for");
        assert!(secrets.came(&secret("key", "1")));
        assert_eq!(secrets.named(&ns, &named), (vec![], vec![]));
        // A rotation.
        assert!(secrets.seen(key.clone(), version("2")));
        assert_eq!(secrets.named(&ns, &named), (vec![key.clone()], vec![]));
        assert_eq!(secrets.awaited_namespaces(), ["ns".into()].into());
        secrets.late(&key);
        assert!(secrets.awaited_namespaces().is_empty());
        assert!(secrets.came(&secret("key", "2")));
        // No route names it any more; later one does.
        assert_eq!(secrets.named(&ns, &nothing), (vec![], vec![key.clone()]));
        assert_eq!(secrets.named(&ns, &named), (vec![key.clone()], vec![]));
        assert!(secrets.gone(&key));
        assert!(!secrets.came(&secret("key", "2")), "deleted while it was read");
    }
}
