//! The commands that the scripts use. Any other is an error, as is any argument that they don't use.

use mlua::{Lua, MultiValue, Value};

use super::keyspace::{Keyspace, WrongType};

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
    pub(super) fn call(&mut self, lua: &Lua, args: &MultiValue) -> Result<Value, Refused> {
        let Some(Value::String(name)) = args.front() else {
            return Err(Refused(
                "ERR Please specify at least one argument for this redis.call() call".to_owned(),
            ));
        };
        let name = name.as_bytes();
        match &*name {
            b"TIME" => self.time(lua, args),
            b"HMGET" => self.hmget(lua, args),
            b"GET" => self.get(lua, args),
            _ if self.read_only => Err(Refused(format!(
                "ERR Write commands are not allowed from read-only scripts: {}",
                String::from_utf8_lossy(&name)
            ))),
            b"HSET" => self.hset(args),
            b"SET" => self.set(lua, args),
            b"PEXPIRE" => self.pexpire(args),
            b"PUBLISH" => self.publish(args),
            _ => Err(Refused(format!(
                "ERR Unknown Redis command called from script: {}",
                String::from_utf8_lossy(&name)
            ))),
        }
    }

    fn time(&self, lua: &Lua, args: &MultiValue) -> Result<Value, Refused> {
        arity(args, args.len() == 1)?;
        let table = lua.create_table_with_capacity(2, 0)?;
        table.raw_push(lua.create_string(itoa(self.now_ms / 1_000).as_bytes())?)?;
        // Microseconds, not padded, as Redis writes them.
        table.raw_push(lua.create_string(itoa(self.now_ms % 1_000 * 1_000).as_bytes())?)?;
        Ok(Value::Table(table))
    }

    fn hmget(&self, lua: &Lua, args: &MultiValue) -> Result<Value, Refused> {
        arity(args, args.len() >= 3)?;
        let fields = with_bytes(args, 1, |key| self.space.hash(key, self.expiry_ms))??;
        let table = lua.create_table_with_capacity(args.len() - 2, 0)?;
        for index in 2..args.len() {
            let value = with_bytes(args, index, |field| {
                fields.iter().find(|(name, _)| name == field).map(|(_, value)| value.as_slice())
            })?;
            match value {
                Some(value) => table.raw_push(lua.create_string(value)?)?,
                None => table.raw_push(false)?,
            }
        }
        Ok(Value::Table(table))
    }

    fn get(&self, lua: &Lua, args: &MultiValue) -> Result<Value, Refused> {
        arity(args, args.len() == 2)?;
        let text = with_bytes(args, 1, |key| self.space.text(key, self.expiry_ms))??;
        reply_text(lua, text)
    }

    fn hset(&mut self, args: &MultiValue) -> Result<Value, Refused> {
        arity(args, args.len() >= 4 && args.len().is_multiple_of(2))?;
        let mut words = Vec::with_capacity(args.len() - 1);
        for index in 1..args.len() {
            words.push(owned(args, index)?);
        }
        let pairs = words[1..].chunks_exact(2).map(|pair| (pair[0].as_slice(), pair[1].as_slice()));
        let added = self.space.set_fields(&words[0], pairs, self.expiry_ms)?;
        Ok(Value::Number(added as f64))
    }

    /// SET key value with one of: PX ms, PX ms NX GET, KEEPTTL.
    fn set(&mut self, lua: &Lua, args: &MultiValue) -> Result<Value, Refused> {
        let key = owned(args, 1)?;
        let text = owned(args, 2)?;
        let option = |index| owned(args, index).unwrap_or_default();
        match (args.len(), option(3).as_slice()) {
            (4, b"KEEPTTL") => self.space.set_text(&key, text, None, self.expiry_ms),
            (5, b"PX") => self.space.set_text(&key, text, Some(ttl(args, 4)?), self.expiry_ms),
            (7, b"PX") if option(5) == b"NX" && option(6) == b"GET" => {
                let ttl = ttl(args, 4)?;
                let old = self.space.text(&key, self.expiry_ms)?;
                let reply = reply_text(lua, old)?;
                if old.is_none() {
                    self.space.set_text(&key, text, Some(ttl), self.expiry_ms);
                }
                return Ok(reply);
            }
            _ => return Err(Refused("ERR syntax error".to_owned())),
        }
        Ok(Value::Boolean(true))
    }

    fn pexpire(&mut self, args: &MultiValue) -> Result<Value, Refused> {
        arity(args, args.len() == 3)?;
        let ttl = ttl(args, 2)?;
        let set = with_bytes(args, 1, |key| self.space.expire(key, ttl, self.expiry_ms))?;
        Ok(Value::Number(f64::from(u8::from(set))))
    }

    fn publish(&mut self, args: &MultiValue) -> Result<Value, Refused> {
        arity(args, args.len() == 3)?;
        let message = owned(args, 2)?;
        self.published.push(String::from_utf8_lossy(&message).into_owned());
        Ok(Value::Number(0.0))
    }
}

fn arity(args: &MultiValue, fits: bool) -> Result<(), Refused> {
    if fits {
        return Ok(());
    }
    Err(Refused(format!("ERR Wrong number of args calling Redis command from script: {}", args.len())))
}

fn reply_text(lua: &Lua, text: Option<&[u8]>) -> Result<Value, Refused> {
    match text {
        Some(text) => Ok(Value::String(lua.create_string(text)?)),
        None => Ok(Value::Boolean(false)),
    }
}

fn not_a_word() -> Refused {
    Refused("ERR Lua redis lib command arguments must be strings or integers".to_owned())
}

fn with_bytes<T>(args: &MultiValue, index: usize, read: impl FnOnce(&[u8]) -> T) -> Result<T, Refused> {
    match args.get(index) {
        Some(Value::String(text)) => Ok(read(&text.as_bytes())),
        _ => Err(not_a_word()),
    }
}

fn owned(args: &MultiValue, index: usize) -> Result<Vec<u8>, Refused> {
    match args.get(index) {
        Some(Value::String(text)) => Ok(text.as_bytes().to_vec()),
        Some(Value::Number(n)) if n.fract() == 0.0 => Ok(format!("{n:.0}").into_bytes()),
        Some(Value::Integer(n)) => Ok(n.to_string().into_bytes()),
        _ => Err(not_a_word()),
    }
}

/// A time to live: a positive integer, as Redis wants it.
fn ttl(args: &MultiValue, index: usize) -> Result<u64, Refused> {
    let text = owned(args, index)?;
    let ttl = std::str::from_utf8(&text).ok().and_then(|text| text.parse::<u64>().ok());
    ttl.filter(|&ttl| ttl > 0)
        .ok_or_else(|| Refused("ERR value is not an integer or out of range".to_owned()))
}

fn itoa(n: u64) -> String {
    n.to_string()
}
