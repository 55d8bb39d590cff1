//! What the breaker's scripts do, in the embedded home with a stepped clock.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::time::Duration;

use sluice_core::admission::{AdmitAnswer, AdmitReply, BreakerState, SettleReply, TransitionReason};
use sluice_core::outcome::Verdict;
use sluice_core::policy::{Mode, Rules, TargetPolicy, Window};
use sluice_state::EmbeddedHome;
use sluice_state::embedded::Stored;
use sluice_state::script::Keys;
use support::{Asks, SteppedClock, agent, quota, settle_ask, target, with_quota};

const SECOND: Duration = Duration::from_secs(1);

struct World {
    clock: SteppedClock,
    home: EmbeddedHome,
    target: TargetPolicy,
    asks: Asks,
}

impl World {
    fn new(edit: impl FnOnce(&mut Rules)) -> Self {
        let clock = SteppedClock::new();
        let mut rules = Rules::default();
        rules.breaker.rules.cooldown.jitter_percent = 0;
        edit(&mut rules);
        Self { home: clock.home(), clock, target: target("t", rules), asks: Asks::new() }
    }

    fn admit(&mut self) -> (AdmitReply, sluice_core::admission::Nonce) {
        let ask = self.asks.admit(10);
        (self.home.admit_now(&agent(), &self.target, &ask).unwrap(), ask.nonce)
    }

    fn settle(
        &self,
        admitted: &(AdmitReply, sluice_core::admission::Nonce),
        verdict: Verdict,
    ) -> SettleReply {
        let ask = settle_ask(admitted.1, admitted.0.epoch, Some(verdict), Some(10));
        self.home.settle_now(&agent(), &self.target, &ask).unwrap()
    }

    fn call(&mut self, verdict: Verdict) -> SettleReply {
        let admitted = self.admit();
        assert!(admitted.0.answer.granted(), "{:?}", admitted.0);
        self.settle(&admitted, verdict)
    }

    /// Trips a breaker of the default rates.
    fn trip(&mut self) -> SettleReply {
        for _ in 0..9 {
            assert_eq!(self.call(Verdict::Failure).transition, None);
        }
        let last = self.call(Verdict::Failure);
        assert_eq!(last.state, BreakerState::Open);
        last
    }

    fn close(&mut self) {
        for _ in 0..2 {
            assert_eq!(self.call(Verdict::Success).state, BreakerState::HalfOpen);
        }
        assert_eq!(self.call(Verdict::Success).state, BreakerState::Closed);
    }
}

#[test]
fn half_of_ten_failures_open_it_and_three_of_three_do_not() {
    let mut world = World::new(|_| {});
    for _ in 0..3 {
        assert_eq!(world.call(Verdict::Failure).state, BreakerState::Closed);
    }
    for _ in 0..3 {
        assert_eq!(world.call(Verdict::Success).state, BreakerState::Closed);
    }
    for _ in 0..3 {
        assert_eq!(world.call(Verdict::Slow).state, BreakerState::Closed, "slow calls are no failures");
    }
    assert_eq!(world.call(Verdict::Failure).state, BreakerState::Closed, "4 of 10");
    world.call(Verdict::Failure);
    let last = world.call(Verdict::Failure);
    let transition = last.transition.unwrap();
    assert_eq!((transition.from, transition.to), (BreakerState::Closed, BreakerState::Open));
    assert_eq!(transition.reason, TransitionReason::FailureRate);
    assert_eq!((transition.counts.calls, transition.counts.failures, transition.counts.slow), (12, 6, 3));
    assert_eq!(last.open_for, 30 * SECOND);
    let (refused, _) = world.admit();
    assert_eq!((refused.answer, refused.retry_after), (AdmitAnswer::Open, 30 * SECOND));
}

#[test]
fn probes_go_one_at_a_time_and_three_successes_close_it() {
    let mut world = World::new(|_| {});
    let opened = world.trip();
    world.clock.advance(30 * SECOND);
    let probe = world.admit();
    assert_eq!(probe.0.answer, AdmitAnswer::Probe);
    assert_eq!(probe.0.transition.as_ref().unwrap().reason, TransitionReason::CooldownEnded);
    assert!(probe.0.epoch > opened.epoch);
    let (busy, _) = world.admit();
    assert_eq!((busy.answer, busy.retry_after), (AdmitAnswer::ProbesBusy, 20 * SECOND));
    assert_eq!(world.settle(&probe, Verdict::Cancelled).state, BreakerState::HalfOpen);
    world.close();
}

#[test]
fn a_ramp_follows_and_grows_to_all() {
    let mut world = World::new(|_| {});
    // Ten admissions in one minute are the reference.
    world.trip();
    world.clock.advance(30 * SECOND);
    world.close();
    assert_eq!(world.admit().0.answer, AdmitAnswer::Admitted, "the bucket holds one");
    let (refused, _) = world.admit();
    assert_eq!(refused.answer, AdmitAnswer::Ramping);
    assert!(refused.retry_after > 10 * SECOND, "{:?}", refused.retry_after);
    world.clock.advance(60 * SECOND);
    for _ in 0..5 {
        assert_eq!(world.admit().0.answer, AdmitAnswer::Admitted, "the ramp is over");
    }
}

#[test]
fn the_cooldown_grows_per_trip_up_to_its_cap_and_resets_after_a_clean_window() {
    let mut world = World::new(|rules| rules.breaker.rules.cooldown.max = 60 * SECOND);
    assert_eq!(world.trip().open_for, 30 * SECOND);
    for expected in [45, 60, 60] {
        world.clock.advance(60 * SECOND);
        assert_eq!(world.call(Verdict::Failure).open_for, expected * SECOND);
    }
    world.clock.advance(60 * SECOND);
    world.close();
    world.clock.advance(120 * SECOND);
    assert_eq!(world.trip().open_for, 30 * SECOND);
}

#[test]
fn a_throttled_probe_reopens_for_its_retry_after() {
    let mut world = World::new(|_| {});
    world.trip();
    world.clock.advance(30 * SECOND);
    let probe = world.admit();
    let mut ask = settle_ask(probe.1, probe.0.epoch, Some(Verdict::Throttled), Some(0));
    ask.pause = Some(77 * SECOND);
    let reply = world.home.settle_now(&agent(), &world.target, &ask).unwrap();
    assert_eq!(reply.transition.unwrap().reason, TransitionReason::ProbeThrottled);
    assert_eq!(reply.open_for, 77 * SECOND);
}

#[test]
fn a_dead_probes_lease_frees_its_permit_and_its_verdict_comes_too_late() {
    let mut world = World::new(|_| {});
    world.trip();
    world.clock.advance(30 * SECOND);
    let dead = world.admit();
    world.clock.advance(20 * SECOND);
    let next = world.admit();
    assert_eq!(next.0.answer, AdmitAnswer::Probe);
    assert_eq!(world.settle(&dead, Verdict::Failure).state, BreakerState::HalfOpen);
    assert_eq!(world.admit().0.answer, AdmitAnswer::ProbesBusy, "the other permit is still out");
}

#[test]
fn a_probe_that_succeeded_may_stall_once_later() {
    let mut world = World::new(|_| {});
    world.trip();
    world.clock.advance(30 * SECOND);
    let probe = world.admit();
    let early = settle_ask(probe.1, probe.0.epoch, Some(Verdict::Success), None);
    assert_eq!(world.home.settle_now(&agent(), &world.target, &early).unwrap().state, BreakerState::HalfOpen);
    let reply = world.settle(&probe, Verdict::Stall);
    assert_eq!(reply.transition.unwrap().reason, TransitionReason::ProbeFailed);
    assert_eq!(world.settle(&probe, Verdict::Stall).transition, None, "once");
}

#[test]
fn the_later_stall_of_a_closing_probe_counts_as_one_call() {
    let mut world = World::new(|_| {});
    world.trip();
    world.clock.advance(30 * SECOND);
    let mut last = None;
    for _ in 0..3 {
        let probe = world.admit();
        let early = settle_ask(probe.1, probe.0.epoch, Some(Verdict::Success), None);
        world.home.settle_now(&agent(), &world.target, &early).unwrap();
        last = Some(probe);
    }
    world.settle(&last.unwrap(), Verdict::Stall);
    let view = world.home.view_now(&world.target).unwrap();
    assert_eq!((view.state, view.counts.calls, view.counts.stalls), (BreakerState::Closed, 1, 1));
}

#[test]
fn a_verdict_of_another_epoch_never_counts() {
    let mut world = World::new(|_| {});
    let old = world.admit();
    world.trip();
    world.clock.advance(30 * SECOND);
    world.close();
    world.settle(&old, Verdict::Failure);
    assert_eq!(world.home.view_now(&world.target).unwrap().counts.calls, 0);
}

/// Who looks twice must not take the second look for news.
#[test]
fn a_target_that_nobody_has_called_has_no_epoch() {
    let mut world = World::new(|_| {});
    for _ in 0..2 {
        let view = world.home.view_now(&world.target).unwrap();
        assert_eq!((view.state, view.epoch), (BreakerState::Closed, 0));
        world.clock.advance(SECOND);
    }
    let (admitted, _) = world.admit();
    world.clock.advance(SECOND);
    assert_eq!(world.home.view_now(&world.target).unwrap().epoch, admitted.epoch);
}

#[test]
fn the_first_verdict_stands() {
    let mut world = World::new(|_| {});
    let admitted = world.admit();
    world.settle(&admitted, Verdict::Slow);
    world.settle(&admitted, Verdict::Failure);
    let counts = world.home.view_now(&world.target).unwrap().counts;
    assert_eq!((counts.calls, counts.slow, counts.failures), (1, 1, 0));
}

#[test]
fn consecutive_failures_ignore_the_minimum() {
    let mut world = World::new(|rules| rules.breaker.rules.consecutive_failures = 3);
    world.call(Verdict::Failure);
    world.call(Verdict::Failure);
    world.call(Verdict::Success);
    world.call(Verdict::Failure);
    world.call(Verdict::Failure);
    let reply = world.call(Verdict::Failure);
    assert_eq!(reply.transition.unwrap().reason, TransitionReason::Consecutive);
}

#[test]
fn a_time_window_slides_by_whole_buckets() {
    let mut world = World::new(|_| {});
    for _ in 0..9 {
        world.call(Verdict::Failure);
    }
    world.clock.advance(54 * SECOND);
    assert_eq!(world.home.view_now(&world.target).unwrap().counts.calls, 9);
    world.clock.advance(6 * SECOND);
    assert_eq!(world.home.view_now(&world.target).unwrap().counts.calls, 0);
    assert_eq!(world.call(Verdict::Failure).state, BreakerState::Closed);
}

#[test]
fn a_count_window_is_exact() {
    let mut world = World::new(|rules| {
        rules.breaker.rules.window = Window::Count { calls: 10 };
    });
    for _ in 0..5 {
        world.call(Verdict::Slow);
    }
    for _ in 0..20 {
        assert_eq!(world.call(Verdict::Success).state, BreakerState::Closed);
    }
    for _ in 0..3 {
        world.call(Verdict::Stall);
    }
    // Two of ten would not do.
    let view = world.home.view_now(&world.target).unwrap();
    assert_eq!((view.state, view.counts.calls, view.counts.stalls), (BreakerState::Open, 10, 3));
}

#[test]
fn an_observed_breaker_grants_and_says_what_it_would_have_answered() {
    let mut world = World::new(|rules| rules.breaker.mode = Mode::Observe);
    world.trip();
    let (reply, _) = world.admit();
    assert_eq!((reply.answer, reply.observed), (AdmitAnswer::Admitted, Some(AdmitAnswer::Open)));
    world.clock.advance(30 * SECOND);
    let probe = world.admit();
    assert_eq!((probe.0.answer, probe.0.observed), (AdmitAnswer::Probe, None));
    let (reply, _) = world.admit();
    assert_eq!((reply.answer, reply.observed), (AdmitAnswer::Admitted, Some(AdmitAnswer::ProbesBusy)));
    world.settle(&probe, Verdict::Success);
    for _ in 0..2 {
        world.call(Verdict::Success);
    }
    assert_eq!(world.home.view_now(&world.target).unwrap().state, BreakerState::Closed);
}

#[test]
fn a_lower_revision_gets_the_stored_settings_until_nobody_uses_them() {
    let mut world = World::new(|rules| rules.revision = 2);
    world.call(Verdict::Failure);
    let mut older = world.target.clone();
    older.rules.revision = 1;
    older.rules.breaker.rules.window = Window::Count { calls: 50 };
    let newer = std::mem::replace(&mut world.target, older);
    world.call(Verdict::Failure);
    assert_eq!(world.home.view_now(&world.target).unwrap().counts.calls, 2, "it counts in the newer window");
    world.clock.advance(30 * SECOND);
    let older = std::mem::replace(&mut world.target, newer);
    world.call(Verdict::Failure);
    world.target = older;
    world.clock.advance(59 * SECOND);
    world.call(Verdict::Failure);
    assert_eq!(world.home.view_now(&world.target).unwrap().counts.calls, 2);
    world.clock.advance(2 * SECOND);
    world.call(Verdict::Failure);
    assert_eq!(world.home.view_now(&world.target).unwrap().counts.calls, 1, "a new window");
}

/// Two replicas of the control plane number the same settings differently: agents of both share one state.
#[test]
fn the_same_settings_under_two_revisions_are_no_change() {
    let mut world = World::new(|rules| {
        *rules = with_quota(rules.clone(), quota(Some(6_000), Some(600)));
        rules.revision = 7;
    });
    let settings = |world: &World| match world.home.stored(&Keys::target(world.target.id.as_str())) {
        Some(Stored::Hash(fields)) => fields.into_iter().find(|(name, _)| name == b"c").unwrap().1,
        other => panic!("{other:?}"),
    };
    for call in 1..=20 {
        world.target.rules.revision = if call % 2 == 0 { 7 } else { 9 };
        world.call(Verdict::Success);
        assert!(settings(&world).starts_with(b"9 "), "the higher one stays, and no mark is left");
        assert!(!settings(&world).contains(&b'!'));
        let view = world.home.view_now(&world.target).unwrap();
        assert_eq!((view.counts.calls, view.tokens_left), (call, Some(6_000 - 10 * i64::from(call))));
    }
}

#[test]
fn an_outage_that_comes_back_lets_no_second_probe_out() {
    let mut world = World::new(|_| {});
    let seen = |state, open_for| sluice_core::admission::TargetView {
        state,
        epoch: 7,
        open_for,
        counts: sluice_core::admission::WindowCounts::default(),
        probes_out: 0,
        tokens_left: None,
        paused_for: Duration::ZERO,
        rate_percent: 100,
        ramping: false,
        opened_by: None,
    };
    world.home.adopt(&world.target, &seen(BreakerState::Open, Duration::ZERO)).unwrap();
    let probe = world.admit();
    assert_eq!(probe.0.answer, AdmitAnswer::Probe);
    for state in [BreakerState::Open, BreakerState::HalfOpen] {
        world.home.adopt(&world.target, &seen(state, Duration::ZERO)).unwrap();
        assert_eq!(world.admit().0.answer, AdmitAnswer::ProbesBusy, "adopted {state:?}");
    }
    // Its verdict still counts, and frees the permit.
    assert_eq!(world.settle(&probe, Verdict::Success).state, BreakerState::HalfOpen);
    assert_eq!(world.admit().0.answer, AdmitAnswer::Probe);
    // The shared home says that it closed meanwhile: that rules.
    world.home.adopt(&world.target, &seen(BreakerState::Closed, Duration::ZERO)).unwrap();
    assert_eq!(world.admit().0.answer, AdmitAnswer::Admitted);
}
