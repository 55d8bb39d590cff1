//! The live view of `sluice run`: the first thing that a new user sees.
//!
//! What the run knows arrives as [`Input`]s: a [`Sample`] of all agents every [`SAMPLE_EVERY`], each breaker
//! transition, and notes. A [`Model`] takes them in and adds up, without a clock or a socket, and two surfaces
//! read it: [`draw`] paints a terminal, [`plain`] makes lines for everything else. [`run`] picks one.
//!
//! The view is never in the way: senders use `try_send` and drop what a full channel does not take, as the next
//! sample says it all again.

pub mod draw;
pub mod fleet;
mod format;
pub mod history;
pub mod load;
pub mod model;
pub mod phase;
pub mod plain;
#[cfg(test)]
mod synthetic;
mod terminal;
pub mod theme;

use std::io::{self, ErrorKind, IsTerminal as _, Write as _};
use std::thread;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, Receiver};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

pub use model::{Input, Intro, Level, Model, Sample, TransitionLine};
pub use phase::{Phase, Phases};
use plain::Plain;
use theme::Theme;

/// Between two samples.
pub const SAMPLE_EVERY: Duration = Duration::from_millis(500);
/// Of the input channel: a minute of samples and more transitions than that can bring.
const CHANNEL: usize = 256;

/// Where the view goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Surface {
    Terminal,
    Lines,
}

impl Surface {
    /// A terminal that can be drawn on, or else lines.
    #[must_use]
    pub fn of_stdout() -> Self {
        let dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
        if io::stdout().is_terminal() && !dumb { Self::Terminal } else { Self::Lines }
    }
}

/// The channel that feeds [`run`].
#[must_use]
pub fn channel() -> (mpsc::Sender<Input>, Receiver<Input>) {
    mpsc::channel(CHANNEL)
}

/// Shows what arrives until a person quits, every sender is gone or `stop` is cancelled.
///
/// # Errors
/// The terminal can't be set up or written to. A reader of the lines that went away (`| head`) is none.
pub async fn run(
    surface: Surface,
    intro: Intro,
    mut inputs: Receiver<Input>,
    stop: CancellationToken,
) -> io::Result<()> {
    let (done, ended) = oneshot::channel();
    let runtime = Handle::current();
    let body = move || {
        let mut model = Model::new(intro);
        let result = match surface {
            Surface::Terminal => {
                let theme = Theme::from_environment(|name| std::env::var(name).ok());
                let shown = terminal::show(&mut model, &mut inputs, &stop, theme);
                // The screen is gone with what it showed; this stays in the scrollback.
                shown.and_then(|()| write_lines(&plain::epilogue(&model)))
            }
            Surface::Lines => write_all(&mut model, &mut inputs, &stop, &runtime),
        };
        let _ = done.send(result);
    };
    let view = thread::Builder::new().name(terminal::THREAD.to_owned()).spawn(body)?;
    match ended.await {
        Ok(Err(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Ok(result) => result,
        // The sender was dropped by a panic, whose message the hook has printed.
        Err(_) => {
            let _ = view.join();
            Err(io::Error::other("the view panicked"))
        }
    }
}

fn write_all(
    model: &mut Model,
    inputs: &mut Receiver<Input>,
    stop: &CancellationToken,
    runtime: &Handle,
) -> io::Result<()> {
    let mut plain = Plain::default();
    while let Some(Some(input)) = runtime.block_on(stop.run_until_cancelled(inputs.recv())) {
        model.feed(input);
        write_lines(&plain.lines(model))?;
    }
    // What was said before the end is part of it.
    feed_all(model, inputs);
    write_lines(&plain.last_lines(model))
}

fn write_lines(lines: &[String]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for line in lines {
        writeln!(out, "{line}")?;
    }
    out.flush()
}

/// What [`feed_all`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fed {
    None,
    Some,
    /// Every sender is gone.
    Ended,
}

/// Feeds everything that waits.
fn feed_all(model: &mut Model, inputs: &mut Receiver<Input>) -> Fed {
    let mut fed = Fed::None;
    loop {
        match inputs.try_recv() {
            Ok(input) => {
                model.feed(input);
                fed = Fed::Some;
            }
            Err(mpsc::error::TryRecvError::Empty) => return fed,
            Err(mpsc::error::TryRecvError::Disconnected) => return Fed::Ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_end_when_told_and_when_nobody_feeds_them_any_more() {
        let within = Duration::from_secs(30);
        let (feed, inputs) = channel();
        let stop = CancellationToken::new();
        let shown = tokio::spawn(run(Surface::Lines, Intro::default(), inputs, stop.clone()));
        stop.cancel();
        tokio::time::timeout(within, shown).await.unwrap().unwrap().unwrap();
        drop(feed);

        let (feed, inputs) = channel();
        drop(feed);
        let shown = run(Surface::Lines, Intro::default(), inputs, CancellationToken::new());
        tokio::time::timeout(within, shown).await.unwrap().unwrap();
    }
}
