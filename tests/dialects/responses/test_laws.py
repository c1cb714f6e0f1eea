"""The laws of the Responses API, by their numbers in the notes on its recorded clients: what they send, and what they
must be answered."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from typing import Any

import httpx
import pytest
import yaml

from gateway import backends
from gateway.auth import new_key
from gateway.config import Config
from gateway.core.errors import GatewayError, Kind
from gateway.core.events import Delta, End, Event, Failed, Finish, PartEnd, PartStart, Start, UsageReport
from gateway.core.messages import Thinking
from gateway.core.ports import Capabilities
from gateway.core.usage import Usage
from gateway.translation.offline import send
from tests.dialects.asking import ONE, SIDE_BY_SIDE, TWO
from tests.dialects.asking import SCRIPTS as ALL_SCRIPTS
from tests.dialects.responses.asking import (
    DIALECT,
    PATCH,
    SPACE,
    TOOL,
    body,
    call,
    crossing,
    frames,
    kinds,
    message,
    output,
    read,
    scripted,
    sent,
    stream_of,
    waited_twice,
)
from tests.dialects.responses.recorded import CODEX, CODEX_HEADERS, CODEX_TOOLS_AS_ITEM
from tests.harness import Stack, kept_alive

LAWS = 16
"""How many there are: tests/repo looks for a test of each."""


def post(client: httpx.Client, asked: dict[str, Any], path: str = "/v1/responses") -> Any:
    reply = client.post(path, json=asked)
    assert reply.status_code == 200, reply.text
    return reply.json()


def streamed(client: httpx.Client, also: dict[str, Any] | None = None, **script: Any) -> list[dict[str, Any]]:
    reply = client.post("/v1/responses", json=scripted(stream=True, also=also, **script))
    assert reply.headers["content-type"].startswith("text/event-stream"), reply.text
    return frames(reply.text)


# -- 1 to 3: what comes in --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [CODEX, CODEX_TOOLS_AS_ITEM], ids=["tools", "additional_tools"])
def test_law_1_a_request_of_codex_is_answered_whatever_its_tools(client: httpx.Client, asked: dict[str, Any]) -> None:
    reply = client.post("/v1/responses", json=asked, headers=CODEX_HEADERS)
    assert reply.status_code == 200, reply.text
    assert frames(reply.text)[-1]["type"] == "response.completed"
    assert reply.headers["x-request-id"]
    named = reply.headers["x-dragoman-dropped"].split(", ")
    assert "client_metadata" in named
    assert ("tools.web_search" in named) == ("tools" in asked)


HOSTED = ("web_search_preview", "file_search", "mcp", "shell", "apply_patch", "tool_search", "never_heard_of")


@pytest.mark.parametrize("hosted", HOSTED)
def test_law_1_a_tool_that_nobody_here_executes_is_left_out_and_named(hosted: str) -> None:
    found = crossing(tools=[TOOL, {"type": hosted, "x": {"y": 1}}], tool_choice={"type": hosted})
    told = json.loads(found.outgoing.body)
    assert [tool["function"]["name"] for tool in told["tools"]] == ["f"]
    assert told["tool_choice"] == "auto"
    assert {f"tools.{hosted}", "tool_choice"} <= set(found.op.dropped)


def test_law_1_without_any_tool_there_is_no_choice() -> None:
    for choice in ("auto", "none"):
        found = crossing(tools=[], tool_choice=choice, parallel_tool_calls=True)
        assert {"tools", "tool_choice", "parallel_tool_calls"}.isdisjoint(json.loads(found.outgoing.body))
        assert "tool_choice" not in found.op.dropped
    assert "tool_choice" in crossing(tool_choice="required").op.dropped


PNG = "data:image/png;base64,iVBORw0KGgo="
THOUGHT: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": [], "content": None}


def test_law_2_what_the_assistant_says_in_a_row_is_one_message() -> None:
    thought = {**THOUGHT, "content": [{"type": "reasoning_text", "text": "hm"}]}
    shown = [{"type": "input_text", "text": "seen"}, {"type": "input_image", "image_url": PNG, "detail": "original"}]
    items = [
        message("user", "go"),
        thought,
        message("assistant", "I look."),
        call(1),
        call(2),
        output(1, shown),
        output(2, "no such file"),
        message("assistant", "Done."),
    ]
    messages = sent(input=items, tools=[TOOL])["messages"]
    assert [one["role"] for one in messages] == ["user", "assistant", "tool", "tool", "user", "assistant"]
    said = messages[1]
    assert (said["content"], said["reasoning_content"]) == ("I look.", "hm")
    calls = [(one["id"], one["function"]["arguments"]) for one in said["tool_calls"]]
    assert calls == [("c1", '{"i": 1}'), ("c2", '{"i": 2}')]
    assert [(one["tool_call_id"], one["content"]) for one in messages[2:4]] == [("c1", "seen"), ("c2", "no such file")]
    assert messages[4]["content"] == [{"type": "image_url", "image_url": {"url": PNG, "detail": "high"}}]


def test_law_2_images_in_outputs_stand_before_the_words_that_follow() -> None:
    shown = [{"type": "input_image", "image_url": PNG}]
    items = [message("user", "go"), call(1), output(1, shown), message("user", "and?")]
    messages = sent(input=items, tools=[TOOL])["messages"]
    assert [one["role"] for one in messages] == ["user", "assistant", "tool", "user"]
    assert [part["type"] for part in messages[-1]["content"]] == ["image_url", "text"]


def test_law_2_a_message_of_the_developer_never_parts_a_call_from_its_output() -> None:
    mind = message("developer", "mind")
    image = [{"type": "input_image", "image_url": PNG}]
    takes = Capabilities("w", features=frozenset({"system_turns", "tools", "vision"}))

    def roles(*items: Any) -> list[str]:
        told = sent(can=takes, input=[message("user", "go"), *items], tools=[TOOL])["messages"]
        return [one["role"] for one in told]

    late = roles(call(1), call(2), mind, output(1, "a"), output(2, "b"))
    assert late == ["user", "assistant", "tool", "tool", "system"]
    assert roles(call(1), mind, output(1, "a")) == ["user", "assistant", "tool", "system"]
    both = roles(call(1), call(2), output(2, image), mind, output(1, "a"))
    assert both == ["user", "assistant", "tool", "tool", "user", "system"]


def test_law_3_what_the_model_is_told_first_is_one_message() -> None:
    items = [
        message("developer", "one"),
        {"role": "system", "content": "two"},
        {"type": "additional_tools", "role": "developer", "tools": [TOOL]},
        {"role": "developer", "content": [{"type": "input_text", "text": text} for text in ("three", "four")]},
        message("user", "hi"),
        message("assistant", "hello"),
        message("developer", "later"),
        message("user", "go on"),
    ]
    messages = sent(instructions="zero", input=items)["messages"]
    assert messages[0] == {"role": "system", "content": "zero\n\none\n\ntwo\n\nthree\n\nfour"}
    assert [one["role"] for one in messages] == ["system", "user", "assistant", "user"]
    assert [part["text"] for part in messages[-1]["content"]] == ["later", "go on"]
    takes = Capabilities("w", features=frozenset({"system_turns", "tools"}))
    roles = [one["role"] for one in sent(can=takes, instructions="zero", input=items)["messages"]]
    assert roles == ["system", "user", "assistant", "system", "user"]


# -- 4 to 8: what goes out --------------------------------------------------------------------------------------------

NAMED = [{**TOOL, "name": name} for name in "fgh"]
SCRIPTS: dict[str, dict[str, Any]] = {
    **ALL_SCRIPTS,
    "all": {
        "reasoning": "hm",
        "text": "I look.",
        "tool_calls": [{"name": "f", "arguments": {"a": [1]}}, {"name": "g", "arguments": ""}],
    },
    "cut in a call": {"tool_calls": [{"name": "f", "arguments": '{"a'}], "finish": "length"},
    "filtered": {"text": "He", "finish": "content_filter"},
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_law_4_every_item_is_added_filled_and_done(client: httpx.Client, script: dict[str, Any]) -> None:
    """What the strictest client requires is checked while the events are read."""
    events = streamed(client, {"tools": NAMED}, **script)
    assert kinds(events)[:2] == ["created", "in_progress"]
    assert kinds(events)[-1] in ("completed", "incomplete")
    first, last = events[0]["response"], events[-1]["response"]
    assert (first["status"], first["output"], first["usage"]) == ("in_progress", [], None)
    assert first.keys() == last.keys()
    for item in last["output"]:
        added = next(
            one["item"] for one in events if one["type"].endswith("item.added") and one["item"]["id"] == item["id"]
        )
        assert added["status"] == "in_progress"
        assert item.get("call_id") != item["id"]


def test_law_4_a_whole_message() -> None:
    said = (PartStart(0, 0, "text"), Delta(0, 0, "Hel"), Delta(0, 0, "lo"), PartEnd(0, 0))
    events = stream_of(*said, Finish(0, "stop", "stop"), End())
    opened = ["created", "in_progress", "output_item.added", "content_part.added"]
    closed = ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert kinds(events) == [*opened, "output_text.delta", "output_text.delta", *closed]
    part = {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
    assert events[-3]["part"] == part
    item = {"type": "message", "id": "msg_r_0", "status": "completed", "role": "assistant", "content": [part]}
    assert events[-2]["item"] == item
    assert events[-1]["response"]["output"] == [item]


def test_law_5_nothing_is_an_empty_list(client: httpx.Client) -> None:
    events = streamed(client, text="")
    assert kinds(events) == ["created", "in_progress", "completed"]
    assert events[-1]["response"]["output"] == post(client, scripted(text=""))["output"] == []


def test_law_6_arguments_of_calls_side_by_side_do_not_mix() -> None:
    events = stream_of(*SIDE_BY_SIDE, tools=NAMED)
    done = [event for event in events if event["type"] == "response.function_call_arguments.done"]
    assert [(event["name"], event["arguments"].strip()) for event in done] == [("f", ONE), ("g", TWO)]
    items = events[-1]["response"]["output"]
    assert [(item["call_id"], item["arguments"].strip()) for item in items] == [("c1", ONE), ("c2", TWO)]


TEXT = '*** Begin Patch\n"quoted"\n'


def test_law_7_a_tool_is_called_as_its_client_knows_it(client: httpx.Client) -> None:
    also = {"tools": [TOOL, SPACE, PATCH]}
    calls = [
        {"name": "agents__wait", "arguments": {"id": 1}},
        {"name": "patch", "arguments": {"input": TEXT}},
        {"name": "wait", "arguments": {}},
    ]
    events = streamed(client, also, tool_calls=calls)
    for items in (events[-1]["response"]["output"], post(client, scripted(also=also, tool_calls=calls))["output"]):
        wait, patch, short = items
        assert (wait["type"], wait["name"], wait["namespace"]) == ("function_call", "wait", "agents")
        assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "patch", TEXT)
        assert "arguments" not in patch
        assert (short["name"], short["namespace"]) == ("wait", "agents")
    assert [event["input"] for event in events if event["type"].endswith("input.done")] == [TEXT]


def test_law_7_they_come_back_as_the_model_knows_them() -> None:
    items = [
        message("user", "go"),
        call(1, name="wait", namespace="agents"),
        {"type": "custom_tool_call", "id": "ctc_2", "call_id": "c2", "name": "patch", "input": TEXT},
        call(3, name="wait"),
        output(1, "ok"),
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "changed"},
        output(3, "ok"),
    ]
    told = sent(input=items, tools=[SPACE, PATCH])
    names = [tool["function"]["name"] for tool in told["tools"]]
    assert names == ["agents__wait", "patch"]
    assert told["tools"][1]["function"]["description"].endswith("grammar (lark):\nstart: /.+/")
    calls = told["messages"][1]["tool_calls"]
    assert [one["function"]["name"] for one in calls] == ["agents__wait", "patch", "agents__wait"]
    assert json.loads(calls[1]["function"]["arguments"]) == {"input": TEXT}
    assert [one["role"] for one in told["messages"][2:]] == ["tool"] * 3


@pytest.mark.parametrize(
    ("choice", "told", "shown"),
    [
        ({"type": "function", "name": "f"}, {"type": "function", "function": {"name": "f"}}, 3),
        ({"type": "custom", "name": "patch"}, {"type": "function", "function": {"name": "patch"}}, 3),
        ({"type": "function", "name": "wait"}, {"type": "function", "function": {"name": "agents__wait"}}, 3),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}, "required", 1),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "namespace", "name": "agents"}]}, "auto", 1),
        ("required", "required", 3),
    ],
)
def test_law_7_a_choice_of_tools(choice: Any, told: Any, shown: int) -> None:
    found = sent(tools=[TOOL, SPACE, PATCH], tool_choice=choice)
    assert found["tool_choice"] == told
    assert len(found["tools"]) == shown


@pytest.mark.parametrize("arguments", ["{oops", '"text"', '{"input":1}', '{"input":"a","more":1}', ""])
def test_law_7_arguments_that_are_no_text_are_the_text(client: httpx.Client, arguments: str) -> None:
    script: dict[str, Any] = {"tool_calls": [{"name": "patch", "arguments": arguments}]}
    (item,) = streamed(client, {"tools": [PATCH]}, **script)[-1]["response"]["output"]
    assert item["input"] == arguments


def test_law_6_no_arguments_are_an_empty_object(client: httpx.Client) -> None:
    """Clients parse them."""
    script: dict[str, Any] = {"tool_calls": [{"name": "f", "arguments": ""}]}
    events = streamed(client, {"tools": [TOOL]}, **script)
    for items in (events[-1]["response"]["output"], post(client, scripted(also={"tools": [TOOL]}, **script))["output"]):
        assert [item["arguments"] for item in items] == ["{}"]


@pytest.mark.parametrize(("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_law_8_what_is_cut_is_incomplete(client: httpx.Client, finish: str, reason: str) -> None:
    script: dict[str, Any] = {"reasoning": "hm", "text": "Hello", "finish": finish}
    last = streamed(client, **script)[-1]
    assert last["type"] == "response.incomplete"
    for reply in (last["response"], post(client, scripted(**script))):
        assert (reply["status"], reply["incomplete_details"]) == ("incomplete", {"reason": reason})
        assert [item["status"] for item in reply["output"]] == ["completed", "incomplete"]


# -- 9 to 11: failures and silence ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_law_9_before_the_first_output_a_failure_is_a_status(client: httpx.Client, stream: bool) -> None:
    for members, status, code in (
        ({"model": "none"}, 404, "model_not_found"),
        ({"temperature": 9}, 400, "invalid_value"),
        (scripted(fault="status:500"), 502, "upstream_error"),
        ({"input": "word " * 20_000}, 400, "context_length_exceeded"),
        ({"tools": [{"type": "function"}]}, 400, "missing_parameter"),
    ):
        refused = client.post("/v1/responses", json={**body(), **members, "stream": stream})
        assert refused.status_code == status, refused.text
        error = refused.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == code
        assert error["message"]


def test_law_9_every_429_says_when() -> None:
    config = {"limits": [{"name": "few", "kind": "requests", "limit": 1, "per_s": 3600}]}
    with Stack(config=config) as stack:
        replies = [httpx.post(stack.url + "/v1/responses", json=body()) for _ in range(2)]
    assert [reply.status_code for reply in replies] == [200, 429]
    assert int(replies[1].headers["retry-after"]) > 0


def test_law_9_what_is_refused_is_named_as_its_client_knows_it() -> None:
    names = {"messages.3.content.0": "input", "response_format": "text.format", "max_tokens": "max_output_tokens"}
    for param, own in names.items():
        refused = GatewayError(Kind.UNSUPPORTED, f"'{param}' cannot be", param=param)
        error = json.loads(DIALECT.refuse(refused, None, None)[0].body)["error"]
        assert error["param"].startswith(own)
        assert own in error["message"]


@pytest.mark.parametrize("fault", ["reset@3", "eof@3", "fin@3"])
def test_law_10_a_stream_that_stops_fails_twice_and_ends_in_order(fault: str) -> None:
    asked = scripted(stream=True, text="Hello there, how are you?", fault=fault)
    with Stack(workers=({"itl_ms": 20},)) as stack, httpx.Client(base_url=stack.url) as client:
        error, failed = frames(client.post("/v1/responses", json=asked).text)[-2:]
    assert (error["type"], failed["type"]) == ("error", "response.failed")
    assert error["error"]["message"] == error["message"] == failed["response"]["error"]["message"]
    assert error["error"]["code"] == error["code"] == failed["response"]["error"]["code"] == "upstream_truncated"
    assert error["error"]["type"] == "server_error"
    assert failed["response"]["status"] == "failed"


def test_law_10_what_was_done_before_the_failure_stays() -> None:
    parts: tuple[Event, ...] = (PartStart(0, 0, "thinking"), Delta(0, 0, "hm"), PartEnd(0, 0), PartStart(0, 1, "text"))
    failed = Failed(GatewayError(Kind.TIMEOUT, "late"))
    events = stream_of(*parts, Delta(0, 1, "He"), failed)
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning"]


@pytest.mark.parametrize(
    ("kind", "code", "text"),
    [
        (Kind.LIMITED, "rate_limit_exceeded", "late Please try again in 3s."),
        (Kind.CONTEXT_LENGTH, "context_length_exceeded", "late"),
        (Kind.OVERLOADED, "server_is_overloaded", "late"),
        (Kind.TIMEOUT, "first_token_late", "late"),
    ],
)
def test_law_10_a_failed_response_has_the_codes_that_codex_acts_on(kind: Kind, code: str, text: str) -> None:
    """`error` keeps the finer one."""
    *_, error, failed = stream_of(Failed(GatewayError(kind, "late", code="first_token_late", retry_after=2.5)))
    assert failed["response"]["error"] == {"code": code, "message": text}
    assert (error["code"], error["message"]) == ("first_token_late", "late")


def test_law_11_silence_is_bridged_by_events_behind_one_begin() -> None:
    with Stack(workers=({"fault": "stall"},), config={"relay": {"keepalive_s": 0.1}}) as stack:
        asked = scripted(stream=True, text="Hello")
        reply = kept_alive(stack, "/v1/responses", asked, waited_twice)
    events = frames(reply.text)
    assert kinds(events)[:4] == ["created", "in_progress", "in_progress", "in_progress"]
    assert kinds(events)[-1] == "completed"
    assert kinds(events).count("created") == 1
    assert len({event["response"]["created_at"] for event in events if "response" in event}) == 1
    assert Config().relay.keepalive_s <= 15


def test_law_11_what_a_client_was_told_by_one_writer_is_not_told_again_by_the_next() -> None:
    op = read()
    first, second = DIALECT.writer(op), DIALECT.writer(op)
    assert kinds(frames(first.keepalive().decode())) == ["created", "in_progress"]
    first.keepalive()
    dropped = DIALECT.writer(op)
    dropped.write(Start("x", "w", 1))
    again = DIALECT.writer(op)
    assert b'"sequence_number":3}' in again.write(PartStart(0, 0, "tool", "c", "f"))
    assert again.write(Start("x", "w", 1)) == b""
    assert second.write(Start("x", "w", 1)) == b""


# -- 12 to 14: what is not here ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", [None, True, False])
def test_law_12_nothing_is_stored_and_the_reply_says_so(client: httpx.Client, store: bool | None) -> None:
    reply = client.post("/v1/responses", json=scripted(text="a", also={} if store is None else {"store": store}))
    assert reply.json()["store"] is False
    assert ("store" in reply.headers.get("x-dragoman-dropped", "")) == (store is True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("previous_response_id", "resp_1"),
        ("conversation", "conv_1"),
        ("conversation", {"id": "conv_1"}),
        ("background", True),
        ("prompt", {"id": "p"}),
    ],
)
def test_law_12_what_would_need_a_store_is_refused_by_its_name(client: httpx.Client, name: str, value: Any) -> None:
    refused = client.post("/v1/responses", json=body(**{name: value}))
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == name
    assert refused.json()["error"]["code"] == "unsupported_parameter"
    assert client.post("/v1/responses", json=body(**{name: None})).status_code == 200


def test_law_12_a_reference_to_a_message_is_never_silently_lost(client: httpx.Client) -> None:
    items = [message("user", "a"), {"type": "item_reference", "id": "msg_1"}, message("user", "b")]
    refused = client.post("/v1/responses", json=body(input=items))
    assert refused.status_code == 400
    assert "`store: false`" in refused.json()["error"]["message"]
    items[1]["id"] = "rs_1"
    reply = client.post("/v1/responses", json=body(input=items))
    assert reply.status_code == 200
    assert "input[].item_reference" in reply.headers["x-dragoman-dropped"]


SUMMED = {**THOUGHT, "summary": [{"type": "summary_text", "text": "hm"}]}
SHORT = [{"type": "summary_text", "text": "short"}]
REASONING: dict[str, dict[str, Any]] = {
    "plain": {**THOUGHT, "content": [{"type": "reasoning_text", "text": "hm"}], "encrypted_content": None},
    "a summary": SUMMED,
    "both": {**THOUGHT, "summary": SHORT, "content": [{"type": "text", "text": "hm"}]},
    "sealed elsewhere": {**THOUGHT, "encrypted_content": "gAAAAA=="},
    "sealed elsewhere, with a summary": {**SUMMED, "encrypted_content": "gAAAAA=="},
    "nothing": THOUGHT,
    "without an id": {"type": "reasoning", "summary": []},
}


@pytest.mark.parametrize("name", REASONING)
def test_law_13_reasoning_never_fails_a_request(name: str) -> None:
    op = read(input=[message("user", "a"), REASONING[name], message("assistant", "b"), message("user", "c")])
    thoughts = [part.text for part in op.messages[1].parts if isinstance(part, Thinking)]
    assert thoughts == ([] if name in ("sealed elsewhere", "nothing", "without an id") else ["hm"])
    assert ("input[].reasoning.encrypted_content" in op.dropped) == (name == "sealed elsewhere")


@pytest.mark.parametrize("also", [{}, {"reasoning": {"summary": "auto"}}], ids=["text", "summary"])
def test_law_13_reasoning_of_ours_comes_back_to_the_model(also: dict[str, Any]) -> None:
    key, other = new_key("x"), new_key("x")
    keys = {name: yaml.safe_load(text)["x"] for name, (_, text) in zip("ab", (key, other), strict=True)}
    include = {"include": ["reasoning.encrypted_content"], **also}
    with Stack(config={"auth": "keys", "keys": keys}) as stack, httpx.Client(base_url=stack.url) as client:
        client.headers["authorization"] = f"Bearer {key[0]}"
        first = streamed(client, include, reasoning="hm", text="a")[-1]["response"]["output"][0]
        whole = post(client, scripted(also=include, reasoning="hm", text="a"))["output"][0]
        assert first["encrypted_content"] == whole["encrypted_content"]
        assert "encrypted_content" not in post(client, scripted(also=also, reasoning="hm", text="a"))["output"][0]
        # As Codex sends it back.
        thought = {**first, "content": None, "summary": []}
        items = [message("user", "a"), thought, message("assistant", "b"), message("user", "c")]
        for caller, heard in ((key, "hm"), (other, None)):
            headers = {"authorization": f"Bearer {caller[0]}"}
            reply = client.post("/v1/responses", json=body(input=items), headers=headers)
            assert reply.status_code == 200
            named = "input[].reasoning.encrypted_content" in reply.headers.get("x-dragoman-dropped", "")
            assert named == (heard is None)
            told = json.loads([entry for entry in stack.sim.ledger.entries if entry.generation][-1].body)
            assert told["messages"][1].get("reasoning_content") == heard


def test_law_13_reasoning_opens_for_its_tenant_on_every_gateway_by_any_header() -> None:
    """Two gateways with one configuration: the issue's callers by `ocp-apim-subscription-key`, and by `api-key` beside
    an Authorization header that is empty or equal."""
    made = {name: new_key(name) for name in ("a", "a2", "b")}
    keys = {name: {**yaml.safe_load(text)[name], "team": name[0]} for name, (_, text) in made.items()}
    include = {"include": ["reasoning.encrypted_content"]}
    forms: tuple[Callable[[str], dict[str, str]], ...] = (
        lambda key: {"authorization": f"Bearer {key}"},
        lambda key: {"ocp-apim-subscription-key": key},
        lambda key: {"api-key": key, "authorization": ""},
        lambda key: {"api-key": key, "authorization": "Bearer"},
        lambda key: {"x-api-key": key, "authorization": f"Bearer {key}"},
    )
    config = {"auth": "keys", "keys": keys}
    with Stack(config=config) as one, Stack(config=config) as other:
        for name, form in product(made, forms):
            headers = form(made[name][0])
            with httpx.Client(base_url=one.url, headers=headers) as client:
                thought = post(client, scripted(also=include, reasoning="hm", text="a"))["output"][0]
            items = [message("user", "a"), {**thought, "content": None, "summary": []}, message("user", "c")]
            for reader, reads in product(made, forms):
                reply = httpx.post(other.url + "/v1/responses", json=body(input=items), headers=reads(made[reader][0]))
                assert reply.status_code == 200
                named = "input[].reasoning.encrypted_content" in reply.headers.get("x-dragoman-dropped", "")
                assert named == (keys[name]["team"] != keys[reader]["team"])


def test_law_14_a_web_socket_is_refused_at_once_where_there_is_none() -> None:
    headers = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
        "openai-beta": "responses_websockets=2026-02-06",
    }
    with Stack(config={"listen": {"max_sockets": 0}}) as stack, httpx.Client(base_url=stack.url) as client:
        for path in ("/v1/responses", "/openai/v1/responses", "/openai/responses"):
            refused = client.get(path, headers=headers)
            assert refused.status_code == 426
            assert refused.json()["error"]["code"] == "websocket_unsupported"
        assert client.post("/v1/responses", json=body()).status_code == 200


# -- 15 and 16: counts, and both forms --------------------------------------------------------------------------------


@pytest.mark.parametrize("usage", [Usage(10, 3), Usage(10, 3, 4, 2), Usage(None, 3), None], ids=str)
def test_law_15_usage_has_both_details(usage: Usage | None) -> None:
    reports = [UsageReport(usage)] if usage is not None else []
    told = stream_of(Finish(0, "stop", "stop"), *reports, End())[-1]["response"]["usage"]
    usage = usage or Usage()
    assert told == {
        "input_tokens": usage.input or 0,
        "input_tokens_details": {"cached_tokens": usage.cached or 0, "cache_write_tokens": 0},
        "output_tokens": usage.output or 0,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
        "total_tokens": (usage.input or 0) + (usage.output or 0),
    }


ALSO: dict[str, dict[str, Any]] = {
    "plain": {"tools": NAMED},
    "summary": {"tools": NAMED, "reasoning": {"summary": "auto"}},
    "logprobs": {"tools": NAMED, "include": ["message.output_text.logprobs"], "top_logprobs": 1},
}


@pytest.mark.parametrize("also", ALSO.values(), ids=ALSO)
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_law_16_a_stream_says_what_a_whole_reply_says(
    client: httpx.Client, script: dict[str, Any], also: dict[str, Any]
) -> None:
    if "include" in also:  # vLLM's whole replies measure the tokens of reasoning and calls too, its streams do not
        script = {"text": "a", **{name: value for name, value in script.items() if name in ("text", "finish")}}
    last = streamed(client, also, **script)[-1]["response"]
    whole = post(client, scripted(also=also, **script))
    assert last.keys() == whole.keys()
    for reply in (last, whole):
        for item in reply["output"]:
            item.pop("id")
            item.pop("call_id", None)
        for name in ("id", "created_at", "completed_at"):
            reply.pop(name)
    assert last == whole


def test_law_16_summaries_where_they_are_asked_for(client: httpx.Client) -> None:
    """Codex and the AI SDK show nothing else."""
    events = streamed(client, {"reasoning": {"summary": "auto"}}, reasoning="hm", text="Hello")
    names = [name for name in kinds(events) if name.startswith("reasoning")]
    assert names[0] == "reasoning_summary_part.added"
    assert set(names[1:-2]) == {"reasoning_summary_text.delta"}
    assert names[-2:] == ["reasoning_summary_text.done", "reasoning_summary_part.done"]
    assert events[-1]["response"]["output"][0]["summary"] == [{"type": "summary_text", "text": "hm"}]


# -- beside the laws --------------------------------------------------------------------------------------------------


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
