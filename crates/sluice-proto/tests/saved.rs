//! The file of a restarted agent: it gives back what was written, and takes nothing else.
#![allow(clippy::unwrap_used, clippy::panic, clippy::wildcard_imports, unreachable_pub, dead_code)]

mod strategies;

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message as _;
use sha2::{Digest as _, Sha256};
use sluice_core::policy::{Degraded, RoutePolicy};
use sluice_proto::apply::{Applied, PolicySet};
use sluice_proto::saved::{self, InvalidSave, MAX_BYTES, TooLarge};
use sluice_proto::{encode, v1};

const NAMESPACE: &str = "team";

/// What an agent of the namespace has applied, with a secret and counts.
fn applied(routes: Vec<RoutePolicy>, secret: Vec<u8>) -> Arc<PolicySet> {
    let id = routes.first().map(|route| route.targets[0].id.to_string());
    let routes = routes.into_iter().enumerate().map(|(number, mut route)| {
        let name: Arc<str> = format!("r{number}").into();
        (route.namespace, route.name) = (NAMESPACE.into(), Arc::clone(&name));
        (route.sources[0].namespace, route.sources[0].name) = (NAMESPACE.into(), name);
        encode::route(&route)
    });
    let secret = v1::Secret {
        key: Some(v1::SecretKey { name: "keys".into(), key: "openai".into() }),
        uid: "uid".into(),
        resource_version: "7".into(),
        value: secret,
    };
    let snapshot = v1::Snapshot {
        version: "v1".into(),
        routes: routes.collect(),
        secrets: Some(v1::SecretSet { secrets: vec![secret], ..v1::SecretSet::default() }),
        agents: Some(v1::AgentCounts { by_target_id: id.map(|id| (id, 7)).into_iter().collect() }),
        ..v1::Snapshot::default()
    };
    let (set, ack) = Applied::new().apply(snapshot);
    assert_eq!(ack.rejected, []);
    set
}

fn sample() -> RoutePolicy {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    RoutePolicy {
        degraded: Degraded::Static { text: "later".into() },
        ..strategies::route().new_tree(&mut runner).unwrap().current()
    }
}

fn file() -> Vec<u8> {
    saved::encode(NAMESPACE, &applied(vec![sample()], b"sk-one".to_vec())).unwrap().to_vec()
}

/// With the checksum that a writer of these bytes would have made.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let sealed = bytes.len() - 32;
    let hash = Sha256::digest(&bytes[..sealed]);
    bytes[sealed..].copy_from_slice(&hash);
    bytes
}

fn refusal(namespace: &str, file: &[u8]) -> InvalidSave {
    saved::decode(namespace, file).map(|_| ()).unwrap_err()
}

fn same(one: &PolicySet, other: &PolicySet) -> bool {
    (&one.version, &one.routes, &one.secrets, &one.agents, &one.withheld)
        == (&other.version, &other.routes, &other.secrets, &other.agents, &other.withheld)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_was_written_is_read(routes in vec(strategies::route(), 0..4), secret in vec(any::<u8>(), 0..64)) {
        let set = applied(routes, secret);
        let file = saved::encode(NAMESPACE, &set).unwrap();
        let (read, rejected) = saved::decode(NAMESPACE, &file).unwrap();
        prop_assert!(rejected.is_empty());
        prop_assert!(same(&read.current(), &set));
    }

    #[test]
    fn no_other_bytes_are_taken(bytes in vec(any::<u8>(), 0..512)) {
        prop_assert!(saved::decode(NAMESPACE, &bytes).is_err());
        let marked = [b"SLUICEPS\x00\x01".as_slice(), &bytes].concat();
        prop_assert!(saved::decode(NAMESPACE, &marked).is_err());
    }

    /// As if a faulty writer had made it: the checksum holds, and what it holds is anything.
    #[test]
    fn anything_under_a_good_checksum_is_read_or_refused(bytes in vec(any::<u8>(), 0..256), at in 0..400_usize) {
        let mut changed = file();
        let end = changed.len() - 32;
        let from = (10 + at).min(end);
        let to = (from + bytes.len()).min(end);
        changed[from..to].copy_from_slice(&bytes[..to - from]);
        let _ = saved::decode(NAMESPACE, &sealed(changed));
        let header = [b"SLUICEPS\x00\x01\x00\x04team\x00\x00".as_slice(), &bytes, &[0; 32]].concat();
        let _ = saved::decode(NAMESPACE, &sealed(header));
    }
}

#[test]
fn every_cut_and_every_flipped_bit_is_seen() {
    let file = file();
    for length in 0..file.len() {
        assert!(saved::decode(NAMESPACE, &file[..length]).is_err(), "cut at {length}");
    }
    assert!(matches!(refusal(NAMESPACE, &[&file[..], b"x"].concat()), InvalidSave::Damaged));
    for place in 0..file.len() {
        let mut flipped = file.clone();
        flipped[place] ^= 1 << (place % 8);
        assert!(saved::decode(NAMESPACE, &flipped).is_err(), "flipped at {place}");
    }
}

#[test]
fn another_namespace_format_or_feature_is_refused_by_name() {
    let file = file();
    let said = refusal("other", &file).to_string();
    assert!(said.contains("\"team\"") && said.contains("\"other\""), "{said}");

    let mut newer = file.clone();
    newer[9] = 2;
    assert!(matches!(refusal(NAMESPACE, &sealed(newer)), InvalidSave::OtherFormat { found: 2 }));

    let name = b"degraded-static";
    let at = file.windows(name.len()).position(|bytes| bytes == name).unwrap();
    let mut unknown = file;
    unknown[at..at + name.len()].copy_from_slice(b"of-the-future-x");
    let said = refusal(NAMESPACE, &sealed(unknown)).to_string();
    assert!(said.contains("of-the-future-x"), "{said}");
}

/// The namespace of the file is right, and a route in it is another's.
#[test]
fn a_foreign_route_is_refused() {
    let set = applied(vec![sample()], Vec::new());
    let foreign = RoutePolicy { namespace: "else".into(), ..(*set.routes[0]).clone() };
    let set = PolicySet { routes: [Arc::new(foreign)].into(), ..(*set).clone() };
    let file = saved::encode(NAMESPACE, &set).unwrap();
    assert!(matches!(refusal(NAMESPACE, &file), InvalidSave::OtherNamespace { .. }));
    let nothing = saved::encode(NAMESPACE, &PolicySet::default()).unwrap();
    assert!(matches!(refusal(NAMESPACE, &nothing), InvalidSave::Damaged), "no version, so no policies");
}

#[test]
fn a_route_that_this_build_refuses_is_left_out_and_named() {
    let set = applied(vec![sample(), sample()], Vec::new());
    let mut broken = (*set.routes[0]).clone();
    broken.targets[0].rules.breaker.rules.failure_percent = 101;
    let set = PolicySet { routes: [Arc::new(broken), set.routes[1].clone()].into(), ..(*set).clone() };
    let (read, rejected) = saved::decode(NAMESPACE, &saved::encode(NAMESPACE, &set).unwrap()).unwrap();
    assert_eq!(read.current().routes[..], set.routes[1..]);
    assert_eq!(rejected.len(), 1);
    assert!(rejected[0].error.contains("101"), "{}", rejected[0].error);
}

#[test]
fn a_fresh_push_replaces_what_was_read_and_keeps_the_last_good_of_it() {
    let set = applied(vec![sample(), sample()], b"sk-one".to_vec());
    let (mut read, _) = saved::decode(NAMESPACE, &saved::encode(NAMESPACE, &set).unwrap()).unwrap();
    let mut broken = encode::route(&set.routes[0]);
    broken.targets[0].rules.as_mut().unwrap().breaker.as_mut().unwrap().failure_percent = 101;
    let push = v1::Snapshot { version: "v2".into(), routes: vec![broken], ..v1::Snapshot::default() };
    let (now, ack) = read.apply(push);
    assert_eq!((ack.rejected.len(), &now.routes[..]), (1, &set.routes[..1]));
    assert!(now.secrets.is_empty() && &*now.version == "v2");
}

#[test]
fn a_held_secret_that_was_read_is_kept_and_written_again() {
    let set = applied(vec![sample()], b"sk-one".to_vec());
    let (mut read, _) = saved::decode(NAMESPACE, &saved::encode(NAMESPACE, &set).unwrap()).unwrap();
    let held = v1::SecretKey { name: "keys".into(), key: "openai".into() };
    let secrets = Some(v1::SecretSet { held: vec![held], ..v1::SecretSet::default() });
    let (kept, _) = read.apply(v1::Snapshot { version: "v2".into(), secrets, ..v1::Snapshot::default() });
    assert_eq!(kept.secrets, set.secrets);
    let (again, _) = saved::decode(NAMESPACE, &saved::encode(NAMESPACE, &kept).unwrap()).unwrap();
    assert_eq!(again.current().secrets, set.secrets);
}

#[test]
fn more_than_a_volume_holds_is_not_written() {
    let big = vec![b'x'; sluice_proto::bounds::SECRET_BYTES];
    let secrets = (0..128).map(|number| v1::Secret {
        key: Some(v1::SecretKey { name: "keys".into(), key: format!("k{number}") }),
        uid: "uid".into(),
        resource_version: "1".into(),
        value: big.clone(),
    });
    let secrets = v1::SecretSet { secrets: secrets.collect(), ..v1::SecretSet::default() };
    let mut all = Applied::new();
    all.apply(v1::Snapshot { version: "v1".into(), secrets: Some(secrets), ..v1::Snapshot::default() });
    let bytes = all.current().secrets.values().map(|secret| secret.value.expose().len()).sum::<usize>();
    assert!(bytes > MAX_BYTES);
    let TooLarge { bytes: told } = saved::encode(NAMESPACE, &all.current()).unwrap_err();
    assert!(told > bytes);
}

/// Protobuf skips what it does not know: this is why the file names the features.
#[test]
fn a_field_of_the_future_would_be_dropped_in_silence() {
    let mut bytes = v1::Snapshot { version: "v1".into(), ..v1::Snapshot::default() }.encode_to_vec();
    bytes.extend_from_slice(&[0xfa, 0x3f, 0x01, b'x']);
    assert_eq!(v1::Snapshot::decode(&bytes[..]).unwrap().version, "v1");
}
