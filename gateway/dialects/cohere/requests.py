"""Requests of Cohere's API to canonical ones.

`conversation` reads the messages; this module reads what stands beside them.
"""

from __future__ import annotations

from msgspec import Raw, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from gateway.core.http import Request, header_list
from gateway.core.messages import Chat, Extra, Logprobs, Op, Output, Sampling, ToolChoice
from gateway.dialects._shared.api import Api
from gateway.dialects._shared.faults import unsupported, wrong
from gateway.dialects._shared.objects import members_of
from gateway.dialects.cohere.conversation import read_messages, with_documents
from gateway.dialects.cohere.views import ChatBody, CitationsIn, FormatIn, ThinkingIn
from gateway.wire.json import NULL, check_depth
from gateway.wire.openai.requests.constraints import constrain
from gateway.wire.openai.requests.messages import function_tool, without_tools
from gateway.wire.openai.requests.web_tools import without_web_tools
from gateway.wire.unknown import read_known

_chat = Decoder(ChatBody)
_OPTIONAL = {"top_k": "k", "tokens": "logprobs[].token_ids"}
"""Parameters that are left out where a worker cannot do them: vLLM's name -> this API's."""
# (a thinking budget below this many tokens, its effort).
_BUDGETS = ((4096, "low"), (16384, "medium"))
_CHOICES: dict[str, ToolChoice] = {"REQUIRED": "required", "NONE": "none"}
_UNCITED = ("OFF", "DISABLED")
_LINES = b"application/json"


class Asked(Struct, frozen=True):
    """The facts of a request that its reply needs.

    id     of the request
    quiet  the client wants no thinking, so a worker's thinking is left out
    lines  its stream is one of JSON lines, not of server-sent events
    """

    id: str
    quiet: bool = False
    lines: bool = False


def read(request: Request, raw: Extra, api: Api) -> Op:
    """Reads a chat. Raises GatewayError(BAD_REQUEST, UNSUPPORTED)."""
    extra, dropped = api.settle(raw, "chat")
    with without_web_tools(raw) as taken:
        found, unknown = read_known(raw, _chat, api.extras)
    _refuse_citations(found.citation_options)
    messages, left_out = read_messages(found.messages)
    if found.documents:
        messages = with_documents(messages, found.documents)
    left = [*dropped, *taken, *unknown, *left_out]
    op = Chat(
        model=found.model,
        messages=tuple(messages),
        continue_last=messages[-1].role == "assistant",
        fit_output=True,
        optional=_OPTIONAL,
    )
    op.stream = op.include_usage = bool(found.stream)
    op.max_output = found.max_tokens
    op.sampling = Sampling(
        temperature=found.temperature,
        top_p=found.p,
        top_k=found.k,
        seed=found.seed,
        frequency_penalty=found.frequency_penalty,
        presence_penalty=found.presence_penalty,
    )
    op.stop = tuple(stop for stop in found.stop_sequences or () if stop)
    _offer(op, found, left)
    op.output = _output(found.response_format)
    if found.logprobs:
        op.logprobs, op.want_tokens = Logprobs(0), True
    _think(op, found.thinking)
    op.extra, op.dropped = constrain(op, extra), tuple(left)
    op.memo = Asked(request.id, op.reasoning == "none", _takes_lines(request))
    return op


def _takes_lines(request: Request) -> bool:
    """Whether the client reads a stream of JSON lines: it asks for JSON and nothing else, as LiteLLM does."""
    accepted = header_list(request.headers, b"accept")
    return accepted is not None and accepted.strip().lower() == _LINES


def _refuse_citations(found: CitationsIn | None) -> None:
    """An answer that names no source looks like one that has none."""
    mode = found.mode if found is not None else None
    if mode is not None and mode.upper() not in _UNCITED:
        raise unsupported("citation_options", "is not supported: no worker cites; leave it out, or send the mode OFF")


def _offer(op: Chat, found: ChatBody, left: list[str]) -> None:
    """Reads the tools and the choice among them."""
    tools = [function_tool(tool.function) for tool in found.tools or ()]
    op.tools = tuple([replace(tool, strict=True) for tool in tools] if found.strict_tools else tools)
    word = (found.tool_choice or "").upper()
    if word:
        if word not in _CHOICES:
            raise wrong("tool_choice", "must be REQUIRED or NONE")
        op.tool_choice = _CHOICES[word]
    if not op.tools:
        left += without_tools(op.tool_choice, None, {})
        op.tool_choice = None
        left += ["strict_tools"] if found.strict_tools else []


def _output(found: FormatIn | None) -> Output | None:
    if found is None or found.type == "text":
        return None
    if found.type != "json_object":
        raise wrong("response_format", "must be of type text or json_object")
    name = "json_schema" if found.json_schema != NULL else "schema"
    schema: Raw = getattr(found, name)
    if schema == NULL:
        return Output("json")
    check_depth({f"response_format.{name}": schema})
    if members_of(schema) is None:
        raise wrong(f"response_format.{name}", "must be an object")
    return Output("schema", schema, name="output", strict=True)


def _think(op: Chat, found: ThinkingIn | None) -> None:
    """Sets the reasoning effort from the budget. Without one it is the model's own."""
    if found is None:
        return
    if found.type not in ("enabled", "disabled"):
        raise wrong("thinking", "must be of type enabled or disabled")
    budget = found.token_budget
    if found.type == "disabled":
        op.reasoning = "none"
    elif budget is not None:
        op.reasoning = next((word for most, word in _BUDGETS if budget < most), "high")
    op.optional = {**_OPTIONAL, "reasoning_effort": "thinking"}
