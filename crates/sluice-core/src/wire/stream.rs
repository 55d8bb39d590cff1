//! Facts of a streamed answer, event by event.

use super::usage::WireUsage;
use super::{Operation, ProviderError, Usage, anthropic, openai};
use crate::sse::Event;

/// What one event says. An event without any of it is still a sign of life.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fact {
    pub delta: Delta,
    /// Deltas in this event: one per choice that got text. Their sum estimates output tokens where no usage
    /// is reported.
    pub deltas: u32,
    /// The provider only keeps the connection open.
    pub ping: bool,
    /// A choice or message said why it ended; more may follow (usage, the terminal event).
    pub finish: bool,
    /// The format's last event: `[DONE]`, `message_stop`, `response.completed` and its kin.
    pub terminal: bool,
    /// Usage as known after this event, when this event reported any; reports are cumulative.
    pub usage: Option<Usage>,
    pub error: Option<ProviderError>,
    /// The extra chunk that `stream_options.include_usage` asks for: usage and no choice. It is cut out when the
    /// client did not ask.
    pub usage_chunk: bool,
}

impl Fact {
    /// Whether the event has a text, reasoning or tool-call delta, so that the first such event is the first
    /// token. A role chunk, `message_start` and a ping have none.
    #[must_use]
    pub fn is_token(&self) -> bool {
        self.delta != Delta::None
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Delta {
    #[default]
    None,
    /// Thinking that the provider shows; resets the stall timer, not the silence timer.
    Reasoning,
    /// Text or a tool call.
    Token,
}

/// Reads the events of one streamed answer.
#[derive(Debug, Clone)]
pub struct StreamReader {
    operation: Operation,
    usage: WireUsage,
}

impl StreamReader {
    #[must_use]
    pub fn new(operation: Operation) -> Self {
        Self { operation, usage: WireUsage::default() }
    }

    /// The facts of the next event. Events of operations that have no stream have no facts.
    pub fn read(&mut self, event: Event<'_>) -> Fact {
        match self.operation {
            Operation::ChatCompletions | Operation::Completions => openai::chunk(event, &mut self.usage),
            Operation::Responses => openai::response_event(event, &mut self.usage),
            Operation::Messages => anthropic::message_event(event, &mut self.usage),
            Operation::Embeddings | Operation::Models | Operation::CountTokens | Operation::Other => {
                Fact::default()
            }
        }
    }

    /// Usage as reported so far; `None`: settle by estimate.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.usage.usage()
    }
}

/// Adds a report to what is known and returns what is known now.
pub(super) fn add_usage(known: &mut WireUsage, report: Option<WireUsage>) -> Option<Usage> {
    let report = report?;
    report.usage()?;
    known.update(&report);
    known.usage()
}
