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
            status.extend(
                model.fleet.targets.iter().map(|target| (target.key.as_str(), target_line(target, model))),
            );
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
    let curl: Vec<String> = model
        .intro
        .curl()
        .iter()
        .map(|line| line.trim().trim_end_matches('\\').trim_end().to_owned())
        .collect();
    let mut lines = vec![facts];
    if !curl.is_empty() {
        lines.push(format!("{} {}", start(model.at, "try"), curl.join(" ")));
    }
    lines
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
    let line =
        format!("{} rate={rate:<7} in-flight={:<4} {stands}", start(model.at, "traffic"), all.in_flight);
    (stands, line)
}

fn target_line(target: &Target, model: &Model) -> (String, String) {
    let number = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
    let tokens = match (target.tokens_left, target.burst_tokens) {
        (_, None) => "unlimited".to_owned(),
        (left, Some(burst)) => {
            format!("{}/{burst}", left.map_or_else(|| "-".to_owned(), |left| left.to_string()))
        }
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
    let stands = format!(
        "{breaker} {} {} {} {}",
        target.attempts, target.passed_over, target.in_flight, target.ramping
    );
    (stands, line.trim_end().to_owned())
}

fn entry_line(entry: &Entry) -> String {
    match entry {
        Entry::Transition(line) => {
            let change = format!("{}->{}", line.from.as_str(), line.to.as_str());
            let WindowCounts { calls, failures, slow, stalls } = line.counts;
            format!(
                "{} {:<12} {change:<22} reason={:<21} calls={calls} failed={failures} slow={slow} stalled={stalls} agent={}{}",
                start(line.at, "breaker"),
                line.target,
                line.reason.as_str(),
                line.agent,
                if line.alone { " alone" } else { "" },
            )
        }
        Entry::Note { at, level, subject, text } => {
            let warning = if *level == Level::Warning { "warning: " } else { "" };
            // One event, one line, and nothing that a terminal would obey.
            let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            format!("{} {warning}{text}", start(*at, subject))
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_core::admission::{BreakerState, TransitionReason};
    use sluice_core::policy::WireFormat;

    use super::super::model::{Input, Intro, Sample, TransitionLine};
    use super::super::synthetic::{agent, target};
    use super::*;

    fn sample(at_ms: u64, attempts: u64) -> Input {
        let mut one = agent("agent-1", vec![target("primary"), target("fallback")]);
        one.exchanges.total = attempts;
        let primary = &mut one.routes[0].targets[0];
        primary.attempts = attempts;
        primary.ttft_p50_ms = Some(310);
        primary.ttft_p95_ms = Some(440);
        let at = Duration::from_millis(at_ms);
        Input::Sample(Box::new(Sample { at, agents: vec![one], ..Sample::default() }))
    }

    fn opened(at_ms: u64) -> Input {
        Input::Transition(TransitionLine {
            at: Duration::from_millis(at_ms),
            agent: "agent-1".into(),
            target: "id-of-primary".into(),
            from: BreakerState::Closed,
            to: BreakerState::Open,
            reason: TransitionReason::SlowRate,
            counts: WindowCounts { calls: 82, failures: 2, slow: 51, stalls: 0 },
            alone: true,
        })
    }

    fn said(inputs: Vec<Input>) -> Vec<Vec<String>> {
        let intro = Intro {
            base_url: "http://127.0.0.1:8080/v1".into(),
            format: WireFormat::OpenAi,
            model: "gpt-4o".into(),
        };
        let (mut model, mut plain) = (Model::new(intro), Plain::default());
        inputs
            .into_iter()
            .map(|input| {
                model.feed(input);
                plain.lines(&model)
            })
            .collect()
    }

    #[test]
    fn a_run_reads_like_this() {
        let lines: Vec<String> = said(vec![sample(0, 0), sample(2_000, 24), opened(2_300)]).concat();
        assert_eq!(
            lines,
            [
                "  0:00.0 serving  http://127.0.0.1:8080/v1 agents=1 policy=3f2a91c store=embedded",
                "  0:00.0 try      curl -N http://127.0.0.1:8080/v1/chat/completions -d '{\"model\":\"gpt-4o\", \"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}' -H 'content-type: application/json'",
                "  0:00.0 traffic  rate=-       in-flight=0    admitted=0 failed-over=0 refused=0 cancelled=0",
                "  0:00.0 target   primary      breaker=closed         admitted=0        rate=-       passed-over=0      failed-over=0      tokens=100000/100000    in-flight=0/32      ttft-p50-ms=310    ttft-p95-ms=440",
                "  0:00.0 target   fallback     breaker=closed         admitted=0        rate=-       passed-over=0      failed-over=0      tokens=100000/100000    in-flight=0/32      ttft-p50-ms=-      ttft-p95-ms=-",
                "  0:02.0 traffic  rate=12.0    in-flight=0    admitted=24 failed-over=0 refused=0 cancelled=0",
                "  0:02.0 target   primary      breaker=closed         admitted=24       rate=12.0    passed-over=0      failed-over=0      tokens=100000/100000    in-flight=0/32      ttft-p50-ms=310    ttft-p95-ms=440",
                "  0:02.3 breaker  primary      closed->open           reason=slow-rate             calls=82 failed=2 slow=51 stalled=0 agent=agent-1 alone",
            ]
        );
    }

    #[test]
    fn an_idle_run_is_quiet_and_a_busy_one_speaks_every_two_seconds() {
        let idle: Vec<Vec<String>> = said((0..20).map(|half| sample(half * 500, 5)).collect());
        assert!(idle[1..].concat().is_empty(), "{idle:?}");
        let busy: Vec<Vec<String>> = said((0..=20).map(|half| sample(half * 500, half)).collect());
        let spoke: Vec<usize> = (0..busy.len()).filter(|half| !busy[*half].is_empty()).collect();
        assert_eq!(spoke, [0, 4, 8, 12, 16, 20]);
    }

    #[test]
    fn every_event_is_one_line_of_ascii_without_escape_codes() {
        let note = Input::Note {
            at: Duration::from_secs(1),
            level: Level::Warning,
            subject: "policy",
            text: "route.yaml: spec.models: empty\nname one\u{1b}[31m".into(),
        };
        let lines = said(vec![sample(0, 0), opened(900), note]).concat();
        assert!(lines.last().is_some_and(|line| line.contains("policy   warning: route.yaml")), "{lines:?}");
        assert!(lines.iter().all(|line| line.is_ascii() && !line.contains(|c: char| c.is_ascii_control())));
    }
}
