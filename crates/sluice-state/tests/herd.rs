//! Worked case 8: fifty replicas at the end of a cool-down, five hundred requests, a provider that hangs.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use sluice_core::admission::{AdmitAnswer, AdmitAsk, BreakerState, Nonce};
use sluice_core::outcome::Verdict;
use sluice_core::policy::{Rules, TargetPolicy};
use sluice_state::{AgentTag, Home as _, RedisHome};
use sluice_testkit::RedisServer;
use support::redis::{LONG, config};
use support::{admit_ask, settle_ask, target};

const REPLICAS: usize = 50;
const EACH: usize = 10;
/// Longer than a storm of requests takes on a busy machine.
const LEASE: Duration = Duration::from_secs(6);

struct Replica {
    home: RedisHome,
    agent: AgentTag,
}

async fn replica(url: String, index: usize) -> Replica {
    let home = RedisHome::new(&config(&url)).unwrap();
    while home.reconnect().await.is_err() {
        tokio::task::yield_now().await;
    }
    Replica { home, agent: AgentTag::new(&format!("replica-{index}"), index as u64) }
}

fn ask(nonce: u128) -> AdmitAsk {
    AdmitAsk { lease: LEASE, ..admit_ask(Nonce(nonce), 10) }
}

/// Every replica asks ten times at once; how many got which answer.
async fn storm(replicas: &[Replica], target: &TargetPolicy, round: u128) -> (usize, usize) {
    let asks = replicas.iter().enumerate().flat_map(|(index, replica)| {
        (0..EACH).map(move |n| {
            let nonce = round << 32 | (index * EACH + n) as u128;
            async move { replica.home.admit(&replica.agent, target, &ask(nonce)).await.unwrap().answer }
        })
    });
    let answers = join_all(asks).await;
    let count = |wanted| answers.iter().filter(|answer| **answer == wanted).count();
    (count(AdmitAnswer::Probe), count(AdmitAnswer::ProbesBusy))
}

async fn open_with_a_short_cooldown(replica: &Replica, target: &TargetPolicy) {
    for nonce in 0..10_u128 {
        let admitted = replica.home.admit(&replica.agent, target, &ask(1 << 96 | nonce)).await.unwrap();
        let failed = settle_ask(Nonce(1 << 96 | nonce), admitted.epoch, Some(Verdict::Failure), Some(0));
        replica.home.settle(&replica.agent, target, &failed).await.unwrap();
    }
    let view = replica.home.view(target).await.unwrap();
    assert_eq!(view.state, BreakerState::Open);
}

async fn until_view(
    replica: &Replica,
    target: &TargetPolicy,
    is_so: impl Fn(&sluice_core::admission::TargetView) -> bool,
) {
    let looking = async {
        while !is_so(&replica.home.view(target).await.unwrap()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LONG, looking).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_the_allowed_probes_go_out_and_a_dead_holder_blocks_nobody() {
    let server = RedisServer::start().unwrap();
    let replicas = join_all((0..REPLICAS).map(|index| replica(server.url(), index))).await;
    for concurrency in [1, 3] {
        let mut rules = Rules::default();
        rules.breaker.rules.cooldown.base = Duration::from_millis(300);
        rules.breaker.rules.probes.concurrency = concurrency;
        let target = Arc::new(target(&format!("herd-{concurrency}"), rules));
        let allowed = concurrency as usize;
        open_with_a_short_cooldown(&replicas[0], &target).await;
        until_view(&replicas[0], &target, |view| view.open_for.is_zero()).await;
        // The provider hangs: nobody has a verdict.
        assert_eq!(storm(&replicas, &target, 1).await, (allowed, REPLICAS * EACH - allowed));
        assert_eq!(storm(&replicas, &target, 2).await, (0, REPLICAS * EACH), "not one more");
        // The holders are gone; after their leases exactly as many go again.
        until_view(&replicas[0], &target, |view| view.probes_out == 0).await;
        assert_eq!(storm(&replicas, &target, 3).await, (allowed, REPLICAS * EACH - allowed));
    }
}
