//! LuaJIT, which is Lua 5.1, with the globals of Redis' sandbox and nothing else: no compiler, no foreign functions.

use std::sync::Arc;

use mlua::state::{GcIncParams, GcMode};
use mlua::{BString, Function, Lua, LuaOptions, MultiValue, StdLib, Table, Value};
use parking_lot::Mutex;
use tokio::sync::broadcast;

use super::commands::{MAX_WORDS, Refused, Server, not_a_word};
use super::keyspace::{MAX_KEYS, Stored};
use crate::error::{StoreError, StoreErrorKind};
use crate::script::{Call, ReplyItem, ScriptName};

/// What a script finds, out of what Redis offers. What the scripts don't need (cjson, struct, os, …) is left
/// out, so that nothing can come to depend on it.
const GLOBALS: [&str; 23] = [
    "_G",
    "assert",
    "error",
    "getmetatable",
    "ipairs",
    "math",
    "next",
    "pairs",
    "pcall",
    "rawequal",
    "rawget",
    "rawset",
    "redis",
    "select",
    "setmetatable",
    "string",
    "table",
    "tonumber",
    "tostring",
    "type",
    "unpack",
    "xpcall",
    "_VERSION",
];

/// A collection begins when memory has grown to this percentage of what the last one left.
const GC_PAUSE: std::ffi::c_int = 800;

/// Around a script: returns the elements of its reply one by one, which is cheaper to read than a table, or the
/// text of its error behind `false`.
const SPREAD: &str = "
local script, unpack = ..., unpack
return function()
  local reply = script()
  if reply.err then
    return false, reply.err
  end
  return unpack(reply)
end";

pub(super) struct Interpreter {
    /// Tables and functions hold it weakly.
    _lua: Lua,
    keys: Table,
    argv: Table,
    scripts: [Function; 4],
    server: Arc<Mutex<Server>>,
    publications: broadcast::Sender<Arc<str>>,
}

impl Interpreter {
    pub(super) fn new(publications: broadcast::Sender<Arc<str>>) -> Result<Self, StoreError> {
        Self::build(publications).map_err(|error| StoreError::new(StoreErrorKind::Other, error.to_string()))
    }

    fn build(publications: broadcast::Sender<Arc<str>>) -> mlua::Result<Self> {
        let lua = Lua::new_with(StdLib::STRING | StdLib::TABLE | StdLib::MATH, LuaOptions::default())?;
        // A call leaves some kilobytes behind and the scripts keep nothing: collecting less often costs little.
        lua.gc_set_mode(GcMode::Incremental(GcIncParams::default().pause(GC_PAUSE)));
        let server = Arc::new(Mutex::new(Server::default()));
        let globals = lua.globals();
        globals.set("redis", redis_table(&lua, &server)?)?;
        let mut unwanted = Vec::new();
        globals.for_each(|name: Value, _: Value| {
            let known = name.as_string().is_some_and(|name| GLOBALS.iter().any(|g| *name == **g));
            if !known {
                unwanted.push(name);
            }
            Ok(())
        })?;
        for name in unwanted {
            globals.raw_set(name, Value::Nil)?;
        }
        let (keys, argv) = (lua.create_table()?, lua.create_table()?);
        globals.raw_set("KEYS", &keys)?;
        globals.raw_set("ARGV", &argv)?;
        protect(&lua, &globals)?;
        let mut scripts = Vec::with_capacity(4);
        let spread = lua.load(SPREAD).set_name("spread").into_function()?;
        for name in ScriptName::ALL {
            // The shebang is Redis' own; a blank line in its place keeps line numbers.
            let text = name.script().text();
            let body = text.split_once('\n').map_or("", |(_, body)| body);
            let script = lua.load(format!("\n{body}")).set_name(name.as_str()).into_function()?;
            scripts.push(spread.call::<Function>(script)?);
        }
        let scripts = scripts.try_into().map_err(|_| mlua::Error::runtime("four scripts"))?;
        Ok(Self { _lua: lua, keys, argv, scripts, server, publications })
    }

    pub(super) fn run(
        &mut self,
        name: ScriptName,
        call: &Call,
        now_ms: u64,
    ) -> Result<Vec<ReplyItem>, StoreError> {
        {
            let mut server = self.server.lock();
            server.now_ms = now_ms;
            server.expiry_ms = server.expiry_ms.max(now_ms);
            server.read_only = name == ScriptName::View;
            let expired = server.expiry_ms;
            server.space.collect(expired);
            // As for a script with a shebang in a full Redis: refused before it has run.
            if server.space.len() >= MAX_KEYS && !server.read_only {
                return Err(StoreError::new(StoreErrorKind::OutOfMemory, "OOM the embedded home is full"));
            }
        }
        let reply = self.call(name, call);
        self.publish();
        reply.map_err(|error| script_error(&error)).and_then(reply_items)
    }

    fn call(&self, name: ScriptName, call: &Call) -> mlua::Result<MultiValue> {
        fill(&self.keys, &call.keys)?;
        fill(&self.argv, &call.args)?;
        self.scripts[name as usize].call::<MultiValue>(())
    }

    fn publish(&self) {
        let published = std::mem::take(&mut self.server.lock().published);
        for message in published {
            // Nobody listens: then nobody wants to know.
            let _ = self.publications.send(message.into());
        }
    }

    pub(super) fn stored(&self, key: &str, now_ms: u64) -> Option<Stored> {
        let server = self.server.lock();
        server.space.get(key.as_bytes(), server.expiry_ms.max(now_ms)).cloned()
    }

    pub(super) fn replace(&self, key: &str, value: Option<Stored>) {
        self.server.lock().space.replace(key.as_bytes(), value);
    }

    pub(super) fn len(&self) -> usize {
        self.server.lock().space.len()
    }
}

fn fill(table: &Table, words: &[String]) -> mlua::Result<()> {
    let before = table.raw_len();
    for (index, word) in words.iter().enumerate() {
        table.raw_seti(index + 1, word.as_str())?;
    }
    for index in words.len()..before {
        table.raw_seti(index + 1, Value::Nil)?;
    }
    Ok(())
}

/// `redis.call` raises what it refuses, `redis.pcall` returns it.
fn redis_table(lua: &Lua, server: &Arc<Mutex<Server>>) -> mlua::Result<Table> {
    let redis = lua.create_table()?;
    let at = Arc::clone(server);
    redis.set(
        "call",
        lua.create_function(move |lua, words: Words| {
            command(lua, &at, words).map_err(|Refused(why)| mlua::Error::runtime(why))
        })?,
    )?;
    let at = Arc::clone(server);
    redis.set(
        "pcall",
        lua.create_function(move |lua, words: Words| {
            command(lua, &at, words).or_else(|Refused(why)| error_reply(lua, &why))
        })?,
    )?;
    redis.set(
        "error_reply",
        lua.create_function(|lua, why: mlua::LuaString| error_reply(lua, &why.to_string_lossy()))?,
    )?;
    Ok(redis)
}

type Word = Option<BString>;

/// The words of a command. A tuple, because its elements are copied straight from the stack, where a list of
/// values makes a reference of each, which costs several times as much.
type Words = (Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word);

fn command(lua: &Lua, server: &Mutex<Server>, words: Words) -> Result<Value, Refused> {
    let (w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, beyond) = words;
    if beyond.is_some() {
        return Err(not_a_word());
    }
    let words: [Word; MAX_WORDS] = [w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12];
    let given = words.iter().take_while(|word| word.is_some()).count();
    if words[given..].iter().any(Option::is_some) {
        return Err(not_a_word());
    }
    server.lock().call(lua, &words.map(Option::unwrap_or_default)[..given])
}

fn error_reply(lua: &Lua, why: &str) -> mlua::Result<Value> {
    let table = lua.create_table()?;
    table.raw_set("err", why)?;
    Ok(Value::Table(table))
}

/// Reading or writing a global that is not there is an error, as in Redis.
fn protect(lua: &Lua, globals: &Table) -> mlua::Result<()> {
    let strict = lua.create_table()?;
    strict.set(
        "__index",
        lua.create_function(|_, (_, name): (Value, mlua::LuaString)| -> mlua::Result<Value> {
            Err(mlua::Error::runtime(format!(
                "Script attempted to access nonexistent global variable '{}'",
                name.display()
            )))
        })?,
    )?;
    strict.set(
        "__newindex",
        lua.create_function(|_, _: MultiValue| -> mlua::Result<()> {
            Err(mlua::Error::runtime("Attempt to modify a readonly table"))
        })?,
    )?;
    globals.set_metatable(Some(strict))
}

fn script_error(error: &mlua::Error) -> StoreError {
    let detail = error.to_string();
    // The traceback names lines of the assembled text: of no use to an operator.
    let detail = detail.lines().next().unwrap_or_default().to_owned();
    StoreError::new(StoreErrorKind::of_message(&detail), detail)
}

/// Converts as Redis does: numbers lose their fraction, `err` is an error.
fn reply_items(values: MultiValue) -> Result<Vec<ReplyItem>, StoreError> {
    if let (Some(Value::Boolean(false)), Some(Value::String(why))) = (values.front(), values.get(1)) {
        let why = why.to_string_lossy();
        return Err(StoreError::new(StoreErrorKind::of_message(&why), why));
    }
    let item = |value| match value {
        Value::Number(n) => Ok(ReplyItem::Integer(n as i64)),
        Value::Integer(n) => Ok(ReplyItem::Integer(n)),
        Value::String(text) => Ok(ReplyItem::Text(text.to_string_lossy())),
        _ => Err(StoreError::new(
            StoreErrorKind::BadReply,
            "the script returned something that is neither integer nor text".to_owned(),
        )),
    };
    values.into_iter().map(item).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::unwrap_used, clippy::used_underscore_binding, reason = "a test of what the field holds")]
    fn what_could_leave_the_sandbox_is_not_there() {
        let (publications, _) = broadcast::channel(1);
        let interpreter = Interpreter::new(publications).unwrap();
        let globals = interpreter._lua.globals();
        for name in [
            "bit",
            "collectgarbage",
            "coroutine",
            "debug",
            "dofile",
            "ffi",
            "getfenv",
            "io",
            "jit",
            "load",
            "loadfile",
            "loadstring",
            "module",
            "newproxy",
            "os",
            "package",
            "print",
            "require",
            "setfenv",
        ] {
            assert!(globals.raw_get::<Value>(name).unwrap().is_nil(), "{name}");
        }
    }
}
