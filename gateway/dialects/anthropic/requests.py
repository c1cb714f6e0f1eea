"""Requests of the Messages API to canonical ones.

`Conversation` reads the messages; this module reads the parameters beside them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from hashlib import sha256

import msgspec
from msgspec import Raw, Struct

from gateway.core.fields import ExtrasPolicy
from gateway.core.messages import (
    Chat,
    CountTokens,
    Extra,
    KindOfServerTool,
    NamedTool,
    Output,
    Sampling,
    ServerTool,
    Text,
    Tool,
    ToolChoice,
)
from gateway.dialects._shared.faults import wrong_at
from gateway.dialects._shared.objects import members_of
from gateway.dialects._shared.server_tools import as_function
from gateway.dialects.anthropic.conversation import Conversation
from gateway.dialects.anthropic.views import ChatBody, ChoiceIn, OutputConfigIn, PromptBody, ThinkingIn, ToolIn
from gateway.wire.json import NULL, encode
from gateway.wire.openai.requests.constraints import constrain
from gateway.wire.unknown import read_known

_chat = msgspec.json.Decoder(ChatBody)
_count = msgspec.json.Decoder(PromptBody)
_OBJECT = Raw(b'"object"')
# `output_config.effort` -> OpenAI's `reasoning_effort`; (a thinking budget below this many tokens, its effort).
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
_BUDGETS = ((4096, "low"), (16384, "medium"))
# Each version of a tool has a date behind this: `web_search_20250305`.
_SERVER_TOOLS: Mapping[str, KindOfServerTool] = {"web_search_": "search", "web_fetch_": "fetch"}
_FORCING = ("any", "tool")
_SEARCHING = "Perform a web search for the query"
"""The words by which Claude Code (2.1.330) begins its request for a search."""
# Parameters that clients send to every model: vLLM's name -> this API's.
_OPTIONAL = {"top_k": "top_k", "parallel_tool_calls": "tool_choice.disable_parallel_tool_use"}


Runs = frozenset[KindOfServerTool]


def read_chat(raw: Extra, extra: Extra, dropped: tuple[str, ...], policy: ExtrasPolicy, runs: Runs) -> Chat:
    """Reads a message request. runs: the server tools that the gateway runs. Raises GatewayError(BAD_REQUEST)."""
    found, unknown = read_known(raw, _chat, policy)
    talk = Conversation(found.messages, found.system)
    op = _with_prompt(found, talk, runs)
    left = [*dropped, *unknown]
    op.stream = op.include_usage = op.early_usage = bool(found.stream)
    op.max_output = found.max_tokens or 1
    if not found.max_tokens:
        left.append("max_tokens")
    op.fit_output = True
    op.sampling = Sampling(temperature=found.temperature, top_p=found.top_p, top_k=found.top_k)
    op.stop = tuple(stop for stop in found.stop_sequences or () if stop)
    _choose(op, found.tool_choice, left, found.tools or [])
    op.optional = _OPTIONAL
    _think(op, found.thinking, found.output_config, left)
    op.output = _output(found.output_config)
    if found.metadata is not None and found.metadata.user_id is not None:
        op.end_user = _end_user(found.metadata.user_id)
        op.user = sha256(found.metadata.user_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    op.extra = constrain(op, extra)
    op.dropped = (*left, *talk.dropped)
    return op


def read_count(raw: Extra, extra: Extra, dropped: tuple[str, ...], policy: ExtrasPolicy, runs: Runs) -> CountTokens:
    """Reads a request to count tokens. Raises GatewayError(BAD_REQUEST)."""
    found, unknown = read_known(raw, _count, policy)
    talk = Conversation(found.messages, found.system)
    op = _with_prompt(found, talk, runs)
    op.extra = extra
    return CountTokens(model=found.model, prompt_of=op, dropped=(*dropped, *unknown, *talk.dropped))


class _UserId(Struct):
    """The JSON that Claude Code puts into `metadata.user_id`. Every session has an id of its own."""

    device_id: str = ""
    account_uuid: str = ""


_LONGEST_ID = 1024
_user_id = msgspec.json.Decoder(_UserId)
_SESSION = re.compile(r"_session_[0-9a-f-]{36}\Z")  # of Claude Code before 2.1


def _end_user(user_id: str) -> str:
    """The user that `user_id` names, whatever the session."""
    if user_id.startswith("{") and len(user_id) <= _LONGEST_ID:
        with contextlib.suppress(msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            found = _user_id.decode(user_id)
            return found.account_uuid or found.device_id or user_id
    return _SESSION.sub("", user_id)


def _with_prompt(found: PromptBody, talk: Conversation, runs: Runs) -> Chat:
    """A chat that has its prompt and no other parameters."""
    op = Chat(model=found.model, messages=tuple(talk.messages), continue_last=talk.continues)
    op.tools, op.server_tools = _tools(found.tools or [], talk, runs)
    if op.server_tools:
        op.tool_texts = tuple(talk.found)
    return op


# -- tools ----------------------------------------------------------------------------------------------------------


def _tools(found: list[ToolIn], talk: Conversation, runs: Runs) -> tuple[tuple[Tool, ...], tuple[ServerTool, ...]]:
    """(the tools that the model sees, in order; those of them that the gateway runs).

    Other tools without a schema are left out: Anthropic's servers execute them, our workers cannot. Deferred tools are
    left out until a `tool_reference` names them."""
    shown: dict[str, Tool] = {}
    run: dict[str, ServerTool] = {}
    for tool in [*found, *talk.added.values()]:
        if tool.name in talk.removed:
            continue
        server_tool = _server_tool(tool)
        runs_it = server_tool is not None and server_tool.kind in runs
        if (_serverside(tool) and not runs_it) or (tool.defer_loading and tool.name not in talk.referred):
            talk.dropped[f"tools.{tool.name}"] = None
        elif not tool.name:
            raise wrong_at("tools", "every tool needs a name")
        elif server_tool is not None and runs_it:
            run[tool.name] = server_tool
            shown[tool.name] = as_function(server_tool)
        else:
            shown[tool.name] = Tool(tool.name, tool.description, _with_type(tool), tool.strict)
            if tool.input_examples != NULL:
                talk.dropped["tools[].input_examples"] = None
    return tuple(shown.values()), tuple(run.values())


def _serverside(tool: ToolIn) -> bool:
    """Whether the server of the API would run it."""
    return tool.type not in (None, "custom") and tool.input_schema == NULL


def _with_type(tool: ToolIn) -> Raw:
    """The tool's schema; without a `type` it gets `"object"`."""
    if tool.input_schema == NULL:
        return Raw(b'{"type":"object"}')
    members = members_of(tool.input_schema)
    if members is None:
        raise wrong_at("tools", f"the input_schema of {tool.name} is not a JSON object")
    return tool.input_schema if "type" in members else Raw(encode({"type": _OBJECT, **members}))


def _choose(op: Chat, found: ChoiceIn | None, left: list[str], offered: list[ToolIn]) -> None:
    """Reads `tool_choice`. A choice of a tool that was left out becomes `auto`; without tools the field is dropped.

    If all tools are a server's, a choice that forces one is made for its result, and so is Claude Code's own request
    for a search: without the tool the model would make it up."""
    forced = (found is not None and found.type in _FORCING) or _is_claudes_search(op)
    if forced and all(map(_serverside, offered)) and not op.tools:
        op.server_tools = tuple(filter(None, map(_server_tool, offered)))[:1]
    if found is None:
        return
    if not op.tools:
        if not op.server_tools:
            left.append("tool_choice")
        return
    words: dict[str, ToolChoice] = {"auto": "auto", "any": "required", "none": "none"}
    if found.type == "tool" and found.name in {tool.name for tool in op.tools}:
        op.tool_choice = NamedTool(found.name or "")
    elif found.type == "tool" and found.name in {tool.name for tool in offered}:
        op.tool_choice = "auto"
        left.append("tool_choice.name")
    elif found.type in words:
        op.tool_choice = words[found.type]
    elif found.type == "tool":
        raise wrong_at("tool_choice", f"there is no tool '{found.name}'")
    else:
        raise wrong_at("tool_choice", "its type must be auto, any, tool or none")
    if found.disable_parallel_tool_use is not None:
        op.parallel_tools = not found.disable_parallel_tool_use


def _is_claudes_search(op: Chat) -> bool:
    """Whether the request is the one that Claude Code makes of a call of its WebSearch."""
    last = op.messages[-1:]
    parts = last[0].parts if last and last[0].role == "user" else ()
    return any(isinstance(one, Text) and one.text.startswith(_SEARCHING) for one in parts)


def _server_tool(tool: ToolIn) -> ServerTool | None:
    """The tool as one that the API's server runs, if it is a search or a fetch."""
    if not _serverside(tool):
        return None
    kind = next((kind for begin, kind in _SERVER_TOOLS.items() if (tool.type or "").startswith(begin)), None)
    if kind is None:
        return None
    return ServerTool(
        kind, tool.name, tool.max_uses, tuple(tool.allowed_domains or ()), tuple(tool.blocked_domains or ())
    )


# -- how ------------------------------------------------------------------------------------------------------------


def _think(op: Chat, thinking: ThinkingIn | None, config: OutputConfigIn | None, left: list[str]) -> None:
    """Sets the reasoning effort, from `output_config.effort`, else from the budget in `thinking`."""
    effort = config.effort if config is not None else None
    if effort in _EFFORTS:
        op.reasoning = _EFFORTS[effort]
        op.optional = {**op.optional, "reasoning_effort": "output_config.effort"}
    elif effort is not None:
        left.append("output_config.effort")
    if thinking is None:
        return
    if thinking.type == "disabled":
        op.reasoning = "none"
        op.optional = {**op.optional, "reasoning_effort": "thinking"}
    elif thinking.type == "enabled" and op.reasoning is None:
        budget = thinking.budget_tokens or 0
        op.reasoning = next((word for most, word in _BUDGETS if budget < most), "high")
        op.optional = {**op.optional, "reasoning_effort": "thinking"}
    elif thinking.type not in ("enabled", "adaptive"):
        left.append("thinking")
    if thinking.display not in (None, "summarized"):
        left.append("thinking.display")


def _output(config: OutputConfigIn | None) -> Output | None:
    form = config.format if config is not None else None
    if form is None or form.type == "text":
        return None
    if form.type != "json_schema" or form.schema == NULL:
        raise wrong_at("output_config.format", "must be of type json_schema, with a schema")
    return Output("schema", form.schema, name="output", strict=True)
