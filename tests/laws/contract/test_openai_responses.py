"""OpenAI's own client for Python, unmodified: `client.responses`, at the base URL that chats have, and Azure's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from websockets.exceptions import ConnectionClosedError

from tests.support.harness import Stack

TOOLS: Any = [
    {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False},
    {"type": "custom", "name": "patch"},
]


@pytest.fixture(scope="module", params=["/v1", "/openai/v1", "azure"])
def client(stack: Stack, request: pytest.FixtureRequest) -> Iterator[openai.OpenAI]:
    if request.param == "azure":
        made: openai.OpenAI = openai.AzureOpenAI(
            azure_endpoint=stack.url, api_version="2025-04-01-preview", api_key="k", max_retries=0
        )
    else:
        made = openai.OpenAI(base_url=stack.url + request.param, api_key="k", max_retries=0)
    with made as found:
        yield found


def asking(**script: Any) -> Any:
    return {"model": "m", "input": "sim:" + json.dumps(script)}


def test_whole(client: openai.OpenAI) -> None:
    reply: Any = client.responses.create(**asking(text="Hello there"))
    assert reply.output_text == "Hello there"
    assert (reply.status, reply.model) == ("completed", "m")
    assert reply.usage.input_tokens_details.cached_tokens == 0
    assert reply._request_id


def test_streamed(client: openai.OpenAI) -> None:
    with client.responses.stream(**asking(reasoning="hm", text="Hello there")) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == "Hello there"
    assert [item.type for item in final.output] == ["reasoning", "message"]
    raw = [event.type for event in client.responses.create(**asking(text="a"), stream=True)]
    assert (raw[0], raw[-1]) == ("response.created", "response.completed")


@pytest.mark.parametrize("interleave", [False, True])
def test_a_loop_of_tools(client: openai.OpenAI, interleave: bool) -> None:
    calls = [{"name": "look", "arguments": {"at": name}} for name in "abc"]
    calls.append({"name": "patch", "arguments": {"input": "*** x"}})
    asked = {**asking(reasoning="hm", tool_calls=calls, interleave=interleave), "tools": TOOLS}
    with client.responses.stream(**asked) as stream:
        streamed: Any = stream.get_final_response()
    whole: Any = client.responses.create(**asked)
    for reply in (streamed, whole):
        found = [item for item in reply.output if item.type == "function_call"]
        assert [json.loads(item.arguments) for item in found] == [{"at": name} for name in "abc"]
        assert [item.input for item in reply.output if item.type == "custom_tool_call"] == ["*** x"]
    history: Any = [item.model_dump(exclude_none=True) for item in whole.output]
    outputs: Any = [
        {"type": f"{item.type}_output", "call_id": item.call_id, "output": "seen"}
        for item in whole.output
        if item.type in ("function_call", "custom_tool_call")
    ]
    turns: Any = [{"role": "user", "content": "look"}, *history, *outputs]
    assert client.responses.create(model="m", input=turns, tools=TOOLS).status == "completed"


def test_counting(client: openai.OpenAI) -> None:
    if isinstance(client, openai.AzureOpenAI):
        pytest.skip("Azure has no such path")
    asked = asking(text="Hello")
    usage = client.responses.create(**asked).usage
    assert client.responses.input_tokens.count(**asked).input_tokens == usage.input_tokens


def test_parsed(client: openai.OpenAI) -> None:
    form: Any = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}}
    assert client.responses.create(**asking(text='{"a":1}'), text=form).output_text == '{"a":1}'


def test_compacting(client: openai.OpenAI) -> None:
    """What the library gets it sends back as it is."""
    prompt = "Go. sim:" + json.dumps({"rounds": [{"text": "ok"}], "asked": {"outgrows your context": {"text": "sum"}}})
    found = client.responses.compact(model="m", input=[{"role": "user", "content": prompt}])
    assert found.object == "response.compaction"
    assert [item.type for item in found.output] == ["message", "compaction"]
    assert found.usage.total_tokens > 0
    # The library's types of output have no place for the user's messages, so that it warns.
    again: Any = [item.to_dict(warnings=False) for item in found.output]
    assert client.responses.create(model="m", input=again).status == "completed"


def test_what_is_cut_is_incomplete(client: openai.OpenAI) -> None:
    reply: Any = client.responses.create(**asking(text="Hello", finish="length"))
    assert reply.status == "incomplete"
    assert reply.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize(
    ("members", "kind"),
    [
        ({"model": "none"}, openai.NotFoundError),
        ({"temperature": 9}, openai.BadRequestError),
        ({"input": "word " * 20_000}, openai.BadRequestError),
        ({"previous_response_id": "resp_1"}, openai.BadRequestError),
        (asking(fault="status:500"), openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_failures_are_its_own_exceptions(
    client: openai.OpenAI, members: dict[str, Any], kind: type[openai.APIStatusError], stream: bool
) -> None:
    with pytest.raises(kind) as caught:
        client.responses.create(**{**asking(text="hi"), **members, "stream": stream})
    assert caught.value.code
    assert caught.value.request_id


@pytest.mark.parametrize("kind", ["web_search", "web_search_preview"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_search_that_nothing_runs(client: openai.OpenAI, stack: Stack, kind: str, stream: bool) -> None:
    asked: Any = {"model": "m", "input": "What is new?", "tools": [{"type": kind}]}
    choices: Any = ("required", {"type": kind})
    for choice in choices:
        reply: Any = client.responses.create(**asked, tool_choice=choice, stream=stream)
        if stream:
            events = list(reply)
            assert [event.sequence_number for event in events] == list(range(len(events)))
            assert not [event for event in events if event.type == "response.web_search_call.completed"]
            reply = events[-1].response
        (item,) = reply.output
        assert (item.type, item.status, item.action.type) == ("web_search_call", "failed", "search")
        assert (reply.status, reply.usage.total_tokens) == ("completed", 0)
    assert not [entry for entry in stack.sim.ledger.entries if b"What is new?" in entry.body]
    assert stack.records()[-1]["attempts"] == 0


@pytest.mark.parametrize("fault", ["reset@3", "eof@3"])
def test_a_cut_stream_is_never_a_success(client: openai.OpenAI, fault: str) -> None:
    asked = asking(text="Hello there, how are you today?", fault=fault)
    with pytest.raises(openai.APIError, match="worker"), client.responses.stream(**asked) as stream:
        stream.get_final_response()
    with pytest.raises((openai.APIError, httpx.RemoteProtocolError)):
        list(client.responses.create(**asked, stream=True))


# -- web sockets ------------------------------------------------------------------------------------------------------


def end_of(connection: Any) -> Any:
    """The last event of a response."""
    for event in connection:
        if event.type in ("response.completed", "response.failed", "error"):
            return event
    raise AssertionError("the connection ended")


# It opens them as `websockets` before 17.1 wants it.
@pytest.mark.filterwarnings("ignore:connect:DeprecationWarning")
def test_a_conversation_on_one_connection(client: openai.OpenAI) -> None:
    with client.responses.connect() as connection:
        connection.response.create(**asking(text="Hello there"), store=False)
        first = end_of(connection).response
        assert first.output_text == "Hello there"
        connection.response.create(model="m", input="And?", previous_response_id=first.id, stream_id="side")
        second = end_of(connection)
        assert (second.response.status, second.stream_id) == ("completed", "side")
        connection.response.create(model="m", input="And?", previous_response_id="resp_1")
        refused = end_of(connection)
        assert (refused.status, refused.error.code) == (400, "previous_response_not_found")
        connection.response.create(**asking(text="Hello there, how are you?", fault="reset@3"))
        failed = end_of(connection)
        assert failed.type == "response.failed"
        assert "worker" in failed.response.error.message


def test_a_web_socket_without_blocking(stack: Stack) -> None:
    async def talk() -> str:
        async with (
            openai.AsyncOpenAI(base_url=stack.url + "/v1", api_key="k") as found,
            found.responses.connect() as connection,
        ):
            await connection.response.create(**asking(text="Hello there"))
            async for event in connection:
                if event.type == "response.completed":
                    return event.response.output_text
        raise AssertionError("the connection ended")

    assert asyncio.run(talk()) == "Hello there"


@pytest.mark.filterwarnings("ignore:connect:DeprecationWarning")
def test_a_gateway_that_stops_is_never_an_end_in_order() -> None:
    """The library takes the close codes 1000 and 1001 for the end of its loop, and raises at any other."""
    with (
        Stack(config={"relay": {"drain_s": 0.5}}) as stopping,
        openai.OpenAI(base_url=stopping.url + "/v1", api_key="k") as found,
        found.responses.connect() as connection,
    ):
        connection.response.create(**asking(text="Hello there, how are you?", fault="stall@1"))
        connection.response.create(**asking(text="never"))
        while connection.recv().type != "response.output_text.delta":
            pass
        draining = asyncio.run_coroutine_threadsafe(stopping.gateway.drain(), stopping.loop)
        failed, never = end_of(connection), end_of(connection)
        assert (failed.type, failed.response.error.code) == ("response.failed", "shutting_down")
        assert (never.status, never.error.code) == (503, "shutting_down")
        with pytest.raises(ConnectionClosedError, match="1012"):
            end_of(connection)
        draining.result(30)
