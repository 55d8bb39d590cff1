//! Watches one attempt whose answer is a stream: which deadline is next, and which verdict is certain.
//!
//! ```text
//!  start ──────────────── first token ───────────────────────────── end
//!    │  slow threshold        │  stall: since the last sign of life   │ terminal event: success or slow
//!    │  first-token deadline  │  silence: since the last token        │ none: stall
//!    └── total deadline ──────┴───────────────────────────────────────┘
//! ```
//!
//! A verdict is given once, as soon as it is certain: slow when a threshold passes (not when the slow call
//! ends, minutes later), an error when its event comes, and for a probe success with its first token, which
//! frees its permit. What comes after does not change it, with one exception: a probe that succeeded may still
//! stall.
//!
//! Edge rules:
//! - The stall timer runs from the first token on; before it the first-token deadline does.
//! - Any byte is a sign of life: tokens, reasoning, pings, comments, part of a large event. But only text and
//!   tool calls end a silence, which lasts `max_silence` at most.
//! - An error before the first token ends the attempt at once, as nothing has reached the client and another
//!   target may be asked. Behind the first token the provider's own error event goes to the client.
//! - Bytes after the terminal event and a connection that is reset behind it change nothing.
//!
//! Time is the time since any fixed moment, the same for all calls.

use std::time::Duration;

use crate::classify::{Classified, Context, Happening, classify};
use crate::outcome::Verdict;
use crate::policy::{ClassifyRule, Slow, SlowCounts};
use crate::wire::{Delta, Fact, ProviderError, Usage};

/// What rules a stream. All durations count from the attempt's start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamRules {
    pub first_token: Duration,
    /// The first-token deadline is the caller's own, shorter than the policy's.
    pub first_token_is_callers: bool,
    pub stall: Duration,
    pub max_silence: Duration,
    /// What remains of the exchange's total deadline.
    pub total: Duration,
    /// The total is the caller's own deadline, shorter than the policy's.
    pub total_is_callers: bool,
    pub slow: SlowThresholds,
    pub probe: bool,
    pub classify: Vec<ClassifyRule>,
    pub own_credential: bool,
}

/// Beyond which a call that succeeds is slow. `None`: not looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlowThresholds {
    pub ttft: Option<Duration>,
    pub per_output_token: Option<Duration>,
    pub duration: Option<Duration>,
    /// What a slow call is settled as.
    pub count_as: SlowCounts,
}

impl Default for SlowThresholds {
    /// None: nothing is slow.
    fn default() -> Self {
        Self { ttft: None, per_output_token: None, duration: None, count_as: SlowCounts::Slow }
    }
}

impl SlowThresholds {
    /// A policy's thresholds. Where it has a relative one and `learned_p95` (of TTFT, in the healthy state) is known,
    /// the smaller of the absolute and the relative rules.
    #[must_use]
    pub fn of(slow: &Slow, learned_p95: Option<Duration>) -> Self {
        let relative = slow.relative_percent.zip(learned_p95).map(|(percent, p95)| p95 * percent / 100);
        Self {
            ttft: [slow.ttft, relative].into_iter().flatten().min(),
            per_output_token: slow.per_output_token,
            duration: slow.duration,
            count_as: slow.count_as,
        }
    }

    /// Whether a finished call was slow by any of them.
    #[must_use]
    pub fn exceeded(
        &self,
        ttft: Option<Duration>,
        per_output_token: Option<Duration>,
        duration: Duration,
    ) -> bool {
        let over = |value: Option<Duration>, threshold: Option<Duration>| {
            value.zip(threshold).is_some_and(|(value, threshold)| value > threshold)
        };
        over(ttft, self.ttft)
            || over(per_output_token, self.per_output_token)
            || over(Some(duration), self.duration)
    }
}

/// What a step means to the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Go on.
    Continue,
    /// Settle this verdict now and go on.
    Verdict(Verdict),
    /// The attempt is over: cancel the upstream call. After an error event that allows neither retry nor
    /// failover, what was held back and the rest of the body go to the client as they are.
    End(Ending),
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    pub happening: Happening,
    pub classified: Classified,
    /// To settle now; `None`: it was given before. Where the policy counts slow calls as failures, it says
    /// failure while `classified` says slow.
    pub verdict: Option<Verdict>,
}

/// How the provider's body ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyEnd {
    /// In order, as HTTP sees it.
    Clean,
    /// Reset, or without its last chunk.
    Cut,
}

/// The state of one stream.
#[derive(Debug, Clone)]
pub struct StreamWatch {
    rules: StreamRules,
    started: Duration,
    first_token: Option<Duration>,
    last_sign: Duration,
    last_token: Duration,
    deltas: u64,
    reasoned: bool,
    events: bool,
    /// Anything but white space came.
    any_byte: bool,
    finish: bool,
    terminal: bool,
    usage: Option<Usage>,
    error: Option<ProviderError>,
    slow: bool,
    decided: Option<Verdict>,
    ended: Option<Duration>,
}

impl StreamWatch {
    #[must_use]
    pub fn new(rules: StreamRules, started: Duration) -> Self {
        Self {
            rules,
            started,
            first_token: None,
            last_sign: started,
            last_token: started,
            deltas: 0,
            reasoned: false,
            events: false,
            any_byte: false,
            finish: false,
            terminal: false,
            usage: None,
            error: None,
            slow: false,
            decided: None,
            ended: None,
        }
    }

    /// Bytes came; their facts follow in [`Self::on_fact`].
    pub fn on_bytes(&mut self, now: Duration, chunk: &[u8]) {
        self.last_sign = self.last_sign.max(now);
        self.any_byte = self.any_byte || !chunk.trim_ascii().is_empty();
    }

    /// An event or a comment came.
    pub fn on_fact(&mut self, now: Duration, fact: &Fact) -> Step {
        self.last_sign = self.last_sign.max(now);
        self.events |= !fact.ping;
        self.finish |= fact.finish;
        self.usage = fact.usage.or(self.usage);
        if self.terminal {
            return Step::Continue;
        }
        self.terminal = fact.terminal;
        if let Some(error) = &fact.error {
            return self.on_error(now, error.clone());
        }
        if fact.is_token() {
            return self.on_token(now, fact);
        }
        Step::Continue
    }

    fn on_error(&mut self, now: Duration, error: ProviderError) -> Step {
        self.error = Some(error);
        self.terminal = true;
        let ending = self.ending(now, self.final_happening(now, BodyEnd::Clean));
        if self.first_token.is_none() {
            return Step::End(ending);
        }
        ending.verdict.map_or(Step::Continue, Step::Verdict)
    }

    fn on_token(&mut self, now: Duration, fact: &Fact) -> Step {
        self.deltas += u64::from(fact.deltas);
        self.reasoned |= fact.delta == Delta::Reasoning;
        let first = self.first_token.is_none();
        if first {
            self.first_token = Some(now);
        }
        if first || fact.delta == Delta::Token {
            self.last_token = now;
        }
        if !first {
            return Step::Continue;
        }
        // The timer may be late; the first token tells for certain.
        if self.rules.slow.ttft.is_some_and(|threshold| now.saturating_sub(self.started) > threshold) {
            self.slow = true;
        }
        let verdict = match (self.slow, self.rules.probe) {
            (true, _) => Verdict::Slow,
            (false, true) => Verdict::Success,
            (false, false) => return Step::Continue,
        };
        self.decide(verdict).map_or(Step::Continue, Step::Verdict)
    }

    /// When to call [`Self::on_wakeup`], at the latest.
    #[must_use]
    pub fn next_wakeup(&self) -> Duration {
        let mut next = self.started.saturating_add(self.rules.total);
        if self.first_token.is_none() {
            next = next.min(self.started.saturating_add(self.rules.first_token));
        } else if !self.terminal {
            next = next
                .min(self.last_sign.saturating_add(self.rules.stall))
                .min(self.last_token.saturating_add(self.rules.max_silence));
        }
        if let Some(slow) = self.slow_at() {
            next = next.min(slow);
        }
        next
    }

    /// The moment from which the attempt is slow for certain, while that is still to come.
    fn slow_at(&self) -> Option<Duration> {
        if self.slow || self.decided.is_some() || self.terminal {
            return None;
        }
        let ttft = self.rules.slow.ttft.filter(|_| self.first_token.is_none());
        // One millisecond behind: a call as long as the threshold is not beyond it.
        [ttft, self.rules.slow.duration]
            .into_iter()
            .flatten()
            .map(|threshold| self.started.saturating_add(threshold).saturating_add(Duration::from_millis(1)))
            .min()
    }

    /// A timer ran out. Calling it early does no harm.
    pub fn on_wakeup(&mut self, now: Duration) -> Step {
        let early = if self.slow_at().is_some_and(|at| now >= at) {
            self.slow = true;
            self.decide(Verdict::Slow)
        } else {
            None
        };
        let elapsed = now.saturating_sub(self.started);
        let happening = if elapsed >= self.rules.total {
            Some(Happening::TotalDeadline {
                callers: self.rules.total_is_callers,
                first_token: self.first_token.is_some(),
                slow: self.slow,
            })
        } else if self.first_token.is_none() {
            (elapsed >= self.rules.first_token).then_some(if self.rules.first_token_is_callers {
                // Its SDK has given up: no other attempt can reach it.
                Happening::TotalDeadline { callers: true, first_token: false, slow: self.slow }
            } else {
                Happening::FirstTokenDeadline { slow: self.slow }
            })
        } else if self.terminal {
            None
        } else {
            let stalled = now.saturating_sub(self.last_sign) >= self.rules.stall
                || now.saturating_sub(self.last_token) >= self.rules.max_silence;
            stalled.then_some(Happening::Stalled)
        };
        match (happening, early) {
            (Some(happening), early) => {
                let mut ending = self.ending(now, happening);
                // Both in one step: the first certain verdict is the one to settle.
                ending.verdict = early.or(ending.verdict);
                Step::End(ending)
            }
            (None, Some(verdict)) => Step::Verdict(verdict),
            (None, None) => Step::Continue,
        }
    }

    /// The provider's body ended.
    pub fn on_end(&mut self, now: Duration, end: BodyEnd) -> Ending {
        let happening = self.final_happening(now, end);
        self.ending(now, happening)
    }

    /// The client went away: the upstream call is cancelled.
    pub fn on_client_gone(&mut self, now: Duration) -> Ending {
        let elapsed = now.saturating_sub(self.started);
        let slow = self.slow
            || (self.first_token.is_none()
                && self.rules.slow.ttft.is_some_and(|threshold| elapsed > threshold));
        let undecided_probe = self.rules.probe && self.decided.is_none();
        self.ending(now, Happening::ClientGone { slow, undecided_probe })
    }

    /// The agent shuts down and cancels the upstream call.
    pub fn on_draining(&mut self, now: Duration) -> Ending {
        self.ending(now, Happening::Draining)
    }

    /// The attempt ends for a reason that its events do not tell: what its whole body says, for one.
    pub fn end_with(&mut self, now: Duration, happening: Happening) -> Ending {
        self.ending(now, happening)
    }

    /// Whether an answer that came as one document was slow; `output`: its tokens, where the provider counted
    /// them.
    #[must_use]
    pub fn document_slow(&self, now: Duration, output: Option<u64>) -> bool {
        let elapsed = now.saturating_sub(self.started);
        let tokens = output.and_then(|tokens| u32::try_from(tokens).ok()).filter(|tokens| *tokens > 0);
        self.slow || self.rules.slow.exceeded(None, tokens.map(|tokens| elapsed / tokens), elapsed)
    }

    fn final_happening(&self, now: Duration, end: BodyEnd) -> Happening {
        if let Some(error) = &self.error {
            return Happening::ErrorInSuccess { error: error.clone(), pushback: None };
        }
        let said_something = self.first_token.is_some() || self.finish || self.usage.is_some();
        if self.terminal && said_something {
            let slow = self.slow
                || self.rules.slow.exceeded(
                    self.ttft(),
                    self.per_output_token(),
                    now.saturating_sub(self.started),
                );
            return Happening::Finished { slow };
        }
        match (self.terminal, self.events, self.any_byte, end) {
            (true, ..) | (false, false, false, BodyEnd::Clean) => Happening::Empty,
            // Bytes without any event: HTML, or JSON that nobody asked for.
            (false, false, true, BodyEnd::Clean) => Happening::NotJson,
            _ => Happening::Cut { first_token: self.first_token.is_some() },
        }
    }

    fn ending(&mut self, now: Duration, happening: Happening) -> Ending {
        self.ended.get_or_insert(now);
        let context = Context { rules: &self.rules.classify, own_credential: self.rules.own_credential };
        let classified = classify(&happening, context);
        let verdict = self.decide(classified.verdict);
        Ending { happening, classified, verdict }
    }

    /// The first certain verdict stands, but a probe that succeeded may still stall.
    fn decide(&mut self, verdict: Verdict) -> Option<Verdict> {
        let verdict = match (verdict, self.rules.slow.count_as) {
            (Verdict::Slow, SlowCounts::Failure) => Verdict::Failure,
            (verdict, _) => verdict,
        };
        let late_stall =
            self.rules.probe && self.decided == Some(Verdict::Success) && verdict == Verdict::Stall;
        if self.decided.is_some() && !late_stall {
            return None;
        }
        self.decided = Some(verdict);
        Some(verdict)
    }

    /// Time to first token, once it came.
    #[must_use]
    pub fn ttft(&self) -> Option<Duration> {
        self.first_token.map(|at| at.saturating_sub(self.started))
    }

    /// Mean time per output token behind the first; `None` below two tokens.
    ///
    /// Tokens are the provider's count where it gave one, and deltas otherwise. Hidden reasoning happens
    /// before the first token and is left out.
    #[must_use]
    pub fn per_output_token(&self) -> Option<Duration> {
        let hidden = |usage: Usage| if self.reasoned { 0 } else { usage.reasoning };
        let counted = self.usage.map(|usage| usage.output.saturating_sub(hidden(usage)));
        let tokens = counted.filter(|tokens| *tokens > 1).unwrap_or(self.deltas);
        let after_first = u32::try_from(tokens.checked_sub(1)?).ok().filter(|tokens| *tokens > 0)?;
        Some(self.last_token.saturating_sub(self.first_token?) / after_first)
    }

    /// From the start to the end, or to `now` while it goes on.
    #[must_use]
    pub fn duration(&self, now: Duration) -> Duration {
        self.ended.unwrap_or(now).saturating_sub(self.started)
    }

    /// Usage as reported so far.
    #[must_use]
    pub const fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// Deltas seen: the estimate of output tokens where no usage is reported.
    #[must_use]
    pub const fn deltas(&self) -> u64 {
        self.deltas
    }

    /// Whether the format's last event came, so that a connection may end.
    #[must_use]
    pub const fn terminal(&self) -> bool {
        self.terminal
    }

    /// Whether what was held back may go to the client: a first token, or an end that is no failure to hide.
    #[must_use]
    pub const fn committed(&self) -> bool {
        self.first_token.is_some()
    }
}
