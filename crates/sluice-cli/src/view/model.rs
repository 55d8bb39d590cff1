//! What the view knows: the newest sample, what changed since the ones before, and what happened.
//!
//! It is fed and read; it has no clock. `at` is the time since the start of the run, and never goes back.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use sluice_agent::state::AgentState;
use sluice_core::admission::{BreakerState, TransitionReason, WindowCounts};
use sluice_core::policy::WireFormat;

use super::fleet::{Fleet, Status, Store};
use super::history::History;
use super::load::LoadCounts;
use super::phase::Phase;

/// Events kept; the screen shows the last of them.
const LOG_KEPT: usize = 200;
/// Rates are over this much of the past: shorter jumps about, longer lags behind an incident.
const RATE_SPAN: Duration = Duration::from_secs(3);

/// What does not change while it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intro {
    /// `http://127.0.0.1:8080/v1`.
    pub base_url: String,
    /// What the route of `model` speaks.
    pub format: WireFormat,
    /// A model that a route serves, for the curl line; empty: there is none to try.
    pub model: String,
}

impl Default for Intro {
    fn default() -> Self {
        Self { base_url: String::new(), format: WireFormat::OpenAi, model: String::new() }
    }
}

impl Intro {
    /// What points an SDK here; Anthropic's adds the version itself.
    #[must_use]
    pub fn sdk(&self) -> String {
        match self.format {
            WireFormat::OpenAi => format!("OPENAI_BASE_URL={}", self.base_url),
            WireFormat::Anthropic => {
                format!("ANTHROPIC_BASE_URL={}", self.base_url.trim_end_matches("/v1"))
            }
        }
    }

    /// A call to try, in lines of less than 80 columns that can be copied as they are; none where no route serves
    /// anything.
    #[must_use]
    pub fn curl(&self) -> Vec<String> {
        if self.model.is_empty() {
            return Vec::new();
        }
        let (path, maximum, header) = match self.format {
            WireFormat::OpenAi => ("chat/completions", "", ""),
            WireFormat::Anthropic => {
                ("messages", "\"max_tokens\":64,", " -H 'anthropic-version: 2023-06-01'")
            }
        };
        vec![
            format!("curl -N {}/{path} -d '{{\"model\":\"{}\",", self.base_url, self.model),
            format!(
                "  {maximum}\"stream\":true,\"messages\":[{{\"role\":\"user\",\"content\":\"hi\"}}]}}' \\"
            ),
            format!("  -H 'content-type: application/json'{header}"),
        ]
    }
}

/// All agents of the process, at one time.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// Since the start.
    pub at: Duration,
    pub agents: Vec<AgentState>,
    /// Which phase of its scenario the provider plays; `None`: no provider of ours, or no scenario.
    pub provider: Option<Phase>,
    /// `None`: no load of ours.
    pub load: Option<LoadCounts>,
}

/// A breaker's transition, as the agent that made it reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransitionLine {
    /// Since the start.
    pub at: Duration,
    pub agent: String,
    /// The target's id, as in `TargetState`; the view shows its name.
    pub target: String,
    pub from: BreakerState,
    pub to: BreakerState,
    pub reason: TransitionReason,
    /// What the window held.
    pub counts: WindowCounts,
    /// Of the agent's own breaker, while the shared state was out of its reach.
    pub alone: bool,
}

/// What the view is fed.
#[derive(Debug, Clone)]
pub enum Input {
    Sample(Box<Sample>),
    Transition(TransitionLine),
    /// Something else that a person should see: an edit that took effect, or one that was refused.
    Note {
        at: Duration,
        level: Level,
        /// The kind of line, a word of at most eight letters: `policy`.
        subject: &'static str,
        text: String,
    },
}

/// How much a line of the log matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Info,
    Warning,
}

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    Transition(TransitionLine),
    Note { at: Duration, level: Level, subject: &'static str, text: String },
}

/// Per second, over the last seconds; `None` until two samples are there.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    pub admitted: Option<f64>,
    pub refused: Option<f64>,
    pub failed_over: Option<f64>,
}

/// What the view knows.
#[derive(Debug, Clone, Default)]
pub struct Model {
    pub intro: Intro,
    pub at: Duration,
    pub fleet: Fleet,
    pub provider: Option<Phase>,
    pub load: Option<LoadCounts>,
    pub rates: Rates,
    log: VecDeque<Entry>,
    /// Numbers the entries, so that a reader of the log can tell which are new.
    logged: u64,
    traffic: Series<3>,
    targets: HashMap<String, Track>,
    samples: u64,
}

#[derive(Debug, Clone, Default)]
struct Track {
    history: History,
    attempts: Series<1>,
}

impl Model {
    #[must_use]
    pub fn new(intro: Intro) -> Self {
        Self { intro, ..Self::default() }
    }

    pub fn feed(&mut self, input: Input) {
        match input {
            Input::Sample(sample) => self.feed_sample(*sample),
            Input::Transition(mut line) => {
                if let Some(target) = self.fleet.targets.iter().find(|target| target.id == line.target) {
                    line.target.clone_from(&target.label);
                }
                self.log(Entry::Transition(line));
            }
            Input::Note { at, level, subject, text } => self.log(Entry::Note { at, level, subject, text }),
        }
    }

    fn feed_sample(&mut self, sample: Sample) {
        let fleet = Fleet::of(&sample.agents);
        self.at = self.at.max(sample.at);
        self.note_changes(&fleet, sample.provider.as_ref());
        self.samples += 1;
        let traffic = &fleet.traffic;
        self.traffic.push(self.at, [traffic.admitted(), traffic.refused, traffic.failed_over]);
        let [admitted, refused, failed_over] = self.traffic.rates();
        self.rates = Rates { admitted, refused, failed_over };
        self.targets.retain(|key, _| fleet.targets.iter().any(|target| target.key == *key));
        for target in &fleet.targets {
            let track = self.targets.entry(target.key.clone()).or_default();
            track.history.record(self.at, target);
            track.attempts.push(self.at, [target.attempts]);
        }
        self.fleet = fleet;
        self.provider = sample.provider;
        self.load = sample.load;
    }

    /// What differs between two samples and belongs in the log; of the first one, what is not as it should be.
    fn note_changes(&mut self, new: &Fleet, provider: Option<&Phase>) {
        let at = self.at;
        let mut notes = Vec::new();
        let mut note = |level, subject, text: String| notes.push(Entry::Note { at, level, subject, text });
        let name = |phase: &Phase| phase.name.clone();
        if let Some(phase) = provider.filter(|phase| self.provider.as_ref().map(name) != Some(name(phase))) {
            note(Level::Info, "provider", phase.to_string());
        }
        let (before, after) = (&self.fleet.store, &new.store);
        if before.away == 0 && after.away > 0 {
            let [_, full] = degraded(after, new.agents);
            note(Level::Warning, "store", full);
        } else if before.away > 0 && after.away == 0 {
            note(Level::Info, "store", format!("{} is reachable again; shared state rules", after.home));
        }
        for (object, error) in &new.rejected {
            if !self.fleet.rejected.contains(&(object.clone(), error.clone())) {
                note(
                    Level::Warning,
                    "policy",
                    format!("{object} refused, its last good version stays: {error}"),
                );
            }
        }
        let edited = self.sampled() && self.fleet.versions != new.versions;
        if let ([version], true) = (new.versions.as_slice(), edited) {
            note(Level::Info, "policy", format!("version {} in use", short_version(version)));
        }
        for entry in notes {
            self.log(entry);
        }
    }

    fn log(&mut self, entry: Entry) {
        if self.log.len() == LOG_KEPT {
            self.log.pop_front();
        }
        self.log.push_back(entry);
        self.logged += 1;
    }

    /// The last entries, the newest last.
    pub fn last(&self, count: usize) -> impl Iterator<Item = &Entry> {
        self.log.iter().skip(self.log.len().saturating_sub(count))
    }

    /// Entries that were logged since there were `seen` of them; those that are no longer kept are left out.
    pub fn since(&self, seen: u64) -> impl Iterator<Item = &Entry> {
        let new = usize::try_from(self.logged - seen.min(self.logged)).unwrap_or(usize::MAX);
        self.last(new.min(self.log.len()))
    }

    /// Entries logged so far.
    #[must_use]
    pub fn logged(&self) -> u64 {
        self.logged
    }

    /// Whether a first sample is there.
    #[must_use]
    pub fn sampled(&self) -> bool {
        self.samples > 0
    }

    /// Attempts per second at a target.
    #[must_use]
    pub fn attempt_rate(&self, key: &str) -> Option<f64> {
        let [rate] = self.targets.get(key)?.attempts.rates();
        rate
    }

    #[must_use]
    pub fn history(&self, key: &str) -> Option<&History> {
        self.targets.get(key).map(|track| &track.history)
    }

    /// The worst breaker of all.
    #[must_use]
    pub fn worst(&self) -> Status {
        self.fleet.targets.iter().map(|target| target.status).max().unwrap_or_default()
    }
}

/// What it means that the store is away, in words: briefly, and in full.
pub(super) fn degraded(store: &Store, agents: usize) -> [String; 2] {
    let who = match (store.away, agents) {
        (_, 1) => String::new(),
        (away, agents) if away == agents => format!(" for all {agents} agents"),
        (away, agents) => format!(" for {away} of {agents} agents"),
    };
    let brief = format!("{} unreachable{who}", store.home);
    let why = store.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let full = format!("{brief}, each decides alone{why}");
    [brief, full]
}

/// Enough of a content hash to tell two apart.
pub(super) fn short_version(version: &str) -> &str {
    version.get(..7).unwrap_or(version)
}

/// Counters over the last seconds.
#[derive(Debug, Clone)]
struct Series<const N: usize>(VecDeque<(Duration, [u64; N])>);

impl<const N: usize> Default for Series<N> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<const N: usize> Series<N> {
    fn push(&mut self, at: Duration, counters: [u64; N]) {
        // Two samples of one time have no rate.
        if self.0.back().is_some_and(|(last, _)| *last == at) {
            self.0.pop_back();
        }
        self.0.push_back((at, counters));
        // The oldest kept is the youngest that is at least the span ago.
        while self.0.len() > 2 && self.0[1].0 + RATE_SPAN <= at {
            self.0.pop_front();
        }
    }

    fn rates(&self) -> [Option<f64>; N] {
        let (Some((from, old)), Some((to, new))) = (self.0.front(), self.0.back()) else { return [None; N] };
        let seconds = to.saturating_sub(*from).as_secs_f64();
        std::array::from_fn(|at| (seconds > 0.0).then(|| new[at].saturating_sub(old[at]) as f64 / seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::super::synthetic::{agent, target};
    use super::*;

    fn sample(at_ms: u64, change: impl FnOnce(&mut AgentState)) -> Input {
        let mut one = agent("agent-1", vec![target("primary")]);
        change(&mut one);
        let at = Duration::from_millis(at_ms);
        Input::Sample(Box::new(Sample { at, agents: vec![one], ..Sample::default() }))
    }

    fn notes(model: &Model) -> Vec<String> {
        let text = |entry: &Entry| match entry {
            Entry::Note { subject, text, .. } => format!("{subject}: {text}"),
            Entry::Transition(line) => format!("{}: {}", line.target, line.reason.as_str()),
        };
        model.last(LOG_KEPT).map(text).collect()
    }

    #[test]
    fn rates_are_over_the_last_seconds() {
        let mut model = Model::default();
        for second in 0..=20 {
            let total = if second <= 10 { second * 10 } else { 100 };
            model.feed(sample(second * 1_000, |one| one.exchanges.total = total));
            match second {
                0 => assert_eq!(model.rates, Rates::default()),
                1..=10 => assert_eq!(model.rates.admitted, Some(10.0)),
                13.. => assert_eq!(model.rates.admitted, Some(0.0), "at {second}"),
                _ => {}
            }
        }
    }

    #[test]
    fn what_changes_between_samples_is_logged_once() {
        let mut model = Model::default();
        let away = |one: &mut AgentState| {
            one.store.home = "redis";
            one.store.reachable = false;
            one.store.reason = Some("timed out".into());
        };
        model.feed(sample(0, |one| one.store.home = "redis"));
        model.feed(sample(500, away));
        model.feed(sample(1_000, away));
        model.feed(sample(1_500, |one| {
            one.store.home = "redis";
            one.policy_version = "77d0ab1c".into();
        }));
        assert_eq!(
            notes(&model),
            [
                "store: redis unreachable, each decides alone: timed out",
                "store: redis is reachable again; shared state rules",
                "policy: version 77d0ab1 in use",
            ]
        );
    }

    #[test]
    fn a_phase_is_logged_when_it_begins_not_when_it_counts_down() {
        let mut model = Model::default();
        for (second, name) in [(0, "healthy"), (1, "healthy"), (2, "silent"), (3, "silent")] {
            let provider = Some(Phase {
                scenario: "brownout".into(),
                number: 1,
                of: 2,
                name: name.into(),
                left: Some(Duration::from_secs(9 - second)),
            });
            let at = Duration::from_secs(second);
            model.feed(Input::Sample(Box::new(Sample { at, provider, ..Sample::default() })));
        }
        assert_eq!(notes(&model), ["provider: brownout 1/2: healthy", "provider: brownout 1/2: silent"]);
    }

    #[test]
    fn transitions_get_the_targets_name_and_the_log_is_bounded() {
        let mut model = Model::default();
        model.feed(sample(0, |_| {}));
        let transition = |target: &str| {
            Input::Transition(TransitionLine {
                at: Duration::ZERO,
                agent: "agent-1".into(),
                target: target.into(),
                from: BreakerState::Closed,
                to: BreakerState::Open,
                reason: TransitionReason::FailureRate,
                counts: WindowCounts::default(),
                alone: false,
            })
        };
        model.feed(transition("id-of-primary"));
        model.feed(transition("id-of-nobody"));
        assert_eq!(notes(&model), ["primary: failure-rate", "id-of-nobody: failure-rate"]);
        for _ in 0..3 * LOG_KEPT {
            model.feed(transition("id-of-primary"));
        }
        assert_eq!(model.last(usize::MAX).count(), LOG_KEPT);
        assert_eq!(model.since(model.logged() - 3).count(), 3);
        assert_eq!(model.since(0).count(), LOG_KEPT, "what is no longer kept is left out");
        assert_eq!(model.since(model.logged()).count(), 0);
    }

    #[test]
    fn the_curl_line_is_one_command_that_fits_80_columns() {
        let intro = Intro {
            base_url: "http://127.0.0.1:8080/v1".into(),
            format: WireFormat::OpenAi,
            model: "gpt-4o".into(),
        };
        let lines = intro.curl();
        let anthropic =
            Intro { format: WireFormat::Anthropic, model: "claude-x".into(), ..intro.clone() }.curl();
        assert_eq!(
            anthropic,
            [
                "curl -N http://127.0.0.1:8080/v1/messages -d '{\"model\":\"claude-x\",",
                "  \"max_tokens\":64,\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}' \\",
                "  -H 'content-type: application/json' -H 'anthropic-version: 2023-06-01'",
            ]
        );
        assert!(anthropic.iter().all(|line| line.len() < 80));
        assert_eq!(intro.sdk(), "OPENAI_BASE_URL=http://127.0.0.1:8080/v1");
        let anthropic = Intro { format: WireFormat::Anthropic, ..intro.clone() };
        assert_eq!(anthropic.sdk(), "ANTHROPIC_BASE_URL=http://127.0.0.1:8080");
        assert!(Intro { model: String::new(), ..intro }.curl().is_empty(), "no route: nothing to try");
        assert!(lines.iter().all(|line| line.len() < 78), "{lines:?}");
        let body = lines.join("\n");
        let body = body.split('\'').nth(1).unwrap();
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!((&body["model"], &body["stream"]), (&"gpt-4o".into(), &true.into()));
    }
}
