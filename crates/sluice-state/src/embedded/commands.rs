//! The commands that the scripts use. Any other is an error, as is any argument that they don't use.

use mlua::{BString, Either, Lua, Value};

use super::keyspace::{Keyspace, WrongType};

/// Words of a command, its name included. None of the scripts' is longer.
pub(super) const MAX_WORDS: usize = 12;

/// What `redis.call` reaches.
#[derive(Debug, Default)]
pub(super) struct Server {
    pub(super) space: Keyspace,
    /// What `TIME` says.
    pub(super) now_ms: u64,
    /// The latest that `TIME` has said: a clock that steps back brings no expired key back.
    pub(super) expiry_ms: u64,
    /// Set for scripts with `flags=no-writes`.
    pub(super) read_only: bool,
    /// Published by the running script.
    pub(super) published: Vec<String>,
}

/// A command's refusal, in Redis' words.
pub(super) struct Refused(pub(super) String);

impl From<WrongType> for Refused {
    fn from(_: WrongType) -> Self {
        Self("WRONGTYPE Operation against a key holding the wrong kind of value".to_owned())
    }
}

impl From<mlua::Error> for Refused {
    fn from(error: mlua::Error) -> Self {
        Self(format!("ERR {error}"))
    }
}

impl Server {
    pub(super) fn call(&mut self, lua: &Lua, words: &[BString]) -> Result<Value, Refused> {
        let Some((name, args)) = words.split_first() else {
            return Err(Refused(
                "ERR Please specify at least one argument for this redis.call() call".to_owned(),
            ));
        };
        match name.as_slice() {
            b"TIME" => self.time(lua, args),
            b"HMGET" => self.hmget(lua, args),
            b"GET" => self.get(lua, args),
            _ if self.read_only => {
                Err(Refused(format!("ERR Write commands are not allowed from read-only scripts: {name}")))
            }
            b"HSET" => self.hset(args),
            b"SET" => self.set(lua, args),
            b"PEXPIRE" => self.pexpire(args),
            b"PUBLISH" => self.publish(args),
            _ => Err(Refused(format!("ERR Unknown Redis command called from script: {name}"))),
        }
    }

    fn time(&self, lua: &Lua, args: &[BString]) -> Result<Value, Refused> {
        let [] = args else { return Err(wrong_arity(args)) };
        // Microseconds, not padded, as Redis writes them.
        let parts = [self.now_ms / 1_000, self.now_ms % 1_000 * 1_000].map(|part| part.to_string());
        Ok(Value::Table(lua.create_sequence_from(parts)?))
    }

    fn hmget(&self, lua: &Lua, args: &[BString]) -> Result<Value, Refused> {
        let [key, names @ ..] = args else { return Err(wrong_arity(args)) };
        if names.is_empty() {
            return Err(wrong_arity(args));
        }
        let fields = self.space.hash(key, self.expiry_ms)?;
        let mut values = [Either::Right(false); MAX_WORDS];
        for (value, name) in values.iter_mut().zip(names) {
            if let Some((_, text)) = fields.iter().find(|(field, _)| field.as_slice() == name.as_slice()) {
                *value = Either::Left(str::from_utf8(text).map_err(|_| not_a_word())?);
            }
        }
        Ok(Value::Table(lua.create_sequence_from(values.into_iter().take(names.len()))?))
    }

    fn get(&self, lua: &Lua, args: &[BString]) -> Result<Value, Refused> {
        let [key] = args else { return Err(wrong_arity(args)) };
        reply_text(lua, self.space.text(key, self.expiry_ms)?)
    }

    fn hset(&mut self, args: &[BString]) -> Result<Value, Refused> {
        let [key, pairs @ ..] = args else { return Err(wrong_arity(args)) };
        let (pairs, []) = pairs.as_chunks::<2>() else { return Err(wrong_arity(args)) };
        if pairs.is_empty() {
            return Err(wrong_arity(args));
        }
        let pairs = pairs.iter().map(|[field, value]| (field.as_slice(), value.as_slice()));
        let added = self.space.set_fields(key, pairs, self.expiry_ms)?;
        Ok(Value::Number(added as f64))
    }

    /// SET key value with one of: PX ms, PX ms GET, PX ms NX GET, KEEPTTL.
    fn set(&mut self, lua: &Lua, args: &[BString]) -> Result<Value, Refused> {
        let [key, text, options @ ..] = args else { return Err(wrong_arity(args)) };
        let words: [&[u8]; 4] =
            std::array::from_fn(|at| options.get(at).map_or(&[][..], |word| word.as_slice()));
        let now = self.expiry_ms;
        match (options.len(), words) {
            (1, [b"KEEPTTL", ..]) => self.space.set_text(key, text.to_vec(), None, now),
            (2, [b"PX", ms, ..]) => self.space.set_text(key, text.to_vec(), Some(ttl(ms)?), now),
            (3, [b"PX", ms, b"GET", ..]) | (4, [b"PX", ms, b"NX", b"GET"]) => {
                let ttl = ttl(ms)?;
                let old = self.space.text(key, now)?;
                let reply = reply_text(lua, old)?;
                if old.is_none() || options.len() == 3 {
                    self.space.set_text(key, text.to_vec(), Some(ttl), now);
                }
                return Ok(reply);
            }
            _ => return Err(Refused("ERR syntax error".to_owned())),
        }
        Ok(Value::Boolean(true))
    }

    fn pexpire(&mut self, args: &[BString]) -> Result<Value, Refused> {
        let [key, ms] = args else { return Err(wrong_arity(args)) };
        let set = self.space.expire(key, ttl(ms)?, self.expiry_ms);
        Ok(Value::Number(f64::from(u8::from(set))))
    }

    fn publish(&mut self, args: &[BString]) -> Result<Value, Refused> {
        let [_, message] = args else { return Err(wrong_arity(args)) };
        self.published.push(message.to_string());
        Ok(Value::Number(0.0))
    }
}

fn wrong_arity(args: &[BString]) -> Refused {
    Refused(format!("ERR Wrong number of args calling Redis command from script: {}", args.len()))
}

pub(super) fn not_a_word() -> Refused {
    Refused("ERR Lua redis lib command arguments must be strings or integers".to_owned())
}

fn reply_text(lua: &Lua, text: Option<&[u8]>) -> Result<Value, Refused> {
    match text {
        Some(text) => Ok(Value::String(lua.create_string(text)?)),
        None => Ok(Value::Boolean(false)),
    }
}

/// A time to live: a positive integer, as Redis wants it.
fn ttl(text: &[u8]) -> Result<u64, Refused> {
    let ttl = std::str::from_utf8(text).ok().and_then(|text| text.parse::<u64>().ok());
    ttl.filter(|&ttl| ttl > 0)
        .ok_or_else(|| Refused("ERR value is not an integer or out of range".to_owned()))
}
