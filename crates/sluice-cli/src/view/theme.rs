//! Colours and signs.
//!
//! Colours are the terminal's own sixteen, so that light and dark schemes both stay readable, and they never
//! say anything alone: a state has its word and its sign too, which is all that is left under `NO_COLOR`
//! (<https://no-color.org>). Backgrounds are left alone. Signs fall back to ASCII where the locale asks for
//! it or the terminal has no others.

use ratatui::style::{Color, Modifier, Style};

use super::fleet::Status;

/// Labels, rules, what is there but not now.
pub(super) const QUIET: Style = Style::new().add_modifier(Modifier::DIM);
/// The numbers one looks for.
pub(super) const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);

/// How to draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Theme {
    pub color: bool,
    pub signs: &'static Signs,
}

/// What to draw with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signs {
    /// Eighths of a cell from the bottom, empty first.
    pub eighths: [&'static str; 9],
    /// The part of a bar between the median and the p95, where there is no colour to tell them apart.
    pub shade: &'static str,
    pub bar: &'static str,
    pub bar_rest: &'static str,
    pub rule: &'static str,
    pub axis: &'static str,
    pub axis_mark: &'static str,
    /// In the place of a number that is not there.
    pub none: &'static str,
    pub arrow: &'static str,
    pub dot: &'static str,
    /// By [`Status`], as a signal whose height tells the state.
    signal: [&'static str; 4],
    badge: [&'static str; 4],
}

static UNICODE: Signs = Signs {
    eighths: [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"],
    shade: "░",
    bar: "━",
    bar_rest: "─",
    rule: "─",
    axis: "│",
    axis_mark: "┤",
    none: "–",
    arrow: "→",
    dot: "·",
    signal: ["▁", "▄", "▆", "█"],
    badge: ["●", "◐", "◌", "○"],
};

static ASCII: Signs = Signs {
    eighths: [" ", ".", ".", ":", ":", "+", "+", "#", "#"],
    shade: ":",
    bar: "=",
    bar_rest: "-",
    rule: "-",
    axis: "|",
    axis_mark: "|",
    none: "-",
    arrow: "->",
    dot: "|",
    signal: ["_", "=", "+", "#"],
    badge: ["*", "~", "?", "o"],
};

impl Theme {
    #[must_use]
    pub const fn new(color: bool, unicode: bool) -> Self {
        Self { color, signs: if unicode { &UNICODE } else { &ASCII } }
    }

    /// By the usual variables; `read` looks one up. An unset locale says nothing, and terminals without
    /// Unicode are rare by now: only a locale that names another character set, or the kernel's console,
    /// gets ASCII.
    pub fn from_environment(read: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| read(name).filter(|value| !value.is_empty());
        let term = set("TERM").unwrap_or_default();
        let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG")).unwrap_or_default();
        let locale = locale.to_ascii_lowercase();
        let unicode = locale.is_empty() || locale.contains("utf-8") || locale.contains("utf8");
        Self::new(set("NO_COLOR").is_none() && term != "dumb", unicode && term != "linux" && term != "dumb")
    }

    fn colored(self, color: Color) -> Style {
        if self.color { Style::new().fg(color) } else { Style::new() }
    }

    pub(super) fn accent(self) -> Style {
        self.colored(Color::Cyan)
    }

    pub(super) fn behind_accent(self) -> Style {
        self.colored(Color::Blue)
    }

    pub(super) fn good(self) -> Style {
        self.colored(Color::Green)
    }

    pub(super) fn warning(self) -> Style {
        self.colored(Color::Yellow)
    }

    pub(super) fn bad(self) -> Style {
        self.colored(Color::Red)
    }

    pub(super) fn status(self, status: Status) -> Style {
        match status {
            Status::Closed => self.good(),
            Status::HalfOpen | Status::AwaitingProbe => self.warning(),
            Status::Open => self.bad(),
        }
    }

    /// Filled, to be seen from afar.
    pub(super) fn badge(self, status: Status) -> Style {
        let style = self.status(status).add_modifier(Modifier::BOLD);
        if status == Status::Closed { style } else { style.add_modifier(Modifier::REVERSED) }
    }
}

impl Signs {
    pub(super) fn signal(&self, status: Status) -> &'static str {
        self.signal[status as usize]
    }

    pub(super) fn badge(&self, status: Status) -> &'static str {
        self.badge[status as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn theme(variables: &[(&str, &str)]) -> Theme {
        Theme::from_environment(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_environment_decides() {
        let plain = theme(&[("TERM", "xterm-256color")]);
        assert!(plain.color);
        assert_eq!(plain.signs, &UNICODE);
        assert!(!theme(&[("NO_COLOR", "1")]).color);
        assert!(theme(&[("NO_COLOR", "")]).color, "an empty NO_COLOR is none");
        assert_eq!(theme(&[("LANG", "de_DE.UTF-8")]).signs, &UNICODE);
        assert_eq!(theme(&[("LANG", "de_DE.UTF-8"), ("LC_ALL", "C")]).signs, &ASCII);
        assert_eq!(theme(&[("TERM", "linux"), ("LANG", "C.UTF-8")]).signs, &ASCII);
    }

    #[test]
    fn no_color_means_none() {
        let theme = Theme::new(false, true);
        let styles = [theme.accent(), theme.good(), theme.bad(), theme.badge(Status::Open), QUIET];
        assert!(styles.iter().all(|style| style.fg.is_none() && style.bg.is_none()));
    }
}
