//! Core's policies → wire. Total: there is no policy that cannot be encoded.

use std::sync::Arc;
use std::time::Duration;

use sluice_core::policy::{
    Breaker, ClassifyRule, Concurrency, Cooldown, Credential, Deadlines, Degraded, Group, LaneChoice,
    ObjectRef, Price, Pushback, Queue, Quota, Retries, RoutePolicy, Rules, SecretKey, Slow, StateStore,
    Streaming, TargetPolicy, TenantSource, Window,
};

use crate::enums::WireEnum as _;
use crate::v1;

/// Encodes one compiled route.
#[must_use]
pub fn route(route: &RoutePolicy) -> v1::RoutePolicy {
    v1::RoutePolicy {
        namespace: text(&route.namespace),
        name: text(&route.name),
        created_ms: route.created_ms,
        sources: route.sources.iter().map(object).collect(),
        models: route.models.iter().map(ToString::to_string).collect(),
        format: route.format.number(),
        tenant: Some(tenant(&route.tenant)),
        lanes: Some(lanes(&route.lanes)),
        degraded: Some(degraded(&route.degraded)),
        other_paths: route.other_paths.number(),
        target_header: route.target_header.number(),
        targets: route.targets.iter().map(target).collect(),
    }
}

/// Encodes a reference to a resource.
#[must_use]
pub fn object(object: &ObjectRef) -> v1::ObjectRef {
    v1::ObjectRef {
        kind: object.kind.number(),
        namespace: text(&object.namespace),
        name: text(&object.name),
        generation: object.generation,
    }
}

/// Encodes the name of a Secret's key.
#[must_use]
pub fn secret_key(key: &SecretKey) -> v1::SecretKey {
    v1::SecretKey { name: text(&key.name), key: text(&key.key) }
}

fn text(text: &Arc<str>) -> String {
    text.as_ref().to_owned()
}

/// Protocol durations reach further than core's bounds; a longer one saturates and is refused by the reader.
pub(crate) fn duration(duration: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: duration.subsec_nanos().cast_signed(),
    }
}

fn tenant(tenant: &TenantSource) -> v1::TenantSource {
    use v1::tenant_source::{Header, Source, Workload};
    let source = match tenant {
        TenantSource::Workload => Source::Workload(Workload {}),
        TenantSource::Header { header, default } => {
            Source::Header(Header { name: text(header), default: text(default) })
        }
    };
    v1::TenantSource { source: Some(source) }
}

fn lanes(lanes: &LaneChoice) -> v1::LaneChoice {
    let rule = |rule: &sluice_core::policy::LaneRule| v1::LaneRule {
        header: text(&rule.header),
        value: text(&rule.value),
        lane: rule.lane.number(),
    };
    v1::LaneChoice { default: lanes.default.number(), rules: lanes.rules.iter().map(rule).collect() }
}

fn degraded(degraded: &Degraded) -> v1::Degraded {
    use v1::degraded::{Answer, Backend, Reject, Static};
    let answer = match degraded {
        Degraded::Reject => Answer::Reject(Reject {}),
        Degraded::Static { text: answer } => Answer::Static(Static { text: text(answer) }),
        Degraded::Backend { endpoint } => Answer::Backend(Backend { endpoint: text(endpoint) }),
    };
    v1::Degraded { answer: Some(answer) }
}

fn target(target: &TargetPolicy) -> v1::TargetPolicy {
    v1::TargetPolicy {
        name: text(&target.name),
        id: target.id.as_str().to_owned(),
        provider: target.provider.number(),
        endpoint: text(&target.endpoint),
        model: target.model.as_ref().map(text),
        region: text(&target.region),
        credential: Some(credential(&target.credential)),
        priority: target.priority,
        weight: target.weight,
        price: target.price.map(|Price { input_per_million_micros, output_per_million_micros }| v1::Price {
            input_per_million_micros,
            output_per_million_micros,
        }),
        rules: Some(rules(&target.rules)),
    }
}

fn credential(credential: &Credential) -> v1::Credential {
    use v1::credential::{NoCredential, Passthrough, Source};
    let source = match credential {
        Credential::Secret(key) => Source::Secret(secret_key(key)),
        Credential::Passthrough => Source::Passthrough(Passthrough {}),
        Credential::None => Source::None(NoCredential {}),
    };
    v1::Credential { source: Some(source) }
}

/// Encodes the rules of one target.
#[must_use]
pub fn rules(rules: &Rules) -> v1::Rules {
    v1::Rules {
        deadlines: Some(deadlines(&rules.deadlines)),
        breaker: Some(breaker(&rules.breaker)),
        quota: rules.quota.as_ref().map(quota),
        concurrency: Some(concurrency(&rules.concurrency)),
        queue: Some(queue(&rules.queue)),
        retries: Some(retries(&rules.retries)),
        streaming: Some(streaming(&rules.streaming)),
        state_store: Some(state_store(&rules.state_store)),
        revision: rules.revision,
    }
}

#[allow(clippy::unnecessary_wraps, reason = "every message field of the generated types is an Option")]
fn origin<T>(group: &Group<T>) -> Option<v1::GroupOrigin> {
    Some(v1::GroupOrigin { mode: group.mode.number(), source: group.source.as_ref().map(object) })
}

fn deadlines(group: &Group<Deadlines>) -> v1::DeadlinesGroup {
    let Deadlines { first_token, total, stall, max_silence } = group.rules;
    v1::DeadlinesGroup {
        origin: origin(group),
        first_token: Some(duration(first_token)),
        total: Some(duration(total)),
        stall: Some(duration(stall)),
        max_silence: Some(duration(max_silence)),
    }
}

fn breaker(group: &Group<Breaker>) -> v1::BreakerGroup {
    let Breaker {
        window,
        minimum_calls,
        failure_percent,
        slow,
        stall_percent,
        consecutive_failures,
        cooldown: Cooldown { base, jitter_percent, growth_percent, max },
        probes,
        ramp,
        classify,
    } = &group.rules;
    v1::BreakerGroup {
        origin: origin(group),
        window: Some(self::window(window)),
        minimum_calls: *minimum_calls,
        failure_percent: *failure_percent,
        slow: Some(self::slow(slow)),
        stall_percent: *stall_percent,
        consecutive_failures: *consecutive_failures,
        cooldown: Some(v1::Cooldown {
            base: Some(duration(*base)),
            jitter_percent: *jitter_percent,
            growth_percent: *growth_percent,
            max: Some(duration(*max)),
        }),
        probes: Some(v1::Probes { concurrency: probes.concurrency, successes: probes.successes }),
        ramp: Some(v1::Ramp {
            duration: Some(duration(ramp.duration)),
            initial_percent: ramp.initial_percent,
        }),
        classify: classify.iter().map(classify_rule).collect(),
    }
}

fn window(window: &Window) -> v1::Window {
    use v1::window::{Count, Time, Window as Kind};
    let window = match *window {
        Window::Time { span, buckets } => Kind::Time(Time { span: Some(duration(span)), buckets }),
        Window::Count { calls } => Kind::Count(Count { calls }),
    };
    v1::Window { window: Some(window) }
}

fn slow(slow: &Slow) -> v1::Slow {
    v1::Slow {
        percent: slow.percent,
        ttft: slow.ttft.map(duration),
        per_output_token: slow.per_output_token.map(duration),
        duration: slow.duration.map(duration),
        relative_percent: slow.relative_percent,
        count_as: slow.count_as.number(),
    }
}

fn classify_rule(rule: &ClassifyRule) -> v1::ClassifyRule {
    v1::ClassifyRule {
        statuses: rule
            .statuses
            .map(|(first, last)| v1::StatusRange { first: first.into(), last: last.into() }),
        error_type: rule.error_type.as_ref().map(text),
        verdict: rule.verdict.number(),
    }
}

fn quota(group: &Group<Quota>) -> v1::QuotaGroup {
    let Quota { tokens_per_minute, burst_tokens, requests_per_minute, default_max_output_tokens, .. } =
        group.rules;
    let tenant = |tenant: &sluice_core::policy::TenantShare| v1::TenantShare {
        name: text(&tenant.name),
        reserved_percent: tenant.reserved_percent,
        weight: tenant.weight,
    };
    v1::QuotaGroup {
        origin: origin(group),
        tokens_per_minute,
        burst_tokens,
        requests_per_minute,
        default_max_output_tokens,
        tenants: group.rules.tenants.iter().map(tenant).collect(),
        pushback: Some(pushback(&group.rules.pushback)),
    }
}

fn pushback(pushback: &Pushback) -> v1::Pushback {
    v1::Pushback {
        max_pause: Some(duration(pushback.max_pause)),
        default_pause: Some(duration(pushback.default_pause)),
        shrink_percent: pushback.shrink_percent,
        floor_percent: pushback.floor_percent,
        recovery_percent_per_second: pushback.recovery_percent_per_second,
        recovery_delay: Some(duration(pushback.recovery_delay)),
    }
}

fn concurrency(group: &Group<Concurrency>) -> v1::ConcurrencyGroup {
    use v1::concurrency_group::{Aimd, Fixed, Limit};
    let limit = match &group.rules {
        Concurrency::Fixed { limit } => Limit::Fixed(Fixed { limit: *limit }),
        Concurrency::Aimd(aimd) => Limit::Aimd(Aimd {
            initial: aimd.initial,
            min: aimd.min,
            max: aimd.max,
            ttft_target: Some(duration(aimd.ttft_target)),
            decrease_percent: aimd.decrease_percent,
            decrease_interval: Some(duration(aimd.decrease_interval)),
        }),
    };
    v1::ConcurrencyGroup { origin: origin(group), limit: Some(limit) }
}

fn queue(group: &Group<Queue>) -> v1::QueueGroup {
    let lane = |lane: &sluice_core::policy::LaneLimit| v1::LaneLimit {
        lane: lane.lane.number(),
        share_percent: lane.share_percent,
        max_length: lane.max_length,
        max_wait: Some(duration(lane.max_wait)),
    };
    v1::QueueGroup { origin: origin(group), lanes: group.rules.lanes.iter().map(lane).collect() }
}

fn retries(group: &Group<Retries>) -> v1::RetriesGroup {
    let Retries {
        max_attempts,
        backoff_base,
        backoff_max,
        budget_percent,
        retry_after_max,
        throttling,
        adaptive_k_percent,
    } = group.rules;
    v1::RetriesGroup {
        origin: origin(group),
        max_attempts,
        backoff_base: Some(duration(backoff_base)),
        backoff_max: Some(duration(backoff_max)),
        budget_percent,
        retry_after_max: Some(duration(retry_after_max)),
        throttling: throttling.map(|throttling| v1::Throttling {
            max_tokens: throttling.max_tokens,
            token_ratio_percent: throttling.token_ratio_percent,
        }),
        adaptive_k_percent,
    }
}

fn streaming(group: &Group<Streaming>) -> v1::StreamingGroup {
    let Streaming { buffer_bytes, slow_client, keep_alive, body_bytes, propagate_deadline, propagate_trace } =
        group.rules;
    v1::StreamingGroup {
        origin: origin(group),
        buffer_bytes,
        slow_client: Some(duration(slow_client)),
        keep_alive: keep_alive.map(duration),
        body_bytes,
        propagate_deadline,
        propagate_trace,
    }
}

fn state_store(group: &Group<StateStore>) -> v1::StateStoreGroup {
    let StateStore { on_unreachable, assumed_agents } = group.rules;
    v1::StateStoreGroup { origin: origin(group), on_unreachable: on_unreachable.number(), assumed_agents }
}
