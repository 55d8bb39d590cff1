//! Which phase of a scripted incident is being played.
//!
//! The provider itself decides it call by call. Where every step has a time, the clock alone tells it, so that
//! the view can say so without asking and before the first call.

use std::fmt;
use std::time::Duration;

use sluice_provider::Scenario;
use sluice_provider::scenario::StartsAt;

/// What the provider plays now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phase {
    /// The scenario's name.
    pub scenario: String,
    /// From 1.
    pub number: usize,
    pub of: usize,
    pub name: String,
    /// Until the next one; `None`: it is the last.
    pub left: Option<Duration>,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}: {}", self.scenario, self.number, self.of, self.name)
    }
}

/// The phases of a scenario by time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phases {
    scenario: String,
    /// Each with its end, counted from the start of the scenario.
    steps: Vec<(String, Duration)>,
    repeat: bool,
}

impl Phases {
    /// `None`: the scenario has no steps, or a clock alone can't tell which one is played.
    #[must_use]
    pub fn of(name: &str, scenario: &Scenario) -> Option<Self> {
        if scenario.steps.is_empty() || scenario.starts_at != StartsAt::Set {
            return None;
        }
        let mut end = Duration::ZERO;
        let mut steps = Vec::with_capacity(scenario.steps.len());
        for (number, step) in (1..).zip(&scenario.steps) {
            end += step.lasts?;
            steps.push((step.name.clone().unwrap_or_else(|| format!("step {number}")), end));
        }
        Some(Self { scenario: name.to_owned(), steps, repeat: scenario.repeat })
    }

    /// The phase at a time since the scenario was set.
    #[must_use]
    pub fn at(&self, since: Duration) -> Phase {
        let total = self.steps.last().map_or(Duration::ZERO, |(_, end)| *end);
        let since = match since.as_millis().checked_rem(total.as_millis()) {
            Some(rest) if self.repeat => Duration::from_millis(u64::try_from(rest).unwrap_or(0)),
            _ => since,
        };
        let of = self.steps.len();
        let phase = |number, name: &str, left| Phase {
            scenario: self.scenario.clone(),
            number,
            of,
            name: name.to_owned(),
            left,
        };
        match (1..).zip(&self.steps).find(|(_, (_, end))| since < *end) {
            Some((number, (name, end))) => phase(number, name, Some(end.saturating_sub(since))),
            None => phase(of, "over, back to normal", None),
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_provider::Behaviour;

    use super::*;

    fn scenario(repeat: bool) -> Scenario {
        let mut scenario = Scenario { repeat, ..Scenario::default() }
            .then_for(Duration::from_secs(10), Behaviour::default())
            .then_for(Duration::from_secs(5), Behaviour::default());
        scenario.steps[0].name = Some("healthy".into());
        scenario
    }

    #[test]
    fn the_clock_tells_the_phase() {
        let phases = Phases::of("brownout", &scenario(false)).unwrap();
        let at = |seconds| phases.at(Duration::from_secs(seconds));
        assert_eq!(at(0).to_string(), "brownout 1/2: healthy");
        assert_eq!((at(4).number, at(4).left), (1, Some(Duration::from_secs(6))));
        assert_eq!((at(10).number, at(10).name.as_str()), (2, "step 2"));
        assert_eq!((at(15).number, at(15).left), (2, None));
    }

    #[test]
    fn a_repeated_scenario_starts_over() {
        let phases = Phases::of("brownout", &scenario(true)).unwrap();
        assert_eq!(phases.at(Duration::from_secs(15)).number, 1);
        assert_eq!(phases.at(Duration::from_secs(15 + 12)).number, 2);
    }

    #[test]
    fn steps_that_count_calls_have_no_clock() {
        let by_calls = scenario(false).then_calls(3, Behaviour::default());
        assert_eq!(Phases::of("brownout", &by_calls), None);
        assert_eq!(Phases::of("brownout", &Scenario::default()), None);
        let by_call = Scenario { starts_at: StartsAt::FirstCall, ..scenario(false) };
        assert_eq!(Phases::of("brownout", &by_call), None);
    }

    #[test]
    fn the_brownout_of_the_quickstart_reads_and_lasts_about_75_seconds() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../e2e/manifests/scenarios/brownout.yaml");
        let scenario = Scenario::from_file(path).unwrap();
        let phases = Phases::of("brownout", &scenario).unwrap();
        assert_eq!(phases.at(Duration::ZERO).name, "healthy");
        assert!((70..=80).contains(&phases.steps.last().unwrap().1.as_secs()));
    }
}
