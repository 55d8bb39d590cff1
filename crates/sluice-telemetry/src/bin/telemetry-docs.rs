//! Writes `docs/metrics.md` and the table of variables in `docs/telemetry.md` from the code.
//!
//! ```text
//! telemetry-docs [--check] [METRICS] [TELEMETRY]
//! ```
//! With `--check` nothing is written: it fails when a file is not what would be written.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use sluice_telemetry::reference;

const COMMAND: &str = "cargo run -p sluice-telemetry --bin telemetry-docs";

fn main() -> ExitCode {
    match run() {
        Ok(stale) if stale.is_empty() => ExitCode::SUCCESS,
        Ok(stale) => {
            for path in stale {
                let path = path.display();
                let _ = writeln!(io::stderr(), "{path} is stale: run `{COMMAND}` and commit the result");
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "telemetry-docs: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The files that are stale; none where they were written.
fn run() -> io::Result<Vec<PathBuf>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let check = arguments.iter().any(|argument| argument == "--check");
    arguments.retain(|argument| argument != "--check");
    if arguments.len() > 2 || arguments.iter().any(|argument| argument.starts_with('-')) {
        return Err(io::Error::other("usage: telemetry-docs [--check] [METRICS] [TELEMETRY]"));
    }
    let mut paths = arguments.into_iter().map(PathBuf::from);
    let metrics = paths.next().unwrap_or_else(|| "docs/metrics.md".into());
    let telemetry = paths.next().unwrap_or_else(|| "docs/telemetry.md".into());
    let read = |path: &PathBuf| {
        std::fs::read_to_string(path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    };
    let document = reference::with_variables(&read(&telemetry)?).ok_or_else(|| {
        io::Error::other(format!("{}: the marks of the generated table are missing", telemetry.display()))
    })?;
    let mut stale = Vec::new();
    for (path, wanted) in [(metrics, reference::metrics()), (telemetry, document)] {
        if std::fs::read_to_string(&path).is_ok_and(|found| found == wanted) {
            continue;
        }
        if check {
            stale.push(path);
        } else {
            std::fs::write(&path, wanted)?;
            writeln!(io::stdout(), "wrote {}", path.display())?;
        }
    }
    Ok(stale)
}
