//! What contradicts what, said once more and as plainly as possible.

use serde_json::Value;
use sluice_core::defaults as d;
use sluice_core::policy::{Concurrency, Window};
use sluice_core::units::{millis, parse_duration};
use sluice_policy::compile::Groups;

use crate::fields::written;

/// One number that must be at most another; the last: how much less at least.
pub const ORDERED: [(&str, &str, u64); 18] = [
    ("deadlines.firstToken", "deadlines.total", 0),
    ("deadlines.stall", "deadlines.total", 0),
    ("deadlines.stall", "deadlines.maxSilence", 0),
    ("breaker.cooldown.base", "breaker.cooldown.max", 0),
    ("breaker.minimumCalls", "breaker.window.count.calls", 0),
    ("breaker.classify[0].statuses.first", "breaker.classify[0].statuses.last", 0),
    ("quota.pushback.defaultPause", "quota.pushback.maxPause", 0),
    ("concurrency.aimd.min", "concurrency.aimd.initial", 0),
    ("concurrency.aimd.initial", "concurrency.aimd.max", 0),
    ("concurrency.aimd.min", "concurrency.aimd.max", 0),
    ("concurrency.gradient.min", "concurrency.gradient.initial", 0),
    ("concurrency.gradient.initial", "concurrency.gradient.max", 0),
    ("concurrency.gradient.min", "concurrency.gradient.max", 0),
    ("concurrency.vegas.min", "concurrency.vegas.initial", 0),
    ("concurrency.vegas.initial", "concurrency.vegas.max", 0),
    ("concurrency.vegas.min", "concurrency.vegas.max", 0),
    ("concurrency.vegas.alpha", "concurrency.vegas.beta", 1),
    ("retries.backoff.base", "retries.backoff.max", 0),
];

const LANES: [&str; 3] = ["Interactive", "Agent", "Background"];

fn share(lane: &str) -> String {
    format!("queue.lanes[{lane}].sharePercent")
}

/// A number that is written; durations in milliseconds.
fn number(spec: &Value, path: &str) -> Option<u64> {
    let value = written(spec, path)?;
    value.as_u64().or_else(|| Some(millis(parse_duration(value.as_str()?).ok()?)))
}

/// The fields of every contradiction between written values.
pub fn contradictions(spec: &Value) -> Vec<Vec<String>> {
    let both = |small: &str, large: &str| Some((number(spec, small)?, number(spec, large)?));
    let mut found: Vec<Vec<String>> = ORDERED
        .iter()
        .filter(|(small, large, gap)| both(small, large).is_some_and(|(small, large)| small + gap > large))
        .map(|(small, large, _)| vec![(*small).to_owned(), (*large).to_owned()])
        .collect();
    let mut add = |contradicts: bool, fields: &[&str]| {
        if contradicts {
            found.push(fields.iter().map(|field| (*field).to_owned()).collect());
        }
    };
    let (span, buckets) = ("breaker.window.time.span", "breaker.window.time.buckets");
    let uneven =
        both(span, buckets).is_some_and(|(span, buckets)| span % buckets != 0 || span / buckets < 10);
    add(uneven, &[span, buckets]);
    // The type is written too, and no window of type Count holds more.
    let counts = written(spec, "breaker.window.count").is_some();
    let never = counts && number(spec, "breaker.minimumCalls").is_some_and(|calls| calls > 1_000);
    add(never, &["breaker.minimumCalls", "breaker.window.type"]);
    let (tokens, burst) = ("quota.tokensPerMinute", "quota.burstTokens");
    let small =
        both(tokens, burst).is_some_and(|(tokens, burst)| tokens > 0 && (burst == 0 || burst < tokens / 60));
    add(small, &[burst, tokens]);
    let sum = |paths: &[String]| paths.iter().filter_map(|path| number(spec, path)).sum::<u64>();
    add(sum(&LANES.map(share)) > 100, &["queue.lanes"]);
    let reserved = ["a", "b"].map(|tenant| format!("quota.tenants[{tenant}].reservedPercent"));
    add(sum(&reserved) > 100, &["quota.tenants"]);
    found
}

/// What rules, in the same numbers; `None`: not compiled into the rules.
fn ruling(groups: &Groups, path: &str) -> Option<u64> {
    let (deadlines, breaker) = (groups.deadlines.as_ref(), groups.breaker.as_ref());
    let (quota, retries) = (groups.quota.as_ref(), groups.retries.as_ref());
    Some(match path {
        "deadlines.firstToken" => millis(deadlines?.first_token),
        "deadlines.total" => millis(deadlines?.total),
        "deadlines.stall" => millis(deadlines?.stall),
        "deadlines.maxSilence" => millis(deadlines?.max_silence),
        "breaker.cooldown.base" => millis(breaker?.cooldown.base),
        "breaker.cooldown.max" => millis(breaker?.cooldown.max),
        "breaker.minimumCalls" => breaker?.minimum_calls.into(),
        "breaker.window.count.calls" => match breaker?.window {
            Window::Count { calls } => calls.into(),
            Window::Time { .. } => return None,
        },
        "quota.pushback.defaultPause" => millis(quota?.pushback.default_pause),
        "quota.pushback.maxPause" => millis(quota?.pushback.max_pause),
        "retries.backoff.base" => millis(retries?.backoff_base),
        "retries.backoff.max" => millis(retries?.backoff_max),
        path => limit(groups.concurrency.as_ref()?, path)?,
    })
}

fn limit(concurrency: &Concurrency, path: &str) -> Option<u64> {
    let field = path.strip_prefix("concurrency.")?.rsplit('.').next()?;
    Some(u64::from(match (concurrency, field) {
        (Concurrency::Aimd(aimd), "initial") => aimd.initial,
        (Concurrency::Aimd(aimd), "min") => aimd.min,
        (Concurrency::Aimd(aimd), "max") => aimd.max,
        // What the limiters that are not carried out begin with.
        (Concurrency::Fixed { limit }, "initial") => *limit,
        _ => return None,
    }))
}

fn default(path: &str) -> u64 {
    match path {
        "deadlines.firstToken" => millis(d::deadlines::FIRST_TOKEN),
        "deadlines.total" => millis(d::deadlines::TOTAL),
        "deadlines.stall" => millis(d::deadlines::STALL),
        "deadlines.maxSilence" => millis(d::deadlines::MAX_SILENCE),
        "breaker.cooldown.base" => millis(d::breaker::COOLDOWN),
        "breaker.cooldown.max" => millis(d::breaker::COOLDOWN_MAX),
        "breaker.minimumCalls" => d::breaker::MINIMUM_CALLS.into(),
        "breaker.window.count.calls" => d::breaker::WINDOW_CALLS.into(),
        "quota.pushback.defaultPause" => millis(d::quota::PAUSE),
        "quota.pushback.maxPause" => millis(d::quota::PAUSE_MAX),
        "retries.backoff.base" => millis(d::retries::BACKOFF_BASE),
        "retries.backoff.max" => millis(d::retries::BACKOFF_MAX),
        path => match path.rsplit('.').next() {
            Some("initial") => d::concurrency::INITIAL.into(),
            Some("min") => d::concurrency::MIN.into(),
            Some("max") => d::concurrency::MAX.into(),
            other => panic!("{path}: what is the default of {other:?}?"),
        },
    }
}

/// Checks the compiled rules of a policy without contradictions: they have none either, what is written rules, and
/// what is not is its default or the nearest to it that fits what is written.
pub fn hold(spec: &Value, groups: &Groups) {
    // Of a union only the written member rules.
    let rules = |path: &str| {
        let (object, _) = path.rsplit_once('.')?;
        let rules = !object.starts_with("concurrency") || written(spec, object).is_some();
        ruling(groups, path).filter(|_| rules)
    };
    for (small, large, gap) in ORDERED {
        if let (Some(small_rules), Some(large_rules)) = (rules(small), rules(large)) {
            assert!(small_rules + gap <= large_rules, "{small} {small_rules}, {large} {large_rules}: {spec}");
        }
        for path in [small, large] {
            if let Some(found) = rules(path) {
                assert_eq!(found, expected(spec, path), "{path}: {spec}");
            }
        }
    }
    window(spec, groups);
    lanes(spec, groups);
}

fn expected(spec: &Value, path: &str) -> u64 {
    let above = ORDERED.iter().filter(|(small, ..)| *small == path);
    let most = above.filter_map(|(_, large, gap)| Some(number(spec, large)? - gap)).min();
    let below = ORDERED.iter().filter(|(_, large, _)| *large == path);
    let least = below.filter_map(|(small, _, gap)| Some(number(spec, small)? + gap)).max();
    let nearest = || default(path).min(most.unwrap_or(u64::MAX)).max(least.unwrap_or(0));
    number(spec, path).unwrap_or_else(nearest)
}

fn window(spec: &Value, groups: &Groups) {
    let Some(Window::Time { span, buckets }) = groups.breaker.as_ref().map(|breaker| &breaker.window) else {
        return;
    };
    let (span, buckets) = (millis(*span), u64::from(*buckets));
    let fits = |buckets: u64| span.is_multiple_of(buckets) && span / buckets >= 10;
    assert!(fits(buckets) && (1..=16).contains(&buckets), "{span}/{buckets}: {spec}");
    let fields = ["breaker.window.time.span", "breaker.window.time.buckets"];
    let [written_span, written_buckets] = fields.map(|path| number(spec, path));
    assert_eq!(span, written_span.unwrap_or(span), "{spec}");
    assert_eq!(buckets, written_buckets.unwrap_or(buckets), "{spec}");
    let default = millis(d::breaker::WINDOW);
    assert!(written_span.is_some() || span.abs_diff(default) * 2 <= buckets, "{span}/{buckets}: {spec}");
    let nearer = |other: u64| other.abs_diff(10) < buckets.abs_diff(10) && fits(other);
    assert!(written_buckets.is_some() || !(1..=16).any(nearer), "{span}/{buckets}: {spec}");
}

fn lanes(spec: &Value, groups: &Groups) {
    let Some(queue) = &groups.queue else { return };
    let shares: Vec<u64> = queue.lanes.iter().map(|lane| lane.share_percent.into()).collect();
    assert!(shares.len() == 3 && shares.iter().sum::<u64>() <= 100, "{shares:?}: {spec}");
    let built_in = [d::queue::INTERACTIVE_PERCENT, d::queue::AGENT_PERCENT, d::queue::BACKGROUND_PERCENT];
    let built_in = built_in.map(u64::from);
    let written = LANES.map(|lane| number(spec, &share(lane)));
    let as_built_in: u64 = written.iter().zip(built_in).map(|(written, own)| written.unwrap_or(own)).sum();
    for ((share, written), built_in) in shares.into_iter().zip(written).zip(built_in) {
        match written {
            Some(written) => assert_eq!(share, written, "{spec}"),
            None if as_built_in <= 100 => assert_eq!(share, built_in, "{spec}"),
            None => assert!(share <= built_in, "{share}: {spec}"),
        }
    }
}
