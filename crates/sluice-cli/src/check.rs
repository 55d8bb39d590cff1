//! `sluice check`: what the API server would say of manifests, without one.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use sluice_api::check::Manifests;

use crate::console;

#[derive(clap::Args)]
pub struct Args {
    /// Files, or directories whose *.yaml and *.yml are read; - reads standard input
    #[arg(required = true, value_name = "FILE|DIR")]
    paths: Vec<PathBuf>,
}

/// Exit status 0: everything is good; 1: something is not, each told in a line of standard output.
///
/// # Errors
/// When a file cannot be read.
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let mut files = Vec::new();
    for path in &args.paths {
        read(path, &mut files)?;
    }
    let manifests = Manifests::read(files.iter().map(|(name, text)| (name.as_str(), text.as_str())));
    for problem in &manifests.problems {
        console::line(&problem.to_string())?;
    }
    for object in &manifests.ignored {
        console::error(&format!("{object}: not checked, Sluice does not read this kind"));
    }
    let good = manifests.routes.len() + manifests.policies.len();
    let problems = manifests.problems.len();
    console::error(&format!(
        "{} of {} checked objects are good, {problems} {}",
        good,
        good + manifests.broken.len(),
        if problems == 1 { "problem" } else { "problems" }
    ));
    Ok(if problems == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read(path: &Path, files: &mut Vec<(String, String)>) -> anyhow::Result<()> {
    if path == Path::new("-") {
        let text = std::io::read_to_string(std::io::stdin()).context("standard input cannot be read")?;
        files.push(("-".to_owned(), text));
        return Ok(());
    }
    if !path.is_dir() {
        let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
        files.push((path.display().to_string(), text));
        return Ok(());
    }
    let mut inside: Vec<PathBuf> = std::fs::read_dir(path)
        .with_context(|| format!("{} cannot be read", path.display()))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    inside.retain(|file| file.extension().is_some_and(|end| end == "yaml" || end == "yml") && file.is_file());
    inside.sort();
    inside.iter().try_for_each(|file| read(file, files))
}
