//! An OTLP collector over HTTP that keeps what it gets and can be told to misbehave.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// What it does with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    Takes,
    /// Reads the request and never answers.
    Hangs,
    /// Takes it, after a while.
    Slow(Duration),
    /// Answers with a status, and a Retry-After of 0.
    Refuses(u16),
}

/// One request.
#[derive(Debug, Clone)]
pub struct Received {
    /// traces, metrics or logs
    pub signal: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

#[derive(Debug)]
struct Inside {
    mood: Mood,
    asked: usize,
    received: Vec<Received>,
}

/// A collector, ended when dropped.
pub struct Collector {
    /// For `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub endpoint: String,
    inside: Arc<Mutex<Inside>>,
    serving: JoinHandle<()>,
}

impl Collector {
    /// On a free port.
    ///
    /// # Errors
    /// When there is none.
    pub async fn start(mood: Mood) -> Result<Self> {
        let inside = Arc::new(Mutex::new(Inside { mood, asked: 0, received: Vec::new() }));
        let app = Router::new().route("/v1/{signal}", post(take)).with_state(inside.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let serving = tokio::spawn(async move {
            // It ends with the test.
            let _ = axum::serve(listener, app).await;
        });
        Ok(Self { endpoint, inside, serving })
    }

    /// How it behaves from the next request on.
    pub fn set(&self, mood: Mood) {
        self.inside.lock().mood = mood;
    }

    /// Requests so far, whatever became of them.
    #[must_use]
    pub fn asked(&self) -> usize {
        self.inside.lock().asked
    }

    /// What it took of a signal, in order.
    #[must_use]
    pub fn received(&self, signal: &str) -> Vec<Received> {
        self.inside.lock().received.iter().filter(|one| one.signal == signal).cloned().collect()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn take(
    State(inside): State<Arc<Mutex<Inside>>>,
    Path(signal): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let mood = {
        let mut inside = inside.lock();
        inside.asked += 1;
        inside.mood
    };
    match mood {
        Mood::Takes => {}
        Mood::Hangs => std::future::pending().await,
        Mood::Slow(wait) => tokio::time::sleep(wait).await,
        Mood::Refuses(status) => {
            return (
                StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
                [("retry-after", "0")],
            )
                .into_response();
        }
    }
    inside.lock().received.push(Received { signal, headers, body });
    StatusCode::OK.into_response()
}
