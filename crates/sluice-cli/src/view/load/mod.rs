//! A load of streaming clients against a base URL, to see an incident from their side.
//!
//! It is an open loop: calls start when they are due, whether earlier ones have ended or not, as users don't wait
//! for each other either; a closed loop would slow down with the provider and hide the very thing to be seen.
//! Calls in flight are bounded all the same; one that is due beyond the bound is not sent, and is counted.
//!
//! | module | |
//! |---|---|
//! | [`schedule`] | when calls are due and what they ask; pure, seeded |
//! | [`tally`] | what came of them; pure |
//! | `call` | one call over HTTP |

mod call;
pub mod schedule;
pub mod tally;

use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::clock;
use schedule::Schedule;
pub use tally::LoadCounts;
use tally::Tally;

/// What load to make.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadConfig {
    /// With `/v1`; calls go to `{base_url}/chat/completions`. Plain HTTP.
    pub base_url: String,
    pub model: String,
    /// Calls per second on average. Default 12.
    pub per_second: f64,
    /// Of them, answers that are not streamed, in percent. Default 15.
    pub plain_percent: u32,
    /// In flight at most; what is due beyond is counted as held back. Default 500.
    pub max_in_flight: usize,
    /// A call without an end by then has failed. Default 90 s.
    pub timeout: Duration,
    /// Ends after so many calls and waits for them; `None`: goes on until it is stopped.
    pub calls: Option<u64>,
    /// Of the arrivals. Default 1.
    pub seed: u64,
}

impl LoadConfig {
    #[must_use]
    pub fn new(base_url: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            model: model.into(),
            per_second: 12.0,
            plain_percent: 15,
            max_in_flight: 500,
            timeout: Duration::from_secs(90),
            calls: None,
            seed: 1,
        }
    }
}

pub(in crate::view) type HttpClient = Client<HttpConnector, Full<Bytes>>;

/// A load; cheap to clone, all clones count together.
#[derive(Clone)]
pub struct Load {
    config: Arc<LoadConfig>,
    tally: Arc<Mutex<Tally>>,
}

impl Load {
    #[must_use]
    pub fn new(config: LoadConfig) -> Self {
        Self { config: Arc::new(config), tally: Arc::default() }
    }

    /// What came of it so far.
    #[must_use]
    pub fn counts(&self) -> LoadCounts {
        self.tally.lock().counts(clock::now())
    }

    /// Makes the load until `stop` is cancelled, which ends its calls at once, or its calls are through.
    pub async fn run(&self, stop: CancellationToken) {
        let client: HttpClient = Client::builder(TokioExecutor::new()).build_http();
        let mut schedule = Schedule::new(self.config.seed, self.config.per_second, self.config.plain_percent);
        let mut calls = JoinSet::new();
        let mut due = clock::now();
        for _ in 0..self.config.calls.unwrap_or(u64::MAX) {
            let next = schedule.next_call();
            due += next.gap;
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep_until(due) => {}
            }
            while calls.try_join_next().is_some() {}
            if calls.len() >= self.config.max_in_flight {
                self.tally.lock().hold_back();
                continue;
            }
            self.tally.lock().send();
            let (client, config, tally) = (client.clone(), Arc::clone(&self.config), Arc::clone(&self.tally));
            calls.spawn(async move {
                let sent = clock::now();
                let result = call::make(&client, &config, &next.ask, sent).await;
                tally.lock().end(result, clock::now());
            });
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = async { while calls.join_next().await.is_some() {} } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_provider::scenario::{Connection, Cut};
    use sluice_provider::{Behaviour, Provider, Scenario};

    use super::*;

    async fn counts_of(behaviour: Behaviour, change: impl FnOnce(&mut LoadConfig)) -> LoadCounts {
        let provider = Provider::start(Scenario::of(behaviour)).await.unwrap();
        let mut config = LoadConfig::new(provider.openai_url(), "gpt-4o");
        config.per_second = 2_000.0;
        config.calls = Some(40);
        change(&mut config);
        let load = Load::new(config);
        load.run(CancellationToken::new()).await;
        provider.shutdown().await;
        let counts = load.counts();
        assert_eq!(counts.in_flight, 0);
        assert_eq!(counts.sent, counts.ok + counts.degraded + counts.refused + counts.failed, "{counts:?}");
        counts
    }

    #[tokio::test]
    async fn answers_are_read_to_their_end() {
        let counts = counts_of(Behaviour { tokens: Some(5), ..Behaviour::default() }, |_| {}).await;
        assert_eq!((counts.ok, counts.failed, counts.held_back), (40, 0, 0));
        assert!(counts.ttft_p50_ms.is_some() && counts.ttft_p50_ms <= counts.ttft_p95_ms);
    }

    #[tokio::test]
    async fn headers_tell_refused_and_degraded_answers() {
        let refused = Behaviour {
            status: Some(503),
            headers: [("x-sluice-refused".to_owned(), "admit/open".into())].into(),
            ..Behaviour::default()
        };
        assert_eq!(counts_of(refused, |_| {}).await.refused, 40);
        let degraded = Behaviour {
            headers: [("x-sluice-degraded".to_owned(), "static".into())].into(),
            ..Behaviour::default()
        };
        assert_eq!(counts_of(degraded, |_| {}).await.degraded, 40);
        let error = Behaviour { status: Some(503), ..Behaviour::default() };
        assert_eq!(counts_of(error, |_| {}).await.failed, 40, "a provider's own 503 is no refusal");
    }

    #[tokio::test]
    async fn a_cut_stream_has_failed_although_its_status_was_200() {
        let cut = Behaviour {
            tokens: Some(10),
            cut: Some(Cut { after: 4, ..Cut::default() }),
            ..Behaviour::default()
        };
        let counts = counts_of(cut, |config| config.plain_percent = 0).await;
        assert_eq!((counts.failed, counts.ok), (40, 0));
        assert!(counts.ttft_p50_ms.is_some(), "it had a first token");
    }

    #[tokio::test]
    async fn calls_in_flight_are_bounded_and_have_an_end() {
        let hang = Behaviour { connection: Some(Connection::Hang), ..Behaviour::default() };
        let counts = counts_of(hang, |config| {
            config.max_in_flight = 3;
            // Longer than the forty calls take to come due.
            config.timeout = Duration::from_secs(3);
        })
        .await;
        assert_eq!((counts.sent, counts.failed, counts.held_back), (3, 3, 37));
    }

    #[tokio::test]
    async fn nobody_listening_is_a_failure_like_any_other() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let base_url = format!("http://{}/v1", listener.local_addr().unwrap());
        drop(listener);
        let load = Load::new(LoadConfig {
            calls: Some(5),
            per_second: 2_000.0,
            ..LoadConfig::new(base_url, "gpt-4o")
        });
        load.run(CancellationToken::new()).await;
        assert_eq!(load.counts().failed, 5);
    }

    #[tokio::test]
    async fn it_stops_when_told() {
        let hang = Behaviour { connection: Some(Connection::Hang), ..Behaviour::default() };
        let provider = Provider::start(Scenario::of(hang)).await.unwrap();
        let load = Load::new(LoadConfig::new(provider.openai_url(), "gpt-4o"));
        let stop = CancellationToken::new();
        let running = tokio::spawn({
            let (load, stop) = (load.clone(), stop.clone());
            async move { load.run(stop).await }
        });
        provider.wait_for(|stats| stats.total.started > 0, Duration::from_secs(30)).await.unwrap();
        stop.cancel();
        tokio::time::timeout(Duration::from_secs(30), running).await.unwrap().unwrap();
        provider.shutdown().await;
    }
}
