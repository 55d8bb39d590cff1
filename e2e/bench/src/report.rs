//! What a run found: medians over its rounds, the table, and the goals.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::peers::Peer;
use crate::stats::median;

/// One peer in one round. Times are in microseconds.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Figures {
    pub peer: Peer,
    /// Of an exchange at a paced rate, mock and load included.
    pub p50_us: f64,
    pub p99_us: f64,
    /// CPU per exchange at the paced rate: colder caches, and a wake-up for each.
    pub paced_cpu_us: f64,
    /// Exchanges through one core.
    pub per_second: f64,
    /// CPU per exchange at that rate.
    pub cpu_us: f64,
    /// How busy the peer's core was then: well below 100, the load was the limit.
    pub busy_percent: f64,
    /// From an event's writing to its reading.
    pub lag_p50_us: f64,
    pub lag_p99_us: f64,
    /// CPU per event of paced streams.
    pub chunk_cpu_us: f64,
    pub kib_per_stream: Option<f64>,
    pub rss_idle_kib: Option<f64>,
    /// After the loads: what they left behind.
    pub rss_loaded_kib: Option<f64>,
    /// Redis' CPU per EVALSHA, its time inside the script, and the round trip of one.
    pub redis_cpu_us: Option<f64>,
    pub redis_script_us: Option<f64>,
    pub evalsha_p50_us: Option<f64>,
    /// Two: one admission, one settlement.
    pub evalsha_per_exchange: Option<f64>,
}

/// The medians of a peer over all rounds.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    #[serde(flatten)]
    median: Figures,
    /// Over direct, round by round.
    added_p50_us: f64,
    added_p99_us: f64,
    added_lag_p50_us: f64,
    added_lag_p99_us: f64,
}

/// A goal, and whether this run met it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Goal {
    what: &'static str,
    value: f64,
    /// The most that it may be.
    bound: f64,
    unit: &'static str,
    met: bool,
}

impl Figures {
    /// For whoever watches.
    pub fn line(&self) -> String {
        let mut line = format!(
            "p50 {:.0} µs, {:.0}/s at {:.0} % of the core, {:.1} µs CPU each, lag p50 {:.0} µs, {:.1} µs CPU per event",
            self.p50_us, self.per_second, self.busy_percent, self.cpu_us, self.lag_p50_us, self.chunk_cpu_us
        );
        if let (Some(stream), Some(idle)) = (self.kib_per_stream, self.rss_idle_kib) {
            let _ = write!(line, ", {stream:.1} KiB per stream, {:.1} MiB idle", idle / 1_024.0);
        }
        if let (Some(cpu), Some(p50)) = (self.redis_cpu_us, self.evalsha_p50_us) {
            let _ = write!(line, ", Redis {cpu:.1} µs CPU and {p50:.0} µs round trip per EVALSHA");
        }
        line
    }
}

/// Prints the tables and writes the record.
pub fn write(rounds: &[Figures], directory: &Path) -> anyhow::Result<()> {
    let rows = rows(rounds);
    let goals = goals(&rows);
    let text = markdown(&rows, &goals, rounds);
    println!("{text}");
    fs::create_dir_all(directory).with_context(|| format!("{}", directory.display()))?;
    let rows: Vec<&Row> = rows.values().collect();
    let record = serde_json::json!({"machine": machine(), "medians": rows, "goals": goals, "rounds": rounds});
    fs::write(directory.join("latest.json"), serde_json::to_vec_pretty(&record)?)?;
    fs::write(directory.join("latest.md"), text)?;
    eprintln!("written to {}/latest.md and latest.json", directory.display());
    Ok(())
}

fn rows(rounds: &[Figures]) -> BTreeMap<Peer, Row> {
    let direct: Vec<&Figures> = rounds.iter().filter(|figures| figures.peer == Peer::Direct).collect();
    let mut rows = BTreeMap::new();
    for peer in Peer::ALL {
        let own: Vec<&Figures> = rounds.iter().filter(|figures| figures.peer == peer).collect();
        if own.is_empty() {
            continue;
        }
        let of = |read: fn(&Figures) -> f64| median(own.iter().map(|figures| read(figures))).unwrap_or(0.0);
        let maybe =
            |read: fn(&Figures) -> Option<f64>| median(own.iter().filter_map(|figures| read(figures)));
        // Each round's own direct figure is subtracted: the machine was the same then.
        let added = |read: fn(&Figures) -> f64| {
            median(own.iter().zip(&direct).map(|(figures, direct)| read(figures) - read(direct)))
                .unwrap_or(0.0)
        };
        let median = Figures {
            peer,
            p50_us: of(|f| f.p50_us),
            p99_us: of(|f| f.p99_us),
            paced_cpu_us: of(|f| f.paced_cpu_us),
            per_second: of(|f| f.per_second),
            cpu_us: of(|f| f.cpu_us),
            busy_percent: of(|f| f.busy_percent),
            lag_p50_us: of(|f| f.lag_p50_us),
            lag_p99_us: of(|f| f.lag_p99_us),
            chunk_cpu_us: of(|f| f.chunk_cpu_us),
            kib_per_stream: maybe(|f| f.kib_per_stream),
            rss_idle_kib: maybe(|f| f.rss_idle_kib),
            rss_loaded_kib: maybe(|f| f.rss_loaded_kib),
            redis_cpu_us: maybe(|f| f.redis_cpu_us),
            redis_script_us: maybe(|f| f.redis_script_us),
            evalsha_p50_us: maybe(|f| f.evalsha_p50_us),
            evalsha_per_exchange: maybe(|f| f.evalsha_per_exchange),
        };
        rows.insert(
            peer,
            Row {
                median,
                added_p50_us: added(|f| f.p50_us),
                added_p99_us: added(|f| f.p99_us),
                added_lag_p50_us: added(|f| f.lag_p50_us),
                added_lag_p99_us: added(|f| f.lag_p99_us),
            },
        );
    }
    rows
}

/// The goals whose peers were measured.
fn goals(rows: &BTreeMap<Peer, Row>) -> Vec<Goal> {
    let row = |peer| rows.get(&peer);
    let (nginx, envoy) = (row(Peer::Nginx), row(Peer::Envoy));
    let (embedded, redis) = (row(Peer::Embedded), row(Peer::Redis));
    let mut goals = Vec::new();
    let mut goal = |what, unit, value: Option<f64>, bound: Option<f64>| {
        if let (Some(value), Some(bound)) = (value, bound) {
            goals.push(Goal { what, value, bound, unit, met: value <= bound });
        }
    };
    let cpu = |row: Option<&Row>, share: f64| row.map(|row| row.median.cpu_us * share);
    goal("CPU per exchange, embedded: 0.7 × Envoy's", "µs", cpu(embedded, 1.0), cpu(envoy, 0.7));
    goal("CPU per exchange, Redis: Envoy's", "µs", cpu(redis, 1.0), cpu(envoy, 1.0));
    let near_nginx = nginx.map(|row| row.added_p50_us + 100.0);
    goal("added p50, embedded: nginx's + 100 µs", "µs", embedded.map(|row| row.added_p50_us), near_nginx);
    let evalsha = redis.and_then(|row| row.median.evalsha_p50_us);
    let with_redis = near_nginx.zip(evalsha).map(|(near, evalsha)| near + 1.3 * evalsha);
    goal("added p50, Redis: that + 1.3 × EVALSHA's p50", "µs", redis.map(|row| row.added_p50_us), with_redis);
    let chunk = |row: Option<&Row>| row.map(|row| row.median.chunk_cpu_us).filter(|cpu| *cpu > 0.0);
    goal("CPU per paced event, embedded: Envoy's", "µs", chunk(embedded), chunk(envoy));
    let memory = embedded.and_then(|row| row.median.kib_per_stream);
    goal("memory per open stream, embedded", "KiB", memory, Some(25.0));
    let idle = embedded.and_then(|row| row.median.rss_idle_kib).map(|kib| kib / 1_024.0);
    goal("memory idle, embedded", "MiB", idle, Some(15.0));
    goal("Redis' CPU per EVALSHA", "µs", redis.and_then(|row| row.median.redis_cpu_us), Some(25.0));
    let traced = row(Peer::Traced);
    goal("CPU per exchange, traces at 1 %: 1.1 × off", "µs", cpu(traced, 1.0), cpu(embedded, 1.1));
    let p50 = |row: Option<&Row>, share: f64| row.map(|row| row.median.p50_us * share);
    let loaded = |row: Option<&Row>, share: f64| Some(row?.median.rss_loaded_kib? / 1_024.0 * share);
    // A collector that fails is compared with one that takes everything.
    let taken = row(Peer::TracedAll);
    for (peer, of_p50, of_memory) in [
        (Peer::CollectorDown, "p50, collector down: 1.1 × taking", "memory, collector down: 1.2 × taking"),
        (Peer::CollectorHangs, "p50, collector hangs: 1.1 × taking", "memory, collector hangs: 1.2 × taking"),
        (
            Peer::CollectorRefuses,
            "p50, collector refuses: 1.1 × taking",
            "memory, collector refuses: 1.2 × taking",
        ),
    ] {
        goal(of_p50, "µs", p50(row(peer), 1.0), p50(taken, 1.1));
        goal(of_memory, "MiB", loaded(row(peer), 1.0), loaded(taken, 1.2));
    }
    goals
}

fn markdown(rows: &BTreeMap<Peer, Row>, goals: &[Goal], rounds: &[Figures]) -> String {
    let number = |value: Option<f64>, digits: usize| {
        value.map_or("–".to_owned(), |value| format!("{value:.digits$}"))
    };
    let count = rounds.iter().filter(|figures| figures.peer == Peer::Direct).count();
    let mut text = format!("Medians of {count} rounds; {}.\n\n", machine());
    text.push_str("| peer | added p50 / p99 µs | CPU µs per exchange flat out / paced | exchanges/s, 1 core (busy) | added event lag p50 / p99 µs | CPU µs per event | KiB per open stream | MiB idle / loaded |\n");
    text.push_str("|---|---|---|---|---|---|---|---|\n");
    for (peer, row) in rows {
        let own = &row.median;
        if *peer == Peer::Direct {
            let _ = writeln!(
                text,
                "| direct (not subtracted) | {:.0} / {:.0} | – | {:.0} | {:.0} / {:.0} | – | – | – |",
                own.p50_us, own.p99_us, own.per_second, own.lag_p50_us, own.lag_p99_us
            );
            continue;
        }
        let _ = writeln!(
            text,
            "| {} | {:.0} / {:.0} | {:.1} / {:.1} | {:.0} ({:.0} %) | {:.0} / {:.0} | {:.1} | {} | {} / {} |",
            peer.name(),
            row.added_p50_us,
            row.added_p99_us,
            own.cpu_us,
            own.paced_cpu_us,
            own.per_second,
            own.busy_percent,
            row.added_lag_p50_us,
            row.added_lag_p99_us,
            own.chunk_cpu_us,
            number(own.kib_per_stream, 1),
            number(own.rss_idle_kib.map(|kib| kib / 1_024.0), 1),
            number(own.rss_loaded_kib.map(|kib| kib / 1_024.0), 1),
        );
    }
    if let Some(row) = rows.get(&Peer::Redis) {
        let own = &row.median;
        let _ = writeln!(
            text,
            "\nRedis, per EVALSHA: {} µs CPU ({} µs inside the script), {} µs round trip; {} per exchange.",
            number(own.redis_cpu_us, 1),
            number(own.redis_script_us, 1),
            number(own.evalsha_p50_us, 0),
            number(own.evalsha_per_exchange, 2),
        );
    }
    text.push_str("\n| goal | measured | at most | ratio | |\n|---|---|---|---|---|\n");
    for goal in goals {
        let _ = writeln!(
            text,
            "| {} | {:.1} {unit} | {:.1} {unit} | {:.2} | {} |",
            goal.what,
            goal.value,
            goal.bound,
            goal.value / goal.bound,
            if goal.met { "met" } else { "missed" },
            unit = goal.unit,
        );
    }
    text
}

/// What a reader of the record has to know of the machine.
fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = cpu.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = read("/proc/sys/kernel/osrelease");
    let model = model.map_or("an unnamed CPU", |(_, name)| name.trim());
    format!("{model}, {cores} cores, Linux {}", kernel.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(peer: Peer, p50_us: f64, cpu_us: f64) -> Figures {
        Figures { peer, p50_us, cpu_us, chunk_cpu_us: 50.0, ..Figures::default() }
    }

    #[test]
    fn goals_compare_medians_of_added_figures() {
        let mut rounds = Vec::new();
        // The second round was a slow one, for all.
        for noise in [0.0, 500.0, 10.0] {
            rounds.push(round(Peer::Direct, 100.0 + noise, 0.0));
            rounds.push(round(Peer::Nginx, 300.0 + noise, 40.0));
            rounds.push(round(Peer::Envoy, 500.0 + noise, 100.0));
            rounds.push(Figures {
                kib_per_stream: Some(26.0),
                rss_idle_kib: Some(10.0 * 1_024.0),
                ..round(Peer::Embedded, 390.0 + noise, 60.0)
            });
        }
        let rows = rows(&rounds);
        assert!((rows[&Peer::Nginx].added_p50_us - 200.0).abs() < 1e-6);
        let goals = goals(&rows);
        let met: Vec<(&str, bool)> = goals.iter().map(|goal| (goal.what, goal.met)).collect();
        assert_eq!(
            met,
            [
                ("CPU per exchange, embedded: 0.7 × Envoy's", true),
                ("added p50, embedded: nginx's + 100 µs", true),
                ("CPU per paced event, embedded: Envoy's", true),
                ("memory per open stream, embedded", false),
                ("memory idle, embedded", true),
            ]
        );
        let text = markdown(&rows, &goals, &rounds);
        assert!(
            text.contains("| memory per open stream, embedded | 26.0 KiB | 25.0 KiB | 1.04 | missed |"),
            "{text}"
        );
    }
}
