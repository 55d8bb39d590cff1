//! An API server for tests, in memory: enough of the protocol for a client that reads, writes, applies and watches.
//!
//! It does what matters to those who use it: versions that conflict, watches from a version on, applying what is there
//! already changes nothing. It neither validates nor authenticates, and knows no kinds.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;

type Review = Arc<dyn Fn(&Value) -> Value + Send + Sync>;
type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

#[derive(Clone, Default)]
pub(crate) struct ApiServer(Arc<Shared>);

#[derive(Default)]
struct Shared {
    store: Mutex<Store>,
    /// The newest version: watches wait for it.
    version: watch::Sender<u64>,
    /// Changes when all connections break.
    broken: watch::Sender<u64>,
    /// Changes when writes need not wait any more.
    released: watch::Sender<u64>,
    /// Changes when all watches that are on fall silent.
    silent: watch::Sender<u64>,
}

#[derive(Default)]
struct Store {
    objects: BTreeMap<Path, Value>,
    /// Each change: what, how, and the object.
    log: Vec<(Path, &'static str, Value)>,
    writes: usize,
    conflicts: usize,
    forbidden: BTreeSet<String>,
    /// What becomes of a TokenReview: of its spec the status.
    review: Option<Review>,
    /// Nobody answers.
    down: bool,
    /// Watches from before this version are told that it is gone.
    oldest: u64,
    /// What is wrong with collections, and how many requests have met it.
    faults: BTreeMap<String, Fault>,
    faults_met: usize,
}

/// What becomes of requests to a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Writes wait until it is over.
    Waits,
    /// Writes are answered with 500.
    Fails,
    /// Writes are never answered, also after it is over: their connections are dead, and nobody says so.
    Vanishes,
    /// Lists are answered with 500 after their first page.
    SecondPageFails,
    /// Single objects can't be read: that is answered with 500.
    ReadsFail,
}

/// `/api/v1` or `/apis/group/version`, a plural, a namespace or nothing, a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Path {
    collection: String,
    namespace: String,
    name: String,
}

impl ApiServer {
    pub(crate) fn client(&self) -> Client {
        let shared = self.0.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let shared = shared.clone();
            async move {
                if shared.store.lock().down {
                    return Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
                }
                Ok(shared.answer(request).await)
            }
        });
        Client::new(service, "default")
    }

    /// Objects that were made or changed, by whomever.
    pub(crate) fn writes(&self) -> usize {
        self.0.store.lock().writes
    }

    /// Writes that another one was faster than.
    pub(crate) fn conflicts(&self) -> usize {
        self.0.store.lock().conflicts
    }

    /// Makes an object, of a collection such as `api/v1/pods`.
    pub(crate) fn put(&self, collection: &str, object: Value) {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        let name = Path { collection: collection.to_owned(), namespace, name: String::new() };
        let mut store = self.0.store.lock();
        store.create(name, object);
        self.0.version.send_replace(store.version());
    }

    /// What TokenReviews are answered with from now on: of a spec the status.
    pub(crate) fn answer_reviews(&self, status: impl Fn(&Value) -> Value + Send + Sync + 'static) {
        self.0.store.lock().review = Some(Arc::new(status));
    }

    /// Breaks all connections and answers nobody, until it is up again.
    pub(crate) fn set_down(&self, down: bool) {
        self.0.store.lock().down = down;
        self.0.broken.send_modify(|broken| *broken += 1);
    }

    /// Breaks all watches, and remembers nothing of what was before: they are told so when they come again.
    pub(crate) fn expire(&self) {
        {
            let mut store = self.0.store.lock();
            store.oldest = store.version();
        }
        self.0.broken.send_modify(|broken| *broken += 1);
    }

    /// Gives a collection a fault, in place of another.
    pub(crate) fn spoil(&self, collection: &str, fault: Fault) {
        self.0.store.lock().faults.insert(collection.to_owned(), fault);
    }

    /// Takes a collection's fault away.
    pub(crate) fn mend(&self, collection: &str) {
        self.0.store.lock().faults.remove(collection);
        self.0.released.send_modify(|released| *released += 1);
    }

    /// Requests that have met a fault.
    pub(crate) fn faults_met(&self) -> usize {
        self.0.store.lock().faults_met
    }

    /// From now on, watches that are on tell nothing, and don't end either. Those that come later do tell.
    pub(crate) fn silence(&self) {
        self.0.silent.send_modify(|silent| *silent += 1);
    }

    /// An object as it is now.
    pub(crate) fn get(&self, collection: &str, namespace: &str, name: &str) -> Option<Value> {
        let (collection, namespace, name) = (collection.to_owned(), namespace.to_owned(), name.to_owned());
        self.0.store.lock().objects.get(&Path { collection, namespace, name }).cloned()
    }

    /// What was made or changed in a collection, in order.
    pub(crate) fn written(&self, collection: &str) -> Vec<Value> {
        let store = self.0.store.lock();
        let log =
            store.log.iter().filter(|(path, how, _)| path.collection == collection && *how != "DELETED");
        log.map(|(_, _, object)| object.clone()).collect()
    }

    /// How often an object of a collection was made or changed.
    pub(crate) fn writes_of(&self, collection: &str) -> usize {
        let store = self.0.store.lock();
        store.log.iter().filter(|(path, how, _)| path.collection == collection && *how != "DELETED").count()
    }

    /// Changes an object behind everyone's back, as another client would.
    pub(crate) fn change(
        &self,
        collection: &str,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) {
        let (collection, namespace, name) = (collection.to_owned(), namespace.to_owned(), name.to_owned());
        let path = Path { collection, namespace, name };
        let mut store = self.0.store.lock();
        let mut object = store.objects.get(&path).cloned().unwrap();
        change(&mut object);
        store.put(path, "MODIFIED", object);
        self.0.version.send_replace(store.version());
    }

    pub(crate) fn remove(&self, collection: &str, namespace: &str, name: &str) {
        let (collection, namespace, name) = (collection.to_owned(), namespace.to_owned(), name.to_owned());
        let mut store = self.0.store.lock();
        store.delete(&Path { collection, namespace, name });
        self.0.version.send_replace(store.version());
    }

    /// Refuses everything in a namespace from now on, or not any more.
    pub(crate) fn forbid(&self, namespace: &str, forbidden: bool) {
        let mut store = self.0.store.lock();
        if forbidden {
            store.forbidden.insert(namespace.to_owned());
        } else {
            store.forbidden.remove(namespace);
        }
    }
}

impl Shared {
    async fn answer(self: Arc<Self>, request: Request<Body>) -> Answer {
        let (parts, body) = request.into_parts();
        let name = Path::of(parts.uri.path());
        let query = parts.uri.query().unwrap_or_default().replace('+', " ");
        let query = percent_encoding::percent_decode_str(&query).decode_utf8().unwrap().into_owned();
        if self.store.lock().forbidden.contains(&name.namespace) {
            return status(StatusCode::FORBIDDEN, "Forbidden");
        }
        if query.contains("watch=true") {
            return self.watch(name, &query);
        }
        let mut released = self.released.subscribe();
        loop {
            let Some(fault) = self.store.lock().meet(&name, &parts.method, &query) else { break };
            match fault {
                Fault::Waits => released.changed().await.unwrap(),
                Fault::Vanishes => std::future::pending().await,
                Fault::Fails | Fault::SecondPageFails | Fault::ReadsFail => {
                    return status(StatusCode::INTERNAL_SERVER_ERROR, "InternalError");
                }
            }
        }
        let body = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let mut store = self.store.lock();
        let answer = match parts.method {
            Method::GET if name.name.is_empty() => json_answer(&store.list(&name, &query)),
            Method::GET => store.objects.get(&name).map_or_else(not_found, json_answer),
            Method::POST => store.create(name, body),
            Method::PUT => store.replace(name, body),
            Method::PATCH => store.apply(name, &body),
            Method::DELETE => store.delete(&name),
            other => panic!("{other}"),
        };
        self.version.send_replace(store.version());
        answer
    }

    fn watch(self: Arc<Self>, name: Path, query: &str) -> Answer {
        let since = parameter(query, "resourceVersion").and_then(|version| version.parse().ok()).unwrap_or(0);
        let query = query.to_owned();
        let mut told: usize = since;
        if (since as u64) < self.store.lock().oldest {
            let gone = json!({"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "metadata": {},
                "status": "Failure", "message": "too old", "reason": "Expired", "code": 410}});
            let line = Ok::<_, Infallible>(Frame::data(Bytes::from(gone.to_string() + "\n")));
            return Response::new(UnsyncBoxBody::new(StreamBody::new(futures_util::stream::iter([line]))));
        }
        let (mut broken, mut silent) = (self.broken.subscribe(), self.silent.subscribe());
        let changes = WatchStream::new(self.version.subscribe()).flat_map(move |_| {
            let store = self.store.lock();
            let new: Vec<_> = store.log.iter().skip(told).cloned().collect();
            told = store.log.len();
            let new = new
                .into_iter()
                .filter(|(changed, _, object)| changed.is_in(&name) && selects(&query, object));
            let lines: Vec<_> = new
                .map(|(_, how, object)| json!({"type": how, "object": object}).to_string() + "\n")
                .map(|line| Ok::<_, Infallible>(Frame::data(Bytes::from(line))))
                .collect();
            futures_util::stream::iter(lines)
        });
        let changes = changes.take_until(Box::pin(async move { silent.changed().await }));
        let changes = changes.chain(futures_util::stream::pending());
        let changes = changes.take_until(Box::pin(async move { broken.changed().await }));
        Response::new(UnsyncBoxBody::new(StreamBody::new(changes)))
    }
}

impl Store {
    fn version(&self) -> u64 {
        self.log.len() as u64
    }

    /// The fault that a request meets.
    fn meet(&mut self, name: &Path, method: &Method, query: &str) -> Option<Fault> {
        let fault = *self.faults.get(&name.collection)?;
        let meets = match fault {
            Fault::SecondPageFails => *method == Method::GET && parameter(query, "continue").is_some(),
            Fault::ReadsFail => *method == Method::GET && !name.name.is_empty(),
            Fault::Waits | Fault::Fails | Fault::Vanishes => *method != Method::GET,
        };
        self.faults_met += usize::from(meets);
        meets.then_some(fault)
    }

    /// A page; the place of the next one is the last object of this one. A page has the version of the first one, so
    /// that a watch tells what changed meanwhile.
    fn list(&self, name: &Path, query: &str) -> Value {
        let place = parameter(query, "continue").unwrap_or_default();
        let (version, after) = match place.split('/').collect::<Vec<_>>()[..] {
            [version, namespace, name] => (version.to_owned(), Some((namespace, name))),
            _ => (self.version().to_string(), None),
        };
        let limit = parameter(query, "limit").and_then(|limit| limit.parse().ok()).unwrap_or(usize::MAX);
        let found = self.objects.iter().filter(|(found, object)| found.is_in(name) && selects(query, object));
        let mut rest =
            found.skip_while(|(path, _)| after.is_some_and(|after| (&*path.namespace, &*path.name) <= after));
        let page: Vec<(&Path, &Value)> = rest.by_ref().take(limit).collect();
        let next = page.last().filter(|_| rest.next().is_some());
        let next = next.map(|(path, _)| format!("{version}/{}/{}", path.namespace, path.name));
        let items: Vec<&Value> = page.into_iter().map(|(_, object)| object).collect();
        json!({"kind": "List", "apiVersion": "v1", "items": items,
            "metadata": {"resourceVersion": version, "continue": next}})
    }

    fn create(&mut self, collection: Path, mut object: Value) -> Answer {
        if let Some(review) = &self.review
            && collection.collection.ends_with("/tokenreviews")
        {
            // It is answered, and nothing is made.
            object["status"] = review(&object["spec"]);
            return json_answer(&object);
        }
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let name = Path { name, ..collection };
        if self.objects.contains_key(&name) {
            self.conflicts += 1;
            return status(StatusCode::CONFLICT, "AlreadyExists");
        }
        self.put(name, "ADDED", object)
    }

    fn replace(&mut self, name: Path, object: Value) -> Answer {
        let Some(present) = self.objects.get(&name) else { return not_found() };
        let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
        if version(&object) != version(present) {
            self.conflicts += 1;
            return status(StatusCode::CONFLICT, "Conflict");
        }
        self.put(name, "MODIFIED", object)
    }

    fn apply(&mut self, name: Path, applied: &Value) -> Answer {
        let present = self.objects.get(&name).cloned();
        let mut object = present.clone().unwrap_or_else(|| json!({}));
        let version = &applied["metadata"]["resourceVersion"];
        if version.is_string() && *version != object["metadata"]["resourceVersion"] {
            self.conflicts += 1;
            return status(StatusCode::CONFLICT, "Conflict");
        }
        merge(&mut object, applied);
        if !applied["status"].is_null() {
            // It has one writer.
            object["status"].clone_from(&applied["status"]);
        }
        match present {
            None => self.put(name, "ADDED", object),
            Some(present) if present == object => json_answer(&present),
            Some(_) => self.put(name, "MODIFIED", object),
        }
    }

    fn put(&mut self, name: Path, how: &'static str, mut object: Value) -> Answer {
        let metadata = &mut object["metadata"];
        metadata["resourceVersion"] = json!((self.version() + 1).to_string());
        if !name.namespace.is_empty() {
            metadata["namespace"] = json!(name.namespace);
        }
        self.writes += 1;
        self.log.push((name.clone(), how, object.clone()));
        let answer = json_answer(&object);
        self.objects.insert(name, object);
        answer
    }

    fn delete(&mut self, name: &Path) -> Answer {
        let Some(object) = self.objects.remove(name) else { return not_found() };
        self.log.push((name.clone(), "DELETED", object.clone()));
        json_answer(&object)
    }
}

impl Path {
    fn of(path: &str) -> Self {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (api, rest) = parts.split_at(if parts[0] == "api" { 2 } else { 3 });
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let name = rest.get(1).copied().unwrap_or_default();
        Self {
            collection: format!("{}/{}", api.join("/"), rest[0]),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// Whether it is in a collection: of its namespace, or of all.
    fn is_in(&self, collection: &Self) -> bool {
        self.collection == collection.collection
            && (collection.namespace.is_empty() || collection.namespace == self.namespace)
    }
}

/// As server-side apply does it to the objects that tests apply: maps by key, lists of maps by name.
fn merge(into: &mut Value, applied: &Value) {
    match (into, applied) {
        (Value::Object(into), Value::Object(applied)) => {
            for (key, value) in applied {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(applied)) => {
            for value in applied {
                let same = |one: &&mut Value| !value["name"].is_null() && one["name"] == value["name"];
                match into.iter_mut().find(same) {
                    Some(found) => merge(found, value),
                    None => into.push(value.clone()),
                }
            }
        }
        (into, applied) => into.clone_from(applied),
    }
}

fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// Whether the selectors of a query take an object; of fields, the name alone is looked at.
fn selects(query: &str, object: &Value) -> bool {
    let named = parameter(query, "fieldSelector").and_then(|fields| fields.strip_prefix("metadata.name="));
    let labels = &object["metadata"]["labels"];
    named.is_none_or(|name| object["metadata"]["name"] == name)
        && parameter(query, "labelSelector")
            .is_none_or(|selector| terms(selector).all(|term| holds(term, labels)))
}

/// Parts between commas that are in no brackets.
fn terms(selector: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    selector.split(move |c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    })
}

/// `key`, `!key`, `key=a`, `key in (a,b)`, `key notin (a,b)`.
fn holds(term: &str, labels: &Value) -> bool {
    let among = |values: &str, label: &Value| {
        values.trim_matches(['(', ')']).split(',').any(|value| label == value.trim())
    };
    if let Some((key, values)) = term.split_once(" notin ") {
        !among(values, &labels[key.trim()])
    } else if let Some((key, values)) = term.split_once(" in ") {
        among(values, &labels[key.trim()])
    } else if let Some((key, value)) = term.split_once('=') {
        labels[key] == value
    } else if let Some(key) = term.strip_prefix('!') {
        labels[key].is_null()
    } else {
        !labels[term].is_null()
    }
}

fn json_answer(value: &Value) -> Answer {
    answer(StatusCode::OK, value)
}

fn not_found() -> Answer {
    status(StatusCode::NOT_FOUND, "NotFound")
}

fn status(code: StatusCode, reason: &str) -> Answer {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": reason, "reason": reason, "code": code.as_u16()});
    answer(code, &status)
}

fn answer(code: StatusCode, value: &Value) -> Answer {
    let body = UnsyncBoxBody::new(Full::new(Bytes::from(value.to_string())));
    let mut answer = Response::new(body);
    *answer.status_mut() = code;
    answer
}
