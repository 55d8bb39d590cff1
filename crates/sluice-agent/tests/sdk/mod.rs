//! The world of the SDKs' scripts (`e2e/sdk`): an agent before scripted providers. A model's name says what
//! happens to it: `play-…` is what the provider does, any other name is a route with rules of its own.
//!
//! Both SDKs meet the same world, each in its wire format. They run as an application does in its pod: a base URL
//! and a placeholder key in the environment, and nothing else.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use sluice_agent::state::AgentState;
use sluice_core::policy::*;
use sluice_core::target_id::TargetId;
use sluice_proto::apply::{PolicySet, Secret};
use sluice_provider::{Provider, Stats};
use sluice_testkit::Sdk;

use crate::harness::{PATIENCE, World, policy_set, provider, route, target};

/// Longer than a script takes to reach its last case.
const SCRIPT_PATIENCE: Duration = Duration::from_mins(2);
/// What providers accept from the agent, and never see of the application.
pub(crate) const TARGETS_KEY: &str = "sk-of-the-target";
/// What an application has in its pod.
const PLACEHOLDER: &str = "placeholder";
/// What an application has whose route passes its credential through.
const CALLERS_KEY: &str = "sk-of-the-caller";
/// More than any prompt of the scripts but the one that is meant to be too large.
const BODY_BYTES: u64 = 4 * 1024 * 1024;

/// Answers, in every shape that an application asks for.
const ANSWERS: &str = r#"
recordBodies: true
apiKeys: [sk-of-the-target]
models: [gpt-4o, claude-x]
default: {content: "water finds its own level", inputTokens: 11}
rules:
- {match: {model: play-tool}, behaviour: {toolCall: {}}}
- {match: {model: play-city}, behaviour: {content: '{"name": "Köln", "rivers": ["Rhein"]}'}}
- {match: {model: play-reasoning}, behaviour: {reasoningTokens: 3}}
- {match: {model: play-thinking}, behaviour: {reasoningTokens: 3}}
- {match: {model: play-unicode}, behaviour: {inherit: false, text: utf8, tokens: 64}}
- {match: {model: play-crlf}, behaviour: {framing: {lineEnd: crlf, comments: true, bytePerWrite: true}}}
- match: {model: play-choices, stream: false}
  behaviour:
    body: |
      {"id":"c","object":"chat.completion","created":1,"model":"m","choices":[
        {"index":0,"message":{"role":"assistant","content":"one"},"finish_reason":"stop"},
        {"index":1,"message":{"role":"assistant","content":"two"},"finish_reason":"stop"}],
       "usage":{"prompt_tokens":11,"completion_tokens":2,"total_tokens":13}}
- match: {model: play-choices, stream: true}
  behaviour:
    body: |
      data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":1,"delta":{"role":"assistant","content":"t"},"finish_reason":null}]}

      data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"one"},"finish_reason":null}]}

      data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":1,"delta":{"content":"wo"},"finish_reason":"stop"}]}

      data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

      data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":11,"completion_tokens":2,"total_tokens":13}}

      data: [DONE]

"#;

/// Errors and faults.
const FAULTS: &str = r#"
default: {content: "water finds its own level"}
rules:
- {match: {model: brisk}, behaviour: {inherit: false, inputTokens: 90}}
- {match: {model: spent}, behaviour: {inherit: false, inputTokens: 90}}
- {match: {model: broken}, behaviour: {error: server}}
- {match: {model: flaky}, behaviour: {error: server}}
- {match: {model: push}, behaviour: {error: rateLimit, retryAfter: 90}}
- {match: {model: hurried}, behaviour: {connection: hang}}
- {match: {model: stalling}, behaviour: {stall: {after: 3}}}
- {match: {model: moved}, behaviour: {error: unavailable}}
- {match: {model: moved-stream-error}, behaviour: {streamError: {after: 0}}}
- {match: {model: play-context}, behaviour: {error: contextLength}}
- {match: {model: play-permission}, behaviour: {error: permission}}
- {match: {model: play-missing}, behaviour: {error: notFound}}
- {match: {model: play-unprocessable}, behaviour: {error: unprocessable}}
- {match: {model: play-large}, behaviour: {error: tooLarge}}
- {match: {model: play-spend-cap}, behaviour: {error: spendCap}}
- {match: {model: play-down}, behaviour: {error: unavailable, retryAfterMs: 1}}
- {match: {model: play-overloaded}, behaviour: {error: overloaded, retryAfterMs: 1}}
- {match: {model: play-hang}, behaviour: {connection: hang}}
- {match: {model: play-cut-at-once}, behaviour: {cut: {after: 0}}}
- {match: {model: play-cut-close}, behaviour: {cut: {after: 3}}}
- {match: {model: play-cut-reset}, behaviour: {cut: {after: 3, how: reset}}}
- {match: {model: play-cut-mid-event}, behaviour: {cut: {after: 3, how: midEvent}}}
- {match: {model: play-cut-eof}, behaviour: {cut: {after: 3, how: eof}}}
- {match: {model: play-stream-error}, behaviour: {streamError: {after: 3}}}
- {match: {model: play-closed}, behaviour: {stall: {after: 3}}}
- {match: {model: play-endless}, behaviour: {stall: {after: 3}}}
"#;

/// The agent, and what is behind it.
pub(crate) struct SdkWorld {
    pub(crate) world: World,
    pub(crate) primary: Provider,
    fallback: Provider,
    format: WireFormat,
}

impl SdkWorld {
    /// Everything works; paths that Sluice does not know pass through.
    pub(crate) async fn of_answers(format: WireFormat, models: &[&str]) -> Self {
        let (primary, fallback) = (provider(ANSWERS).await, provider("").await);
        let mut names: Vec<ModelPattern> = models.iter().map(|name| ModelPattern::parse(name)).collect();
        names.push(ModelPattern::parse("play-*"));
        let targets = vec![secured(target("primary", &primary, 0))];
        let mut route = named(format, "chat", targets);
        route.models = names;
        route.other_paths = OtherPaths::PassThrough;
        Self::start(format, vec![route], primary, fallback).await
    }

    /// Everything goes wrong, each in a route or at a model of its own.
    pub(crate) async fn of_faults(format: WireFormat, model: &str) -> Self {
        let primary = provider(FAULTS).await;
        let fallback = provider(&format!("apiKeys: [{TARGETS_KEY}, {CALLERS_KEY}]")).await;
        let of = |name: &str, change: fn(&mut Rules)| {
            let mut target = secured(target("primary", &primary, 0));
            // One attempt, so that what the SDK sees is what one fault makes.
            target.rules.retries.rules.max_attempts = 1;
            change(&mut target.rules);
            named(format, name, vec![target])
        };
        let mut play = of("play", |rules| {
            // The faults are many; they must not open the breaker before the others.
            rules.breaker.rules.minimum_calls = 1_000;
            rules.retries.rules.max_attempts = 3;
        });
        play.models = vec![ModelPattern::parse(model), ModelPattern::parse("play-*")];
        let mut moved = named(
            format,
            "moved",
            vec![secured(target("primary", &primary, 0)), secured(target("fallback", &fallback, 1))],
        );
        moved.models = vec![ModelPattern::parse("moved*")];
        let theirs = TargetPolicy { credential: Credential::Passthrough, ..target("strict", &fallback, 0) };
        let mut stale = secured(target("strict", &fallback, 0));
        stale.credential = secret("stale");
        let routes = vec![
            play,
            of("brisk", |rules| rules.quota = Some(quota(120_000))),
            of("spent", |rules| rules.quota = Some(quota(60))),
            of("broken", |rules| opens_at_once(rules, Duration::from_mins(2))),
            of("flaky", |rules| opens_at_once(rules, Duration::from_secs(30))),
            of("push", |_| {}),
            of("hurried", |rules| {
                rules.deadlines.rules.total = Duration::from_millis(400);
                rules.deadlines.rules.first_token = Duration::from_millis(200);
            }),
            of("stalling", |rules| rules.deadlines.rules.stall = Duration::from_millis(200)),
            moved,
            named(format, "theirs", vec![theirs]),
            named(format, "stale", vec![stale]),
        ];
        Self::start(format, routes, primary, fallback).await
    }

    async fn start(
        format: WireFormat,
        mut routes: Vec<RoutePolicy>,
        primary: Provider,
        fallback: Provider,
    ) -> Self {
        for target in routes.iter_mut().flat_map(|route| &mut route.targets) {
            target.rules.streaming.rules.body_bytes = BODY_BYTES;
        }
        let world = World::new(vec![]).await;
        let keys = [("key", TARGETS_KEY), ("stale", "sk-of-last-year")];
        let secrets = keys.map(|(key, value)| (secret_key(key), a_secret(value))).into();
        world.agent.use_policies(&PolicySet { secrets: Arc::new(secrets), ..policy_set(routes) });
        Self { world, primary, fallback, format }
    }

    /// Runs a script, and drains the agent when its last case has a stream that never ends.
    pub(crate) async fn play(self, script: &str) -> Played {
        let Self { world, primary, fallback, .. } = &self;
        let (base, agent) = (world.base.clone(), world.agent.clone());
        let (primary, fallback) = (primary.clone(), fallback.clone());
        let drain = async {
            let endless = |stats: &Stats| stats.model("play-endless").stalled == 1;
            primary.wait_for(endless, SCRIPT_PATIENCE).await.unwrap();
            self.world.drain().await;
        };
        tokio::join!(run(self.format, &base, script), drain);
        for provider in [&primary, &fallback] {
            provider.wait_for(|stats| stats.total.in_flight == 0, PATIENCE).await.unwrap();
        }
        Played { state: agent.state().await, primary, fallback }
    }

    /// Runs a script to its end.
    pub(crate) async fn run(&self, script: &str) {
        run(self.format, &self.world.base, script).await;
    }
}

/// What is left when a script has run and the agent has drained.
pub(crate) struct Played {
    pub(crate) primary: Provider,
    pub(crate) fallback: Provider,
    state: AgentState,
}

impl Played {
    /// Calls of a model that reached the primary.
    pub(crate) fn calls(&self, model: &str) -> u64 {
        self.primary.stats().model(model).started
    }

    /// Whatever happened to them, all exchanges gave back what they had.
    pub(crate) fn assert_nothing_outstanding(&self) {
        let state = &self.state;
        assert_eq!((state.exchanges.in_flight, state.exchanges.unsettled), (0, 0), "{state:#?}");
        assert_eq!(state.store.settles_waiting, 0, "{state:#?}");
        let targets = || state.routes.iter().flat_map(|route| &route.targets);
        assert!(targets().count() > 0 && targets().all(|target| target.in_flight == 0), "{state:#?}");
    }
}

/// All cases of a script, in an environment like that of an application's pod.
async fn run(format: WireFormat, base: &str, script: &str) {
    let openai = format!("{base}/v1");
    let env = match format {
        WireFormat::OpenAi => [("OPENAI_BASE_URL", openai.as_str()), ("OPENAI_API_KEY", PLACEHOLDER)],
        WireFormat::Anthropic => [("ANTHROPIC_BASE_URL", base), ("ANTHROPIC_API_KEY", PLACEHOLDER)],
    };
    let printed = Sdk::find().unwrap().run(script, &[], &env).await;
    let printed = printed.unwrap_or_else(|error| panic!("{error:#}"));
    assert!(printed.lines().any(|line| line.starts_with("ok ")), "{printed}");
}

/// A route for the model of its own name, whose targets share nothing with those of other routes.
fn named(format: WireFormat, name: &str, mut targets: Vec<TargetPolicy>) -> RoutePolicy {
    for target in &mut targets {
        target.id = TargetId::of("default", &format!("{name}/{}", target.name), &target.endpoint, "");
        if format == WireFormat::Anthropic {
            target.provider = sluice_core::policy::Provider::Anthropic;
        }
    }
    let mut route = route(format, targets);
    route.name = name.into();
    route.models = vec![ModelPattern::parse(name)];
    route
}

fn secured(target: TargetPolicy) -> TargetPolicy {
    TargetPolicy { credential: secret("key"), ..target }
}

fn secret(key: &str) -> Credential {
    Credential::Secret(secret_key(key))
}

fn secret_key(key: &str) -> SecretKey {
    SecretKey { name: "provider".into(), key: key.into() }
}

fn a_secret(value: &str) -> Secret {
    Secret {
        uid: "u".into(),
        resource_version: "1".into(),
        value: SecretValue::new(value.as_bytes().to_vec()),
    }
}

/// Two requests with a maximum of 900 tokens don't fit together.
fn quota(tokens_per_minute: u64) -> Group<Quota> {
    let rules = Quota {
        tokens_per_minute: Some(tokens_per_minute),
        burst_tokens: 1_000,
        requests_per_minute: None,
        default_max_output_tokens: 1_024,
        tenants: vec![],
        pushback: Pushback::default(),
    };
    Group { rules, mode: Mode::Enforce, source: None }
}

fn opens_at_once(rules: &mut Rules, cooldown: Duration) {
    rules.breaker.rules.consecutive_failures = 1;
    rules.breaker.rules.cooldown =
        Cooldown { base: cooldown, jitter_percent: 0, growth_percent: 100, max: cooldown };
}
