//! Arbitrary policies within the bounds of the wire. Boxed at every step: the nested types would overflow a
//! test thread's stack.

use std::sync::Arc;
use std::time::Duration;

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use sluice_core::outcome::Verdict;
use sluice_core::policy::*;
use sluice_core::target_id::TargetId;
use sluice_proto::bounds;

pub fn route() -> BoxedStrategy<RoutePolicy> {
    prop_oneof![Just(WireFormat::OpenAi), Just(WireFormat::Anthropic)].prop_flat_map(route_of).boxed()
}

fn route_of(format: WireFormat) -> BoxedStrategy<RoutePolicy> {
    let names = (name(), name(), 0..=bounds::EXACT_INTEGER, 0..1_000_i64);
    let clients = (models(), tenant(), lanes(), degraded(), other_paths(), target_header());
    let policies = vec(object(ObjectKind::ReliabilityPolicy), 0..3);
    let targets = btree_map("[a-z]{1,8}", target(format), 1..4);
    (names, clients, policies, targets)
        .prop_map(move |(names, clients, policies, targets)| {
            let (namespace, name, created_ms, generation) = names;
            let (models, tenant, lanes, degraded, other_paths, target_header) = clients;
            let itself = ObjectRef {
                kind: ObjectKind::ModelRoute,
                namespace: Arc::clone(&namespace),
                name: Arc::clone(&name),
                generation,
            };
            RoutePolicy {
                namespace,
                name,
                created_ms,
                sources: std::iter::once(itself).chain(policies).collect(),
                models,
                format,
                tenant,
                lanes,
                degraded,
                other_paths,
                target_header,
                targets: targets
                    .into_iter()
                    .map(|(name, target)| TargetPolicy { name: name.into(), ..target })
                    .collect(),
            }
        })
        .boxed()
}

pub fn name() -> BoxedStrategy<Arc<str>> {
    "[a-z][a-z0-9-]{0,12}".prop_map(Arc::from).boxed()
}

fn any_text() -> BoxedStrategy<Arc<str>> {
    "\\PC{0,40}".prop_map(Arc::from).boxed()
}

fn header() -> BoxedStrategy<Arc<str>> {
    "[A-Za-z][A-Za-z0-9-]{0,20}".prop_map(Arc::from).boxed()
}

fn duration() -> BoxedStrategy<Duration> {
    prop_oneof![
        4 => (0..1_000_000_u64).prop_map(Duration::from_millis),
        1 => (0..bounds::DURATION.as_secs(), 0..1_000_000_000_u32).prop_map(|(s, ns)| Duration::new(s, ns)),
        1 => select(&[Duration::ZERO, bounds::DURATION][..]),
    ]
    .boxed()
}

fn percent() -> BoxedStrategy<u32> {
    (0..=100_u32).boxed()
}

fn count() -> BoxedStrategy<u32> {
    prop_oneof![Just(0), Just(bounds::COUNT), 0..=bounds::COUNT].boxed()
}

fn tokens() -> BoxedStrategy<u64> {
    prop_oneof![Just(0), Just(bounds::TOKENS), 0..=bounds::TOKENS].boxed()
}

fn object(kind: ObjectKind) -> BoxedStrategy<ObjectRef> {
    (name(), name(), 0..1_000_i64)
        .prop_map(move |(namespace, name, generation)| ObjectRef { kind, namespace, name, generation })
        .boxed()
}

fn models() -> BoxedStrategy<Vec<ModelPattern>> {
    proptest::collection::btree_set("[a-z0-9.-]{1,12}[*]?|[*]", 1..5)
        .prop_map(|models| models.iter().map(|model| ModelPattern::parse(model)).collect())
        .boxed()
}

fn tenant() -> BoxedStrategy<TenantSource> {
    prop_oneof![
        Just(TenantSource::Workload),
        (header(), any_text()).prop_map(|(header, default)| TenantSource::Header { header, default }),
    ]
    .boxed()
}

fn lane() -> BoxedStrategy<Lane> {
    select(&Lane::ALL[..]).boxed()
}

fn lanes() -> BoxedStrategy<LaneChoice> {
    let rule =
        (header(), any_text(), lane()).prop_map(|(header, value, lane)| LaneRule { header, value, lane });
    (lane(), vec(rule, 0..3)).prop_map(|(default, rules)| LaneChoice { default, rules }).boxed()
}

fn degraded() -> BoxedStrategy<Degraded> {
    prop_oneof![
        Just(Degraded::Reject),
        any_text().prop_map(|text| Degraded::Static { text }),
        endpoint().prop_map(|endpoint| Degraded::Backend { endpoint }),
    ]
    .boxed()
}

fn other_paths() -> BoxedStrategy<OtherPaths> {
    select(&[OtherPaths::Refuse, OtherPaths::PassThrough][..]).boxed()
}

fn target_header() -> BoxedStrategy<TargetHeader> {
    select(&[TargetHeader::Ignore, TargetHeader::Allow][..]).boxed()
}

fn endpoint() -> BoxedStrategy<Arc<str>> {
    "https?://[a-z]{1,10}[.]example(:[0-9]{2,4})?(/v1)?".prop_map(Arc::from).boxed()
}

fn target(format: WireFormat) -> BoxedStrategy<TargetPolicy> {
    let provider = match format {
        WireFormat::Anthropic => select(&[Provider::Anthropic][..]),
        WireFormat::OpenAi => {
            select(&[Provider::OpenAi, Provider::AzureOpenAi, Provider::OpenAiCompatible][..])
        }
    };
    let price = (0..=bounds::PRICE_MICROS, 0..=bounds::PRICE_MICROS).prop_map(|(input, output)| Price {
        input_per_million_micros: input,
        output_per_million_micros: output,
    });
    let place = (provider, endpoint(), option::of(name()), any_text(), credential());
    (place, (count(), count()), option::of(price), rules())
        .prop_map(|((provider, endpoint, model, region, credential), (priority, weight), price, rules)| {
            TargetPolicy {
                name: "".into(),
                id: TargetId::of("ns", "dependency", &endpoint, model.as_deref().unwrap_or("")),
                provider,
                endpoint,
                model,
                region,
                credential,
                priority,
                weight,
                price,
                rules,
            }
        })
        .boxed()
}

fn credential() -> BoxedStrategy<Credential> {
    prop_oneof![
        (name(), name()).prop_map(|(name, key)| Credential::Secret(SecretKey { name, key })),
        Just(Credential::Passthrough),
        Just(Credential::None),
    ]
    .boxed()
}

fn group<T: std::fmt::Debug + 'static>(rules: BoxedStrategy<T>) -> BoxedStrategy<Group<T>> {
    let mode = select(&[Mode::Enforce, Mode::Observe][..]);
    (rules, mode, option::of(object(ObjectKind::ReliabilityPolicy)))
        .prop_map(|(rules, mode, source)| Group { rules, mode, source })
        .boxed()
}

fn rules() -> BoxedStrategy<Rules> {
    let first = (group(deadlines()), group(breaker()), option::of(group(quota())), group(concurrency()));
    let second = (group(queue()), group(retries()), group(streaming()), group(state_store()));
    (first, second, 0..=bounds::EXACT_INTEGER)
        .prop_map(|(first, second, revision)| {
            let (deadlines, breaker, quota, concurrency) = first;
            let (queue, retries, streaming, state_store) = second;
            Rules { deadlines, breaker, quota, concurrency, queue, retries, streaming, state_store, revision }
        })
        .boxed()
}

fn deadlines() -> BoxedStrategy<Deadlines> {
    [duration(), duration(), duration(), duration()]
        .prop_map(|[first_token, total, stall, max_silence]| Deadlines {
            first_token,
            total,
            stall,
            max_silence,
        })
        .boxed()
}

fn window() -> BoxedStrategy<Window> {
    prop_oneof![
        (16..10_000_000_u64, 1..=bounds::BUCKETS)
            .prop_map(|(ms, buckets)| Window::Time { span: Duration::from_millis(ms), buckets }),
        (1..=bounds::WINDOW_CALLS).prop_map(|calls| Window::Count { calls }),
    ]
    .boxed()
}

fn slow() -> BoxedStrategy<Slow> {
    let thresholds = [option::of(duration()), option::of(duration()), option::of(duration())];
    let counts = select(&[SlowCounts::Slow, SlowCounts::Failure][..]);
    (percent(), thresholds, option::of(100..=bounds::MULTIPLE_PERCENT), counts)
        .prop_map(|(percent, [ttft, per_output_token, duration], relative_percent, count_as)| Slow {
            percent,
            ttft,
            per_output_token,
            duration,
            relative_percent,
            count_as,
        })
        .boxed()
}

fn cooldown() -> BoxedStrategy<Cooldown> {
    (duration(), duration(), percent(), 100..=bounds::MULTIPLE_PERCENT)
        .prop_map(|(one, other, jitter_percent, growth_percent)| Cooldown {
            base: one.min(other),
            jitter_percent,
            growth_percent,
            max: one.max(other),
        })
        .boxed()
}

fn classify_rule() -> BoxedStrategy<ClassifyRule> {
    let statuses = (100..=599_u16, 100..=599_u16).prop_map(|(one, other)| (one.min(other), one.max(other)));
    (option::of(statuses), option::of(any_text()), select(&Verdict::ALL[..]))
        .prop_map(|(statuses, error_type, verdict)| ClassifyRule { statuses, error_type, verdict })
        .boxed()
}

fn breaker() -> BoxedStrategy<Breaker> {
    let probes = (1..=bounds::PROBES, 1..=bounds::PROBE_SUCCESSES)
        .prop_map(|(concurrency, successes)| Probes { concurrency, successes });
    let ramp =
        (duration(), percent()).prop_map(|(duration, initial_percent)| Ramp { duration, initial_percent });
    let numbers = (count(), percent(), percent(), count());
    (window(), numbers, slow(), cooldown(), probes, ramp, vec(classify_rule(), 0..4))
        .prop_map(|(window, numbers, slow, cooldown, probes, ramp, classify)| {
            let (minimum_calls, failure_percent, stall_percent, consecutive_failures) = numbers;
            Breaker {
                window,
                minimum_calls,
                failure_percent,
                slow,
                stall_percent,
                consecutive_failures,
                cooldown,
                probes,
                ramp,
                classify,
            }
        })
        .boxed()
}

fn quota() -> BoxedStrategy<Quota> {
    // Up to four tenants with at most a quarter each.
    let tenants = btree_map("[a-z]{1,6}", (0..=25_u32, count()), 0..=4).prop_map(|tenants| {
        let share = |(name, (reserved_percent, weight)): (String, (u32, u32))| TenantShare {
            name: name.into(),
            reserved_percent,
            weight,
        };
        tenants.into_iter().map(share).collect()
    });
    let pauses = [duration(), duration(), duration()];
    let percents = (1..=100_u32, 1..=100_u32, percent());
    let pushback =
        (pauses, percents).prop_map(|([max_pause, default_pause, recovery_delay], percents)| Pushback {
            max_pause,
            default_pause,
            shrink_percent: percents.0,
            floor_percent: percents.1,
            recovery_percent_per_second: percents.2,
            recovery_delay,
        });
    (option::of(tokens()), tokens(), option::of(tokens()), tokens(), tenants, pushback)
        .prop_map(
            |(
                tokens_per_minute,
                burst_tokens,
                requests_per_minute,
                default_max_output_tokens,
                tenants,
                pushback,
            )| {
                Quota {
                    tokens_per_minute,
                    burst_tokens,
                    requests_per_minute,
                    default_max_output_tokens,
                    tenants,
                    pushback,
                }
            },
        )
        .boxed()
}

fn concurrency() -> BoxedStrategy<Concurrency> {
    let limits = [1..=bounds::COUNT, 1..=bounds::COUNT, 1..=bounds::COUNT].prop_map(|mut limits| {
        limits.sort_unstable();
        limits
    });
    prop_oneof![
        count().prop_map(|limit| Concurrency::Fixed { limit }),
        (limits, duration(), 1..=100_u32, duration()).prop_map(
            |([min, initial, max], ttft_target, decrease_percent, decrease_interval)| {
                Concurrency::Aimd(Aimd {
                    initial,
                    min,
                    max,
                    ttft_target,
                    decrease_percent,
                    decrease_interval,
                })
            }
        ),
    ]
    .boxed()
}

fn queue() -> BoxedStrategy<Queue> {
    let limit = || (percent(), count(), duration());
    [limit(), limit(), limit()]
        .prop_map(|limits| Queue {
            lanes: Lane::ALL
                .into_iter()
                .zip(limits)
                .map(|(lane, (share_percent, max_length, max_wait))| LaneLimit {
                    lane,
                    share_percent,
                    max_length,
                    max_wait,
                })
                .collect(),
        })
        .boxed()
}

fn retries() -> BoxedStrategy<Retries> {
    let throttling = (1..=1_000_u32, 1..=1_000_u32)
        .prop_map(|(max_tokens, token_ratio_percent)| Throttling { max_tokens, token_ratio_percent });
    let durations = [duration(), duration(), duration()];
    let adaptive = option::of(100..=bounds::MULTIPLE_PERCENT);
    (1..=bounds::ATTEMPTS, durations, percent(), option::of(throttling), adaptive)
        .prop_map(|(max_attempts, durations, budget_percent, throttling, adaptive_k_percent)| {
            let [backoff_base, backoff_max, retry_after_max] = durations;
            Retries {
                max_attempts,
                backoff_base,
                backoff_max,
                budget_percent,
                retry_after_max,
                throttling,
                adaptive_k_percent,
            }
        })
        .boxed()
}

fn streaming() -> BoxedStrategy<Streaming> {
    let propagated = any::<(bool, bool)>();
    (0..=bounds::BUFFER_BYTES, duration(), option::of(duration()), 0..=bounds::BODY_BYTES, propagated)
        .prop_map(|(buffer_bytes, slow_client, keep_alive, body_bytes, propagated)| Streaming {
            buffer_bytes,
            slow_client,
            keep_alive,
            body_bytes,
            propagate_deadline: propagated.0,
            propagate_trace: propagated.1,
        })
        .boxed()
}

fn state_store() -> BoxedStrategy<StateStore> {
    let on_unreachable =
        select(&[OnUnreachable::LocalFallback, OnUnreachable::FailOpen, OnUnreachable::FailClosed][..]);
    (on_unreachable, 1..=bounds::COUNT)
        .prop_map(|(on_unreachable, assumed_agents)| StateStore { on_unreachable, assumed_agents })
        .boxed()
}
