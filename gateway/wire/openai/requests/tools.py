"""Reads tools and tool choices of OpenAI's wire into the canonical form."""

from __future__ import annotations

from gateway.core.errors import GatewayError, Kind
from gateway.core.messages import Extra, NamedTool, Tool, ToolChoice
from gateway.wire.json import present
from gateway.wire.openai.requests.views import NamedToolIn, ToolFunctionIn, ToolIn
from gateway.wire.unknown import NOTHING, Tree, as_extra, inside


def read_tools(found: list[ToolIn], kept: Tree) -> tuple[Tool, ...]:
    return tuple([_read_tool(tool, index, inside(kept, index)) for index, tool in enumerate(found)])


def _read_tool(found: ToolIn, index: int, kept: Tree) -> Tool:
    if found.type != "function" or found.function is None:
        raise GatewayError(
            Kind.BAD_REQUEST,
            f"'tools.{index}' must be of type 'function' with a 'function' object",
            param=f"tools.{index}",
            code="invalid_value",
        )
    return function_tool(found.function, kept)


def function_tool(found: ToolFunctionIn, kept: Tree = NOTHING) -> Tool:
    """The tool whose `function` this is."""
    return Tool(found.name, found.description, present(found.parameters), found.strict, as_extra(kept))


def without_tools(choice: ToolChoice | None, parallel: bool | None, raw: Extra) -> list[str]:
    """Removes tool parameters of a request without tools from `raw` and returns their names: engines refuse them.
    Raises GatewayError(BAD_REQUEST) if the request requires a tool call."""
    if choice == "required" or isinstance(choice, NamedTool):
        raise GatewayError(
            Kind.BAD_REQUEST,
            "'tool_choice' asks for a tool, but there are no 'tools'",
            param="tool_choice",
            code="invalid_value",
        )
    said = {"tool_choice": choice, "parallel_tool_calls": parallel}
    names = [name for name, value in said.items() if value is not None]
    for name in names:
        raw.pop(name, None)
    return names


def read_tool_choice(found: str | NamedToolIn | None, kept: Tree) -> ToolChoice | None:
    if found is None or found in ("none", "auto", "required"):
        return found  # type: ignore[return-value]  # narrowed by the comparison
    if not isinstance(found, str) and found.type == "function" and found.function is not None:
        return NamedTool(found.function.name, as_extra(kept))
    raise GatewayError(
        Kind.BAD_REQUEST,
        "'tool_choice' must be 'none', 'auto', 'required' or a named function",
        param="tool_choice",
        code="invalid_value",
    )
