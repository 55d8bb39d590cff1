#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadCounts { pub sent: u64, pub ok: u64, pub degraded: u64, pub refused: u64, pub failed: u64, pub held_back: u64, pub in_flight: u64, pub ttft_p50_ms: Option<u64>, pub ttft_p95_ms: Option<u64> }
