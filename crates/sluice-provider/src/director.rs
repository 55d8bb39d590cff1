//! Which behaviour a call gets: rules, steps and their cursors.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::quota::Buckets;
use crate::request::Ask;
use crate::scenario::{Behaviour, Match, Quota, Scenario, StartsAt, Step};

/// A scenario with its cursors.
#[derive(Debug)]
pub(crate) struct Director {
    pub(crate) scenario: Scenario,
    pub(crate) slots: Option<Arc<Semaphore>>,
    quota: Option<Arc<Buckets>>,
    steps: Track,
    rules: Vec<(Match, Track)>,
}

/// What was chosen for a call.
#[derive(Debug, Clone)]
pub(crate) struct Pick {
    pub(crate) behaviour: Arc<Behaviour>,
    /// The name of the rule or step.
    pub(crate) name: Option<Arc<str>>,
    /// The number of this call within its step, from 0.
    pub(crate) call: u64,
    /// Since the step began.
    pub(crate) since: Duration,
    pub(crate) quotas: [Option<Arc<Buckets>>; 2],
}

/// A list of steps, and the behaviour after the last one.
#[derive(Debug)]
struct Track {
    steps: Vec<TrackStep>,
    last: Arc<Behaviour>,
    name: Option<Arc<str>>,
    repeat: bool,
    quota: Option<Arc<Buckets>>,
    starts_at: StartsAt,
    cursor: Mutex<Cursor>,
}

#[derive(Debug)]
struct TrackStep {
    calls: Option<u64>,
    lasts: Option<Duration>,
    name: Option<Arc<str>>,
    behaviour: Arc<Behaviour>,
}

#[derive(Debug)]
struct Cursor {
    step: usize,
    /// Calls that the current step has had.
    calls: u64,
    since: Instant,
    begun: bool,
}

impl Director {
    pub(crate) fn new(scenario: Scenario, now: Instant) -> Self {
        let buckets = |quota: &Option<Quota>| quota.clone().map(|quota| Arc::new(Buckets::new(quota, now)));
        let track = |steps: &[Step], base: &Behaviour, name: Option<&str>, repeat: bool, quota| Track {
            steps: steps.iter().map(|step| TrackStep::new(step, base)).collect(),
            last: Arc::new(base.clone()),
            name: name.map(Arc::from),
            repeat,
            quota,
            starts_at: scenario.starts_at,
            cursor: Mutex::new(Cursor { step: 0, calls: 0, since: now, begun: false }),
        };
        let steps = track(&scenario.steps, &scenario.base, None, scenario.repeat, None);
        let rules = scenario
            .rules
            .iter()
            .map(|rule| {
                let base = rule.behaviour.over(&scenario.base);
                let quota = buckets(&rule.quota);
                (rule.matches.clone(), track(&rule.steps, &base, rule.name.as_deref(), rule.repeat, quota))
            })
            .collect();
        Self {
            slots: scenario.slots.map(|slots| Arc::new(Semaphore::new(slots))),
            quota: buckets(&scenario.quota),
            steps,
            rules,
            scenario,
        }
    }

    /// Chooses for a call, and counts it.
    pub(crate) fn pick(&self, ask: &Ask, headers: &http::HeaderMap, path: &str, now: Instant) -> Pick {
        let track = self
            .rules
            .iter()
            .find(|(matches, _)| matches.holds(ask, headers, path))
            .map_or(&self.steps, |(_, track)| track);
        let mut pick = track.pick(now);
        pick.quotas = [self.quota.clone(), track.quota.clone()];
        pick
    }

    /// Whether the request's key is one that the scenario accepts.
    pub(crate) fn knows_key(&self, headers: &http::HeaderMap) -> bool {
        let keys = &self.scenario.api_keys;
        if keys.is_empty() {
            return true;
        }
        let bearer = headers.get("authorization").and_then(|value| value.to_str().ok());
        let bearer = bearer.and_then(|value| value.strip_prefix("Bearer "));
        let plain = ["x-api-key", "api-key"].into_iter().filter_map(|name| headers.get(name)?.to_str().ok());
        bearer.into_iter().chain(plain).any(|given| keys.iter().any(|key| key == given))
    }
}

impl TrackStep {
    fn new(step: &Step, base: &Behaviour) -> Self {
        Self {
            calls: step.calls,
            lasts: step.lasts,
            name: step.name.as_deref().map(Arc::from),
            behaviour: Arc::new(step.behaviour.over(base)),
        }
    }
}

impl Track {
    fn pick(&self, now: Instant) -> Pick {
        let mut cursor = self.cursor.lock();
        if !cursor.begun {
            cursor.begun = true;
            if self.starts_at == StartsAt::FirstCall {
                cursor.since = now;
            }
        }
        self.advance(&mut cursor, now);
        let call = cursor.calls;
        cursor.calls += 1;
        let (behaviour, name) = match self.steps.get(cursor.step) {
            Some(step) => (&step.behaviour, step.name.as_ref().or(self.name.as_ref())),
            None => (&self.last, self.name.as_ref()),
        };
        Pick {
            behaviour: Arc::clone(behaviour),
            name: name.cloned(),
            call,
            since: now.saturating_duration_since(cursor.since),
            quotas: [None, None],
        }
    }

    fn advance(&self, cursor: &mut Cursor, now: Instant) {
        self.skip_whole_rounds(cursor, now);
        while let Some(step) = self.steps.get(cursor.step) {
            let by_calls = step.calls.is_some_and(|calls| cursor.calls >= calls);
            // The next step's time begins when this one's was over, not when somebody noticed.
            let over = step.lasts.map(|lasts| cursor.since + lasts).filter(|over| *over <= now);
            if !by_calls && over.is_none() {
                return;
            }
            cursor.since = over.unwrap_or(now);
            cursor.calls = 0;
            cursor.step += 1;
            if self.repeat && cursor.step == self.steps.len() {
                cursor.step = 0;
            }
        }
    }

    /// A repeated list of timed steps may have gone round many times since the last call.
    fn skip_whole_rounds(&self, cursor: &mut Cursor, now: Instant) {
        let round: Option<Duration> = self.steps.iter().map(|step| step.lasts).sum();
        let Some(round) = round.filter(|round| self.repeat && !round.is_zero()) else { return };
        let rounds = now.saturating_duration_since(cursor.since).as_nanos() / round.as_nanos();
        if let Ok(rounds) = u32::try_from(rounds) {
            if rounds > 0 {
                cursor.calls = 0;
            }
            cursor.since += round * rounds;
        }
    }
}

impl Match {
    fn holds(&self, ask: &Ask, headers: &http::HeaderMap, path: &str) -> bool {
        let header = |name: &str, value: &str| headers.get_all(name).iter().any(|given| given == value);
        self.scenario.as_deref().is_none_or(|name| header("x-scenario", name))
            && self.model.as_deref().is_none_or(|pattern| fits(pattern, &ask.model))
            && self.path.as_deref().is_none_or(|pattern| fits(pattern, path))
            && self.stream.is_none_or(|stream| stream == ask.stream)
            && self.headers.iter().all(|(name, value)| header(name, &value.0))
    }
}

/// Equality, or a prefix when the pattern ends in `*`.
fn fits(pattern: &str, text: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == text, |prefix| text.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::Director;
    use crate::clock::now;
    use crate::request::Ask;
    use crate::scenario::Scenario;
    use http::HeaderMap;
    use std::time::Duration;

    fn statuses(yaml: &str, at: &[u64]) -> Vec<u16> {
        let start = now();
        let director = Director::new(Scenario::from_yaml(yaml).unwrap(), start);
        let pick = |seconds: &u64| {
            let pick =
                director.pick(&Ask::default(), &HeaderMap::new(), "/", start + Duration::from_secs(*seconds));
            pick.behaviour.status.unwrap_or(200)
        };
        at.iter().map(pick).collect()
    }

    #[test]
    fn steps_by_calls_and_by_time() {
        let yaml = "steps: [{calls: 2, behaviour: {status: 500}}, {for: 10s, behaviour: {status: 503}}]";
        assert_eq!(statuses(yaml, &[0, 0, 5, 14, 15, 99]), [500, 500, 503, 503, 200, 200]);
        let yaml = "{repeat: true, steps: [{for: 10s, behaviour: {status: 503}}, {for: 5s}]}";
        assert_eq!(
            statuses(yaml, &[9, 10, 14, 15, 24, 25, 1_500_000_000, 1_500_000_010]),
            [503, 200, 200, 503, 503, 200, 503, 200]
        );
    }

    #[test]
    fn rules_take_calls_out_of_the_steps() {
        let yaml = "
default: {tokens: 7}
steps: [{calls: 1, behaviour: {status: 500}}]
rules:
- match: {model: 'gpt-*', stream: true}
  behaviour: {status: 503}
  steps: [{calls: 1, behaviour: {status: 429}}]
- match: {scenario: clean}
  behaviour: {inherit: false}
";
        let start = now();
        let director = Director::new(Scenario::from_yaml(yaml).unwrap(), start);
        let pick = |model: &str, stream: bool, scenario: &'static str| {
            let ask = Ask { model: model.into(), stream, ..Ask::default() };
            let mut headers = HeaderMap::new();
            headers.insert("x-scenario", scenario.parse().unwrap());
            let pick = director.pick(&ask, &headers, "/v1/chat/completions", start);
            (pick.behaviour.status, pick.behaviour.tokens)
        };
        assert_eq!(pick("gpt-4o", true, "-"), (Some(429), Some(7)));
        assert_eq!(pick("gpt-4o", true, "-"), (Some(503), Some(7)));
        assert_eq!(pick("claude", true, "clean"), (None, None));
        assert_eq!(pick("gpt-4o", false, "-"), (Some(500), Some(7)));
        assert_eq!(pick("gpt-4o", false, "-"), (None, Some(7)));
    }
}
