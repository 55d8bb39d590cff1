//! The shared home: the scripts in Redis or Valkey, stand-alone, behind Sentinels or in a cluster.
//!
//! One multiplexed connection carries the commands of all exchanges. A command is EVALSHA; on NOSCRIPT, and
//! then only, the script is loaded and the command sent again, inside the same deadline. Any other reply that is
//! lost stays lost: the caller decides, by the admission's nonce.
//!
//! This module never waits for a connection: without one a call fails at once. [`RedisHome::reconnect`] makes
//! one; who calls it, and when, is the store's business.

mod config;
mod connect;
mod errors;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use redis::Value;
use redis::aio::PubSub;
use sluice_core::admission::{AdmitAsk, AdmitReply, SettleAsk, SettleReply, TargetView};
use sluice_core::policy::TargetPolicy;

pub use self::config::RedisConfig;

use self::connect::{CONNECT_DEADLINE, Connector, Link};
use self::errors::store_error;
use crate::agent_tag::AgentTag;
use crate::error::{StoreError, StoreErrorKind};
use crate::home::{Home, HomeFuture};
use crate::script::{self, CHANNEL, Call, ReplyItem, ScriptName};

/// To reach a server for listening.
const LISTEN_DEADLINE: Duration = Duration::from_millis(500);

pub struct RedisHome {
    connector: Connector,
    admit_deadline: Duration,
    settle_deadline: Duration,
    link: RwLock<Option<Arc<Link>>>,
    noscript: AtomicU64,
    connections: AtomicU64,
}

/// What a new connection found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    /// The eviction policy, unless it is `noeviction`; `None` too when the server does not say.
    pub unsafe_eviction: Option<String>,
}

impl RedisHome {
    /// Reads the configuration; connects to nothing.
    ///
    /// # Errors
    /// Kind `config` or `tls` when it can't work.
    pub fn new(config: &RedisConfig) -> Result<Self, StoreError> {
        Ok(Self {
            connector: Connector::new(config)?,
            admit_deadline: config.admit_deadline,
            settle_deadline: config.settle_deadline,
            link: RwLock::new(None),
            noscript: AtomicU64::new(0),
            connections: AtomicU64::new(0),
        })
    }

    /// Makes a new connection in place of the present one, loads the scripts and asks for the eviction policy.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn reconnect(&self) -> Result<ServerFacts, StoreError> {
        *self.link.write() = None;
        let link = self.connector.connect().await?;
        for name in ScriptName::SHARED {
            load(&link, name, CONNECT_DEADLINE).await?;
        }
        let facts = ServerFacts { unsafe_eviction: eviction_policy(&link).await };
        *self.link.write() = Some(Arc::new(link));
        self.connections.fetch_add(1, Ordering::Relaxed);
        Ok(facts)
    }

    /// Times that a script was not there.
    #[must_use]
    pub fn noscript(&self) -> u64 {
        self.noscript.load(Ordering::Relaxed)
    }

    /// Connections made so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Listens to the fleet's transitions, by a connection of its own.
    ///
    /// # Errors
    /// Kind `closed` without a connection for commands, `connect` and `timeout` where there is none for listening.
    pub(crate) async fn subscribe(&self) -> Result<PubSub, StoreError> {
        let client = self.link.read().as_ref().map(|link| link.listen.clone());
        let client = client.ok_or_else(|| StoreError::new(StoreErrorKind::Closed, "the connection ended"))?;
        let subscribing = async {
            let mut pubsub = client.get_async_pubsub().await?;
            pubsub.subscribe(CHANNEL).await?;
            Ok(pubsub)
        };
        let failed = |error: redis::RedisError| StoreError::new(StoreErrorKind::Connect, error.to_string());
        let late = |_| StoreError::new(StoreErrorKind::Timeout, "no subscription in time");
        tokio::time::timeout(LISTEN_DEADLINE, subscribing).await.map_err(late)?.map_err(failed)
    }

    /// Runs a script as it stands, for tests that send what no encoder would.
    ///
    /// # Errors
    /// What the script, the server or the socket said.
    pub async fn run(
        &self,
        name: ScriptName,
        call: &Call,
        deadline: Duration,
    ) -> Result<Vec<ReplyItem>, StoreError> {
        let link = self.link.read().clone();
        let link = link.ok_or_else(|| StoreError::new(StoreErrorKind::Connect, "there is no connection"))?;
        let work = async {
            let command = evalsha(name, call);
            let mut connection = link.connection.clone();
            match connection.send(&command).await.map_err(|error| store_error(&error)) {
                Err(error) if error.kind == StoreErrorKind::NoScript => {
                    self.noscript.fetch_add(1, Ordering::Relaxed);
                    load(&link, name, deadline).await?;
                    connection.send(&command).await.map_err(|error| store_error(&error))
                }
                other => other,
            }
        };
        let reply = tokio::time::timeout(deadline, work).await.unwrap_or_else(|_| {
            Err(StoreError::new(
                StoreErrorKind::Timeout,
                format!("no reply within {} ms", deadline.as_millis()),
            ))
        });
        match reply {
            Ok(value) => reply_items(value),
            Err(error) => {
                if error.kind.ends_connection() {
                    self.give_up(&link);
                }
                Err(error)
            }
        }
    }

    /// Drops a connection that is of no more use, unless it has been replaced meanwhile.
    fn give_up(&self, link: &Arc<Link>) {
        let mut present = self.link.write();
        if present.as_ref().is_some_and(|present| Arc::ptr_eq(present, link)) {
            *present = None;
        }
    }
}

impl Home for RedisHome {
    fn admit<'a>(
        &'a self,
        agent: &'a AgentTag,
        target: &'a TargetPolicy,
        ask: &'a AdmitAsk,
    ) -> HomeFuture<'a, AdmitReply> {
        Box::pin(async move {
            let call = script::encode_admit(agent, target, ask);
            let reply = self.run(ScriptName::Admit, &call, self.admit_deadline).await?;
            Ok(script::decode_admit(&reply)?)
        })
    }

    fn settle<'a>(
        &'a self,
        agent: &'a AgentTag,
        target: &'a TargetPolicy,
        ask: &'a SettleAsk,
    ) -> HomeFuture<'a, SettleReply> {
        Box::pin(async move {
            let call = script::encode_settle(agent, target, ask);
            let reply = self.run(ScriptName::Settle, &call, self.settle_deadline).await?;
            Ok(script::decode_settle(&reply)?)
        })
    }

    fn view<'a>(&'a self, target: &'a TargetPolicy) -> HomeFuture<'a, TargetView> {
        Box::pin(async move {
            let reply =
                self.run(ScriptName::View, &script::encode_view(target), self.settle_deadline).await?;
            Ok(script::decode_view(&reply)?)
        })
    }
}

fn evalsha(name: ScriptName, call: &Call) -> redis::Cmd {
    let bytes: usize = call.keys.iter().chain(&call.args).map(|word| word.len() + 8).sum();
    let mut command = redis::Cmd::with_capacity(3 + call.keys.len() + call.args.len(), bytes + 64);
    command.arg("EVALSHA").arg(name.script().sha1()).arg(call.keys.len());
    for word in call.keys.iter().chain(&call.args) {
        command.arg(word);
    }
    command
}

async fn load(link: &Link, name: ScriptName, deadline: Duration) -> Result<(), StoreError> {
    let mut command = redis::cmd("SCRIPT");
    command.arg("LOAD").arg(name.script().text());
    let mut connection = link.connection.clone();
    match tokio::time::timeout(deadline, connection.send(&command)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(store_error(&error)),
        Err(_) => Err(StoreError::new(StoreErrorKind::Timeout, "a script was not loaded in time")),
    }
}

/// A server that hides it, or a user without the right to ask, leaves nothing to say.
async fn eviction_policy(link: &Link) -> Option<String> {
    let mut command = redis::cmd("INFO");
    command.arg("memory");
    let mut connection = link.connection.clone();
    let reply = tokio::time::timeout(CONNECT_DEADLINE, connection.send(&command)).await.ok()?.ok()?;
    let policies = texts(&reply);
    policies
        .iter()
        .flat_map(|text| text.lines())
        .filter_map(|line| line.strip_prefix("maxmemory_policy:"))
        .find(|policy| *policy != "noeviction")
        .map(str::to_owned)
}

/// All texts in a reply: a cluster answers with one per node.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::BulkString(bytes) => vec![String::from_utf8_lossy(bytes).into_owned()],
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => vec![text.clone()],
        Value::Array(values) => values.iter().flat_map(texts).collect(),
        Value::Map(pairs) => pairs.iter().flat_map(|(_, value)| texts(value)).collect(),
        _ => Vec::new(),
    }
}

fn reply_items(value: Value) -> Result<Vec<ReplyItem>, StoreError> {
    let bad = |what: &str| StoreError::new(StoreErrorKind::BadReply, what.to_owned());
    let Value::Array(values) = value else { return Err(bad("the script returned no array")) };
    values
        .into_iter()
        .map(|value| match value {
            Value::Int(n) => Ok(ReplyItem::Integer(n)),
            Value::BulkString(bytes) => Ok(ReplyItem::Text(String::from_utf8_lossy(&bytes).into_owned())),
            _ => Err(bad("the script returned something that is neither integer nor text")),
        })
        .collect()
}
