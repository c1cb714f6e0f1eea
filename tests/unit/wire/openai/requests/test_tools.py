"""Tools and tool choices of OpenAI's wire, in canonical form."""

from __future__ import annotations

from msgspec import Raw

from gateway.core.messages import NamedTool, Tool
from gateway.wire.openai.requests.reading import read_chat
from tests.unit.wire.openai.exchange import TOOLS, chat


def test_tools_and_choices() -> None:
    schema = {"type": "object"}
    op = chat(
        tools=[
            {"type": "function", "function": {"name": "f", "description": "d", "parameters": schema, "strict": True}},
            {"type": "function", "function": {"name": "g", "parameters": None}},
        ],
        tool_choice={"type": "function", "function": {"name": "g"}},
    )
    assert op.tools == (Tool("f", "d", Raw(b'{"type": "object"}'), True), Tool("g"))
    assert op.tool_choice == NamedTool("g")
    for word in ("none", "auto", "required"):
        assert chat(tools=TOOLS, tool_choice=word).tool_choice == word
    assert chat(tools=[]).tools == ()


def test_what_is_said_of_no_tools_is_named() -> None:
    raw = {"tool_choice": Raw(b'"auto"'), "parallel_tool_calls": Raw(b"true"), "tools": Raw(b"[]")}
    op = read_chat(
        b'{"messages":[{"role":"user","content":"x"}],"tools":[],"tool_choice":"auto","parallel_tool_calls":true}',
        raw,
        {},
        (),
    )
    assert (op.tool_choice, op.parallel_tools) == (None, None)
    assert (op.dropped, op.raw) == (("tool_choice", "parallel_tool_calls"), {"tools": Raw(b"[]")})
    assert chat(tool_choice="none").dropped == ("tool_choice",)
