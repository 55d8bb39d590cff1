//! W3C Trace Context, level 1: which trace a caller is in, and how the next one is told.
//!
//! Read by hand and not by the SDK's propagator, because the rules about what is *invalid* are the point: an
//! invalid or doubled `traceparent` starts a new trace and never fails a request; `tracestate` is bounded and
//! goes with an invalid `traceparent`; `baggage` is never read, so it can't reach a vendor.
//!
//! Source: <https://www.w3.org/TR/trace-context/>.

use std::str::FromStr as _;

use http::{HeaderMap, HeaderValue};
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

pub const TRACEPARENT: &str = "traceparent";
pub const TRACESTATE: &str = "tracestate";

/// The specification asks for 512 at least to be passed on; longer ones are left out whole.
const TRACESTATE_BYTES: usize = 512;
const TRACESTATE_MEMBERS: usize = 32;
const TRACEPARENT_BYTES: usize = 55;

/// The caller's span, if the headers name one.
pub fn extract(headers: &HeaderMap) -> Option<SpanContext> {
    let mut values = headers.get_all(TRACEPARENT).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (trace, span, flags) = parse(value.to_str().ok()?)?;
    Some(SpanContext::new(trace, span, flags, true, tracestate(headers).unwrap_or_default()))
}

/// Reads a `traceparent`, such as the one kept in a breaker's hash.
pub fn parse_traceparent(text: &str) -> Option<SpanContext> {
    let (trace, span, flags) = parse(text)?;
    Some(SpanContext::new(trace, span, flags, true, TraceState::NONE))
}

/// `traceparent` and, where there is one, `tracestate`.
pub fn inject(context: &SpanContext, headers: &mut HeaderMap) {
    headers.remove(TRACESTATE);
    if let Ok(value) = HeaderValue::from_str(&traceparent(context)) {
        headers.insert(TRACEPARENT, value);
        let state = context.trace_state().header();
        if !state.is_empty()
            && let Ok(state) = HeaderValue::from_str(&state)
        {
            headers.insert(TRACESTATE, state);
        }
    }
}

/// The header's value.
pub fn traceparent(context: &SpanContext) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(TRACEPARENT_BYTES);
    let mut hex = |bytes: &[u8], end: &str| {
        for byte in bytes {
            text.push(DIGITS[usize::from(byte >> 4)] as char);
            text.push(DIGITS[usize::from(byte & 15)] as char);
        }
        text.push_str(end);
    };
    hex(&[0], "-");
    hex(&context.trace_id().to_bytes(), "-");
    hex(&context.span_id().to_bytes(), "-");
    hex(&[context.trace_flags().to_u8() & 1], "");
    text
}

fn parse(text: &str) -> Option<(TraceId, SpanId, TraceFlags)> {
    let bytes = text.as_bytes();
    let lower_hex = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    let field = |from: usize, to: usize| bytes.get(from..to).filter(|field| field.iter().all(lower_hex));
    let [b'-', b'-', b'-'] = [*bytes.get(2)?, *bytes.get(35)?, *bytes.get(52)?] else { return None };
    let version = field(0, 2)?;
    // A version of the future may append fields, after a dash.
    let end = bytes.get(TRACEPARENT_BYTES);
    if version == b"ff" || (version == b"00" && end.is_some()) || end.is_some_and(|end| *end != b'-') {
        return None;
    }
    let hex = |from, to| field(from, to).and_then(|field| std::str::from_utf8(field).ok());
    let trace = TraceId::from_hex(hex(3, 35)?).ok()?;
    let span = SpanId::from_hex(hex(36, 52)?).ok()?;
    let flags = u8::from_str_radix(hex(53, 55)?, 16).ok()?;
    if trace == TraceId::INVALID || span == SpanId::INVALID {
        return None;
    }
    Some((trace, span, TraceFlags::new(flags) & TraceFlags::SAMPLED))
}

/// None: absent, unreadable or too long. The trace goes on without it.
fn tracestate(headers: &HeaderMap) -> Option<TraceState> {
    let mut joined = String::new();
    for value in headers.get_all(TRACESTATE) {
        let value = value.to_str().ok()?;
        if joined.len() + value.len() >= TRACESTATE_BYTES {
            return None;
        }
        if !joined.is_empty() {
            joined.push(',');
        }
        joined.push_str(value);
    }
    if joined.split(',').count() > TRACESTATE_MEMBERS {
        return None;
    }
    TraceState::from_str(&joined).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn headers(parents: &[&str], states: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for parent in parents {
            headers.append(TRACEPARENT, HeaderValue::from_bytes(parent.as_bytes()).unwrap());
        }
        for state in states {
            headers.append(TRACESTATE, HeaderValue::from_bytes(state.as_bytes()).unwrap());
        }
        headers
    }

    #[test]
    fn a_valid_traceparent_is_continued() {
        for (text, sampled) in [
            (format!("00-{TRACE}-{SPAN}-01"), true),
            (format!("00-{TRACE}-{SPAN}-00"), false),
            // Bits other than the first are not ours to read.
            (format!("00-{TRACE}-{SPAN}-ff"), true),
            (format!("00-{TRACE}-{SPAN}-02"), false),
            // A version of the future, with and without what it adds.
            (format!("cc-{TRACE}-{SPAN}-01"), true),
            (format!("cc-{TRACE}-{SPAN}-01-what-the-future-adds"), true),
        ] {
            let context = extract(&headers(&[&text], &[])).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(context.trace_id().to_string(), TRACE, "{text}");
            assert_eq!(context.span_id().to_string(), SPAN, "{text}");
            assert_eq!(context.is_sampled(), sampled, "{text}");
            assert!(context.is_remote());
        }
    }

    #[test]
    fn an_invalid_traceparent_is_none() {
        let zero_trace = "0".repeat(32);
        for text in [
            String::new(),
            "garbage".to_owned(),
            "-".repeat(55),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-0"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("00-{TRACE}-{SPAN}-01-"),
            format!("cc-{TRACE}-{SPAN}-01.more"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("0-{TRACE}-{SPAN}-01"),
            format!("00-{zero_trace}-{SPAN}-01"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{}-01", SPAN.to_uppercase()),
            format!("00-{TRACE}-{SPAN}-0g"),
            format!("00-{}-{SPAN}-01", &TRACE[1..]),
            format!("00_{TRACE}_{SPAN}_01"),
            format!("00-{TRACE}-{SPAN}-+1"),
        ] {
            assert!(extract(&headers(&[&text], &["a=1"])).is_none(), "{text}");
            assert!(parse_traceparent(&text).is_none(), "{text}");
        }
        let twice = format!("00-{TRACE}-{SPAN}-01");
        assert!(extract(&headers(&[&twice, &twice], &[])).is_none(), "two of them");
        let mut opaque = HeaderMap::new();
        opaque.insert(TRACEPARENT, HeaderValue::from_bytes(&[0xff; 55]).unwrap());
        assert!(extract(&opaque).is_none(), "not text");
    }

    #[test]
    fn tracestate_is_joined_and_bounded() {
        let parent = format!("00-{TRACE}-{SPAN}-01");
        let state = |states: &[&str]| {
            let context = extract(&headers(&[&parent], states)).unwrap();
            context.trace_state().header()
        };
        assert_eq!(state(&[]), "");
        assert_eq!(state(&["a=1"]), "a=1");
        assert_eq!(state(&["a=1,b=2", "c=3"]), "a=1,b=2,c=3");
        assert_eq!(state(&["no pair"]), "", "unreadable: the trace goes on without it");
        assert_eq!(state(&["UPPER=1"]), "");
        let long = format!("a={}", "x".repeat(510));
        assert_eq!(state(&[&long]), "", "too long");
        let many: Vec<_> = (0..33).map(|n| format!("k{n}=1")).collect();
        assert_eq!(state(&[&many.join(",")]), "", "too many");
        assert_eq!(state(&[&many[..32].join(",")]), many[..32].join(","));
    }

    #[test]
    fn what_is_injected_can_be_extracted() {
        let parent = format!("00-{TRACE}-{SPAN}-01");
        let context = extract(&headers(&[&parent], &["a=1"])).unwrap();
        let mut out = headers(&["00-stale"], &["stale=1"]);
        inject(&context, &mut out);
        assert_eq!(out[TRACEPARENT], parent.as_str());
        assert_eq!(out[TRACESTATE], "a=1");
        assert_eq!(extract(&out).unwrap(), context);
        inject(&parse_traceparent(&parent).unwrap(), &mut out);
        assert!(out.get(TRACESTATE).is_none(), "no state of another trace stays");
    }
}
