//! Arguments that no encoder makes: both homes refuse them, and write nothing.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::time::Duration;

use proptest::prelude::{Strategy, any, prop_oneof};
use proptest::test_runner::{Config, TestRunner};
use sluice_core::admission::{AdmitAnswer, Nonce};
use sluice_core::outcome::Verdict;
use sluice_core::policy::{Quota, Rules};
use sluice_state::script::{Call, ScriptName, encode_admit, encode_settle};
use sluice_state::{RedisHome, StoreErrorKind};
use sluice_testkit::RedisServer;
use support::redis::config;
use support::{SteppedClock, admit_ask, agent, quota, settle_ask, target, with_quota};

/// What `tonumber` takes, or what would go wrong later.
const GARBAGE: [&str; 18] = [
    "nan",
    "inf",
    "-inf",
    "-1",
    "-0",
    "9007199254740992",
    "1e400",
    "1e3",
    "0x10",
    "1.5",
    " 1",
    "1 ",
    "+1",
    "abc",
    "\0",
    "99999999999999999999999999",
    "١",
    "{}",
];

fn calls() -> Vec<(ScriptName, Call)> {
    let target = target("t", with_quota(Rules::default(), quota(Some(1_000), Some(10))));
    let settle = settle_ask(Nonce(1), 5, Some(Verdict::Success), Some(10));
    vec![
        (ScriptName::Admit, encode_admit(&agent(), &target, &admit_ask(Nonce(1), 10))),
        (ScriptName::Settle, encode_settle(&agent(), &target, &settle)),
    ]
}

/// Every number of every argument in turn.
fn spoiled(call: &Call, garbage: &str) -> Vec<Call> {
    let mut all = Vec::new();
    for arg in 0..2 {
        let words: Vec<&str> = call.args[arg].split_inclusive([' ', ';']).collect();
        // The last word of the ask is the agent's tag, of which there is nothing to compute.
        let numbers = words.len() - usize::from(arg == 0);
        for place in 0..numbers {
            let mut words = words.clone();
            let end = if words[place].ends_with(';') { ";" } else { " " };
            let last = place + 1 == words.len();
            let spoiled = if last { garbage.to_owned() } else { format!("{garbage}{end}") };
            words[place] = &spoiled;
            let mut call = call.clone();
            call.args[arg] = words.concat();
            all.push(call);
        }
        let mut call = call.clone();
        garbage.clone_into(&mut call.args[arg]);
        all.push(call);
    }
    all
}

#[tokio::test]
async fn both_homes_refuse_every_kind_of_garbage_in_every_place() {
    let server = RedisServer::start().unwrap();
    let redis = RedisHome::new(&config(&server.url())).unwrap();
    redis.reconnect().await.unwrap();
    let embedded = SteppedClock::new().home();
    let mut tried = 0;
    for (name, call) in calls() {
        for garbage in GARBAGE {
            for call in spoiled(&call, garbage) {
                let here = embedded.run(name, &call).map_err(|error| error.kind);
                assert_eq!(here, Err(StoreErrorKind::BadArgument), "{name:?} {:?}", call.args);
                let there = redis.run(name, &call, Duration::from_secs(10)).await.map_err(|error| error.kind);
                assert_eq!(there, Err(StoreErrorKind::BadArgument), "{name:?} {:?}", call.args);
                tried += 1;
            }
        }
    }
    assert!(tried > 1_000);
    assert!(embedded.is_empty());
    assert_eq!(server.command(&["DBSIZE"]).unwrap(), "0");
}

#[test]
fn settings_that_would_mean_unbounded_work_are_refused() {
    let home = SteppedClock::new().home();
    let (name, call) = calls().remove(0);
    for settings in [
        "0 60000 17 10 50 60 30 0 30000 20 150 300000 1 3 60000 10",
        "0 60000 0 10 50 60 30 0 30000 20 150 300000 1 3 60000 10",
        "0 5 10 10 50 60 30 0 30000 20 150 300000 1 3 60000 10",
        "1 1001 0 10 50 60 30 0 30000 20 150 300000 1 3 60000 10",
        "1 0 0 10 50 60 30 0 30000 20 150 300000 1 3 60000 10",
        "2 60000 10 10 50 60 30 0 30000 20 150 300000 1 3 60000 10",
        "0 60000 10 10 50 60 30 0 30000 20 150 300000 17 3 60000 10",
        "0 60000 10 10 50 60 30 0 30000 20 150 300000 0 3 60000 10",
    ] {
        let mut call = call.clone();
        call.args[1] = format!("1  0  0 60000 5000 50 10 10 5000;{settings}");
        let refused = home.run(name, &call).map_err(|error| error.kind);
        assert_eq!(refused, Err(StoreErrorKind::BadArgument), "{settings}");
    }
    assert!(home.is_empty());
}

#[tokio::test]
async fn the_largest_quota_and_the_latest_revision_are_served() {
    let server = RedisServer::start().unwrap();
    let redis = RedisHome::new(&config(&server.url())).unwrap();
    redis.reconnect().await.unwrap();
    let embedded = SteppedClock::new().home();
    let quota = Quota { burst_tokens: u64::MAX, ..quota(Some(u64::MAX), Some(u64::MAX)) };
    let mut target = target("t", with_quota(Rules::default(), quota));
    // Of two revisions neither is known to the key.
    for revision in [1_800_000_000_000 * 2_048, (1 << 53) - 1] {
        target.rules.revision = revision;
        let ask = admit_ask(Nonce(u128::from(revision)), 1_000_000);
        let settle = settle_ask(Nonce(u128::from(revision)), 0, Some(Verdict::Success), Some(10));
        for home in [&redis as &dyn sluice_state::Home, &embedded] {
            let reply = home.admit(&agent(), &target, &ask).await.unwrap();
            assert_eq!(reply.answer, AdmitAnswer::Admitted, "{revision}");
            home.settle(&agent(), &target, &settle).await.unwrap();
        }
    }
}

#[test]
fn no_text_at_all_breaks_the_guards() {
    let home = SteppedClock::new().home();
    let word = prop_oneof!["[0-9]{0,30}".boxed(), "[-+.0-9a-fxeinf]{0,12}".boxed(), any::<String>().boxed(),];
    let texts = (proptest::collection::vec(word, 1..20), 0..2_usize, 0..2_usize);
    // The runner prints the failing input and keeps its seed.
    let mut runner = TestRunner::new(Config { cases: 5_000, failure_persistence: None, ..Config::default() });
    runner
        .run(&texts, |(words, arg, which)| {
            let (name, mut call) = calls().remove(which);
            call.args[arg] = words.join(" ");
            match home.run(name, &call) {
                Ok(_) => {}
                Err(error) => proptest::prop_assert_eq!(error.kind, StoreErrorKind::BadArgument),
            }
            Ok(())
        })
        .unwrap();
}
