//! Deadlines and verdicts of one stream, step by step and under random steps.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use sluice_core::classify::Happening;
use sluice_core::outcome::Verdict;
use sluice_core::policy::{ClassifyRule, Slow, SlowCounts};
use sluice_core::stream::{BodyEnd, Ending, SlowThresholds, Step, StreamRules, StreamWatch};
use sluice_core::wire::{Delta, Fact, ProviderError, Usage};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The attempt starts here, so that times are not confused with durations.
const START: Duration = ms(1_000_000);

const fn at(after_start: u64) -> Duration {
    ms(1_000_000 + after_start)
}

fn rules() -> StreamRules {
    StreamRules {
        first_token: ms(10_000),
        first_token_is_callers: false,
        stall: ms(20_000),
        max_silence: ms(60_000),
        total: ms(300_000),
        total_is_callers: false,
        slow: SlowThresholds { ttft: Some(ms(5_000)), ..SlowThresholds::default() },
        probe: false,
        classify: Vec::new(),
        own_credential: true,
    }
}

fn watch() -> StreamWatch {
    StreamWatch::new(rules(), START)
}

fn probe() -> StreamWatch {
    StreamWatch::new(StreamRules { probe: true, ..rules() }, START)
}

fn token() -> Fact {
    Fact { delta: Delta::Token, deltas: 1, ..Fact::default() }
}

fn reasoning() -> Fact {
    Fact { delta: Delta::Reasoning, deltas: 1, ..Fact::default() }
}

fn ping() -> Fact {
    Fact { ping: true, ..Fact::default() }
}

fn terminal() -> Fact {
    Fact { terminal: true, ..Fact::default() }
}

fn error(kind: &str, status: u16) -> Fact {
    let error = ProviderError { kind: Some(kind.into()), code: None, status };
    Fact { error: Some(error), ..Fact::default() }
}

fn ended(step: Step) -> Ending {
    match step {
        Step::End(ending) => ending,
        other => panic!("{other:?} is no end"),
    }
}

/// Sends a token and checks that nothing comes of it.
fn token_at(watch: &mut StreamWatch, after_start: u64) {
    assert_eq!(watch.on_fact(at(after_start), &token()), Step::Continue);
}

#[test]
fn a_good_stream_is_a_success_at_its_end() {
    let mut watch = watch();
    assert_eq!(watch.next_wakeup(), at(5_001), "the slow threshold comes first");
    assert_eq!(watch.on_fact(at(100), &ping()), Step::Continue);
    assert!(!watch.committed());
    token_at(&mut watch, 700);
    assert!(watch.committed());
    assert_eq!(watch.next_wakeup(), at(20_700), "from the first token on the stall timer runs");
    token_at(&mut watch, 900);
    assert_eq!(watch.on_fact(at(1_000), &terminal()), Step::Continue);
    let ending = watch.on_end(at(1_001), BodyEnd::Clean);
    assert_eq!(ending.verdict, Some(Verdict::Success));
    assert_eq!(watch.ttft(), Some(ms(700)));
    assert_eq!(watch.per_output_token(), Some(ms(200)));
    assert_eq!(watch.duration(at(9_000)), ms(1_001));
}

#[test]
fn slow_is_certain_at_its_threshold_and_stands() {
    let mut watch = watch();
    assert_eq!(watch.on_wakeup(at(5_000)), Step::Continue, "as long as the threshold is not beyond it");
    assert_eq!(watch.on_wakeup(at(5_001)), Step::Verdict(Verdict::Slow));
    assert_eq!(watch.next_wakeup(), at(10_000));
    token_at(&mut watch, 6_000);
    watch.on_fact(at(7_000), &terminal());
    let ending = watch.on_end(at(7_000), BodyEnd::Clean);
    assert_eq!((ending.classified.verdict, ending.verdict), (Verdict::Slow, None), "told before");
}

#[test]
fn a_slow_first_token_counts_even_when_the_timer_is_late() {
    let mut watch = watch();
    assert_eq!(watch.on_fact(at(6_000), &token()), Step::Verdict(Verdict::Slow));
}

#[test]
fn the_first_token_deadline() {
    let mut quick = StreamWatch::new(StreamRules { slow: SlowThresholds::default(), ..rules() }, START);
    assert_eq!(quick.next_wakeup(), at(10_000));
    let ending = ended(quick.on_wakeup(at(10_000)));
    assert_eq!(ending.verdict, Some(Verdict::Failure));
    assert!(ending.classified.retry && ending.classified.failover);

    let mut slow = watch();
    assert_eq!(slow.on_wakeup(at(5_001)), Step::Verdict(Verdict::Slow));
    let ending = ended(slow.on_wakeup(at(10_000)));
    assert_eq!((ending.classified.verdict, ending.verdict), (Verdict::Slow, None), "already slow");

    let mut both_at_once = watch();
    assert_eq!(ended(both_at_once.on_wakeup(at(30_000))).verdict, Some(Verdict::Slow));
}

#[test]
fn headers_pings_and_role_chunks_do_not_stop_the_first_token_deadline() {
    let mut watch = watch();
    for second in 0..10 {
        watch.on_bytes(at(second * 1_000), b": ping\n\n");
        assert_eq!(watch.on_fact(at(second * 1_000), &ping()), Step::Continue);
        assert_eq!(watch.on_fact(at(second * 1_000), &Fact::default()), Step::Continue);
    }
    assert!(matches!(watch.on_wakeup(at(10_000)), Step::End(_)));
}

#[test]
fn a_stall_behind_the_first_token() {
    let mut watch = watch();
    for i in 0..20 {
        token_at(&mut watch, 1_000 + i * 50);
    }
    assert_eq!(watch.next_wakeup(), at(21_950));
    assert_eq!(watch.on_wakeup(at(21_949)), Step::Continue);
    let ending = ended(watch.on_wakeup(at(21_950)));
    assert_eq!((ending.happening, ending.verdict), (Happening::Stalled, Some(Verdict::Stall)));
    assert!(!ending.classified.retry && !ending.classified.failover);
}

#[test]
fn pings_and_reasoning_reset_the_stall_but_not_the_silence() {
    for fact in [ping(), reasoning()] {
        let mut watch = watch();
        token_at(&mut watch, 1_000);
        let mut now = 1_000;
        loop {
            now += 15_000;
            if now >= 61_000 {
                break;
            }
            assert_eq!(watch.on_wakeup(at(now)), Step::Continue);
            watch.on_fact(at(now), &fact);
        }
        assert_eq!(watch.next_wakeup(), at(61_000));
        assert!(matches!(watch.on_wakeup(at(61_000)), Step::End(_)), "{fact:?}");
    }
}

#[test]
fn a_first_token_may_be_reasoning() {
    let mut watch = watch();
    assert_eq!(watch.on_fact(at(800), &reasoning()), Step::Continue);
    assert_eq!(watch.ttft(), Some(ms(800)));
}

#[test]
fn part_of_a_large_event_is_a_sign_of_life() {
    let mut watch = watch();
    token_at(&mut watch, 1_000);
    watch.on_bytes(at(20_000), b"data: {\"choices\"");
    assert_eq!(watch.next_wakeup(), at(40_000));
}

#[test]
fn a_cut_and_a_missing_end_are_stalls() {
    for end in [BodyEnd::Clean, BodyEnd::Cut] {
        let mut watch = watch();
        token_at(&mut watch, 1_000);
        let ending = watch.on_end(at(1_100), end);
        assert_eq!(ending.happening, Happening::Cut { first_token: true }, "{end:?}");
        assert_eq!(ending.verdict, Some(Verdict::Stall));
    }
    let mut watch = watch();
    token_at(&mut watch, 1_000);
    watch.on_fact(at(1_050), &Fact { finish: true, ..Fact::default() });
    assert_eq!(watch.on_end(at(1_100), BodyEnd::Clean).verdict, Some(Verdict::Stall), "no terminal event");
}

#[test]
fn a_reset_behind_the_terminal_event_changes_nothing() {
    let mut watch = watch();
    token_at(&mut watch, 1_000);
    watch.on_fact(at(1_050), &terminal());
    assert_eq!(watch.on_wakeup(at(200_000)), Step::Continue, "nothing is due any more but the total");
    assert_eq!(watch.on_end(at(200_000), BodyEnd::Cut).verdict, Some(Verdict::Success));
}

#[test]
fn empty_html_and_cut_before_the_first_token() {
    let mut empty = watch();
    assert_eq!(empty.on_end(at(5), BodyEnd::Clean).happening, Happening::Empty);
    let mut blank = watch();
    blank.on_bytes(at(1), b"\r\n\r\n");
    assert_eq!(blank.on_end(at(5), BodyEnd::Clean).happening, Happening::Empty);
    let mut done = watch();
    done.on_bytes(at(1), b"data: [DONE]\n\n");
    done.on_fact(at(1), &terminal());
    assert_eq!(done.on_end(at(5), BodyEnd::Clean).happening, Happening::Empty, "an end of nothing");
    let mut html = watch();
    html.on_bytes(at(1), b"<html>busy</html>");
    assert_eq!(html.on_end(at(5), BodyEnd::Clean).happening, Happening::NotJson);
    let mut cut = watch();
    cut.on_bytes(at(1), b"data: {}\n\n");
    cut.on_fact(at(1), &Fact::default());
    let ending = cut.on_end(at(5), BodyEnd::Cut);
    assert_eq!(ending.happening, Happening::Cut { first_token: false });
    assert!(ending.classified.failover, "nothing reached the client");
}

#[test]
fn an_answer_without_text_is_an_answer() {
    let mut finished = watch();
    finished.on_fact(at(1), &Fact { finish: true, ..Fact::default() });
    finished.on_fact(at(2), &terminal());
    assert_eq!(finished.on_end(at(5), BodyEnd::Clean).verdict, Some(Verdict::Success));
}

#[test]
fn an_error_before_the_first_token_ends_it_at_once() {
    let mut watch = watch();
    let ending = ended(watch.on_fact(at(50), &error("overloaded_error", 529)));
    assert_eq!(ending.verdict, Some(Verdict::Failure));
    assert!(ending.classified.failover);
    let mut callers = StreamWatch::new(rules(), START);
    let ending = ended(callers.on_fact(at(50), &error("invalid_request_error", 400)));
    assert_eq!((ending.verdict, ending.classified.failover), (Some(Verdict::Ignored), false));
}

#[test]
fn an_error_behind_the_first_token_is_told_once() {
    let mut watch = watch();
    token_at(&mut watch, 100);
    assert_eq!(watch.on_fact(at(200), &error("overloaded_error", 529)), Step::Verdict(Verdict::Failure));
    assert_eq!(watch.on_fact(at(201), &terminal()), Step::Continue);
    let ending = watch.on_end(at(210), BodyEnd::Clean);
    assert_eq!((ending.classified.verdict, ending.verdict), (Verdict::Failure, None));
}

#[test]
fn a_policys_classification_rules_errors_in_streams() {
    let rule = ClassifyRule {
        statuses: None,
        error_type: Some("overloaded_error".into()),
        verdict: Verdict::Ignored,
    };
    let mut watch = StreamWatch::new(StreamRules { classify: vec![rule], ..rules() }, START);
    assert_eq!(ended(watch.on_fact(at(50), &error("overloaded_error", 529))).verdict, Some(Verdict::Ignored));
}

#[test]
fn a_probe_succeeds_at_its_first_token_and_may_stall_later() {
    let mut good = probe();
    assert_eq!(good.on_fact(at(700), &token()), Step::Verdict(Verdict::Success));
    good.on_fact(at(800), &terminal());
    assert_eq!(good.on_end(at(800), BodyEnd::Clean).verdict, None);

    let mut stalled = probe();
    assert_eq!(stalled.on_fact(at(700), &token()), Step::Verdict(Verdict::Success));
    assert_eq!(ended(stalled.on_wakeup(at(20_700))).verdict, Some(Verdict::Stall), "the one exception");

    let mut slow = probe();
    assert_eq!(slow.on_wakeup(at(5_001)), Step::Verdict(Verdict::Slow));
    assert_eq!(slow.on_fact(at(6_000), &token()), Step::Continue);
    assert_eq!(slow.on_end(at(6_001), BodyEnd::Cut).verdict, None, "a slow probe reopened already");

    let mut late_error = probe();
    late_error.on_fact(at(700), &token());
    assert_eq!(late_error.on_fact(at(800), &error("api_error", 500)), Step::Continue);
}

#[test]
fn a_client_that_leaves() {
    let mut early = watch();
    assert_eq!(early.on_client_gone(at(1_000)).verdict, Some(Verdict::Ignored));
    let mut late = watch();
    assert_eq!(late.on_client_gone(at(6_000)).verdict, Some(Verdict::Slow), "past the slow threshold");
    let mut undecided = probe();
    assert_eq!(
        undecided.on_client_gone(at(1_000)).verdict,
        Some(Verdict::Cancelled),
        "its permit is returned"
    );
    let mut decided = probe();
    decided.on_fact(at(700), &token());
    assert_eq!(decided.on_client_gone(at(1_000)).verdict, None);
    let mut draining = watch();
    assert_eq!(draining.on_draining(at(1_000)).verdict, Some(Verdict::Cancelled));
}

#[test]
fn a_first_token_deadline_of_the_callers_own_says_nothing_of_the_provider() {
    let hurried = StreamRules { first_token: ms(2_000), first_token_is_callers: true, ..rules() };
    let ending = ended(StreamWatch::new(hurried, START).on_wakeup(at(2_000)));
    assert_eq!(ending.verdict, Some(Verdict::Ignored));
    assert!(!ending.classified.retry && !ending.classified.failover);
    assert!(matches!(ending.happening, Happening::TotalDeadline { callers: true, .. }));
}

#[test]
fn the_total_deadline() {
    let short = StreamRules { total: ms(3_000), total_is_callers: true, ..rules() };
    let mut callers = StreamWatch::new(short.clone(), START);
    assert_eq!(callers.next_wakeup(), at(3_000));
    assert_eq!(ended(callers.on_wakeup(at(3_000))).verdict, Some(Verdict::Ignored));
    let mut policys = StreamWatch::new(StreamRules { total_is_callers: false, ..short }, START);
    assert_eq!(ended(policys.on_wakeup(at(3_000))).verdict, Some(Verdict::Failure));
    let mut long = watch();
    let mut now = 0;
    while now < 300_000 {
        long.on_fact(at(now), &token());
        now += 10_000;
    }
    assert_eq!(ended(long.on_wakeup(at(300_000))).verdict, Some(Verdict::Ignored), "long is not slow");
}

#[test]
fn slow_by_time_per_token_and_by_duration() {
    let slow = SlowThresholds { ttft: None, per_output_token: Some(ms(100)), ..SlowThresholds::default() };
    let mut per_token = StreamWatch::new(StreamRules { slow, ..rules() }, START);
    for i in 0..10 {
        token_at(&mut per_token, 500 + i * 150);
    }
    per_token.on_fact(at(2_000), &terminal());
    assert_eq!(per_token.on_end(at(2_000), BodyEnd::Clean).verdict, Some(Verdict::Slow));

    let usage = Some(Usage { input: 1, output: 101, cached_input: 0, reasoning: 0 });
    let mut counted = StreamWatch::new(StreamRules { slow, ..rules() }, START);
    token_at(&mut counted, 500);
    token_at(&mut counted, 1_500);
    counted.on_fact(at(1_500), &Fact { terminal: true, usage, ..Fact::default() });
    assert_eq!(counted.per_output_token(), Some(ms(10)), "the provider's count, not the number of chunks");
    assert_eq!(counted.on_end(at(1_500), BodyEnd::Clean).verdict, Some(Verdict::Success));

    let slow = SlowThresholds { duration: Some(ms(2_000)), ..SlowThresholds::default() };
    let mut long = StreamWatch::new(StreamRules { slow, ..rules() }, START);
    token_at(&mut long, 500);
    assert_eq!(long.next_wakeup(), at(2_001));
    assert_eq!(long.on_wakeup(at(2_001)), Step::Verdict(Verdict::Slow));
}

#[test]
fn slow_may_count_as_failure() {
    let slow =
        SlowThresholds { ttft: Some(ms(3_000)), count_as: SlowCounts::Failure, ..SlowThresholds::default() };
    let mut early = StreamWatch::new(StreamRules { slow, ..rules() }, START);
    assert_eq!(early.on_wakeup(at(3_001)), Step::Verdict(Verdict::Failure));
    token_at(&mut early, 4_000);
    early.on_fact(at(4_100), &terminal());
    let ending = early.on_end(at(4_100), BodyEnd::Clean);
    assert_eq!((ending.classified.verdict, ending.verdict), (Verdict::Slow, None), "told apart in metrics");
    let mut probe = StreamWatch::new(StreamRules { slow, probe: true, ..rules() }, START);
    assert_eq!(probe.on_fact(at(4_000), &token()), Step::Verdict(Verdict::Failure));
}

#[test]
fn relative_thresholds() {
    let slow = Slow { relative_percent: Some(300), ..Slow::default() };
    assert_eq!(SlowThresholds::of(&slow, Some(ms(600))).ttft, Some(ms(1_800)));
    assert_eq!(SlowThresholds::of(&slow, Some(ms(6_000))).ttft, Some(ms(5_000)), "the smaller");
    assert_eq!(SlowThresholds::of(&slow, None).ttft, Some(ms(5_000)), "nothing learned yet");
    let off = Slow { ttft: None, ..slow };
    assert_eq!(SlowThresholds::of(&off, None).ttft, None);
}

#[derive(Debug, Clone)]
enum Act {
    Fact(Fact),
    Bytes,
    Wake,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => Just(Act::Fact(token())),
        2 => Just(Act::Fact(reasoning())),
        2 => Just(Act::Fact(ping())),
        1 => Just(Act::Fact(Fact::default())),
        1 => Just(Act::Fact(terminal())),
        1 => Just(Act::Fact(error("api_error", 500))),
        1 => Just(Act::Bytes),
        4 => Just(Act::Wake),
    ]
}

/// A failure's seed is printed and kept in a file beside this one, and is run first from then on.
fn cases(cases: u32) -> ProptestConfig {
    let kept = FileFailurePersistence::WithSource("regressions");
    ProptestConfig { cases, failure_persistence: Some(Box::new(kept)), ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(2_000))]

    /// Whatever comes in whatever order: one verdict (and at most one later stall of a probe that
    /// succeeded), timers that move on, and an end no later than the deadlines say.
    #[test]
    fn one_verdict_and_an_end_in_time(
        acts in prop::collection::vec((0..8_000_u64, act()), 0..60), probe in any::<bool>(), cut in any::<bool>()
    ) {
        let mut watch = StreamWatch::new(StreamRules { probe, ..rules() }, START);
        let mut verdicts = Vec::new();
        let (mut now, mut over) = (0, false);
        'acts: for (step, act) in acts {
            now += step;
            // The agent is punctual: every timer that is due has been served before the next thing happens.
            let mut wakeups = 0;
            while watch.next_wakeup() <= at(now) {
                wakeups += 1;
                prop_assert!(wakeups < 10, "a timer that does not move on");
                match watch.on_wakeup(watch.next_wakeup()) {
                    Step::Continue => {}
                    Step::Verdict(verdict) => verdicts.push(verdict),
                    Step::End(ending) => {
                        verdicts.extend(ending.verdict);
                        over = true;
                        break 'acts;
                    }
                }
            }
            let step = match &act {
                Act::Fact(fact) => watch.on_fact(at(now), fact),
                Act::Bytes => {
                    watch.on_bytes(at(now), b"data");
                    Step::Continue
                }
                Act::Wake => watch.on_wakeup(at(now)),
            };
            match step {
                Step::Continue => {}
                Step::Verdict(verdict) => verdicts.push(verdict),
                Step::End(ending) => {
                    verdicts.extend(ending.verdict);
                    over = true;
                    break 'acts;
                }
            }
        }
        if !over {
            let end = if cut { BodyEnd::Cut } else { BodyEnd::Clean };
            verdicts.extend(watch.on_end(at(now), end).verdict);
        }
        let later_stall = probe && verdicts == [Verdict::Success, Verdict::Stall];
        prop_assert!(verdicts.len() == 1 || later_stall, "{:?}", verdicts);
        prop_assert!(now <= 300_000 + 8_000 * 60);
        prop_assert_eq!(watch.on_end(at(now), BodyEnd::Cut).verdict, None, "nothing is told twice");
    }
}
