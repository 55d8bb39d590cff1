//! A fleet without pods: how long an edit takes to reach it, and what it costs the controller.
//!
//! Against a real API server (`e2e/scale/api.sh` starts one) and a running controller: namespaces, routes, a policy per
//! namespace, and for each agent a Pod object that no node runs. Each agent connects with a token that the API server
//! made for its pod, takes snapshots, answers them object by object as the real one does, and reports. What it does not
//! do is decode and serve: it is to load the controller, not the machine.
//!
//! `e2e/scale/run` does the whole; docs/performance.md has the figures.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a program that measures and prints"
)]

mod agent;
mod cluster;
mod process;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use tokio::time::Instant;

use agent::{Endpoint, Fleet};
use cluster::Cluster;
use process::Process;

#[derive(Debug, Clone, Parser)]
struct Args {
    /// Where the controllers serve agents: http://ADDRESS or https://ADDRESS. Agents are spread over several.
    #[arg(long, required = true, value_delimiter = ',')]
    controllers: Vec<String>,
    /// The name in their certificate, for https.
    #[arg(long, default_value = "sluice-controller.sluice-system.svc")]
    name: String,
    /// Their processes, to be measured; the first one's figures are printed.
    #[arg(long, value_delimiter = ',')]
    pids: Vec<u32>,
    #[arg(long, default_value_t = 50)]
    namespaces: usize,
    /// Routes per namespace.
    #[arg(long, default_value_t = 200)]
    routes: usize,
    /// Agents, spread over the namespaces.
    #[arg(long, default_value_t = 1_000)]
    agents: usize,
    /// Gives each pod labels of its own, as a StatefulSet does.
    #[arg(long)]
    stateful: bool,
    /// Rounds of each measurement.
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// How long the controller is watched at rest.
    #[arg(long, default_value_t = 60)]
    rest: u64,
    /// Connects and waits, so that something else can be tried with the fleet.
    #[arg(long)]
    hold: Option<u64>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let cluster = Cluster::connect(args.namespaces, args.routes, args.agents).await?;
    let started = Instant::now();
    cluster.set_up(args.stateful).await?;
    println!("objects: {:.1} s", started.elapsed().as_secs_f64());

    let authorities = cluster.authorities().await;
    let endpoints = args.controllers.iter().map(|url| Endpoint::new(url, &args.name, authorities.as_deref()));
    let endpoints = Arc::new(endpoints.collect::<anyhow::Result<Vec<_>>>()?);
    let started = Instant::now();
    let fleet = Fleet::connect(&cluster, &endpoints).await?;
    fleet.all_in_sync(Duration::from_mins(5)).await.context("not every agent was served")?;
    println!("agents connected and in sync: {} in {:.1} s", fleet.len(), started.elapsed().as_secs_f64());
    if let Some(seconds) = args.hold {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        return Ok(());
    }

    // Until the first statuses are written, nothing is at rest.
    cluster.statuses_are_quiet().await?;
    let processes: Vec<Process> = args.pids.iter().map(|pid| Process::new(*pid)).collect();
    rest(&args, &processes).await?;
    edits(&args, &cluster, &fleet, &processes, Kind::Route).await?;
    edits(&args, &cluster, &fleet, &processes, Kind::Everywhere).await
}

/// CPU and memory while nothing happens.
async fn rest(args: &Args, processes: &[Process]) -> anyhow::Result<()> {
    let before = processes.iter().map(Process::cpu).collect::<anyhow::Result<Vec<_>>>()?;
    tokio::time::sleep(Duration::from_secs(args.rest)).await;
    for (process, before) in processes.iter().zip(before) {
        let used = process.cpu()?.saturating_sub(before).as_secs_f64() / args.rest as f64;
        println!(
            "at rest, pid {}: {:.1} % of a core, {} MiB",
            process.pid(),
            used * 100.0,
            process.memory_mib()?
        );
    }
    Ok(())
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// A policy of one route, which the agents of one namespace get.
    Route,
    /// A policy in each namespace at once, for every route of it.
    Everywhere,
}

/// From the moment an edit is sent until 99 % of those whom it concerns have answered that they work by it.
async fn edits(
    args: &Args,
    cluster: &Cluster,
    fleet: &Fleet,
    processes: &[Process],
    kind: Kind,
) -> anyhow::Result<()> {
    let mut took = Vec::new();
    let before = processes.iter().map(Process::cpu).collect::<anyhow::Result<Vec<_>>>()?;
    for round in 0..args.rounds {
        let sent = Instant::now();
        let (concerned, generation) = match kind {
            Kind::Route => {
                let namespace = round % args.namespaces;
                (Some(namespace), cluster.edit(namespace, round).await?)
            }
            Kind::Everywhere => (None, cluster.edit_everywhere(round).await?),
        };
        let at = fleet.answered(concerned, &generation, 0.99, Duration::from_mins(1)).await?;
        took.push(at.saturating_duration_since(sent));
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    took.sort();
    let middle = took.get(took.len() / 2).copied().unwrap_or_default();
    let last = took.last().copied().unwrap_or_default();
    println!(
        "{kind:?}: edit to 99 % acknowledged: median {} ms, longest {} ms",
        middle.as_millis(),
        last.as_millis()
    );
    for (process, before) in processes.iter().zip(before) {
        let used = process.cpu()?.saturating_sub(before).as_secs_f64() / args.rounds as f64;
        println!(
            "{kind:?}, pid {}: {used:.2} s of CPU per edit and the 2 s after it, {} MiB",
            process.pid(),
            process.memory_mib()?
        );
    }
    Ok(())
}
