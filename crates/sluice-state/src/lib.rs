//! The state of targets: breakers and quotas, shared by the fleet through Redis.
//!
//! ```text
//! agents ── Store ─┬─ RedisHome ──── lua/*.lua in Redis         (shared by the fleet)
//!                  └─ EmbeddedHome ─ lua/*.lua in mlua          (this agent's own, or `sluice run`)
//! ```
//!
//! The scripts of `lua/` are the only definition of what a breaker and a bucket do. This crate runs them in
//! two homes behind one trait and decides, per exchange, which home answers.
//!
//! | module | |
//! |---|---|
//! | [`store`] | the facade that agents use: admit, settle, what is known, transitions, health |
//! | [`observer`] | the shared state for those who only look |
//! | [`args`] | how programs are told where Redis is |
//! | [`home`] | the trait of a home |
//! | [`redis_home`] | Redis, stand-alone, behind Sentinels or in a cluster |
//! | [`embedded`] | the interpreter and its key space |
//! | [`script`] | the scripts, their arguments and their replies |
//! | [`acl`] | the least rights of an agent in Redis |
//! | [`error`] | what can go wrong |

pub mod acl;
pub mod agent_tag;
pub mod args;
pub mod clock;
pub mod embedded;
pub mod error;
pub mod home;
mod local_share;
pub mod observer;
mod random;
pub mod redis_home;
pub mod script;
pub mod store;
mod store_breaker;

pub use agent_tag::AgentTag;
pub use embedded::EmbeddedHome;
pub use error::{StoreError, StoreErrorKind};
pub use home::{Home, HomeFuture, HomeKind};
pub use observer::Observer;
pub use redis_home::{RedisConfig, RedisHome};
pub use store::{
    Admission, Known, SettleJob, Shared, Store, StoreConfig, StoreHealth, StoreStats, Ticket, Told,
    TransitionEvent,
};
