//! What the view is shown: samples of all agents, their transitions, and notes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sluice_agent::Agent;
use sluice_agent::state::AgentState;
use sluice_core::policy::{ModelPattern, RoutePolicy, WireFormat};
use sluice_state::HomeKind;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc::Sender;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::view::load::Load;
use crate::view::{Input, Intro, Level, Phases, SAMPLE_EVERY, Sample, TransitionLine};

/// A scenario being played, and since when.
#[derive(Clone)]
pub(super) struct Playing {
    pub(super) phases: Phases,
    pub(super) since: Instant,
}

#[derive(Clone)]
pub(super) struct Feed {
    inputs: Sender<Input>,
    started: Instant,
}

impl Feed {
    pub(super) fn new(inputs: Sender<Input>) -> Self {
        Self { inputs, started: clock::now() }
    }

    fn at(&self) -> Duration {
        clock::now().saturating_duration_since(self.started)
    }

    /// Never waits: what a full view does not take, the next sample shows.
    fn send(&self, input: Input) {
        let _ = self.inputs.try_send(input);
    }

    pub(super) fn note(&self, level: Level, subject: &'static str, text: String) {
        match level {
            Level::Info => tracing::info!(subject, "{text}"),
            Level::Warning => tracing::warn!(subject, "{text}"),
        }
        self.send(Input::Note { at: self.at(), level, subject, text });
    }

    async fn tell_transitions(self, agent: Agent, name: String) {
        let mut transitions = agent.transitions();
        loop {
            match transitions.recv().await {
                Ok(event) if event.made_here => self.send(Input::Transition(TransitionLine {
                    at: self.at(),
                    agent: name.clone(),
                    target: event.target.to_string(),
                    from: event.transition.from,
                    to: event.transition.to,
                    reason: event.transition.reason,
                    counts: event.transition.counts,
                    alone: event.home == HomeKind::Local,
                })),
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    }
}

/// What samples are made of.
pub(super) struct Sampler {
    feed: Feed,
    agents: Vec<Agent>,
    playing: Option<Playing>,
    load: Option<Load>,
    /// What providers said against targets' credentials when it was last looked at.
    credentials: Mutex<BTreeMap<String, &'static str>>,
}

impl Sampler {
    pub(super) fn new(feed: Feed, agents: Vec<Agent>, playing: Option<Playing>, load: Option<Load>) -> Self {
        Self { feed, agents, playing, load, credentials: Mutex::default() }
    }

    /// Notes each credential that a provider began to refuse, or takes again.
    fn tell_credentials(&self, agents: &[AgentState]) {
        let routes = agents.iter().flat_map(|agent| &agent.routes);
        let targets = routes.flat_map(|route| route.targets.iter().map(move |target| (route, target)));
        let now: BTreeMap<String, &'static str> = targets
            .filter_map(|(route, target)| {
                Some((format!("{}/{}", route.name, target.name), target.credential?))
            })
            .collect();
        let mut before = self.credentials.lock().unwrap_or_else(PoisonError::into_inner);
        for (target, fault) in now.iter().filter(|(target, fault)| before.get(*target) != Some(fault)) {
            let what = match *fault {
                "spend-cap" => "the provider says that the account's money or quota is used up",
                _ => "the provider refuses the target's credential",
            };
            self.feed.note(Level::Warning, "credential", format!("{target}: {what}"));
        }
        for target in before.keys().filter(|target| !now.contains_key(*target)) {
            self.feed.note(Level::Info, "credential", format!("{target}: no longer refused"));
        }
        *before = now;
    }

    /// Shows the agents until `stop`.
    pub(super) fn start(self: &Arc<Self>, stop: &CancellationToken) {
        for (number, agent) in self.agents.iter().enumerate() {
            let told = self.feed.clone().tell_transitions(agent.clone(), format!("agent-{}", number + 1));
            tokio::spawn(stop.clone().run_until_cancelled_owned(told));
        }
        let sampler = self.clone();
        let samples = async move {
            let mut ticks = tokio::time::interval(SAMPLE_EVERY);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
            loop {
                ticks.tick().await;
                sampler.sample().await;
            }
        };
        tokio::spawn(stop.clone().run_until_cancelled_owned(samples));
    }

    /// Shows how everything stands now.
    pub(super) async fn sample(&self) {
        let mut agents = Vec::with_capacity(self.agents.len());
        for agent in &self.agents {
            agents.push(agent.state().await);
        }
        self.tell_credentials(&agents);
        let provider = self
            .playing
            .as_ref()
            .map(|playing| playing.phases.at(clock::now().saturating_duration_since(playing.since)));
        let load = self.load.as_ref().map(Load::counts);
        self.feed.send(Input::Sample(Box::new(Sample { at: self.feed.at(), agents, provider, load })));
    }
}

/// What a person is told to call: the first agent, and a model of the first OpenAI route, or else of the first
/// Anthropic one; an empty one where there is no route.
pub(super) fn intro(listen: SocketAddr, routes: &[Arc<RoutePolicy>]) -> Intro {
    let first = |format: WireFormat| {
        let of_format = routes.iter().filter(|route| route.format == format);
        let pattern = of_format.flat_map(|route| &route.models).next()?;
        let model = match pattern {
            ModelPattern::Exact(name) => name.to_string(),
            ModelPattern::Prefix(prefix) => format!("{prefix}any"),
        };
        Some((format, model))
    };
    let (format, model) = first(WireFormat::OpenAi)
        .or_else(|| first(WireFormat::Anthropic))
        .unwrap_or((WireFormat::OpenAi, String::new()));
    Intro { base_url: format!("http://{listen}/v1"), format, model }
}
