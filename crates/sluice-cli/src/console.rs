//! What commands print: results to standard output, everything else to standard error.

use std::io::{self, Write as _};

/// A line of a command's result.
///
/// # Errors
/// When standard output is closed, which ends a command.
pub fn line(text: &str) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{text}")
}

/// A line for the person at the terminal; a closed standard error is nobody's loss.
pub fn error(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
