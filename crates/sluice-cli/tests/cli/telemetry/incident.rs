//! Manifests for an incident that is over in seconds, and calls that count themselves.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::task::JoinSet;

use crate::client::Client;

/// Opens after three bad calls of a handful, probes after a second, closes after two good probes.
pub(crate) const QUICK: &str = "apiVersion: sluice.dev/v1alpha1
kind: ReliabilityPolicy
metadata: {name: quick}
spec:
  targetRefs: [{group: sluice.dev, kind: ModelRoute, name: chat}]
  deadlines: {firstToken: 3s, stall: 4s, total: 30s, maxSilence: 8s}
  breaker:
    window: {type: Time, time: {span: 5s, buckets: 10}}
    minimumCalls: 6
    failurePercent: 50
    slow: {percent: 50, ttft: 1500ms}
    cooldown: {base: 1s, jitterPercent: 0, growthPercent: 100, max: 1s}
    probes: {concurrency: 1, successes: 2}
    ramp: {duration: 0s}
  quota: {tokensPerMinute: 10000000, requestsPerMinute: 100000}
";

/// The stock scenario `brownout`, in a fifth of its time: slower to the first token, then silent, then errors, then
/// well.
pub(crate) const BROWNOUT: &str = "default: {ttft: 10ms, perToken: 1ms, tokens: 5}
steps:
- {name: healthy, for: 2s}
- {name: slower and slower to the first token, for: 5s, behaviour: {ttft: 2s}}
- {name: 'silent, not one token', for: 2s, behaviour: {stall: {after: 0}}}
- {name: 'errors, status 500', for: 2s, behaviour: {error: server}}
- {name: healthy again, for: 10m}
";

/// One caller per agent, one call after another.
pub(crate) struct Callers {
    stop: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
    running: JoinSet<()>,
}

impl Callers {
    /// Calls the agents until [`stopped`](Self::stopped). Each answer is well, whoever gives it.
    pub(crate) fn start(agents: &[SocketAddr]) -> Self {
        let (stop, calls) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let mut running = JoinSet::new();
        for agent in agents {
            let (agent, stop, calls, client) = (*agent, stop.clone(), calls.clone(), Client::new());
            running.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    calls.fetch_add(1, Ordering::Relaxed);
                    let answer = client.chat_stream(agent, "gpt-4o").await.rest().await;
                    assert!(answer.trim_end().ends_with("data: [DONE]"), "{answer}");
                }
            });
        }
        Self { stop, calls, running }
    }

    /// How many calls there were.
    pub(crate) async fn stopped(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.running.join_next().await {
            ended.unwrap();
        }
        self.calls.load(Ordering::Relaxed)
    }
}
