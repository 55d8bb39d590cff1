//! A sidecar that is restarted while nobody can tell it anything: it serves by what it had.

use std::path::Path;
use std::time::Duration;

use sluice_agent::AgentConfig;
use sluice_policy::service::Settings;
use sluice_provider::{Provider, fingerprint};
use sluice_state::RedisConfig;
use sluice_state::store::Shared;
use sluice_testkit::tls::TestCertificates;

use crate::harness::plane::{Mounts, Plane, manifests};
use crate::harness::{PATIENCE, World, provider};

const FILE: &str = "state/policies";

struct Pod {
    mounts: Mounts,
    certificates: TestCertificates,
    plane: Option<Plane>,
    address: std::net::SocketAddr,
    primary: Provider,
}

impl Pod {
    async fn new() -> Self {
        let (mounts, certificates) = (Mounts::new(), TestCertificates::generate().unwrap());
        let (primary, plane) = (provider("{}").await, Plane::start(&certificates, "one").await);
        plane.apply(&manifests(&primary.openai_url(), "sk-1"));
        mounts.put("ca.crt", &certificates.ca_pem);
        mounts.put("token", "one");
        std::fs::create_dir(mounts.path("state")).unwrap();
        let address = plane.address;
        Self { mounts, certificates, plane: Some(plane), address, primary }
    }

    async fn start(&self) -> World {
        self.start_with(|_| {}).await
    }

    async fn start_with(&self, tune: impl FnOnce(&mut AgentConfig)) -> World {
        let folder = self.mounts.path("state");
        World::following(self.mounts.control_plane(self.address), |config| {
            config.snapshot = Some(folder);
            tune(config);
        })
        .await
    }

    async fn stop_plane(&mut self) {
        self.plane.take().unwrap().stop().await;
    }

    async fn start_plane(&mut self, key: &str) {
        let plane = Plane::start_at(self.address, &self.certificates, "one", Settings::default()).await;
        plane.apply(&manifests(&self.primary.openai_url(), key));
        self.plane = Some(plane);
    }

    /// Waits until the file holds these bytes.
    async fn until_written(&self, part: &str) {
        self.until_file(|path| holds(path, part)).await;
    }

    async fn until_file(&self, is: impl Fn(&Path) -> bool) {
        let path = self.mounts.path(FILE);
        let wait = async {
            while !is(&path) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap();
    }

    fn key_used(&self) -> String {
        self.primary.calls().last().unwrap().header("authorization").unwrap().to_owned()
    }
}

fn holds(path: &Path, part: &str) -> bool {
    let bytes = std::fs::read(path).unwrap_or_default();
    bytes.windows(part.len()).any(|window| window == part.as_bytes())
}

#[tokio::test]
async fn it_serves_without_control_plane_and_redis_until_a_push_replaces_what_it_had() {
    let mut pod = Pod::new().await;
    let world = pod.start().await;
    world.until_readyz(200, "ok").await;
    let version = world.state().await.policy_version;
    pod.until_written("sk-1").await;
    world.kill();
    pod.stop_plane().await;

    let dead = Shared::Redis(RedisConfig { url: "redis://127.0.0.1:1".to_owned(), ..RedisConfig::default() });
    let world = pod.start_with(|config| config.shared = dead).await;
    assert_eq!(world.readyz().await, (200, "ok\n".to_owned()), "at once");
    assert_eq!(world.state().await.policy_version, version);
    assert_eq!(world.chat().await.status, 200);
    assert_eq!(pod.key_used(), fingerprint("Bearer sk-1"));
    world.until("it says what is away", |state| state.control_plane.reason.is_some()).await;

    pod.start_plane("sk-2").await;
    pod.plane.as_ref().unwrap().until_in_sync("chat").await;
    pod.until_written("sk-2").await;
    assert!(!holds(&pod.mounts.path(FILE), "sk-1"));
    assert_eq!(world.chat().await.status, 200);
    assert_eq!(pod.key_used(), fingerprint("Bearer sk-2"));
}

#[tokio::test]
async fn a_rotated_secret_is_in_the_next_start() {
    let mut pod = Pod::new().await;
    let world = pod.start().await;
    pod.until_written("sk-1").await;
    pod.plane.as_ref().unwrap().apply(&manifests(&pod.primary.openai_url(), "sk-3"));
    pod.until_written("sk-3").await;
    world.kill();
    pod.stop_plane().await;
    let world = pod.start().await;
    assert_eq!(world.chat().await.status, 200);
    assert_eq!(pod.key_used(), fingerprint("Bearer sk-3"));
}

/// A control plane that has restarted can't read the Secret: what works goes on working, also after the agent's restart.
#[tokio::test]
async fn a_secret_that_the_control_plane_cannot_read_now_stays_in_use_and_in_the_file() {
    let mut pod = Pod::new().await;
    let world = pod.start().await;
    world.until_readyz(200, "ok").await;
    pod.until_written("sk-1").await;
    pod.stop_plane().await;
    // One more route, which tells that what it sends has come.
    let first = manifests(&pod.primary.openai_url(), "unread");
    let (route, _) = first.split_once("---").unwrap();
    let second = route.replace("name: chat", "name: second");
    let plane = Plane::start_at(pod.address, &pod.certificates, "one", Settings::default()).await;
    plane.apply_unread(&format!("{second}---{first}"), "provider");
    pod.until_written("second").await;
    assert!(holds(&pod.mounts.path(FILE), "sk-1"));
    assert_eq!(world.chat().await.status, 200);
    assert_eq!(pod.key_used(), fingerprint("Bearer sk-1"));
    world.kill();
    plane.until_left().await;

    let world = pod.start().await;
    plane.until_in_sync("second").await;
    assert_eq!(world.chat().await.status, 200);
    assert_eq!(pod.key_used(), fingerprint("Bearer sk-1"));
    // It turns out to be gone.
    plane.apply(&format!("{second}---{route}"));
    pod.until_file(|path| !holds(path, "sk-1")).await;
    assert_eq!(world.chat().await.status, 503);
}

#[tokio::test]
async fn what_is_damaged_or_anothers_is_not_served() {
    let mut pod = Pod::new().await;
    let world = pod.start().await;
    pod.until_written("sk-1").await;
    world.kill();
    pod.stop_plane().await;
    let path = pod.mounts.path(FILE);
    let whole = std::fs::read(&path).unwrap();
    for damaged in [&whole[..whole.len() / 2], b"", &[b"x", &whole[..]].concat()] {
        std::fs::write(&path, damaged).unwrap();
        let world = pod.start().await;
        world.until_readyz(503, "the control plane does not answer").await;
        assert_eq!(world.chat().await.status, 503);
        world.kill();
    }
    std::fs::write(&path, &whole).unwrap();
    let world = pod.start_with(|config| "other".clone_into(&mut config.identity.namespace)).await;
    world.until_readyz(503, "no policies yet").await;
    world.kill();

    std::fs::write(&path, &whole[1..]).unwrap();
    pod.start_plane("sk-2").await;
    let world = pod.start().await;
    world.until_readyz(200, "ok").await;
    pod.until_written("sk-2").await;
    assert_eq!(world.chat().await.status, 200);
}
