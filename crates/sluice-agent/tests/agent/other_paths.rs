//! Everything that is not a model call that Sluice knows.

use serde_json::json;
use sluice_core::policy::{ModelPattern, OtherPaths, RoutePolicy, WireFormat};
use sluice_provider::Provider;

use crate::harness::{World, counts, provider, route, target, target_at};

fn open_route(provider: &Provider) -> RoutePolicy {
    let mut route = route(WireFormat::OpenAi, vec![target("primary", provider, 0)]);
    route.other_paths = OtherPaths::PassThrough;
    route
}

#[tokio::test]
async fn models_are_answered_from_the_routes() {
    let primary = provider("{}").await;
    let mut only = route(WireFormat::OpenAi, vec![target("primary", &primary, 0)]);
    only.models = vec![ModelPattern::Exact("gpt-4o".into()), ModelPattern::Prefix("chat-".into())];
    let world = World::new(vec![only]).await;
    let answer = world.raw(b"GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.contains("\"gpt-4o\"") && !answer.contains("chat-"),
        "{answer}"
    );
    assert_eq!(primary.stats().total.started, 0);
}

#[tokio::test]
async fn other_paths_pass_where_the_route_says_so() {
    let primary = provider("{}").await;
    let world = World::new(vec![open_route(&primary)]).await;
    let answer = world.ask("/v1/files/f-1?limit=2", &[("x-kept", "1")], &json!({"any": "thing"})).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let seen = answer.json();
    assert_eq!(
        (seen["method"].as_str(), seen["path"].as_str()),
        (Some("POST"), Some("/v1/files/f-1?limit=2"))
    );
    assert_eq!(seen["headers"]["x-kept"], "1");
    world.until_idle().await;
    let target = world.target("primary").await;
    assert_eq!(counts(&target.verdicts), [("success", 1)].into());
    assert_eq!((target.tokens_reserved, target.tokens_charged), (0, 0), "no model, no tokens");
}

#[tokio::test]
async fn methods_without_bodies_pass() {
    let primary = provider("{}").await;
    let world = World::new(vec![open_route(&primary)]).await;
    for method in ["GET", "DELETE", "HEAD", "OPTIONS"] {
        let request = format!("{method} /v1/files/f-1 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        let answer = world.raw(request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{method}: {answer}");
        assert_eq!(answer.ends_with("\r\n\r\n"), method == "HEAD", "{method}: {answer}");
    }
    let methods: Vec<String> = primary.calls().iter().map(|call| call.method.clone()).collect();
    assert_eq!(methods, ["GET", "DELETE", "HEAD", "OPTIONS"]);
    world.until_idle().await;
}

#[tokio::test]
async fn a_redirect_is_the_clients_to_follow() {
    let primary = provider("{}").await;
    // The scripted provider sends no 3xx: a socket does.
    let (url, served) =
        fixed("HTTP/1.1 302 Found\r\nlocation: http://elsewhere.invalid/\r\ncontent-length: 0\r\n\r\n").await;
    let mut only = open_route(&primary);
    only.targets = vec![target_at("primary", &url, 0), target("fallback", &primary, 1)];
    let world = World::new(vec![only]).await;
    for path in ["/v1/files", "/v1/chat/completions"] {
        let answer = world.ask(path, &[], &crate::harness::chat(false)).await;
        assert_eq!(
            (answer.status.as_u16(), answer.header("location")),
            (302, Some("http://elsewhere.invalid/"))
        );
    }
    world.until_idle().await;
    assert_eq!(counts(&world.target("primary").await.verdicts), [("ignored", 2)].into());
    assert_eq!(primary.stats().total.started, 0);
    served.abort();
}

#[tokio::test]
async fn early_hints_are_not_the_answer() {
    let body = r#"{"choices":[{"index":0}],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#;
    let answer = format!(
        "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let (url, served) = fixed(Box::leak(answer.into_boxed_str())).await;
    let world = World::openai(vec![target_at("primary", &url, 0)]).await;
    let answer = world.chat().await;
    assert_eq!((answer.status.as_u16(), answer.text().as_str()), (200, body));
    served.abort();
}

#[tokio::test]
async fn an_encoded_answer_passes_unread() {
    let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\n\x1f\x08ab";
    let (url, served) = fixed(answer).await;
    let world = World::openai(vec![target_at("primary", &url, 0)]).await;
    for stream in [false, true] {
        let answer = world.ask("/v1/chat/completions", &[], &crate::harness::chat(stream)).await;
        assert_eq!((answer.status.as_u16(), answer.text().as_str()), (200, "\x1f\x08ab"));
        assert_eq!(answer.header("content-encoding"), Some("gzip"));
    }
    world.until_idle().await;
    let target = world.target("primary").await;
    assert_eq!(counts(&target.verdicts), [("success", 2)].into());
    assert_eq!(target.tokens_charged, target.tokens_estimated, "by estimate, as nothing could be read");
    served.abort();
}

/// A stream on a path that Sluice does not know is passed on chunk by chunk.
#[tokio::test]
async fn an_unknown_stream_is_not_held_back() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let (go_on, gone_on) = tokio::sync::oneshot::channel::<()>();
    let served = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut buffer = [0; 4096];
        let _ = socket.read(&mut buffer).await.unwrap();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n6\r\n{\"a\"}\n\r\n";
        socket.write_all(head.as_bytes()).await.unwrap();
        gone_on.await.unwrap();
        socket.write_all(b"6\r\n{\"b\"}\n\r\n0\r\n\r\n").await.unwrap();
    });
    let primary = provider("{}").await;
    let mut only = open_route(&primary);
    only.targets = vec![target_at("primary", &url, 0)];
    let world = World::new(vec![only]).await;
    let mut client = world.connect().await;
    client.write_all(&crate::harness::request_bytes("/v1/fine-tunes/events", "", &json!({}))).await.unwrap();
    crate::harness::read_until(&mut client, "{\"a\"}").await;
    go_on.send(()).unwrap();
    crate::harness::read_until(&mut client, "{\"b\"}").await;
    served.await.unwrap();
    world.until_idle().await;
}

/// A server that gives every request the same bytes.
pub async fn fixed(answer: &'static str) -> (String, tokio::task::JoinHandle<()>) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let served = tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut buffer = [0; 8_192];
                while socket.read(&mut buffer).await.is_ok_and(|count| count > 0) {
                    let _ = socket.write_all(answer.as_bytes()).await;
                }
            });
        }
    });
    (url, served)
}
