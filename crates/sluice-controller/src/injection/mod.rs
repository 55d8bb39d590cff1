//! The webhook that adds the agent to pods: which pods, what is added, and how it is asked for.
//!
//! [`pod`] is pure: a pod in, the changed pod out. It is written so that a pod that has an agent already stays as it is,
//! since an API server may ask twice.

mod pod;
