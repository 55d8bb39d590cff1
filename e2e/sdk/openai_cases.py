"""The official OpenAI SDK against an agent: answers, streams, tools, and the other endpoints.

Refusals and faults are in openai_errors.py. Models and what the provider plays for each:
`crates/sluice-agent/tests/sdk_openai.rs`.
"""

import asyncio
import json

from cases import case, main
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
# What the provider says unless a model has a part of its own: five tokens.
SAID = "water finds its own level"

client = OpenAI()


def chat(model="gpt-4o", **options):
    return client.chat.completions.create(model=model, messages=HELLO, **options)


def text_of(chunks):
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


@case
def plain():
    answer = chat()
    assert answer.choices[0].message.content == SAID, answer
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (11, 5)


@case
def plain_async():
    async def ask():
        async with AsyncOpenAI() as asynchronous:
            return await asyncio.gather(
                *(asynchronous.chat.completions.create(model="gpt-4o", messages=HELLO) for _ in range(5))
            )

    answers = asyncio.run(ask())
    assert [answer.choices[0].message.content for answer in answers] == [SAID] * 5


@case
def stream():
    chunks = list(chat(stream=True))
    assert text_of(chunks) == SAID, chunks
    # Whoever did not ask for usage indexes `choices[0]` of every chunk.
    assert all(len(chunk.choices) == 1 for chunk in chunks), chunks
    assert all(chunk.usage is None for chunk in chunks), chunks
    assert chunks[-1].choices[0].finish_reason == "stop"


@case
def stream_without_usage():
    chunks = list(chat(stream=True, stream_options={"include_usage": False}))
    assert text_of(chunks) == SAID
    assert all(len(chunk.choices) == 1 for chunk in chunks), chunks


@case
def stream_with_usage():
    *chunks, last = chat(stream=True, stream_options={"include_usage": True})
    assert text_of(chunks) == SAID
    assert last.choices == [] and last.usage.completion_tokens == 5, last
    assert all(chunk.choices for chunk in chunks), "usage comes once"


@case
def stream_async():
    async def ask():
        async with AsyncOpenAI() as asynchronous:
            chunks = await asynchronous.chat.completions.create(model="gpt-4o", messages=HELLO, stream=True)
            return [chunk async for chunk in chunks]

    assert text_of(asyncio.run(ask())) == SAID


@case
def tools():
    choice = chat("play-tool", tools=[WEATHER]).choices[0]
    call = choice.message.tool_calls[0]
    assert (choice.finish_reason, call.function.name) == ("tool_calls", "weather"), choice
    assert json.loads(call.function.arguments) == {"city": "Paris", "unit": "celsius"}


@case
def tools_stream():
    name, arguments = "", ""
    for chunk in chat("play-tool", tools=[WEATHER], stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            name += call.function.name or ""
            arguments += call.function.arguments or ""
    assert name == "weather" and json.loads(arguments)["city"] == "Paris", (name, arguments)


@case
def tools_stream_helper():
    with client.chat.completions.stream(model="play-tool", messages=HELLO, tools=[WEATHER]) as events:
        done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
        final = events.get_final_completion()
    assert [json.loads(event.arguments)["city"] for event in done] == ["Paris"], done
    assert final.choices[0].message.tool_calls[0].function.name == "weather"


class City(BaseModel):
    name: str
    rivers: list[str]


@case
def structured():
    answer = client.chat.completions.parse(model="play-city", messages=HELLO, response_format=City)
    assert answer.choices[0].message.parsed == City(name="Köln", rivers=["Rhein"]), answer


@case
def structured_stream():
    with client.chat.completions.stream(
        model="play-city", messages=HELLO, response_format=City
    ) as events:
        final = events.get_final_completion()
    assert final.choices[0].message.parsed.name == "Köln", final


@case
def choices():
    answer = chat("play-choices", n=2)
    assert [choice.message.content for choice in answer.choices] == ["one", "two"], answer


@case
def choices_stream():
    texts = {0: "", 1: ""}
    for chunk in chat("play-choices", n=2, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {0: "one", 1: "two"}, texts


@case
def completions():
    answer = client.completions.create(model="gpt-4o", prompt="hello")
    assert (answer.choices[0].text, answer.usage.completion_tokens) == (SAID, 5), answer


@case
def completions_stream():
    chunks = list(client.completions.create(model="gpt-4o", prompt="hello", stream=True))
    assert all(len(chunk.choices) == 1 for chunk in chunks), chunks
    assert "".join(chunk.choices[0].text for chunk in chunks) == SAID, chunks


@case
def responses():
    answer = client.responses.create(model="gpt-4o", input="hello")
    assert (answer.status, answer.output_text, answer.usage.output_tokens) == ("completed", SAID, 5), answer


@case
def responses_stream():
    events = list(client.responses.create(model="gpt-4o", input="hello", stream=True))
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == SAID, deltas
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.usage.output_tokens == 5


@case
def responses_stream_helper():
    tool = {"type": "function", "strict": False, **WEATHER["function"]}
    with client.responses.stream(model="play-tool", input="hello", tools=[tool]) as events:
        for _ in events:
            pass
        final = events.get_final_response()
    call = next(item for item in final.output if item.type == "function_call")
    assert (call.name, json.loads(call.arguments)["city"]) == ("weather", "Paris"), final


@case
def reasoning():
    message = chat("play-reasoning").choices[0].message
    assert message.reasoning_content and message.content, message
    deltas = [chunk.choices[0].delta for chunk in chat("play-reasoning", stream=True)]
    thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert thought == message.reasoning_content, thought
    assert "".join(delta.content or "" for delta in deltas) == message.content
    answer = client.responses.create(model="play-reasoning", input="hello")
    assert answer.usage.output_tokens_details.reasoning_tokens == 3, answer


@case
def unicode():
    message = chat("play-unicode").choices[0].message.content
    assert {len(character.encode()) for character in message} >= {2, 3, 4}, message
    assert text_of(chat("play-unicode", stream=True)) == message
    # A prompt of 1.5 MiB with such characters, and the model's name after it.
    long = client.chat.completions.create(
        messages=[{"role": "user", "content": "水門 🌊 " * 100_000}], model="gpt-4o"
    )
    assert long.choices[0].message.content == SAID


@case
def odd_framing():
    # CRLF, comments, and one byte per write.
    assert text_of(chat("play-crlf", stream=True)) == SAID


@case
def embeddings():
    answer = client.embeddings.create(model="text-embedding-3-small", input=["one", "two"], dimensions=4)
    assert [len(item.embedding) for item in answer.data] == [4, 4], answer
    assert answer.usage.total_tokens == 11


@case
def models():
    listed = [model.id for model in client.models.list()]
    assert listed == ["gpt-4o", "text-embedding-3-small"], listed


@case
def other_paths():
    files = client.files.with_raw_response.list(limit=3)
    assert json.loads(files.text)["path"] == "/v1/files?limit=3", files.text
    moderation = client.moderations.with_raw_response.create(input="hello")
    assert json.loads(moderation.text)["path"] == "/v1/moderations", moderation.text
    assert client.models.retrieve("gpt-4o").id == "gpt-4o"


@case
def raw_response():
    raw = client.chat.completions.with_raw_response.create(model="gpt-4o", messages=HELLO)
    assert raw.headers["x-sluice-served-by"] == "primary", raw.headers
    assert raw.headers["x-request-id"].startswith("req_"), "the provider's own headers stay"
    assert raw.parse().choices[0].message.content == SAID


@case
def streaming_response():
    with client.chat.completions.with_streaming_response.create(
        model="gpt-4o", messages=HELLO, stream=True
    ) as response:
        assert response.headers["x-sluice-served-by"] == "primary", response.headers
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]", lines


if __name__ == "__main__":
    main()
