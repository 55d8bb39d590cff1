//! The groups that rule a target.

use sluice_core::outcome::Verdict;
use sluice_core::policy::{
    Aimd, Breaker, ClassifyRule, Concurrency, Cooldown, Deadlines, Group, Lane, LaneLimit, Mode,
    OnUnreachable, Probes, Pushback, Queue, Quota, Ramp, Retries, Rules, Slow, SlowCounts, StateStore,
    Streaming, TenantShare, Throttling, Window,
};

use super::route::object;
use super::{Field, InvalidField, InvalidTarget, name, present, text};
use crate::bounds;
use crate::enums::WireEnum as _;
use crate::v1;

pub(super) fn rules(rules: v1::Rules) -> Result<Rules, InvalidTarget> {
    Ok(Rules {
        deadlines: group("deadlines", rules.deadlines, deadlines)?,
        breaker: group("breaker", rules.breaker, breaker)?,
        quota: rules.quota.map(|quota_group| group("quota", Some(quota_group), quota)).transpose()?,
        concurrency: group("concurrency", rules.concurrency, concurrency)?,
        queue: group("queue", rules.queue, queue)?,
        retries: group("retries", rules.retries, retries)?,
        streaming: group("streaming", rules.streaming, streaming)?,
        state_store: group("stateStore", rules.state_store, state_store)?,
        revision: Field("revision").within_u64(rules.revision, 0..=bounds::EXACT_INTEGER)?,
    })
}

/// A group must be there (where it is optional, the caller has looked); whatever is wrong in it says so by its name.
fn group<W, T>(
    group: &'static str,
    wire: Option<W>,
    read: fn(W) -> Result<Group<T>, InvalidField>,
) -> Result<Group<T>, InvalidTarget> {
    present(wire, group).and_then(read).map_err(|reason| match reason {
        InvalidField::Missing { field } if field == group => InvalidTarget::Field(reason),
        reason => InvalidTarget::Group { group, reason },
    })
}

fn ruled<T>(origin: Option<v1::GroupOrigin>, rules: T) -> Result<Group<T>, InvalidField> {
    let origin = present(origin, "origin")?;
    Ok(Group {
        rules,
        mode: Mode::read(origin.mode, "mode")?,
        source: origin.source.map(object).transpose()?,
    })
}

fn deadlines(wire: v1::DeadlinesGroup) -> Result<Group<Deadlines>, InvalidField> {
    let deadlines = Deadlines {
        first_token: Field("firstToken").duration(wire.first_token)?,
        total: Field("total").duration(wire.total)?,
        stall: Field("stall").duration(wire.stall)?,
        max_silence: Field("maxSilence").duration(wire.max_silence)?,
    };
    ruled(wire.origin, deadlines)
}

fn breaker(wire: v1::BreakerGroup) -> Result<Group<Breaker>, InvalidField> {
    let classify = Field("classify").entries(wire.classify, 0..=bounds::CLASSIFY_RULES)?;
    let breaker = Breaker {
        window: window(present(wire.window, "window")?)?,
        minimum_calls: Field("minimumCalls").count(wire.minimum_calls)?,
        failure_percent: Field("failurePercent").percent(wire.failure_percent)?,
        slow: slow(present(wire.slow, "slow")?)?,
        stall_percent: Field("stallPercent").percent(wire.stall_percent)?,
        consecutive_failures: Field("consecutiveFailures").count(wire.consecutive_failures)?,
        cooldown: cooldown(present(wire.cooldown, "cooldown")?)?,
        probes: probes(present(wire.probes, "probes")?)?,
        ramp: ramp(present(wire.ramp, "ramp")?)?,
        classify: classify.into_iter().map(classify_rule).collect::<Result<_, _>>()?,
    };
    ruled(wire.origin, breaker)
}

fn window(wire: v1::Window) -> Result<Window, InvalidField> {
    use v1::window::Window as Kind;
    match present(wire.window, "window.type")? {
        Kind::Time(time) => {
            let span = Field("window.time.span").duration(time.span)?;
            let buckets = Field("window.time.buckets").within(time.buckets, 1..=bounds::BUCKETS)?;
            // A bucket shorter than the scripts' millisecond would be no bucket.
            if span.as_millis() < u128::from(buckets) {
                return Err(InvalidField::Contradiction {
                    field: "window.time.span",
                    other: "window.time.buckets",
                    fix: "use at least one millisecond per bucket",
                });
            }
            Ok(Window::Time { span, buckets })
        }
        Kind::Count(count) => Ok(Window::Count {
            calls: Field("window.count.calls").within(count.calls, 1..=bounds::WINDOW_CALLS)?,
        }),
    }
}

fn slow(wire: v1::Slow) -> Result<Slow, InvalidField> {
    let relative = |percent| Field("slow.relativePercent").within(percent, 100..=bounds::MULTIPLE_PERCENT);
    Ok(Slow {
        percent: Field("slow.percent").percent(wire.percent)?,
        ttft: Field("slow.ttft").optional_duration(wire.ttft)?,
        per_output_token: Field("slow.perOutputToken").optional_duration(wire.per_output_token)?,
        duration: Field("slow.duration").optional_duration(wire.duration)?,
        relative_percent: wire.relative_percent.map(relative).transpose()?,
        count_as: SlowCounts::read(wire.count_as, "slow.countAs")?,
    })
}

fn cooldown(wire: v1::Cooldown) -> Result<Cooldown, InvalidField> {
    let cooldown = Cooldown {
        base: Field("cooldown.base").duration(wire.base)?,
        jitter_percent: Field("cooldown.jitterPercent").percent(wire.jitter_percent)?,
        growth_percent: Field("cooldown.growthPercent")
            .within(wire.growth_percent, 100..=bounds::MULTIPLE_PERCENT)?,
        max: Field("cooldown.max").duration(wire.max)?,
    };
    if cooldown.base > cooldown.max {
        return Err(InvalidField::Contradiction {
            field: "cooldown.base",
            other: "cooldown.max",
            fix: "use a base of at most the maximum",
        });
    }
    Ok(cooldown)
}

fn probes(wire: v1::Probes) -> Result<Probes, InvalidField> {
    Ok(Probes {
        concurrency: Field("probes.concurrency").within(wire.concurrency, 1..=bounds::PROBES)?,
        successes: Field("probes.successes").within(wire.successes, 1..=bounds::PROBE_SUCCESSES)?,
    })
}

fn ramp(wire: v1::Ramp) -> Result<Ramp, InvalidField> {
    Ok(Ramp {
        duration: Field("ramp.duration").duration(wire.duration)?,
        initial_percent: Field("ramp.initialPercent").percent(wire.initial_percent)?,
    })
}

fn classify_rule(wire: v1::ClassifyRule) -> Result<ClassifyRule, InvalidField> {
    let statuses = wire.statuses.map(statuses).transpose()?;
    Ok(ClassifyRule {
        statuses,
        error_type: wire
            .error_type
            .map(|error_type| text(error_type, "classify.errorType", bounds::NAME_BYTES))
            .transpose()?,
        verdict: Verdict::read(wire.verdict, "classify.verdict")?,
    })
}

fn statuses(wire: v1::StatusRange) -> Result<(u16, u16), InvalidField> {
    let status = |status| {
        Field("classify.statuses")
            .within(status, 100..=599)
            .map(|status| u16::try_from(status).unwrap_or(599))
    };
    let (first, last) = (status(wire.first)?, status(wire.last)?);
    if first > last {
        return Err(InvalidField::Contradiction {
            field: "classify.statuses.first",
            other: "classify.statuses.last",
            fix: "put the smaller status first",
        });
    }
    Ok((first, last))
}

fn quota(wire: v1::QuotaGroup) -> Result<Group<Quota>, InvalidField> {
    let bound = 0..=bounds::TOKENS;
    let tenants: Vec<TenantShare> = Field("tenants")
        .entries(wire.tenants, 0..=bounds::TENANTS)?
        .into_iter()
        .map(tenant_share)
        .collect::<Result<_, _>>()?;
    Field("tenants.name").distinct(tenants.iter().map(|tenant| tenant.name.as_ref()))?;
    if tenants.iter().map(|tenant| tenant.reserved_percent).sum::<u32>() > 100 {
        return Err(InvalidField::Contradiction {
            field: "tenants.reservedPercent",
            other: "the other tenants' reservations",
            fix: "let them add up to at most 100",
        });
    }
    let limit = |field: &'static str, value: Option<u64>| {
        value.map(|v| Field(field).within_u64(v, bound.clone())).transpose()
    };
    let quota = Quota {
        tokens_per_minute: limit("tokensPerMinute", wire.tokens_per_minute)?,
        burst_tokens: Field("burstTokens").within_u64(wire.burst_tokens, bound.clone())?,
        requests_per_minute: limit("requestsPerMinute", wire.requests_per_minute)?,
        default_max_output_tokens: Field("defaultMaxOutputTokens")
            .within_u64(wire.default_max_output_tokens, bound.clone())?,
        tenants,
        pushback: pushback(present(wire.pushback, "pushback")?)?,
    };
    ruled(wire.origin, quota)
}

fn tenant_share(wire: v1::TenantShare) -> Result<TenantShare, InvalidField> {
    Ok(TenantShare {
        name: name(wire.name, "tenants.name")?,
        reserved_percent: Field("tenants.reservedPercent").percent(wire.reserved_percent)?,
        weight: Field("tenants.weight").count(wire.weight)?,
    })
}

fn pushback(wire: v1::Pushback) -> Result<Pushback, InvalidField> {
    Ok(Pushback {
        max_pause: Field("pushback.maxPause").duration(wire.max_pause)?,
        default_pause: Field("pushback.defaultPause").duration(wire.default_pause)?,
        // Zero would end the refill for good.
        shrink_percent: Field("pushback.shrinkPercent").within(wire.shrink_percent, 1..=100)?,
        floor_percent: Field("pushback.floorPercent").within(wire.floor_percent, 1..=100)?,
        recovery_percent_per_second: Field("pushback.recoveryPercentPerSecond")
            .percent(wire.recovery_percent_per_second)?,
        recovery_delay: Field("pushback.recoveryDelay").duration(wire.recovery_delay)?,
    })
}

fn concurrency(wire: v1::ConcurrencyGroup) -> Result<Group<Concurrency>, InvalidField> {
    use v1::concurrency_group::Limit;
    let concurrency = match present(wire.limit, "type")? {
        Limit::Fixed(fixed) => Concurrency::Fixed { limit: Field("fixed.limit").count(fixed.limit)? },
        Limit::Aimd(wire) => Concurrency::Aimd(aimd(wire)?),
    };
    ruled(wire.origin, concurrency)
}

fn aimd(wire: v1::concurrency_group::Aimd) -> Result<Aimd, InvalidField> {
    let aimd = Aimd {
        initial: Field("aimd.initial").within(wire.initial, 1..=bounds::COUNT)?,
        min: Field("aimd.min").within(wire.min, 1..=bounds::COUNT)?,
        max: Field("aimd.max").within(wire.max, 1..=bounds::COUNT)?,
        ttft_target: Field("aimd.ttftTarget").duration(wire.ttft_target)?,
        decrease_percent: Field("aimd.decreasePercent").within(wire.decrease_percent, 1..=100)?,
        decrease_interval: Field("aimd.decreaseInterval").duration(wire.decrease_interval)?,
    };
    if aimd.min > aimd.initial || aimd.initial > aimd.max {
        return Err(InvalidField::Contradiction {
            field: "aimd.initial",
            other: "aimd.min and aimd.max",
            fix: "use min <= initial <= max",
        });
    }
    Ok(aimd)
}

fn queue(wire: v1::QueueGroup) -> Result<Group<Queue>, InvalidField> {
    let lanes: Vec<LaneLimit> = wire.lanes.into_iter().take(4).map(lane).collect::<Result<_, _>>()?;
    if !lanes.iter().map(|limit| limit.lane).eq(Lane::ALL) {
        return Err(InvalidField::Contradiction {
            field: "lanes",
            other: "the three lanes",
            fix: "give interactive, agent and background once each, in this order",
        });
    }
    ruled(wire.origin, Queue { lanes })
}

fn lane(wire: v1::LaneLimit) -> Result<LaneLimit, InvalidField> {
    Ok(LaneLimit {
        lane: Lane::read(wire.lane, "lanes.name")?,
        share_percent: Field("lanes.sharePercent").percent(wire.share_percent)?,
        max_length: Field("lanes.maxLength").count(wire.max_length)?,
        max_wait: Field("lanes.maxWait").duration(wire.max_wait)?,
    })
}

fn retries(wire: v1::RetriesGroup) -> Result<Group<Retries>, InvalidField> {
    let adaptive = |percent| Field("adaptive.k").within(percent, 100..=bounds::MULTIPLE_PERCENT);
    let retries = Retries {
        max_attempts: Field("maxAttempts").within(wire.max_attempts, 1..=bounds::ATTEMPTS)?,
        backoff_base: Field("backoff.base").duration(wire.backoff_base)?,
        backoff_max: Field("backoff.max").duration(wire.backoff_max)?,
        budget_percent: Field("budgetPercent").percent(wire.budget_percent)?,
        retry_after_max: Field("retryAfterMax").duration(wire.retry_after_max)?,
        throttling: wire.throttling.map(throttling).transpose()?,
        adaptive_k_percent: wire.adaptive_k_percent.map(adaptive).transpose()?,
    };
    ruled(wire.origin, retries)
}

fn throttling(wire: v1::Throttling) -> Result<Throttling, InvalidField> {
    Ok(Throttling {
        max_tokens: Field("throttling.maxTokens").within(wire.max_tokens, 1..=1_000)?,
        token_ratio_percent: Field("throttling.tokenRatioPercent")
            .within(wire.token_ratio_percent, 1..=1_000)?,
    })
}

fn streaming(wire: v1::StreamingGroup) -> Result<Group<Streaming>, InvalidField> {
    let streaming = Streaming {
        buffer_bytes: Field("bufferBytes").within_u64(wire.buffer_bytes, 0..=bounds::BUFFER_BYTES)?,
        slow_client: Field("slowClientTimeout").duration(wire.slow_client)?,
        keep_alive: Field("keepAlive").optional_duration(wire.keep_alive)?,
        body_bytes: Field("bodyBytes").within_u64(wire.body_bytes, 0..=bounds::BODY_BYTES)?,
        propagate_deadline: wire.propagate_deadline,
        propagate_trace: wire.propagate_trace,
    };
    ruled(wire.origin, streaming)
}

fn state_store(wire: v1::StateStoreGroup) -> Result<Group<StateStore>, InvalidField> {
    let state_store = StateStore {
        on_unreachable: OnUnreachable::read(wire.on_unreachable, "onUnreachable")?,
        // It divides the quota.
        assumed_agents: Field("assumedAgents").within(wire.assumed_agents, 1..=bounds::COUNT)?,
    };
    ruled(wire.origin, state_store)
}
