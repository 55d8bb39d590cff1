//! The Secrets that routes name, and no others.
//!
//! The watch shows every Secret of its namespaces without content. Only those that a route names are read, and kept in
//! memory for as long as one does.
//!
//! Watch, edits and replies come in any order, and a watch may be behind. So each question is about the version that
//! the watch shows, there is at most one per Secret, and a reply counts by what it was asked about:
//! - nobody asks any more (the route that named it is gone, the Secret is deleted): it says nothing;
//! - *it is this*: it is known for as long as the watch shows the version that was asked about, or the one that came. A
//!   watch that is behind the reply does not have it asked again;
//! - *it is not there*: it is gone, unless the watch shows another version by now, one that was made since: that is asked
//!   about anew;
//! - *it can't be read yet*: nothing waits for it any more, and it is still tried.

#[cfg(test)]
mod property;
mod reader;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sluice_core::policy::Credential;
use sluice_policy::compile::Compiled;
use sluice_policy::index::{Index, Key};
use tokio_util::sync::{CancellationToken, DropGuard};

pub(crate) use reader::Reader;

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

/// A question about one Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) key: Key,
    /// Tells it from others about the same Secret.
    number: u64,
}

/// What the API server says to it.
#[derive(Debug)]
pub(crate) enum Reply {
    Found(Box<Secret>),
    Absent,
    /// Nothing yet, and why.
    Late(String),
}

/// What a reply is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Worth {
    /// It is so.
    News,
    /// There is something newer, which is to be asked about.
    Overtaken,
    /// Nobody wants to know any more.
    Nothing,
}

/// A question to be put, for as long as it is `wanted`.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) ask: Ask,
    wanted: CancellationToken,
}

/// Which Secrets there are, which are named, and which have been read.
#[derive(Debug, Default)]
pub(crate) struct Secrets {
    /// As the watch shows them.
    there: BTreeMap<Key, Version>,
    /// Of those that are named and there.
    read: BTreeMap<Key, Read>,
    /// Questions without an answer, about those that are named and there.
    asked: BTreeMap<Key, Asked>,
    /// Those that routes name.
    named: BTreeSet<Key>,
    questions: u64,
}

#[derive(Debug)]
struct Read {
    asked_about: Version,
    came: Version,
}

#[derive(Debug)]
struct Asked {
    number: u64,
    about: Version,
    /// It could not be read at once: nothing waits for it any more.
    late: bool,
    /// The question is not put any longer than it is of interest.
    _wanted: DropGuard,
}

impl Secrets {
    /// The watch shows this version. Whether something is to be done: a route names it, and it is neither known nor asked
    /// about.
    pub(crate) fn seen(&mut self, key: &Key, version: Version) -> bool {
        self.there.insert(key.clone(), version);
        self.named.contains(key) && !self.is_in_hand(key)
    }

    /// The watch shows that it is deleted. Whether a route names it.
    pub(crate) fn gone(&mut self, key: &Key) -> bool {
        self.there.remove(key);
        self.read.remove(key);
        self.asked.remove(key);
        self.named.contains(key)
    }

    /// Takes a reply. Unless it is worth nothing, its namespace is to be compiled.
    pub(crate) fn heard(&mut self, ask: &Ask, reply: &Reply) -> Worth {
        let key = &ask.key;
        let Some(asked) = self.asked.get_mut(key).filter(|asked| asked.number == ask.number) else {
            return Worth::Nothing;
        };
        let overtaken = self.there.get(key) != Some(&asked.about);
        match reply {
            Reply::Late(_) => asked.late = true,
            Reply::Found(secret) => {
                let read = Read { asked_about: asked.about.clone(), came: Version::of(&secret.metadata) };
                self.asked.remove(key);
                self.read.insert(key.clone(), read);
            }
            Reply::Absent => {
                self.asked.remove(key);
                if overtaken {
                    return Worth::Overtaken;
                }
                self.there.remove(key);
                self.read.remove(key);
            }
        }
        Worth::News
    }

    /// Namespaces where something is about to come: what is compiled without it would change at once.
    pub(crate) fn awaited_namespaces(&self) -> BTreeSet<Arc<str>> {
        let awaited = self.asked.iter().filter(|(_, asked)| !asked.late);
        awaited.map(|(key, _)| key.namespace.clone()).collect()
    }

    /// What is to be asked now, and what is to be forgotten, when of a namespace these are named.
    pub(crate) fn named(
        &mut self,
        namespace: &Arc<str>,
        named: &BTreeSet<Key>,
    ) -> (Vec<Question>, BTreeSet<Key>) {
        let first = Key { namespace: namespace.clone(), name: "".into() };
        let before = self.named.range(first..).take_while(|key| key.namespace == *namespace);
        let forgotten: BTreeSet<Key> = before.filter(|key| !named.contains(key)).cloned().collect();
        for key in &forgotten {
            self.named.remove(key);
            self.read.remove(key);
            // Nothing waits for it, and what comes of it is not taken.
            self.asked.remove(key);
        }
        self.named.extend(named.iter().cloned());
        let unknown = named.iter().filter(|key| !self.is_in_hand(key));
        let unknown: Vec<Key> = unknown.filter(|key| self.there.contains_key(key)).cloned().collect();
        (unknown.into_iter().filter_map(|key| self.ask(key)).collect(), forgotten)
    }

    fn ask(&mut self, key: Key) -> Option<Question> {
        let about = self.there.get(&key)?.clone();
        self.questions += 1;
        let (number, wanted) = (self.questions, CancellationToken::new());
        let asked = Asked { number, about, late: false, _wanted: wanted.clone().drop_guard() };
        self.asked.insert(key.clone(), asked);
        Some(Question { ask: Ask { key, number }, wanted })
    }

    /// Whether it is asked about, or known as the watch shows it.
    fn is_in_hand(&self, key: &Key) -> bool {
        let (shown, read) = (self.there.get(key), self.read.get(key));
        let known = read.is_some_and(|read| [&read.asked_about, &read.came].map(Some).contains(&shown));
        known || self.asked.contains_key(key)
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

    fn found(version: &str) -> Reply {
        let metadata = ObjectMeta {
            uid: Some("uid".to_owned()),
            resource_version: Some(version.to_owned()),
            ..ObjectMeta::default()
        };
        Reply::Found(Box::new(Secret { metadata, ..Secret::default() }))
    }

    /// Secrets of which one is named.
    struct One {
        secrets: Secrets,
        key: Key,
    }

    impl One {
        fn new() -> Self {
            Self { secrets: Secrets::default(), key: Key::new("ns", "key") }
        }

        fn seen(&mut self, shown: &str) -> bool {
            self.secrets.seen(&self.key, version(shown))
        }

        /// Compiles with it named, or not; what is asked, and how many are forgotten.
        fn compile(&mut self, named: bool) -> (Option<Question>, usize) {
            let named = if named { BTreeSet::from([self.key.clone()]) } else { BTreeSet::new() };
            let (mut questions, forgotten) = self.secrets.named(&"ns".into(), &named);
            assert!(questions.len() <= 1);
            (questions.pop(), forgotten.len())
        }

        fn ask(&mut self) -> Question {
            self.compile(true).0.expect("nothing is asked")
        }

        fn is_settled(&mut self) -> bool {
            self.compile(true).0.is_none() && self.secrets.awaited_namespaces().is_empty()
        }
    }

    #[test]
    fn only_what_is_named_is_read_once_per_version_and_forgotten_after() {
        let mut one = One::new();
        assert!(one.is_settled(), "it does not exist");
        assert!(one.seen("1"), "a route waits for it");
        assert!(!one.secrets.seen(&Key::new("ns", "other"), version("1")));
        let first = one.ask();
        assert!(one.compile(true).0.is_none(), "it is asked about already");
        assert_eq!(one.secrets.heard(&first.ask, &found("1")), Worth::News);
        assert!(one.is_settled());
        assert!(!one.seen("1"), "a watch that starts again shows what is known");
        // A rotation.
        assert!(one.seen("2"));
        let second = one.ask();
        assert_eq!(one.secrets.awaited_namespaces(), ["ns".into()].into());
        assert_eq!(one.secrets.heard(&second.ask, &Reply::Late(String::new())), Worth::News);
        assert!(one.secrets.awaited_namespaces().is_empty());
        assert_eq!(one.secrets.heard(&second.ask, &found("2")), Worth::News);
        // No route names it any more; later one does.
        assert!(matches!(one.compile(false), (None, 1)));
        let third = one.ask();
        assert!(one.secrets.gone(&one.key));
        assert_eq!(one.secrets.heard(&third.ask, &found("2")), Worth::Nothing, "deleted while it was read");
        assert!(third.wanted.is_cancelled());
    }

    #[test]
    fn an_edit_that_does_not_name_it_any_more_waits_for_nothing_and_keeps_nothing() {
        let mut one = One::new();
        one.seen("1");
        let question = one.ask();
        assert!(matches!(one.compile(false), (None, 1)));
        assert!(one.secrets.awaited_namespaces().is_empty());
        assert!(question.wanted.is_cancelled());
        assert_eq!(one.secrets.heard(&question.ask, &found("1")), Worth::Nothing);
        // Named again meanwhile: an answer to the question before is none to this one.
        let again = one.ask();
        assert_eq!(one.secrets.heard(&question.ask, &found("1")), Worth::Nothing);
        assert_eq!(one.secrets.heard(&again.ask, &found("1")), Worth::News);
    }

    #[test]
    fn one_that_was_made_anew_is_not_gone_by_what_is_said_of_the_one_before() {
        let mut one = One::new();
        one.seen("1");
        let question = one.ask();
        assert!(!one.seen("2"), "it is asked about already");
        assert_eq!(one.secrets.heard(&question.ask, &Reply::Absent), Worth::Overtaken);
        let again = one.ask();
        assert_eq!(
            one.secrets.heard(&again.ask, &Reply::Absent),
            Worth::News,
            "gone, and the watch is behind"
        );
        assert!(one.is_settled());
    }

    #[test]
    fn a_watch_that_is_behind_has_nothing_asked_over_and_over() {
        let mut one = One::new();
        one.seen("1");
        let question = one.ask();
        assert_eq!(one.secrets.heard(&question.ask, &found("3")), Worth::News);
        assert!(one.is_settled());
        // It comes nearer: one more question, and no more.
        assert!(one.seen("2"));
        let again = one.ask();
        assert_eq!(one.secrets.heard(&again.ask, &found("3")), Worth::News);
        assert!(one.is_settled());
        assert!(!one.seen("3"), "known");
        assert!(one.is_settled());
    }
}
