//! Whole screens against golden files. `UPDATE_GOLDEN=1 cargo test -p sluice-cli` writes them anew; read the
//! difference before committing it.

use std::path::PathBuf;
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};
use sluice_agent::state::AgentState;
use sluice_core::admission::{BreakerState, TransitionReason, WindowCounts};
use sluice_core::policy::WireFormat;

use super::super::load::LoadCounts;
use super::super::model::{Input, Intro, Level, Model, Sample, TransitionLine};
use super::super::phase::Phase;
use super::super::synthetic::{agent, target};
use super::super::theme::Theme;
use super::{Screen, draw};

const COLOR: Theme = Theme::new(true, true);

fn paint(model: &Model, (width, height): (u16, u16), screen: Screen, theme: Theme) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, model, screen, theme)).unwrap();
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width);
    let rows = buffer.content().chunks(width);
    let rows = rows.map(|row| row.iter().map(Cell::symbol).collect::<String>().trim_end().to_owned());
    rows.map(|row| row + "\n").collect()
}

#[track_caller]
fn assert_golden(name: &str, buffer: &Buffer) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/view").join(name);
    let drawn = text(buffer);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &drawn).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(golden, drawn, "{name}: drawn is not what {} says:\n{drawn}", path.display());
}

/// Where a text begins.
#[track_caller]
fn find(buffer: &Buffer, wanted: &str) -> (u16, u16) {
    for (y, row) in (0..).zip(text(buffer).lines()) {
        if let Some(at) = row.find(wanted) {
            return (row[..at].chars().count() as u16, y);
        }
    }
    panic!("{wanted:?} is not on the screen:\n{}", text(buffer));
}

/// The style of a text that is on the screen.
#[track_caller]
fn style_of(buffer: &Buffer, wanted: &str) -> (Color, Modifier) {
    let cell = &buffer[find(buffer, wanted)];
    (cell.fg, cell.modifier)
}

/// A run of `seconds` with ten calls a second at the primary, and whatever `shape` makes of each second.
fn played(seconds: u64, shape: impl Fn(u64, &mut AgentState)) -> Model {
    let intro = Intro {
        base_url: "http://127.0.0.1:8080/v1".into(),
        format: WireFormat::OpenAi,
        model: "gpt-4o".into(),
    };
    let mut model = Model::new(intro);
    for second in 0..=seconds {
        let mut one = agent("agent-1", vec![target("primary"), target("fallback")]);
        one.exchanges.total = second * 10;
        one.exchanges.in_flight = 4;
        let primary = &mut one.routes[0].targets[0];
        primary.attempts = second * 10;
        primary.in_flight = 4;
        primary.tokens_left = Some(82_149);
        primary.breaker.calls = 132;
        primary.ttft_p50_ms = Some(310);
        primary.ttft_p95_ms = Some(440);
        shape(second, &mut one);
        let at = Duration::from_secs(second);
        model.feed(Input::Sample(Box::new(Sample { at, agents: vec![one], provider: None, load: None })));
    }
    model
}

fn transition(at: u64, from: BreakerState, to: BreakerState, reason: TransitionReason) -> Input {
    let counts = match to {
        BreakerState::Open => WindowCounts { calls: 82, failures: 2, slow: 51, stalls: 0 },
        _ => WindowCounts::default(),
    };
    Input::Transition(TransitionLine {
        at: Duration::from_millis(at),
        agent: "agent-1".into(),
        target: "id-of-primary".into(),
        from,
        to,
        reason,
        counts,
        alone: false,
    })
}

/// Slow from the tenth second on, open from the twentieth.
fn opened(second: u64, one: &mut AgentState) {
    let since = second.saturating_sub(20);
    let primary = &mut one.routes[0].targets[0];
    primary.attempts = second.min(20) * 10;
    if second >= 10 {
        primary.ttft_p50_ms = Some(300 + (second.min(20) - 10) * 500);
        primary.ttft_p95_ms = Some(500 + (second.min(20) - 10) * 700);
    }
    if second >= 20 {
        primary.breaker.state = "open";
        primary.breaker.open_for_ms = 30_000 - since * 1_000;
        primary.breaker.epoch = 2;
        primary.breaker.slow = 51;
        primary.in_flight = 0;
        primary.rejections = vec![("open", since * 10)];
        primary.failovers = since * 10;
        one.exchanges.failed_over = since * 10;
        let fallback = &mut one.routes[0].targets[1];
        fallback.attempts = since * 10;
        fallback.in_flight = 7;
        fallback.ttft_p50_ms = Some(420);
        fallback.ttft_p95_ms = Some(610);
    }
}

#[test]
fn closed_and_nothing_has_happened_yet() {
    let buffer = paint(&played(30, |_, _| {}), (80, 24), Screen::default(), COLOR);
    assert_golden("closed-80x24.txt", &buffer);
    assert_eq!(style_of(&buffer, "CLOSED"), (Color::Green, Modifier::BOLD));
    assert_eq!(style_of(&buffer, "primary").1, Modifier::BOLD, "a title is not as dim as its rule");
}

#[test]
fn open_with_what_is_left_of_the_cool_down() {
    let mut model = played(31, opened);
    model.feed(transition(20_300, BreakerState::Closed, BreakerState::Open, TransitionReason::SlowRate));
    let buffer = paint(&model, (80, 24), Screen::default(), COLOR);
    assert_golden("open-80x24.txt", &buffer);
    assert_eq!(style_of(&buffer, "OPEN"), (Color::Red, Modifier::BOLD | Modifier::REVERSED));
    assert_eq!(style_of(&buffer, "probes in 19 s").0, Color::Red);
    assert_golden("open-120x40.txt", &paint(&model, (120, 40), Screen::default(), COLOR));
}

#[test]
fn half_open_with_a_probe_out() {
    let mut model = played(52, |second, one| {
        opened(second.min(49), one);
        if second >= 50 {
            let primary = &mut one.routes[0].targets[0];
            primary.breaker.state = "half-open";
            primary.breaker.epoch = 3;
            primary.breaker.probes_out = 1;
            primary.breaker.calls = 0;
            primary.breaker.slow = 0;
            primary.attempts = 201;
        }
    });
    model.feed(transition(20_300, BreakerState::Closed, BreakerState::Open, TransitionReason::SlowRate));
    model.feed(transition(
        50_100,
        BreakerState::Open,
        BreakerState::HalfOpen,
        TransitionReason::CooldownEnded,
    ));
    let buffer = paint(&model, (80, 24), Screen::default(), COLOR);
    assert_golden("half-open-80x24.txt", &buffer);
    assert_eq!(style_of(&buffer, "HALF-OPEN"), (Color::Yellow, Modifier::BOLD | Modifier::REVERSED));
}

#[test]
fn a_store_that_is_away_is_said_in_red() {
    let model = played(12, |second, one| {
        one.store.home = "redis";
        one.store.reachable = second < 8;
        one.store.reason = (second >= 8).then(|| "no answer within 20 ms".to_owned());
    });
    let buffer = paint(&model, (80, 24), Screen::default(), COLOR);
    assert_golden("store-away-80x24.txt", &buffer);
    assert_eq!(style_of(&buffer, "store redis unreachable").0, Color::Red);
}

#[test]
fn a_phase_and_a_store_that_is_away_share_a_line() {
    let mut model = played(2, |_, _| {});
    let mut agents =
        vec![agent("agent-1", vec![target("primary")]), agent("agent-2", vec![target("primary")])];
    agents[1].store.home = "redis";
    agents[1].store.reachable = false;
    agents[1].store.reason = Some("timeout: a script took longer than the deadline of 20 ms".into());
    let provider = Some(Phase {
        scenario: "brownout".into(),
        number: 2,
        of: 5,
        name: "slower and slower to the first token".into(),
        left: Some(Duration::from_secs(7)),
    });
    let at = Duration::from_secs(3);
    model.feed(Input::Sample(Box::new(Sample { at, agents, provider, load: None })));
    for width in [60, 80, 100, 170] {
        let drawn = text(&paint(&model, (width, 24), Screen::default(), COLOR));
        let line = drawn.lines().nth(1).unwrap_or_default();
        assert!(line.contains("provider  brownout 2/5") || width == 60, "{width}: {line}");
        assert!(line.contains(" store redis unreachable for 1 of 2 agents"), "{width}: {line}");
        assert!(line.chars().count() < usize::from(width));
        assert!(width < 170 || line.ends_with("the deadline of 20 ms"), "{line}");
    }
}

#[test]
fn before_the_first_sample_it_says_how_to_call() {
    let intro = Intro {
        base_url: "http://127.0.0.1:8080/v1".into(),
        format: WireFormat::OpenAi,
        model: "gpt-4o".into(),
    };
    assert_golden("start-80x24.txt", &paint(&Model::new(intro), (80, 24), Screen::default(), COLOR));
}

#[test]
fn an_incident_under_load_with_all_there_is_to_say() {
    let mut model = played(31, opened);
    let mut one = agent("agent-1", vec![target("primary"), target("fallback")]);
    opened(32, &mut one);
    one.routes[0].targets.push(target("spare"));
    one.exchanges.total = 320;
    one.routes[0].targets[1].tokens_left = Some(3_000);
    one.routes[0].targets[1].rate_percent = 90;
    one.routes[0].targets[1].in_flight = 32;
    let load = LoadCounts {
        ok: 301,
        degraded: 12,
        refused: 4,
        failed: 1,
        ttft_p50_ms: Some(420),
        ttft_p95_ms: Some(5_100),
        ..LoadCounts::default()
    };
    let provider = Some(Phase {
        scenario: "brownout".into(),
        number: 3,
        of: 5,
        name: "stalls before the first token".into(),
        left: Some(Duration::from_millis(6_200)),
    });
    let at = Duration::from_secs(32);
    model.feed(Input::Note {
        at,
        level: Level::Warning,
        subject: "policy",
        text: "route.yaml: spec.models: empty".into(),
    });
    model.feed(Input::Sample(Box::new(Sample { at, agents: vec![one], provider, load: Some(load) })));
    let buffer = paint(&model, (140, 30), Screen::default(), COLOR);
    assert_golden("incident-140x30.txt", &buffer);
    assert_eq!(style_of(&buffer, "1 failed").0, Color::Red);
    assert_eq!(style_of(&buffer, "refill 90 %").0, Color::Yellow);
}

#[test]
fn many_targets_are_rows_that_scroll() {
    let intro =
        Intro { base_url: "http://127.0.0.1:8080/v1".into(), model: "gpt-4o".into(), ..Intro::default() };
    let mut model = Model::new(intro);
    let mut targets: Vec<_> = (0..30).map(|number| target(&format!("region-{number}"))).collect();
    targets[1].breaker.state = "open";
    targets[1].breaker.open_for_ms = 12_000;
    let agents = vec![agent("agent-1", targets)];
    model.feed(Input::Sample(Box::new(Sample { agents, ..Sample::default() })));
    assert_golden("many-100x24.txt", &paint(&model, (100, 24), Screen::default(), COLOR));
    let scrolled = paint(&model, (100, 24), Screen { scroll: 100, curl: false }, COLOR);
    find(&scrolled, "region-29");
    find(&scrolled, "0 below");
}

#[test]
fn no_color_draws_none_and_ascii_is_ascii() {
    let mut model = played(31, opened);
    model.feed(transition(20_300, BreakerState::Closed, BreakerState::Open, TransitionReason::SlowRate));
    let buffer = paint(&model, (80, 24), Screen::default(), Theme::new(false, false));
    assert_golden("no-color-ascii-80x24.txt", &buffer);
    let plain = |color: Color| color == Color::Reset;
    assert!(buffer.content().iter().all(|cell| plain(cell.fg) && plain(cell.bg)));
    assert!(text(&buffer).is_ascii());
    assert!(style_of(&buffer, "OPEN").1.contains(Modifier::REVERSED), "an open breaker still stands out");
}

#[test]
fn every_size_is_survived() {
    let mut model = played(31, opened);
    model.feed(transition(20_300, BreakerState::Closed, BreakerState::Open, TransitionReason::SlowRate));
    for width in (1..58).step_by(13).chain(58..66).chain((66..200).step_by(17)) {
        for height in (1..13).step_by(4).chain(13..26).chain((26..70).step_by(11)) {
            for curl in [false, true] {
                paint(&model, (width, height), Screen { scroll: 3, curl }, COLOR);
            }
        }
    }
    let small = paint(&model, (40, 10), Screen::default(), COLOR);
    find(&small, "too small");
}
