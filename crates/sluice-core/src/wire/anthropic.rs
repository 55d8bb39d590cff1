//! Anthropic's streams: messages.

use std::ops::ControlFlow;

use super::answer::error_member;
use super::scan::{Member, Value, members};
use super::stream::{Delta, Fact, add_usage};
use super::usage::WireUsage;
use crate::sse::Event;

/// One event of `messages`.
pub(super) fn message_event(event: Event<'_>, known: &mut WireUsage) -> Fact {
    let mut fact = Fact::default();
    let mut kind: Option<&[u8]> = event.event;
    let mut usage = None;
    let mut delta = Delta::None;
    let mut block: Option<&[u8]> = None;
    members(event.data, |member| {
        match (member.depth, member.key) {
            (1, b"type") => kind = member.value.string().or(kind),
            (1, b"error") => fact.error = error_member(member.value),
            // `message_delta` has it outermost, `message_start` inside `message`.
            (1 | 2, b"usage") => usage = member.value.parse::<Option<WireUsage>>().flatten(),
            (2, b"stop_reason") => fact.finish |= member.value.is_text(),
            (2, b"type") => block = member.value.string(),
            _ => delta = strongest(delta, content_delta(&member)),
        }
        ControlFlow::Continue(())
    });
    match kind.unwrap_or_default() {
        b"content_block_delta" => fact.delta = delta,
        // The name of a tool is the first thing generated of a call; a text block starts empty.
        b"content_block_start" => fact.delta = block.map_or(Delta::None, block_start),
        b"ping" => fact.ping = true,
        b"message_stop" => fact.terminal = true,
        b"error" => {
            fact.terminal = true;
            fact.error = Some(fact.error.take().unwrap_or_else(|| super::ProviderError::of_code(None)));
        }
        _ => {}
    }
    fact.deltas = u32::from(fact.delta != Delta::None);
    fact.usage = add_usage(known, usage);
    fact
}

/// What a member of `content_block_delta.delta` adds.
fn content_delta(member: &Member<'_>) -> Delta {
    let some = |value: Value<'_>, delta| if value.is_text() { delta } else { Delta::None };
    match (member.depth, member.key) {
        (2, b"text" | b"partial_json") => some(member.value, Delta::Token),
        (2, b"citation") if member.value.is_object() => Delta::Token,
        (2, b"thinking" | b"signature") => some(member.value, Delta::Reasoning),
        _ => Delta::None,
    }
}

fn block_start(kind: &[u8]) -> Delta {
    match kind {
        b"tool_use" | b"server_tool_use" | b"mcp_tool_use" => Delta::Token,
        b"redacted_thinking" => Delta::Reasoning,
        _ => Delta::None,
    }
}

fn strongest(one: Delta, other: Delta) -> Delta {
    match (one, other) {
        (Delta::Token, _) | (_, Delta::Token) => Delta::Token,
        (Delta::Reasoning, _) | (_, Delta::Reasoning) => Delta::Reasoning,
        (Delta::None, Delta::None) => Delta::None,
    }
}
