"""The official Anthropic SDK against an agent: answers, streams, tools, and the other endpoints.

Refusals and faults are in anthropic_errors.py. Models and what the provider plays for each:
`crates/sluice-agent/tests/sdk_anthropic.rs`.
"""

import asyncio
import json

from anthropic import Anthropic, AsyncAnthropic
from cases import case, main

HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {
    "name": "weather",
    "description": "The weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
# What the provider says unless a model has a part of its own: five tokens.
SAID = "water finds its own level"

client = Anthropic()


def ask(model="claude-x", **options):
    return {"model": model, "max_tokens": 100, "messages": HELLO, **options}


@case
def plain():
    answer = client.messages.create(**ask(system="be brief"))
    assert [block.text for block in answer.content] == [SAID], answer
    assert (answer.stop_reason, answer.usage.input_tokens, answer.usage.output_tokens) == ("end_turn", 11, 5)


@case
def plain_async():
    async def together():
        async with AsyncAnthropic() as asynchronous:
            return await asyncio.gather(*(asynchronous.messages.create(**ask()) for _ in range(5)))

    assert [answer.content[0].text for answer in asyncio.run(together())] == [SAID] * 5


@case
def cut_short():
    answer = client.messages.create(**ask(max_tokens=2))
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 2), answer


@case
def stream():
    events = list(client.messages.create(**ask(stream=True)))
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds
    assert kinds.count("message_stop") == 1
    texts = [event.delta.text for event in events if event.type == "content_block_delta"]
    assert "".join(texts) == SAID, texts
    assert events[-2].usage.output_tokens == 5, events[-2]


@case
def stream_helper():
    with client.messages.stream(**ask(system=[{"type": "text", "text": "be brief"}])) as events:
        assert "".join(events.text_stream) == SAID
        final = events.get_final_message()
    assert final.content[0].text == SAID
    assert (final.usage.input_tokens, final.usage.output_tokens) == (11, 5), final


@case
def stream_async():
    async def read():
        async with AsyncAnthropic() as asynchronous:
            async with asynchronous.messages.stream(**ask()) as events:
                texts = [text async for text in events.text_stream]
                return "".join(texts), await events.get_final_message()

    text, final = asyncio.run(read())
    assert (text, final.stop_reason) == (SAID, "end_turn")


@case
def tools():
    answer = client.messages.create(**ask("play-tool", tools=[WEATHER]))
    use = answer.content[0]
    assert (answer.stop_reason, use.type, use.name) == ("tool_use", "tool_use", "weather"), answer
    assert use.input == {"city": "Paris", "unit": "celsius"}


@case
def tools_stream():
    pieces = []
    with client.messages.stream(**ask("play-tool", tools=[WEATHER])) as events:
        for event in events:
            if event.type == "input_json":
                pieces.append(event.partial_json)
        final = events.get_final_message()
    assert len(pieces) > 1 and json.loads("".join(pieces))["city"] == "Paris", pieces
    assert final.content[0].input == {"city": "Paris", "unit": "celsius"}, final


@case
def thinking():
    budget = {"type": "enabled", "budget_tokens": 1024}
    asked = ask("play-thinking", max_tokens=2048, thinking=budget)
    answer = client.messages.create(**asked)
    assert [block.type for block in answer.content] == ["thinking", "text"], answer
    thought = []
    with client.messages.stream(**asked) as events:
        for event in events:
            if event.type == "thinking":
                thought.append(event.thinking)
        final = events.get_final_message()
    assert "".join(thought) == answer.content[0].thinking, thought
    assert final.content[0].signature == answer.content[0].signature
    assert final.content[1].text == SAID


@case
def unicode():
    text = client.messages.create(**ask("play-unicode")).content[0].text
    assert {len(character.encode()) for character in text} >= {2, 3, 4}, text
    with client.messages.stream(**ask("play-unicode")) as events:
        assert "".join(events.text_stream) == text
    long = [{"role": "user", "content": "水門 🌊 " * 100_000}]
    assert client.messages.create(**ask(messages=long)).content[0].text == SAID


@case
def odd_framing():
    with client.messages.stream(**ask("play-crlf")) as events:
        assert "".join(events.text_stream) == SAID


@case
def count_tokens():
    counted = client.messages.count_tokens(model="claude-x", messages=HELLO)
    assert counted.input_tokens == 11, counted


@case
def models():
    page = client.models.list()
    assert [model.id for model in page] == ["claude-x"], page
    assert (page.first_id, page.has_more) == ("claude-x", False)
    assert page.data[0].type == "model" and page.data[0].created_at.year == 1970


@case
def other_paths():
    assert client.models.retrieve("claude-x").display_name == "claude-x"
    echo = json.loads(client.messages.batches.with_raw_response.list(limit=3).text())
    assert echo["path"] == "/v1/messages/batches?limit=3", echo
    assert echo["headers"]["anthropic-version"] == client.default_headers["anthropic-version"], echo


@case
def headers():
    answer = client.beta.messages.create(
        **ask("play-headers"), betas=["context-1m-2025-08-07"], extra_headers={"x-of-the-app": "kept"}
    )
    assert answer.content[0].text == SAID
    raw = client.messages.with_raw_response.create(**ask())
    assert raw.headers["x-sluice-served-by"] == "primary", raw.headers
    assert raw.headers["request-id"].startswith("req_"), "the provider's own headers stay"
    assert raw.parse().content[0].text == SAID


@case
def streaming_response():
    with client.messages.with_streaming_response.create(**ask(stream=True)) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == 'data: {"type":"message_stop"}', lines


@case
def bearer_placeholder():
    # The other way to hold a key: `ANTHROPIC_AUTH_TOKEN`, sent as a bearer token.
    with Anthropic(api_key=None, auth_token="placeholder") as bearer:
        assert bearer.messages.create(**ask("play-bearer")).content[0].text == SAID


if __name__ == "__main__":
    main()
