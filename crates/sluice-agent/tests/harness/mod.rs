//! A real agent on a real socket before real (scripted) providers: what the tests of the data plane share.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::panic)]

pub mod api_server;
pub mod plane;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use sluice_agent::agent::Running;
use sluice_agent::state::{AgentState, TargetState};
use sluice_agent::{Agent, AgentConfig, ControlPlane};
use sluice_core::policy::*;
use sluice_core::target_id::TargetId;
use sluice_proto::apply::PolicySet;
use sluice_provider::{Provider, Scenario};
use sluice_state::EmbeddedHome;
use sluice_state::store::Shared;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Longer than anything that is awaited takes; a test that waits so long has failed.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A provider that plays a scenario, in the provider's own language.
pub async fn provider(scenario: &str) -> Provider {
    Provider::start(Scenario::from_yaml(scenario).unwrap()).await.unwrap()
}

/// A target of the route under test.
pub fn target(name: &str, provider: &Provider, priority: u32) -> TargetPolicy {
    target_at(name, &provider.openai_url(), priority)
}

pub fn target_at(name: &str, endpoint: &str, priority: u32) -> TargetPolicy {
    TargetPolicy {
        name: name.into(),
        id: TargetId::of("default", &format!("chat/{name}"), endpoint, ""),
        provider: sluice_core::policy::Provider::OpenAi,
        endpoint: endpoint.into(),
        model: None,
        region: "".into(),
        credential: Credential::None,
        priority,
        weight: 1,
        price: None,
        rules: Rules { revision: 1, ..Rules::default() },
    }
}

pub fn route(format: WireFormat, targets: Vec<TargetPolicy>) -> RoutePolicy {
    RoutePolicy {
        namespace: "default".into(),
        name: "chat".into(),
        created_ms: 1,
        sources: vec![],
        models: vec![ModelPattern::Prefix("".into())],
        format,
        tenant: TenantSource::Header { header: "x-tenant".into(), default: "shared".into() },
        lanes: LaneChoice { default: Lane::Interactive, rules: vec![] },
        degraded: Degraded::Reject,
        other_paths: OtherPaths::Refuse,
        target_header: TargetHeader::Allow,
        targets,
    }
}

pub fn policy_set(routes: Vec<RoutePolicy>) -> PolicySet {
    PolicySet {
        version: "test".into(),
        routes: routes.into_iter().map(Arc::new).collect(),
        ..PolicySet::default()
    }
}

/// A running agent and a client of it.
pub struct World {
    pub agent: Agent,
    pub base: String,
    pub addr: SocketAddr,
    admin: SocketAddr,
    running: Option<Running>,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// One whole answer.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// Whether the body ended in order.
    pub whole: bool,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

impl World {
    pub async fn new(routes: Vec<RoutePolicy>) -> Self {
        Self::sharing(routes, Shared::Embedded(Arc::new(EmbeddedHome::new().unwrap()))).await
    }

    pub async fn openai(targets: Vec<TargetPolicy>) -> Self {
        Self::new(vec![route(WireFormat::OpenAi, targets)]).await
    }

    pub async fn sharing(routes: Vec<RoutePolicy>, shared: Shared) -> Self {
        Self::start(policy_set(routes), shared, |_| {}).await
    }

    /// An agent whose configuration a test changes.
    pub async fn start(policies: PolicySet, shared: Shared, tune: impl FnOnce(&mut AgentConfig)) -> Self {
        let agent = Self::agent(shared, tune);
        agent.use_policies(&policies);
        Self::run(agent, None).await
    }

    /// An agent that gets its policies from a control plane.
    pub async fn following(control: ControlPlane, tune: impl FnOnce(&mut AgentConfig)) -> Self {
        let home = Shared::Embedded(Arc::new(EmbeddedHome::new().unwrap()));
        Self::run(Self::agent(home, tune), Some(control)).await
    }

    fn agent(shared: Shared, tune: impl FnOnce(&mut AgentConfig)) -> Agent {
        let mut config = AgentConfig::new("test", "default", shared);
        config.seed = Some(7);
        config.grace = Duration::from_secs(1);
        tune(&mut config);
        Agent::new(config).unwrap()
    }

    async fn run(agent: Agent, control: Option<ControlPlane>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let admin = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (addr, admin_addr) = (listener.local_addr().unwrap(), admin.local_addr().unwrap());
        let running = agent.start(listener, Some(admin), control);
        Self {
            agent,
            base: format!("http://{addr}"),
            addr,
            admin: admin_addr,
            running: Some(running),
            client: Client::builder(TokioExecutor::new()).build_http(),
        }
    }

    pub fn use_routes(&self, routes: Vec<RoutePolicy>) {
        self.agent.use_policies(&policy_set(routes));
    }

    /// Sends a request and returns once the answer's head is there.
    pub async fn send(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Response<Incoming> {
        let mut request =
            Request::post(format!("{}{path}", self.base)).header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::from(body.to_string())).unwrap();
        tokio::time::timeout(PATIENCE, self.client.request(request)).await.unwrap().unwrap()
    }

    pub async fn ask(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        let response = self.send(path, headers, body).await;
        tokio::time::timeout(PATIENCE, read(response)).await.unwrap()
    }

    pub async fn chat(&self) -> Answer {
        self.ask("/v1/chat/completions", &[], &chat(false)).await
    }

    pub async fn stream(&self) -> Answer {
        self.ask("/v1/chat/completions", &[], &chat(true)).await
    }

    /// What a probe gets.
    pub async fn readyz(&self) -> (u16, String) {
        let request = Request::get(format!("http://{}/readyz", self.admin)).body(Full::default()).unwrap();
        let response = tokio::time::timeout(PATIENCE, self.client.request(request)).await.unwrap().unwrap();
        let answer = read(response).await;
        (answer.status.as_u16(), answer.text())
    }

    /// Waits until probes get this status and a text with these words.
    pub async fn until_readyz(&self, status: u16, says: &str) {
        let wait = async {
            loop {
                let (found, said) = self.readyz().await;
                if found == status && said.contains(says) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, wait).await;
        let said = if waited.is_err() { Some(self.readyz().await) } else { None };
        assert_eq!(said, None, "not {status} with {says:?}");
    }

    /// Ends it as a kill does.
    pub fn kill(mut self) {
        drop(self.running.take());
    }

    pub async fn state(&self) -> AgentState {
        self.agent.state().await
    }

    pub async fn target(&self, name: &str) -> TargetState {
        let state = self.state().await;
        state.routes.into_iter().flat_map(|route| route.targets).find(|target| target.name == name).unwrap()
    }

    /// Waits for a condition of the agent's state.
    pub async fn until(&self, what: &str, holds: impl Fn(&AgentState) -> bool) -> AgentState {
        let wait = async {
            loop {
                let state = self.state().await;
                if holds(&state) {
                    return state;
                }
                tokio::task::yield_now().await;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, wait).await.ok();
        let Some(state) = waited else { panic!("{what}: {:#?}", self.state().await) };
        state
    }

    /// Waits until nothing is in flight and everything is settled.
    pub async fn until_idle(&self) -> AgentState {
        self.until("nothing outstanding", |state| {
            state.exchanges.in_flight == 0
                && state.exchanges.unsettled == 0
                && state.store.settles_waiting == 0
                && state.routes.iter().flat_map(|route| &route.targets).all(|target| target.in_flight == 0)
        })
        .await
    }

    /// The same in the background, while the world is looked at.
    pub fn begin_drain(&mut self) -> tokio::task::JoinHandle<()> {
        tokio::spawn(self.running.take().unwrap().drain())
    }

    pub async fn drain(mut self) {
        self.running.take().unwrap().drain().await;
    }

    /// A connection of its own, for what no HTTP client would send.
    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.addr).await.unwrap()
    }

    /// Sends these bytes and returns all that comes until the connection is closed.
    pub async fn raw(&self, bytes: &[u8]) -> String {
        let mut socket = self.connect().await;
        let talk = async {
            // A server that has said enough may close before it has read all.
            let _ = socket.write_all(bytes).await;
            let mut answer = Vec::new();
            let _ = socket.read_to_end(&mut answer).await;
            String::from_utf8_lossy(&answer).into_owned()
        };
        tokio::time::timeout(PATIENCE, talk).await.unwrap()
    }

    /// Waits until a line of the page at `/metrics` has this value.
    pub async fn until_metric(&self, line: &str, value: u64) {
        let wait = async {
            while self.metric(line) != value {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, wait).await;
        assert!(waited.is_ok(), "{line} is {}, not {value}", self.metric(line));
    }

    /// One line of the page at `/metrics`, such as `sluice_retries_total{name="default/chat/primary"}`.
    pub fn metric(&self, line: &str) -> u64 {
        let page = self.agent.metrics();
        let value = page.lines().find_map(|one| one.strip_prefix(line)?.strip_prefix(' '));
        value.map_or(0, |value| value.parse().unwrap())
    }
}

/// A body read to its end, or to where it broke.
pub async fn read(response: Response<Incoming>) -> Answer {
    let (parts, mut body) = response.into_parts();
    let mut read = Vec::new();
    let mut whole = true;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            whole = false;
            break;
        };
        read.extend_from_slice(&frame.into_data().unwrap_or_default());
    }
    Answer { status: parts.status, headers: parts.headers, body: read.into(), whole }
}

pub fn chat(stream: bool) -> Value {
    json!({ "model": "gpt-4o", "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 20, "stream": stream })
}

pub fn message(stream: bool) -> Value {
    json!({ "model": "claude-x", "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 20, "stream": stream })
}

/// A request as bytes, on a connection that stays open.
pub fn request_bytes(path: &str, headers: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nhost: a\r\n{headers}content-length: {length}\r\n\r\n{body}").into_bytes()
}

/// Reads from a connection until what came contains `end`.
pub async fn read_until(socket: &mut TcpStream, end: &str) -> String {
    let mut read = Vec::new();
    let reading = async {
        let mut buffer = [0; 4096];
        while !String::from_utf8_lossy(&read).contains(end) {
            let count = socket.read(&mut buffer).await.unwrap();
            assert!(count > 0, "ended before {end:?}: {}", String::from_utf8_lossy(&read));
            read.extend_from_slice(&buffer[..count]);
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.unwrap();
    String::from_utf8_lossy(&read).into_owned()
}

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// One attempt and no other, so that what a provider says is what the client sees.
pub fn once(mut target: TargetPolicy) -> TargetPolicy {
    target.rules.retries.rules.max_attempts = 1;
    target
}

/// A quota of so many tokens a minute; the bucket holds one minute's.
pub fn quota(tokens_per_minute: u64) -> Group<Quota> {
    Group {
        rules: Quota {
            tokens_per_minute: Some(tokens_per_minute),
            burst_tokens: tokens_per_minute,
            requests_per_minute: None,
            default_max_output_tokens: 1_024,
            tenants: Vec::new(),
            pushback: Pushback::default(),
        },
        mode: Mode::Enforce,
        source: None,
    }
}

/// What `chat` and `message` are estimated at: nine bytes of text and the frame of a message.
pub const INPUT: u64 = 11;

pub fn counts(pairs: &[(&'static str, u64)]) -> BTreeMap<&'static str, u64> {
    pairs.iter().copied().filter(|(_, count)| *count > 0).collect()
}
