//! The scripted model provider: OpenAI's and Anthropic's APIs on a real socket, answering by a script.
//!
//! `sluice run` plays against it, tests ask it what arrived, benches use it as a provider that costs nothing. It
//! speaks HTTP/1.1 and HTTP/2 without TLS on one port, and the providers' own SDKs can't tell it from the real one.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use sluice_provider::{Behaviour, Provider, Scenario};
//!
//! let provider = Provider::start(Scenario::from_yaml("default: {ttft: 5ms, tokens: 10}")?).await?;
//! // … point a client at provider.base_url() (Anthropic) or provider.openai_url() (OpenAI) …
//! provider.set(Scenario::of(Behaviour::status(503)).named("slow", Behaviour::ttft(Duration::from_secs(6))));
//! let stats = provider.wait_for(|stats| stats.total.in_flight == 0, Duration::from_secs(5)).await?;
//! assert_eq!(stats.total.cancelled(), 0);
//! provider.shutdown().await;
//! # Ok(()) }
//! ```
//!
//! # What it serves
//! | path (by its end, so prefixes are fine) | answer |
//! |---|---|
//! | `/v1/chat/completions`, `/v1/completions`, `/v1/responses` | OpenAI, plain and streamed; Azure's deployment paths too |
//! | `/v1/messages`, `/v1/messages/count_tokens` | Anthropic, plain and streamed |
//! | `/v1/embeddings`, `/v1/models`, `/v1/models/{id}` | short vectors; the scenario's `models` |
//! | any other path with `/v1/` | an echo: method, path, headers, size of the body |
//! | `/healthz`, `/metrics` | `ok`; queue depth and KV-cache use in the form of vLLM's page |
//! | `PUT`, `GET /control/scenario` | change the scenario (YAML, or JSON by content type), read it |
//! | `GET /control/stats`, `GET /control/calls?last=N` | [`Stats`]; the recent [`Call`]s |
//! | `POST /control/reset`, `POST /control/release` | [`Provider::reset`]; [`Provider::release`] |
//!
//! # The scenario
//! A YAML file ([`Scenario::from_yaml`]); every field may be absent, an unknown one is an error that lists the known.
//!
//! ```
//! # let yaml = r#"
//! seed: 1                     # of the jitter
//! record: 10000               # calls remembered; 0 for benches
//! recordBodies: false
//! connections: accept         # accept | close | reset | hang | refuse: new connections, before any HTTP
//! startsAt: set               # set | firstCall: when the time of the first step begins
//! apiKeys: []                 # keys that are accepted; empty: any
//! models: [gpt-4o]            # what /v1/models lists
//! slots: 100                  # calls worked on at a time; the others wait
//! engine: {waiting: 0, kvCachePercent: 35}     # what /metrics says
//! quota: {tokensPerMinute: 100000, burst: 100000, requestsPerMinute: 0, count: reserve}
//! default:                    # what a call gets, and the base of all that follows
//!   ttft: 300ms
//!   perToken: 15ms
//!   jitterPercent: 20
//! steps:                      # phases in order, by calls or by time; after the last one `default` alone applies
//! - {name: healthy, calls: 5}
//! - {name: slow, for: 10s, behaviour: {ttftBySecond: [1s, 4s, 9s, 12s]}}
//! - {name: stalling, calls: 2, behaviour: {stall: {after: 5}}}
//! - {name: down, for: 20s, behaviour: {error: overloaded}}
//! repeat: false
//! rules:                      # the first that matches takes a call out of the steps above
//! - match: {scenario: clean}              # the header `x-scenario: clean`
//!   behaviour: {ttft: 50ms}
//! - match: {model: "gpt-4o-mini*", stream: true, path: /eu/v1/chat/completions, headers: {x-team: blue}}
//!   behaviour: {status: 429, retryAfter: 7}
//!   quota: {requestsPerMinute: 60}
//!   steps: [{calls: 1, behaviour: {inherit: false}}]     # its own phases; inherit: false starts from nothing
//! # "#;
//! # sluice_provider::Scenario::from_yaml(yaml).unwrap();
//! ```
//!
//! A behaviour:
//! ```
//! # let yaml = r#"
//! default:
//!   ## Instead of an answer
//!   connection: serve         # close | reset | hang, when the request has been read
//!   ## Errors. `error` sets status and body in the caller's format; `status` alone does too
//!   error: spendCap           # badRequest contextLength authentication permission notFound timeout tooLarge
//!                             ## unprocessable rateLimit spendCap server badGateway unavailable gatewayTimeout overloaded
//!   status: 429
//!   message: no more for you
//!   body: "{}"                # replaces the whole body
//!   headers: {x-ratelimit-remaining-tokens: -1, content-type: application/json}
//!   retryAfter: 7             # as it is written: numbers, dates, nonsense
//!   retryAfterMs: "6500"
//!   answer: normal            # html | emptyBody | emptyStream | keepAlivesOnly | noTokens, all with status 200
//!   ## When: ms, s, m, h. All from arrival; a call that waits for a slot arrives when it gets it
//!   headersDelay: 100ms       # errors wait for this alone
//!   ttft: 1s                  # the first token; headers and the opening events come before it
//!   ttftByCall: [400ms, 9s]   # by the number of the call in its step; the last value goes on
//!   ttftBySecond: [400ms, 9s] # by the second of the step; wins over the two above
//!   perToken: 20ms            # a plain answer takes as long as its stream would
//!   jitterPercent: 10         # of ttft and perToken, seeded
//!   ## What
//!   tokens: 20                # never above the request's maximum (then finish_reason is `length`);
//!                             ## absent: the request's maximum, or 20
//!   reasoningTokens: 0        # of these, first: reasoning_content, thinking_delta, reasoning summary
//!   inputTokens: 100          # reported; absent: a quarter of the body's bytes
//!   text: utf8                # plain | utf8 (characters of 2 to 4 bytes)
//!   content: '{"a": 1}'       # the text itself, a token per word
//!   tokenBytes: 0             # pads each token: huge lines
//!   toolCall: {name: lookup, arguments: '{"q":1}', always: false}   # when the request offers tools
//!   usage: report             # omit
//!   ## Faults after so many tokens of the stream; at the same place they come in this order
//!   malformed: {after: 3, data: "{"}         # a broken event; the stream goes on
//!   stall: {after: 3, for: 30s}              # no `for`: until Provider::release
//!   streamError: {after: 3, kind: overloaded, done: false}
//!   cut: {after: 3, how: close}              # close | reset | midEvent | eof
//!   pingEvery: 5s             # in all waits of a stream, stalls included
//!   framing: {lineEnd: lf, space: true, comments: false, bom: false, bytePerWrite: false, splitData: false,
//!             finalBlank: true}
//!   keepGenerating: false     # goes on when the client has left, as providers do that bill abandoned calls
//! # "#;
//! # sluice_provider::Scenario::from_yaml(yaml).unwrap();
//! ```
//!
//! Silent thinking is a long `ttft`; with `pingEvery` it isn't silent. A plain answer with a `stall` or a `cut`
//! stops halfway through its body, one that is `malformed` ends there. A stream that waits in vain
//! (`keepAlivesOnly`) has its usual opening and keep-alives each second or `pingEvery`; a plain call under it is never
//! answered.
//!
//! # Quotas
//! Buckets that refill all the time. `count` says what a call costs: `reserve` (default) takes input + maximum output
//! at the start and returns what wasn't used when the call ends, however it ends; `hold` never returns it, as
//! providers do that count the maximum against the limit; `used` takes the input at the start and the output at
//! the end, so that concurrent calls overdraw. The maximum is the largest that the request names, else the scenario's `tokens`, else 20. The
//! 429 has `Retry-After` (whole seconds, rounded up), `retry-after-ms` and `x-ratelimit-*`.
//!
//! # What is counted
//! [`Stats`]: calls, tokens and statuses, over all and by model. A client that leaves is seen at once, before the
//! headers as well as mid-stream: the HTTP server drops the call, and the call's guard counts it. Tokens are
//! counted when they are handed to the connection. Credentials are replaced by a [`fingerprint`].
//!
//! # The modules
//! - [`scenario`], `behaviour`, `units`: the data of a scenario; `director`: which behaviour a call gets; `pace`: when
//!   things are due; `quota`, `random`, `clock`.
//! - `server`, `conn`: sockets; `service`: one request from its arrival to its answer; `playback`, `body`: the answer
//!   as it is played; `control`: the control endpoints.
//! - `request`, `content`: what was asked, and the tokens of the answer; `wire`: both in each API's words; `sse`,
//!   `json`: how they are written.
//! - `ledger`, `stats`, `redact`: what is counted and remembered.
//! - `provider`: all of it as a value.

mod behaviour;
mod body;
mod clock;
pub mod command;
mod conn;
mod content;
mod control;
mod director;
mod json;
mod ledger;
mod pace;
mod playback;
mod provider;
mod quota;
mod random;
mod redact;
mod request;
pub mod scenario;
mod server;
mod service;
mod sse;
mod stats;
mod units;
mod wire;

pub use provider::{Provider, WaitError};
pub use redact::fingerprint;
pub use scenario::{Behaviour, Scenario, ScenarioError};
pub use stats::{Call, Counts, Outcome, Stats};
pub use units::{HeaderText, parse_duration};
