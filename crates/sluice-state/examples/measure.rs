//! What an admission costs: in the embedded home, and in a Redis given as `redis://host:port` (its own CPU time
//! per call, from INFO commandstats, and the round trip seen here).
//!
//! `cargo run --release -p sluice-state --example measure -- [redis://127.0.0.1:6379]`
//!
//! `SLUICE_MEASURE_CALLS` (100,000): few are enough under `valgrind --tool=callgrind`, which counts instructions.
#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "it measures, and says what it found")]

use std::error::Error;
use std::time::{Duration, Instant};

use sluice_core::admission::{AdmitAsk, AdmitReply, Draw, Nonce, SettleAsk, Settlement};
use sluice_core::outcome::Verdict;
use sluice_core::policy::{Credential, Group, Mode, Provider, Pushback, Quota, Rules, TargetPolicy};
use sluice_core::target_id::TargetId;
use sluice_state::{AgentTag, EmbeddedHome, Home as _, RedisConfig, RedisHome};

/// A busy machine is measured, not given up on.
const PATIENT: Duration = Duration::from_secs(10);

fn calls() -> u32 {
    let named = std::env::var("SLUICE_MEASURE_CALLS").ok();
    named.and_then(|text| text.parse().ok()).unwrap_or(100_000)
}

fn target(limited: bool) -> TargetPolicy {
    let quota = Quota {
        tokens_per_minute: Some(900_000_000),
        burst_tokens: 900_000_000,
        requests_per_minute: Some(100_000_000),
        default_max_output_tokens: 1_024,
        tenants: Vec::new(),
        pushback: Pushback::default(),
    };
    let quota = limited.then_some(Group { rules: quota, mode: Mode::Enforce, source: None });
    TargetPolicy {
        name: "t".into(),
        id: TargetId::of("measure", if limited { "limited" } else { "open" }, "", ""),
        provider: Provider::OpenAi,
        endpoint: "".into(),
        model: None,
        region: "".into(),
        credential: Credential::None,
        priority: 0,
        weight: 1,
        price: None,
        rules: Rules { quota, ..Rules::default() },
    }
}

fn admit_ask(nonce: u128) -> AdmitAsk {
    AdmitAsk {
        nonce: Nonce(nonce),
        tokens: 1_500,
        tenant: None,
        lease: Duration::from_secs(20),
        record_ttl: Duration::from_mins(6),
        draw: Draw::new(1),
        traceparent: None,
    }
}

fn settle_ask(nonce: u128, admitted: &AdmitReply) -> SettleAsk {
    SettleAsk {
        nonce: Nonce(nonce),
        epoch: admitted.epoch,
        verdict: Some(Verdict::Success),
        tokens: Settlement::Used(700),
        tenant: None,
        pause: None,
        draw: Draw::new(1),
        traceparent: None,
    }
}

fn per_call(what: &str, took: Duration) {
    println!("{what:<44} {:>8.2} µs", took.as_secs_f64() * 1e6 / f64::from(calls()));
}

fn embedded(agent: &AgentTag, limited: bool) -> Result<(), Box<dyn Error>> {
    let home = EmbeddedHome::new()?;
    let target = target(limited);
    let (mut admits, mut settles) = (Duration::ZERO, Duration::ZERO);
    for nonce in 0..u128::from(calls()) {
        let started = Instant::now();
        let admitted = home.admit_now(agent, &target, &admit_ask(nonce))?;
        let between = Instant::now();
        home.settle_now(agent, &target, &settle_ask(nonce, &admitted))?;
        admits += between - started;
        settles += between.elapsed();
        assert!(admitted.answer.granted());
    }
    let quota = if limited { "with quota" } else { "no quota" };
    per_call(&format!("embedded admit, {quota}"), admits);
    per_call(&format!("embedded settle, {quota}"), settles);
    Ok(())
}

async fn shared(agent: &AgentTag, url: &str, limited: bool) -> Result<(), Box<dyn Error>> {
    let home = RedisHome::new(&RedisConfig {
        url: url.to_owned(),
        admit_deadline: PATIENT,
        settle_deadline: PATIENT,
        ..RedisConfig::default()
    })?;
    home.reconnect().await?;
    let target = target(limited);
    let quota = if limited { "with quota" } else { "no quota" };
    let mut connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let base = u128::from(std::process::id()) << 64;
    let mut epochs = Vec::with_capacity(calls() as usize);
    reset(&mut connection).await?;
    let started = Instant::now();
    for nonce in 0..u128::from(calls()) {
        epochs.push(home.admit(agent, &target, &admit_ask(base + nonce)).await?);
    }
    per_call(&format!("redis admit, {quota}: round trip, one by one"), started.elapsed());
    println!(
        "{:<44} {:>8} µs",
        format!("redis admit, {quota}: server CPU"),
        usec_per_call(&mut connection).await?
    );
    reset(&mut connection).await?;
    for (nonce, admitted) in epochs.iter().enumerate() {
        home.settle(agent, &target, &settle_ask(base + nonce as u128, admitted)).await?;
    }
    println!(
        "{:<44} {:>8} µs",
        format!("redis settle, {quota}: server CPU"),
        usec_per_call(&mut connection).await?
    );
    Ok(())
}

async fn reset(connection: &mut redis::aio::MultiplexedConnection) -> Result<(), Box<dyn Error>> {
    Ok(redis::cmd("CONFIG").arg("RESETSTAT").query_async(connection).await?)
}

async fn usec_per_call(connection: &mut redis::aio::MultiplexedConnection) -> Result<String, Box<dyn Error>> {
    let stats: String = redis::cmd("INFO").arg("commandstats").query_async(connection).await?;
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or_default();
    let cost = line.split(',').find_map(|part| part.strip_prefix("usec_per_call="));
    Ok(cost.unwrap_or("?").to_owned())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let agent = AgentTag::new("measure", 1);
    for limited in [false, true] {
        embedded(&agent, limited)?;
    }
    if let Some(url) = std::env::args().nth(1) {
        for limited in [false, true] {
            Box::pin(shared(&agent, &url, limited)).await?;
        }
    }
    Ok(())
}
