//! An incident, played.

use crate::command::Run;
use crate::manifests::Manifests;

/// The quickstart's brownout in a few seconds.
const INCIDENT: &str = "default: {ttft: 10ms, perToken: 1ms, tokens: 5}
steps:
- {name: healthy, for: 1s}
- {name: errors, for: 2s, behaviour: {error: server}}
- {name: healthy again, for: 10m}
";

const QUICK: &str = "apiVersion: sluice.dev/v1alpha1
kind: ReliabilityPolicy
metadata: {name: quick}
spec:
  targetRefs: [{group: sluice.dev, kind: ModelRoute, name: chat}]
  breaker:
    window: {type: Time, time: {span: 2s, buckets: 10}}
    minimumCalls: 3
    failurePercent: 50
    cooldown: {base: 1s, jitterPercent: 0, growthPercent: 100, max: 1s}
    probes: {concurrency: 1, successes: 2}
    ramp: {duration: 0s}
";

#[tokio::test]
async fn a_breaker_opens_and_closes_again_and_no_client_sees_it() {
    let manifests = Manifests::quickstart();
    manifests.replace("reliability.yaml", QUICK);
    let incident = manifests.beside("incident.yaml");
    std::fs::write(&incident, INCIDENT).unwrap();
    let arguments = ["--provider", "--agents", "2", "--scenario", incident.to_str().unwrap()];
    let run = Run::start(&manifests.path(), &arguments).await;
    run.line(&[" provider ", "incident 2/3: errors"]).await;
    run.line(&[" breaker ", "chat/primary", "closed->open", "reason=failure-rate"]).await;
    run.line(&[" breaker ", "chat/primary", "open->half-open"]).await;
    run.line(&[" breaker ", "chat/primary", "half-open->closed"]).await;
    let lines = run.end().await;
    let last = lines.last().unwrap();
    assert!(last.contains("clients-refused=0 clients-failed=0"), "{last}");
    assert!(!last.contains("clients-ok=0 ") && !last.contains("failed-over=0 "), "{last}");
}

#[tokio::test]
async fn it_ends_by_itself_when_its_time_is_over() {
    let manifests = Manifests::quickstart();
    let run = Run::start(&manifests.path(), &["--provider", "--for", "1s"]).await;
    run.ended().await;
}
