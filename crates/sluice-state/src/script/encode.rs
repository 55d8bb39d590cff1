//! What is sent with each call: keys, and arguments made of integers alone.
//!
//! The numbers of an ask travel as one argument, and those of the settings as another, separated by spaces. That is fewer bytes and fewer objects in Redis than an argument per number, the script takes one
//! apart with one pattern, and the text of the settings, their revision in front, is their own fingerprint.
//!
//! A target's settings: the revision and ten numbers of the quota (tokens per minute (empty: not limited), burst,
//! requests per minute (empty: not limited), reserved % of all tenants, longest pause ms, default pause ms, shrink %,
//! floor %, recovery %/s, recovery delay ms), a semicolon, and sixteen of the breaker (window kind (0 time, 1 count),
//! span ms or calls, buckets, minimum calls, failure %, slow %, stall %, consecutive failures, cool-down ms,
//! jitter %, growth %, longest cool-down ms, probes at a time, probe successes, ramp ms, ramp's initial %).

use std::fmt::Write as _;

use sha2::{Digest, Sha256};
use sluice_core::admission::{AdmitAsk, Nonce, SettleAsk, Settlement, TargetView};
use sluice_core::outcome::Verdict;
use sluice_core::policy::{Breaker, Group, Mode, Pushback, Quota, TargetPolicy, Window};
use sluice_core::target_id::short_name;
use sluice_core::units::millis;

use crate::agent_tag::AgentTag;

/// Where transitions are published. One channel for all targets: transitions are rare, and a plain PUBLISH
/// reaches every subscriber of a cluster whatever node it listens to, so nothing depends on slots.
pub const CHANNEL: &str = "sluice:1:transitions";

/// The largest number of tokens a script takes: above it, milli-tokens and shares would lose precision.
const MAX_TOKENS: u64 = 1_000_000_000;
/// A hundred days, in milliseconds: no duration of a policy is longer, and sums stay far below 2^53.
const MAX_MS: u64 = 8_640_000_000;

/// One call of a script.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Call {
    pub keys: Vec<String>,
    pub args: Vec<String>,
}

/// The names of a target's keys. All of them have the target's id as their hash tag.
pub struct Keys;

impl Keys {
    /// All that is known of a target but its tenants' shares.
    #[must_use]
    pub fn target(id: &str) -> String {
        Self::named(id, ":target", "")
    }

    /// The reserved share of one tenant.
    #[must_use]
    pub fn tenant(id: &str, tenant: &str) -> String {
        Self::named(id, ":quota:", &short_name(&Sha256::digest(tenant.as_bytes())))
    }

    /// The record of one admission.
    #[must_use]
    pub fn admission(id: &str, nonce: Nonce) -> String {
        let mut key = Self::named(id, ":adm:", "");
        let _ = write!(key, "{nonce}");
        key
    }

    fn named(id: &str, kind: &str, rest: &str) -> String {
        let mut key = String::with_capacity(11 + id.len() + kind.len() + 32);
        for part in ["sluice:1:{", id, "}", kind, rest] {
            key.push_str(part);
        }
        key
    }
}

/// `admit.lua`.
#[must_use]
pub fn encode_admit(agent: &AgentTag, target: &TargetPolicy, ask: &AdmitAsk) -> Call {
    let (tenant_key, share) = tenant(target, ask.tenant.as_deref());
    let mut ask_text = String::with_capacity(64);
    let _ = write!(
        ask_text,
        "{} {} {share} {} {} {}",
        flags(target),
        ask.tokens.min(MAX_TOKENS),
        millis(ask.lease).min(MAX_MS),
        millis(ask.record_ttl).clamp(1_000, MAX_MS),
        agent.as_str(),
    );
    let mut keys = keys(target, ask.nonce);
    keys.extend(tenant_key);
    Call { keys, args: vec![ask_text, settings(target, revision(target))] }
}

/// `settle.lua`.
#[must_use]
pub fn encode_settle(agent: &AgentTag, target: &TargetPolicy, ask: &SettleAsk) -> Call {
    let (tenant_key, share) = tenant(target, ask.tenant.as_deref());
    let mut text = String::with_capacity(64);
    let _ = write!(text, "{} {} ", ask.epoch.min(1 << 52), verdict_code(ask.verdict));
    if let Settlement::Used(tokens) = ask.tokens {
        let _ = write!(text, "{}", tokens.min(MAX_TOKENS));
    }
    text.push(' ');
    if let Some(pause) = ask.pause {
        let _ = write!(text, "{}", millis(pause).min(MAX_MS));
    }
    let _ = write!(text, " {} {share} {}", ask.draw.get(), agent.as_str());
    let opens = ask.verdict.is_some_and(Verdict::may_open);
    let traceparent = ask.traceparent.as_deref().filter(|text| opens && is_traceparent(text));
    let mut keys = keys(target, ask.nonce);
    keys.extend(tenant_key);
    let mut args = Vec::with_capacity(3);
    args.extend([text, settings(target, revision(target))]);
    args.extend(traceparent.map(str::to_owned));
    Call { keys, args }
}

/// `view.lua`.
#[must_use]
pub fn encode_view(target: &TargetPolicy) -> Call {
    // Revision 0: whoever only looks replaces nothing.
    Call { keys: vec![Keys::target(target.id.as_str())], args: vec![settings(target, 0)] }
}

/// `adopt.lua`.
#[must_use]
pub fn encode_adopt(target: &TargetPolicy, seen: &TargetView) -> Call {
    let text =
        format!("{} {} {}", seen.state as u8, seen.epoch.min(1 << 52), millis(seen.open_for).min(MAX_MS));
    Call {
        keys: vec![Keys::target(target.id.as_str())],
        args: vec![
            text,
            settings(target, revision(target)),
            seen.opened_by.as_deref().filter(|text| is_traceparent(text)).unwrap_or("").to_owned(),
        ],
    }
}

fn keys(target: &TargetPolicy, nonce: Nonce) -> Vec<String> {
    let id = target.id.as_str();
    let mut keys = Vec::with_capacity(3);
    keys.extend([Keys::target(id), Keys::admission(id, nonce)]);
    keys
}

/// The key and the percentage of a tenant that has a share of its own.
fn tenant(target: &TargetPolicy, name: Option<&str>) -> (Option<String>, u32) {
    let share = name.and_then(|name| {
        let quota = target.rules.quota.as_ref()?;
        quota.rules.tenants.iter().find(|share| &*share.name == name && share.reserved_percent > 0)
    });
    share.map_or((None, 0), |share| {
        (Some(Keys::tenant(target.id.as_str(), &share.name)), share.reserved_percent.min(100))
    })
}

fn revision(target: &TargetPolicy) -> u64 {
    target.rules.revision.min(1 << 52)
}

fn flags(target: &TargetPolicy) -> u8 {
    let observed = |mode: Mode| u8::from(mode == Mode::Observe);
    observed(target.rules.breaker.mode)
        + 2 * target.rules.quota.as_ref().map_or(0, |group: &Group<Quota>| observed(group.mode))
}

fn verdict_code(verdict: Option<Verdict>) -> u8 {
    verdict.map_or(7, |verdict| verdict as u8)
}

/// See the head of this file.
fn settings(target: &TargetPolicy, revision: u64) -> String {
    let mut text = String::with_capacity(160);
    push_number(&mut text, revision);
    push_quota(&mut text, target);
    text.push(';');
    push_breaker(&mut text, target);
    text
}

fn push_breaker(text: &mut String, target: &TargetPolicy) {
    let b: &Breaker = &target.rules.breaker.rules;
    let (kind, span, buckets) = match b.window {
        Window::Time { span, buckets } => {
            let buckets = buckets.clamp(1, 16);
            (0, millis(span).clamp(u64::from(buckets), MAX_MS), buckets)
        }
        Window::Count { calls } => (1, u64::from(calls.clamp(1, 1_000)), 0),
    };
    for number in [
        kind,
        span,
        u64::from(buckets),
        u64::from(b.minimum_calls),
        u64::from(b.failure_percent),
        u64::from(b.slow.percent),
        u64::from(b.stall_percent),
        u64::from(b.consecutive_failures),
        millis(b.cooldown.base).min(MAX_MS),
        u64::from(b.cooldown.jitter_percent.min(100)),
        u64::from(b.cooldown.growth_percent),
        millis(b.cooldown.max).min(MAX_MS),
        u64::from(b.probes.concurrency.clamp(1, 16)),
        u64::from(b.probes.successes.max(1)),
        millis(b.ramp.duration).min(MAX_MS),
    ] {
        push_number(text, number);
        text.push(' ');
    }
    push_number(text, u64::from(b.ramp.initial_percent.min(100)));
}

/// In decimal. The formatter's way costs several times as much, and every call writes some forty numbers.
fn push_number(text: &mut String, mut number: u64) {
    let mut digits = [b'0'; 20];
    let mut from = digits.len();
    loop {
        from -= 1;
        digits[from] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    text.push_str(str::from_utf8(&digits[from..]).unwrap_or_default());
}

/// A space before each number, of which two may be absent.
fn push_quota(text: &mut String, target: &TargetPolicy) {
    let unlimited = Quota {
        tokens_per_minute: None,
        burst_tokens: 0,
        requests_per_minute: None,
        default_max_output_tokens: 0,
        tenants: Vec::new(),
        pushback: Pushback::default(),
    };
    let quota = target.rules.quota.as_ref().map_or(&unlimited, |group| &group.rules);
    let reserved: u32 = quota.tenants.iter().map(|share| share.reserved_percent).sum();
    let p = &quota.pushback;
    for number in [
        quota.tokens_per_minute.map(|tokens| tokens.min(MAX_TOKENS)),
        Some(quota.burst_tokens.min(MAX_TOKENS)),
        quota.requests_per_minute.map(|requests| requests.min(MAX_TOKENS)),
        Some(u64::from(reserved.min(100))),
        Some(millis(p.max_pause).min(MAX_MS)),
        Some(millis(p.default_pause).min(MAX_MS)),
        Some(u64::from(p.shrink_percent.min(100))),
        Some(u64::from(p.floor_percent.min(100))),
        Some(u64::from(p.recovery_percent_per_second)),
        Some(millis(p.recovery_delay).min(MAX_MS)),
    ] {
        text.push(' ');
        if let Some(number) = number {
            push_number(text, number);
        }
    }
}

/// `00-<32 hex>-<16 hex>-<2 hex>`: nothing else gets into the shared state.
fn is_traceparent(text: &str) -> bool {
    text.len() == 55 && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}
