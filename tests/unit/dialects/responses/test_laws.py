"""The laws of the Responses API, by their numbers in the notes on its recorded clients: what they send, and what they
must be answered."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gateway.core.events import Delta, End, Finish, PartEnd, PartStart, UsageReport
from gateway.core.ports import Capabilities
from gateway.core.usage import Usage
from tests.support.harness import Stack
from tests.unit.dialects.asking import ONE, SIDE_BY_SIDE, TWO
from tests.unit.dialects.asking import SCRIPTS as ALL_SCRIPTS
from tests.unit.dialects.responses.asking import (
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
    scripted,
    sent,
    stream_of,
)
from tests.unit.dialects.responses.posted import THOUGHT, post, streamed
from tests.unit.dialects.responses.recorded import CODEX, CODEX_HEADERS, CODEX_TOOLS_AS_ITEM

LAWS = 16
"""How many there are: tests/repo looks for a test of each."""


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
    takes = Capabilities("w", system="keep")

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
    assert messages[-1]["content"] == "later\n\ngo on"
    takes = Capabilities("w", system="keep")
    roles = [one["role"] for one in sent(can=takes, instructions="zero", input=items)["messages"]]
    assert roles == ["system", "user", "assistant", "system", "user"]


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
