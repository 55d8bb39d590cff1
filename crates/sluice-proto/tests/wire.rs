//! Encoding and decoding are each other's inverse, and nothing that comes over the wire makes decoding panic.
#![allow(clippy::unwrap_used, clippy::panic, clippy::wildcard_imports, unreachable_pub)]

mod strategies;

use proptest::prelude::*;
use prost::Message as _;
use sluice_core::policy::RoutePolicy;
use sluice_proto::decode::{InvalidField, InvalidRoute, InvalidTarget};
use sluice_proto::report::{Ack, Hello, Report};
use sluice_proto::{decode, encode, v1};

fn sample() -> v1::RoutePolicy {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    encode::route(&strategies::route().new_tree(&mut runner).unwrap().current())
}

fn through_bytes(route: &RoutePolicy) -> v1::RoutePolicy {
    v1::RoutePolicy::decode(encode::route(route).encode_to_vec().as_slice()).unwrap()
}

proptest! {
    #[test]
    fn every_policy_survives_the_wire(route in strategies::route()) {
        let decoded = decode::route(through_bytes(&route));
        prop_assert_eq!(decoded, Ok(route));
    }

    #[test]
    fn equal_policies_have_equal_bytes(route in strategies::route()) {
        prop_assert_eq!(encode::route(&route).encode_to_vec(), encode::route(&route.clone()).encode_to_vec());
    }

    #[test]
    fn bytes_of_any_kind_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        if let Ok(route) = v1::RoutePolicy::decode(bytes.as_slice()) {
            let _ = decode::route(route);
        }
        if let Ok(message) = v1::AgentMessage::decode(bytes.as_slice()) {
            read_agent_message(message);
        }
    }

    /// Random bytes rarely parse; flipping bytes of a real message reaches the checks behind the parser.
    #[test]
    fn damaged_policies_never_panic_and_stay_in_bounds(
        route in strategies::route(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = encode::route(&route).encode_to_vec();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(Ok(read)) = v1::RoutePolicy::decode(bytes.as_slice()).map(decode::route) {
            // Whatever got through is within bounds, so it gets through again.
            prop_assert_eq!(decode::route(through_bytes(&read)), Ok(read));
        }
    }
}

fn read_agent_message(message: v1::AgentMessage) {
    use v1::agent_message::Message;
    match message.message {
        Some(Message::Hello(hello)) => drop(Hello::decode(hello)),
        Some(Message::Ack(ack)) => drop(Ack::decode(ack)),
        Some(Message::Report(report)) => drop(Report::decode(report)),
        None => {}
    }
}

/// What is wrong, as the author of the resource reads it.
fn refusal(break_it: impl FnOnce(&mut v1::RoutePolicy)) -> (InvalidRoute, String) {
    let mut route = sample();
    break_it(&mut route);
    let error = decode::route(route).unwrap_err();
    let text = error.to_string();
    (error, text)
}

fn rules(route: &mut v1::RoutePolicy) -> &mut v1::Rules {
    route.targets[0].rules.as_mut().unwrap()
}

fn breaker(route: &mut v1::RoutePolicy) -> &mut v1::BreakerGroup {
    rules(route).breaker.as_mut().unwrap()
}

#[test]
fn each_refusal_names_field_value_and_bound() {
    type Break = fn(&mut v1::RoutePolicy);
    let cases: &[(Break, &[&str])] = &[
        (|r| r.name = String::new(), &["name is missing"]),
        (|r| r.format = 9, &["format", "9", "does not know"]),
        (|r| r.format = 0, &["format is missing"]),
        (|r| r.models = vec![], &["models has 0 entries", "1 to 64"]),
        (|r| r.models = vec!["a".into(), "a".into()], &["models has \"a\" twice"]),
        (|r| r.created_ms = 1 << 53, &["createdMs is 9007199254740992"]),
        (|r| r.targets = vec![r.targets[0].clone(); 17], &["targets has 17 entries", "1 to 16"]),
        (|r| r.targets = vec![r.targets[0].clone(); 2], &["targets.name", "twice"]),
        (|r| r.targets[0].id = "{evil}".into(), &["target", "id is \"{evil}\""]),
        (|r| r.targets[0].endpoint = "ftp://x".into(), &["endpoint is \"ftp://x\"", "http"]),
        (|r| r.targets[0].endpoint = "https://x/".into(), &["without a slash at the end"]),
        (|r| r.targets[0].rules = None, &["rules is missing"]),
        (|r| rules(r).breaker = None, &["breaker is missing"]),
        (|r| rules(r).revision = 1 << 53, &["revision"]),
        (|r| breaker(r).failure_percent = 101, &["breaker: failurePercent is 101: use 0 to 100"]),
        (
            |r| breaker(r).probes.as_mut().unwrap().concurrency = 17,
            &["probes.concurrency is 17: use 1 to 16"],
        ),
        (|r| breaker(r).probes.as_mut().unwrap().concurrency = 0, &["probes.concurrency is 0"]),
        (|r| breaker(r).cooldown.as_mut().unwrap().base = None, &["cooldown.base is missing"]),
        (
            |r| {
                breaker(r).ramp.as_mut().unwrap().duration =
                    Some(prost_types::Duration { seconds: -1, nanos: 0 });
            },
            &["ramp.duration is -1 s"],
        ),
        (
            |r| {
                let span = Some(prost_types::Duration { seconds: 60, nanos: 0 });
                let time = v1::window::Time { span, buckets: 17 };
                breaker(r).window = Some(v1::Window { window: Some(v1::window::Window::Time(time)) });
            },
            &["window.time.buckets is 17: use 1 to 16"],
        ),
        (
            |r| {
                let tenant = |name: usize| v1::TenantShare { name: name.to_string(), ..Default::default() };
                rules(r).quota =
                    Some(v1::QuotaGroup { tenants: (0..17).map(tenant).collect(), ..Default::default() });
            },
            &["quota: tenants has 17 entries", "0 to 16"],
        ),
        (|r| rules(r).queue.as_mut().unwrap().lanes.reverse(), &["queue: lanes", "in this order"]),
        (|r| r.sources.clear(), &["sources has 0 entries"]),
        (|r| r.sources[0].name.push('x'), &["sources begin with ModelRoute"]),
    ];
    for (break_it, parts) in cases {
        let (_, text) = refusal(break_it);
        for part in *parts {
            assert!(text.contains(part), "{text:?} does not say {part:?}");
        }
    }
}

#[test]
fn errors_are_values_to_match_on() {
    let (error, _) = refusal(|r| breaker(r).stall_percent = 400);
    let InvalidRoute::Target { reason: InvalidTarget::Group { group: "breaker", reason }, .. } = error else {
        panic!("{error:?}");
    };
    assert_eq!(reason, InvalidField::OutOfRange { field: "stallPercent", value: 400, min: 0, max: 100 });
}

#[test]
fn long_values_are_cut_in_errors() {
    let (_, text) = refusal(|r| r.targets[0].endpoint = "x".repeat(2_000));
    assert!(text.len() < 300, "{} bytes", text.len());
}

#[test]
fn zeros_stay_zeros() {
    let zero = Some(prost_types::Duration::default());
    let mut route = sample();
    rules(&mut route).quota = Some(v1::QuotaGroup {
        origin: Some(v1::GroupOrigin { mode: v1::Mode::Enforce as i32, source: None }),
        tokens_per_minute: Some(0),
        requests_per_minute: None,
        pushback: Some(v1::Pushback {
            max_pause: zero,
            default_pause: zero,
            shrink_percent: 90,
            floor_percent: 10,
            recovery_percent_per_second: 0,
            recovery_delay: zero,
        }),
        ..Default::default()
    });
    let quota = decode::route(route).unwrap().targets[0].rules.quota.clone().unwrap().rules;
    assert_eq!(quota.tokens_per_minute, Some(0));
    assert_eq!(quota.requests_per_minute, None);
    assert_eq!((quota.burst_tokens, quota.pushback.recovery_percent_per_second), (0, 0));
}
