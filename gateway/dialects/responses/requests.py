"""Requests of the Responses API to canonical ones.

`Toolbox` reads the tools and `Conversation` the items; this module reads the parameters beside them.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from gateway.core.errors import GatewayError
from gateway.core.fields import ExtrasPolicy, sort_extras
from gateway.core.messages import Chat, CountTokens, Extra, Logprobs, Message, Output, Sampling, Text
from gateway.dialects._shared.faults import unsupported, wrong_at
from gateway.dialects.responses.conversation import Conversation, Given
from gateway.dialects.responses.fields import REFUSED
from gateway.dialects.responses.stored import as_items, beside_summary
from gateway.dialects.responses.tools import Toolbox
from gateway.dialects.responses.views import FORMS, ChatBody, FormatIn, PromptBody, ReasoningIn
from gateway.wire.json import NULL, encode, encode_line, text_of, typed
from gateway.wire.openai.requests.constraints import constrain
from gateway.wire.openai.requests.views import CHAT_MEMBERS
from gateway.wire.sealed import Seal
from gateway.wire.unknown import find_unknown

Body = TypeVar("Body", bound=PromptBody)

_chat = msgspec.json.Decoder(ChatBody)
_count = msgspec.json.Decoder(PromptBody)
# Levels of reasoning effort that workers do not have -> the nearest one.
_EFFORTS = {"xhigh": "high", "max": "high"}
# Parameters that clients send to every model: vLLM's name -> this API's.
_OPTIONAL = {"parallel_tool_calls": "parallel_tool_calls", "reasoning_effort": "reasoning.effort"}
_LOGPROBS, _SEALED = "message.output_text.logprobs", "reasoning.encrypted_content"
_SOURCES = "web_search_call.action.sources"  # of searches that the gateway runs: they always have them


class Asked(Struct):
    """The facts of a request that its reply needs.

    id        the ids of the response and of its items are derived from it
    echo      the members of the reply that repeat the request, as JSON text without braces
    tools     the tools, to be found by every name that the model may use
    summary   whether reasoning is sent as a summary
    silent    whether the response has no output
    compacts  whether the reply's text is a summary that stands for the conversation
    seal      seals reasoning, if the client asks for encrypted reasoning
    items     the items that led to the response, if it is stored or cached
    beside    the items that stand beside the summary, in full; None unless the reply is a compacted conversation
    created   when the response began, in Unix seconds; 0 until the first event is sent
    events    the events of the stream that were sent before any worker began to answer
    """

    id: str
    echo: bytes
    tools: Toolbox
    summary: bool = False
    compacts: bool = False
    silent: bool = False
    seal: Seal | None = None
    items: list[Raw] | None = None
    beside: list[bytes] | None = None
    created: int = 0
    events: int = 0


def read_chat(
    raw: Extra, extra: Extra, dropped: tuple[str, ...], policy: ExtrasPolicy, request_id: str, given: Given
) -> Chat:
    """Reads a request for a response. Raises GatewayError(BAD_REQUEST, UNSUPPORTED)."""
    found, talk, unknown = _read(raw, _chat, policy, given)
    return _chat_of(raw, extra, [*dropped, *unknown], request_id, given, found, talk)


def read_compaction(
    raw: Extra, extra: Extra, dropped: tuple[str, ...], policy: ExtrasPolicy, request_id: str, given: Given
) -> Chat:
    """Reads a request to compact a conversation: one for a response with a summary, of which nothing is stored. Raises
    GatewayError(BAD_REQUEST, UNSUPPORTED)."""
    if raw.get("input", NULL) == NULL and raw.get("previous_response_id", NULL) != NULL:
        raw["input"] = Raw(b"[]")
    found, talk, unknown = _read(raw, _chat, policy, given, compacts=True)
    if found.stream:
        raise unsupported("stream", "is not supported: a compacted conversation comes whole")
    op = _chat_of(raw, {}, [*dropped, *unknown], request_id, Given(given.seal), found, talk)
    # A constraint here is on the summary.
    op.dropped += _with_extra(op, constrain(op, extra))
    op.facts(Asked).beside = beside_summary(as_items(talk.input), request_id)
    return op


def _chat_of(
    raw: Extra,
    extra: Extra,
    left: list[str],
    request_id: str,
    given: Given,
    found: ChatBody,
    talk: Conversation,
) -> Chat:
    if found.background:
        raise unsupported("background", "is not supported: a response is made while its client waits for it")
    op = _with_prompt(found, talk)
    left += [*talk.dropped, *talk.box.dropped]
    op.stream = op.include_usage = bool(found.stream)
    op.max_output = found.max_output_tokens
    op.fit_output = True
    op.sampling = Sampling(
        temperature=found.temperature,
        top_p=found.top_p,
        frequency_penalty=found.frequency_penalty,
        presence_penalty=found.presence_penalty,
    )
    op.user = found.user
    op.end_user = text_of(raw, "safety_identifier")
    op.cache_key = found.prompt_cache_key
    op.optional = _OPTIONAL
    left += talk.box.choose(op, found.tool_choice)
    if op.tools:
        op.parallel_tools = found.parallel_tool_calls
    _include(op, found, left)
    summary = _think(op, found.reasoning, left)
    if found.text is not None:
        op.output = _output(found.text.format)
        if found.text.verbosity is not None:
            left.append("text.verbosity")
    if talk.compacts:
        left += [*_summary_only(op), *extra]
    else:
        left += _with_extra(op, constrain(op, extra))
    stores = given.stored is not None and given.lasts and found.store is not False
    keeps = stores or given.cached
    if found.store and not stores:
        left.append("store")
    op.dropped = tuple(left)
    wanted = given.seal if _SEALED in (found.include or ()) else None
    items = as_items(talk.input) if keeps else None
    op.stores = stores
    if keeps:
        # A client may send one id with several requests. Their stored responses must not get one id.
        request_id = f"{request_id}-{secrets.token_hex(8)}"
    echo = _echo(raw, found, op, talk.box.described, stores)
    op.memo = Asked(request_id, echo, talk.box, summary, compacts=talk.compacts, seal=wanted, items=items)
    return op


def only_read(op: Chat) -> Chat:
    """The same for a response without output: the worker reads the prompt, which its cache then has. It makes one
    token, because no engine makes none; nothing forces that to be a call or of a form."""
    op.max_output = 1
    op.output = op.tool_choice = op.logprobs = None
    op.facts(Asked).silent, op.facts(Asked).compacts = True, False
    if op.messages[-1].role == "system":  # Codex sends no more; some templates refuse a chat without a user
        op.messages = (*op.messages, Message("user", (Text("-"),)))
    return op


def read_count(raw: Extra, extra: Extra, dropped: tuple[str, ...], policy: ExtrasPolicy, given: Given) -> CountTokens:
    """Reads a request to count tokens. Raises GatewayError(BAD_REQUEST)."""
    found, talk, unknown = _read(raw, _count, policy, given)
    op = _with_prompt(found, talk)
    left = (*dropped, *unknown, *talk.dropped, *talk.box.dropped, *_with_extra(op, extra))
    return CountTokens(model=found.model, prompt_of=op, dropped=left)


def _read(
    raw: Extra, decoder: msgspec.json.Decoder[Body], policy: ExtrasPolicy, given: Given, *, compacts: bool = False
) -> tuple[Body, Conversation, tuple[str, ...]]:
    """(the body in `raw`, its items, the names of unknown members inside its objects). No worker reads those members,
    so they are dropped unless `policy` refuses them."""
    for name, why in REFUSED.items():
        if name in raw and (given.stored is None or name != "previous_response_id") and raw[name] != NULL:
            raise unsupported(name, f"is not supported: {why}")
    body = encode(raw)
    try:
        found = typed(body, decoder)
        return found, Conversation(found, given, compacts), ()
    except GatewayError:
        unknown = find_unknown(body, decoder.type, FORMS)
        if unknown is None:
            raise
    found = typed(unknown.body, decoder)
    talk = Conversation(found, given, compacts)
    if policy == "error":
        sort_extras(policy, unknown.params.values())
    return found, talk, tuple(unknown.params)


def _with_prompt(found: PromptBody, talk: Conversation) -> Chat:
    """A chat that has its prompt and no other parameters."""
    op = Chat(model=found.model, messages=tuple(talk.messages), tools=tuple(talk.box.tools.values()))
    op.server_tools = tuple(talk.box.run.values())
    if op.server_tools:
        op.tool_texts = tuple(talk.found)
    return op


def _with_extra(op: Chat, extra: Extra) -> tuple[str, ...]:
    """Adds unknown members to `op`. Returns the names of those that mean something else to a worker; they are left
    out."""
    op.extra = {name: value for name, value in extra.items() if name not in CHAT_MEMBERS}
    return tuple(name for name in extra if name in CHAT_MEMBERS)


# -- how --------------------------------------------------------------------------------------------------------------


def _summary_only(op: Chat) -> list[str]:
    """Takes away what is for an answer and not for a summary. Returns the client's names for it."""
    names = {"tools": op.tools, "text.format": op.output, f"include.{_LOGPROBS}": op.logprobs}
    op.tools, op.server_tools, op.tool_choice, op.parallel_tools = (), (), None, None
    op.output = op.logprobs = None
    return [name for name, wanted in names.items() if wanted]


def _include(op: Chat, found: ChatBody, left: list[str]) -> None:
    include = found.include or []
    if found.top_logprobs or _LOGPROBS in include:
        op.logprobs = Logprobs(found.top_logprobs or 0)
    supported = (_LOGPROBS, _SEALED, *([_SOURCES] if op.server_tools else []))
    left += [f"include.{name[:64]}" for name in include if name not in supported]


def _think(op: Chat, found: ReasoningIn | None, left: list[str]) -> bool:
    """Sets the reasoning effort. Returns whether the client asks for a summary of the reasoning."""
    if found is None:
        return False
    if found.effort is not None:
        op.reasoning = _EFFORTS.get(found.effort, found.effort)
    left += [f"reasoning.{name}" for name in ("context", "mode") if getattr(found, name) != NULL]
    return found.summary not in (None, "none") or found.generate_summary not in (None, "none")


def _output(form: FormatIn | None) -> Output | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return Output("json")
    if form.type != "json_schema" or form.schema == NULL:
        raise wrong_at("text.format", "must be of type text, json_object, or json_schema with a schema")
    return Output("schema", form.schema, name=form.name, strict=form.strict, description=form.description)


_UNTHOUGHT = Raw(b'{"effort":null,"summary":null}')
_TEXT = Raw(b'{"format":{"type":"text"}}')


def _echo(raw: Extra, found: ChatBody, op: Chat, tools: Sequence[Raw], stores: bool) -> bytes:
    """The members of a reply that repeat the request, as JSON text without braces: what was used of it. An explicit
    null is as if the member was not there.

    No engine reports the sampling parameters that it used. If the client sends none, the reply has the defaults of the
    API, and the engine's own apply. No tier, tool limit or safety identifier has an effect here.
    """
    think, text = found.reasoning, found.text
    echo = encode_line(
        {
            "instructions": found.instructions,
            "max_output_tokens": found.max_output_tokens,
            "metadata": found.metadata or {},
            "parallel_tool_calls": found.parallel_tool_calls is not False,
            "reasoning": _UNTHOUGHT
            if think is None
            else {"effort": think.effort, "summary": think.summary or think.generate_summary},
            "temperature": 1.0 if found.temperature is None else found.temperature,
            # Clients need `text.format`.
            "text": _TEXT if text is None or text.format is None else raw["text"],
            "tool_choice": "auto" if found.tool_choice is None else raw["tool_choice"],
            "tools": tools,
            "top_p": 1.0 if found.top_p is None else found.top_p,
            **({"user": found.user} if found.user is not None else {}),
            "background": False,
            "previous_response_id": found.previous_response_id,
            "store": stores,
            "truncation": "disabled",
            "presence_penalty": found.presence_penalty or 0.0,
            "frequency_penalty": found.frequency_penalty or 0.0,
            "top_logprobs": op.logprobs.top if op.logprobs is not None else 0,
            "max_tool_calls": None,
            "service_tier": "default",
            "safety_identifier": None,
            "prompt_cache_key": found.prompt_cache_key,
        }
    )
    # The client's JSON may have several lines; an event must have one.
    return (msgspec.json.format(echo, indent=-1) if b"\n" in echo or b"\r" in echo else echo)[1:-1]
