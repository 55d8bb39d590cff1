//! Targets as rows, where there are too many for panels.

use std::fmt::Write as _;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::super::fleet::{Status, Target};
use super::super::format::{countdown, cut, rate, seconds, short};
use super::super::model::Model;
use super::super::theme::{QUIET, STRONG, Theme};
use super::{chart, put, rule, styled};

const NAME: u16 = 22;
/// Where each column begins behind the name, and its heading.
const COLUMNS: [(u16, &str); 5] =
    [(0, "breaker"), (21, "admitted"), (31, "ttft p95"), (41, "tokens"), (49, "in flight")];
const SIGNAL: u16 = NAME + 60;

pub(super) fn draw(buffer: &mut Buffer, area: Rect, model: &Model, scroll: usize, theme: Theme) {
    let targets = &model.fleet.targets;
    rule(buffer, area, 0, theme);
    put(buffer, area, 2, 0, [styled(" targets ", STRONG)]);
    for (x, heading) in COLUMNS {
        put(buffer, area, NAME + x, 0, [styled(format!(" {heading} "), QUIET)]);
    }
    let room = usize::from(area.height.saturating_sub(1));
    let fits = targets.len() <= room;
    let room = if fits { room } else { room.saturating_sub(1) };
    let scroll = if fits { 0 } else { scroll.min(targets.len() - room.min(targets.len())) };
    for (y, target) in (1..).zip(targets.iter().skip(scroll).take(room)) {
        row(buffer, area, y, target, model, theme);
    }
    let below = targets.len().saturating_sub(scroll + room);
    if !fits {
        let y = area.height - 1;
        let text = format!("{scroll} above, {below} below");
        put(buffer, area, 2, y, [styled(text, QUIET)]);
    }
}

fn row(buffer: &mut Buffer, area: Rect, y: u16, target: &Target, model: &Model, theme: Theme) {
    let mut breaker = format!("{} {}", theme.signs.badge(target.status), target.status.as_str());
    if target.status == Status::Open {
        let _ = write!(breaker, " {}", countdown(target.open_for));
    } else if target.ramping {
        breaker.push_str(" ramping");
    }
    let tokens = match (target.tokens_left, target.burst_tokens) {
        (Some(left), Some(_)) => short(left),
        _ => theme.signs.none.to_owned(),
    };
    let cells = [
        (styled(cut(&breaker, 20), theme.status(target.status)), COLUMNS[0].0),
        (
            styled(model.attempt_rate(&target.key).map_or_else(|| theme.signs.none.to_owned(), rate), STRONG),
            COLUMNS[1].0,
        ),
        (
            styled(target.ttft_p95_ms.map_or_else(|| theme.signs.none.to_owned(), seconds), STRONG),
            COLUMNS[2].0,
        ),
        (styled(tokens, STRONG), COLUMNS[3].0),
        (styled(format!("{}/{}", target.in_flight, target.limit), STRONG), COLUMNS[4].0),
    ];
    put(buffer, area, 2, y, [styled(cut(&target.label, usize::from(NAME) - 3), STRONG)]);
    for (span, x) in cells {
        put(buffer, area, NAME + x + 1, y, [span]);
    }
    let width = area.width.saturating_sub(SIGNAL + 1);
    if let Some(history) = model.history(&target.key).filter(|_| width >= 10) {
        let columns = history.columns(usize::from(width), 1);
        let states: Vec<Status> = columns.iter().map(|column| column.status).collect();
        chart::signal(buffer, Rect { x: area.x + SIGNAL, y: area.y + y, width, height: 1 }, &states, theme);
    }
}
