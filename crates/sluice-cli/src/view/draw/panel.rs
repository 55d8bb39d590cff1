//! One target: its state in the title, below it numbers on the left and the last minutes on the right.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Span;

use super::super::fleet::{Status, Target};
use super::super::format::{countdown, counts, cut, rate, seconds, short, thousands};
use super::super::history::Column;
use super::super::model::Model;
use super::super::theme::{QUIET, STRONG, Theme};
use super::chart::{self, Bar};
use super::{put, put_right, rule, styled};

pub(super) const TTFT_LEAST: u16 = 2;
/// Where the values, the axis and the graphs begin.
const VALUE: u16 = 12;
const AXIS: u16 = 31;
const GRAPH: u16 = AXIS + 6;
/// Narrower graphs show two seconds in a column, so that an incident fits.
const WIDE_GRAPH: u16 = 75;

pub(super) fn rows(ttft: u16, admitted: u16) -> u16 {
    1 + ttft + admitted + 2
}

/// The axes, the same for all targets, so that they compare.
pub(super) struct Scale {
    seconds_each: u64,
    width: usize,
    ttft_ms: f64,
    admitted: f64,
}

impl Scale {
    pub(super) fn of(model: &Model, width: u16) -> Self {
        let width = width.saturating_sub(GRAPH + 1);
        let mut scale = Self {
            seconds_each: if width < WIDE_GRAPH { 2 } else { 1 },
            width: usize::from(width),
            ttft_ms: 0.0,
            admitted: 0.0,
        };
        let mut highest = (1_000, 1);
        for target in &model.fleet.targets {
            for column in scale.columns(model, target) {
                highest.0 = highest.0.max(column.ttft_p95_ms.unwrap_or(0));
                highest.1 = highest.1.max(column.admitted);
            }
        }
        scale.ttft_ms = chart::round_up(highest.0 as f64);
        scale.admitted = chart::round_up(highest.1 as f64);
        scale
    }

    fn columns(&self, model: &Model, target: &Target) -> Vec<Column> {
        model.history(&target.key).map(|past| past.columns(self.width, self.seconds_each)).unwrap_or_default()
    }
}

pub(super) fn draw(
    buffer: &mut Buffer,
    area: Rect,
    (ttft, admitted): (u16, u16),
    target: &Target,
    model: &Model,
    scale: &Scale,
    theme: Theme,
) {
    title(buffer, area, target, &format!("window: {}", counts(&target.window)), theme);
    let columns = scale.columns(model, target);
    let graph = |from: u16, height: u16| Rect {
        x: area.x + GRAPH,
        y: area.y + from,
        width: area.width.saturating_sub(GRAPH + 1),
        height,
    };
    let label = |buffer: &mut Buffer, y: u16, text: &'static str| {
        put(buffer, area, 2, y, [styled(text, QUIET)]);
    };

    label(buffer, 1, "ttft");
    let fresh = columns.iter().rev().take(2).any(|column| column.ttft_p50_ms.is_some());
    let style = if fresh { STRONG } else { QUIET };
    for (y, name, ms) in [(1, "p50", target.ttft_p50_ms), (2, "p95", target.ttft_p95_ms)] {
        let text = ms.map_or_else(|| theme.signs.none.to_owned(), seconds);
        put(buffer, area, VALUE, y, [styled(name, QUIET), styled(format!("{text:>9}"), style)]);
    }
    axis(buffer, area, (1, ttft), &seconds(scale.ttft_ms as u64).replace(".0", ""), theme);
    let bars: Vec<Bar> = columns
        .iter()
        .map(|column| Bar {
            front: column.ttft_p50_ms.unwrap_or(0) as f64,
            back: column.ttft_p95_ms.unwrap_or(0) as f64,
        })
        .collect();
    chart::bars(buffer, graph(1, ttft), &bars, scale.ttft_ms, theme.accent(), theme);

    let y = 1 + ttft;
    label(buffer, y, "admitted");
    let per_second = model.attempt_rate(&target.key).map_or_else(|| theme.signs.none.to_owned(), rate);
    put(buffer, area, VALUE, y, [styled(format!("{per_second:>7}"), STRONG)]);
    put_right(buffer, area, AXIS - 1, y, vec![styled(thousands(target.attempts), QUIET)]);
    axis(buffer, area, (y, admitted), &format!("{}/s", scale.admitted), theme);
    let bars: Vec<Bar> = columns
        .iter()
        .map(|column| Bar { front: column.admitted as f64, back: column.admitted as f64 })
        .collect();
    chart::bars(buffer, graph(y, admitted), &bars, scale.admitted, QUIET, theme);

    let y = y + admitted;
    label(buffer, y, "breaker");
    put_right(
        buffer,
        area,
        AXIS - 1,
        y,
        vec![styled(thousands(target.passed_over), QUIET), styled(" passed over", QUIET)],
    );
    axis(buffer, area, (y, 1), "", theme);
    let states: Vec<Status> = columns.iter().map(|column| column.status).collect();
    chart::signal(buffer, graph(y, 1), &states, theme);

    label(buffer, y + 1, "tokens");
    resources(buffer, area, y + 1, target, theme);
}

/// A label at the top of the axis of the rows from `y`.
fn axis(buffer: &mut Buffer, area: Rect, (y, height): (u16, u16), label: &str, theme: Theme) {
    for row in 0..height {
        let sign = if row == 0 && !label.is_empty() { theme.signs.axis_mark } else { theme.signs.axis };
        let label = if row == 0 { label } else { "" };
        put(buffer, area, AXIS, y + row, [styled(format!("{label:>5}{sign}"), QUIET)]);
    }
}

/// The title alone, with the numbers that matter most.
pub(super) fn draw_folded(buffer: &mut Buffer, area: Rect, target: &Target, model: &Model, theme: Theme) {
    let mut facts = "not asked yet".to_owned();
    if target.attempts > 0 {
        let per_second = model.attempt_rate(&target.key).map_or_else(|| theme.signs.none.to_owned(), rate);
        facts = format!("{per_second}, {} of {} in flight", target.in_flight, target.limit);
    }
    title(buffer, area, target, &facts, theme);
}

fn title(buffer: &mut Buffer, area: Rect, target: &Target, facts: &str, theme: Theme) {
    rule(buffer, area, 0, theme);
    let badge = format!(" {} {} ", theme.signs.badge(target.status), target.status.as_str().to_uppercase());
    let mut spans = vec![
        styled(format!(" {} ", cut(&target.label, 28)), STRONG),
        styled(badge, theme.badge(target.status)),
    ];
    if let Some(detail) = detail(target) {
        spans.push(styled(format!(" {detail} "), theme.status(target.status)));
    }
    let left = put(buffer, area, 2, 0, spans);
    if usize::from(left) + facts.chars().count() + 6 < usize::from(area.width) {
        put_right(buffer, area, area.width - 2, 0, vec![styled(format!(" {facts} "), QUIET)]);
    }
}

/// What a person asks next when they have read the state.
fn detail(target: &Target) -> Option<String> {
    match target.status {
        Status::Open => Some(format!("probes in {}", countdown(target.open_for))),
        Status::AwaitingProbe => Some("cooled down, the next call probes".to_owned()),
        Status::HalfOpen if target.probes_out == 1 => Some("1 probe out".to_owned()),
        Status::HalfOpen => Some(format!("{} probes out", target.probes_out)),
        Status::Closed if !target.paused_for.is_zero() => {
            Some(format!("paused {} by the provider", countdown(target.paused_for)))
        }
        Status::Closed if target.ramping => Some("ramping up".to_owned()),
        Status::Closed => None,
    }
}

/// What is left of the bucket and of the places in flight.
fn resources(buffer: &mut Buffer, area: Rect, y: u16, target: &Target, theme: Theme) {
    let gauge = |share: f64, width: usize, style| {
        let (full, rest) = chart::gauge(share, width);
        [
            styled(theme.signs.bar.repeat(full), style),
            styled(theme.signs.bar_rest.repeat(rest), QUIET),
            Span::raw(" "),
        ]
    };
    let mut x = match (target.burst_tokens, target.tokens_left) {
        (None, _) => put(buffer, area, VALUE, y, [styled("not limited", QUIET)]),
        (Some(burst), None) => {
            let text = format!("{} at most, none asked for yet", short(burst as i64));
            put(buffer, area, VALUE, y, [styled(text, QUIET)])
        }
        (Some(burst), Some(left)) => {
            let share = left as f64 / burst.max(1) as f64;
            let style = match share {
                share if share <= 0.05 => theme.bad(),
                share if share <= 0.2 => theme.warning(),
                _ => theme.accent(),
            };
            let x = put(buffer, area, VALUE, y, gauge(share, 18, style));
            let numbers =
                [styled(short(left), STRONG), styled(format!(" of {}", short(burst as i64)), QUIET)];
            put(buffer, area, x, y, numbers)
        }
    };
    if target.rate_percent < 100 {
        x = put(buffer, area, x, y, [styled(format!(", refill {} %", target.rate_percent), theme.warning())]);
    }
    let x = put(buffer, area, x.max(46) + 3, y, [styled("in flight ", QUIET)]);
    let full = target.limit > 0 && target.in_flight >= target.limit;
    let style = if full { theme.bad() } else { theme.accent() };
    let share = f64::from(target.in_flight) / f64::from(target.limit.max(1));
    let x = put(buffer, area, x, y, gauge(share, 8, style));
    let numbers =
        [styled(target.in_flight.to_string(), STRONG), styled(format!(" of {}", target.limit), QUIET)];
    let x = put(buffer, area, x, y, numbers);
    let more = format!("{} failed over   {} retries", thousands(target.failovers), thousands(target.retries));
    if usize::from(x) + 4 + more.len() < usize::from(area.width) {
        put(buffer, area, x + 3, y, [styled(more, QUIET)]);
    }
}
