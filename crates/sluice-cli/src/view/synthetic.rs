//! Made-up agents, for the view's tests and for `examples/view.rs`.

use sluice_agent::state::{
    AgentState, BreakerView, ControlPlaneState, ExchangeCounts, RouteState, StoreState, TargetState,
};

/// An agent of one route, `chat`.
pub(super) fn agent(name: &str, targets: Vec<TargetState>) -> AgentState {
    AgentState {
        agent: name.into(),
        namespace: "default".into(),
        policy_version: "3f2a91c07d5e".into(),
        control_plane: ControlPlaneState::default(),
        store: StoreState {
            home: "embedded",
            reachable: true,
            reason: None,
            fallback_admissions: 0,
            settles_waiting: 0,
            settles_dropped: 0,
        },
        exchanges: ExchangeCounts::default(),
        routes: vec![RouteState {
            namespace: "default".into(),
            name: "chat".into(),
            models: vec!["gpt-4o".into()],
            targets,
        }],
        rejected: Vec::new(),
    }
}

/// A target that nobody has asked yet.
pub(super) fn target(name: &str) -> TargetState {
    TargetState {
        name: name.into(),
        id: format!("id-of-{name}"),
        breaker: BreakerView {
            state: "closed",
            epoch: 1,
            open_for_ms: 0,
            calls: 0,
            failures: 0,
            slow: 0,
            stalls: 0,
            probes_out: 0,
            ramping: false,
            opened_by: None,
        },
        in_flight: 0,
        limit: 32,
        credential: None,
        tokens_left: Some(100_000),
        burst_tokens: Some(100_000),
        rate_percent: 100,
        paused_for_ms: 0,
        attempts: 0,
        retries: 0,
        failovers: 0,
        verdicts: Vec::new(),
        rejections: Vec::new(),
        tokens_reserved: 0,
        tokens_charged: 0,
        tokens_estimated: 0,
        tokens_after_disconnect: 0,
        ttft_p50_ms: None,
        ttft_p95_ms: None,
    }
}
