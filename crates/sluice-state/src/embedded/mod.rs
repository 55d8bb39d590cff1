//! The embedded home: the same scripts over an in-process key space, in LuaJIT's interpreter: it is
//! Lua 5.1, as in Redis, at half the cost. Its compiler is never loaded.
//!
//! It serves `sluice run` without Redis, each agent while Redis is away, tests and the simulator. Nothing of
//! the breaker or the bucket is written in Rust: only the dozen commands that the scripts use.
//!
//! Calls run one after another under a lock, as in Redis, and take microseconds, so nothing awaits. Expired
//! keys are collected as calls come in; beyond [`MAX_KEYS`] a call fails as it would in a full Redis.

mod commands;
mod interpreter;
mod keyspace;

use std::sync::Arc;

use parking_lot::Mutex;
use sluice_core::admission::{AdmitAsk, AdmitReply, SettleAsk, SettleReply, TargetView};
use sluice_core::policy::TargetPolicy;
use tokio::sync::broadcast;

pub use self::keyspace::{MAX_KEYS, Stored};

use self::interpreter::Interpreter;
use crate::agent_tag::AgentTag;
use crate::clock::{Clock, SystemClock};
use crate::error::StoreError;
use crate::home::{Home, HomeFuture};
use crate::script::{self, Call, ReplyItem, ScriptName};

/// Publications that a slow listener may lag behind.
const PUBLICATIONS: usize = 1_024;

pub struct EmbeddedHome {
    interpreter: Mutex<Interpreter>,
    clock: Arc<dyn Clock>,
    publications: broadcast::Sender<Arc<str>>,
}

impl EmbeddedHome {
    /// An empty home on the system's time.
    ///
    /// # Errors
    /// Kind `other` when the interpreter can't be made.
    pub fn new() -> Result<Self, StoreError> {
        Self::with_clock(Arc::new(SystemClock::start()))
    }

    /// An empty home on a given time.
    ///
    /// # Errors
    /// Kind `other` when the interpreter can't be made.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        let (publications, _) = broadcast::channel(PUBLICATIONS);
        let interpreter = Mutex::new(Interpreter::new(publications.clone())?);
        Ok(Self { interpreter, clock, publications })
    }

    /// Runs a script as it stands, for tests that send what no encoder would.
    ///
    /// # Errors
    /// What the script or a command of it refused.
    pub fn run(&self, name: ScriptName, call: &Call) -> Result<Vec<ReplyItem>, StoreError> {
        let now = self.clock.now_ms();
        self.interpreter.lock().run(name, call, now)
    }

    /// Begins a target from what was last seen of the shared home.
    ///
    /// # Errors
    /// What the script refused.
    pub fn adopt(&self, target: &TargetPolicy, seen: &TargetView) -> Result<(), StoreError> {
        self.run(ScriptName::Adopt, &script::encode_adopt(target, seen)).map(|_| ())
    }

    /// [`Home::admit`] without a future.
    ///
    /// # Errors
    /// What the script refused, or a reply that is none.
    pub fn admit_now(
        &self,
        agent: &AgentTag,
        target: &TargetPolicy,
        ask: &AdmitAsk,
    ) -> Result<AdmitReply, StoreError> {
        let reply = self.run(ScriptName::Admit, &script::encode_admit(agent, target, ask))?;
        Ok(script::decode_admit(&reply)?)
    }

    /// [`Home::settle`] without a future.
    ///
    /// # Errors
    /// What the script refused, or a reply that is none.
    pub fn settle_now(
        &self,
        agent: &AgentTag,
        target: &TargetPolicy,
        ask: &SettleAsk,
    ) -> Result<SettleReply, StoreError> {
        let reply = self.run(ScriptName::Settle, &script::encode_settle(agent, target, ask))?;
        Ok(script::decode_settle(&reply)?)
    }

    /// [`Home::view`] without a future.
    ///
    /// # Errors
    /// What the script refused, or a reply that is none.
    pub fn view_now(&self, target: &TargetPolicy) -> Result<TargetView, StoreError> {
        let reply = self.run(ScriptName::View, &script::encode_view(target))?;
        Ok(script::decode_view(&reply)?)
    }

    /// Every publication from now on.
    #[must_use]
    pub fn publications(&self) -> broadcast::Receiver<Arc<str>> {
        self.publications.subscribe()
    }

    /// What a key holds, for tests that compare homes.
    #[must_use]
    pub fn stored(&self, key: &str) -> Option<Stored> {
        let now = self.clock.now_ms();
        self.interpreter.lock().stored(key, now)
    }

    /// Keys held, expired ones that were not collected yet included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.interpreter.lock().len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts a value in place of a key, for tests of wrong types and lost writes.
    pub fn replace(&self, key: &str, value: Option<Stored>) {
        self.interpreter.lock().replace(key, value);
    }
}

impl Home for EmbeddedHome {
    fn admit<'a>(
        &'a self,
        agent: &'a AgentTag,
        target: &'a TargetPolicy,
        ask: &'a AdmitAsk,
    ) -> HomeFuture<'a, AdmitReply> {
        Box::pin(std::future::ready(self.admit_now(agent, target, ask)))
    }

    fn settle<'a>(
        &'a self,
        agent: &'a AgentTag,
        target: &'a TargetPolicy,
        ask: &'a SettleAsk,
    ) -> HomeFuture<'a, SettleReply> {
        Box::pin(std::future::ready(self.settle_now(agent, target, ask)))
    }

    fn view<'a>(&'a self, target: &'a TargetPolicy) -> HomeFuture<'a, TargetView> {
        Box::pin(std::future::ready(self.view_now(target)))
    }
}
