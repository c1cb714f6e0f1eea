"""What the dialect `cohere` makes of requests that the fidelity rows and the conformance suite do not show."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway import dialects
from gateway.core.errors import GatewayError, Kind
from gateway.core.http import Request
from gateway.core.messages import Chat, Image, Message, Output, Text, Thinking, ToolCall
from gateway.core.ports import Settings
from tests.support.raised import raised

COHERE = dialects.create("cohere", Settings())
HI = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def asking(body: dict[str, Any]) -> Request:
    return Request("POST", "/v2/chat", [], json.dumps({"model": "m", **body}).encode(), route="chat", id="r")


def chat(**members: Any) -> Chat:
    op = COHERE.read(asking({"messages": HI, **members}))
    assert isinstance(op, Chat)
    return op


def said(*messages: Any) -> tuple[Message, ...]:
    return chat(messages=list(messages)).messages


def refused(**members: Any) -> GatewayError:
    return raised(lambda: chat(**members))


# -- messages ---------------------------------------------------------------------------------------------------------


def test_a_plan_and_its_results_as_langchain_sends_them() -> None:
    result = {"type": "document", "document": {"data": {"output": "sunny"}}}
    found = said(
        *HI,
        {"role": "assistant", "tool_plan": "I look.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": [result, {"type": "text", "text": "warm"}]},
    )
    assert found[1].parts == (Text("I look."), ToolCall("c1", "f", '{"a": 1}'))
    assert found[2] == Message("tool", (Text("sunny\nwarm"),), None, "c1")


@pytest.mark.parametrize(
    ("data", "text"),
    [({"a": "x"}, "x"), ({"a": 1}, '{"a":1}'), ({"a": "x", "b": "y"}, '{"a":"x","b":"y"}'), ({}, "{}"), ("t", "t")],
)
def test_the_words_of_a_document(data: Any, text: str) -> None:
    result = {"type": "document", "document": {"data": data}}
    found = said(
        *HI,
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": [result]},
    )
    (part,) = found[2].parts
    assert isinstance(part, Text)
    assert part.text.replace(": ", ":").replace(", ", ",") == text


def test_blocks_of_content() -> None:
    image = {"type": "image_url", "image_url": {"url": "http://x/y.png", "detail": "low"}}
    found = said(
        {"role": "system", "content": [{"type": "text", "text": "be"}]},
        {"role": "user", "content": [{"type": "text", "text": "a"}, image]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "b"}]},
        *HI,
    )
    assert [message.parts for message in found[:3]] == [
        (Text("be"),),
        (Text("a"), Image("http://x/y.png", "low")),
        (Thinking("hm"), Text("b")),
    ]


def test_a_call_without_an_id_gets_that_of_its_place() -> None:
    call = {"function": {"name": "f"}}
    turns = [*HI, {"role": "assistant", "tool_calls": [call, call]}, *HI]
    first, second = said(*turns)[1].parts
    assert (first, second) == (ToolCall("c00010000", "f", "{}"), ToolCall("c00010001", "f", "{}"))


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([{"role": "developer", "content": "x"}], "messages.0.role"),
        ([{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}], "messages.0.content.0.type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages.0.content.0.text"),
        ([{"role": "tool", "content": "x"}], "messages.0.tool_call_id"),
        ([{"role": "user", "content": "x", "tool_calls": [CALL]}], "messages.0.tool_calls"),
        ([*HI, {"role": "assistant", "tool_calls": [CALL]}], "messages.1"),
        (
            [{"role": "system", "content": [{"type": "document", "document": {"data": {}}}]}],
            "messages.0.content.0.type",
        ),
    ],
)
def test_what_is_wrong_is_named_by_its_place(messages: list[Any], place: str) -> None:
    error = refused(messages=messages)
    assert (error.kind, error.param) == (Kind.BAD_REQUEST, place)


def test_citations_that_come_back_are_named() -> None:
    cited = {"role": "assistant", "content": "a", "citations": [{"start": 0, "end": 1, "text": "a", "sources": []}]}
    assert chat(messages=[*HI, cited, *HI]).dropped == ("messages[].citations",)


# -- documents and citations ------------------------------------------------------------------------------------------


def test_documents_join_the_system_message() -> None:
    system = {"role": "system", "content": "Be brief."}
    op = chat(messages=[system, *HI], documents=["Cats purr.", {"id": "d", "data": {"snippet": "Dogs bark."}}])
    assert op.messages[0].parts == (
        Text("Be brief.\n\nDocuments for the answer:\n\n[doc:0]\nCats purr.\n\n[d]\nDogs bark."),
    )
    assert [message.role for message in chat(documents=["a"]).messages] == ["system", "user"]
    assert chat(documents=[]).messages == (Message("user", (Text("hi"),)),)
    assert refused(documents=[{"data": 5}]).param == "documents.0.data"


@pytest.mark.parametrize("mode", ["ENABLED", "FAST", "ACCURATE", "fast"])
def test_citations_are_refused(mode: str) -> None:
    error = refused(citation_options={"mode": mode})
    assert (error.kind, error.param) == (Kind.UNSUPPORTED, "citation_options")


@pytest.mark.parametrize("options", [{"mode": "OFF"}, {"mode": "DISABLED"}, {}, None])
def test_no_citations_are_no_wish(options: Any) -> None:
    assert chat(citation_options=options).dropped == ()


# -- parameters -------------------------------------------------------------------------------------------------------


def test_tools() -> None:
    assert chat(tools=TOOLS, tool_choice="REQUIRED").tool_choice == "required"
    assert chat(tools=TOOLS, tool_choice="NONE").tool_choice == "none"
    assert [tool.strict for tool in chat(tools=TOOLS, strict_tools=True).tools] == [True]
    assert [tool.strict for tool in chat(tools=TOOLS, strict_tools=False).tools] == [None]
    assert refused(tools=TOOLS, tool_choice="ANY").param == "tool_choice"
    assert refused(tool_choice="REQUIRED").param == "tool_choice"
    op = chat(tool_choice="NONE", strict_tools=True)
    assert (op.tool_choice, op.dropped) == (None, ("tool_choice", "strict_tools"))


def test_forms_of_the_answer() -> None:
    schema = {"type": "object"}
    assert chat(response_format={"type": "text"}).output is None
    assert chat(response_format={"type": "json_object"}).output == Output("json")
    for name in ("json_schema", "schema"):
        output = chat(response_format={"type": "json_object", name: schema}).output
        assert output is not None
        assert (output.kind, json.loads(bytes(output.schema or b""))) == ("schema", schema)
    assert refused(response_format={"type": "grammar"}).param == "response_format"
    assert refused(response_format={"type": "json_object", "json_schema": []}).param == "response_format.json_schema"


@pytest.mark.parametrize(
    ("thinking", "effort"),
    [
        ({"type": "disabled"}, "none"),
        ({"type": "enabled"}, None),
        ({"type": "enabled", "token_budget": 100}, "low"),
        ({"type": "enabled", "token_budget": 5000}, "medium"),
        ({"type": "enabled", "token_budget": 50000}, "high"),
    ],
)
def test_thinking(thinking: Any, effort: str | None) -> None:
    op = chat(thinking=thinking)
    assert op.reasoning == effort
    assert op.optional["reasoning_effort"] == "thinking"


def test_thinking_of_another_kind_is_refused() -> None:
    assert refused(thinking={"type": "adaptive"}).param == "thinking"


def test_token_ids_are_not_demanded_of_a_worker() -> None:
    op = chat(logprobs=True)
    assert op.want_tokens
    assert op.optional["tokens"] == "logprobs[].token_ids"
    assert not chat(logprobs=False).want_tokens


def test_members_in_the_wrong_place_are_named() -> None:
    assert chat(messages=[{**HI[0], "name": "ann", "tool_plan": "p", "tool_call_id": "c"}]).dropped == (
        "messages[].name",
        "messages[].tool_call_id",
        "messages[].tool_plan",
    )
    result = {"type": "document", "document": {"id": "d", "data": "a"}}
    told = {"role": "tool", "tool_call_id": "c1", "name": "f", "content": [result]}
    op = chat(messages=[*HI, {"role": "assistant", "tool_calls": [CALL], "tool_plan": "p"}, told])
    assert op.dropped == ("messages[].content[].document.id",)
