//! The live view over a made-up incident, at twice its speed: to look at the view while changing it.
//!
//! `cargo run -p sluice-cli --example view`; pipe it through `cat` for the plain lines. Options: the number of
//! targets, and `away` for a store that is lost half way.
#![allow(clippy::unwrap_used, reason = "an example")]

#[path = "../src/view/synthetic.rs"]
mod synthetic;

use std::time::Duration;

use sluice_agent::state::{AgentState, TargetState};
use sluice_cli::view::load::LoadCounts;
use sluice_cli::view::{self, Input, Intro, Phase, Sample, Surface, TransitionLine};
use sluice_core::admission::{BreakerState, TransitionReason, WindowCounts};
use sluice_core::policy::WireFormat;
use tokio_util::sync::CancellationToken;

const STEP: Duration = Duration::from_millis(500);
const SPEED: u32 = 2;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let options: Vec<String> = std::env::args().skip(1).collect();
    let targets = options.iter().find_map(|option| option.parse().ok()).unwrap_or(2);
    let away = options.iter().any(|option| option == "away");
    let (feed, inputs) = view::channel();
    tokio::spawn(async move {
        let mut incident = Incident::new(targets, away);
        let mut tick = tokio::time::interval(STEP / SPEED);
        loop {
            tick.tick().await;
            for input in incident.step() {
                if feed.send(input).await.is_err() {
                    return;
                }
            }
        }
    });
    let intro = Intro {
        base_url: "http://127.0.0.1:8080/v1".into(),
        format: WireFormat::OpenAi,
        model: "gpt-4o".into(),
    };
    view::run(Surface::of_stdout(), intro, inputs, CancellationToken::new()).await
}

struct Incident {
    at: Duration,
    away: bool,
    agent: AgentState,
    load: LoadCounts,
    state: &'static str,
    open_until: f64,
}

impl Incident {
    fn new(targets: usize, away: bool) -> Self {
        let mut list: Vec<TargetState> = vec![synthetic::target("primary"), synthetic::target("fallback")];
        list.extend((2..targets).map(|number| synthetic::target(&format!("region-{number}"))));
        list.truncate(targets);
        Self {
            at: Duration::ZERO,
            away,
            agent: synthetic::agent("agent-1", list),
            load: LoadCounts::default(),
            state: "closed",
            open_until: 0.0,
        }
    }

    fn step(&mut self) -> Vec<Input> {
        let t = self.at.as_secs_f64() % 75.0;
        let (phase, ttft): (&str, f64) = match t {
            t if t < 10.0 => ("healthy", 300.0),
            t if t < 25.0 => ("slow: first token after up to 6 s", 300.0 + (t - 10.0) * 400.0),
            t if t < 40.0 => ("stalls and errors", 5_800.0),
            _ => ("healthy again", 320.0),
        };
        let mut inputs = Vec::new();
        let transition = match (self.state, t) {
            ("closed", t) if (24.0..24.5).contains(&t) => {
                self.open_until = t + 20.0;
                Some(("open", BreakerState::Closed, BreakerState::Open, TransitionReason::SlowRate))
            }
            ("open", t) if t >= self.open_until => Some((
                "half-open",
                BreakerState::Open,
                BreakerState::HalfOpen,
                TransitionReason::CooldownEnded,
            )),
            ("half-open", t) if t > 48.0 => Some((
                "closed",
                BreakerState::HalfOpen,
                BreakerState::Closed,
                TransitionReason::ProbesSucceeded,
            )),
            _ => None,
        };
        if let Some((state, from, to, reason)) = transition {
            self.state = state;
            let counts = if to == BreakerState::Open {
                WindowCounts { calls: 82, failures: 2, slow: 51, stalls: 0 }
            } else {
                WindowCounts::default()
            };
            inputs.push(Input::Transition(TransitionLine {
                at: self.at,
                agent: "agent-1".into(),
                target: "id-of-primary".into(),
                from,
                to,
                reason,
                counts,
                alone: self.away && self.at.as_secs() > 30,
            }));
        }
        self.advance(t, ttft);
        let provider = Some(Phase {
            scenario: "brownout".into(),
            number: 1,
            of: 4,
            name: phase.into(),
            left: Some(Duration::from_secs(3)),
        });
        let agents = vec![self.agent.clone()];
        inputs.push(Input::Sample(Box::new(Sample {
            at: self.at,
            agents,
            provider,
            load: Some(self.load.clone()),
        })));
        self.at += STEP;
        inputs
    }

    fn advance(&mut self, t: f64, ttft: f64) {
        let wobble = (self.at.as_millis() as u64).wrapping_mul(2_654_435_761) % 7;
        let calls = 3 + wobble;
        let exchanges = &mut self.agent.exchanges;
        exchanges.total += calls;
        self.load.sent += calls;
        self.load.ok += calls;
        self.load.ttft_p50_ms = Some(ttft as u64);
        self.load.ttft_p95_ms = Some(ttft as u64 * 2);
        let to_primary = match self.state {
            "closed" => calls,
            "half-open" => 1,
            _ => 0,
        };
        exchanges.failed_over += calls - to_primary;
        exchanges.in_flight = 4 + (ttft as u64 / 300);
        let away = self.away && t > 30.0;
        self.agent.store.home = if self.away { "redis" } else { "embedded" };
        self.agent.store.reachable = !away;
        self.agent.store.reason = away.then(|| "timed out after 20 ms".to_owned());
        for (index, target) in self.agent.routes[0].targets.iter_mut().enumerate() {
            let attempts = match index {
                0 => to_primary,
                1 => calls - to_primary,
                _ => 0,
            };
            target.attempts += attempts;
            if attempts > 0 {
                let ttft = if index == 0 { ttft } else { 410.0 };
                target.ttft_p50_ms = Some(ttft as u64 + wobble * 5);
                target.ttft_p95_ms = Some((ttft * 1.3) as u64 + wobble * 30);
            }
            target.tokens_left = Some(100_000 - (attempts * 6_000 + wobble * 900) as i64);
            target.in_flight = (attempts as f64 * if index == 0 { ttft / 400.0 } else { 1.0 }) as u32;
            if index == 0 {
                target.breaker.state = self.state;
                target.breaker.open_for_ms =
                    if self.state == "open" { ((self.open_until - t).max(0.0) * 1_000.0) as u64 } else { 0 };
                target.breaker.probes_out = u32::from(self.state == "half-open");
                target.breaker.ramping = self.state == "closed" && t > 48.0;
                target.breaker.calls = 82;
                target.breaker.slow = if t > 12.0 { 20 + t as u32 } else { 0 };
                target.failovers += calls - to_primary;
                target.rejections = vec![("open", target.failovers)];
            }
        }
    }
}
