//! Playing an answer: events and tokens when they are due, and the scripted faults among them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::body::{Abort, AnswerBody};
use crate::clock;
use crate::conn::ConnState;
use crate::ledger::CallGuard;
use crate::pace::Pace;
use crate::scenario::{Answer, Behaviour, CutHow};
use crate::sse::Sink;
use crate::stats::Outcome;
use crate::wire::Dialect;

/// A cut waits this long, so that the bytes before it have left: the HTTP server drops what it still holds when a
/// body fails.
const CUT_GRACE: Duration = Duration::from_millis(2);
const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// A stream being played.
pub(crate) struct Playback {
    call: CallGuard,
    conn: Arc<ConnState>,
    dialect: Box<dyn Dialect>,
    sink: Sink,
    behaviour: Arc<Behaviour>,
    pace: Pace,
    stage: Stage,
    produced: u64,
    /// When the next token is due; none: at once.
    due: Option<Instant>,
    next_ping: Option<Instant>,
    malformed_sent: bool,
    stall: StallState,
    gate: Option<watch::Receiver<u64>>,
    /// Written, and not yet handed over.
    rest: Bytes,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Opening,
    Tokens,
    Closing,
    Over(Outcome),
    Aborting(CutHow),
    Gone,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StallState {
    Before,
    During(Until),
    After,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    At(Instant),
    /// Until silent calls are told to go on.
    Released,
    Never,
}

enum Waited {
    Due,
    Pinged,
}

impl Playback {
    pub(crate) fn new(
        call: CallGuard,
        conn: Arc<ConnState>,
        dialect: Box<dyn Dialect>,
        behaviour: Arc<Behaviour>,
        pace: Pace,
    ) -> Self {
        Self {
            call,
            conn,
            dialect,
            sink: Sink::new(behaviour.framing.clone().unwrap_or_default()),
            due: pace.first_token_at(),
            behaviour,
            pace,
            stage: Stage::Opening,
            produced: 0,
            next_ping: None,
            malformed_sent: false,
            stall: StallState::Before,
            gate: None,
            rest: Bytes::new(),
        }
    }

    pub(crate) fn into_body(self) -> AnswerBody {
        let script = stream::unfold(Box::new(self), async |mut playback| {
            let item = playback.next().await?;
            Some((item, playback))
        });
        AnswerBody::Script(Box::pin(script))
    }

    async fn next(&mut self) -> Option<Result<Bytes, Abort>> {
        loop {
            if !self.rest.is_empty() {
                return Some(Ok(self.hand_over().await));
            }
            match self.stage {
                Stage::Opening => {
                    self.dialect.open(&mut self.sink);
                    self.stage = Stage::Tokens;
                    self.rest = self.sink.take();
                }
                Stage::Tokens => self.tokens().await,
                Stage::Closing => {
                    self.dialect.close(&mut self.sink);
                    self.rest = self.sink.take_last();
                    self.stage = Stage::Over(Outcome::Completed);
                }
                Stage::Over(outcome) => {
                    self.call.finish(outcome);
                    return None;
                }
                Stage::Aborting(how) => {
                    sleep(CUT_GRACE).await;
                    if how == CutHow::Reset {
                        self.conn.reset_call();
                    }
                    self.call.finish(Outcome::Cut);
                    self.stage = Stage::Gone;
                    return Some(Err(Abort));
                }
                Stage::Gone => return None,
            }
        }
    }

    async fn hand_over(&mut self) -> Bytes {
        if !self.sink.byte_per_write() {
            let all = std::mem::take(&mut self.rest);
            self.finish_with_last_byte();
            return all;
        }
        // The pause makes the connection write what it has.
        tokio::task::yield_now().await;
        let byte = self.rest.split_to(1);
        self.finish_with_last_byte();
        byte
    }

    /// With the last byte handed over the answer is complete, whether or not anybody asks for what follows it.
    fn finish_with_last_byte(&mut self) {
        if let (true, Stage::Over(outcome)) = (self.rest.is_empty(), self.stage) {
            self.call.finish(outcome);
        }
    }

    /// One step: a fault, a wait, a ping or a token.
    async fn tokens(&mut self) {
        if self.behaviour.answer == Some(Answer::KeepAlivesOnly) {
            self.wait(Until::Never).await;
            return;
        }
        if let Some(malformed) = &self.behaviour.malformed
            && !self.malformed_sent
            && malformed.after == self.produced
        {
            self.malformed_sent = true;
            self.dialect.malformed(malformed.data.as_deref(), &mut self.sink);
            self.rest = self.sink.take();
            return;
        }
        if !self.over_the_stall().await || self.fault() {
            return;
        }
        if self.produced == self.dialect.total() {
            self.stage = Stage::Closing;
            return;
        }
        if let Some(due) = self.due
            && let Waited::Pinged = self.wait(Until::At(due)).await
        {
            return;
        }
        self.token();
    }

    fn token(&mut self) {
        self.dialect.token(self.produced, &mut self.sink);
        self.rest = self.sink.take();
        self.produced += 1;
        self.call.produced(1);
        self.next_ping = None;
        if self.pace.is_paced() {
            let previous = self.due.unwrap_or_else(clock::now);
            self.due = self.pace.after_token(self.produced, previous);
        } else {
            self.due = None;
        }
    }

    /// Whether there is no stall, or it is over; otherwise a ping has been written.
    async fn over_the_stall(&mut self) -> bool {
        let Some(stall) = &self.behaviour.stall else { return true };
        if self.stall == StallState::Before && stall.after == self.produced {
            let until = stall.lasts.map_or(Until::Released, |lasts| Until::At(clock::now() + lasts));
            self.stall = StallState::During(until);
            // Before the call counts as stalled: whoever sees it so may release it at once.
            self.gate = Some(self.conn.gate());
            self.call.stall(true);
        }
        let StallState::During(until) = self.stall else { return true };
        if let Waited::Pinged = self.wait(until).await {
            return false;
        }
        self.stall = StallState::After;
        self.call.stall(false);
        if self.produced > 0 {
            self.due = None;
        }
        true
    }

    /// Whether the stream ends here because the scenario says so.
    fn fault(&mut self) -> bool {
        if let Some(error) = &self.behaviour.stream_error
            && error.after == self.produced
        {
            self.dialect.error(error.kind, self.behaviour.message.as_deref(), &mut self.sink);
            if error.done {
                self.dialect.done(&mut self.sink);
            }
            self.rest = self.sink.take_last();
            self.stage = Stage::Over(Outcome::StreamError);
            return true;
        }
        let Some(cut) = self.behaviour.cut.as_ref().filter(|cut| cut.after == self.produced) else {
            return false;
        };
        self.stage =
            if cut.how == CutHow::Eof { Stage::Over(Outcome::Cut) } else { Stage::Aborting(cut.how) };
        if cut.how == CutHow::MidEvent {
            if self.produced < self.dialect.total() {
                self.dialect.token(self.produced, &mut self.sink);
            } else {
                self.dialect.close(&mut self.sink);
            }
            let event = self.sink.take();
            self.rest = event.slice(..event.len() / 2);
        }
        true
    }

    /// Waits until then, or until a ping is due, which is then written.
    async fn wait(&mut self, until: Until) -> Waited {
        let silent = self.behaviour.answer == Some(Answer::KeepAlivesOnly);
        let every = self.behaviour.ping_every.or(silent.then_some(KEEP_ALIVE));
        if let Some(every) = every {
            let ping_at = self.next_ping.unwrap_or_else(|| clock::now() + every);
            self.next_ping = Some(ping_at);
            if !matches!(until, Until::At(until) if until <= ping_at) {
                tokio::select! {
                    () = sleep_until(ping_at) => {}
                    () = released(&mut self.gate, until) => return Waited::Due,
                }
                self.next_ping = Some(ping_at + every);
                self.dialect.ping(&mut self.sink);
                self.rest = self.sink.take();
                return Waited::Pinged;
            }
        }
        match until {
            Until::At(until) => sleep_until(until).await,
            Until::Released | Until::Never => released(&mut self.gate, until).await,
        }
        Waited::Due
    }
}

/// Pending for ever, unless the wait is one for a release.
async fn released(gate: &mut Option<watch::Receiver<u64>>, until: Until) {
    if let (Some(gate), Until::Released) = (gate, until)
        && gate.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

/// A plain answer with a fault: half of its bytes, then silence, then the rest or the end.
pub(crate) fn halves(
    mut call: CallGuard,
    conn: Arc<ConnState>,
    data: &Bytes,
    behaviour: Arc<Behaviour>,
) -> AnswerBody {
    let first = data.slice(..data.len() / 2);
    let second = data.slice(data.len() / 2..);
    let script = async move {
        if let Some(stall) = &behaviour.stall {
            match stall.lasts {
                Some(lasts) => sleep(lasts).await,
                None => call.hang().await,
            }
        }
        let Some(cut) = &behaviour.cut else {
            call.finish(Outcome::Completed);
            return Ok(second);
        };
        sleep(CUT_GRACE).await;
        if cut.how == CutHow::Reset {
            conn.reset_call();
        }
        call.finish(Outcome::Cut);
        // Without a length the body just ends; with one the HTTP server closes the connection.
        if cut.how == CutHow::Eof { Ok(Bytes::new()) } else { Err(Abort) }
    };
    let first = async move { Ok(first) };
    AnswerBody::Script(Box::pin(futures_util::StreamExt::chain(stream::once(first), stream::once(script))))
}
