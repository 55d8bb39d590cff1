//! `sluice provider`: the scripted provider alone, for a place where Sluice is tried out.

use std::process::ExitCode;

pub use sluice_provider::command::Args;

/// Serves until it is told to end.
///
/// # Errors
/// What [`sluice_provider::command::run`] says.
pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    tokio::runtime::Runtime::new()?.block_on(sluice_provider::command::run(args))?;
    Ok(ExitCode::SUCCESS)
}
