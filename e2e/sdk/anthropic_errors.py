"""The official Anthropic SDK against an agent: refusals, faults, deadlines, and the SDK's own retries.

Models and what the provider plays for each: `crates/sluice-agent/tests/sdk_anthropic.rs`, which also counts what
reached the provider.
"""

import asyncio

import anthropic
from anthropic import Anthropic, AsyncAnthropic
from cases import case, main, raises, refusal, watched

HELLO = [{"role": "user", "content": "hello"}]

once = Anthropic(max_retries=0)


def ask(model, client=once, **options):
    return client.messages.create(**{"model": model, "max_tokens": 100, "messages": HELLO, **options})


def until_refused(model, **options):
    """Calls go through until the breaker or the bucket says no; what said no."""
    for _ in range(50):
        try:
            ask(model, **options)
        except anthropic.APIStatusError as error:
            if "x-sluice-refused" in error.response.headers:
                return error
    raise AssertionError(f"{model}: nothing was refused")


# Refusals


@case
def quota_is_waited_for():
    with watched(anthropic, Anthropic) as (client, wire):
        for _ in range(20):
            ask("brisk", client, max_tokens=900)
            if wire.waits:
                break
    assert wire.statuses()[-2:] == [429, 200], wire.statuses()
    said = wire.responses[-2].headers
    assert wire.waits[-1] == int(said["retry-after-ms"]) / 1000, (wire.waits, said)


@case
def quota_far_away_is_not_waited_for():
    error = until_refused("spent", max_tokens=900)
    assert type(error) is anthropic.RateLimitError and refusal(error) == "tokens_exhausted", error
    assert error.type == "rate_limit_error" and int(error.response.headers["retry-after"]) > 60
    # This SDK waits however long it is told; the header keeps it from a wait that no caller meant.
    with watched(anthropic, Anthropic) as (client, wire), raises(anthropic.RateLimitError):
        ask("spent", client, max_tokens=900)
    assert (wire.statuses(), wire.waits) == ([429], []), "x-should-retry: false is obeyed"


@case
def never_fits():
    with watched(anthropic, Anthropic) as (client, wire), raises(anthropic.BadRequestError) as raised:
        ask("spent", client, max_tokens=5_000)
    assert refusal(raised.error) == "never_fits" and raised.error.type == "invalid_request_error"
    assert wire.statuses() == [400]


@case
def breaker_open():
    error = until_refused("broken")
    assert type(error) is anthropic.ServiceUnavailableError and error.status_code == 503, error
    assert isinstance(error, anthropic.InternalServerError), "what applications catch"
    assert refusal(error) == "circuit_open" and error.type == "overloaded_error"
    with watched(anthropic, Anthropic) as (client, wire), raises(anthropic.ServiceUnavailableError):
        ask("broken", client)
    assert (wire.statuses(), wire.waits) == ([503], []), "two minutes are not waited for"


@case
def unknown_model():
    with watched(anthropic, Anthropic) as (client, wire), raises(anthropic.NotFoundError) as raised:
        ask("nobody-serves-this", client)
    assert raised.error.type == "not_found_error" and refusal(raised.error) == "model_not_found"
    assert wire.statuses() == [404]


@case
def unknown_path():
    with raises(anthropic.NotFoundError) as raised:
        once.messages.batches.list()
    assert refusal(raised.error) == "unknown_path"


@case
def bad_bodies():
    for body in [[], {"messages": HELLO}, {"model": 4}, {"model": ""}]:
        with raises(anthropic.BadRequestError) as raised:
            once.post("/v1/messages", body=body, cast_to=object)
        assert refusal(raised.error) == "invalid_request" and raised.error.type == "invalid_request_error"


@case
def body_too_large():
    # Far more than socket buffers hold: the answer comes while the SDK is still sending.
    with raises(anthropic.RequestTooLargeError) as raised:
        ask("claude-x", messages=[{"role": "user", "content": "x" * 16 * 1024 * 1024}])
    assert raised.error.status_code == 413 and raised.error.type == "request_too_large"


@case
def passthrough():
    with raises(anthropic.AuthenticationError) as raised:
        ask("theirs")
    assert raised.error.type == "authentication_error"
    assert "x-sluice-refused" not in raised.error.response.headers, "the provider's own answer"
    assert ask("theirs", once.with_options(api_key="sk-of-the-caller")).content


# The provider's own errors


@case
def own_credential_is_refused():
    with watched(anthropic, Anthropic) as (client, wire), raises(anthropic.ServiceUnavailableError) as raised:
        ask("play-permission", client)
    assert refusal(raised.error) == "credential_refused", "the caller's key is not at fault"
    assert wire.statuses() == [503], "no retry renews a Secret"


@case
def providers_errors():
    for model, kind, type_ in [
        ("play-context", anthropic.BadRequestError, "invalid_request_error"),
        ("play-missing", anthropic.NotFoundError, "not_found_error"),
        ("play-large", anthropic.RequestTooLargeError, "request_too_large"),
    ]:
        with watched(anthropic, Anthropic) as (client, wire), raises(kind) as raised:
            ask(model, client)
        assert raised.error.type == type_ and len(wire.responses) == 1, (model, raised.error)
        assert raised.error.request_id.startswith("req_")


@case
def overloaded():
    with watched(anthropic, Anthropic) as (client, wire), raises(anthropic.OverloadedError) as raised:
        ask("play-overloaded", client)
    assert wire.statuses() == [529] * 3 and raised.error.type == "overloaded_error", wire.statuses()


@case
def long_retry_after():
    with watched(anthropic, Anthropic) as (client, wire), raises(anthropic.RateLimitError) as raised:
        ask("push", client)
    assert wire.statuses() == [429] and raised.error.response.headers["retry-after"] == "90"
    error = until_refused("push")
    assert refusal(error) == "paused" and error.response.headers["x-should-retry"] == "false"


@case
def failover():
    with watched(anthropic, Anthropic) as (client, wire):
        assert ask("moved", client).content
        with client.messages.stream(model="moved", max_tokens=100, messages=HELLO) as events:
            assert events.get_final_message().stop_reason == "end_turn"
    assert wire.statuses() == [200, 200], wire.statuses()
    assert {response.headers["x-sluice-served-by"] for response in wire.responses} == {"fallback"}


# Deadlines


@case
def deadlines():
    for options in [{}, {"stream": True}]:
        with raises(anthropic.DeadlineExceededError) as raised:
            ask("hurried", **options)
        assert refusal(raised.error) == "upstream_timeout" and raised.error.type == "timeout_error"


@case
def clients_timeout():
    for options in [{}, {"stream": True}]:
        try:
            ask("play-hang", once.with_options(timeout=0.3), **options)
        except anthropic.APITimeoutError:
            continue
        except anthropic.DeadlineExceededError as error:
            # The agent's clock was first: it knows the SDK's timeout.
            assert error.response.headers["x-should-retry"] == "false", error
            continue
        raise AssertionError("an answer came from nowhere")


# Streams that don't end well


def broken(model):
    """The events before the fault arrive, and the iteration raises."""
    read = []
    with raises(anthropic.APIStatusError) as raised:
        for event in ask(model, stream=True):
            read.append(event.type)
    assert "content_block_delta" in read and "message_stop" not in read, (model, read)
    return raised.error


@case
def cut():
    for model in ["play-cut-close", "play-cut-reset", "play-cut-mid-event", "play-cut-eof"]:
        error = broken(model)
        assert error.type == "api_error" and "not complete" in error.api_message, (model, error.body)
        assert error.body["error"]["sluice"]["code"] == "upstream_invalid"


@case
def cut_in_helper():
    # `get_final_message` would take what came so far for the whole message.
    with raises(anthropic.APIStatusError), once.messages.stream(
        model="play-cut-close", max_tokens=100, messages=HELLO
    ) as events:
        events.get_final_message()


@case
def cut_async():
    async def read():
        async with AsyncAnthropic(max_retries=0) as client:
            async with client.messages.stream(
                model="play-cut-eof", max_tokens=100, messages=HELLO
            ) as events:
                async for _ in events.text_stream:
                    pass

    with raises(anthropic.APIStatusError):
        asyncio.run(read())


@case
def cut_plain():
    with raises(anthropic.InternalServerError) as raised:
        ask("play-cut-close")
    assert raised.error.status_code == 502 and refusal(raised.error) == "upstream_invalid"


@case
def stalled():
    assert broken("stalling").type == "timeout_error"


@case
def error_in_stream():
    error = broken("play-stream-error")
    assert error.type == "overloaded_error" and "sluice" not in error.body["error"], error.body


@case
def closed_early():
    with once.messages.stream(model="play-closed", max_tokens=100, messages=HELLO) as events:
        next(iter(events.text_stream))


# The last case: the agent ends.


@case
def drained():
    error = broken("play-endless")
    assert error.type == "overloaded_error" and "shuts down" in error.api_message, error.body


if __name__ == "__main__":
    main()
