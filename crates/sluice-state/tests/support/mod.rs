//! What the tests of this crate share: a target, a stepped clock, and asks.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

pub mod redis;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluice_core::admission::{AdmitAsk, Draw, Nonce, SettleAsk, Settlement};
use sluice_core::outcome::Verdict;
use sluice_core::policy::{Credential, Group, Provider, Quota, Rules, TargetPolicy};
use sluice_core::target_id::TargetId;
use sluice_state::{AgentTag, EmbeddedHome};

/// 2026-01-01, in milliseconds since 1970.
pub const START_MS: u64 = 1_767_225_600_000;

/// A wall clock that only the test moves.
#[derive(Clone)]
pub struct SteppedClock(Arc<AtomicU64>);

impl SteppedClock {
    pub fn new() -> Self {
        Self(Arc::new(AtomicU64::new(START_MS)))
    }

    pub fn now_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_millis()).unwrap(), Ordering::Relaxed);
    }

    pub fn set_ms(&self, at: u64) {
        self.0.store(at, Ordering::Relaxed);
    }

    pub fn home(&self) -> EmbeddedHome {
        let clock = self.clone();
        EmbeddedHome::with_clock(Arc::new(move || clock.now_ms())).unwrap()
    }
}

pub fn agent() -> AgentTag {
    AgentTag::new("test", 1)
}

pub fn target(name: &str, rules: Rules) -> TargetPolicy {
    TargetPolicy {
        name: name.into(),
        id: TargetId::of("test", name, "https://api.example/v1", "gpt"),
        provider: Provider::OpenAi,
        endpoint: "https://api.example/v1".into(),
        model: None,
        region: "".into(),
        credential: Credential::None,
        priority: 0,
        weight: 1,
        price: None,
        rules,
    }
}

pub fn quota(tokens_per_minute: Option<u64>, requests_per_minute: Option<u64>) -> Quota {
    Quota {
        tokens_per_minute,
        burst_tokens: tokens_per_minute.unwrap_or(0),
        requests_per_minute,
        default_max_output_tokens: 1_024,
        tenants: Vec::new(),
        pushback: sluice_core::policy::Pushback::default(),
    }
}

pub fn with_quota(mut rules: Rules, quota: Quota) -> Rules {
    rules.quota = Some(Group { rules: quota, ..group_of_defaults() });
    rules
}

fn group_of_defaults() -> Group<Quota> {
    Group { rules: quota(None, None), mode: sluice_core::policy::Mode::Enforce, source: None }
}

/// Draws nonces and jitter from a counter.
pub struct Asks(u128);

impl Asks {
    pub fn new() -> Self {
        Self(0)
    }

    pub fn nonce(&mut self) -> Nonce {
        self.0 += 1;
        Nonce(self.0)
    }

    pub fn admit(&mut self, tokens: u64) -> AdmitAsk {
        admit_ask(self.nonce(), tokens)
    }
}

pub fn admit_ask(nonce: Nonce, tokens: u64) -> AdmitAsk {
    AdmitAsk {
        nonce,
        tokens,
        tenant: None,
        lease: Duration::from_secs(20),
        record_ttl: Duration::from_mins(6),
        draw: Draw::new(1 << 30),
        traceparent: None,
    }
}

pub fn settle_ask(nonce: Nonce, epoch: u64, verdict: Option<Verdict>, used: Option<u64>) -> SettleAsk {
    SettleAsk {
        nonce,
        epoch,
        verdict,
        tokens: used.map_or(Settlement::Later, Settlement::Used),
        tenant: None,
        pause: None,
        draw: Draw::new(1 << 30),
        traceparent: None,
    }
}
