//! A target's policy while the shared state is away: this agent's share of the quota.
//!
//! share = limit × 0.8 ÷ agents. The safety factor pays for agents that were not counted yet and for what the
//! shared bucket had already given away. A share is never less than one token and one request, or a small
//! limit over many agents would mean a closed target; a limit of zero stays zero.

use sluice_core::defaults::state_store::SAFETY_PERCENT;
use sluice_core::policy::{OnUnreachable, TargetPolicy};

/// The policy that the agent's own home goes by. `revision` must be higher than that of the last one for
/// this target: the newest share rules.
#[must_use]
pub(crate) fn local_policy(target: &TargetPolicy, agents: u32, revision: u64) -> TargetPolicy {
    let mut local = target.clone();
    local.rules.revision = revision;
    match target.rules.state_store.rules.on_unreachable {
        OnUnreachable::FailOpen => local.rules.quota = None,
        OnUnreachable::LocalFallback | OnUnreachable::FailClosed => {
            if let Some(quota) = &mut local.rules.quota {
                let rules = &mut quota.rules;
                rules.tokens_per_minute = rules.tokens_per_minute.map(|limit| share(limit, agents));
                rules.burst_tokens = share(rules.burst_tokens, agents);
                rules.requests_per_minute = rules.requests_per_minute.map(|limit| share(limit, agents));
            }
        }
    }
    local
}

fn share(limit: u64, agents: u32) -> u64 {
    let part = u128::from(limit) * u128::from(SAFETY_PERCENT) / 100 / u128::from(agents.max(1));
    u64::try_from(part).unwrap_or(u64::MAX).max(u64::from(limit > 0))
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn shares_add_up_to_less_than_the_limit_and_none_is_nothing() {
        assert_eq!(share(8_000_000, 1), 6_400_000);
        assert_eq!(share(8_000_000, 100), 64_000);
        assert_eq!(share(3, 100), 1);
        assert_eq!(share(0, 100), 0);
        assert_eq!(share(10, 0), 8);
    }
}
