//! Where to send calls, who serves them, and what clients get.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Span;

use super::super::format::{clock, countdown, cut, rate, seconds, thousands};
use super::super::model::{Model, degraded, short_version};
use super::super::theme::{QUIET, STRONG, Theme};
use super::{put, put_right, styled};

pub(super) fn draw(buffer: &mut Buffer, area: Rect, model: &Model, theme: Theme) {
    let fleet = &model.fleet;
    put(
        buffer,
        area,
        1,
        0,
        [
            styled("sluice", STRONG.patch(theme.accent())),
            Span::raw("  "),
            styled(model.intro.base_url.as_str(), STRONG),
        ],
    );
    let agents = if fleet.agents == 1 { "1 agent".to_owned() } else { format!("{} agents", fleet.agents) };
    let mut facts = vec![Span::raw(agents)];
    if let Some(version) = fleet.versions.first() {
        let text = match fleet.versions.len() {
            1 => format!("policy {}", short_version(version)),
            several => format!("{several} policies, one replacing the other"),
        };
        facts.extend([dot(theme), styled(text, QUIET)]);
    }
    if !fleet.rejected.is_empty() {
        facts.extend([dot(theme), styled(format!("{} refused", fleet.rejected.len()), theme.warning())]);
    }
    facts.extend([dot(theme), styled(clock_short(model), QUIET)]);
    put_right(buffer, area, area.width - 1, 0, facts);

    let store_at = draw_store(buffer, area, model, theme);
    if let Some(phase) = &model.provider {
        let left = phase.left.map(|left| format!("  {} left", countdown(left))).unwrap_or_default();
        let room = usize::from(store_at.saturating_sub(14));
        let (room, left) = match room.checked_sub(left.len()) {
            Some(less) if less >= 20 => (less, left),
            _ => (room, String::new()),
        };
        let name = styled(cut(&phase.to_string(), room), STRONG);
        put(buffer, area, 1, 1, [styled("provider  ", QUIET), name, styled(left, QUIET)]);
    }
}

/// Where the shared state is, and whether it is there; returns the column where it begins.
fn draw_store(buffer: &mut Buffer, area: Rect, model: &Model, theme: Theme) -> u16 {
    let fleet = &model.fleet;
    let (text, style) = if fleet.store.away > 0 {
        let [brief, full] = degraded(&fleet.store, fleet.agents);
        // The log has the reason; here the phase has to fit beside it.
        let room = usize::from(area.width) - if model.provider.is_some() { 45 } else { 8 };
        let text = if full.chars().count() <= room { full } else { brief };
        (text, theme.bad().patch(STRONG))
    } else {
        let home = if fleet.store.home.is_empty() { "not known yet" } else { fleet.store.home };
        (home.to_owned(), QUIET)
    };
    let text = cut(&format!("store {text}"), usize::from(area.width) - 2);
    put_right(buffer, area, area.width - 1, 1, vec![styled(text, style)])
}

/// Whole seconds: tenths in a heading only flicker.
fn clock_short(model: &Model) -> String {
    let text = clock(model.at);
    text.split('.').next().unwrap_or_default().to_owned()
}

fn dot(theme: Theme) -> Span<'static> {
    styled(format!(" {} ", theme.signs.dot), QUIET)
}

/// Rates first, totals behind them.
pub(super) fn draw_traffic(buffer: &mut Buffer, area: Rect, model: &Model, theme: Theme) {
    let (traffic, rates) = (&model.fleet.traffic, &model.rates);
    let refused_style = if rates.refused.unwrap_or(0.0) > 0.0 { theme.bad() } else { STRONG };
    let over_style = if rates.failed_over.unwrap_or(0.0) > 0.0 { theme.warning() } else { STRONG };
    let cells = [
        ("admitted", rates.admitted, traffic.admitted(), STRONG),
        ("failed over", rates.failed_over, traffic.failed_over, over_style),
        ("refused", rates.refused, traffic.refused, refused_style),
    ];
    let mut x = 1;
    for (label, per_second, total, style) in cells {
        put(buffer, area, x, 0, [styled(label, QUIET)]);
        let end = put(
            buffer,
            area,
            x,
            1,
            [styled(per_second.map_or_else(|| theme.signs.none.to_owned(), rate), style.patch(STRONG))],
        );
        put(buffer, area, end.max(x + 7) + 1, 1, [styled(thousands(total), QUIET)]);
        x += 16;
    }
    put(buffer, area, x, 0, [styled("in flight", QUIET)]);
    put(buffer, area, x, 1, [styled(thousands(traffic.in_flight), STRONG)]);
    draw_clients(
        buffer,
        Rect { x: area.x + x + 12, width: area.width.saturating_sub(x + 12), ..area },
        model,
        theme,
    );
}

fn draw_clients(buffer: &mut Buffer, area: Rect, model: &Model, theme: Theme) {
    let Some(load) = &model.load else {
        put(buffer, area, 0, 0, [styled("left by clients", QUIET)]);
        put(buffer, area, 0, 1, [styled(thousands(model.fleet.traffic.cancelled), STRONG)]);
        return;
    };
    put(buffer, area, 0, 0, [styled("clients got", QUIET)]);
    let mut spans = vec![styled(thousands(load.ok), theme.good().patch(STRONG)), Span::raw(" ok")];
    let parts = [
        (load.degraded, "degraded", theme.warning(), false),
        (load.refused, "refused", theme.bad(), false),
        (load.failed, "failed", theme.bad(), true),
    ];
    for (count, what, style, always) in parts {
        if count > 0 || always {
            let style = if count > 0 { style } else { STRONG };
            spans.extend([Span::raw("  "), styled(thousands(count), style.patch(STRONG))]);
            spans.push(Span::raw(format!(" {what}")));
        }
    }
    let end = put(buffer, area, 0, 1, spans);
    if let (Some(p50), Some(p95)) = (load.ttft_p50_ms, load.ttft_p95_ms) {
        let text = format!("ttft p50 {}  p95 {}", seconds(p50), seconds(p95));
        if usize::from(end) + 3 + text.len() < usize::from(area.width) {
            put(buffer, area, end + 3, 1, [styled(text, QUIET)]);
        }
    }
}
