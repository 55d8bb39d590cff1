//! Reading replies: every number is checked, so that a script or a server that answers nonsense is an error
//! and never a decision.

use std::sync::Arc;
use std::time::Duration;

use sluice_core::admission::{
    AdmitAnswer, AdmitReply, BreakerState, SettleReply, TargetView, Transition, TransitionReason,
    WindowCounts,
};
use sluice_core::target_id::TargetId;

/// In place of "tokens left" where tokens are not limited.
const NOT_LIMITED: i64 = -9_007_199_254_740_991;

/// One element of a script's reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyItem {
    Integer(i64),
    Text(String),
}

/// A reply that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("reply of {script}: element {index} is {found}, expected {expected}")]
pub struct ReplyError {
    pub script: &'static str,
    pub index: usize,
    pub found: String,
    pub expected: &'static str,
}

struct Reader<'a> {
    script: &'static str,
    items: &'a [ReplyItem],
    index: usize,
}

impl<'a> Reader<'a> {
    fn new(script: &'static str, items: &'a [ReplyItem], len: usize) -> Result<Self, ReplyError> {
        if items.len() == len {
            return Ok(Self { script, items, index: 0 });
        }
        Err(ReplyError {
            script,
            index: items.len(),
            found: format!("the end after {} elements", items.len()),
            expected: "a reply of the script's fixed length",
        })
    }

    fn error(&self, expected: &'static str) -> ReplyError {
        let index = self.index.saturating_sub(1);
        let found = match self.items.get(index) {
            Some(ReplyItem::Integer(n)) => n.to_string(),
            Some(ReplyItem::Text(_)) => "a text".to_owned(),
            None => "absent".to_owned(),
        };
        ReplyError { script: self.script, index, found, expected }
    }

    fn integer(&mut self) -> Result<i64, ReplyError> {
        self.index += 1;
        match self.items.get(self.index - 1) {
            Some(ReplyItem::Integer(n)) => Ok(*n),
            _ => Err(self.error("an integer")),
        }
    }

    fn count(&mut self) -> Result<u64, ReplyError> {
        u64::try_from(self.integer()?).map_err(|_| self.error("no negative number"))
    }

    fn small(&mut self) -> Result<u32, ReplyError> {
        u32::try_from(self.integer()?).map_err(|_| self.error("a number below 2^32"))
    }

    fn millis(&mut self) -> Result<Duration, ReplyError> {
        self.count().map(Duration::from_millis)
    }

    fn tokens(&mut self) -> Result<Option<i64>, ReplyError> {
        self.integer().map(|n| (n != NOT_LIMITED).then_some(n))
    }

    /// One of `all` by its index; -1: none.
    fn choice<T: Copy>(&mut self, all: &[T]) -> Result<Option<T>, ReplyError> {
        match self.integer()? {
            -1 => Ok(None),
            n => {
                let index = usize::try_from(n).ok().and_then(|n| all.get(n)).copied();
                index.map(Some).ok_or_else(|| self.error("a known code"))
            }
        }
    }

    fn required<T: Copy>(&mut self, all: &[T]) -> Result<T, ReplyError> {
        self.choice(all)?.ok_or_else(|| self.error("a known code"))
    }

    fn text(&mut self) -> Result<Option<Arc<str>>, ReplyError> {
        self.index += 1;
        match self.items.get(self.index - 1) {
            Some(ReplyItem::Text(text)) => Ok((!text.is_empty()).then(|| text.as_str().into())),
            _ => Err(self.error("a text")),
        }
    }

    fn counts(&mut self) -> Result<WindowCounts, ReplyError> {
        Ok(WindowCounts {
            calls: self.small()?,
            failures: self.small()?,
            slow: self.small()?,
            stalls: self.small()?,
        })
    }

    /// By its reason, which says from where to where; the caller fills in the counts.
    fn transition(&mut self, epoch: u64) -> Result<Option<Transition>, ReplyError> {
        let reason = self.choice(&TransitionReason::ALL)?;
        Ok(reason.map(|reason| {
            let (from, to) = ends(reason);
            Transition { from, to, reason, epoch, counts: WindowCounts::default() }
        }))
    }
}

const fn ends(reason: TransitionReason) -> (BreakerState, BreakerState) {
    use TransitionReason as Reason;
    match reason {
        Reason::FailureRate | Reason::SlowRate | Reason::StallRate | Reason::Consecutive => {
            (BreakerState::Closed, BreakerState::Open)
        }
        Reason::CooldownEnded => (BreakerState::Open, BreakerState::HalfOpen),
        Reason::ProbeFailed | Reason::ProbeThrottled => (BreakerState::HalfOpen, BreakerState::Open),
        Reason::ProbesSucceeded => (BreakerState::HalfOpen, BreakerState::Closed),
    }
}

/// Reads `admit.lua`'s reply.
///
/// # Errors
/// [`ReplyError`] names the element that is wrong.
pub fn decode_admit(items: &[ReplyItem]) -> Result<AdmitReply, ReplyError> {
    let mut r = Reader::new("admit", items, 10)?;
    let answer = r.required(&AdmitAnswer::ALL)?;
    let observed = r.choice(&AdmitAnswer::ALL)?;
    let retry_after = r.millis()?;
    let state = r.required(&BreakerState::ALL)?;
    let epoch = r.count()?;
    Ok(AdmitReply {
        answer,
        observed,
        retry_after,
        state,
        epoch,
        open_for: r.millis()?,
        tokens_left: r.tokens()?,
        rate_percent: r.small()?,
        transition: r.transition(epoch)?,
        opened_by: r.text()?,
    })
}

/// Reads `settle.lua`'s reply.
///
/// # Errors
/// [`ReplyError`] names the element that is wrong.
pub fn decode_settle(items: &[ReplyItem]) -> Result<SettleReply, ReplyError> {
    let mut r = Reader::new("settle", items, 5)?;
    let state = r.required(&BreakerState::ALL)?;
    let epoch = r.count()?;
    let open_for = r.millis()?;
    let forgiven = r.count()?;
    let transition = match r.text()? {
        None => None,
        Some(text) => {
            let words = text
                .split(' ')
                .map(|word| word.parse().map(ReplyItem::Integer))
                .collect::<Result<Vec<_>, _>>();
            let words = words.map_err(|_| r.error("integers"))?;
            let mut r = Reader::new("settle's transition", &words, 5)?;
            let transition = r.transition(epoch)?;
            let counts = r.counts()?;
            transition.map(|transition| Transition { counts, ..transition })
        }
    };
    Ok(SettleReply { state, epoch, open_for, transition, forgiven })
}

/// Reads `view.lua`'s reply.
///
/// # Errors
/// [`ReplyError`] names the element that is wrong.
pub fn decode_view(items: &[ReplyItem]) -> Result<TargetView, ReplyError> {
    let mut r = Reader::new("view", items, 13)?;
    Ok(TargetView {
        state: r.required(&BreakerState::ALL)?,
        epoch: r.count()?,
        open_for: r.millis()?,
        counts: r.counts()?,
        probes_out: r.small()?,
        tokens_left: r.tokens()?,
        paused_for: r.millis()?,
        rate_percent: r.small()?,
        ramping: r.integer()? == 1,
        opened_by: r.text()?,
    })
}

/// A transition as it was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    pub target: TargetId,
    pub transition: Transition,
    pub open_for: Duration,
    /// The tag of the agent whose call made it.
    pub agent: String,
    pub opened_by: Option<Arc<str>>,
}

/// Reads a publication: `id epoch from to reason open-for calls failures slow stalls agent traceparent`.
#[must_use]
pub fn decode_publication(payload: &str) -> Option<Heard> {
    fn pick<T: Copy>(all: &[T], code: &str) -> Option<T> {
        all.get(code.parse::<usize>().ok()?).copied()
    }
    let mut words = payload.split(' ');
    let mut next = || words.next();
    let target = TargetId::parse(next()?).ok()?;
    let epoch = next()?.parse().ok()?;
    let from = pick(&BreakerState::ALL, next()?)?;
    let to = pick(&BreakerState::ALL, next()?)?;
    let reason = pick(&TransitionReason::ALL, next()?)?;
    let open_for = Duration::from_millis(next()?.parse().ok()?);
    let counts = WindowCounts {
        calls: next()?.parse().ok()?,
        failures: next()?.parse().ok()?,
        slow: next()?.parse().ok()?,
        stalls: next()?.parse().ok()?,
    };
    let agent = next()?.to_owned();
    let opened_by = next().filter(|text| !text.is_empty()).map(Into::into);
    let transition = Transition { from, to, reason, epoch, counts };
    Some(Heard { target, transition, open_for, agent, opened_by })
}
