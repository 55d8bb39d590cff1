//! The webhook that adds the agent to pods.
//!
//! | module | what it does |
//! |---|---|
//! | [`pod`] | which pods, and what is added to them: pure |
//! | [`container`] | the agent as a container, with its volumes |
//! | [`review`] | what the API server asks, and the answer |
//! | [`webhook`] | the server |
//! | [`missing`] | pods that asked for an agent and run without |

pub(crate) mod container;
pub(crate) mod missing;
pub(crate) mod pod;
pub(crate) mod review;
pub(crate) mod webhook;
