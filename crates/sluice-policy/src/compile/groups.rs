//! A `ReliabilityPolicy`'s groups in core's words.
//!
//! The schema has refused nearly everything that could be wrong; what is left (a union without its member, a
//! resource written before a rule was tightened) is found here, and by decoding what was encoded: a policy
//! that agents would reject never leaves the control plane.

use sluice_api::policy as api;
use sluice_api::route::Lane as ApiLane;
use sluice_core::defaults;
use sluice_core::outcome::Verdict;
use sluice_core::policy::{self as core, Lane};
use sluice_proto::decode::InvalidTarget;

use super::unwritten::{LimitRange, at_least, at_most, lane_share, time_window};

/// What a policy says, group by group; an absent group says nothing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Groups {
    pub mode: core::Mode,
    pub deadlines: Option<core::Deadlines>,
    pub breaker: Option<core::Breaker>,
    pub quota: Option<core::Quota>,
    pub concurrency: Option<core::Concurrency>,
    pub queue: Option<core::Queue>,
    pub retries: Option<core::Retries>,
    pub streaming: Option<core::Streaming>,
    pub state_store: Option<core::StateStore>,
    /// What this version does not carry out yet, in the words of the manifest.
    pub not_enforced: Vec<&'static str>,
}

/// Why a policy cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPolicy {
    #[error("{field} is missing: the type {kind} needs it")]
    MissingMember { field: &'static str, kind: &'static str },
    #[error("{0}")]
    Rules(#[from] InvalidTarget),
}

/// A group of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupName {
    Deadlines,
    Breaker,
    Quota,
    Concurrency,
    Queue,
    Retries,
    Streaming,
    StateStore,
}

impl GroupName {
    pub const ALL: [Self; 8] = [
        Self::Deadlines,
        Self::Breaker,
        Self::Quota,
        Self::Concurrency,
        Self::Queue,
        Self::Retries,
        Self::Streaming,
        Self::StateStore,
    ];

    /// The field in the manifest.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Deadlines => "deadlines",
            Self::Breaker => "breaker",
            Self::Quota => "quota",
            Self::Concurrency => "concurrency",
            Self::Queue => "queue",
            Self::Retries => "retries",
            Self::Streaming => "streaming",
            Self::StateStore => "stateStore",
        }
    }
}

impl Groups {
    /// Reads a policy.
    ///
    /// # Errors
    /// [`InvalidPolicy`]: the first group that cannot be compiled.
    pub fn read(spec: &api::ReliabilityPolicySpec) -> Result<Self, InvalidPolicy> {
        let mut not_enforced = Vec::new();
        let groups = Self {
            mode: match spec.mode {
                api::Mode::Enforce => core::Mode::Enforce,
                api::Mode::Observe => core::Mode::Observe,
            },
            deadlines: spec.deadlines.as_ref().map(deadlines),
            breaker: spec.breaker.as_ref().map(breaker).transpose()?,
            quota: spec.quota.as_ref().map(quota),
            concurrency: spec
                .concurrency
                .as_ref()
                .map(|group| concurrency(group, &mut not_enforced))
                .transpose()?,
            queue: spec.queue.as_ref().map(queue),
            retries: spec.retries.as_ref().map(retries),
            streaming: spec.streaming.as_ref().map(streaming),
            state_store: spec.state_store.as_ref().map(state_store),
            not_enforced: Vec::new(),
        };
        not_enforced.extend(spec.validation.is_some().then_some("validation"));
        not_enforced.extend(spec.task_budget.is_some().then_some("taskBudget"));
        let groups = Self { not_enforced, ..groups };
        // Agents decode exactly this.
        sluice_proto::decode::rules(sluice_proto::encode::rules(&groups.alone()))?;
        Ok(groups)
    }

    /// Whether the policy has a group.
    #[must_use]
    pub fn has(&self, group: GroupName) -> bool {
        match group {
            GroupName::Deadlines => self.deadlines.is_some(),
            GroupName::Breaker => self.breaker.is_some(),
            GroupName::Quota => self.quota.is_some(),
            GroupName::Concurrency => self.concurrency.is_some(),
            GroupName::Queue => self.queue.is_some(),
            GroupName::Retries => self.retries.is_some(),
            GroupName::Streaming => self.streaming.is_some(),
            GroupName::StateStore => self.state_store.is_some(),
        }
    }

    /// The rules of a target that nothing but this policy rules.
    fn alone(&self) -> core::Rules {
        fn ruled<T: Clone + Default>(rules: Option<&T>) -> core::Group<T> {
            core::Group { rules: rules.cloned().unwrap_or_default(), ..core::Group::default() }
        }
        core::Rules {
            deadlines: ruled(self.deadlines.as_ref()),
            breaker: ruled(self.breaker.as_ref()),
            quota: self.quota.clone().map(|rules| core::Group { rules, mode: self.mode, source: None }),
            concurrency: ruled(self.concurrency.as_ref()),
            queue: ruled(self.queue.as_ref()),
            retries: ruled(self.retries.as_ref()),
            streaming: ruled(self.streaming.as_ref()),
            state_store: ruled(self.state_store.as_ref()),
            revision: 0,
        }
    }
}

fn member<'a, T>(
    member: Option<&'a T>,
    field: &'static str,
    kind: &'static str,
) -> Result<&'a T, InvalidPolicy> {
    member.ok_or(InvalidPolicy::MissingMember { field, kind })
}

fn deadlines(group: &api::Deadlines) -> core::Deadlines {
    use defaults::deadlines as d;
    let written =
        [group.first_token, group.total, group.stall, group.max_silence].map(|time| time.map(|time| time.0));
    let [first_token, total, stall, max_silence] = written;
    core::Deadlines {
        first_token: first_token.unwrap_or_else(|| at_most(d::FIRST_TOKEN, [total])),
        total: total.unwrap_or_else(|| at_least(d::TOTAL, [first_token, stall])),
        stall: stall.unwrap_or_else(|| at_most(d::STALL, [total, max_silence])),
        max_silence: max_silence.unwrap_or_else(|| at_least(d::MAX_SILENCE, [stall])),
    }
}

fn breaker(group: &api::Breaker) -> Result<core::Breaker, InvalidPolicy> {
    let window = window(group)?;
    let calls = match window {
        core::Window::Count { calls } => Some(calls),
        core::Window::Time { .. } => None,
    };
    Ok(core::Breaker {
        window,
        minimum_calls: group
            .minimum_calls
            .unwrap_or_else(|| at_most(defaults::breaker::MINIMUM_CALLS, [calls])),
        failure_percent: group.failure_percent,
        slow: group.slow.as_ref().map(slow).unwrap_or_default(),
        stall_percent: group.stall_percent,
        consecutive_failures: group.consecutive_failures,
        cooldown: cooldown(&group.cooldown),
        probes: core::Probes { concurrency: group.probes.concurrency, successes: group.probes.successes },
        ramp: core::Ramp { duration: group.ramp.duration.0, initial_percent: group.ramp.initial_percent },
        classify: group.classify.iter().map(classify_rule).collect(),
    })
}

fn window(group: &api::Breaker) -> Result<core::Window, InvalidPolicy> {
    let Some(window) = &group.window else { return Ok(core::Breaker::default().window) };
    Ok(match window.type_ {
        api::WindowType::Time => {
            let (span, buckets) = time_window(member(window.time.as_ref(), "breaker.window.time", "Time")?);
            core::Window::Time { span, buckets }
        }
        api::WindowType::Count => {
            let count = member(window.count.as_ref(), "breaker.window.count", "Count")?;
            let default = || at_least(defaults::breaker::WINDOW_CALLS, [group.minimum_calls]);
            core::Window::Count { calls: count.calls.unwrap_or_else(default) }
        }
    })
}

fn cooldown(cooldown: &api::Cooldown) -> core::Cooldown {
    use defaults::breaker as d;
    let [base, max] = [cooldown.base, cooldown.max].map(|time| time.map(|time| time.0));
    core::Cooldown {
        base: base.unwrap_or_else(|| at_most(d::COOLDOWN, [max])),
        jitter_percent: cooldown.jitter_percent,
        growth_percent: cooldown.growth_percent,
        max: max.unwrap_or_else(|| at_least(d::COOLDOWN_MAX, [base])),
    }
}

/// Without any threshold the built-in one rules: `slow: {percent: 80}` changes the percentage alone.
fn slow(slow: &api::Slow) -> core::Slow {
    let thresholds = [slow.ttft, slow.per_output_token, slow.duration];
    let none = thresholds.iter().all(Option::is_none) && slow.relative_percent.is_none();
    core::Slow {
        percent: slow.percent,
        ttft: slow.ttft.map(|ttft| ttft.0).or(none.then_some(defaults::breaker::SLOW_TTFT)),
        per_output_token: slow.per_output_token.map(|time| time.0),
        duration: slow.duration.map(|duration| duration.0),
        relative_percent: slow.relative_percent,
        count_as: match slow.count_as {
            api::SlowCounts::Slow => core::SlowCounts::Slow,
            api::SlowCounts::Failure => core::SlowCounts::Failure,
        },
    }
}

fn classify_rule(rule: &api::ClassifyRule) -> core::ClassifyRule {
    core::ClassifyRule {
        statuses: rule.statuses.as_ref().map(|statuses| (statuses.first, statuses.last)),
        error_type: rule.error_type.as_deref().map(Into::into),
        verdict: match rule.verdict {
            api::Verdict::Success => Verdict::Success,
            api::Verdict::Failure => Verdict::Failure,
            api::Verdict::Slow => Verdict::Slow,
            api::Verdict::Stall => Verdict::Stall,
            api::Verdict::Throttled => Verdict::Throttled,
            api::Verdict::Ignored => Verdict::Ignored,
        },
    }
}

fn quota(group: &api::Quota) -> core::Quota {
    let share = |tenant: &api::TenantShare| core::TenantShare {
        name: tenant.name.as_str().into(),
        reserved_percent: tenant.reserved_percent,
        weight: tenant.weight,
    };
    core::Quota {
        tokens_per_minute: group.tokens_per_minute,
        // One minute's tokens. An explicit zero is a zero; without a limit the bucket is not asked. A rate of zero
        // admits nothing, not one bucket full of it.
        burst_tokens: group
            .burst_tokens
            .filter(|_| group.tokens_per_minute != Some(0))
            .or(group.tokens_per_minute)
            .unwrap_or(0),
        requests_per_minute: group.requests_per_minute,
        default_max_output_tokens: group.default_max_output_tokens,
        tenants: group.tenants.iter().map(share).collect(),
        pushback: pushback(&group.pushback),
    }
}

fn pushback(pushback: &api::Pushback) -> core::Pushback {
    use defaults::quota as d;
    let [max, default] = [pushback.max_pause, pushback.default_pause].map(|time| time.map(|time| time.0));
    core::Pushback {
        max_pause: max.unwrap_or_else(|| at_least(d::PAUSE_MAX, [default])),
        default_pause: default.unwrap_or_else(|| at_most(d::PAUSE, [max])),
        shrink_percent: pushback.shrink_percent,
        floor_percent: pushback.floor_percent,
        recovery_percent_per_second: pushback.recovery_percent_per_second,
        recovery_delay: pushback.recovery_delay.0,
    }
}

/// Gradient and Vegas are not carried out yet: until they are, their initial value is a fixed limit.
fn concurrency(
    group: &api::Concurrency,
    not_enforced: &mut Vec<&'static str>,
) -> Result<core::Concurrency, InvalidPolicy> {
    Ok(match group.type_ {
        api::ConcurrencyType::Fixed => core::Concurrency::Fixed {
            limit: member(group.fixed.as_ref(), "concurrency.fixed", "Fixed")?.limit,
        },
        api::ConcurrencyType::Aimd => {
            let aimd = member(group.aimd.as_ref(), "concurrency.aimd", "AIMD")?;
            let LimitRange { initial, min, max } = LimitRange::of(aimd.initial, aimd.min, aimd.max);
            core::Concurrency::Aimd(core::Aimd {
                initial,
                min,
                max,
                ttft_target: aimd.ttft_target.0,
                decrease_percent: aimd.decrease_percent,
                decrease_interval: aimd.decrease_interval.0,
            })
        }
        api::ConcurrencyType::Gradient => {
            not_enforced.push("concurrency.gradient");
            let gradient = member(group.gradient.as_ref(), "concurrency.gradient", "Gradient")?;
            let range = LimitRange::of(gradient.initial, gradient.min, gradient.max);
            core::Concurrency::Fixed { limit: range.initial }
        }
        api::ConcurrencyType::Vegas => {
            not_enforced.push("concurrency.vegas");
            let vegas = member(group.vegas.as_ref(), "concurrency.vegas", "Vegas")?;
            core::Concurrency::Fixed { limit: LimitRange::of(vegas.initial, vegas.min, vegas.max).initial }
        }
    })
}

pub(super) const fn lane(lane: ApiLane) -> Lane {
    match lane {
        ApiLane::Interactive => Lane::Interactive,
        ApiLane::Agent => Lane::Agent,
        ApiLane::Background => Lane::Background,
    }
}

/// A lane that the policy does not list keeps its built-in numbers.
fn queue(group: &api::Queue) -> core::Queue {
    let limit = |api_lane: &ApiLane| {
        let listed = group.lanes.iter().find(|queue| queue.name == *api_lane);
        let queue = listed.cloned().unwrap_or_else(|| api::LaneQueue::built_in(*api_lane));
        core::LaneLimit {
            lane: lane(*api_lane),
            share_percent: lane_share(group, *api_lane),
            max_length: queue.max_length,
            max_wait: queue.max_wait.0,
        }
    };
    let mut lanes: Vec<_> = ApiLane::ALL.iter().map(limit).collect();
    lanes.sort_by_key(|limit| limit.lane);
    core::Queue { lanes }
}

fn retries(group: &api::Retries) -> core::Retries {
    use defaults::retries as d;
    let [base, max] = [group.backoff.base, group.backoff.max].map(|time| time.map(|time| time.0));
    core::Retries {
        max_attempts: group.max_attempts,
        backoff_base: base.unwrap_or_else(|| at_most(d::BACKOFF_BASE, [max])),
        backoff_max: max.unwrap_or_else(|| at_least(d::BACKOFF_MAX, [base])),
        budget_percent: group.budget_percent,
        retry_after_max: group.retry_after_max.0,
        throttling: group.throttling.as_ref().map(|throttling| core::Throttling {
            max_tokens: throttling.max_tokens,
            token_ratio_percent: throttling.token_ratio_percent,
        }),
        adaptive_k_percent: group.adaptive.as_ref().map(|adaptive| adaptive.k_percent),
    }
}

fn streaming(group: &api::Streaming) -> core::Streaming {
    core::Streaming {
        buffer_bytes: group.buffer_bytes,
        slow_client: group.slow_client_timeout.0,
        keep_alive: group.keep_alive.map(|keep_alive| keep_alive.0),
        body_bytes: group.body_bytes,
        propagate_deadline: group.deadline_propagation == api::DeadlinePropagation::Header,
        propagate_trace: group.trace_propagation == api::TracePropagation::TraceContext,
    }
}

fn state_store(group: &api::StateStore) -> core::StateStore {
    core::StateStore {
        on_unreachable: match group.on_unreachable {
            api::OnUnreachable::LocalFallback => core::OnUnreachable::LocalFallback,
            api::OnUnreachable::FailOpen => core::OnUnreachable::FailOpen,
            api::OnUnreachable::FailClosed => core::OnUnreachable::FailClosed,
        },
        assumed_agents: group.assumed_agents,
    }
}
