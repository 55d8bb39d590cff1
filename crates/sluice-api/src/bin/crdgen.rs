//! Writes `crds/` and `docs/api.md` from the types of this crate.
//!
//! ```text
//! crdgen [--check] [CRDS] [REFERENCE]
//! ```
//!
//! `CRDS` is the folder of the CRDs (default `crds`), `REFERENCE` the field reference (default
//! `docs/api.md`). With `--check` nothing is written: it fails when a file is not what would be written.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sluice_api::crd::Kind;
use sluice_api::reference;

const COMMAND: &str = "cargo run -p sluice-api --bin crdgen";

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let check = arguments.iter().any(|argument| argument == "--check");
    arguments.retain(|argument| argument != "--check");
    if arguments.len() > 2 || arguments.iter().any(|argument| argument.starts_with('-')) {
        let _ = writeln!(io::stderr(), "usage: crdgen [--check] [CRDS] [REFERENCE]");
        return ExitCode::from(2);
    }
    let mut paths = arguments.into_iter().map(PathBuf::from);
    let crds = paths.next().unwrap_or_else(|| "crds".into());
    let api = paths.next().unwrap_or_else(|| "docs/api.md".into());

    match generate(&crds, api).and_then(|files| if check { compare(&files) } else { write(&files) }) {
        Ok(stale) if stale.is_empty() => ExitCode::SUCCESS,
        Ok(stale) => {
            for path in stale {
                let _ = writeln!(
                    io::stderr(),
                    "{} is stale: run `{COMMAND}` and commit the result",
                    path.display()
                );
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "crdgen: {error}");
            ExitCode::FAILURE
        }
    }
}

fn generate(crds: &Path, api: PathBuf) -> io::Result<Vec<(PathBuf, String)>> {
    let mut files = Vec::new();
    for kind in Kind::ALL {
        files.push((crds.join(kind.file()), kind.yaml().map_err(io::Error::other)?));
    }
    files.push((api, reference::markdown()));
    Ok(files)
}

/// The files that are not what they should be.
fn compare(files: &[(PathBuf, String)]) -> io::Result<Vec<PathBuf>> {
    let mut stale = Vec::new();
    for (path, wanted) in files {
        match std::fs::read_to_string(path) {
            Ok(found) if found == *wanted => {}
            Ok(_) => stale.push(path.clone()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => stale.push(path.clone()),
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
        }
    }
    Ok(stale)
}

fn write(files: &[(PathBuf, String)]) -> io::Result<Vec<PathBuf>> {
    for (path, text) in files {
        let context = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(context)?;
        }
        std::fs::write(path, text).map_err(context)?;
        writeln!(io::stdout(), "wrote {}", path.display())?;
    }
    Ok(Vec::new())
}
