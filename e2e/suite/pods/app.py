"""An application of the tests: it calls models through the official SDKs, as it is told over HTTP.

It knows nothing of Sluice: address and key are what the SDKs find in the environment.

  POST /ask      {sdk, model, times, parallel, stream, headers, timeout}: calls, and what came of each
  POST /stream   {model}: begins a stream and answers at once; GET /streams tells of all of them
  GET  /chat     one stream, to its end: what the callers of this application wait for
  POST /load     {url, parallel}: calls that address until POST /halt; GET /load counts
  POST /signal   {program, signal}: to another container's program, where the pod shares its process namespace

On SIGTERM it ends what it has begun, as a web server does.
"""

import json
import os
import pathlib
import signal
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import anthropic
import openai

HELLO = [{"role": "user", "content": "hello"}]


class Lazy:
    """A client per SDK, made at its first use: the environment may have no key for the other one."""

    def __init__(self):
        self.lock = threading.Lock()
        self.clients = {}

    def get(self, sdk):
        with self.lock:
            if sdk not in self.clients:
                make = {"openai": openai.OpenAI, "anthropic": anthropic.Anthropic}[sdk]
                self.clients[sdk] = make(max_retries=0)
            return self.clients[sdk]


CLIENTS = Lazy()


def openai_call(model, stream, options):
    answer = CLIENTS.get("openai").chat.completions.with_raw_response.create(
        model=model, messages=HELLO, stream=stream, **options
    )
    if not stream:
        return answer, answer.parse().choices[0].message.content
    chunks = list(answer.parse())
    finished = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    if not finished or finished[-1] is None:
        raise RuntimeError("the stream ended without a finish_reason")
    return answer, "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def anthropic_call(model, stream, options):
    answer = CLIENTS.get("anthropic").messages.with_raw_response.create(
        model=model, messages=HELLO, stream=stream, max_tokens=options.pop("max_tokens", 100), **options
    )
    if not stream:
        return answer, answer.parse().content[0].text
    events = list(answer.parse())
    if not events or events[-1].type != "message_stop":
        raise RuntimeError("the stream ended without message_stop")
    return answer, "".join(event.delta.text for event in events if event.type == "content_block_delta")


CALLS = {"openai": openai_call, "anthropic": anthropic_call}


def told(error):
    """What an SDK's error says, as data."""
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, dict) else {}
    return {
        "status": getattr(error, "status_code", 0),
        "code": getattr(error, "code", None) or inner.get("code"),
        "error": f"{type(error).__name__}: {error}"[:500],
    }


def ask_once(order):
    options = {}
    for name, argument in (("headers", "extra_headers"), ("timeout", "timeout"), ("maxTokens", "max_tokens")):
        if name in order:
            options[argument] = order[name]
    began = time.monotonic()
    try:
        answer, text = CALLS[order.get("sdk", "openai")](order["model"], order.get("stream", False), options)
        result = {"status": answer.status_code, "text": text, "servedBy": answer.headers.get("x-sluice-served-by")}
    except Exception as error:
        result = told(error)
    result["ms"] = round((time.monotonic() - began) * 1000)
    return result


def ask(order):
    with ThreadPoolExecutor(order.get("parallel", 1)) as pool:
        return list(pool.map(lambda _: ask_once(order), range(order.get("times", 1))))


class Streams:
    def __init__(self):
        self.all = []

    def begin(self, order):
        state = {"tokens": 0, "done": False, "error": None}
        self.all.append(state)
        threading.Thread(target=self.play, args=(order, state)).start()

    def play(self, order, state):
        try:
            finished = None
            for chunk in CLIENTS.get("openai").chat.completions.create(
                model=order["model"], messages=HELLO, stream=True
            ):
                if chunk.choices:
                    state["tokens"] += bool(chunk.choices[0].delta.content)
                    finished = chunk.choices[0].finish_reason or finished
            if not finished:
                state["error"] = "it ended without a finish_reason"
        except Exception as error:
            state["error"] = told(error)["error"]
        state["done"] = True


class Load:
    """Callers that wait for an answer, and call again."""

    def __init__(self):
        self.lock = threading.Lock()
        self.counts = {"ok": 0, "failed": 0, "running": 0, "errors": []}
        self.halted = threading.Event()

    def begin(self, order):
        self.halted.clear()
        for _ in range(order.get("parallel", 4)):
            with self.lock:
                self.counts["running"] += 1
            threading.Thread(target=self.play, args=(order["url"],), daemon=True).start()

    def play(self, url):
        while not self.halted.is_set():
            try:
                with urllib.request.urlopen(url, timeout=60) as answer:
                    body = json.load(answer)
                error = None if body.get("status") == 200 else json.dumps(body)
            except Exception as failure:
                error = f"{type(failure).__name__}: {failure}"
            with self.lock:
                self.counts["ok" if error is None else "failed"] += 1
                if error and len(self.counts["errors"]) < 10:
                    self.counts["errors"].append(error[:500])
        with self.lock:
            self.counts["running"] -= 1


STREAMS = Streams()
LOAD = Load()


def send_signal(order):
    """To every process of that name."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name = (entry / "comm").read_text().strip()
            except OSError:
                continue
            if name == order["program"][:15]:
                os.kill(int(entry.name), getattr(signal, order["signal"]))
                found.append(int(entry.name))
    return {"signalled": found}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        # A caller must not send its next request to a server that is about to end.
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def do_GET(self):
        if self.path == "/healthz":
            return self.answer({"ok": True})
        if self.path == "/env":
            return self.answer(dict(os.environ))
        if self.path == "/streams":
            return self.answer(STREAMS.all)
        if self.path == "/load":
            return self.answer(LOAD.counts)
        if self.path == "/chat":
            return self.answer(ask_once({"model": os.environ.get("CHAT_MODEL", "gpt-4o"), "stream": True}))
        return self.send_error(404)

    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or "{}")
        if self.path == "/ask":
            return self.answer(ask(order))
        if self.path == "/stream":
            return self.answer(STREAMS.begin(order))
        if self.path == "/load":
            return self.answer(LOAD.begin(order))
        if self.path == "/halt":
            return self.answer(LOAD.halted.set())
        if self.path == "/signal":
            return self.answer(send_signal(order))
        return self.send_error(404)

    def log_message(self, form, *values):
        if "/healthz" not in str(values[0]):
            sys.stderr.write(f"{time.strftime('%H:%M:%S')} {form % values}\n")


class Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 256


def main():
    server = Server(("0.0.0.0", 8080), Handler)
    # shutdown() waits for the loop that this very handler interrupts: from another thread.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever(poll_interval=0.1)
    server.server_close()


main()
