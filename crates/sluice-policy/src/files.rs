//! A directory of manifests as the source of resources, for `sluice run`.
//!
//! Why its own memory: an API server gives objects their UID, creation time and generation, and refuses an edit
//! that is wrong so that the version before stays. A directory does neither. [`Memory`] does both, purely:
//! texts in, [`Changes`] out.
//!
//! Edge rules
//! - A file that does not parse, or cannot be read, holds everything last read from it and not read from
//!   elsewhere in the same pass; so does a document that does not tell which object it is, such as one with a
//!   mistake in its kind. An invalid document holds its own object; everything else applies.
//! - Only regular files are read: reading a pipe would wait for its writer for ever.
//! - A file that is empty now holds what it had: a shell empties a file before it writes it. To delete, remove the
//!   object or the file.
//! - What no file names any more is deleted. An object that moves to another file stays the same object.
//! - An object that is defined twice is the first one, by file name and line; the second is a problem.
//! - Files are read in the order of their names, not below subdirectories; a Kubernetes volume's `..data` is
//!   followed because its links stand in the directory itself.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use sluice_api::check::{self, ObjectName, Problem, Resource};
use sluice_core::policy::ObjectKind;

use crate::index::{Index, Key};

/// Files that are read from one directory.
pub const MAX_FILES: usize = 1_000;

/// One file as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// As problems show it.
    pub name: String,
    /// The text, or why there is none.
    pub text: Result<String, String>,
}

/// What a pass over the directory changed.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    /// New and edited objects, with UID, creation time and generation.
    pub applied: Vec<Resource>,
    /// Objects whose newest version is broken, and why: their last good version stays.
    pub held: Vec<(ObjectName, String)>,
    pub deleted: Vec<ObjectName>,
    /// Everything that is wrong now, also what was wrong before.
    pub problems: Vec<Problem>,
}

impl Changes {
    /// Whether the index has to hear of it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.applied.is_empty() && self.held.is_empty() && self.deleted.is_empty()
    }

    /// Carries the changes into an index.
    pub fn apply_to(self, index: &mut Index, now_ms: u64) {
        for resource in self.applied {
            match resource {
                Resource::Route(route) => index.apply_route(*route, now_ms),
                Resource::Policy(policy) => index.apply_policy(*policy, now_ms),
                Resource::Secret(secret) => index.apply_secret(*secret),
                Resource::Other => {}
            }
        }
        for (object, problem) in self.held {
            if let Some(kind) = kind(&object) {
                index.hold(kind, &Key::new(&object.namespace, &object.name), &problem);
            }
        }
        for object in self.deleted {
            let key = Key::new(&object.namespace, &object.name);
            match kind(&object) {
                Some(ObjectKind::ModelRoute) => index.delete_route(&key),
                Some(ObjectKind::ReliabilityPolicy) => index.delete_policy(&key, now_ms),
                None => index.delete_secret(&key),
            }
        }
    }
}

/// Whether a directory's objects are of this kind. A document of another one names no object of ours.
fn is_read(object: &ObjectName) -> bool {
    kind(object).is_some() || object.kind == "Secret"
}

/// `None`: a Secret.
fn kind(object: &ObjectName) -> Option<ObjectKind> {
    [ObjectKind::ModelRoute, ObjectKind::ReliabilityPolicy]
        .into_iter()
        .find(|kind| kind.as_str() == object.kind)
}

/// A directory and what was last read from it.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    memory: Memory,
}

/// Why a directory cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum UnreadableDirectory {
    #[error("directory {path:?} cannot be read; check that it exists and may be read")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("directory {path:?} has more than {MAX_FILES} manifests: split it")]
    TooManyFiles { path: PathBuf },
}

impl Directory {
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path, memory: Memory::default() }
    }

    /// Reads the directory again. Blocking; `now_ms` is milliseconds since 1970.
    ///
    /// # Errors
    /// [`UnreadableDirectory`]: nothing changes then, as a directory that is away for a moment must not
    /// delete everything.
    pub fn reload(&mut self, now_ms: u64) -> Result<Changes, UnreadableDirectory> {
        Ok(self.memory.take(&read(&self.path)?, now_ms))
    }
}

fn read(path: &Path) -> Result<Vec<SourceFile>, UnreadableDirectory> {
    let unreadable = |source| UnreadableDirectory::Io { path: path.to_owned(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(unreadable)? {
        let file = entry.map_err(unreadable)?.path();
        let manifest = file.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        if !manifest || file.is_dir() {
            continue;
        }
        if files.len() == MAX_FILES {
            return Err(UnreadableDirectory::TooManyFiles { path: path.to_owned() });
        }
        files.push(SourceFile { name: file.display().to_string(), text: text(&file) });
    }
    files.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(files)
}

/// Looks before it reads: a file of any size and kind may lie in a directory.
fn text(file: &Path) -> Result<String, String> {
    let metadata = std::fs::metadata(file).map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("is no regular file".to_owned());
    }
    let bytes = metadata.len();
    if bytes > check::MAX_TEXT_BYTES as u64 {
        return Err(format!("the file has {bytes} bytes, at most {} are read", check::MAX_TEXT_BYTES));
    }
    std::fs::read_to_string(file).map_err(|error| error.to_string())
}

/// What was last read, object by object.
#[derive(Debug, Default)]
pub struct Memory {
    objects: BTreeMap<ObjectName, Known>,
}

#[derive(Debug)]
struct Known {
    file: String,
    /// The last good version; `None`: there has been none yet.
    good: Option<Stamped>,
    /// Why the newest version is not the good one.
    problem: Option<String>,
}

#[derive(Debug)]
struct Stamped {
    /// What decides whether a version is another one.
    content: serde_json::Value,
    uid: String,
    created_ms: u64,
    generation: i64,
}

impl Memory {
    /// Takes the texts of all files and says what changed.
    pub fn take(&mut self, files: &[SourceFile], now_ms: u64) -> Changes {
        let mut pass =
            Pass { seen: BTreeMap::new(), unreadable: BTreeMap::new(), changes: Changes::default() };
        for file in files {
            match &file.text {
                Ok(text) if text.trim().is_empty() && self.had_objects(&file.name) => {
                    let fix = "write its objects again, or remove it";
                    pass.unreadable(of_file(&file.name, None, "is empty", fix));
                }
                Ok(text) => {
                    for document in check::read(&file.name, text) {
                        self.document(&mut pass, &file.name, document, now_ms);
                    }
                }
                Err(why) => {
                    pass.unreadable(of_file(&file.name, None, why, "make it readable, or remove it"));
                }
            }
        }
        self.rest(&mut pass);
        pass.changes
    }

    fn had_objects(&self, file: &str) -> bool {
        self.objects.values().any(|known| known.file == file)
    }

    fn document(&mut self, pass: &mut Pass, file: &str, document: check::Document, now_ms: u64) {
        let here = format!("{file}:{}", document.line);
        let Some(object) = document.object.filter(is_read) else {
            if let Err(problems) = document.outcome {
                let why = problems.first().map_or_else(String::new, ToString::to_string);
                pass.unreadable.entry(file.to_owned()).or_insert(why);
                pass.changes.problems.extend(problems);
            }
            return;
        };
        if let Some(first) = pass.seen.get(&object) {
            let problem = Problem {
                object: Some(object.to_string()),
                field: "metadata.name".to_owned(),
                ..of_file(
                    file,
                    Some(document.line),
                    &format!("is already defined at {first}"),
                    "give it another name, or remove one of the two",
                )
            };
            pass.changes.problems.push(problem);
            return;
        }
        pass.seen.insert(object.clone(), here);
        match document.outcome {
            Ok(resource) => pass.changes.applied.extend(self.good(&object, file, resource, now_ms)),
            Err(problems) => {
                let why = problems.first().map_or_else(String::new, ToString::to_string);
                pass.changes.problems.extend(problems);
                pass.changes.held.extend(self.bad(object, file, why));
            }
        }
    }

    /// A version that can be used; what came of it when it is another than before.
    fn good(&mut self, object: &ObjectName, file: &str, resource: Resource, now_ms: u64) -> Option<Resource> {
        let content = content(&resource);
        let known = self.objects.entry(object.clone()).or_insert_with(|| Known::new(file));
        file.clone_into(&mut known.file);
        let was_held = known.problem.take().is_some();
        match &mut known.good {
            Some(stamped) if stamped.content == content && !was_held => return None,
            Some(stamped) => {
                stamped.generation += i64::from(stamped.content != content);
                stamped.content = content;
            }
            None => {
                let uid = uid(object, now_ms);
                known.good = Some(Stamped { content, uid, created_ms: now_ms, generation: 1 });
            }
        }
        known.good.as_ref().map(|stamped| stamped.stamp(resource))
    }

    /// A version that cannot be used; the object and the reason when the reason is another than before.
    fn bad(&mut self, object: ObjectName, file: &str, why: String) -> Option<(ObjectName, String)> {
        let known = self.objects.entry(object.clone()).or_insert_with(|| Known::new(file));
        file.clone_into(&mut known.file);
        let changed = known.problem.as_ref() != Some(&why);
        known.problem = Some(why.clone());
        changed.then_some((object, why))
    }

    /// What no document named: held with its file, or gone.
    fn rest(&mut self, pass: &mut Pass) {
        let missing: BTreeSet<ObjectName> =
            self.objects.keys().filter(|object| !pass.seen.contains_key(object)).cloned().collect();
        for object in missing {
            let file = self.objects.get(&object).map(|known| known.file.clone()).unwrap_or_default();
            if let Some(why) = pass.unreadable.get(&file) {
                pass.changes.held.extend(self.bad(object, &file, why.clone()));
            } else {
                self.objects.remove(&object);
                pass.changes.deleted.push(object);
            }
        }
    }
}

/// One pass over all files.
struct Pass {
    /// Where each object was first seen.
    seen: BTreeMap<ObjectName, String>,
    /// Files of which a part could not be read, and why.
    unreadable: BTreeMap<String, String>,
    changes: Changes,
}

impl Pass {
    fn unreadable(&mut self, problem: Problem) {
        self.unreadable.insert(problem.file.clone(), problem.to_string());
        self.changes.problems.push(problem);
    }
}

impl Known {
    fn new(file: &str) -> Self {
        Self { file: file.to_owned(), good: None, problem: None }
    }
}

impl Stamped {
    /// Gives a resource what an API server would have given it.
    fn stamp(&self, mut resource: Resource) -> Resource {
        let meta = match &mut resource {
            Resource::Route(route) => &mut route.metadata,
            Resource::Policy(policy) => &mut policy.metadata,
            Resource::Secret(secret) => &mut secret.metadata,
            Resource::Other => return resource,
        };
        let created = i64::try_from(self.created_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        *meta = ObjectMeta {
            uid: Some(self.uid.clone()),
            creation_timestamp: created.map(Time),
            generation: Some(self.generation),
            resource_version: Some(self.generation.to_string()),
            managed_fields: None,
            ..std::mem::take(meta)
        };
        resource
    }
}

/// What an edit is an edit of: the spec, or a Secret's data. It stays in memory beside the object itself.
fn content(resource: &Resource) -> serde_json::Value {
    let value = match resource {
        Resource::Route(route) => serde_json::to_value(&route.spec),
        Resource::Policy(policy) => serde_json::to_value(&policy.spec),
        Resource::Secret(secret) => serde_json::to_value((&secret.data, &secret.string_data)).map(hashed),
        Resource::Other => Ok(serde_json::Value::Null),
    };
    value.unwrap_or_default()
}

/// A hash in the place of a secret: enough to see that it changed.
fn hashed(value: serde_json::Value) -> serde_json::Value {
    let text = zeroize::Zeroizing::new(value.to_string());
    drop(value);
    serde_json::Value::String(HEXLOWER.encode(&Sha256::digest(text.as_bytes())))
}

/// Of the name and the moment it was first seen: an object that is deleted and made again is another one.
fn uid(object: &ObjectName, now_ms: u64) -> String {
    let name = format!("{}/{}/{}/{now_ms}", object.kind, object.namespace, object.name);
    HEXLOWER.encode(&Sha256::digest(name)[..16])
}

fn of_file(file: &str, line: Option<usize>, message: &str, fix: &str) -> Problem {
    Problem {
        file: file.to_owned(),
        line,
        object: None,
        field: String::new(),
        value: None,
        message: message.to_owned(),
        fix: fix.to_owned(),
    }
}
