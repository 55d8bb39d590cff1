//! Writes the table of flags and variables in `docs/agent.md` from the program's own.
//!
//! ```text
//! agent-docs [--check] [DOCUMENT]
//! ```
//! With `--check` nothing is written: it fails when the table is not what would be written.

use std::io::{self, Write as _};
use std::process::ExitCode;

use sluice_agent::args;

const COMMAND: &str = "cargo run -p sluice-agent --bin agent-docs";

fn main() -> ExitCode {
    match run() {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(stale)) => {
            let _ = writeln!(io::stderr(), "{stale} is stale: run `{COMMAND}` and commit the result");
            ExitCode::FAILURE
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "agent-docs: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The document, where it is stale and was not to be written.
fn run() -> io::Result<Option<String>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let check = arguments.iter().any(|argument| argument == "--check");
    arguments.retain(|argument| argument != "--check");
    if arguments.len() > 1 || arguments.iter().any(|argument| argument.starts_with('-')) {
        return Err(io::Error::other("usage: agent-docs [--check] [DOCUMENT]"));
    }
    let path = arguments.pop().unwrap_or_else(|| "docs/agent.md".to_owned());
    let found = std::fs::read_to_string(&path)
        .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
    let wanted = args::with_table(&found)
        .ok_or_else(|| io::Error::other(format!("{path}: the marks of the generated table are missing")))?;
    if wanted == found {
        return Ok(None);
    }
    if check {
        return Ok(Some(path));
    }
    std::fs::write(&path, wanted)?;
    writeln!(io::stdout(), "wrote {path}")?;
    Ok(None)
}
