//! OpenAI's streams: chat completions, completions, and responses.

use std::ops::ControlFlow;

use super::answer::{ProviderError, error_member};
use super::scan::{Member, members};
use super::stream::{Delta, Fact, add_usage};
use super::usage::WireUsage;
use crate::sse::Event;

/// One chunk of `chat/completions` or `completions`.
pub(super) fn chunk(event: Event<'_>, known: &mut WireUsage) -> Fact {
    let mut fact = Fact::default();
    let data = event.data.trim_ascii();
    // The SDKs stop at anything that begins so.
    if data.starts_with(b"[DONE]") {
        fact.terminal = true;
        return fact;
    }
    let mut usage = None;
    let mut no_choice = false;
    members(data, |member| {
        match (member.depth, member.key) {
            (1, b"error") => fact.error = error_member(member.value),
            (1, b"usage") => usage = member.value.parse::<Option<WireUsage>>().flatten(),
            (1, b"choices") => no_choice = member.value.is_empty_array(),
            (3, b"finish_reason") => fact.finish |= member.value.is_text(),
            _ => count_delta(&mut fact, chat_delta(&member)),
        }
        ControlFlow::Continue(())
    });
    fact.usage = add_usage(known, usage);
    fact.usage_chunk = no_choice && fact.usage.is_some();
    fact
}

/// What a member of a choice adds. `choices[].delta` has its members at depth 4; a completion has its text at 3.
fn chat_delta(member: &Member<'_>) -> Delta {
    let value = member.value;
    let (token, reasoning) = match (member.depth, member.key) {
        // `logprobs.content` lies as deep, but is an array.
        (4, b"content" | b"refusal") | (3, b"text") => (value.is_text(), false),
        (4, b"tool_calls") => (value.is_filled_array(), false),
        (4, b"function_call" | b"audio") => (value.is_object(), false),
        // Not OpenAI's own; DeepSeek, vLLM, OpenRouter and others use these names.
        (4, b"reasoning_content" | b"reasoning") => (false, value.is_text()),
        (4, b"reasoning_details") => (false, value.is_filled_array()),
        _ => (false, false),
    };
    match (token, reasoning) {
        (true, _) => Delta::Token,
        (false, true) => Delta::Reasoning,
        (false, false) => Delta::None,
    }
}

fn count_delta(fact: &mut Fact, delta: Delta) {
    if delta != Delta::None {
        fact.deltas += 1;
        if fact.delta != Delta::Token {
            fact.delta = delta;
        }
    }
}

/// One event of `responses`.
pub(super) fn response_event(event: Event<'_>, known: &mut WireUsage) -> Fact {
    let mut fact = Fact::default();
    let mut kind: Option<&[u8]> = event.event;
    let (mut outer_error, mut inner_error) = (None, None);
    let mut text = false;
    let mut usage = None;
    let mut code = None;
    members(event.data, |member| {
        match (member.depth, member.key) {
            (1, b"type") => kind = member.value.string().or(kind),
            // Audio, code and arguments are strings as well.
            (1, b"delta" | b"partial_image_b64") => text = member.value.is_text(),
            (1, b"error") => outer_error = error_member(member.value),
            (1, b"code") => code = member.value.string(),
            // `response.error` of a failed response; an item of the output (a tool's call) may have one too,
            // which is no failure of the model.
            (2, b"error") => inner_error = error_member(member.value),
            (2, b"usage") => usage = member.value.parse::<Option<WireUsage>>().flatten(),
            _ => {}
        }
        ControlFlow::Continue(())
    });
    fact.usage = add_usage(known, usage);
    let kind = kind.unwrap_or_default();
    match kind {
        b"response.completed" | b"response.incomplete" => {
            fact.terminal = true;
            fact.finish = true;
        }
        b"response.failed" | b"response.cancelled" => {
            fact.terminal = true;
            fact.error = Some(inner_error.or(outer_error).unwrap_or_else(|| ProviderError::of_code(None)));
        }
        b"error" => {
            fact.terminal = true;
            fact.error = Some(outer_error.unwrap_or_else(|| ProviderError::of_code(code)));
        }
        _ => {
            fact.error = outer_error;
            let is_delta = kind.ends_with(b".delta") || kind.ends_with(b".partial_image");
            if is_delta && text {
                let reasoning = memchr::memmem::find(kind, b"reasoning").is_some();
                fact.delta = if reasoning { Delta::Reasoning } else { Delta::Token };
                fact.deltas = 1;
            }
        }
    }
    fact
}
