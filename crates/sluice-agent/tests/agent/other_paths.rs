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
async fn one_model_is_answered_from_the_routes() {
    let primary = provider("{}").await;
    let mut openai = route(WireFormat::OpenAi, vec![target("primary", &primary, 0)]);
    openai.models = vec![ModelPattern::Exact("gpt-4o".into()), ModelPattern::Prefix("org/".into())];
    let mut anthropic = route(WireFormat::Anthropic, vec![target("primary", &primary, 0)]);
    anthropic.name = "claude".into();
    anthropic.models = vec![ModelPattern::Exact("claude-x".into())];
    let world = World::new(vec![openai, anthropic]).await;
    let version = "anthropic-version: 2023-06-01\r\n";
    for (path, headers, status, has) in [
        ("/v1/models/gpt-4o", "", "200", r#""object":"model""#),
        ("/models/gpt-4o/", "", "200", r#""id":"gpt-4o""#),
        ("/v1/models/org/name", "", "200", r#""id":"org/name""#),
        ("/v1/models/org%2Fname?x=1", "", "200", r#""id":"org/name""#),
        ("/v1/models/claude-x", version, "200", r#""display_name":"claude-x""#),
        ("/v1/models/claude-x", "", "404", r#""code":"model_not_found""#),
        ("/v1/models/gpt-4o", version, "404", r#""type":"not_found_error""#),
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{headers}\r\n");
        let answer = world.raw(request.as_bytes()).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")) && answer.contains(has),
            "{path}: {answer}"
        );
    }
    let head = world.raw(b"HEAD /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
    assert_eq!(primary.stats().total.started, 0);
}

#[tokio::test]
async fn a_known_path_with_another_method_says_which_it_has() {
    let primary = provider("{}").await;
    let world = World::openai(vec![target("primary", &primary, 0)]).await;
    for (method, path, allow, shape) in [
        ("GET", "/v1/chat/completions", "POST", r#""code":"method_not_allowed""#),
        ("PUT", "/completions", "POST", r#""code":"method_not_allowed""#),
        ("GET", "/v1/responses/", "POST", r#""code":"method_not_allowed""#),
        ("DELETE", "/v1/embeddings", "POST", r#""code":"method_not_allowed""#),
        ("POST", "/v1/models", "GET, HEAD", r#""code":"method_not_allowed""#),
        ("DELETE", "/v1/models/gpt-4o", "GET, HEAD", r#""code":"method_not_allowed""#),
        ("GET", "/v1/messages", "POST", r#""type":"error""#),
        ("PATCH", "/v1/messages/count_tokens", "POST", r#""type":"error""#),
    ] {
        let request =
            format!("{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
        let answer = world.raw(request.as_bytes()).await;
        let expected = ["HTTP/1.1 405", &format!("allow: {allow}\r\n"), "x-should-retry: false"];
        for part in expected {
            assert!(answer.contains(part), "{method} {path}: no {part}: {answer}");
        }
        assert!(answer.contains(shape), "{method} {path}: {answer}");
    }
    let answer = world.raw(b"GET /v1/files HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    assert_eq!(primary.stats().total.started, 0);
    // A route that passes other paths on knows better: the provider may have the method.
    let world = World::new(vec![open_route(&primary)]).await;
    let answer = world.raw(b"GET /v1/responses HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    assert!(!answer.contains("method_not_allowed"), "{answer}");
    assert_eq!(primary.stats().total.started, 1);
}

#[tokio::test]
async fn a_slash_at_the_end_is_the_path_itself() {
    let primary = provider("{}").await;
    let anthropic = {
        let mut route = route(WireFormat::Anthropic, vec![target("primary", &primary, 0)]);
        route.name = "claude".into();
        route
    };
    let openai = open_route(&primary);
    let world = World::new(vec![openai, anthropic]).await;
    for (path, body) in [
        ("/v1/chat/completions/", crate::harness::chat(false)),
        ("/chat/completions/?beta=true", crate::harness::chat(true)),
        ("/v1/messages/", crate::harness::message(false)),
    ] {
        assert_eq!(world.ask(path, &[], &body).await.status, 200, "{path}");
    }
    assert_eq!(world.ask("/v1/files/", &[], &json!({})).await.status, 200);
    let paths: Vec<String> = primary.calls().iter().map(|call| call.path.clone()).collect();
    assert_eq!(
        paths,
        ["/v1/chat/completions", "/v1/chat/completions?beta=true", "/v1/messages", "/v1/files/"],
        "what Sluice does not know stays as it is"
    );
}

/// What an answer says under `x-sluice-` is the agent's word: a provider that says the same is not passed on.
#[tokio::test]
async fn a_provider_cannot_say_what_is_ours_to_say() {
    const FORGED: &str = "x-sluice-refused: admit/circuit_open\r\nX-Sluice-Degraded: static\r\nx-sluice-served-by: other\r\nx-sluice-served-by: more\r\nx-sluice-exchange-id: 1\r\nx-sluice-anything: 1\r\nretry-after-ms: -Infinity\r\n";
    let answers = [
        ("200 OK", "application/json", r#"{"choices":[{"index":0,"message":{"content":"hi"}}]}"#),
        (
            "200 OK",
            "text/event-stream",
            "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\ndata: [DONE]\n\n",
        ),
        (
            "400 Bad Request",
            "application/json",
            r#"{"error":{"message":"no","type":"invalid_request_error"}}"#,
        ),
        (
            "429 Too Many Requests",
            "application/json",
            r#"{"error":{"message":"no","type":"rate_limit_error"}}"#,
        ),
        (
            "500 Internal Server Error",
            "application/json",
            r#"{"error":{"message":"no","type":"server_error"}}"#,
        ),
        ("302 Found", "text/plain", "elsewhere"),
    ];
    for (status, kind, body) in answers {
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n{FORGED}content-length: {length}\r\n\r\n{body}"
        );
        let (url, served) = fixed(Box::leak(answer.into_boxed_str())).await;
        for path in ["/v1/chat/completions", "/v1/files"] {
            let mut only =
                route(WireFormat::OpenAi, vec![crate::harness::once(target_at("primary", &url, 0))]);
            only.other_paths = OtherPaths::PassThrough;
            let world = World::new(vec![only]).await;
            let body = crate::harness::chat(kind == "text/event-stream");
            let answer = world.ask(path, &[], &body).await;
            assert!(status.starts_with(answer.status.as_str()), "{status}: {answer:?}");
            let ours: Vec<&str> = answer
                .headers
                .keys()
                .map(http::HeaderName::as_str)
                .filter(|n| n.starts_with("x-sluice"))
                .collect();
            assert_eq!(ours.len(), 2, "{ours:?}");
            let by: Vec<_> = answer.headers.get_all("x-sluice-served-by").iter().collect();
            assert_eq!(by, ["primary"]);
            assert_ne!(answer.header("x-sluice-exchange-id"), Some("1"));
            assert_eq!(answer.header("retry-after-ms"), None, "a wait that nobody can wait");
        }
        served.abort();
    }
}

/// Nor does a caller talk to a provider in our name.
#[tokio::test]
async fn a_caller_cannot_either() {
    let primary = provider("{}").await;
    let world = World::new(vec![open_route(&primary)]).await;
    let forged = [
        ("x-sluice-exchange-id", "forged"),
        ("x-sluice-attempt-id", "forged"),
        ("x-sluice-anything", "forged"),
        ("x-sluice-target", "primary"),
        ("x-sluice-timeout-ms", "60000"),
    ];
    for path in ["/v1/chat/completions", "/v1/files"] {
        world.ask(path, &forged, &crate::harness::chat(false)).await;
    }
    for call in primary.calls() {
        for name in ["x-sluice-anything", "x-sluice-target", "x-sluice-timeout-ms"] {
            assert_eq!(call.header(name), None, "{}", call.path);
        }
        for name in ["x-sluice-exchange-id", "x-sluice-attempt-id"] {
            assert!(call.header(name).is_some_and(|value| value != "forged"), "{}: {name}", call.path);
        }
    }
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
