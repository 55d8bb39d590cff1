//! What an agent measures. `name` is a target's: `namespace/route/target`.

use super::{Kind, Metric, NAME, REASON, Section, Unit, counter, gauge, row, seconds, tokens};
use crate::names::attribute as a;

pub const BREAKER_STATE: Metric =
    gauge("llm.circuit_breaker.state", &[NAME], "State of a target's breaker: 0 closed, 1 half-open, 2 open");
pub const BREAKER_AWAITING_PROBE: Metric = gauge(
    "llm.circuit_breaker.awaiting_probe",
    &[NAME],
    "1 while a breaker is open, its cool-down is over, and nobody has called yet",
);
pub const BREAKER_OPEN_TIME: Metric = row(
    Kind::Counter,
    Unit::Seconds,
    "llm.circuit_breaker.open_time",
    &[NAME],
    "Time for which a target's breaker refused because it was open, as this agent saw it",
);
pub const BREAKER_REJECTIONS: Metric = counter(
    "llm.circuit_breaker.rejections",
    &[NAME, REASON],
    "Attempts that a target's breaker did not admit: open, probes-busy, ramping",
);
pub const BREAKER_TRANSITIONS: Metric = counter(
    "llm.circuit_breaker.transitions",
    &[NAME, "from", "to", REASON],
    "Transitions that an attempt of this agent caused",
);

pub const OPERATION_DURATION: Metric = seconds(
    "gen_ai.client.operation.duration",
    &[NAME, a::GEN_AI_OPERATION_NAME, a::GEN_AI_PROVIDER_NAME, a::GEN_AI_REQUEST_MODEL, a::ERROR_TYPE],
    "From the start of an attempt to its end; without error.type it ended well",
);
pub const TOKEN_USAGE: Metric = row(
    Kind::Histogram,
    Unit::Token,
    "gen_ai.client.token.usage",
    &[NAME, a::GEN_AI_OPERATION_NAME, a::GEN_AI_PROVIDER_NAME, a::GEN_AI_REQUEST_MODEL, a::GEN_AI_TOKEN_TYPE],
    "Tokens of an attempt, as its provider reported them",
);
pub const TIME_TO_FIRST_CHUNK: Metric = seconds(
    "gen_ai.client.operation.time_to_first_chunk",
    &[NAME, a::GEN_AI_OPERATION_NAME, a::GEN_AI_PROVIDER_NAME, a::GEN_AI_REQUEST_MODEL],
    "From the start of an attempt to its first text, reasoning or tool call",
);

pub const ATTEMPTS: Metric = counter("sluice.attempts", &[NAME], "Calls of a target's provider");
pub const RETRIES: Metric =
    counter("sluice.retries", &[NAME], "Of the attempts: those that repeated one at the same target");
pub const FAILOVERS: Metric =
    counter("sluice.failovers", &[NAME], "Exchanges that went on past this target to another");
pub const VERDICTS: Metric =
    counter("sluice.verdicts", &[NAME, "verdict"], "Attempts by what they meant to the breaker");
pub const THROTTLED: Metric = counter("sluice.throttled", &[NAME], "Attempts answered with status 429");
pub const CREDENTIAL_FAULTS: Metric = counter(
    "sluice.credential_faults",
    &[NAME, REASON],
    "Attempts that a provider refused for the target's credential or its account",
);
pub const IN_FLIGHT: Metric = gauge("sluice.in_flight", &[NAME], "Attempts in flight from this agent");
pub const LIMIT: Metric = gauge("sluice.limit", &[NAME], "Attempts that may be in flight from this agent");
pub const HEADROOM: Metric =
    gauge("sluice.headroom", &[NAME], "Attempts that may still begin before the limit is reached");

pub const ADMISSIONS: Metric = counter(
    "sluice.admissions",
    &[NAME, "answer"],
    "Attempts by the answer of the target's shared breaker and quota",
);
pub const PASSED_OVER: Metric = counter(
    "sluice.passed_over",
    &[NAME, REASON],
    "Times that this agent passed a target over without an answer of its shared state",
);
pub const OBSERVED: Metric =
    counter("sluice.observed", &[NAME, REASON], "What policies in mode Observe would have refused or ended");
pub const TOKENS_RESERVED: Metric =
    tokens("sluice.tokens.reserved", &[NAME], "Tokens reserved by attempts that were admitted");
pub const TOKENS_REFUSED: Metric =
    tokens("sluice.tokens.refused", &[NAME, "answer"], "Tokens asked for by attempts that were not admitted");
pub const TOKENS_CHARGED: Metric = tokens(
    "sluice.tokens.charged",
    &[NAME, "basis"],
    "Tokens settled, as the provider reported them or, where it did not, by estimate",
);
pub const TOKENS_AFTER_DISCONNECT: Metric = tokens(
    "sluice.tokens.after_disconnect",
    &[NAME],
    "Tokens that still came for a client that had left; about 0",
);
pub const TOKENS_LEFT: Metric = row(
    Kind::Gauge,
    Unit::Token,
    "sluice.tokens.left",
    &[NAME],
    "Tokens in the bucket at the last admission; negative: in debt; absent: tokens are not limited",
);

pub const EXCHANGES: Metric = counter("sluice.exchanges", &[], "Client requests");
pub const EXCHANGES_IN_FLIGHT: Metric = gauge("sluice.exchanges.in_flight", &[], "Client requests in flight");
pub const EXCHANGES_FAILED_OVER: Metric = counter(
    "sluice.exchanges.failed_over",
    &[],
    "Client requests served by another target than the first choice",
);
pub const EXCHANGES_CANCELLED: Metric =
    counter("sluice.exchanges.cancelled", &[], "Client requests whose client left");
pub const REFUSALS: Metric = counter(
    "sluice.refusals",
    &["route", "stage", REASON],
    "Client requests that Sluice answered with an error of its own; without a route none was found",
);

pub const SETTLEMENTS: Metric = counter(
    "sluice.settlements",
    &["outcome"],
    "Settlements of admissions: delivered, or dropped because they could not be in time",
);
pub const SETTLEMENTS_WAITING: Metric =
    gauge("sluice.settlements.waiting", &[], "Settlements that wait to be delivered");
pub const UNSETTLED: Metric =
    gauge("sluice.admissions.unsettled", &[], "Admissions whose tokens are not settled yet");
pub const TOKENS_FORGIVEN: Metric =
    tokens("sluice.tokens.forgiven", &[], "Tokens used beyond the debt that a bucket can hold");
pub const STORE_REACHABLE: Metric = gauge(
    "sluice.store.reachable",
    &["home"],
    "1 while the shared state answers; 0: this agent decides alone",
);
pub const STORE_SUBSCRIBED: Metric = gauge(
    "sluice.store.subscribed",
    &[],
    "1 while transitions of other agents are heard at once; 0: they are polled for",
);
pub const STORE_MAY_EVICT: Metric =
    gauge("sluice.store.may_evict", &[], "1 when Redis may evict breakers and quotas: set noeviction");
pub const STORE_DURATION: Metric =
    seconds("sluice.store.admit.duration", &[], "Round trips of admissions to the shared state");
pub const STORE_ERRORS: Metric =
    counter("sluice.store.errors", &["operation"], "Calls of the shared state that failed");
pub const STORE_FALLBACKS: Metric =
    counter("sluice.store.fallback_admissions", &[], "Admissions that this agent decided alone");
pub const STORE_REFUSED: Metric = counter(
    "sluice.store.refused_admissions",
    &[],
    "Admissions refused because the shared state was away and the policy says FailClosed",
);
pub const STORE_SKIPPED: Metric = counter(
    "sluice.store.skipped_admissions",
    &[],
    "Admissions refused without asking, as the breaker was known to be open",
);
pub const STORE_CONNECTIONS: Metric =
    counter("sluice.store.connections", &[], "Connections made to the shared state");
pub const STORE_SCRIPTS_LOST: Metric =
    counter("sluice.store.scripts_lost", &[], "Times that Redis had lost a script and was given it again");

pub const POLICY_CONNECTED: Metric = gauge(
    "sluice.policy.connected",
    &[],
    "1 while the control plane sends policies; 0: the last good ones stay in use",
);
pub const POLICY_ROUTES: Metric = gauge("sluice.policy.routes", &[], "Routes in use");
pub const POLICY_REJECTED: Metric =
    gauge("sluice.policy.rejected", &[], "Objects of the last snapshot that this agent refused");
pub const POLICY_UPDATES: Metric =
    counter("sluice.policy.updates", &[], "Snapshots of policies taken into use");

/// The rows of an agent.
pub const AGENT: &[Section] = &[
    (
        "Breakers",
        &[
            &BREAKER_STATE,
            &BREAKER_AWAITING_PROBE,
            &BREAKER_OPEN_TIME,
            &BREAKER_REJECTIONS,
            &BREAKER_TRANSITIONS,
        ],
    ),
    ("Model calls", &[&OPERATION_DURATION, &TOKEN_USAGE, &TIME_TO_FIRST_CHUNK]),
    (
        "Attempts",
        &[
            &ATTEMPTS,
            &RETRIES,
            &FAILOVERS,
            &VERDICTS,
            &THROTTLED,
            &CREDENTIAL_FAULTS,
            &IN_FLIGHT,
            &LIMIT,
            &HEADROOM,
        ],
    ),
    (
        "Admission and tokens",
        &[
            &ADMISSIONS,
            &PASSED_OVER,
            &OBSERVED,
            &TOKENS_RESERVED,
            &TOKENS_REFUSED,
            &TOKENS_CHARGED,
            &TOKENS_AFTER_DISCONNECT,
            &TOKENS_LEFT,
        ],
    ),
    (
        "Exchanges",
        &[&EXCHANGES, &EXCHANGES_IN_FLIGHT, &EXCHANGES_FAILED_OVER, &EXCHANGES_CANCELLED, &REFUSALS],
    ),
    (
        "Settlement and shared state",
        &[
            &UNSETTLED,
            &SETTLEMENTS,
            &SETTLEMENTS_WAITING,
            &TOKENS_FORGIVEN,
            &STORE_REACHABLE,
            &STORE_SUBSCRIBED,
            &STORE_MAY_EVICT,
            &STORE_DURATION,
            &STORE_ERRORS,
            &STORE_FALLBACKS,
            &STORE_REFUSED,
            &STORE_SKIPPED,
            &STORE_CONNECTIONS,
            &STORE_SCRIPTS_LOST,
        ],
    ),
    ("Policies", &[&POLICY_CONNECTED, &POLICY_ROUTES, &POLICY_REJECTED, &POLICY_UPDATES]),
];
