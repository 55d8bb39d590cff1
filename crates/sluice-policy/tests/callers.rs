//! Who is let in, and who is not.
#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub, dead_code)]

mod agent;
mod resources;

use std::sync::Arc;
use std::time::Duration;

use agent::{Agent, Plane, hello};
use resources::{index, route};
use sluice_policy::Index;
use sluice_policy::service::Settings;
use sluice_proto::report::Hello;
use sluice_proto::v1;
use tonic::Code;

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
