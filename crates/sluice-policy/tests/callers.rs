//! Who is let in, and who is not.
#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub, dead_code)]

mod agent;
mod resources;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use agent::{Agent, Plane, eventually, hello, name};
use resources::{index, route, route_of};
use sluice_policy::Index;
use sluice_policy::compile::Scope;
use sluice_policy::index::Key;
use sluice_policy::service::{Authenticate, Identity, Settings};
use sluice_proto::report::Hello;
use sluice_proto::v1;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

#[tokio::test]
async fn who_does_not_say_hello_or_is_one_too_many_is_refused() {
    let plane = Plane::start(Settings { max_streams: 1, ..Settings::default() }).await;
    plane.publish(&Index::default());
    let report = v1::agent_message::Message::Report(v1::Report::default());
    assert_eq!(Agent::try_connect(&plane, report).await.err().unwrap().code(), Code::InvalidArgument);
    let nameless = v1::agent_message::Message::Hello(v1::Hello::default());
    let refused = Agent::try_connect(&plane, nameless).await.err().unwrap();
    assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, "agentId is missing: set it"));

    let mut agent = Agent::connect(&plane, hello("a")).await;
    let hello_b = v1::agent_message::Message::Hello(hello("b").encode());
    assert_eq!(Agent::try_connect(&plane, hello_b).await.err().unwrap().code(), Code::ResourceExhausted);
    agent.send(v1::agent_message::Message::Hello(hello("a").encode())).await;
    assert_eq!(agent.end().await.code(), Code::InvalidArgument, "a second hello");
}

#[tokio::test]
async fn who_says_nothing_takes_no_agents_place() {
    let hello_within = Duration::from_mins(10);
    let settings = Settings { max_streams: 1, waiting_per_address: 3, hello_within, ..Settings::default() };
    let plane = Plane::start(settings).await;
    plane.publish(&index(vec![route("chat", 9)], vec![]));
    let refusal = async |id: &str| {
        let hello = v1::agent_message::Message::Hello(hello(id).encode());
        Agent::try_connect(&plane, hello)
            .await
            .err()
            .map(|status| (status.code(), status.message().to_owned()))
    };
    let mut silent = tokio::task::JoinSet::new();
    let streams: Vec<_> = (0..4).map(|_| silent.spawn(plane.say_nothing())).collect();
    assert_eq!(silent.join_next().await.unwrap().unwrap(), Code::ResourceExhausted, "one too many");
    let at_the_door = || streams.iter().filter(|stream| !stream.is_finished());
    let (code, message) = refusal("a").await.unwrap();
    assert_eq!((code, message.contains("at the door")), (Code::ResourceExhausted, true), "{message}");
    at_the_door().next().unwrap().abort();
    // There is one place for agents, and two wait that show nothing.
    let mut agent = loop {
        let hello = v1::agent_message::Message::Hello(hello("a").encode());
        match Agent::try_connect(&plane, hello).await {
            Ok(agent) => break agent,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    agent.snapshot().await;
    assert_eq!(at_the_door().count(), 2);
    let (code, message) = refusal("b").await.unwrap();
    assert_eq!((code, message.contains("too many streams")), (Code::ResourceExhausted, true), "{message}");
}

#[tokio::test]
async fn a_pod_has_so_many_streams_and_with_one_more_the_oldest_ends() {
    let plane = Plane::start(Settings { streams_per_pod: 2, ..Settings::default() }).await;
    plane.publish(&index(vec![route("chat", 9)], vec![]));
    let of = |pod: &str, id: &str| Hello { pod: pod.into(), ..hello(id) };
    let mut other = Agent::connect(&plane, of("other", "a")).await;
    other.snapshot().await;
    let mut agents = Vec::new();
    for id in ["a", "b", "c"] {
        let mut agent = Agent::connect(&plane, of("pod", id)).await;
        agent.snapshot().await;
        agents.push(agent);
    }
    let [first, second, third] = &mut agents[..] else { panic!() };
    assert_eq!(first.end().await.code(), Code::Unavailable);
    assert_eq!(plane.fleet.connected(), 3);
    // One that comes back takes its own place.
    let mut again = Agent::connect(&plane, of("pod", "c")).await;
    again.snapshot().await;
    assert_eq!(third.end().await.code(), Code::Unavailable);
    plane.publish(&index(vec![route("chat", 9), route("more", 9)], vec![]));
    for agent in [second, &mut again, &mut other] {
        assert_eq!(agent.snapshot().await.routes.len(), 2, "it goes on");
    }
}

/// Pods of one name; of the labels that they have by now the fleet was told before the stream joined it.
struct OnePod {
    labels: BTreeMap<String, String>,
    by_now: Option<BTreeMap<String, String>>,
}

impl Authenticate for OnePod {
    async fn authenticate(
        &self,
        _: &MetadataMap,
        _: Option<SocketAddr>,
        _: &Hello,
    ) -> Result<Identity, Status> {
        let scope = Scope { namespace: "ns".into(), labels: self.labels.clone() };
        Ok(Identity { scope, pod: "pod".into(), uid: "uid".into(), valid_for: None })
    }

    fn labels_now(&self, of: &Identity) -> Option<BTreeMap<String, String>> {
        assert_eq!(&*of.uid, "uid");
        self.by_now.clone()
    }
}

fn app(name: &str) -> BTreeMap<String, String> {
    [("app".to_owned(), name.to_owned())].into()
}

/// A route for every agent, and one for those of `app: mine`.
fn mine() -> Index {
    let mine = format!("workloads: {{matchLabels: {{app: mine}}}}\n{}", resources::route_spec("mine"));
    index(vec![route("all", 9), route_of("mine", 9, 1, &mine)], vec![])
}

#[tokio::test]
async fn a_stream_follows_the_labels_of_its_pod_and_ends_with_it() {
    let authenticate = OnePod { labels: app("other"), by_now: None };
    let plane = Plane::start_with(Settings::default(), authenticate).await;
    plane.publish(&mine());
    let mut agent = Agent::connect(&plane, hello("a")).await;
    let first = agent.snapshot().await;
    assert_eq!(agent.apply(first).await.routes.len(), 1);
    let pod = Key::new("ns", "pod");
    // Neither what it has already, nor what another pod of its name has, nor labels that select the same.
    let mut same = app("other");
    same.insert("pod-template-hash".to_owned(), "1".to_owned());
    plane.fleet.relabel(&pod, "uid", &app("other"));
    plane.fleet.relabel(&pod, "before", &app("mine"));
    plane.fleet.end(&pod, "before");
    plane.fleet.relabel(&pod, "uid", &same);
    for (label, routes) in [("mine", 2), ("other", 1)] {
        plane.fleet.relabel(&pod, "uid", &app(label));
        let snapshot = agent.snapshot().await;
        assert_eq!(agent.apply(snapshot).await.routes.len(), routes, "{label}");
        eventually(|| plane.fleet.sync().in_sync == 1).await;
        assert_eq!(plane.fleet.facts(&name("mine")).connected, u32::from(label == "mine"));
    }
    // What it follows now is what edits reach it by.
    let mut edited = mine();
    edited.apply_route(route("more", 9), resources::NOW_MS);
    plane.publish(&edited);
    assert_eq!(agent.snapshot().await.routes.len(), 2);
    plane.fleet.end(&pod, "uid");
    assert_eq!(agent.end().await.code(), Code::Unavailable);
    assert_eq!(plane.fleet.connected(), 0);
}

#[tokio::test]
async fn labels_that_changed_while_a_stream_began_are_not_missed() {
    let authenticate = OnePod { labels: app("mine"), by_now: Some(app("other")) };
    let plane = Plane::start_with(Settings::default(), authenticate).await;
    let mut agent = Agent::connect(&plane, hello("a")).await;
    eventually(|| plane.fleet.connected() == 1).await;
    plane.publish(&mine());
    let mut last = agent.snapshot().await;
    if last.routes.len() == 2 {
        last = agent.snapshot().await;
    }
    assert_eq!(last.routes.len(), 1);
}

#[tokio::test]
async fn the_credential_decides_about_the_namespace() {
    let plane = Plane::start_with(Settings::default(), agent::BoundTo("theirs")).await;
    plane.publish(&index(vec![route("chat", 9)], vec![]));
    let mine = v1::agent_message::Message::Hello(hello("a").encode());
    assert_eq!(Agent::try_connect(&plane, mine).await.err().unwrap().code(), Code::PermissionDenied);
}

#[tokio::test]
async fn only_this_machine_is_trusted_without_a_credential() {
    use sluice_policy::service::{Authenticate as _, TrustLoopback};
    let ask = |peer: Option<&str>| {
        let peer = peer.map(|peer| peer.parse().unwrap());
        async move { TrustLoopback.authenticate(&tonic::metadata::MetadataMap::new(), peer, &hello("a")).await }
    };
    assert!(ask(Some("127.0.0.1:1")).await.is_ok());
    assert!(ask(Some("[::1]:1")).await.is_ok());
    assert!(ask(Some("[::ffff:127.0.0.1]:1")).await.is_ok());
    assert_eq!(ask(Some("192.0.2.1:1")).await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(ask(None).await.unwrap_err().code(), Code::PermissionDenied);
    let _: Arc<str> = ask(Some("127.0.0.1:1")).await.unwrap().scope.namespace;
}
