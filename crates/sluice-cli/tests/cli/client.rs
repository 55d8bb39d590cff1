//! A plain HTTP client.

use std::net::SocketAddr;

use http::{HeaderMap, HeaderName, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::client::legacy::{Client as HyperClient, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use crate::command::BOUND;

#[derive(Clone)]
pub(crate) struct Client(HyperClient<HttpConnector, Full<Bytes>>);

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// The target that answered; empty: none did.
    pub(crate) fn served_by(&self) -> &str {
        self.headers.get("x-sluice-served-by").map_or("", |name| name.to_str().unwrap())
    }
}

/// An answer that is being read.
pub(crate) struct Stream {
    pub(crate) status: StatusCode,
    body: Incoming,
    pub(crate) read: String,
}

impl Stream {
    /// Reads until what was read holds `text`.
    pub(crate) async fn until(&mut self, text: &str) {
        while !self.read.contains(text) {
            assert!(self.more().await, "the stream ended before {text:?}: {}", self.read);
        }
    }

    /// Reads to the end.
    pub(crate) async fn rest(mut self) -> String {
        while self.more().await {}
        self.read
    }

    async fn more(&mut self) -> bool {
        let frame = tokio::time::timeout(BOUND, self.body.frame()).await.expect("the stream goes on");
        let Some(frame) = frame else { return false };
        let data = frame.expect("no broken stream").into_data().unwrap_or_default();
        self.read.push_str(std::str::from_utf8(&data).unwrap());
        true
    }
}

impl Client {
    pub(crate) fn new() -> Self {
        // No idle connections: a draining agent is seen to take no new ones.
        Self(HyperClient::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http())
    }

    pub(crate) async fn get(&self, address: SocketAddr, path: &str) -> Answer {
        let request = Request::get(format!("http://{address}{path}")).body(Full::default()).unwrap();
        self.send(request).await
    }

    /// A chat call that is not streamed.
    pub(crate) async fn chat(&self, agent: SocketAddr, model: &str) -> Answer {
        self.send(openai(agent, model, false)).await
    }

    /// The same with more headers.
    pub(crate) async fn chat_with(&self, agent: SocketAddr, model: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = openai(agent, model, false);
        for (name, value) in headers {
            request.headers_mut().insert(HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        self.send(request).await
    }

    pub(crate) async fn post(
        &self,
        agent: SocketAddr,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Answer {
        let mut request = Request::post(format!("http://{agent}{path}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Full::new(body.to_string().into())).unwrap()).await
    }

    pub(crate) async fn chat_stream(&self, agent: SocketAddr, model: &str) -> Stream {
        self.open(openai(agent, model, true)).await
    }

    pub(crate) async fn message(&self, agent: SocketAddr, model: &str) -> Answer {
        self.send(anthropic(agent, model, false)).await
    }

    pub(crate) async fn message_stream(&self, agent: SocketAddr, model: &str) -> Stream {
        self.open(anthropic(agent, model, true)).await
    }

    async fn open(&self, request: Request<Full<Bytes>>) -> Stream {
        let answer = tokio::time::timeout(BOUND, self.0.request(request)).await.expect("an answer").unwrap();
        Stream { status: answer.status(), body: answer.into_body(), read: String::new() }
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        let answer = tokio::time::timeout(BOUND, self.0.request(request)).await.expect("an answer").unwrap();
        let (head, body) = answer.into_parts();
        let body = tokio::time::timeout(BOUND, body.collect()).await.expect("a whole answer").unwrap();
        let body = String::from_utf8(body.to_bytes().to_vec()).unwrap();
        Answer { status: head.status, headers: head.headers, body }
    }
}

fn openai(agent: SocketAddr, model: &str, stream: bool) -> Request<Full<Bytes>> {
    let messages = json!([{"role": "user", "content": "hello"}]);
    let body = json!({"model": model, "stream": stream, "max_tokens": 6, "messages": messages});
    Request::post(format!("http://{agent}/v1/chat/completions"))
        .header("content-type", "application/json")
        .header("authorization", "Bearer key-of-the-client")
        .body(Full::new(body.to_string().into()))
        .unwrap()
}

fn anthropic(agent: SocketAddr, model: &str, stream: bool) -> Request<Full<Bytes>> {
    let messages = json!([{"role": "user", "content": "hello"}]);
    let body = json!({"model": model, "stream": stream, "max_tokens": 6, "messages": messages});
    Request::post(format!("http://{agent}/v1/messages"))
        .header("content-type", "application/json")
        .header("anthropic-version", "2023-06-01")
        .header("x-api-key", "key-of-the-client")
        .body(Full::new(body.to_string().into()))
        .unwrap()
}
