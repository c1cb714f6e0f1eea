"""Members of a request beside the laws: echoes, formats, files, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gateway import backends
from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, Finish, PartEnd, PartStart, Start
from gateway.core.ports import Capabilities
from gateway.translation.offline import send
from tests.unit.dialects.responses.asking import (
    DIALECT,
    SPACE,
    TOOL,
    body,
    crossing,
    frames,
    message,
    read,
    scripted,
    sent,
)
from tests.unit.dialects.responses.posted import post


def test_a_reply_says_again_what_was_asked(client: httpx.Client) -> None:
    asked = scripted(
        text="a",
        also={
            "instructions": "be brief",
            "tools": [TOOL, SPACE, {"type": "web_search"}],
            "metadata": {"k": "v"},
            "text": {"format": {"type": "json_object"}},
            "reasoning": {"effort": "low"},
            "max_output_tokens": 20,
            "temperature": 0.5,
        },
    )
    reply = post(client, asked)
    for name in ("model", "instructions", "metadata", "text", "max_output_tokens", "temperature"):
        assert reply[name] == asked[name]
    assert reply["tools"] == [{**TOOL, "strict": None}, SPACE, {"type": "web_search"}]
    assert reply["reasoning"] == {"effort": "low", "summary": None}
    assert reply["object"] == "response"
    assert isinstance(reply["created_at"], int)
    bare = post(client, body())
    assert bare["text"] == {"format": {"type": "text"}}
    assert (bare["tool_choice"], bare["tools"], bare["parallel_tool_calls"], bare["metadata"]) == ("auto", [], True, {})
    verbose = post(client, body(text={"verbosity": "low"}))
    assert verbose["text"]["format"] == {"type": "text"}


def test_a_body_of_many_lines_is_said_again_on_one(client: httpx.Client) -> None:
    asked = scripted(stream=True, text="a", also={"tools": [TOOL], "metadata": {"k": "two\nlines"}})
    text = json.dumps(asked, indent=2).replace("\n", "\r\n")
    reply = client.post("/v1/responses", content=text, headers={"content-type": "application/json"})
    assert frames(reply.text)[0]["response"]["tools"] == [{**TOOL, "strict": None}]


def test_formats_of_the_output() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "number", "maximum": 1.0}}}
    form = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    assert sent(text={"format": form})["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": schema, "strict": True},
    }
    assert "response_format" not in sent(text={"format": {"type": "text"}})
    with pytest.raises(GatewayError, match=r"text\.format"):
        read(text={"format": {"type": "json_schema", "name": "n"}})


@pytest.mark.parametrize(
    ("asked", "told"), [("minimal", "minimal"), ("high", "high"), ("xhigh", "high"), ("max", "high")]
)
def test_how_much_to_think(asked: str, told: str) -> None:
    assert sent(reasoning={"effort": asked})["reasoning_effort"] == told
    cannot = crossing(can=Capabilities("w", features=frozenset({"tools"})), reasoning={"effort": asked})
    assert "reasoning_effort" not in json.loads(cannot.outgoing.body)


FILE = {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,aGk="}


def test_files_of_text_are_read_and_others_refused() -> None:
    items = [{"role": "user", "content": [FILE]}]
    assert sent(input=items)["messages"] == [{"role": "user", "content": "a.txt:\nhi"}]
    for wrong in (
        {"file_id": "file-1"},
        {"file_url": "http://x/a"},
        {"file_data": "data:application/pdf;base64,aGk="},
        {"file_data": "data:text/plain;base64,%%"},
        {"file_data": "data:text/plain;base64,/w=="},
    ):
        with pytest.raises(GatewayError, match=r"input\.0\.content"):
            read(input=[{"role": "user", "content": [{"type": "input_file", **wrong}]}])


def test_items_without_a_place_are_named_and_what_tools_of_the_client_said_stays() -> None:
    items = [
        message("user", "a"),
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "local_shell_call", "id": "l", "call_id": "c", "status": "completed", "action": {"command": ["ls"]}},
        {"type": "local_shell_call_output", "call_id": "c", "output": "x.py"},
        message("user", "b"),
    ]
    found = crossing(input=items)
    texts = [one["content"] for one in json.loads(found.outgoing.body)["messages"]]
    assert "ls" in texts[1]
    assert "x.py" in texts[2]
    named = {"web_search_call", "local_shell_call", "local_shell_call_output"}
    assert {f"input[].{name}" for name in named} <= set(found.op.dropped)


@pytest.mark.parametrize(
    "members",
    [
        {"input": []},
        {"input": [{"type": "reasoning", "summary": []}]},
        {"input": [{"role": "narrator", "content": "x"}]},
        {"input": [{"type": "function_call", "name": "f"}]},
        {"input": [7]},
        {"input": [{"type": "message", "role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
        {"input": [message("user", "a"), {"type": "function_call_output", "call_id": "c", "output": 7}]},
        {"tools": [{"type": "namespace", "name": "n", "tools": [7]}]},
        {"tool_choice": "sometimes"},
        {"tool_choice": {"type": "function", "name": "none"}, "tools": [TOOL]},
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_with_a_name(members: dict[str, Any]) -> None:
    with pytest.raises(GatewayError) as caught:
        read(**members)
    assert caught.value.kind is Kind.BAD_REQUEST
    assert caught.value.param is not None


def test_counting_agrees_with_usage(client: httpx.Client) -> None:
    asked = scripted(text="a", also={"instructions": "be brief"})
    prompt = {name: asked[name] for name in ("model", "input", "instructions")}
    counted = post(client, prompt, "/v1/responses/input_tokens")
    assert counted == {"object": "response.input_tokens", "input_tokens": post(client, asked)["usage"]["input_tokens"]}


@pytest.mark.parametrize("path", ["/openai/responses?api-version=2025-04-01-preview", "/openai/v1/responses"])
def test_azures_paths(client: httpx.Client, path: str) -> None:
    assert post(client, scripted(text="Hello"), path)["output"][0]["content"][0]["text"] == "Hello"


@pytest.mark.parametrize("version", ["", "/v1"])
@pytest.mark.parametrize("stream", [False, True])
def test_azures_deployment_in_the_path_wins(client: httpx.Client, version: str, stream: bool) -> None:
    """The AI SDK asks so with `useDeploymentBasedUrls`, and may leave any model in the body."""
    path = f"/openai{version}/deployments/%s/responses?api-version=2025-04-01-preview"
    for left in ("none", "", None):
        asked = {**scripted(text="Hello", stream=stream), "model": left}
        reply = client.post(path % "alias", json=asked)
        assert reply.status_code == 200, reply.text
        response = frames(reply.text)[-1]["response"] if stream else reply.json()
        assert (response["model"], response["output"][0]["content"][0]["text"]) == ("alias", "Hello")
    refused = client.post(path % "none", json=scripted(text="Hello", stream=stream))
    assert refused.status_code == 404
    assert refused.json()["error"]["code"] == "DeploymentNotFound"


def test_a_text_in_memory_is_counted() -> None:
    writer = DIALECT.writer(read())
    for event in (Start("x", "w", 1), PartStart(0, 0, "tool", "c1", "f"), Delta(0, 0, "x" * 10_000)):
        writer.write(event)
    assert writer.buffered_bytes > 10_000
    writer.write(PartEnd(0, 0))
    writer.write(Finish(0, "tool_calls", "tool_calls"))
    assert writer.buffered_bytes > 10_000


def test_no_member_of_a_chat_is_smuggled_in() -> None:
    dialect = type(DIALECT)()
    dialect.extras = "pass"
    found = json.dumps(body(messages=[message("user", "other")], logprobs=True, chat_template="x")).encode()
    crossed = send(dialect, backends.create("vllm"), found, Capabilities("w"), route="chat")
    told = json.loads(crossed.outgoing.body)
    assert told["messages"] == [{"role": "user", "content": "hi"}]
    assert "logprobs" not in told
    assert told["chat_template"] == "x"
    assert {"messages", "logprobs"} <= set(crossed.op.dropped)


def test_the_schema_of_a_tools_output_is_named() -> None:
    assert crossing(tools=[{**TOOL, "output_schema": {"type": "object"}}]).op.dropped == ("tools[].output_schema",)
