//! What `/state` shows: the agent as it is now, for people and for `sluice run`'s live view.

use serde::Serialize;

/// One agent.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentState {
    pub agent: String,
    pub namespace: String,
    /// Content hash of the policies in use; empty before the first.
    pub policy_version: String,
    pub control_plane: ControlPlaneState,
    pub store: StoreState,
    pub exchanges: ExchangeCounts,
    pub routes: Vec<RouteState>,
    /// Objects of the last snapshot that this agent refused, with the reason.
    pub rejected: Vec<RejectedObject>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RejectedObject {
    pub object: String,
    pub error: String,
}

/// Where policies come from. That it is away stops no traffic.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlaneState {
    pub connected: bool,
    /// Why not, in words for a person; `None` as well before it has been asked.
    pub reason: Option<String>,
}

/// The shared state, as this agent reaches it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreState {
    /// `redis` or `embedded`.
    pub home: &'static str,
    pub reachable: bool,
    /// Why not, in words for a person.
    pub reason: Option<String>,
    /// Admissions that the agent decided alone.
    pub fallback_admissions: u64,
    /// Settlements waiting to be delivered.
    pub settles_waiting: u64,
    pub settles_dropped: u64,
}

#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExchangeCounts {
    pub total: u64,
    pub in_flight: u64,
    /// Answered by Sluice itself.
    pub refused: u64,
    /// Served by another target than the first choice.
    pub failed_over: u64,
    /// Left by their client.
    pub cancelled: u64,
    /// Admissions whose tokens are not settled yet.
    pub unsettled: u64,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteState {
    pub namespace: String,
    pub name: String,
    pub models: Vec<String>,
    pub targets: Vec<TargetState>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TargetState {
    pub name: String,
    pub id: String,
    pub breaker: BreakerView,
    pub in_flight: u32,
    pub limit: u32,
    /// `None`: tokens are not limited, or nobody has asked yet.
    pub tokens_left: Option<i64>,
    /// What the bucket holds that everyone shares, without what tenants reserve; `None`: tokens are not limited.
    pub burst_tokens: Option<u64>,
    /// The refill rate after the provider's pushback, in percent of the policy's.
    pub rate_percent: u32,
    pub paused_for_ms: u64,
    pub attempts: u64,
    pub retries: u64,
    /// Exchanges that went on past this target to another.
    pub failovers: u64,
    /// By what they meant to the breaker.
    pub verdicts: Vec<(&'static str, u64)>,
    /// Attempts that were not admitted, by answer.
    pub rejections: Vec<(&'static str, u64)>,
    pub tokens_reserved: u64,
    pub tokens_charged: u64,
    /// Of those charged: by estimate, as the provider did not say.
    pub tokens_estimated: u64,
    pub tokens_after_disconnect: u64,
    /// What the provider last said against the target's own credential: `refused` or `spend-cap`.
    pub credential: Option<&'static str>,
    /// Of the last attempts to this target from this agent.
    pub ttft_p50_ms: Option<u64>,
    pub ttft_p95_ms: Option<u64>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BreakerView {
    /// `closed`, `half-open`, `open`, or `awaiting-probe`: the cool-down is over and nobody has called yet.
    pub state: &'static str,
    pub epoch: u64,
    pub open_for_ms: u64,
    /// Calls, failures, slow calls and stalls in the window.
    pub calls: u32,
    pub failures: u32,
    pub slow: u32,
    pub stalls: u32,
    pub probes_out: u32,
    /// Whether admission is still growing after a recovery.
    pub ramping: bool,
    /// The trace of the exchange that opened it.
    pub opened_by: Option<String>,
}
