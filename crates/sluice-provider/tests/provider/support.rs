//! A small HTTP client and the waits that the tests share.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use sluice_provider::{Provider, Scenario};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Far longer than anything here takes.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// An answer that was read to its end, or as far as it went.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
    /// Whether the body ended as HTTP says.
    pub(crate) whole: bool,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The data of the events.
    pub(crate) fn data(&self) -> Vec<&str> {
        self.text.lines().filter_map(|line| line.strip_prefix("data: ")).collect()
    }

    /// The events as JSON, without `[DONE]`.
    pub(crate) fn events(&self) -> Vec<Value> {
        self.data()
            .iter()
            .filter(|data| **data != "[DONE]")
            .map(|data| serde_json::from_str(data).unwrap())
            .collect()
    }

    /// The text of a chat stream.
    pub(crate) fn chat_text(&self) -> String {
        self.events().iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect()
    }
}

pub(crate) async fn provider(yaml: &str) -> Provider {
    Provider::start(Scenario::from_yaml(yaml).unwrap()).await.unwrap()
}

pub(crate) fn chat(stream: bool) -> Value {
    json!({"model": "gpt-4o", "stream": stream, "messages": [{"role": "user", "content": "hi"}]})
}

pub(crate) fn request(
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Request<Full<Bytes>> {
    let mut request = Request::builder().method(method).uri(path).header("host", "provider");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::new(body.into())).unwrap()
}

pub(crate) async fn send_on(
    stream: TcpStream,
    request: Request<Full<Bytes>>,
) -> hyper::Result<Response<Incoming>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    sender.send_request(request).await
}

pub(crate) async fn send(
    provider: &Provider,
    request: Request<Full<Bytes>>,
) -> hyper::Result<Response<Incoming>> {
    send_on(TcpStream::connect(provider.addr()).await.unwrap(), request).await
}

pub(crate) async fn send_h2(
    provider: &Provider,
    mut request: Request<Full<Bytes>>,
) -> hyper::Result<Response<Incoming>> {
    let stream = TcpStream::connect(provider.addr()).await.unwrap();
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    request.headers_mut().remove("host");
    *request.uri_mut() = format!("{}{}", provider.base_url(), request.uri()).parse().unwrap();
    sender.send_request(request).await
}

pub(crate) async fn read(response: Response<Incoming>) -> Answer {
    let (parts, mut body) = response.into_parts();
    let mut text = Vec::new();
    let mut whole = true;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            whole = false;
            break;
        };
        text.extend_from_slice(&frame.into_data().unwrap_or_default());
    }
    Answer { status: parts.status, headers: parts.headers, text: String::from_utf8(text).unwrap(), whole }
}

pub(crate) async fn post(provider: &Provider, path: &str, body: &Value) -> Answer {
    let request = request(Method::POST, path, &[("content-type", "application/json")], body.to_string());
    read(send(provider, request).await.unwrap()).await
}

pub(crate) async fn post_chat(provider: &Provider, stream: bool) -> Answer {
    post(provider, "/v1/chat/completions", &chat(stream)).await
}

pub(crate) async fn get(provider: &Provider, path: &str) -> Answer {
    read(send(provider, request(Method::GET, path, &[], "")).await.unwrap()).await
}

/// The bytes of a request as they go over the wire.
pub(crate) fn raw_chat(stream: bool) -> String {
    let body = chat(stream).to_string();
    format!("POST /v1/chat/completions HTTP/1.1\r\nhost: p\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// Sends a request over a socket of its own and reads until the other side ends; the error, if it was a reset.
pub(crate) async fn raw(provider: &Provider, request: &str) -> (Vec<u8>, Option<std::io::ErrorKind>) {
    let mut socket = TcpStream::connect(provider.addr()).await.unwrap();
    let mut bytes = Vec::new();
    if let Err(error) = socket.write_all(request.as_bytes()).await {
        return (bytes, Some(error.kind()));
    }
    let mut block = [0_u8; 4096];
    loop {
        match socket.read(&mut block).await {
            Ok(0) => return (bytes, None),
            Ok(count) => bytes.extend_from_slice(&block[..count]),
            Err(error) => return (bytes, Some(error.kind())),
        }
    }
}
