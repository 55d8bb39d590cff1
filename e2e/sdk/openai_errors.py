"""The official OpenAI SDK against an agent: refusals, faults, deadlines, and the SDK's own retries.

Models and what the provider plays for each: `crates/sluice-agent/tests/sdk_openai.rs`, which also counts what
reached the provider.
"""

import asyncio

import openai
from cases import case, main, raises, refusal, watched
from openai import AsyncOpenAI, OpenAI

HELLO = [{"role": "user", "content": "hello"}]

once = OpenAI(max_retries=0)


def chat(model, client=once, **options):
    return client.chat.completions.create(model=model, messages=HELLO, **options)


def until_refused(model, **options):
    """Calls go through until the breaker or the bucket says no; what said no."""
    for _ in range(50):
        try:
            chat(model, **options)
        except openai.APIStatusError as error:
            if "x-sluice-refused" in error.response.headers:
                return error
    raise AssertionError(f"{model}: nothing was refused")


# Refusals


@case
def quota_is_waited_for():
    with watched(openai, OpenAI) as (client, wire):
        for _ in range(20):
            chat("brisk", client, max_tokens=900)
            if wire.waits:
                break
    assert wire.statuses()[-2:] == [429, 200], wire.statuses()
    said = wire.responses[-2].headers
    assert wire.waits[-1] == int(said["retry-after-ms"]) / 1000, (wire.waits, said)
    assert "x-should-retry" not in said


@case
def quota_far_away_is_not_waited_for():
    error = until_refused("spent", max_tokens=900)
    assert type(error) is openai.RateLimitError and refusal(error) == "tokens_exhausted", error
    assert (error.type, error.code) == ("rate_limit_error", "tokens_exhausted")
    assert int(error.response.headers["retry-after"]) > 60
    with watched(openai, OpenAI) as (client, wire), raises(openai.RateLimitError):
        chat("spent", client, max_tokens=900)
    assert (wire.statuses(), wire.waits) == ([429], []), "x-should-retry: false is obeyed"


@case
def never_fits():
    with watched(openai, OpenAI) as (client, wire), raises(openai.BadRequestError) as raised:
        chat("spent", client, max_tokens=5_000)
    assert refusal(raised.error) == "never_fits" and wire.statuses() == [400]
    assert "sluice: " in raised.error.message


@case
def breaker_open():
    error = until_refused("broken")
    assert (type(error), error.status_code) == (openai.InternalServerError, 503), error
    assert refusal(error) == "circuit_open" and error.type == "server_error"
    assert not error.body["sluice"]["upstream_attempt"]
    with watched(openai, OpenAI) as (client, wire), raises(openai.InternalServerError):
        chat("broken", client)
    assert (wire.statuses(), wire.waits) == ([503], []), "two minutes are not waited for"


@case
def breaker_open_for_a_moment():
    error = until_refused("flaky")
    headers = error.response.headers
    assert refusal(error) == "circuit_open" and 0 < int(headers["retry-after"]) <= 30, headers
    assert "x-should-retry" not in headers


@case
def unknown_model():
    with watched(openai, OpenAI) as (client, wire), raises(openai.NotFoundError) as raised:
        chat("nobody-serves-this", client)
    assert raised.error.code == "model_not_found" and refusal(raised.error) == "model_not_found"
    assert wire.statuses() == [404]


@case
def unknown_path():
    with raises(openai.NotFoundError) as raised:
        once.files.list()
    assert refusal(raised.error) == "unknown_path"


@case
def bad_bodies():
    for body in [[], {"messages": HELLO}, {"model": 4}, {"model": ""}]:
        with raises(openai.BadRequestError) as raised:
            once.post("/chat/completions", body=body, cast_to=object)
        assert refusal(raised.error) == "invalid_request" and raised.error.type == "invalid_request_error"


@case
def body_too_large():
    # Far more than socket buffers hold: the answer comes while the SDK is still sending.
    with raises(openai.APIStatusError) as raised:
        once.embeddings.create(model="gpt-4o", input="x" * 16 * 1024 * 1024)
    assert raised.error.status_code == 413 and refusal(raised.error) == "body_too_large"


# Credentials


@case
def passthrough():
    with raises(openai.AuthenticationError) as raised:
        chat("theirs")
    assert raised.error.code == "invalid_api_key", "the provider's own answer"
    assert "x-sluice-refused" not in raised.error.response.headers
    assert chat("theirs", once.with_options(api_key="sk-of-the-caller")).choices


@case
def own_credential_is_refused():
    for model in ["stale", "play-permission"]:
        with watched(openai, OpenAI) as (client, wire), raises(openai.InternalServerError) as raised:
            chat(model, client)
        assert refusal(raised.error) == "credential_refused", "the caller's key is not at fault"
        assert wire.statuses() == [503], "no retry renews a Secret"


# The provider's own errors


@case
def providers_errors():
    for model, kind, code in [
        ("play-context", openai.BadRequestError, "context_length_exceeded"),
        ("play-missing", openai.NotFoundError, "model_not_found"),
        ("play-unprocessable", openai.UnprocessableEntityError, None),
    ]:
        with watched(openai, OpenAI) as (client, wire), raises(kind) as raised:
            chat(model, client)
        assert raised.error.code == code and len(wire.responses) == 1, (model, raised.error)
        assert raised.error.response.headers["x-sluice-served-by"] == "primary"


@case
def spend_cap():
    with watched(openai, OpenAI) as (client, wire), raises(openai.RateLimitError) as raised:
        chat("play-spend-cap", client)
    assert raised.error.code == "insufficient_quota"
    assert wire.statuses() == [429], "no wait brings the money back"


@case
def long_retry_after():
    with watched(openai, OpenAI) as (client, wire), raises(openai.RateLimitError) as raised:
        chat("push", client)
    assert wire.statuses() == [429] and raised.error.response.headers["retry-after"] == "90"
    # The pause holds for everyone, and Sluice says so itself.
    error = until_refused("push")
    assert refusal(error) == "paused" and error.response.headers["x-should-retry"] == "false"


@case
def sdk_retries():
    with watched(openai, OpenAI) as (client, wire), raises(openai.InternalServerError) as raised:
        chat("play-down", client)
    assert wire.statuses() == [503] * 3 and raised.error.code == "service_unavailable", wire.statuses()


@case
def failover():
    for options in [{}, {"stream": True}]:
        with watched(openai, OpenAI) as (client, wire):
            answer = chat("moved", client, **options)
            if options:
                assert any(chunk.choices[0].delta.content for chunk in answer)
        assert wire.statuses() == [200], wire.statuses()
        assert wire.responses[0].headers["x-sluice-served-by"] == "fallback"


# Deadlines


@case
def total_deadline():
    with raises(openai.InternalServerError) as raised:
        chat("hurried")
    assert raised.error.status_code == 504 and refusal(raised.error) == "upstream_timeout"
    assert raised.error.body["sluice"]["upstream_attempt"]


@case
def first_token_deadline():
    with raises(openai.InternalServerError) as raised:
        chat("hurried", stream=True)
    assert raised.error.status_code == 504 and refusal(raised.error) == "upstream_timeout"


@case
def clients_timeout():
    for options in [{}, {"stream": True}]:
        try:
            chat("play-hang", once.with_options(timeout=0.3), **options)
        except openai.APITimeoutError:
            continue
        except openai.InternalServerError as error:
            # The agent's clock was first: it knows the SDK's timeout.
            assert error.status_code == 504 and error.response.headers["x-should-retry"] == "false", error
            continue
        raise AssertionError("an answer came from nowhere")


# Streams that don't end well


def broken(model, kind=openai.APIError, create=chat):
    """The chunks before the fault arrive, and the iteration raises."""
    read = []
    with raises(kind) as raised:
        for chunk in create(model, stream=True):
            read.append(chunk)
    assert read, f"{model}: {raised.error}"
    return raised.error


def respond(model, **options):
    return once.responses.create(model=model, input="hello", **options)


@case
def cut():
    for model in ["play-cut-close", "play-cut-reset", "play-cut-mid-event", "play-cut-eof"]:
        for create in [chat, respond]:
            error = broken(model, create=create)
            assert (error.type, error.code) == ("server_error", "upstream_invalid"), (model, error.body)
            assert "not complete" in error.message, error


@case
def cut_async():
    async def ask():
        async with AsyncOpenAI(max_retries=0) as client:
            async for chunk in await chat("play-cut-close", client, stream=True):
                read.append(chunk)

    read = []
    with raises(openai.APIError) as raised:
        asyncio.run(ask())
    assert read and raised.error.code == "upstream_invalid"


@case
def cut_in_helper():
    with raises(openai.APIError), once.chat.completions.stream(
        model="play-cut-close", messages=HELLO
    ) as events:
        events.get_final_completion()


@case
def cut_before_first_token():
    # Nothing has reached the SDK: it gets a status, and may come again.
    with raises(openai.InternalServerError) as raised:
        chat("play-cut-at-once", stream=True)
    assert raised.error.status_code == 502 and "x-should-retry" not in raised.error.response.headers


@case
def cut_plain():
    with raises(openai.InternalServerError) as raised:
        chat("play-cut-close")
    assert raised.error.status_code == 502 and refusal(raised.error) == "upstream_invalid"


@case
def stalled():
    assert broken("stalling").code == "upstream_timeout"
    assert broken("stalling", create=respond).code == "upstream_timeout"


@case
def error_in_stream():
    error = broken("play-stream-error")
    assert error.body["type"] == "server_error", error.body
    assert "sluice" not in error.body, "the provider's own words"


@case
def error_at_once():
    # The first event is an error: another target serves, as nothing was shown yet.
    chunks = list(chat("moved-stream-error", stream=True))
    assert chunks[-1].choices[0].finish_reason == "stop", chunks


@case
def closed_early():
    with chat("play-closed", stream=True) as chunks:
        next(iter(chunks))


# The last case: the agent ends.


@case
def drained():
    error = broken("play-endless")
    assert (error.code, error.type) == ("draining", "server_error"), error.body
    assert "shuts down" in error.message, error


if __name__ == "__main__":
    main()
