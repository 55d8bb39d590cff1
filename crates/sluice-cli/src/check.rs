//! `sluice check`: what the API server would say of manifests, without one.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sluice_api::check::{MAX_TEXT_BYTES, Manifests};

use crate::console;

const WARNINGS: &str = "A policy whose ModelRoute or target is not among the files is a warning, not a problem: kubectl \
applies it all the same, and the route may be on the cluster or come later. Warnings go to standard error.";

#[derive(clap::Args)]
#[command(after_help = WARNINGS)]
pub struct Args {
    /// Files, or directories whose *.yaml and *.yml are read; - reads standard input
    #[arg(required = true, value_name = "FILE|DIR")]
    paths: Vec<PathBuf>,
}

/// Exit status 0: everything is good, warnings (on standard error) aside; 1: something is not, or cannot be read, each told in a line of standard
/// output.
///
/// # Errors
/// When standard output is closed.
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let mut input = Input::default();
    for path in &args.paths {
        input.read(path);
    }
    let manifests = Manifests::read(input.files.iter().map(|(name, text)| (name.as_str(), text.as_str())));
    for unreadable in &input.unreadable {
        console::line(unreadable)?;
    }
    for problem in &manifests.problems {
        console::line(&problem.to_string())?;
    }
    for warning in manifests.warnings() {
        console::error(&format!("Warning: {warning}"));
    }
    for object in &manifests.ignored {
        console::error(&format!("{object}: not checked, Sluice does not read this kind"));
    }
    let good = manifests.routes.len() + manifests.policies.len() + manifests.secrets.len();
    let problems = manifests.problems.len() + input.unreadable.len();
    console::error(&format!(
        "{} of {} checked objects are good, {problems} {}",
        good,
        good + manifests.broken.len(),
        if problems == 1 { "problem" } else { "problems" }
    ));
    Ok(if problems == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The texts to check, and what could not be read.
#[derive(Default)]
struct Input {
    files: Vec<(String, String)>,
    unreadable: Vec<String>,
}

impl Input {
    fn read(&mut self, path: &Path) {
        if path == Path::new("-") {
            self.add("standard input".to_owned(), text(std::io::stdin().lock()));
        } else if path.is_dir() {
            self.directory(path);
        } else {
            self.add(path.display().to_string(), File::open(path).and_then(text));
        }
    }

    fn directory(&mut self, path: &Path) {
        let name = path.display().to_string();
        let inside = std::fs::read_dir(path)
            .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>());
        let mut inside = match inside {
            Ok(inside) => inside,
            Err(error) => return self.add(name, Err(error)),
        };
        inside.retain(|file| {
            file.extension().is_some_and(|end| end == "yaml" || end == "yml") && !file.is_dir()
        });
        inside.sort();
        if inside.is_empty() {
            // A wrong name must not look like a good result.
            self.unreadable
                .push(format!("{name}: has no *.yaml or *.yml — name a file, or a directory that has"));
        }
        for file in &inside {
            // Reading a pipe would wait for its writer for ever; a path that the caller names may be one.
            if file.metadata().is_ok_and(|metadata| !metadata.is_file()) {
                self.add(file.display().to_string(), Err(std::io::Error::other("it is no regular file")));
            } else {
                self.read(file);
            }
        }
    }

    fn add(&mut self, name: String, text: std::io::Result<String>) {
        match text {
            Ok(text) => self.files.push((name, text)),
            Err(error) => self.unreadable.push(format!(
                "{name}: cannot be read: {error} — correct the name, or make it readable text"
            )),
        }
    }
}

/// One byte more than is checked at most, so that the check says so.
fn text(from: impl Read) -> std::io::Result<String> {
    let mut text = String::new();
    from.take(MAX_TEXT_BYTES as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}
