//! The `sluice` command.
//!
//! | module | command |
//! |---|---|
//! | [`run`] | `sluice run`: control plane, agents and, on request, scripted providers in one process |
//! | [`view`] | the live view of a run, in a terminal or as lines |
//! | [`check`] | `sluice check`: manifests against everything the API server would refuse, offline |
//! | [`provider`] | `sluice provider`: the scripted provider alone |
//! | [`load`] | `sluice load`: calls, and what came of them |
//! | [`console`] | what is printed, and where |

pub mod check;
mod clock;
pub mod console;
pub mod load;
pub mod provider;
pub mod run;
pub mod view;
