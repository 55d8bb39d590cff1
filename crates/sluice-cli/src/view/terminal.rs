//! The view on a terminal: raw mode, the alternate screen, keys, and the way back out of all that.
//!
//! It runs in a thread of its own, so that neither a slow terminal holds up an exchange nor a busy runtime
//! the keys. However the thread ends, the terminal is given back: by a guard on return and on unwinding, and by
//! a panic hook before the message of a panic of this thread is printed. A panic elsewhere (an exchange's, which
//! ends that exchange alone) must not touch the screen: it becomes a line of the log, and is printed in full
//! once the screen is left.

use std::io::{self, Write as _};
use std::panic::{self, PanicHookInfo};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use crossterm::{cursor, execute};
use parking_lot::Mutex;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use tokio::sync::mpsc::Receiver;
use tokio_util::sync::CancellationToken;

use super::draw::{Screen, draw};
use super::model::{Input, Level, Model};
use super::theme::Theme;
use super::{Fed, feed_all};

/// The thread's name; the panic hook knows it by that.
pub(super) const THREAD: &str = "sluice-view";
/// How long a key, or a new sample, may wait to be seen.
const POLL: Duration = Duration::from_millis(50);
/// Panics kept to be printed at the end.
const PANICS_KEPT: usize = 20;

/// Draws until a person quits, the input ends or `stop` is cancelled.
pub(super) fn show(
    model: &mut Model,
    inputs: &mut Receiver<Input>,
    stop: &CancellationToken,
    theme: Theme,
) -> io::Result<()> {
    let mut guard = Guard::enter()?;
    let mut screen = Screen::default();
    let mut stale = true;
    let mut panics_seen = 0;
    loop {
        let fed = feed_all(model, inputs);
        if fed == Fed::Ended || stop.is_cancelled() {
            return Ok(());
        }
        let panics = guard.hook.locations();
        for location in panics.iter().skip(panics_seen) {
            let text = format!("a task panicked at {location}; details follow when you quit");
            model.feed(Input::Note { at: model.at, level: Level::Warning, subject: "panic", text });
        }
        stale |= fed == Fed::Some || panics.len() > panics_seen;
        panics_seen = panics.len();
        if stale {
            guard.terminal.draw(|frame| draw(frame, model, screen, theme))?;
            stale = false;
        }
        if event::poll(POLL)? {
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => match action(key) {
                    Some(Action::Quit) => return Ok(()),
                    Some(action) => screen = action.apply(screen, model.fleet.targets.len()),
                    None => {}
                },
                _ => {}
            }
            stale = true;
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Quit,
    ToggleCurl,
    ScrollUp,
    ScrollDown,
}

/// What a key means. In raw mode Ctrl-C is a key like any other.
fn action(key: KeyEvent) -> Option<Action> {
    match key.code {
        KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Action::Quit),
        KeyCode::Char('q') | KeyCode::Esc => Some(Action::Quit),
        KeyCode::Char('c') => Some(Action::ToggleCurl),
        KeyCode::Char('k') | KeyCode::Up => Some(Action::ScrollUp),
        KeyCode::Char('j') | KeyCode::Down => Some(Action::ScrollDown),
        _ => None,
    }
}

impl Action {
    fn apply(self, screen: Screen, targets: usize) -> Screen {
        match self {
            Self::Quit => screen,
            Self::ToggleCurl => Screen { curl: !screen.curl, ..screen },
            Self::ScrollUp => Screen { scroll: screen.scroll.saturating_sub(1), ..screen },
            Self::ScrollDown => {
                Screen { scroll: (screen.scroll + 1).min(targets.saturating_sub(1)), ..screen }
            }
        }
    }
}

/// Holds the terminal, and gives it back when dropped.
struct Guard {
    terminal: Terminal<CrosstermBackend<io::Stdout>>,
    hook: Hook,
}

impl Guard {
    fn enter() -> io::Result<Self> {
        let taken = Taken::default();
        let hook = Hook::install(taken.clone());
        let enter = || {
            taken.take()?;
            Terminal::new(CrosstermBackend::new(io::stdout()))
        };
        match enter() {
            Ok(terminal) => Ok(Self { terminal, hook }),
            Err(error) => {
                hook.remove();
                Err(error)
            }
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.hook.remove();
    }
}

/// Whether the terminal is ours. It is given back once: leaving the alternate screen a second time would put the
/// cursor back to where it was before, over the message of a panic.
#[derive(Clone, Default)]
struct Taken(Arc<AtomicBool>);

impl Taken {
    fn take(&self) -> io::Result<()> {
        self.0.store(true, Ordering::SeqCst);
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen, cursor::Hide)
    }

    /// Errors have nowhere to go: the terminal may be gone.
    fn give_back(&self) {
        if self.0.swap(false, Ordering::SeqCst) {
            let _ = disable_raw_mode();
            let _ = execute!(io::stdout(), LeaveAlternateScreen, cursor::Show);
        }
    }
}

type PanicHook = dyn Fn(&PanicHookInfo<'_>) + Send + Sync;

/// The panic hook while the screen is ours.
struct Hook {
    taken: Taken,
    before: Arc<PanicHook>,
    held: Arc<Mutex<Vec<Held>>>,
}

/// A panic of another thread.
struct Held {
    location: String,
    message: String,
}

impl Hook {
    fn install(taken: Taken) -> Self {
        let before: Arc<PanicHook> = panic::take_hook().into();
        let held = Arc::new(Mutex::new(Vec::new()));
        let hook = Self { taken: taken.clone(), before: Arc::clone(&before), held: Arc::clone(&held) };
        panic::set_hook(Box::new(move |info| {
            if thread::current().name() == Some(THREAD) {
                taken.give_back();
                before(info);
                return;
            }
            let mut held = held.lock();
            if held.len() < PANICS_KEPT {
                let location =
                    info.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
                held.push(Held { location, message: info.to_string() });
            }
        }));
        hook
    }

    fn locations(&self) -> Vec<String> {
        self.held.lock().iter().map(|held| held.location.clone()).collect()
    }

    /// Gives back the terminal, puts back the hook that was there, and prints what was held.
    fn remove(&self) {
        self.taken.give_back();
        // A thread that is panicking may not change hooks; it is the end of this process' view anyway.
        if !thread::panicking() {
            let before = Arc::clone(&self.before);
            panic::set_hook(Box::new(move |info| before(info)));
        }
        for held in self.held.lock().drain(..) {
            let _ = writeln!(io::stderr(), "{}", held.message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_out_is_a_way_out() {
        let key = |code, modifiers| action(KeyEvent::new(code, modifiers));
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Action::Quit));
        assert_eq!(key(KeyCode::Char('q'), KeyModifiers::NONE), Some(Action::Quit));
        assert_eq!(key(KeyCode::Esc, KeyModifiers::NONE), Some(Action::Quit));
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::NONE), Some(Action::ToggleCurl));
    }

    #[test]
    fn scrolling_stops_at_both_ends() {
        let mut screen = Screen::default();
        for _ in 0..5 {
            screen = Action::ScrollDown.apply(screen, 3);
        }
        assert_eq!(screen.scroll, 2);
        for _ in 0..5 {
            screen = Action::ScrollUp.apply(screen, 3);
        }
        assert_eq!(screen.scroll, 0);
    }
}
