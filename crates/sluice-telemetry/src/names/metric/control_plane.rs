//! What a control plane measures: that of `sluice run`, and the controller.

use super::{Kind, Metric, REASON, Section, Unit, counter, gauge, row, seconds};

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

pub const INJECTIONS: Metric = counter(
    "sluice.controller.injections",
    &["outcome"],
    "Pods that were looked at before they were made: injected, or why they were left as they are",
);
pub const PODS_WITHOUT_AGENT: Metric = gauge(
    "sluice.controller.pods_without_agent",
    &[REASON],
    "Pods that asked for an agent and run without one, by reason; told by the replica that holds the lease",
);
pub const AUTHORITY_NAMESPACES: Metric = gauge(
    "sluice.controller.authority_namespaces",
    &["state"],
    "Namespaces that need the authorities' ConfigMap: published, behind, unwatched; told by the replica that holds the lease",
);
pub const CERTIFICATE_EXPIRATION: Metric = row(
    Kind::Gauge,
    Unit::Seconds,
    "sluice.controller.certificate.expiration_timestamp",
    &["certificate"],
    "When the serving certificate and the newest authority end, since 1970; both are renewed after two thirds of their lives",
);

/// The rows that only the controller has.
pub const CONTROLLER: &[Section] = &[
    ("Pods", &[&INJECTIONS, &PODS_WITHOUT_AGENT]),
    ("Certificates", &[&CERTIFICATE_EXPIRATION, &AUTHORITY_NAMESPACES]),
];

/// The rows of a control plane.
pub const CONTROL_PLANE: &[Section] = &[
    ("Policies", &[&RELOADS, &COMPILE_DURATION, &ROUTES]),
    ("Agents", &[&AGENTS, &PUSHES, &ACKS, &REJECTED_ROUTES, &TRANSITIONS_DROPPED]),
];
