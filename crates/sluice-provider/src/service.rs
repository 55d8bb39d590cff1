//! One request: what it asks, what the scenario says, and the answer.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use crate::body::{Abort, AnswerBody};
use crate::clock;
use crate::conn::ConnState;
use crate::content::Content;
use crate::control;
use crate::director::{Director, Pick};
use crate::ledger::CallGuard;
use crate::pace::Pace;
use crate::playback::{self, Playback};
use crate::provider::Shared;
use crate::quota::Spent;
use crate::redact;
use crate::request::{Api, Ask};
use crate::scenario::{Answer, Behaviour, Connection, Connections, CutHow, ErrorKind, UsageReport};
use crate::stats::{Call, Outcome};
use crate::wire::{self, Reply, errors, simple};

/// Calls remembered unless the scenario says otherwise.
const RECORDED: usize = 10_000;
const MAX_BODY: usize = 256 * 1024 * 1024;
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream; charset=utf-8";
const HTML: &str =
    "<!doctype html><html><head><title>Just a moment</title></head><body>Please wait.</body></html>\n";

type Answered = Result<Response<AnswerBody>, Abort>;

pub(crate) async fn handle(
    shared: Arc<Shared>,
    conn: Arc<ConnState>,
    request: Request<Incoming>,
) -> Answered {
    let arrived = clock::now();
    if control::is_for(request.uri().path()) {
        conn.used_for_control();
        return Ok(control::answer(&shared, request).await);
    }
    if shared.connections() == Connections::Hang {
        return std::future::pending().await;
    }
    if request.version() == http::Version::HTTP_2 {
        conn.speaks_http2();
    }
    let (parts, body) = request.into_parts();
    // A client that leaves while it sends was never a call.
    let body = Limited::new(body, MAX_BODY).collect().await.map_err(|_| Abort)?.to_bytes();
    Exchange::begin(&shared, conn, &parts, &body, arrived).answer(&parts, &body).await
}

/// A call being answered.
struct Exchange {
    director: Arc<Director>,
    conn: Arc<ConnState>,
    call: CallGuard,
    ask: Ask,
    pick: Pick,
    behaviour: Arc<Behaviour>,
    pace: Pace,
    /// Errors and lists have Anthropic's form.
    anthropic: bool,
    /// Why the body can't be read.
    unreadable: Option<String>,
}

impl Exchange {
    fn begin(shared: &Shared, conn: Arc<ConnState>, parts: &Parts, body: &Bytes, arrived: Instant) -> Self {
        let director = shared.director();
        let path = parts.uri.path();
        let (ask, unreadable) = match Ask::read(path, body) {
            Ok(ask) => (ask, None),
            Err(error) => (Ask { api: Api::of(path), ..Ask::default() }, Some(error)),
        };
        let pick = director.pick(&ask, &parts.headers, path, arrived);
        let keep = director.scenario.record.unwrap_or(RECORDED);
        let mut call = Call { model: ask.model.clone(), ..Call::default() };
        if keep > 0 {
            call.connection = conn.id;
            call.version = format!("{:?}", parts.version);
            call.method = parts.method.to_string();
            call.path = redact::path(&parts.uri);
            call.headers = redact::headers(&parts.headers);
            call.stream = ask.stream;
            call.max_tokens = ask.max_tokens;
            call.body_bytes = body.len() as u64;
            call.step = pick.name.as_deref().map(str::to_owned);
            if director.scenario.record_bodies {
                call.keep_body(body);
            }
        }
        let call = shared.ledger.begin(call, arrived, keep, &conn);
        let pace = Pace::new(&pick, director.scenario.seed, call.seq(), arrived);
        let anthropic = ask.api.is_anthropic() || parts.headers.contains_key("anthropic-version");
        let behaviour = Arc::clone(&pick.behaviour);
        Self { director, conn, call, ask, pick, behaviour, pace, anthropic, unreadable }
    }

    async fn answer(mut self, parts: &Parts, body: &Bytes) -> Answered {
        self.wait_for_slot().await;
        if self.behaviour.connection == Some(Connection::Hang) {
            self.call.hang().await;
        }
        if let Some(at) = self.pace.headers_at() {
            sleep_until(at).await;
        }
        if let Some(connection @ (Connection::Close | Connection::Reset)) = self.behaviour.connection {
            if connection == Connection::Reset {
                self.conn.reset_call();
            }
            self.call.finish(Outcome::Cut);
            return Err(Abort);
        }
        if !self.director.knows_key(&parts.headers) {
            return Ok(self.error(ErrorKind::Authentication, 401, None));
        }
        if let Some(why) = self.unreadable.take() {
            return Ok(self.error(ErrorKind::BadRequest, 400, Some(&why)));
        }
        let status = self.behaviour.status.filter(|status| *status >= 400);
        if let Some(kind) = self.behaviour.error.or(status.map(errors::kind_of)) {
            let status = self.behaviour.status.unwrap_or_else(|| errors::status(kind, self.anthropic));
            let message = self.behaviour.message.clone();
            return Ok(self.error(kind, status, message.as_deref()));
        }
        if let Err(spent) = self.reserve() {
            return Ok(self.spent(&spent));
        }
        match self.behaviour.answer {
            _ if self.behaviour.body.is_some() => {
                let kind = if self.ask.stream { EVENTS } else { JSON };
                let body = self.behaviour.body.clone().unwrap_or_default();
                let status = self.behaviour.status.unwrap_or(200);
                Ok(self.whole(status, kind, body.into()))
            }
            Some(Answer::Html) => Ok(self.whole(200, "text/html; charset=utf-8", HTML.into())),
            Some(Answer::EmptyBody) => Ok(self.whole(200, JSON, Bytes::new())),
            Some(Answer::EmptyStream) => Ok(self.whole(200, EVENTS, Bytes::new())),
            Some(Answer::KeepAlivesOnly) if !self.ask.stream => std::future::pending().await,
            _ if !self.ask.api.generates() => self.simple(parts, body).await,
            _ => self.generate().await,
        }
    }

    /// In a saturated server a call's times begin when it is worked on.
    async fn wait_for_slot(&mut self) {
        let Some(slots) = &self.director.slots else { return };
        if let Ok(slot) = Arc::clone(slots).acquire_owned().await {
            self.call.hold(slot);
            self.pace = Pace::new(&self.pick, self.director.scenario.seed, self.call.seq(), clock::now());
        }
    }

    /// Takes from the quotas what the call may cost.
    fn reserve(&mut self) -> Result<(), Spent> {
        let generates = self.ask.api.generates();
        if !generates && self.ask.api != Api::Embeddings {
            return Ok(());
        }
        let input = self.input_tokens();
        let output = if generates { Content::maximum(&self.behaviour, &self.ask) } else { 0 };
        let now = clock::now();
        let [first, second] = &self.pick.quotas;
        if let Some(first) = first {
            first.take(input, output, now)?;
        }
        if let Some(second) = second
            && let Err(spent) = second.take(input, output, now)
        {
            if let Some(first) = first {
                first.give_back(input, output);
            }
            return Err(spent);
        }
        self.call.reserve(self.pick.quotas.clone(), output);
        Ok(())
    }

    async fn generate(mut self) -> Answered {
        let content = match self.behaviour.answer {
            Some(Answer::NoTokens) => Content::nothing(),
            _ => Content::new(&self.behaviour, &self.ask),
        };
        let total = content.total;
        let usage = self.behaviour.usage.unwrap_or_default();
        let reply = Reply::new(self.call.seq(), &self.ask, content, self.input_tokens(), usage);
        if self.behaviour.keep_generating == Some(true) {
            self.call.keep_generating(total, self.pace.clone());
        }
        if self.ask.stream {
            let mut response = self.head(200, EVENTS);
            response.headers_mut().entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache"));
            self.call.answered(200, self.input_tokens());
            let dialect = wire::stream(self.ask.api, reply);
            let playback = Playback::new(self.call, self.conn, dialect, self.behaviour, self.pace);
            return Ok(response.map(|()| playback.into_body()));
        }
        let data = wire::plain(self.ask.api, &reply);
        self.produce_in_silence(total).await;
        Ok(self.plain(data))
    }

    /// A plain answer takes as long as the stream would.
    async fn produce_in_silence(&mut self, total: u64) {
        let mut due = self.pace.first_token_at();
        if let Some(at) = due {
            sleep_until(at).await;
        }
        if !self.pace.is_paced() {
            self.call.produced(total);
            return;
        }
        for index in 1..=total {
            self.call.produced(1);
            if index == total {
                return;
            }
            due = self.pace.after_token(index, due.unwrap_or_else(clock::now));
            if let Some(at) = due {
                sleep_until(at).await;
            }
        }
    }

    fn plain(mut self, mut data: Bytes) -> Response<AnswerBody> {
        if self.behaviour.malformed.is_some() {
            data.truncate(data.len() / 2);
        }
        let cut = self.behaviour.cut.as_ref().map(|cut| cut.how);
        if cut.is_none() && self.behaviour.stall.is_none() {
            return self.whole(200, JSON, data);
        }
        let mut response = self.head(200, JSON);
        if cut != Some(CutHow::Eof) {
            response.headers_mut().insert(CONTENT_LENGTH, data.len().into());
        }
        self.call.answered(200, self.input_tokens());
        response.map(|()| playback::halves(self.call, self.conn, &data, self.behaviour))
    }

    /// The APIs that generate nothing.
    async fn simple(self, parts: &Parts, body: &Bytes) -> Answered {
        if let Some(at) = self.pace.first_token_at() {
            sleep_until(at).await;
        }
        let path = parts.uri.path();
        let value = match self.ask.api {
            Api::Embeddings => {
                let report = self.behaviour.usage != Some(UsageReport::Omit);
                simple::embeddings(&self.ask, self.input_tokens(), report)
            }
            Api::CountTokens => json!({"input_tokens": self.input_tokens()}),
            Api::Models => match simple::models(path, &self.director.scenario.models, self.anthropic) {
                Some(models) => models,
                None => return Ok(self.error(ErrorKind::NotFound, 404, None)),
            },
            _ if path.contains("/v1/") => echo(parts, body),
            _ => return Ok(self.error(ErrorKind::NotFound, 404, Some("no such path"))),
        };
        Ok(self.plain(Bytes::from(value.to_string())))
    }

    fn error(self, kind: ErrorKind, status: u16, message: Option<&str>) -> Response<AnswerBody> {
        if let Some(body) = self.behaviour.body.clone() {
            return self.whole(status, JSON, body.into());
        }
        let value = if self.anthropic {
            errors::anthropic(kind, message, self.call.seq())
        } else {
            errors::openai(kind, message)
        };
        self.whole(status, JSON, Bytes::from(value.to_string()))
    }

    fn spent(self, spent: &Spent) -> Response<AnswerBody> {
        let message = format!("Rate limit reached: {} {} per minute.", spent.limit, spent.what);
        let seconds = spent.wait.as_secs_f64();
        let mut response = self.error(ErrorKind::RateLimit, 429, Some(&message));
        let mut set = |name: String, value: String| {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                response.headers_mut().insert(name, value);
            }
        };
        set("retry-after".into(), format!("{}", seconds.ceil().max(1.0)));
        set("retry-after-ms".into(), format!("{}", spent.wait.as_millis().max(1)));
        set(format!("x-ratelimit-limit-{}", spent.what), spent.limit.to_string());
        set(format!("x-ratelimit-remaining-{}", spent.what), spent.remaining.to_string());
        set(format!("x-ratelimit-reset-{}", spent.what), format!("{seconds:.3}s"));
        response
    }

    fn whole(mut self, status: u16, content_type: &str, data: Bytes) -> Response<AnswerBody> {
        let response = self.head(status, content_type);
        self.call.answered(status, if status == 200 { self.input_tokens() } else { 0 });
        response.map(|()| AnswerBody::Whole { data, call: Some(Box::new(self.call)) })
    }

    fn head(&self, status: u16, content_type: &str) -> Response<()> {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let id = format!("req_{:012}", self.call.seq());
        let id_name = if self.anthropic { "request-id" } else { "x-request-id" };
        let behaviour = &self.behaviour;
        let waits = [("retry-after", &behaviour.retry_after), ("retry-after-ms", &behaviour.retry_after_ms)];
        let usual = [("content-type", content_type), (id_name, id.as_str())];
        let scripted = behaviour.headers.iter().map(|(name, value)| (name.as_str(), value.0.as_str()));
        let waits = waits.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?.0.as_str())));
        for (name, value) in usual.into_iter().chain(waits).chain(scripted) {
            // Checked when the scenario was read.
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                response.headers_mut().insert(name, value);
            }
        }
        response
    }

    fn input_tokens(&self) -> u64 {
        self.behaviour.input_tokens.unwrap_or(self.ask.input_tokens)
    }
}

fn echo(parts: &Parts, body: &Bytes) -> Value {
    json!({
        "method": parts.method.as_str(),
        "path": redact::path(&parts.uri),
        "headers": redact::headers(&parts.headers),
        "bodyBytes": body.len(),
    })
}

/// An answer of the provider's own, which is no call.
pub(crate) fn aside(status: StatusCode, content_type: &'static str, text: String) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::plain(text));
    *response.status_mut() = status;
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    *response.headers_mut() = headers;
    response
}
