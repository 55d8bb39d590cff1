//! Bars in eighths of a cell.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::super::fleet::Status;
use super::super::theme::{QUIET, Theme};

/// One column of a graph: the part up to the first value is in front of the part up to the second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Bar {
    pub(super) front: f64,
    pub(super) back: f64,
}

/// Bars, the newest at the right edge. `top` is the value of a full column.
pub(super) fn bars(
    buffer: &mut Buffer,
    area: Rect,
    bars: &[Bar],
    top: f64,
    front_style: Style,
    theme: Theme,
) {
    let shown = &bars[bars.len().saturating_sub(usize::from(area.width))..];
    let left = area.right() - u16::try_from(shown.len()).unwrap_or(0);
    let eighths = |value: f64| ((value / top).clamp(0.0, 1.0) * f64::from(area.height) * 8.0).round() as u16;
    for (x, bar) in (left..).zip(shown) {
        // What is there at all shows.
        let least = |value: f64| u16::from(value > 0.0);
        let front = eighths(bar.front).max(least(bar.front));
        let back = eighths(bar.back).max(least(bar.back));
        for row in 0..area.height {
            let Some(cell) = buffer.cell_mut((x, area.bottom() - 1 - row)) else { continue };
            let (front, back) = (in_cell(front, row), in_cell(back, row));
            let (sign, style) = match (front, back) {
                (0, 0) => continue,
                (0, back) if theme.color => (theme.signs.eighths[back], theme.behind_accent()),
                (0, _) => (theme.signs.shade, QUIET),
                (front, 8) if theme.color && front < 8 => {
                    let behind = theme.behind_accent().fg.unwrap_or_default();
                    (theme.signs.eighths[front], front_style.bg(behind))
                }
                (front, _) => (theme.signs.eighths[front], front_style),
            };
            cell.set_symbol(sign).set_style(style);
        }
    }
}

fn in_cell(eighths: u16, row: u16) -> usize {
    usize::from(eighths.saturating_sub(row * 8).min(8))
}

/// The breaker's state as a signal: low while closed, high while open.
pub(super) fn signal(buffer: &mut Buffer, area: Rect, states: &[Status], theme: Theme) {
    let shown = &states[states.len().saturating_sub(usize::from(area.width))..];
    let left = area.right() - u16::try_from(shown.len()).unwrap_or(0);
    for (x, status) in (left..).zip(shown) {
        if let Some(cell) = buffer.cell_mut((x, area.y)) {
            cell.set_symbol(theme.signs.signal(*status)).set_style(theme.status(*status));
        }
    }
}

/// A gauge of `width` cells; `share` is cut to 0…1.
pub(super) fn gauge(share: f64, width: usize) -> (usize, usize) {
    let full = (share.clamp(0.0, 1.0) * width as f64).round() as usize;
    // Neither "some" nor "not all" is rounded away.
    let full = if share > 0.0 { full.max(1) } else { full };
    let full = if share < 1.0 { full.min(width.saturating_sub(1)) } else { full };
    (full, width - full)
}

/// The next of 1, 2, 3, 5, 10, 20, …: an axis that ends at such a number is read without thinking.
pub(super) fn round_up(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 3.0, 5.0, 10.0]
        .into_iter()
        .map(|step| step * power)
        .find(|top| *top >= value * 0.999)
        .unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        for (value, top) in [
            (0.0, 1.0),
            (0.7, 1.0),
            (1.0, 1.0),
            (1.2, 2.0),
            (21.0, 30.0),
            (4.3, 5.0),
            (6.1, 10.0),
            (130.0, 200.0),
        ] {
            assert!((round_up(value) - top).abs() < 1e-9, "{value}");
        }
    }

    #[test]
    fn a_gauge_never_lies_at_its_ends() {
        assert_eq!(gauge(0.0, 10), (0, 10));
        assert_eq!(gauge(0.001, 10), (1, 9));
        assert_eq!(gauge(0.999, 10), (9, 1));
        assert_eq!(gauge(1.0, 10), (10, 0));
        assert_eq!(gauge(-3.0, 10), (0, 10));
    }

    #[test]
    fn bars_fill_from_the_bottom_and_the_right() {
        let area = Rect::new(0, 0, 3, 2);
        let mut buffer = Buffer::empty(area);
        let plain = Theme::new(false, true);
        bars(
            &mut buffer,
            area,
            &[Bar { front: 4.0, back: 8.0 }, Bar { front: 8.0, back: 8.0 }],
            8.0,
            plain.accent(),
            plain,
        );
        assert_eq!(buffer, {
            let mut expected = Buffer::with_lines([" ░█", " ██"]);
            if let Some(cell) = expected.cell_mut((1, 0)) {
                cell.set_style(QUIET);
            }
            expected
        });
    }
}
