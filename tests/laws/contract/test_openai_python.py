"""The unmodified `openai` client, sync and async, on a gateway with a simulated worker: what it returns and raises."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.support.harness import Stack


@pytest.fixture(params=["/v1", "/openai/v1", "/openai/v1/"])
def base(request: pytest.FixtureRequest, stack: Stack) -> str:
    return stack.url + str(request.param)


@pytest.fixture
def client(stack: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=stack.url + "/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def said(**script: Any) -> list[Any]:
    """Messages by which the simulated worker answers exactly this."""
    return [{"role": "user", "content": "sim:" + json.dumps(script)}]


def collect(stream: Iterable[Any], into: list[Any]) -> None:
    """Keeps what came, also when the stream raises."""
    for chunk in stream:
        into.append(chunk)


WEATHER: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CALL = {"name": "weather", "arguments": '{"city": "Zürich"}'}


def test_chat(base: str) -> None:
    with OpenAI(base_url=base, api_key="none") as client:
        reply = client.chat.completions.create(model="alias", messages=said(text="Grüezi 👋🏽"))
    assert reply.choices[0].message.content == "Grüezi 👋🏽"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.model == "alias"
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens > 0


def test_chat_streamed(base: str) -> None:
    with OpenAI(base_url=base, api_key="none") as client:
        chunks = list(client.chat.completions.create(model="alias", messages=said(text="one two three"), stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "one two three"
    assert [chunk.choices[0].delta.role for chunk in chunks if chunk.choices[0].delta.role] == ["assistant"]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert {chunk.model for chunk in chunks} == {"alias"}
    assert all(chunk.usage is None for chunk in chunks), "usage was not asked for"


@pytest.mark.parametrize("asked", [True, False])
def test_usage_chunk_only_when_asked(client: OpenAI, asked: bool) -> None:
    chunks = list(
        client.chat.completions.create(
            model="m", messages=said(text="a b"), stream=True, stream_options={"include_usage": asked}
        )
    )
    with_usage = [chunk for chunk in chunks if chunk.usage is not None]
    assert len(with_usage) == asked
    if asked:
        assert with_usage[0] is chunks[-1]
        assert chunks[-1].choices == []


def test_tool_calls(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        model="m", messages=said(tool_calls=[CALL, {**CALL, "arguments": "{}"}]), tools=WEATHER
    )
    assert reply.choices[0].finish_reason == "tool_calls"
    calls: list[Any] = list(reply.choices[0].message.tool_calls or ())
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("weather", CALL["arguments"]),
        ("weather", "{}"),
    ]


def test_tool_calls_streamed(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model="m", messages=said(tool_calls=[CALL], interleave=True), tools=WEATHER
    ) as stream:
        final = stream.get_final_completion()
    (call,) = list(final.choices[0].message.tool_calls or [])
    assert call.function.arguments == CALL["arguments"]
    assert final.choices[0].finish_reason == "tool_calls"


def test_reasoning_is_there_under_both_names(client: OpenAI) -> None:
    reply = client.chat.completions.create(model="m", messages=said(reasoning="hm", text="yes"))
    message = reply.choices[0].message.model_dump()
    assert (message["reasoning"], message["reasoning_content"], message["content"]) == ("hm", "hm", "yes")
    thought = {"reasoning": "", "reasoning_content": ""}
    for chunk in client.chat.completions.create(model="m", messages=said(reasoning="h m", text="yes"), stream=True):
        delta = chunk.choices[0].delta.model_dump()
        for name in thought:
            thought[name] += delta.get(name) or ""
    assert thought == {"reasoning": "h m", "reasoning_content": "h m"}


def test_several_choices_and_logprobs(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        model="m", messages=said(text="a"), n=3, temperature=0.5, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert reply.choices[0].logprobs is not None
    assert reply.choices[0].logprobs.content
    seen = {
        choice.index
        for chunk in client.chat.completions.create(
            model="m", messages=said(text="a"), n=3, temperature=0.5, stream=True
        )
        for choice in chunk.choices
    }
    assert seen == {0, 1, 2}


@pytest.mark.parametrize("prompt", ["x", ["x", "y"], [5, 6, 7], [[5, 6], [7, 8]]])
def test_text_completions(client: OpenAI, prompt: Any) -> None:
    reply = client.completions.create(model="m", prompt=prompt, max_tokens=4)
    assert len(reply.choices) == (2 if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1)
    chunks = list(client.completions.create(model="m", prompt=prompt, max_tokens=4, stream=True))
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices if choice.index == 0)
    assert text == reply.choices[0].text


@pytest.mark.parametrize("encoding", [None, "float"])
def test_embeddings(client: OpenAI, encoding: Any) -> None:
    options = {} if encoding is None else {"encoding_format": encoding}
    reply = client.embeddings.create(model="m", input=["a", "b"], **options)
    assert [item.index for item in reply.data] == [0, 1]
    assert all(isinstance(number, float) for number in reply.data[0].embedding)


def test_models(client: OpenAI) -> None:
    assert {model.id for model in client.models.list()} == {"m", "alias"}
    assert client.models.retrieve("alias").id == "alias"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("no/such")
    assert caught.value.code == "model_not_found"


def test_unknown_fields_reach_the_worker_untouched(client: OpenAI, stack: Stack) -> None:
    client.chat.completions.create(
        model="m", messages=said(text="a"), extra_body={"top_k": 7, "chat_template_kwargs": {"deep": [1, {"x": None}]}}
    )
    sent = json.loads(stack.sim.entries[-1].body)
    assert sent["top_k"] == 7
    assert sent["chat_template_kwargs"] == {"deep": [1, {"x": None}]}
    assert sent["model"] == "sim"


def test_client_credentials_never_go_upstream(client: OpenAI, stack: Stack) -> None:
    client.chat.completions.create(model="m", messages=said(text="a"), extra_headers={"x-secret": "canary"})
    names = {name for name, _ in stack.sim.entries[-1].headers}
    assert not names & {b"authorization", b"api-key", b"x-api-key", b"cookie", b"x-secret"}


@pytest.mark.parametrize(
    ("fault", "error", "code"),
    [
        ("status:400", openai.BadRequestError, "invalid_request"),
        ("status:500", openai.InternalServerError, "upstream_error"),
        ("status:503", openai.InternalServerError, "overloaded"),
        ("html", openai.InternalServerError, "upstream_malformed"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_errors_of_the_worker(
    client: OpenAI, fault: str, error: type[openai.APIStatusError], code: str, stream: bool
) -> None:
    with pytest.raises(error) as caught:
        client.chat.completions.create(model="m", messages=said(text="a", fault=fault), stream=stream)
    if fault != "html" or not stream:
        assert caught.value.code == code


@pytest.mark.parametrize(
    ("members", "error", "param"),
    [
        ({"model": "nobody"}, openai.NotFoundError, "model"),
        ({"temperature": 9}, openai.BadRequestError, "temperature"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"messages": [{"role": "user", "content": 1}]}, openai.BadRequestError, "messages.0.content"),
        ({"n": 0}, openai.BadRequestError, "n"),
        ({"extra_body": {"functions": [{"name": "f"}]}}, openai.BadRequestError, "functions"),
    ],
)
def test_errors_of_the_caller(
    client: OpenAI, members: dict[str, Any], error: type[openai.APIStatusError], param: str
) -> None:
    options: dict[str, Any] = {"model": "m", "messages": said(text="a"), **members}
    with pytest.raises(error) as caught:
        client.chat.completions.create(**options)
    assert caught.value.param == param
    assert caught.value.request_id


@pytest.mark.parametrize("fault", ["reset@2", "fin@2", "eof@2", "error-frame@2"])
def test_a_dying_worker_makes_the_client_raise(client: OpenAI, fault: str) -> None:
    stream = client.chat.completions.create(model="m", messages=said(text="one two three", fault=fault), stream=True)
    chunks: list[Any] = []
    with pytest.raises(openai.APIError):
        collect(stream, chunks)
    assert chunks
    assert {chunk.choices[0].finish_reason for chunk in chunks} == {None}


def test_retry_after_is_obeyed(stack: Stack) -> None:
    stack.sim.fault("status:503:1", count=1)
    with OpenAI(base_url=stack.url + "/v1", api_key="none", max_retries=1) as client:
        assert client.chat.completions.create(model="m", messages=said(text="a")).choices[0].message.content == "a"


def test_cancelled_stream_closes_the_worker_connection(client: OpenAI, stack: Stack) -> None:
    before = stack.sim.ledger.aborted
    stream = client.chat.completions.create(model="m", messages=said(text="a b c", fault="stall@2"), stream=True)
    next(iter(stream))
    stream.close()
    stack.run(stack.sim.ledger.wait(aborted=before + 1))


async def test_async_client(stack: Stack) -> None:
    async with AsyncOpenAI(base_url=stack.url + "/v1", api_key="none") as client:
        text = ""
        async for chunk in await client.chat.completions.create(model="m", messages=said(text="a b c"), stream=True):
            text += chunk.choices[0].delta.content or ""
        assert text == "a b c"
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="x", messages=said(text="a"))


def test_a_key_is_asked_for(stack: Stack) -> None:
    from gateway.auth import new_key

    key, entry = new_key("team")
    import yaml

    with Stack(config={"auth": "keys", "keys": yaml.safe_load(entry)}) as locked:
        with OpenAI(base_url=locked.url + "/v1", api_key="wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError) as caught:
                client.models.list()
            assert caught.value.code == "invalid_api_key"
            assert client.with_options(api_key=key).models.list().data
        assert httpx.get(locked.url + "/v1/models", headers={"api-key": key}).status_code == 200
        assert key not in locked.output.getvalue().decode()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("again", range(10))
def test_a_clients_time_out_is_its_own(stack: Stack, stream: bool, again: int) -> None:
    """Never an error of ours at the same moment, which is another class of exceptions."""
    before = stack.sim.ledger.aborted
    late = pytest.raises(openai.APITimeoutError)
    with OpenAI(base_url=stack.url + "/v1", api_key="none", max_retries=0, timeout=0.1) as client, late:
        client.chat.completions.create(model="m", messages=said(text="a", fault="stall@before"), stream=stream)
    stack.run(stack.sim.ledger.wait(aborted=before + 1))
