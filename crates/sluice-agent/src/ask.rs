//! What a client asks for: its request, read once, bounded, and cleaned for the way on.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, Method, Uri};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use sluice_core::deadline::{CallersDeadline, UnreadableDeadline};
use sluice_core::policy::{Lane, LaneChoice, RoutePolicy, TargetPolicy, TenantSource, WireFormat};
use sluice_core::wire::{
    Edits, Operation, RequestError, RequestFacts, ask_for_usage, read_request, replace_model,
};

use crate::body_room::BodyRoom;
use crate::client_auth::CallersCredential;
use crate::headers::{self, ProtectedHeader};
use crate::reply::Unanswered;

/// How long a body that was refused is still read.
const LINGER: Duration = Duration::from_secs(2);

pub(crate) struct Ask {
    pub(crate) operation: Operation,
    pub(crate) format: WireFormat,
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    /// Without hop-by-hop headers and the agent's own.
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) facts: Arc<RequestFacts>,
    /// The target that the caller named.
    pub(crate) named_target: Option<String>,
    /// Retries that the caller's SDK has already made.
    pub(crate) sdk_retries: u32,
    pub(crate) deadline: CallersDeadline,
    pub(crate) traceparent: Option<Arc<str>>,
    pub(crate) callers_credential: CallersCredential,
    /// The body's share of what may be in memory.
    pub(crate) room: Option<BodyRoom>,
}

/// Why a request cannot be read.
#[derive(Debug)]
pub(crate) enum Unreadable {
    Body(RequestError),
    TooLarge {
        limit: u64,
    },
    /// The client stopped sending.
    Broken,
    /// It took longer than the deadline to send it.
    TooSlow,
    /// Too many large bodies are in memory.
    NoRoom,
    /// There is no policy yet.
    NoPolicy,
    ProtectedHeader(ProtectedHeader),
    Deadline(UnreadableDeadline),
    TooManyHeaders,
    FramedTwice,
    /// The client shows no credential that is good here.
    Unauthenticated,
    /// It cannot be said now whether its credential is good.
    Unverified,
    /// It came through this agent before, or through too many.
    Loop,
}

impl Ask {
    /// Reads the request's head; the body follows in [`read_body`](Self::read_body).
    pub(crate) fn of(parts: Parts) -> Result<Self, Unanswered> {
        let Parts { method, uri, headers: received, .. } = parts;
        let operation = Operation::of(method.as_str(), uri.path());
        // A known path is answered in its own format even where its method is wrong.
        let format = Operation::at(uri.path()).and_then(Operation::format).unwrap_or_else(|| {
            if received.contains_key("anthropic-version") {
                WireFormat::Anthropic
            } else {
                WireFormat::OpenAi
            }
        });
        // HTTP/1.1 counts them while parsing.
        if received.len() > headers::MOST {
            return Err(Unanswered { format, unreadable: Unreadable::TooManyHeaders });
        }
        let text = |name: &str| received.get(name).and_then(|value| value.to_str().ok());
        let named_target = received
            .get(headers::TARGET)
            .and_then(|value| value.to_str().ok())
            .map(|name| name.chars().take(64).collect());
        let sdk_retries =
            text(headers::SDK_RETRY_COUNT).and_then(|count| count.trim().parse().ok()).unwrap_or(0);
        // What is no text is no time either.
        let deadline = CallersDeadline::read(|name| {
            received.get(name).map(|value| value.to_str().unwrap_or("\u{fffd}"))
        })
        .map_err(|error| Unanswered { format, unreadable: Unreadable::Deadline(error) })?;
        let traceparent = text("traceparent").filter(|value| value.len() <= 64).map(Arc::from);
        let mut headers = received;
        headers::strip_hop_by_hop(&mut headers)
            .map_err(|header| Unanswered { format, unreadable: Unreadable::ProtectedHeader(header) })?;
        Ok(Self {
            operation,
            format,
            method,
            uri: if operation == Operation::Other { uri } else { without_trailing_slash(uri) },
            headers,
            body: Bytes::new(),
            facts: Arc::default(),
            named_target,
            sdk_retries,
            deadline,
            traceparent,
            callers_credential: CallersCredential::default(),
            room: None,
        })
    }

    /// Reads the whole body (a model's name may be its last member) within `limit` bytes, and its facts.
    pub(crate) async fn read_body(&mut self, mut body: Incoming, limit: u64) -> Result<(), Unreadable> {
        let announced = hyper::body::Body::size_hint(&body);
        if announced.lower() > limit {
            linger(body);
            return Err(Unreadable::TooLarge { limit });
        }
        let mut whole: Option<Bytes> = None;
        let mut joined = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let Ok(chunk) = frame.map_err(|_| Unreadable::Broken)?.into_data() else { continue };
            let length = whole.as_ref().map_or(joined.len(), Bytes::len) + chunk.len();
            if length as u64 > limit {
                linger(body);
                return Err(Unreadable::TooLarge { limit });
            }
            if let Some(room) = &mut self.room {
                room.grow_to(length)?;
            }
            match whole.take() {
                // The first chunk is mostly the only one: no copy.
                None if joined.is_empty() => whole = Some(chunk),
                None => joined.extend_from_slice(&chunk),
                Some(first) => {
                    let expected = usize::try_from(announced.lower()).unwrap_or(length).max(length);
                    joined.reserve(expected);
                    joined.extend_from_slice(&first);
                    joined.extend_from_slice(&chunk);
                }
            }
        }
        self.body = whole.unwrap_or_else(|| joined.freeze());
        if self.operation.names_model() {
            self.facts = Arc::new(read_request(self.operation, &self.body).map_err(Unreadable::Body)?);
        }
        Ok(())
    }

    /// Whether the request came through the agent of this mark before, or through more than anyone means.
    pub(crate) fn loops(&self, mark: u64) -> bool {
        let via = self.header(headers::VIA.as_str()).unwrap_or_default();
        let mark = format!("{mark:016x}");
        via.split(',').any(|one| one.trim() == mark) || via.split(',').count() > headers::VIA_MOST
    }

    /// The headers of an attempt: without the agent's own, but for the mark of its way.
    pub(crate) fn outgoing_headers(&self, mark: u64) -> HeaderMap {
        let via = match self.header(headers::VIA.as_str()) {
            Some(before) => format!("{before},{mark:016x}"),
            None => format!("{mark:016x}"),
        };
        let mut headers = self.headers.clone();
        headers::strip_own(&mut headers);
        if let Ok(via) = http::HeaderValue::try_from(via) {
            headers.insert(headers::VIA, via);
        }
        headers
    }

    /// The body for a target: its own model's name, and the usage chunk asked for where the client did not.
    /// The second value says whether that chunk is to be hidden.
    pub(crate) fn body_for(&self, target: &TargetPolicy) -> (Bytes, bool) {
        let model =
            target.model.as_deref().map_or_else(Edits::default, |model| replace_model(&self.facts, model));
        let usage = ask_for_usage(self.operation, &self.facts, &self.body);
        let hide = !usage.is_empty();
        (model.and(usage).apply(&self.body), hide)
    }

    /// Whom the exchange is accounted to.
    pub(crate) fn tenant(&self, route: &RoutePolicy) -> Arc<str> {
        match &route.tenant {
            TenantSource::Workload => Arc::from("workload"),
            TenantSource::Header { header, default } => {
                self.header(header).filter(|name| !name.is_empty()).map_or_else(|| default.clone(), Arc::from)
            }
        }
    }

    pub(crate) fn lane(&self, choice: &LaneChoice) -> Lane {
        let matches = |rule: &&sluice_core::policy::LaneRule| {
            self.header(&rule.header).is_some_and(|value| value == &*rule.value)
        };
        choice.rules.iter().find(matches).map_or(choice.default, |rule| rule.lane)
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// A path that Sluice knows goes to the provider as the provider knows it.
fn without_trailing_slash(uri: Uri) -> Uri {
    let Some(path) = uri.path().strip_suffix('/') else { return uri };
    let canonical = uri.query().map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
    canonical.parse().unwrap_or(uri)
}

/// Reads on for a moment what is sent in spite of its refusal: a connection that is closed with bytes unread is
/// reset, and the reset overtakes the refusal on its way to the client.
pub(crate) fn linger(mut body: Incoming) {
    tokio::spawn(tokio::time::timeout(LINGER, async move { while let Some(Ok(_)) = body.frame().await {} }));
}

/// The tenant's own share of a target's quota, when the quota names the tenant.
pub(crate) fn quota_tenant(target: &TargetPolicy, tenant: &Arc<str>) -> Option<Arc<str>> {
    let quota = target.rules.quota.as_ref()?;
    quota.rules.tenants.iter().any(|share| share.name == *tenant).then(|| tenant.clone())
}
