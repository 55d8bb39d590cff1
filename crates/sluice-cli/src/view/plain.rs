//! Lines for where no terminal is: a file, a pipe, a CI log.
//!
//! One line per event and, every [`STATUS_EVERY`], one per target and one for all traffic. Columns are
//! aligned, values are `name=value`, the second word tells the kind of line, and there is nothing but ASCII
//! and no escape code: `grep ' breaker '` gives an incident. Lines that would say what the last one said are
//! left out, so that an idle run stays quiet.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use sluice_core::admission::WindowCounts;

use super::fleet::{Status, Target};
use super::format::clock;
use super::model::{Entry, Level, Model, short_version};

/// Between two status lines of a target.
pub const STATUS_EVERY: Duration = Duration::from_secs(2);
/// Events that are printed again when the screen is left.
const EPILOGUE: usize = 20;

/// Makes lines of a model as it grows.
#[derive(Debug, Default)]
pub struct Plain {
    introduced: bool,
    logged: u64,
    next_status: Duration,
    said: HashMap<String, String>,
}

impl Plain {
    /// What is new since the last call.
    pub fn lines(&mut self, model: &Model) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.introduced && model.sampled() {
            self.introduced = true;
            lines.extend(intro(model));
        }
        lines.extend(model.since(self.logged).map(entry_line));
        self.logged = model.logged();
        if self.introduced && model.at >= self.next_status {
            self.next_status = model.at + STATUS_EVERY;
            let mut status = vec![("", traffic(model))];
            status.extend(model.fleet.targets.iter().map(|target| (target.key.as_str(), target_line(target, model))));
            for (key, (stands, line)) in status {
                if self.said.get(key) != Some(&stands) {
                    self.said.insert(key.to_owned(), stands);
                    lines.push(line);
                }
            }
        }
        lines
    }

    /// How it ended.
    pub fn last_lines(&mut self, model: &Model) -> Vec<String> {
        let mut lines: Vec<String> = model.since(self.logged).map(entry_line).collect();
        self.logged = model.logged();
        if model.sampled() {
            lines.push(traffic(model).1);
        }
        lines
    }
}

/// What is worth keeping when the screen is gone: the end of the log and how everything stands.
pub(super) fn epilogue(model: &Model) -> Vec<String> {
    if !model.sampled() {
        return Vec::new();
    }
    let mut lines: Vec<String> = model.last(EPILOGUE).map(entry_line).collect();
    lines.extend(model.fleet.targets.iter().map(|target| target_line(target, model).1));
    lines.push(traffic(model).1);
    lines
}

fn start(at: Duration, kind: &str) -> String {
    format!("{:>8} {kind:<8}", clock(at))
}

fn intro(model: &Model) -> Vec<String> {
    let versions: Vec<&str> = model.fleet.versions.iter().map(|version| short_version(version)).collect();
    let facts = format!(
        "{} {} agents={} policy={} store={}",
        start(model.at, "serving"),
        model.intro.base_url,
        model.fleet.agents,
        versions.join(","),
        model.fleet.store.home,
    );
    let curl: Vec<String> =
        model.intro.curl().iter().map(|line| line.trim().trim_end_matches('\\').trim_end().to_owned()).collect();
    vec![facts, format!("{} {}", start(model.at, "try"), curl.join(" ").replace(", \"stream", ",\"stream"))]
}

/// What stands, and the line that says it; rates are not part of the first, as they alone are no news.
fn traffic(model: &Model) -> (String, String) {
    let all = &model.fleet.traffic;
    let mut stands = format!(
        "admitted={} failed-over={} refused={} cancelled={}",
        all.admitted(),
        all.failed_over,
        all.refused,
        all.cancelled
    );
    if let Some(load) = &model.load {
        let _ = write!(
            stands,
            " clients-ok={} clients-degraded={} clients-refused={} clients-failed={}",
            load.ok, load.degraded, load.refused, load.failed
        );
    }
    let rate = model.rates.admitted.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"));
    let line = format!("{} rate={rate:<7} in-flight={:<4} {stands}", start(model.at, "traffic"), all.in_flight);
    (stands, line)
}

fn target_line(target: &Target, model: &Model) -> (String, String) {
    let number = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
    let tokens = match (target.tokens_left, target.burst_tokens) {
        (_, None) => "unlimited".to_owned(),
        (left, Some(burst)) => format!("{}/{burst}", left.map_or_else(|| "-".to_owned(), |left| left.to_string())),
    };
    let breaker = target.status.as_str();
    let rate = model.attempt_rate(&target.key).map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"));
    let mut line = format!(
        "{} {:<12} breaker={breaker:<14} admitted={:<8} rate={rate:<7} passed-over={:<6} failed-over={:<6} tokens={tokens:<16} in-flight={:<9} ttft-p50-ms={:<6} ttft-p95-ms={:<6}",
        start(model.at, "target"),
        target.label,
        target.attempts,
        target.passed_over,
        target.failovers,
        format!("{}/{}", target.in_flight, target.limit),
        number(target.ttft_p50_ms),
        number(target.ttft_p95_ms),
    );
    if target.status == Status::Open {
        let _ = write!(line, " open-for-ms={}", target.open_for.as_millis());
    }
    if target.ramping {
        line.push_str(" ramping");
    }
    let stands = format!("{breaker} {} {} {} {}", target.attempts, target.passed_over, target.in_flight, target.ramping);
    (stands, line.trim_end().to_owned())
}

fn entry_line(entry: &Entry) -> String {
    match entry {
        Entry::Transition(line) => {
            let change = format!("{}->{}", line.from.as_str(), line.to.as_str());
            let WindowCounts { calls, failures, slow, stalls } = line.counts;
            format!(
                "{} {:<12} {change:<22} reason={:<21} calls={calls} failed={failures} slow={slow} stalled={stalls} agent={}",
                start(line.at, "breaker"),
                line.target,
                line.reason.as_str(),
                line.agent,
            )
        }
        Entry::Note { at, level, subject, text } => {
            let warning = if *level == Level::Warning { "warning: " } else { "" };
            // One event, one line.
            format!("{} {warning}{}", start(*at, subject), text.replace(['\n', '\r'], " "))
        }
    }
}

/// `14 calls, 9 failed, 2 slow`.
pub(super) fn counts(counts: &WindowCounts) -> String {
    let mut text = format!("{} calls", counts.calls);
    for (count, what) in [(counts.failures, "failed"), (counts.slow, "slow"), (counts.stalls, "stalled")] {
        if count > 0 {
            let _ = write!(text, ", {count} {what}");
        }
    }
    text
}
