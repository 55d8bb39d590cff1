//! The screen.
//!
//! From the top: where to send calls and who serves them; what clients get; each target with its breaker and
//! its last minutes on one time axis; what happened; keys. It is made for 80 × 24, and more room goes first to
//! the log, then to the graphs. Of a target that nobody asks only the title is left; where even the titles don't
//! fit, targets become rows of a table that scrolls.

mod chart;
mod events;
mod heading;
mod panel;
mod table;
#[cfg(test)]
mod tests;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::fleet::{Status, Target};
use super::model::Model;
use super::theme::{QUIET, STRONG, Theme};

/// Below this there is only a message.
const SMALLEST: (u16, u16) = (60, 14);
const HEADING: u16 = 3;
const TRAFFIC: u16 = 2;
const FOOTER: u16 = 1;
/// The log's heading and some lines; it grows to the second before the graphs do.
const LOG_LEAST: u16 = 4;
const LOG_WANTED: u16 = 9;

/// What the keys have changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Screen {
    /// Targets scrolled past.
    pub scroll: usize,
    /// The curl line instead of the log.
    pub curl: bool,
}

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, model: &Model, screen: Screen, theme: Theme) {
    let area = frame.area();
    let buffer = frame.buffer_mut();
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        let text = format!("Sluice: {} by {} is too small; 80 by 24 shows it all", area.width, area.height);
        put(buffer, area, 0, 0, [Span::raw(text)]);
        put(buffer, area, 0, 1, [Span::styled("q quits", QUIET)]);
        return;
    }
    let plan = Plan::of(area.height, &model.fleet.targets);
    let mut rows = Rows { area, next: 0 };
    heading::draw(buffer, rows.take(HEADING), model, theme);
    heading::draw_traffic(buffer, rows.take(TRAFFIC), model, theme);
    match &plan {
        Plan::Panels { open, ttft, admitted, gap } => {
            let scale = panel::Scale::of(model, area.width);
            for (target, open) in model.fleet.targets.iter().zip(open) {
                if *open {
                    let rows = rows.take(panel::rows(*ttft, *admitted) + gap);
                    panel::draw(buffer, rows, (*ttft, *admitted), target, model, &scale, theme);
                } else {
                    panel::draw_folded(buffer, rows.take(1), target, model, theme);
                }
            }
        }
        Plan::Table { rows: height } => table::draw(buffer, rows.take(*height), model, screen.scroll, theme),
    }
    let log = rows.take(area.height - rows.next - FOOTER);
    events::draw(buffer, log, model, screen.curl, theme);
    footer(buffer, rows.take(FOOTER), matches!(plan, Plan::Table { .. }));
}

fn footer(buffer: &mut Buffer, area: Rect, scrolls: bool) {
    let mut spans = vec![Span::raw(" ")];
    let keys = [("q", "quit"), ("c", "curl line"), ("j k", "scroll targets")];
    for (key, what) in keys.into_iter().take(if scrolls { 3 } else { 2 }) {
        spans.push(Span::styled(key, STRONG));
        spans.push(Span::styled(format!(" {what}   "), QUIET));
    }
    put(buffer, area, 0, 0, spans);
}

/// How the height is spent on targets.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Plan {
    Panels {
        /// By target: whole, or folded to its title.
        open: Vec<bool>,
        /// Rows of the two graphs of a panel.
        ttft: u16,
        admitted: u16,
        /// Blank rows behind a panel.
        gap: u16,
    },
    Table {
        rows: u16,
    },
}

impl Plan {
    fn of(height: u16, targets: &[Target]) -> Self {
        let room = height.saturating_sub(HEADING + TRAFFIC + FOOTER);
        let count = u16::try_from(targets.len()).unwrap_or(u16::MAX);
        let least = panel::rows(panel::TTFT_LEAST, 1);
        let rows = room.saturating_sub(LOG_LEAST);
        // An open panel takes `least` rows, a folded one its title.
        let fit = rows.saturating_sub(count) / (least - 1);
        if count > rows || (fit == 0 && count > 0) {
            return Self::Table { rows: rows.min(count.saturating_add(2)) };
        }
        let open = choose_open(targets, usize::from(fit));
        let opened = u16::try_from(open.iter().filter(|open| **open).count()).unwrap_or(u16::MAX);
        let needs = |(ttft, admitted, gap): (u16, u16, u16)| {
            (panel::rows(ttft, admitted) + gap).saturating_mul(opened) + (count - opened)
        };
        // The roomiest that leaves the log what it wants.
        let (ttft, admitted, gap) = [(6, 3, 1), (5, 2, 1), (4, 2, 1), (3, 2, 1), (3, 1, 0)]
            .into_iter()
            .find(|sizes| needs(*sizes) + LOG_WANTED <= room)
            .unwrap_or((panel::TTFT_LEAST, 1, 0));
        Self::Panels { open, ttft, admitted, gap }
    }
}

/// Targets that nobody has asked stay folded, unless nobody has asked any.
fn choose_open(targets: &[Target], fit: usize) -> Vec<bool> {
    let asked = |target: &Target| target.attempts > 0 || target.status != Status::Closed;
    let any = targets.iter().any(asked);
    let mut left = fit;
    let mut open = |target: &Target| {
        let opens = left > 0 && (asked(target) || !any);
        left -= usize::from(opens);
        opens
    };
    targets.iter().map(&mut open).collect()
}

/// Hands out an area row by row.
struct Rows {
    area: Rect,
    next: u16,
}

impl Rows {
    fn take(&mut self, height: u16) -> Rect {
        let height = height.min(self.area.height - self.next);
        let taken = Rect { y: self.area.y + self.next, height, ..self.area };
        self.next += height;
        taken
    }
}

/// Writes spans at a place in an area, cut at its right edge; returns the column behind them.
fn put<'a>(
    buffer: &mut Buffer,
    area: Rect,
    x: u16,
    y: u16,
    spans: impl IntoIterator<Item = Span<'a>>,
) -> u16 {
    if y >= area.height || x >= area.width {
        return x;
    }
    let line = Line::from_iter(spans);
    // Text over a rule must not inherit its style.
    let width = u16::try_from(line.width()).unwrap_or(u16::MAX).min(area.width - x);
    for column in 0..width {
        if let Some(cell) = buffer.cell_mut((area.x + x + column, area.y + y)) {
            cell.reset();
        }
    }
    let (end, _) = buffer.set_line(area.x + x, area.y + y, &line, area.width - x);
    end - area.x
}

/// The same, ending at a column.
fn put_right(buffer: &mut Buffer, area: Rect, end: u16, y: u16, spans: Vec<Span<'_>>) -> u16 {
    let width: usize = spans.iter().map(Span::width).sum();
    let start = end.saturating_sub(u16::try_from(width).unwrap_or(u16::MAX));
    put(buffer, area, start, y, spans);
    start
}

/// A rule over the whole width, with a title.
fn rule(buffer: &mut Buffer, area: Rect, y: u16, theme: Theme) {
    let line = theme.signs.rule.repeat(usize::from(area.width));
    put(buffer, area, 0, y, [Span::styled(line, QUIET)]);
}

fn styled<'a>(text: impl Into<std::borrow::Cow<'a, str>>, style: Style) -> Span<'a> {
    Span::styled(text, style)
}
