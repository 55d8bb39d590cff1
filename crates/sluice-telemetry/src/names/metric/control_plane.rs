//! What a control plane measures: that of `sluice run`, and the controller.

use super::{Metric, Section, counter, gauge, seconds};

pub const COMPILE_DURATION: Metric =
    seconds("sluice.control_plane.compile.duration", &[], "Compilations of all resources into policies");
pub const ROUTES: Metric = gauge(
    "sluice.control_plane.routes",
    &["state"],
    "Routes of the last compilation: compiled, or held at their last good version",
);
pub const RELOADS: Metric = counter(
    "sluice.control_plane.reloads",
    &["outcome"],
    "Readings of the source of the resources: changed, unchanged, failed",
);
pub const AGENTS: Metric = gauge(
    "sluice.control_plane.agents",
    &["state"],
    "Connected agents: in-sync, behind (the newest is not answered yet), rejecting",
);
pub const PUSHES: Metric =
    counter("sluice.control_plane.pushes", &["kind"], "Messages to agents: snapshot, secrets, agents");
pub const ACKS: Metric =
    counter("sluice.control_plane.acks", &["outcome"], "Answers to snapshots: accepted, rejected (in part)");
pub const REJECTED_ROUTES: Metric =
    counter("sluice.control_plane.rejected_routes", &[], "Routes that an agent refused, in all answers");
pub const TRANSITIONS_DROPPED: Metric = counter(
    "sluice.control_plane.transitions_dropped",
    &[],
    "Transitions told by agents that nobody took in time",
);

/// The rows of a control plane.
pub const CONTROL_PLANE: &[Section] = &[
    ("Policies", &[&RELOADS, &COMPILE_DURATION, &ROUTES]),
    ("Agents", &[&AGENTS, &PUSHES, &ACKS, &REJECTED_ROUTES, &TRANSITIONS_DROPPED]),
];
