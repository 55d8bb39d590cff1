//! What the quota's scripts do, in the embedded home with a stepped clock.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::collections::VecDeque;
use std::time::Duration;

use sluice_core::admission::{AdmitAnswer, AdmitReply, Nonce, SettleAsk, SettleReply, Settlement};
use sluice_core::outcome::Verdict;
use sluice_core::policy::{Mode, Quota, Rules, TargetPolicy, TenantShare};
use sluice_state::{EmbeddedHome, StoreErrorKind};
use support::{Asks, SteppedClock, admit_ask, agent, quota, settle_ask, target, with_quota};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);

struct World {
    clock: SteppedClock,
    home: EmbeddedHome,
    target: TargetPolicy,
    asks: Asks,
}

impl World {
    fn new(quota: Quota) -> Self {
        let clock = SteppedClock::new();
        let target = target("t", with_quota(Rules::default(), quota));
        Self { home: clock.home(), clock, target, asks: Asks::new() }
    }

    fn admit(&mut self, tokens: u64) -> (AdmitReply, Nonce) {
        self.admit_for(None, tokens)
    }

    fn admit_for(&mut self, tenant: Option<&str>, tokens: u64) -> (AdmitReply, Nonce) {
        let mut ask = self.asks.admit(tokens);
        ask.tenant = tenant.map(Into::into);
        (self.home.admit_now(&agent(), &self.target, &ask).unwrap(), ask.nonce)
    }

    fn settle(&self, ask: &SettleAsk) -> SettleReply {
        self.home.settle_now(&agent(), &self.target, ask).unwrap()
    }

    fn used(&self, admitted: &(AdmitReply, Nonce), used: u64) -> SettleReply {
        self.settle(&settle_ask(admitted.1, admitted.0.epoch, Some(Verdict::Success), Some(used)))
    }

    fn throttled(&mut self, pause: Option<Duration>) {
        let admitted = self.admit(0);
        let mut ask = settle_ask(admitted.1, admitted.0.epoch, Some(Verdict::Throttled), Some(0));
        ask.pause = pause;
        self.settle(&ask);
    }

    fn left(&self) -> i64 {
        self.home.view_now(&self.target).unwrap().tokens_left.unwrap()
    }
}

#[test]
fn what_was_not_used_comes_back_and_what_was_used_beyond_goes_into_debt() {
    let mut world = World::new(quota(Some(6_000), None));
    let admitted = world.admit(4_000);
    assert_eq!(admitted.0.tokens_left, Some(2_000));
    world.used(&admitted, 1_000);
    assert_eq!(world.left(), 5_000);
    let admitted = world.admit(1_000);
    assert_eq!(world.used(&admitted, 9_000).forgiven, 0);
    assert_eq!(world.left(), -4_000);
    let (refused, _) = world.admit(1);
    assert_eq!(refused.answer, AdmitAnswer::TokensExhausted);
    // 4,001 tokens at 100 a second.
    assert_eq!(refused.retry_after, Duration::from_millis(40_010));
    world.clock.advance(Duration::from_millis(40_009));
    assert_eq!(world.admit(1).0.answer, AdmitAnswer::TokensExhausted);
    world.clock.advance(Duration::from_millis(1));
    let admitted = world.admit(1);
    assert_eq!(admitted.0.answer, AdmitAnswer::Admitted);
    assert_eq!(world.used(&admitted, 10_001).forgiven, 4_000, "debt ends at -burst");
    assert_eq!(world.left(), -6_000);
}

#[test]
fn a_full_bucket_stays_full_and_a_refund_creates_nothing() {
    let mut world = World::new(quota(Some(6_000), None));
    let admitted = world.admit(3_000);
    world.clock.advance(MINUTE);
    world.used(&admitted, 0);
    assert_eq!(world.left(), 6_000);
}

#[test]
fn requests_have_a_bucket_of_their_own_and_come_before_tokens() {
    let mut world = World::new(quota(Some(6_000), Some(2)));
    world.admit(1);
    world.admit(1);
    let (refused, _) = world.admit(6_000);
    assert_eq!((refused.answer, refused.retry_after), (AdmitAnswer::RequestsExhausted, 30 * SECOND));
    assert_eq!(world.left(), 5_998, "nothing is taken unless everything is granted");
}

#[test]
fn zero_admits_nothing() {
    let mut world = World::new(quota(Some(0), None));
    assert_eq!(world.admit(0).0.answer, AdmitAnswer::TokensExhausted);
    let mut world = World::new(quota(None, Some(0)));
    assert_eq!(world.admit(0).0.answer, AdmitAnswer::RequestsExhausted);
}

#[test]
fn a_full_share_lets_one_request_through_that_could_never_fit() {
    let mut world = World::new(quota(Some(600), None));
    assert_eq!(world.admit(1_000).0.answer, AdmitAnswer::Admitted);
    assert_eq!(world.left(), -400);
    assert_eq!(world.admit(1_000).0.answer, AdmitAnswer::TokensExhausted);
    world.clock.advance(100 * SECOND);
    let admitted = world.admit(5_000);
    assert_eq!(admitted.0.answer, AdmitAnswer::Admitted);
    assert_eq!(world.left(), -600, "no deeper than -burst");
    world.used(&admitted, 100);
    assert_eq!(world.left(), 500, "what was taken comes back, not what was asked for");
}

#[test]
fn tenants_draw_on_their_own_share_first_and_nobody_else_does() {
    let mut limits = quota(Some(10_000), None);
    let share = |name: &str, reserved_percent| TenantShare { name: name.into(), reserved_percent, weight: 1 };
    limits.tenants = vec![share("gold", 30), share("free", 0)];
    let mut world = World::new(limits);
    let admitted = world.admit_for(Some("free"), 7_000);
    assert_eq!((admitted.0.answer, admitted.0.tokens_left), (AdmitAnswer::Admitted, Some(0)));
    assert_eq!(world.admit(1).0.answer, AdmitAnswer::TokensExhausted);
    let gold = world.admit_for(Some("gold"), 2_000);
    assert_eq!((gold.0.answer, gold.0.tokens_left), (AdmitAnswer::Admitted, Some(1_000)));
    assert_eq!(world.admit_for(Some("gold"), 2_000).0.answer, AdmitAnswer::TokensExhausted);
    let mut ask = settle_ask(gold.1, gold.0.epoch, Some(Verdict::Success), Some(500));
    ask.tenant = Some("gold".into());
    world.settle(&ask);
    assert_eq!(world.left(), 0, "the refund is the tenant's own");
    assert_eq!(world.admit_for(Some("gold"), 2_500).0.answer, AdmitAnswer::Admitted);
}

#[test]
fn a_429_pauses_everyone_and_shrinks_the_refill_once_per_pause() {
    let mut world = World::new(quota(Some(6_000), None));
    world.throttled(Some(7 * SECOND));
    let (refused, _) = world.admit(1);
    assert_eq!((refused.answer, refused.retry_after), (AdmitAnswer::Paused, 7 * SECOND));
    assert_eq!(world.home.view_now(&world.target).unwrap().rate_percent, 90);
    world.clock.advance(7 * SECOND);
    world.throttled(None);
    assert_eq!(world.admit(1).0.retry_after, 5 * SECOND, "without a time: the default");
    assert_eq!(world.home.view_now(&world.target).unwrap().rate_percent, 81);
    // 60 s of quiet, then 1 % a second.
    world.clock.advance(60 * SECOND);
    assert_eq!(world.home.view_now(&world.target).unwrap().rate_percent, 81);
    world.clock.advance(10 * SECOND);
    assert_eq!(world.home.view_now(&world.target).unwrap().rate_percent, 91);
    world.clock.advance(10 * SECOND);
    assert_eq!(world.home.view_now(&world.target).unwrap().rate_percent, 100);
}

#[test]
fn a_pause_is_clamped_and_a_shorter_one_does_not_shorten_it() {
    let mut world = World::new(quota(Some(6_000), None));
    let (first, second) = (world.admit(0), world.admit(0));
    for (admitted, pause) in [(&first, 10_000 * SECOND), (&second, SECOND)] {
        let mut ask = settle_ask(admitted.1, admitted.0.epoch, Some(Verdict::Throttled), Some(0));
        ask.pause = Some(pause);
        world.settle(&ask);
    }
    assert_eq!(world.admit(1).0.retry_after, 300 * SECOND);
    assert_eq!(world.home.view_now(&world.target).unwrap().rate_percent, 90, "one pause, one shrink");
}

#[test]
fn a_shrunken_refill_is_the_area_under_its_rate() {
    let mut world = World::new(quota(Some(60_000), None));
    world.throttled(Some(SECOND));
    world.clock.advance(SECOND);
    let admitted = world.admit(60_000);
    assert_eq!(admitted.0.tokens_left, Some(0));
    // 900 a second up to 60 s after the 429, 10 s of recovery from 90 % to all, the rest at 1,000 a second.
    world.clock.advance(19 * SECOND);
    assert_eq!(world.left(), 17_100);
    world.clock.advance(40 * SECOND);
    assert_eq!(world.left(), 53_100);
    world.clock.advance(5 * SECOND);
    assert_eq!(world.left(), 57_725, "5 s at 92.5 % on average");
}

#[test]
fn a_nonce_that_was_granted_repeats_its_answer_and_debits_nothing() {
    let mut world = World::new(quota(Some(6_000), Some(100)));
    let admitted = world.admit(1_000);
    let again = world.home.admit_now(&agent(), &world.target, &admit_ask(admitted.1, 1_000)).unwrap();
    assert_eq!((again.answer, again.epoch), (AdmitAnswer::Admitted, admitted.0.epoch));
    assert_eq!(world.left(), 5_000);
}

#[test]
fn a_cancellation_that_comes_first_refuses_its_admission() {
    let mut world = World::new(quota(Some(6_000), None));
    let nonce = world.asks.nonce();
    world.settle(&settle_ask(nonce, 0, Some(Verdict::Cancelled), Some(0)));
    let late = world.home.admit_now(&agent(), &world.target, &admit_ask(nonce, 1_000));
    assert_eq!(late.unwrap_err().kind, StoreErrorKind::Settled);
    assert_eq!(world.left(), 6_000);
}

#[test]
fn a_record_that_was_lost_refunds_nothing_and_debits_what_was_used_once() {
    let mut world = World::new(quota(Some(6_000), None));
    let admitted = world.admit(1_000);
    let key = sluice_state::script::Keys::admission(world.target.id.as_str(), admitted.1);
    world.home.replace(&key, None);
    world.used(&admitted, 300);
    assert_eq!(world.left(), 4_700);
    world.used(&admitted, 300);
    assert_eq!(world.left(), 4_700, "its tombstone");
    assert_eq!(world.home.view_now(&world.target).unwrap().counts.calls, 1, "its own epoch: counted once");
}

#[test]
fn both_halves_take_effect_once_in_any_order() {
    let mut world = World::new(quota(Some(6_000), None));
    let admitted = world.admit(1_000);
    let tokens = settle_ask(admitted.1, admitted.0.epoch, None, Some(400));
    let verdict = settle_ask(admitted.1, admitted.0.epoch, Some(Verdict::Slow), None);
    for ask in [&verdict, &tokens, &verdict, &tokens] {
        world.settle(ask);
    }
    let view = world.home.view_now(&world.target).unwrap();
    assert_eq!((view.tokens_left, view.counts.slow, view.counts.calls), (Some(5_600), 1, 1));
}

#[test]
fn an_observed_quota_grants_and_says_what_it_would_have_answered() {
    let mut world = World::new(quota(Some(6_000), None));
    world.target.rules.quota.as_mut().unwrap().mode = Mode::Observe;
    world.admit(6_000);
    let over = world.admit(1_000);
    assert_eq!((over.0.answer, over.0.observed), (AdmitAnswer::Admitted, Some(AdmitAnswer::TokensExhausted)));
    world.used(&over, 5_000);
    assert_eq!(world.left(), 0, "what was not granted by the quota is not settled with it");
}

#[test]
fn a_limit_that_is_new_begins_full() {
    let mut world = World::new(quota(None, None));
    world.throttled(Some(SECOND));
    world.clock.advance(2 * SECOND);
    let rules = &mut world.target.rules;
    rules.revision += 1;
    rules.quota.as_mut().unwrap().rules = quota(Some(6_000), Some(60));
    assert_eq!(world.admit(6_000).0.answer, AdmitAnswer::Admitted);
}

#[test]
fn a_clock_that_steps_back_neither_grants_nor_destroys() {
    let mut world = World::new(quota(Some(6_000), None));
    world.admit(6_000);
    world.clock.advance(10 * SECOND);
    let admitted = world.admit(500);
    assert_eq!(admitted.0.tokens_left, Some(500));
    for _ in 0..3 {
        world.clock.set_ms(world.clock.now_ms() - 3_600_000);
        assert_eq!(world.admit(0).0.tokens_left, Some(500), "nothing granted");
        world.clock.advance(SECOND);
        assert_eq!(world.admit(100).0.tokens_left, Some(500), "time goes on at its pace");
    }
    world.clock.advance(3 * 3_600 * SECOND);
    assert!(world.left() <= 600, "nor when the clock is put right: {}", world.left());
}

/// Worked case 3. 150 tokens in, at most 4,000 out, 300 used, an answer after 5 s; ten minutes of saturation.
fn saturated(refund: bool) -> f64 {
    const PER_MINUTE: u64 = 120_000;
    let mut world = World::new(quota(Some(PER_MINUTE), None));
    let mut under_way: VecDeque<(u64, (AdmitReply, Nonce))> = VecDeque::new();
    let (mut now, mut used) = (0, 0_u64);
    while now < 600_000 {
        while under_way.front().is_some_and(|(ends, _)| *ends <= now) {
            let (_, admitted) = under_way.pop_front().unwrap();
            let tokens = if refund { Settlement::Used(300) } else { Settlement::Used(4_150) };
            let ask = settle_ask(admitted.1, admitted.0.epoch, Some(Verdict::Success), None);
            world.settle(&SettleAsk { tokens, ..ask });
        }
        loop {
            let admitted = world.admit(4_150);
            if !admitted.0.answer.granted() {
                break;
            }
            used += 300;
            under_way.push_back((now + 5_000, admitted));
        }
        now += 250;
        world.clock.advance(Duration::from_millis(250));
    }
    // The full bucket at the start comes on top, and pays for what is reserved at the end.
    used as f64 / (10 * PER_MINUTE) as f64
}

#[test]
fn the_refund_is_the_difference_between_a_tenth_and_all_of_the_quota() {
    let without = saturated(false);
    assert!((0.05..0.12).contains(&without), "{without}");
    let with = saturated(true);
    assert!((0.95..=1.1).contains(&with), "{with}");
}
