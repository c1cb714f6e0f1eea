"""azure-ai-inference 1.0.0b9, unmodified, against a running gateway and a simulated worker.

What is asserted is what the client returns or raises: the one that blocks, and the asynchronous one.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import httpx
import pytest
import yaml
from azure.ai.inference import ChatCompletionsClient, EmbeddingsClient, load_client
from azure.ai.inference.aio import ChatCompletionsClient as AsyncChatCompletionsClient
from azure.ai.inference.models import (
    ChatCompletionsToolDefinition,
    FunctionDefinition,
    ImageContentItem,
    ImageUrl,
    JsonSchemaFormat,
    StreamingChatCompletionsUpdate,
    SystemMessage,
    TextContentItem,
    ToolMessage,
    UserMessage,
)
from azure.core.credentials import AzureKeyCredential
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceNotFoundError,
)

from gateway.auth import new_key
from gateway.core.errors import GatewayError, Kind
from gateway.dialects.azure_inference import AzureInference
from tests.support.harness import Stack

# A ChatCompletionsClient. Its annotations hide that a stream is a context manager.
Client = Any
# (stack, key, options) -> Client
Open = Callable[..., Client]

PATH = "/azure/chat/completions?api-version=2024-05-01-preview"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    config = {
        "dialects": {"azure_inference": {"default_model": "m"}},
        "models": {"plain": {"backend": "vllm", "workers": ["http://127.0.0.1:9"], "features": ["completions"]}},
    }
    # A token takes time, so that what follows it is not in the same packet.
    with Stack(workers=({"itl_ms": 20.0},), config=config) as running:
        yield running


class Blocking:
    """The asynchronous client or one of its streams, on a loop of its own, called as its twin that blocks."""

    def __init__(self, runner: asyncio.Runner, inner: Any) -> None:
        self._runner = runner
        self._inner = inner

    def __enter__(self) -> Blocking:
        self._runner.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._inner.__aexit__(kind, error, trace))

    def complete(self, **members: Any) -> Any:
        found = self._runner.run(self._inner.complete(**members))
        return Blocking(self._runner, found) if members.get("stream") else found

    def get_model_info(self) -> Any:
        return self._runner.run(self._inner.get_model_info())

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                yield self._runner.run(self._inner.__anext__())
            except StopAsyncIteration:
                return


@pytest.fixture(params=["blocking", "asynchronous"])
def chat_client(request: pytest.FixtureRequest) -> Iterator[Open]:
    with asyncio.Runner() as runner:

        def opened(stack: Stack, key: str = "K", **options: Any) -> Client:
            # No retries, but where they are what is tested: the client would wait seconds for each.
            options = {"retry_total": 0, **options}
            endpoint, credential = stack.url + "/azure", AzureKeyCredential(key)
            if request.param == "blocking":
                return ChatCompletionsClient(endpoint, credential, **options)
            return Blocking(runner, AsyncChatCompletionsClient(endpoint, credential, **options))

        yield opened


@pytest.fixture
def client(stack: Stack, chat_client: Open) -> Iterator[Client]:
    with chat_client(stack) as opened:
        yield opened


def script(**members: Any) -> list[Any]:
    return [UserMessage("sim:" + json.dumps(members))]


def sent(stack: Stack) -> Any:
    """The last request that the worker got, health checks aside."""
    return json.loads(stack.sim.entries[-1].body)


def test_plain(stack: Stack, client: Client) -> None:
    reply = client.complete(messages=[SystemMessage("s"), *script(text="No, it has never been proved")])
    assert reply.choices[0].message.content == "No, it has never been proved"
    assert (reply.choices[0].finish_reason, reply.model) == ("stop", "m")
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens > 0
    assert sent(stack)["temperature"] == 1.0


def test_every_parameter(stack: Stack, client: Client) -> None:
    look = [TextContentItem(text="look"), ImageContentItem(image_url=ImageUrl(url="data:image/png;base64,AAA"))]
    tool = ChatCompletionsToolDefinition(function=FunctionDefinition(name="f", description="d", parameters={}))
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    client.complete(
        messages=[UserMessage(look), *script(text="{}")],
        frequency_penalty=0.1,
        max_tokens=50,
        model="alias",
        presence_penalty=0.2,
        response_format=JsonSchemaFormat(name="n", schema=schema, strict=True),
        seed=1,
        stop=["zz"],
        temperature=0.5,
        tool_choice="auto",
        tools=[tool],
        top_p=0.9,
    )
    body = sent(stack)
    assert body.pop("messages")[0]["content"][1]["image_url"] == {"url": "data:image/png;base64,AAA"}
    function = {"name": "f", "description": "d", "parameters": {}}
    assert body == {
        "frequency_penalty": 0.1,
        "max_tokens": 50,
        "model": "sim",
        "presence_penalty": 0.2,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}},
        "seed": 1,
        "stop": ["zz"],
        "temperature": 0.5,
        "tool_choice": "auto",
        "tools": [{"type": "function", "function": function}],
        "top_p": 0.9,
    }


def test_stream(client: Client) -> None:
    with client.complete(messages=script(pieces=["a", "\u2028b"]), stream=True) as updates:
        found = list(updates)
    assert "".join(update.choices[0].delta.content or "" for update in found) == "a\u2028b"
    assert found[0].choices[0].delta.role == "assistant"
    assert found[-1].choices[0].finish_reason == "stop"


def test_usage_in_a_stream(client: Client) -> None:
    extras = {"stream_options": {"include_usage": True}}
    with client.complete(messages=script(text="a"), stream=True, model_extras=extras) as updates:
        last = list(updates)[-1]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens > 0


def test_tools_there_and_back(stack: Stack, client: Client) -> None:
    tool = ChatCompletionsToolDefinition(function=FunctionDefinition(name="f"))
    asked = script(tool_calls=[{"name": "f", "arguments": {"x": 1}}])
    reply = client.complete(messages=asked, tools=[tool])
    choice = reply.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    call = choice.message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == ("f", {"x": 1})
    with client.complete(messages=asked, tools=[tool], stream=True) as updates:
        calls = [one for update in updates for one in update.choices[0].delta.tool_calls or []]
    assert calls[0].function.name == "f"
    assert json.loads("".join(one.function.arguments or "" for one in calls)) == {"x": 1}
    result = ToolMessage(tool_call_id=call.id, content="r")
    client.complete(messages=[*asked, {"role": "assistant", "tool_calls": [call.as_dict()]}, result], tools=[tool])
    assert sent(stack)["messages"][2] == {"role": "tool", "tool_call_id": call.id, "content": "r"}


def test_reasoning_is_there(client: Client) -> None:
    message = client.complete(messages=script(reasoning="hm", text="ok")).choices[0].message
    assert (message.content, message.get("reasoning_content")) == ("ok", "hm")


def test_extras_pass_through(stack: Stack, client: Client) -> None:
    reply = client.complete(messages=script(text="a"), model_extras={"top_k": 5, "safe_mode": True, "n": 2})
    assert len(reply.choices) == 2
    body = sent(stack)
    assert (body["top_k"], body["safe_mode"], body["n"]) == (5, True, 2)


def test_extras_dropped(stack: Stack, client: Client) -> None:
    seen: list[Any] = []
    client.complete(
        messages=script(text="a"),
        model_extras={"top_k": 5},
        headers={"extra-parameters": "drop"},
        raw_response_hook=lambda response: seen.append(response.http_response.headers),
    )
    # The SDK writes its own word over the caller's, so that what it sends is still pass-through.
    assert sent(stack)["top_k"] == 5
    assert "x-dragoman-dropped" not in seen[0]
    found = httpx.post(
        stack.url + PATH,
        json={"messages": [{"role": "user", "content": "hi"}], "top_k": 5},
        headers={"extra-parameters": "ignore"},
    )
    assert (found.status_code, found.headers["x-dragoman-dropped"]) == (200, "top_k")
    assert "top_k" not in sent(stack)


def test_deployment_header(client: Client) -> None:
    header = {"azureml-model-deployment": "alias"}
    assert client.complete(messages=script(text="a"), model="nobody", headers=header).model == "alias"
    with pytest.raises(ResourceNotFoundError):
        client.complete(messages=script(text="a"), model="m", headers={"azureml-model-deployment": "nobody"})


def test_model_info(stack: Stack, client: Client) -> None:
    info = client.get_model_info()
    assert (info.model_name, info.model_type, info.model_provider_name) == ("m", "chat_completion", "dragoman")
    with load_client(stack.url + "/azure", AzureKeyCredential("K")) as loaded:
        assert isinstance(loaded, ChatCompletionsClient)


def test_embeddings(stack: Stack) -> None:
    with EmbeddingsClient(stack.url + "/azure", AzureKeyCredential("K"), retry_total=0) as client:
        reply = client.embed(input=["x", "y"], dimensions=4)
        assert [len(item.embedding) for item in reply.data] == [4, 4]
        assert (reply.model, reply.usage.prompt_tokens > 0) == ("m", True)
        with pytest.raises(ResourceNotFoundError, match="Modality not supported"):
            client.embed(input=["x"], model="plain")


# -- errors ---------------------------------------------------------------------------------------------------------


def failure(client: Client, **members: Any) -> Any:
    """The client's own error: its type is asserted where it is more than HttpResponseError."""
    with pytest.raises(HttpResponseError) as caught:
        client.complete(**{"messages": script(text="a"), **members})
    assert caught.value.response is not None
    return caught.value


@pytest.mark.parametrize(
    ("members", "loc", "value"),
    [
        ({"temperature": 3}, ["body", "temperature"], "3"),
        ({"stop": ["a", "b", "c", "d", "e"]}, ["body", "stop"], '["a","b","c","d","e"]'),
        ({"model": "plain", "response_format": "json_object"}, ["body", "response_format"], "json_object"),
        (
            {"model": "plain", "tools": [ChatCompletionsToolDefinition(function=FunctionDefinition(name="f"))]},
            ["body", "tools"],
            '[{"function":{"name":"f"},"type":"function"}]',
        ),
    ],
)
def test_422_names_the_parameter(client: Client, members: Any, loc: Any, value: str) -> None:
    error = failure(client, **members)
    assert error.status_code == 422
    assert error.response.headers["x-ms-error-code"] == "parameter_not_supported"
    body = json.loads(error.response.text())
    assert body["detail"] == {"loc": loc, "value": value, "input": value}
    assert json.dumps(body["message"]) in str(error)


def test_422_for_images(client: Client) -> None:
    look = [TextContentItem(text="look"), ImageContentItem(image_url=ImageUrl(url="http://x/y.png"))]
    error = failure(client, messages=[SystemMessage("s"), UserMessage(look)], model="plain")
    body = json.loads(error.response.text())
    assert (error.status_code, body["detail"]["loc"]) == (422, ["body", "messages", "1", "content", "1"])


def test_422_for_too_long_a_context(client: Client) -> None:
    error = failure(client, messages=[UserMessage("word " * 20000)])
    assert error.status_code == 422
    assert json.loads(error.response.text())["detail"]["loc"] == ["body", "messages"]


def test_404(client: Client) -> None:
    error = failure(client, model="nobody")
    assert sorted(json.loads(error.response.text())) == ["error", "message", "status"]
    assert isinstance(error, ResourceNotFoundError)


@pytest.mark.parametrize(
    ("version", "code"), [("", "MissingApiVersionParameter"), ("xx", "InvalidApiVersionParameter")]
)
def test_api_version(stack: Stack, chat_client: Open, version: str, code: str) -> None:
    with chat_client(stack, api_version=version) as client:
        error = failure(client)
    assert (error.status_code, error.response.headers["x-ms-error-code"]) == (400, code)
    assert code in str(error)


def test_401(chat_client: Open) -> None:
    key, entry = new_key("tester")
    with Stack(config={"auth": "keys", "keys": yaml.safe_load(entry)}) as running:
        with chat_client(running, "wrong") as client:
            error = failure(client)
        assert error.response.headers["x-ms-error-code"] == "invalid_api_key"
        assert json.loads(error.response.text())["status"] == 401
        assert isinstance(error, ClientAuthenticationError)
        with chat_client(running, key) as client:
            assert client.complete(messages=script(text="a"), model="m").choices


@pytest.mark.parametrize(("retry_after", "requests"), [(None, 1), (1.0, 2)])
def test_429_is_retried_only_when_told_to(
    stack: Stack, chat_client: Open, monkeypatch: pytest.MonkeyPatch, retry_after: float | None, requests: int
) -> None:
    """azure-ai-inference waits and asks again after Retry-After, and does not without it."""
    seen = []

    def limited(*_: object) -> None:
        seen.append(1)
        raise GatewayError(Kind.LIMITED, "slow down", retry_after=retry_after)

    monkeypatch.setattr(AzureInference, "read", limited)
    with chat_client(stack, retry_total=1) as client:
        error = failure(client)
    assert (error.status_code, len(seen)) == (429, requests)
    assert error.response.headers["x-ms-error-code"] == "rate_limit_exceeded"
    assert json.loads(error.response.text()) == {"error": "Too Many Requests", "message": "slow down", "status": 429}


@pytest.mark.parametrize(("fault", "status"), [("reset", 502), ("status:503", 503), ("status:500", 502), ("html", 502)])
def test_a_failing_worker(client: Client, fault: str, status: int) -> None:
    error = failure(client, messages=script(text="a", fault=fault))
    assert error.status_code == status
    body = json.loads(error.response.text())
    assert list(body) == ["code", "error", "message", "param", "status"]
    assert error.response.headers["x-ms-error-code"] == body["code"]


def collect(client: Client, asked: list[Any], found: list[StreamingChatCompletionsUpdate]) -> None:
    with client.complete(messages=asked, stream=True) as updates:
        found.extend(updates)


@pytest.mark.parametrize("fault", ["reset@2", "fin@2", "eof@2", "error-frame@2", "bad-json@2"])
def test_a_cut_stream_raises(client: Client, fault: str) -> None:
    found: list[StreamingChatCompletionsUpdate] = []
    with pytest.raises(HttpResponseError) as caught:
        collect(client, script(pieces=["a", "b", "c"], fault=fault), found)
    if caught.value.status_code == 502:  # all that the worker sent came at once: nothing was passed on yet
        assert found == []
        return
    assert re.search(r"Response ended prematurely|Response payload is not completed", str(caught.value))
    text = "".join(update.choices[0].delta.content or "" for update in found)
    whole = "ab"
    # aiohttp forgets what it had not handed on when the connection is cut.
    assert whole.startswith(text) if isinstance(client, Blocking) else text == whole


def test_a_stream_that_fails_before_its_first_byte(client: Client) -> None:
    error = failure(client, messages=script(text="a", fault="error-frame"), stream=True)
    assert error.status_code == 502


@pytest.mark.parametrize("form", ["crlf", "nospace", "comments", "multi-data", "drip", "bom"])
def test_forms_of_a_workers_stream_that_this_client_cannot_read(client: Client, form: str) -> None:
    with client.complete(messages=script(pieces=["a", "b"], fault=form), stream=True) as updates:
        assert "".join(update.choices[0].delta.content or "" for update in updates) == "ab"


def test_keepalives_pass_unnoticed(chat_client: Open) -> None:
    asked = script(pieces=["a", "b"], fault="stall:0.3@1")
    body = {"messages": [asked[0].as_dict()], "stream": True}
    config = {"dialects": {"azure_inference": {"default_model": "m"}}, "relay": {"keepalive_s": 0.05}}
    with Stack(config=config) as running, chat_client(running) as client:
        raw = httpx.post(running.url + PATH, json=body).content
        assert b"\n\n\n" in raw
        with client.complete(messages=asked, stream=True) as updates:
            assert "".join(update.choices[0].delta.content or "" for update in updates) == "ab"


def test_leaving_a_stream_frees_the_worker(chat_client: Open) -> None:
    with Stack(workers=({"itl_ms": 5.0},), config={"dialects": {"azure_inference": {"default_model": "m"}}}) as running:
        with (
            chat_client(running) as own,
            own.complete(messages=script(text="a ", repeat=5000), stream=True) as updates,
        ):
            next(iter(updates))
        running.run(running.sim.wait(aborted=1))
