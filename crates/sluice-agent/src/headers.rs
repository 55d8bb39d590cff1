//! Which headers cross the agent, and under which names its own travel.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use sluice_core::retry_after;
use sluice_telemetry::{SpanContext, context};

/// A request has no more headers than this, and 64 KiB of them.
pub(crate) const MOST: usize = 100;
pub(crate) const MOST_BYTES: usize = 64 * 1024;

/// The caller names a target (where the route allows it).
pub(crate) const TARGET: HeaderName = HeaderName::from_static("x-sluice-target");
/// The client's key for a gateway, where the usual headers carry its key for a provider.
pub(crate) const CLIENT_KEY: HeaderName = HeaderName::from_static("x-sluice-client-key");
/// The caller's own deadline, in milliseconds from now.
pub(crate) const TIMEOUT_MS: &str = "x-sluice-timeout-ms";
/// Which target answered.
pub(crate) const SERVED_BY: HeaderName = HeaderName::from_static("x-sluice-served-by");
/// Marks an answer that no target gave.
pub(crate) const DEGRADED: HeaderName = HeaderName::from_static("x-sluice-degraded");
/// One id for all attempts of an exchange.
pub(crate) const EXCHANGE_ID: HeaderName = HeaderName::from_static("x-sluice-exchange-id");
/// The agents that an exchange has come through, by their marks: how one of them sees a loop.
pub(crate) const VIA: HeaderName = HeaderName::from_static("x-sluice-via");
/// Marks in [`VIA`] beyond which nobody can have meant it.
pub(crate) const VIA_MOST: usize = 8;
/// A fresh id for each attempt.
pub(crate) const ATTEMPT_ID: HeaderName = HeaderName::from_static("x-sluice-attempt-id");
/// The SDKs count their own retries here.
pub(crate) const SDK_RETRY_COUNT: &str = "x-stainless-retry-count";
/// Tells the SDKs whether to come back by themselves.
pub(crate) const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
/// The exact wait, which SDKs read before `Retry-After`.
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
/// A caller's key for safe repeats: it stays with one provider.
pub(crate) const IDEMPOTENCY_KEY: &str = "idempotency-key";

pub(crate) const API_KEY: HeaderName = HeaderName::from_static("api-key");
pub(crate) const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// RFC 9110 § 7.6.1, and what proxies have always treated alike.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// What `Connection` may not take away: deleting these changes what the request means.
const PROTECTED: [HeaderName; 5] =
    [header::AUTHORIZATION, header::HOST, header::CONTENT_LENGTH, X_API_KEY, header::CONTENT_TYPE];

/// `Connection` names a header that is not its to delete.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProtectedHeader(pub(crate) HeaderName);

/// Takes away what belongs to one hop of a request: the fixed set, and all that `Connection` names.
pub(crate) fn strip_hop_by_hop(headers: &mut HeaderMap) -> Result<(), ProtectedHeader> {
    let named = named_by_connection(headers);
    if let Some(protected) = named.iter().find(|name| PROTECTED.contains(name)) {
        return Err(ProtectedHeader(protected.clone()));
    }
    strip(headers, &named);
    Ok(())
}

/// The same of an answer, where nothing is refused: what `Connection` may not take away just stays.
///
/// An answer with `Transfer-Encoding` was read by it, so a `Content-Length` beside it says nothing true (RFC 9112
/// § 6.3): sent on, it would make the client take the next answer's bytes for the rest of this one.
fn strip_hop_by_hop_of_answer(headers: &mut HeaderMap) {
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    let mut named = named_by_connection(headers);
    named.retain(|name| !PROTECTED.contains(name));
    strip(headers, &named);
}

fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::try_from(name.trim()).ok())
        .collect()
}

fn strip(headers: &mut HeaderMap, named: &[HeaderName]) {
    for name in HOP_BY_HOP.iter().chain(named) {
        headers.remove(name);
    }
}

/// Takes away from an answer on its way to the client what belongs to its hop, what is ours to say, and what nobody
/// can wait for.
pub(crate) fn clean_answer(headers: &mut HeaderMap) {
    strip_hop_by_hop_of_answer(headers);
    strip_family(headers);
    keep_sane_waits(headers, crate::clock::wall());
}

/// Takes away the whole family `x-sluice-`: what it says is this agent's to say. A provider that sent one could
/// pass its answer off as a refusal, or as another target's.
fn strip_family(headers: &mut HeaderMap) {
    let own: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("x-sluice-")).cloned().collect();
    for name in own {
        headers.remove(name);
    }
}

/// Leaves in an answer only waits that can be waited: SDKs compute with what they find, so a negative number, NaN
/// or text has them come back at once, and a wait of years is cut to the longest that Sluice itself reads.
fn keep_sane_waits(headers: &mut HeaderMap, now: std::time::SystemTime) {
    for name in [RETRY_AFTER_MS, header::RETRY_AFTER] {
        let Some(told) = headers.get(&name).cloned() else { continue };
        let read = |asked: &str| told.to_str().ok().filter(|_| asked == name.as_str());
        match retry_after::retry_after(read, now) {
            None => {
                headers.remove(&name);
            }
            Some(wait) if wait >= retry_after::LONGEST => {
                let unit = if name == RETRY_AFTER_MS { 1_000 } else { 1 };
                headers.insert(&name, HeaderValue::from(wait.as_secs() * unit));
            }
            // One of them, should there be several: SDKs do not agree on which.
            Some(_) => {
                headers.insert(&name, told);
            }
        }
    }
}

/// Takes away what must not reach a provider whatever the route: the agent's own headers and baggage.
pub(crate) fn strip_own(headers: &mut HeaderMap) {
    strip_family(headers);
    headers.remove("baggage");
    headers.remove(context::TRACEPARENT);
    headers.remove(context::TRACESTATE);
    headers.remove(header::HOST);
    headers.remove(header::CONTENT_LENGTH);
    headers.remove(header::EXPECT);
}

/// Names to the provider the trace that the attempt is part of: by its own span, or by the caller's where this agent
/// makes none.
pub(crate) fn tell_trace(own: Option<SpanContext>, received: &HeaderMap, headers: &mut HeaderMap) {
    if let Some(span) = own.or_else(|| context::extract(received)) {
        context::inject(&span, headers);
    }
}

/// Takes away every credential that a caller can have sent.
pub(crate) fn strip_credentials(headers: &mut HeaderMap) {
    for name in [header::AUTHORIZATION, API_KEY, X_API_KEY, header::COOKIE] {
        headers.remove(name);
    }
}

/// The header that carries a provider's key.
pub(crate) fn credential(
    provider: sluice_core::policy::Provider,
    secret: &[u8],
) -> Option<(HeaderName, HeaderValue)> {
    use sluice_core::policy::Provider;
    let secret = secret.trim_ascii();
    let (name, value) = match provider {
        Provider::OpenAi | Provider::OpenAiCompatible => {
            (header::AUTHORIZATION, HeaderValue::from_bytes(&[b"Bearer ".as_slice(), secret].concat()))
        }
        Provider::AzureOpenAi => (API_KEY, HeaderValue::from_bytes(secret)),
        Provider::Anthropic => (X_API_KEY, HeaderValue::from_bytes(secret)),
    };
    let mut value = value.ok()?;
    value.set_sensitive(true);
    Some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn what_connection_names_goes_with_the_fixed_set() {
        let mut headers =
            map(&[("connection", "x-gone, close"), ("x-gone", "1"), ("te", "trailers"), ("x-kept", "1")]);
        strip_hop_by_hop(&mut headers).unwrap();
        assert_eq!(headers, map(&[("x-kept", "1")]));
    }

    #[test]
    fn an_answers_hop_is_cleaned_whatever_it_names() {
        let mut headers = map(&[("connection", "content-type, x-gone"), ("x-gone", "1"), ("te", "x")]);
        headers.insert("content-type", HeaderValue::from_static("text/html"));
        strip_hop_by_hop_of_answer(&mut headers);
        assert_eq!(headers, map(&[("content-type", "text/html")]));
    }

    #[test]
    fn an_answer_of_two_lengths_loses_the_one_that_was_not_read_by() {
        let mut headers = map(&[("content-length", "5"), ("transfer-encoding", "chunked"), ("x-kept", "1")]);
        strip_hop_by_hop_of_answer(&mut headers);
        assert_eq!(headers, map(&[("x-kept", "1")]));

        let mut headers = map(&[("content-length", "5")]);
        strip_hop_by_hop_of_answer(&mut headers);
        assert_eq!(headers, map(&[("content-length", "5")]));
    }

    #[test]
    fn only_waits_that_can_be_waited_go_on() {
        // 2026-01-01T00:00:00Z
        let now = std::time::UNIX_EPOCH + std::time::Duration::from_hours(490_896);
        for (name, told, goes_on) in [
            ("retry-after-ms", "1500", Some("1500")),
            ("retry-after-ms", "0.5", Some("0.5")),
            ("retry-after-ms", "-Infinity", None),
            ("retry-after-ms", "Infinity", None),
            ("retry-after-ms", "NaN", None),
            ("retry-after-ms", "-1", None),
            ("retry-after-ms", "1e300", Some("86400000")),
            ("retry-after-ms", "99999999999999999999", Some("86400000")),
            ("retry-after-ms", "soon", None),
            ("retry-after-ms", "", None),
            ("retry-after", "7", Some("7")),
            ("retry-after", "-7", None),
            ("retry-after", "nan", None),
            ("retry-after", "9e99", Some("86400")),
            ("retry-after", "Thu, 01 Jan 2026 00:00:30 GMT", Some("Thu, 01 Jan 2026 00:00:30 GMT")),
            ("retry-after", "Thu, 01 Jan 2099 00:00:00 GMT", Some("86400")),
            ("retry-after", "Thu, 99 Jan 2026 00:00:30 GMT", None),
        ] {
            let mut headers = map(&[(name, told), ("x-kept", "-Infinity")]);
            keep_sane_waits(&mut headers, now);
            assert_eq!(headers.get(name).map(|value| value.to_str().unwrap()), goes_on, "{name}: {told}");
            assert!(headers.contains_key("x-kept"));
        }
        let mut twice = map(&[("retry-after", "3")]);
        twice.append("retry-after", HeaderValue::from_static("-1"));
        keep_sane_waits(&mut twice, now);
        assert_eq!(twice, map(&[("retry-after", "3")]));
    }

    #[test]
    fn connection_cannot_delete_the_credential() {
        let mut headers = map(&[("connection", "Authorization"), ("authorization", "x")]);
        assert_eq!(strip_hop_by_hop(&mut headers), Err(ProtectedHeader(header::AUTHORIZATION)));
    }

    #[test]
    fn a_secret_is_sensitive_and_loses_its_newline() {
        let (name, value) = credential(sluice_core::policy::Provider::OpenAi, b"sk-1\n").unwrap();
        assert_eq!((name, value.as_bytes()), (header::AUTHORIZATION, b"Bearer sk-1".as_slice()));
        assert!(value.is_sensitive());
        assert!(credential(sluice_core::policy::Provider::OpenAi, b"a\nb").is_none());
    }
}
