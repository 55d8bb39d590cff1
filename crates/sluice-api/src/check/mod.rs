//! Manifests in; typed resources, or problems with file, field, value and fix, out.
//!
//! The rules are those of the generated schema itself, applied in an API server's order: unknown fields,
//! nulls dropped, defaults, structure (types, bounds, patterns, enums, required), then CEL. So a manifest
//! that passes here passes there, and the other way round; `e2e/manifests` is run against both.
//!
//! One broken document holds only itself: [`read`] gives an outcome per document, with the name of the object
//! as far as it could be read, so that a caller can keep that object's last good version.
//!
//! Edge rules
//! - A text that is no YAML is one problem with its line; the documents after the next `---` are still read.
//! - The parser reads YAML 1.2: `yes`, `no`, `on` and `off` are strings here and booleans for kubectl.
//! - Kinds of other API groups are none of our business and come back as [`Resource::Other`]; a kind that
//!   `sluice.dev` does not have is a problem.
//! - An object without a namespace is in `default`. Its `status` is dropped, as an API server does.
//! - What an object names and the files do not have is no problem of it, as with kubectl, where the order of things
//!   does not matter: [`Manifests::warnings`] tells of it.
//! - Values of Secrets are never shown, and neither are values that look like credentials elsewhere.

mod document;
mod locate;
mod nearest;
mod problem;
mod schema;
mod secret;
mod warning;

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::Secret;

pub use problem::Problem;
use problem::{QUOTED, cut};

use crate::{ModelRoute, ReliabilityPolicy};

/// Most problems that are told of one document.
pub const MAX_PROBLEMS: usize = 20;

/// Largest text that is read: far above any manifest, far below what hurts.
pub const MAX_TEXT_BYTES: usize = 8 * 1024 * 1024;

/// The name of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectName {
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", cut(&self.kind, QUOTED), cut(&self.name, QUOTED))
    }
}

/// One document of a file.
#[derive(Debug, Clone)]
pub struct Document {
    /// Its first line in the file, from 1.
    pub line: usize,
    /// The object, as far as kind and name could be read.
    pub object: Option<ObjectName>,
    /// What it is, or everything that is wrong with it.
    pub outcome: Result<Resource, Vec<Problem>>,
}

/// What a document is.
#[derive(Debug, Clone)]
pub enum Resource {
    Route(Box<ModelRoute>),
    Policy(Box<ReliabilityPolicy>),
    /// With `stringData` merged into `data`, as an API server stores it.
    Secret(Box<Secret>),
    /// A kind that Sluice does not read, such as a Deployment.
    Other,
}

/// Reads every document of a text; `file` is the name that problems show.
#[must_use]
pub fn read(file: &str, text: &str) -> Vec<Document> {
    if text.len() > MAX_TEXT_BYTES {
        let problem = Problem {
            message: format!("the file has {} bytes, at most {MAX_TEXT_BYTES} are read", text.len()),
            fix: "split it".to_owned(),
            ..Problem::of_file(file, None)
        };
        return vec![Document { line: 1, object: None, outcome: Err(vec![problem]) }];
    }
    document::split(text).into_iter().flat_map(|part| document::read(file, &part)).collect()
}

/// What a set of files holds.
#[derive(Debug, Clone, Default)]
pub struct Manifests {
    pub routes: Vec<ModelRoute>,
    pub policies: Vec<ReliabilityPolicy>,
    pub secrets: Vec<Secret>,
    /// Objects of kinds that Sluice does not read.
    pub ignored: Vec<ObjectName>,
    /// Objects that are there and broken, as far as they could be named: to be held, not deleted.
    pub broken: Vec<ObjectName>,
    /// Everything that is wrong, in the order of the files.
    pub problems: Vec<Problem>,
    /// Where each good object stands: `file:line`.
    pub places: BTreeMap<ObjectName, String>,
}

impl Manifests {
    /// Reads files, given as pairs of name and text. An object that appears twice is a problem of the second.
    #[must_use]
    pub fn read<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut manifests = Self::default();
        for (file, text) in files {
            for document in read(file, text) {
                if let (Ok(_), Some(object)) = (&document.outcome, &document.object) {
                    let here = format!("{file}:{}", document.line);
                    if let Some(first) = manifests.places.get(object) {
                        let problem = twice(file, &document, object, first);
                        manifests.problems.push(problem);
                        continue;
                    }
                    manifests.places.insert(object.clone(), here);
                }
                manifests.add(document);
            }
        }
        manifests
    }

    fn add(&mut self, document: Document) {
        match document.outcome {
            Ok(Resource::Route(route)) => self.routes.push(*route),
            Ok(Resource::Policy(policy)) => self.policies.push(*policy),
            Ok(Resource::Secret(secret)) => self.secrets.push(*secret),
            Ok(Resource::Other) => self.ignored.extend(document.object),
            Err(problems) => {
                self.problems.extend(problems);
                self.broken.extend(document.object);
            }
        }
    }
}

fn twice(file: &str, document: &Document, object: &ObjectName, first: &str) -> Problem {
    Problem {
        object: Some(object.to_string()),
        field: "metadata.name".to_owned(),
        value: Some(object.name.clone()),
        message: format!("is already defined at {first}"),
        fix: "give it another name or remove one of the two".to_owned(),
        ..Problem::of_file(file, Some(document.line))
    }
}
