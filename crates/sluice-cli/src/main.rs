//! `sluice`: try it, check manifests, look at what runs.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use sluice_cli::{check, console, load, provider, run};

/// Many short requests and few long streams: jemalloc returns what they used.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[derive(Parser)]
#[command(name = "sluice", version, about = "Reliability for the calls that applications make to model APIs")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a directory of manifests on this machine: no Kubernetes needed, and no Redis
    Run(Box<run::Args>),
    /// Check manifests offline, by the rules that the API server applies
    Check(check::Args),
    /// Play a model provider by a script, for trying out
    Provider(provider::Args),
    /// Call a model again and again, and count what comes: an application for trying out
    Load(load::Args),
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Run(args) => run::main(*args),
        Command::Check(args) => check::main(&args),
        Command::Provider(args) => provider::main(args),
        Command::Load(args) => load::main(&args),
    };
    done.unwrap_or_else(|error| {
        console::error(&format!("sluice: {error:#}"));
        ExitCode::FAILURE
    })
}
