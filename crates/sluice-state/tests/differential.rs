//! Random sequences in both homes: every reply and the stored state are the same.
//!
//! Time is the embedded home's stepped clock. The copies of the scripts that run in Redis here have a prelude
//! in front which answers TIME with the same time, and keeps expiry by it. Everything else is Redis' own.
//!
//! `SLUICE_DIFFERENTIAL_OPS` (100,000) and `SLUICE_DIFFERENTIAL_SEED` (1) choose the run.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use redis::{RedisResult, Value};
use sluice_core::admission::{AdmitAsk, Draw, Nonce, SettleAsk, Settlement};
use sluice_core::outcome::Verdict;
use sluice_core::policy::{Mode, Rules, TargetPolicy, TenantShare, Window};
use sluice_state::embedded::Stored;
use sluice_state::script::{Call, Keys, ReplyItem, ScriptName, encode_admit, encode_settle, encode_view};
use sluice_state::{EmbeddedHome, StoreErrorKind};
use sluice_testkit::RedisServer;
use support::{SteppedClock, admit_ask, agent, quota, settle_ask, target, with_quota};

const BATCH: usize = 500;
const EXPIRIES: &str = "test:expiries";

/// In front of the scripts: the last key holds expiries, the last argument is the time in milliseconds.
const PRELUDE: &str = r"
local real, at, expiries = redis, tonumber(ARGV[#ARGV]), KEYS[#KEYS]
ARGV[#ARGV], KEYS[#KEYS] = nil, nil
local latest = math.max(at, tonumber(real.call('HGET', expiries, 'latest') or 0))
real.call('HSET', expiries, 'latest', string.format('%.0f', latest))
for i = 1, #KEYS do
  local expiry = real.call('HGET', expiries, KEYS[i])
  if expiry and tonumber(expiry) <= latest then
    real.call('DEL', KEYS[i])
    real.call('HDEL', expiries, KEYS[i])
  end
end
local function keep(key, ttl)
  real.call('HSET', expiries, key, string.format('%.0f', latest + ttl))
end
local redis = { error_reply = real.error_reply, pcall = real.pcall }
redis.call = function(name, ...)
  local a = { ... }
  if name == 'TIME' then
    return { string.format('%.0f', math.floor(at / 1000)), string.format('%.0f', at % 1000 * 1000) }
  elseif name == 'PEXPIRE' then
    keep(a[1], a[2])
    return real.call(name, a[1], string.format('%.0f', a[2] * 1000))
  elseif name == 'SET' and a[3] == 'PX' then
    local ttl = a[4]
    a[4] = string.format('%.0f', ttl * 1000)
    local old = real.call(name, unpack(a))
    if not (a[5] == 'NX' and old) then
      keep(a[1], ttl)
    end
    return old
  end
  return real.call(name, ...)
end
";

struct Real {
    connection: redis::Connection,
    shas: HashMap<ScriptName, String>,
}

impl Real {
    fn new(server: &RedisServer) -> Self {
        let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        let mut shas = HashMap::new();
        for name in ScriptName::SHARED {
            let (_, body) = name.script().text().split_once('\n').unwrap();
            let text = format!("#!lua\n{PRELUDE}\n{body}");
            let sha = redis::cmd("SCRIPT").arg("LOAD").arg(text).query(&mut connection).unwrap();
            shas.insert(name, sha);
        }
        Self { connection, shas }
    }

    fn run(&mut self, steps: &[Step]) -> Vec<RedisResult<Value>> {
        let mut pipeline = redis::Pipeline::new();
        pipeline.ignore_errors();
        for step in steps {
            let command = pipeline.cmd("EVALSHA").arg(&self.shas[&step.name]).arg(step.call.keys.len() + 1);
            for key in &step.call.keys {
                command.arg(key);
            }
            command.arg(EXPIRIES);
            for arg in &step.call.args {
                command.arg(arg);
            }
            command.arg(step.at_ms);
        }
        pipeline.query(&mut self.connection).unwrap()
    }

    fn stored(&mut self, key: &str, latest_ms: u64) -> Option<Stored> {
        let expiry: Option<u64> =
            redis::cmd("HGET").arg(EXPIRIES).arg(key).query(&mut self.connection).unwrap();
        if expiry.is_some_and(|at| at <= latest_ms) {
            return None;
        }
        let kind: String = redis::cmd("TYPE").arg(key).query(&mut self.connection).unwrap();
        match kind.as_str() {
            "none" => None,
            "string" => Some(Stored::Text(redis::cmd("GET").arg(key).query(&mut self.connection).unwrap())),
            _ => {
                let mut fields: Vec<(Vec<u8>, Vec<u8>)> =
                    redis::cmd("HGETALL").arg(key).query(&mut self.connection).unwrap();
                fields.sort();
                Some(Stored::Hash(fields))
            }
        }
    }
}

struct Step {
    name: ScriptName,
    call: Call,
    at_ms: u64,
    reply: Result<Vec<ReplyItem>, StoreErrorKind>,
}

/// An admission that is out.
struct Out {
    target: usize,
    nonce: Nonce,
    epoch: u64,
    tenant: Option<&'static str>,
    reserved: u64,
}

struct Run {
    rng: SmallRng,
    clock: SteppedClock,
    home: EmbeddedHome,
    targets: Vec<TargetPolicy>,
    out: Vec<Out>,
    settled: Vec<Out>,
    touched: BTreeSet<String>,
    latest_ms: u64,
}

fn targets(rng: &mut SmallRng) -> Vec<TargetPolicy> {
    (0..6).map(|index| target(&format!("t{index}"), rules(index, rng))).collect()
}

/// Small numbers, so that everything happens often.
fn rules(index: usize, rng: &mut SmallRng) -> Rules {
    let mut rules = Rules::default();
    let breaker = &mut rules.breaker.rules;
    breaker.window = match index % 3 {
        0 => Window::Time {
            span: Duration::from_secs(rng.random_range(5..60)),
            buckets: rng.random_range(1..=16),
        },
        1 => Window::Count { calls: rng.random_range(1..40) },
        _ => Window::Count { calls: 1_000 },
    };
    breaker.minimum_calls = rng.random_range(1..12);
    breaker.failure_percent = rng.random_range(20..100);
    breaker.consecutive_failures = rng.random_range(0..6);
    breaker.cooldown.base = Duration::from_secs(rng.random_range(1..20));
    breaker.probes.concurrency = rng.random_range(1..=16);
    breaker.probes.successes = rng.random_range(1..4);
    breaker.ramp.duration = Duration::from_secs(rng.random_range(0..30));
    if index == 5 {
        rules.breaker.mode = Mode::Observe;
    }
    if index == 0 {
        return rules;
    }
    let mut quota = quota(
        (index != 1).then(|| rng.random_range(0..20_000)),
        (index != 2).then(|| rng.random_range(0..600)),
    );
    quota.pushback.recovery_delay = Duration::from_secs(rng.random_range(0..20));
    if index >= 3 {
        let tenant =
            |name: &str, reserved_percent| TenantShare { name: name.into(), reserved_percent, weight: 1 };
        quota.tenants = vec![tenant("a", rng.random_range(0..60)), tenant("b", rng.random_range(0..40))];
    }
    let mut rules = with_quota(rules, quota);
    if index == 4 {
        rules.quota.as_mut().unwrap().mode = Mode::Observe;
    }
    rules
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let clock = SteppedClock::new();
        let targets = targets(&mut rng);
        Self {
            home: clock.home(),
            latest_ms: clock.now_ms(),
            clock,
            targets,
            out: Vec::new(),
            settled: Vec::new(),
            touched: BTreeSet::new(),
            rng,
        }
    }

    fn step(&mut self) -> Step {
        self.move_clock();
        match self.rng.random_range(0..1_000) {
            0..3 => self.edit(),
            3..20 => return self.view(),
            20..30 => return self.admit_again(),
            30..480 if !self.out.is_empty() => return self.settle(),
            480..510 if !self.settled.is_empty() => return self.settle_again(),
            510..525 => return self.settle_lost(),
            _ => {}
        }
        self.admit()
    }

    fn move_clock(&mut self) {
        let rng = &mut self.rng;
        let by = match rng.random_range(0..10_000) {
            0..7_000 => rng.random_range(0..40),
            7_000..9_900 => rng.random_range(0..2_000),
            9_900..9_980 => rng.random_range(0..120_000),
            9_980..9_990 => rng.random_range(0..4_000_000),
            _ => {
                // A step back.
                let back = rng.random_range(0..4_000_000);
                self.clock.set_ms(self.clock.now_ms() - back);
                0
            }
        };
        self.clock.advance(Duration::from_millis(by));
        self.latest_ms = self.latest_ms.max(self.clock.now_ms());
    }

    /// Another edit of a policy; sometimes an older one speaks up again.
    fn edit(&mut self) {
        let index = self.rng.random_range(0..self.targets.len());
        let revision = self.targets[index].rules.revision;
        let mut rules = rules(index, &mut self.rng);
        rules.revision = if self.rng.random_bool(0.7) { revision + 1 } else { revision.saturating_sub(1) };
        self.targets[index].rules = rules;
    }

    fn run(&mut self, name: ScriptName, call: Call) -> Step {
        self.touched.extend(call.keys.iter().cloned());
        let reply = self.home.run(name, &call).map_err(|error| error.kind);
        Step { name, call, at_ms: self.clock.now_ms(), reply }
    }

    fn tenant(&mut self) -> Option<&'static str> {
        [None, Some("a"), Some("b"), Some("nobody")][self.rng.random_range(0..4)]
    }

    fn admit(&mut self) -> Step {
        let target = self.rng.random_range(0..self.targets.len());
        let nonce = Nonce(self.rng.random());
        let tenant = self.tenant();
        let reserved = self.rng.random_range(0..3_000);
        self.admit_as(Out { target, nonce, epoch: 0, tenant, reserved })
    }

    fn admit_as(&mut self, mut out: Out) -> Step {
        let ask = AdmitAsk {
            tenant: out.tenant.map(Into::into),
            lease: Duration::from_secs(self.rng.random_range(1..30)),
            record_ttl: Duration::from_secs(self.rng.random_range(60..400)),
            ..admit_ask(out.nonce, out.reserved)
        };
        let call = encode_admit(&agent(), &self.targets[out.target], &ask);
        let step = self.run(ScriptName::Admit, call);
        if let Ok(reply) = &step.reply
            && let (ReplyItem::Integer(0 | 1), ReplyItem::Integer(epoch)) = (&reply[0], &reply[4])
        {
            out.epoch = u64::try_from(*epoch).unwrap();
            self.out.push(out);
        }
        step
    }

    /// The same nonce: after a lost reply, or after its settlement.
    fn admit_again(&mut self) -> Step {
        let list = if self.rng.random_bool(0.5) { &self.out } else { &self.settled };
        if list.is_empty() {
            return self.admit();
        }
        let old = &list[self.rng.random_range(0..list.len())];
        let out = Out {
            target: old.target,
            nonce: old.nonce,
            epoch: 0,
            tenant: old.tenant,
            reserved: old.reserved,
        };
        self.admit_as(out)
    }

    fn settle(&mut self) -> Step {
        let index = self.rng.random_range(0..self.out.len());
        if self.rng.random_bool(0.2) {
            // An early verdict: the tokens come later.
            let ask = self.settlement(index, false);
            return self.settle_as(self.out[index].target, &ask);
        }
        let ask = self.settlement(index, true);
        let out = self.out.swap_remove(index);
        let target = out.target;
        if self.settled.len() < 200 {
            self.settled.push(out);
        } else {
            let place = self.rng.random_range(0..200);
            self.settled[place] = out;
        }
        self.settle_as(target, &ask)
    }

    fn settle_again(&mut self) -> Step {
        let index = self.rng.random_range(0..self.settled.len());
        let out = self.settled.swap_remove(index);
        let target = out.target;
        self.out.push(out);
        let ask = self.settlement(self.out.len() - 1, true);
        let out = self.out.pop().unwrap();
        self.settled.push(out);
        self.settle_as(target, &ask)
    }

    /// Of an admission that the store never had.
    fn settle_lost(&mut self) -> Step {
        let target = self.rng.random_range(0..self.targets.len());
        let view = self.home.view_now(&self.targets[target]).unwrap();
        let nonce = Nonce(self.rng.random());
        let used = self.rng.random_range(0..2_000);
        let ask = SettleAsk {
            tokens: Settlement::Used(used),
            ..settle_ask(nonce, view.epoch, Some(self.verdict()), None)
        };
        self.settled.push(Out { target, nonce, epoch: view.epoch, tenant: None, reserved: 0 });
        self.settle_as(target, &ask)
    }

    fn verdict(&mut self) -> Verdict {
        match self.rng.random_range(0..100) {
            0..55 => Verdict::Success,
            55..75 => Verdict::Failure,
            75..82 => Verdict::Slow,
            82..89 => Verdict::Stall,
            89..93 => Verdict::Throttled,
            93..96 => Verdict::Ignored,
            _ => Verdict::Cancelled,
        }
    }

    fn settlement(&mut self, index: usize, last: bool) -> SettleAsk {
        let verdict = self.verdict();
        let rng = &mut self.rng;
        let out = &self.out[index];
        SettleAsk {
            tenant: out.tenant.map(Into::into),
            tokens: if last {
                Settlement::Used(rng.random_range(0..=out.reserved * 3))
            } else {
                Settlement::Later
            },
            pause: (verdict == Verdict::Throttled && rng.random_bool(0.7))
                .then(|| Duration::from_millis(rng.random_range(0..20_000))),
            draw: Draw::new(rng.random()),
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
            ..settle_ask(out.nonce, out.epoch, (!last || rng.random_bool(0.9)).then_some(verdict), None)
        }
    }

    fn settle_as(&mut self, target: usize, ask: &SettleAsk) -> Step {
        let call = encode_settle(&agent(), &self.targets[target], ask);
        self.run(ScriptName::Settle, call)
    }

    fn view(&mut self) -> Step {
        let target = self.rng.random_range(0..self.targets.len());
        let call = encode_view(&self.targets[target]);
        self.run(ScriptName::View, call)
    }
}

fn same(step: &Step, real: &RedisResult<Value>) -> bool {
    match (&step.reply, real) {
        (Err(kind), Err(error)) => {
            let said = format!("{} {}", error.code().unwrap_or_default(), error.detail().unwrap_or_default());
            *kind == StoreErrorKind::of_message(&said)
        }
        (Ok(items), Ok(Value::Array(values))) => {
            items.len() == values.len()
                && items.iter().zip(values).all(|pair| match pair {
                    (ReplyItem::Integer(a), Value::Int(b)) => a == b,
                    (ReplyItem::Text(a), Value::BulkString(b)) => a.as_bytes() == b,
                    _ => false,
                })
        }
        _ => false,
    }
}

fn sorted(stored: Option<Stored>) -> Option<Stored> {
    stored.map(|stored| match stored {
        Stored::Hash(mut fields) => {
            fields.sort();
            Stored::Hash(fields)
        }
        text @ Stored::Text(_) => text,
    })
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

#[test]
fn both_homes_answer_and_store_the_same() {
    let operations = number("SLUICE_DIFFERENTIAL_OPS", 100_000);
    let seed = number("SLUICE_DIFFERENTIAL_SEED", 1);
    println!("SLUICE_DIFFERENTIAL_SEED={seed} SLUICE_DIFFERENTIAL_OPS={operations}");
    let server = RedisServer::start().unwrap();
    let mut real = Real::new(&server);
    let mut run = Run::new(seed);
    let mut answers: HashMap<String, u64> = HashMap::new();
    let mut done = 0;
    while done < operations {
        let steps: Vec<Step> = (0..BATCH).map(|_| run.step()).collect();
        let replies = real.run(&steps);
        for (index, (step, reply)) in steps.iter().zip(&replies).enumerate() {
            assert!(
                same(step, reply),
                "seed {seed}, operation {}: {:?} at {} {:?}\nembedded {:?}\nredis    {reply:?}",
                done + index as u64,
                step.name,
                step.at_ms,
                step.call,
                step.reply,
            );
            let answer =
                step.reply.as_ref().map_or_else(ToString::to_string, |items| format!("{:?}", items[0]));
            *answers.entry(format!("{:?} {answer}", step.name)).or_default() += 1;
        }
        for key in std::mem::take(&mut run.touched) {
            assert_eq!(
                sorted(run.home.stored(&key)),
                real.stored(&key, run.latest_ms),
                "seed {seed}, after operation {}: {key}",
                done + BATCH as u64
            );
        }
        done += BATCH as u64;
    }
    println!("{answers:?}");
    // A run that never met an answer has not compared it.
    for code in 0..8 {
        let name = format!("Admit Integer({code})");
        assert!(answers.get(&name).is_some_and(|&n| n > operations / 10_000), "{name}: {answers:?}");
    }
    assert!(answers.contains_key("Admit settled"), "{answers:?}");
    assert_eq!(Keys::target("x"), "sluice:1:{x}:target");
}
