//! Watch events, edits and replies in any order: in the end what is named and exists is known, and nothing else is kept.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;

const NAMESPACES: [&str; 2] = ["a", "b"];
const NAMES: [&str; 2] = ["x", "y"];

/// What happens; numbers choose among what there is.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Made, or changed.
    Write(usize),
    Delete(usize),
    /// Deleted and made again, before anyone looks.
    Remake(usize),
    /// Routes of a namespace name these from now on.
    Edit(usize, [bool; NAMES.len()]),
    /// The watch tells its next event.
    Watch,
    /// It begins anew: what became of a Secret in between it does not tell.
    Relist,
    /// The API server takes up a question.
    Take(usize),
    /// It fails to.
    Fail(usize),
    /// An answer arrives.
    Arrive(usize),
    Compile,
}

fn step() -> impl Strategy<Value = Step> {
    let key = || 0..NAMESPACES.len() * NAMES.len();
    prop_oneof![
        2 => key().prop_map(Step::Write),
        1 => key().prop_map(Step::Delete),
        1 => key().prop_map(Step::Remake),
        2 => (0..NAMESPACES.len(), any::<[bool; NAMES.len()]>()).prop_map(|(ns, named)| Step::Edit(ns, named)),
        3 => Just(Step::Watch),
        1 => Just(Step::Relist),
        3 => (0..8_usize).prop_map(Step::Take),
        1 => (0..8_usize).prop_map(Step::Fail),
        3 => (0..8_usize).prop_map(Step::Arrive),
        3 => Just(Step::Compile),
    ]
}

enum Told {
    Shown(Key, Version),
    Deleted(Key),
}

/// A cluster, and a plane as far as Secrets concern it.
#[derive(Default)]
struct World {
    cluster: BTreeMap<Key, Version>,
    versions: u64,
    untold: VecDeque<Told>,
    /// What the watch has told of.
    shown: BTreeSet<Key>,
    questions: Vec<Question>,
    answers: Vec<(Ask, Reply)>,
    routes: BTreeMap<Arc<str>, BTreeSet<Key>>,

    secrets: Secrets,
    due: BTreeSet<Arc<str>>,
    /// What is in memory.
    kept: BTreeMap<Key, Version>,
    /// By namespace, the Secrets that it was published with.
    published: BTreeMap<Arc<str>, BTreeMap<Key, Option<Version>>>,
}

fn key(at: usize) -> Key {
    Key::new(NAMESPACES[at / NAMES.len()], NAMES[at % NAMES.len()])
}

fn found(key: &Key, version: &Version) -> Reply {
    let metadata = ObjectMeta {
        namespace: Some(key.namespace.to_string()),
        name: Some(key.name.to_string()),
        uid: Some(version.uid.clone()),
        resource_version: Some(version.resource_version.clone()),
        ..ObjectMeta::default()
    };
    Reply::Found(Box::new(Secret { metadata, ..Secret::default() }))
}

impl World {
    fn step(&mut self, step: Step) {
        match step {
            Step::Write(at) => self.write(&key(at)),
            Step::Delete(at) => self.delete(&key(at)),
            Step::Remake(at) => {
                self.delete(&key(at));
                self.write(&key(at));
            }
            Step::Edit(at, named) => {
                let named = NAMES.iter().zip(named).filter(|(_, named)| *named);
                let named = named.map(|(name, _)| Key::new(NAMESPACES[at], name)).collect();
                self.routes.insert(NAMESPACES[at].into(), named);
                self.due.insert(NAMESPACES[at].into());
            }
            Step::Watch => drop(self.watch()),
            Step::Relist => {
                let listed =
                    self.cluster.iter().map(|(key, version)| Told::Shown(key.clone(), version.clone()));
                let gone = self.shown.iter().filter(|key| !self.cluster.contains_key(key));
                self.untold = listed.chain(gone.cloned().map(Told::Deleted)).collect();
            }
            Step::Take(at) => drop(self.take(at)),
            Step::Fail(at) => {
                if let Some(question) = self.questions.get(at) {
                    self.answers.push((question.ask.clone(), Reply::Late("away".to_owned())));
                }
            }
            Step::Arrive(at) => drop(self.arrive(at)),
            Step::Compile => self.compile(),
        }
    }

    fn write(&mut self, key: &Key) {
        self.versions += 1;
        let version = self.versions.to_string();
        let uid = self.cluster.get(key).map_or_else(|| version.clone(), |before| before.uid.clone());
        let version = Version { uid, resource_version: version };
        self.cluster.insert(key.clone(), version.clone());
        self.untold.push_back(Told::Shown(key.clone(), version));
    }

    fn delete(&mut self, key: &Key) {
        if self.cluster.remove(key).is_some() {
            self.untold.push_back(Told::Deleted(key.clone()));
        }
    }

    fn watch(&mut self) -> Option<()> {
        let (concerned, key) = match self.untold.pop_front()? {
            Told::Shown(key, version) => {
                self.shown.insert(key.clone());
                (self.secrets.seen(&key, version), key)
            }
            Told::Deleted(key) => {
                self.shown.remove(&key);
                self.kept.remove(&key);
                (self.secrets.gone(&key), key)
            }
        };
        if concerned {
            self.due.insert(key.namespace);
        }
        Some(())
    }

    /// What nobody wants an answer to is not put any more.
    fn take(&mut self, at: usize) -> Option<()> {
        self.questions.retain(|question| !question.wanted.is_cancelled());
        let at = at.min(self.questions.len().checked_sub(1)?);
        let Question { ask, .. } = self.questions.remove(at);
        let reply = self.cluster.get(&ask.key).map_or(Reply::Absent, |version| found(&ask.key, version));
        self.answers.push((ask, reply));
        Some(())
    }

    fn arrive(&mut self, at: usize) -> Option<()> {
        let at = at.min(self.answers.len().checked_sub(1)?);
        let (ask, reply) = self.answers.remove(at);
        match (self.secrets.heard(&ask, &reply), reply) {
            (Worth::Nothing, _) => return Some(()),
            (Worth::News, Reply::Found(secret)) => {
                self.kept.insert(ask.key.clone(), Version::of(&secret.metadata));
            }
            (Worth::News, Reply::Absent) => drop(self.kept.remove(&ask.key)),
            (Worth::News, Reply::Late(_)) | (Worth::Overtaken, _) => {}
        }
        self.due.insert(ask.key.namespace);
        Some(())
    }

    fn compile(&mut self) {
        for namespace in std::mem::take(&mut self.due) {
            let named = self.routes.get(&namespace).cloned().unwrap_or_default();
            let used = named.iter().map(|key| (key.clone(), self.kept.get(key).cloned())).collect();
            let (questions, forgotten) = self.secrets.named(&namespace, &named);
            self.kept.retain(|key, _| !forgotten.contains(key));
            self.questions.extend(questions);
            if !self.secrets.awaited_namespaces().contains(&namespace) {
                self.published.insert(namespace, used);
            }
        }
    }

    /// All questions are answered, and what follows from it is done. The watch may stand still all the while.
    fn settle(&mut self) {
        // A question for each Secret, one more for each that was overtaken, and some to spare.
        for _ in 0..16 {
            self.compile();
            while self.take(0).is_some() {}
            while self.arrive(0).is_some() {}
        }
        assert!(self.due.is_empty(), "it is asked over and over");
        assert!(self.secrets.awaited_namespaces().is_empty(), "something is awaited for ever");
    }

    fn check(&self) {
        for at in 0..NAMESPACES.len() * NAMES.len() {
            let key = key(at);
            let named = self.routes.get(&key.namespace).is_some_and(|named| named.contains(&key));
            let expected = self.cluster.get(&key).filter(|_| named);
            assert_eq!(self.kept.get(&key), expected, "{key}");
            assert_eq!(self.secrets.read.contains_key(&key), expected.is_some(), "{key}");
            assert!(!self.secrets.asked.contains_key(&key), "{key}");
            let published = self.published.get(&key.namespace).and_then(|used| used.get(&key));
            assert_eq!(published, named.then(|| expected.cloned()).as_ref(), "{key}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn in_the_end_everything_named_is_known_and_nothing_else_is_kept(
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let mut world = World::default();
        for step in steps {
            world.step(step);
        }
        world.settle();
        while world.watch().is_some() {}
        world.settle();
        world.check();
    }
}
