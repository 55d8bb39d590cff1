//! What happened, the newest last; and how to make something happen, while nothing has.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Span;
use sluice_core::admission::{BreakerState, TransitionReason};

use super::super::fleet::Status;
use super::super::format::{clock, counts, cut};
use super::super::model::{Entry, Level, Model, TransitionLine};
use super::super::theme::{QUIET, STRONG, Theme};
use super::{put, put_right, rule, styled};

const SUBJECT: u16 = 10;

pub(super) fn draw(buffer: &mut Buffer, area: Rect, model: &Model, curl: bool, theme: Theme) {
    let room = usize::from(area.height.saturating_sub(1));
    rule(buffer, area, 0, theme);
    let idle = model.logged() == 0 && model.load.is_none();
    let call = model.intro.curl();
    if (curl || idle) && !call.is_empty() {
        put(buffer, area, 2, 0, [styled(" try it ", STRONG)]);
        for (y, line) in (1..).zip(call) {
            put(buffer, area, 2, y, [Span::raw(line)]);
        }
        let text = format!("or give an SDK {}", model.intro.sdk());
        put(buffer, area, 2, 4, [styled(text, QUIET)]);
        return;
    }
    put(buffer, area, 2, 0, [styled(" what happened ", STRONG)]);
    let width = subject_width(area, model);
    for (y, entry) in (1..).zip(model.last(room)) {
        draw_entry(buffer, area, y, entry, width, theme);
    }
}

fn draw_entry(buffer: &mut Buffer, area: Rect, y: u16, entry: &Entry, width: u16, theme: Theme) {
    let subject = SUBJECT + width + 2;
    match entry {
        Entry::Transition(line) => {
            time(buffer, area, y, line.at);
            let name = cut(&line.target, usize::from(width));
            put(buffer, area, SUBJECT, y, [styled(name, STRONG)]);
            draw_transition(buffer, area, (subject, y), line, theme);
        }
        Entry::Note { at, level, subject: about, text } => {
            time(buffer, area, y, *at);
            put(buffer, area, SUBJECT, y, [styled(*about, QUIET)]);
            let style = if *level == Level::Warning { theme.warning() } else { QUIET };
            let text = cut(text, usize::from(area.width.saturating_sub(subject + 1)));
            put(buffer, area, subject, y, [styled(text, style)]);
        }
    }
}

/// Room for the longest name, as far as what follows fits all the same.
fn subject_width(area: Rect, model: &Model) -> u16 {
    let names = model.fleet.targets.iter().map(|target| target.label.chars().count());
    let longest = u16::try_from(names.max().unwrap_or(0)).unwrap_or(u16::MAX);
    longest.clamp(8, if area.width < 110 { 14 } else { 24 })
}

fn time(buffer: &mut Buffer, area: Rect, y: u16, at: std::time::Duration) {
    put_right(buffer, area, SUBJECT - 2, y, vec![styled(clock(at), QUIET)]);
}

fn draw_transition(buffer: &mut Buffer, area: Rect, (x, y): (u16, u16), line: &TransitionLine, theme: Theme) {
    let state = |state: BreakerState| match state {
        BreakerState::Closed => Status::Closed,
        BreakerState::HalfOpen => Status::HalfOpen,
        BreakerState::Open => Status::Open,
    };
    let (from, to) = (state(line.from), state(line.to));
    put(
        buffer,
        area,
        x,
        y,
        [
            styled(from.as_str(), QUIET),
            styled(format!(" {} ", theme.signs.arrow), QUIET),
            styled(to.as_str(), theme.status(to).patch(STRONG)),
        ],
    );
    let x = x + 20;
    let end = put(buffer, area, x, y, [Span::raw(line.reason.as_str())]);
    let alone = if line.alone { " alone" } else { "" };
    let who = vec![styled(line.agent.as_str(), QUIET), styled(alone, theme.warning())];
    let agent_at = put_right(buffer, area, area.width - 1, y, who);
    let room = usize::from(agent_at.saturating_sub(end + 4));
    let fits = |text: &String| text.chars().count() <= room;
    if line.counts.calls > 0
        && let Some(text) = [counts(&line.counts), essence(line)].into_iter().find(fits)
    {
        put(buffer, area, end + 2, y, [styled(text, QUIET)]);
    }
}

/// The count that the reason is about.
fn essence(line: &TransitionLine) -> String {
    let counts = &line.counts;
    let (count, what) = match line.reason {
        TransitionReason::SlowRate => (counts.slow, "slow"),
        TransitionReason::StallRate => (counts.stalls, "stalled"),
        _ => (counts.failures, "failed"),
    };
    format!("{count} of {} {what}", counts.calls)
}
