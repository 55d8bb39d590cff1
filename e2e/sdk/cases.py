"""What the scripts of both SDKs share: cases by name, and what they say of errors.

A script is a list of functions marked `@case`. `python SCRIPT.py NAME...` runs those, `python SCRIPT.py` all of
them; each prints `ok NAME`, or `FAILED NAME` and a traceback, and the exit code is 1 when one failed. The world they
run in (base URL, key, routes, what the provider plays) is the test's that starts them: `crates/sluice-agent/tests`.

The clients are what an application has: made from the environment alone. The hooks below are the SDKs' own.
"""

import contextlib
import faulthandler
import logging
import sys
import traceback

# Seconds, far more than any case takes: one that hangs shows where it does.
PATIENCE = 30

_CASES = {}


def case(function):
    _CASES[function.__name__] = function
    return function


def main():
    names = sys.argv[1:] or list(_CASES)
    unknown = [name for name in names if name not in _CASES]
    if unknown:
        sys.exit(f"no such case: {', '.join(unknown)}; there are {', '.join(_CASES)}")
    failed = 0
    for name in names:
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        try:
            _CASES[name]()
        except Exception:
            failed += 1
            print(f"FAILED {name}", flush=True)
            traceback.print_exc(file=sys.stdout)
        else:
            print(f"ok {name}", flush=True)
    sys.exit(1 if failed else 0)


class Raised:
    """The exception of a `raises` block, once the block is over."""

    error = None


@contextlib.contextmanager
def raises(kind):
    """The block raises exactly this exception: a subclass is another answer to the application."""
    raised = Raised()
    try:
        yield raised
    except Exception as error:
        assert type(error) is kind, f"{kind.__name__} expected, not {type(error).__name__}: {error}"
        raised.error = error
        return
    raise AssertionError(f"{kind.__name__} expected, and nothing was raised")


class Wire(logging.Handler):
    """What the SDK's own transport saw and what its retry loop did about it."""

    def __init__(self):
        super().__init__(logging.INFO)
        self.responses = []
        self.waits = []

    def emit(self, record):
        # OpenAI's line has the wait first, Anthropic's has the URL before it.
        if record.msg.startswith("Retrying request"):
            self.waits.append(next(value for value in record.args if isinstance(value, float)))

    def statuses(self):
        return [response.status_code for response in self.responses]


@contextlib.contextmanager
def watched(sdk, client_class):
    """A client from the environment, and the wire under it."""
    wire = Wire()
    logger = logging.getLogger(f"{sdk.__name__}._base_client")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(wire)
    http_client = sdk.DefaultHttpxClient(event_hooks={"response": [wire.responses.append]})
    try:
        with client_class(http_client=http_client) as client:
            yield client, wire
    finally:
        logger.removeHandler(wire)
        logger.setLevel(level)


def refusal(error):
    """Why Sluice refused: the word that the header and the body agree on."""
    stage, reason = error.response.headers["x-sluice-refused"].split("/")
    body = error.response.json()["error"]["sluice"]
    assert (body["stage"], body["reason"]) == (stage, reason), body
    assert isinstance(body["upstream_attempt"], bool), body
    return reason
