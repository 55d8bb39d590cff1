//! What holds in every sequence: random ones, in the embedded home.
//!
//! `SLUICE_INVARIANTS_SEED` (1) chooses the run.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::collections::HashSet;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sluice_core::admission::{AdmitAsk, BreakerState, Draw, Nonce, SettleAsk, Settlement};
use sluice_core::outcome::Verdict;
use sluice_core::policy::Rules;
use support::{SteppedClock, admit_ask, agent, quota, settle_ask, target, with_quota};

struct Out {
    nonce: Nonce,
    epoch: u64,
    probe_until: Option<u64>,
    reserved: u64,
}

fn seed() -> u64 {
    std::env::var("SLUICE_INVARIANTS_SEED").map_or(1, |text| text.parse().unwrap())
}

/// Steps back are real; `passed` is the time that the home can have seen pass at most.
fn move_clock(rng: &mut SmallRng, clock: &SteppedClock) -> u64 {
    if rng.random_bool(0.002) {
        clock.set_ms(clock.now_ms() - rng.random_range(0..3_600_000));
        return 0;
    }
    let by = rng.random_range(0..400);
    clock.advance(Duration::from_millis(by));
    by
}

#[test]
fn tokens_are_never_created_and_probes_never_exceed_their_number() {
    let mut transitions = 0;
    for round in 0..20 {
        let seed = seed() * 1_000 + round;
        println!("SLUICE_INVARIANTS_SEED={seed}");
        transitions += sequence(seed);
    }
    assert!(transitions > 200, "the breakers lived: {transitions}");
}

fn sequence(seed: u64) -> usize {
    let mut rng = SmallRng::seed_from_u64(seed);
    let clock = SteppedClock::new();
    let home = clock.home();
    let per_minute = rng.random_range(600..60_000);
    let mut rules = with_quota(Rules::default(), quota(Some(per_minute), None));
    let concurrency = rng.random_range(1..=4);
    let breaker = &mut rules.breaker.rules;
    breaker.probes.concurrency = concurrency;
    breaker.cooldown.base = Duration::from_secs(2);
    breaker.ramp.duration = Duration::from_secs(5);
    let target = target("t", rules);
    let mut out: Vec<Out> = Vec::new();
    let mut epochs = HashSet::new();
    let (mut passed, mut spent, mut held, mut forgiven) = (0_u64, 0_i64, 0_i64, 0_i64);
    let mut logical = 0_u64;
    for step in 0..2_000 {
        let by = move_clock(&mut rng, &clock);
        passed += by;
        logical += by;
        let transition = if rng.random_bool(0.55) || out.is_empty() {
            let reserved = rng.random_range(0..per_minute / 4);
            let nonce = Nonce(rng.random());
            let ask = AdmitAsk { lease: Duration::from_secs(3), ..admit_ask(nonce, reserved) };
            let before = home.view_now(&target).unwrap().tokens_left;
            let reply = home.admit_now(&agent(), &target, &ask).unwrap();
            if reply.answer.granted() {
                held += reserved as i64;
                let probe = reply.answer == sluice_core::admission::AdmitAnswer::Probe;
                let probe_until = probe.then_some(logical + 3_000);
                out.push(Out { nonce, epoch: reply.epoch, probe_until, reserved });
            } else {
                assert_eq!(
                    home.view_now(&target).unwrap().tokens_left,
                    before,
                    "seed {seed}, step {step}: nothing is taken"
                );
            }
            reply.transition
        } else {
            let index = rng.random_range(0..out.len());
            let gone = out.swap_remove(index);
            let verdict = Verdict::ALL[rng.random_range(0..7)];
            let used = rng.random_range(0..=gone.reserved * 2);
            let ask = SettleAsk {
                tokens: Settlement::Used(used),
                draw: Draw::new(rng.random()),
                pause: (verdict == Verdict::Throttled).then(|| Duration::from_millis(500)),
                ..settle_ask(gone.nonce, gone.epoch, Some(verdict), None)
            };
            let reply = home.settle_now(&agent(), &target, &ask).unwrap();
            held -= gone.reserved as i64;
            spent += used as i64;
            forgiven += reply.forgiven as i64;
            reply.transition
        };
        if let Some(transition) = transition {
            assert!(epochs.insert(transition.epoch), "seed {seed}, step {step}: one transition per epoch");
        }
        let view = home.view_now(&target).unwrap();
        let at = format!("seed {seed}, step {step}");
        let gone = held + spent - forgiven;
        check_tokens(&at, view.tokens_left.unwrap(), gone, per_minute, passed);
        let probes = out.iter().filter(|out| out.probe_until.is_some_and(|until| logical < until));
        let probes = probes.filter(|out| out.epoch == view.epoch).count();
        assert!(probes <= concurrency as usize && view.probes_out <= concurrency, "{at}");
        assert!(view.state == BreakerState::HalfOpen || view.probes_out == 0, "{at}");
    }
    epochs.len()
}

/// Every token that went out came from the full bucket or from time, and debt has an end.
fn check_tokens(at: &str, left: i64, gone: i64, per_minute: u64, passed_ms: u64) {
    let source = per_minute as i64 + (passed_ms * per_minute / 60_000) as i64 + 1;
    assert!(left + gone <= source, "{at}: {left} + {gone} > {source}");
    assert!(left >= -(per_minute as i64) - 1, "{at}: debt ends at -burst, not at {left}");
}
