"""Reads request bodies of OpenAI's wire into the canonical form.

Shared by every dialect whose bodies resemble OpenAI's. `views` describes the bodies; `messages` reads
that part of them, and the tools.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import ExtrasPolicy, sort_extras
from gateway.core.messages import Chat, Complete, Embed, Extra, Logprobs, Output, Sampling
from gateway.wire.json import bad_value, decoded, encode, members_of, missing, present, text_of, typed
from gateway.wire.openai.requests.bounds import RANGES, refuse_out_of_range
from gateway.wire.openai.requests.messages import (
    PartReader,
    read_messages,
    read_part,
    read_tool_choice,
    read_tools,
    without_tools,
)
from gateway.wire.openai.requests.views import FORMS, Bias, Body, ChatBody, EmbedBody, FormatIn, TextBody
from gateway.wire.openai.requests.web_tools import without_web_tools
from gateway.wire.unknown import NOTHING, Form, Tree, Unknown, as_extra, find_unknown, inside

Read = TypeVar("Read", bound=Chat | Complete)
Viewed = TypeVar("Viewed", bound=Body)


class _BiasIn(Struct):
    logit_bias: dict[str, msgspec.Raw]


# The parameter of a bias in msgspec's errors, which do not name the key.
_ANY_BIAS = "logit_bias.?"

_bias = msgspec.json.Decoder(Bias)
_chat = msgspec.json.Decoder(ChatBody)
_text = msgspec.json.Decoder(TextBody)
_embed = msgspec.json.Decoder(EmbedBody)
# Members that client libraries add to the messages of a reply and send back. No dialect refuses them: LiteLLM.
_REPLAYED = frozenset({"provider_specific_fields"})
# Members of a chat that the typed view lacks or that have bounds of their own. Most chats have none.
_SELDOM = frozenset({"functions", "function_call", "safety_identifier", "prompt_cache_key", *RANGES})
# Digits only: `int` also reads `1_0`, ` 7` and `-1`, which are not token ids.
_TOKEN_ID = re.compile(r"[0-9]{1,10}")


def read_chat(
    body: bytes,
    raw: Extra,
    extra: Extra,
    dropped: tuple[str, ...],
    policy: ExtrasPolicy = "pass",
    kind: Kind = Kind.BAD_REQUEST,
    part: PartReader | None = None,
    forms: Mapping[str, Form] = FORMS,
) -> Chat:
    """Reads a chat. `policy` applies to members inside objects that have no canonical name; those that it drops are
    removed from `raw` too. `part` reads content parts, for dialects with other forms than `read_part`; `forms` lists
    the known members of such objects. Tools of the web are left out and named.

    Raises GatewayError: BAD_REQUEST, UNSUPPORTED, or `kind` for members that `policy` refuses.
    """
    part = part or read_part
    try:
        return _chat_op(typed_body(body, _chat), raw, extra, dropped, part)
    except GatewayError:
        rest = decoded(members_of, body) or {}
        with without_web_tools(rest) as taken:
            if taken:
                if raw.pop("tools", None) is not None and "tools" in rest:
                    raw["tools"] = rest["tools"]
                return read_chat(encode(rest), raw, extra, (*dropped, *taken), policy, kind, part, forms)
        unknown = find_unknown(body, ChatBody, forms)
        if unknown is None:
            raise
    found = typed_body(unknown.body, _chat)
    return _settled(unknown, partial(_chat_op, found, raw, part=part), raw, extra, dropped, policy, kind)


def read_text(
    body: bytes, raw: Extra, extra: Extra, dropped: tuple[str, ...], policy: ExtrasPolicy = "pass"
) -> Complete:
    """Reads a text completion. `policy` as for `read_chat`."""
    try:
        return _text_op(typed_body(body, _text), raw, extra, dropped)
    except GatewayError:
        unknown = find_unknown(body, TextBody, FORMS)
        if unknown is None:
            raise
    found = typed_body(unknown.body, _text)
    return _settled(unknown, partial(_text_op, found, raw), raw, extra, dropped, policy)


def typed_body(body: bytes, decoder: msgspec.json.Decoder[Viewed]) -> Viewed:
    """The typed view of a body, as `typed`. An error in `logit_bias` names the token."""
    try:
        return typed(body, decoder)
    except GatewayError as error:
        if error.param != _ANY_BIAS:
            raise
        param = _wrong_bias(body)
        message = error.message.replace(_ANY_BIAS, param)
        raise GatewayError(error.kind, message, param=param, code=error.code) from None


def _wrong_bias(body: bytes) -> str:
    """The parameter of the first bias that is not a number from -100 to 100."""
    for token, bias in msgspec.json.decode(body, type=_BiasIn).logit_bias.items():
        if decoded(_bias.decode, bias) is None:
            return f"logit_bias.{token[:64]}"
    return _ANY_BIAS


def _settled(
    unknown: Unknown,
    read: Callable[..., Read],
    raw: Extra,
    extra: Extra,
    dropped: tuple[str, ...],
    policy: ExtrasPolicy,
    kind: Kind = Kind.BAD_REQUEST,
) -> Read:
    """The request that `read` makes of the extra and dropped members. Unknown members inside its objects are kept or
    dropped by policy; `_REPLAYED` are dropped instead of refused. Errors in the known members are raised first."""
    if policy == "pass":
        op = read(_with_options(extra, unknown.found), dropped, unknown=unknown.found)
        op.unnamed = (*unknown.params, *op.unnamed)
        return op
    op = read(extra, (*dropped, *unknown.params))
    refusable = (param for name, param in unknown.params.items() if name.rpartition(".")[2] not in _REPLAYED)
    sort_extras(policy, refusable, kind=kind)
    raw.update({name: value for name, value in unknown.changed.items() if name in raw})
    return op


def _chat_op(
    found: ChatBody, raw: Extra, extra: Extra, dropped: tuple[str, ...], part: PartReader, unknown: Tree = NOTHING
) -> Chat:
    if extra or not _SELDOM.isdisjoint(raw):
        for name in ("functions", "function_call"):
            if name in raw:
                raise GatewayError(
                    Kind.UNSUPPORTED, f"'{name}' is not supported: use 'tools' and 'tool_choice'", param=name
                )
        refuse_out_of_range(raw, extra)
    if found.max_tokens == 0:
        raise bad_value("max_tokens", "'max_tokens' must be at least 1")
    if found.top_logprobs and not found.logprobs:
        raise bad_value("top_logprobs", "'top_logprobs' is only allowed when 'logprobs' is true")
    op = Chat(
        model=found.model,
        messages=read_messages(found.messages, raw, part, unknown),
        stream=bool(found.stream),
        max_output=found.max_completion_tokens or found.max_tokens,
        sampling=read_sampling(found),
        extra=extra,
        dropped=dropped,
        raw=raw,
        wire="openai",
    )
    if found.max_tokens not in (None, op.max_output):
        op.unnamed = ("max_tokens",)
    _read_seldom(op, found, raw, unknown)
    return op


def _read_seldom(op: Chat, found: ChatBody, raw: Extra, unknown: Tree) -> None:
    """Sets the members of `op` that few chats have: a struct looks for each member that it is made with among all of
    its fields."""
    if found.stream_options is not None:
        op.include_usage = _include_usage(found)
    if found.stop is not None:
        op.stop = read_stop(found)
    if found.n is not None:
        op.n = found.n
    if found.tools:
        op.tools = read_tools(found.tools, inside(unknown, "tools"))
    if found.tool_choice is not None or found.parallel_tool_calls is not None:
        _read_choice(op, found, raw, inside(unknown, "tool_choice"))
    if found.response_format is not None:
        op.output = read_output(found.response_format, inside(unknown, "response_format"))
    if found.reasoning_effort is not None:
        op.reasoning = found.reasoning_effort
    if found.logprobs:
        op.logprobs = Logprobs(found.top_logprobs or 0)
    if found.user is not None:
        op.user = found.user
    if not _SELDOM.isdisjoint(raw):
        op.end_user, op.cache_key = text_of(raw, "safety_identifier"), text_of(raw, "prompt_cache_key")


def _read_choice(op: Chat, found: ChatBody, raw: Extra, unknown: Tree) -> None:
    """The tool that must be called, and whether several may. Without tools both are left out."""
    choice, parallel = read_tool_choice(found.tool_choice, unknown), found.parallel_tool_calls
    if op.tools:
        op.tool_choice, op.parallel_tools = choice, parallel
    else:
        op.dropped = (*op.dropped, *without_tools(choice, parallel, raw))


def _text_op(found: TextBody, raw: Extra, extra: Extra, dropped: tuple[str, ...], unknown: Tree = NOTHING) -> Complete:
    if found.prompt is None:
        raise missing("prompt")
    if found.best_of is not None and found.best_of != (found.n or 1):
        raise GatewayError(Kind.UNSUPPORTED, "'best_of' must equal 'n' here", param="best_of")
    raw.pop("best_of", None)
    refuse_out_of_range(raw, extra)
    return Complete(
        model=found.model,
        prompts=read_prompts(found.prompt, "prompt"),
        stream=bool(found.stream),
        include_usage=_include_usage(found),
        max_output=found.max_tokens,
        sampling=read_sampling(found),
        stop=read_stop(found),
        n=found.n or 1,
        output=read_output(found.response_format, inside(unknown, "response_format")),
        logprobs=Logprobs(found.logprobs) if found.logprobs is not None else None,
        echo=bool(found.echo),
        suffix=found.suffix,
        user=found.user,
        end_user=text_of(raw, "safety_identifier"),
        extra=extra,
        dropped=dropped,
        raw=raw,
        wire="openai",
        cache_key=text_of(raw, "prompt_cache_key"),
    )


def read_embed(body: bytes, raw: Extra, extra: Extra, dropped: tuple[str, ...]) -> Embed:
    found = typed(body, _embed)
    if found.encoding_format not in (None, "float", "base64"):
        raise bad_value("encoding_format", "'encoding_format' must be 'float' or 'base64'")
    return Embed(
        model=found.model,
        inputs=read_prompts(found.input, "input"),
        encoding=found.encoding_format,  # type: ignore[arg-type]  # checked above
        dimensions=found.dimensions,
        user=found.user,
        end_user=text_of(raw, "safety_identifier"),
        extra=extra,
        dropped=dropped,
        raw=raw,
        wire="openai",
    )


def _include_usage(found: Body) -> bool:
    if found.stream_options is None:
        return False
    if not found.stream:
        raise bad_value("stream_options", "'stream_options' is only allowed when 'stream' is true")
    return bool(found.stream_options.include_usage)


def _with_options(extra: Extra, unknown: Tree) -> Extra:
    """`stream_options` has no canonical form, so its unknown members are kept as a top-level member."""
    options = unknown.get("stream_options")
    return {**extra, "stream_options": Raw(encode(options))} if options is not None else extra


def read_stop(found: Body) -> tuple[str, ...]:
    """The member `stop`: one text or several."""
    if found.stop is None:
        return ()
    return (found.stop,) if isinstance(found.stop, str) else tuple(found.stop)


def read_sampling(found: Body) -> Sampling:
    """The parameters of sampling. Raises GatewayError(BAD_REQUEST) for a bias of what is not a token id."""
    bias = None
    if found.logit_bias:
        wrong = [f"'{token[:64]}'" for token in found.logit_bias if not _TOKEN_ID.fullmatch(token)]
        if wrong:
            raise bad_value("logit_bias", f"'logit_bias' keys must be token ids, not {', '.join(wrong[:8])}")
        bias = {int(token): value for token, value in found.logit_bias.items()}
    return Sampling(
        temperature=found.temperature,
        top_p=found.top_p,
        seed=found.seed,
        frequency_penalty=found.frequency_penalty,
        presence_penalty=found.presence_penalty,
        logit_bias=bias,
        top_k=found.top_k,
        min_p=found.min_p,
        repetition_penalty=found.repetition_penalty,
        min_tokens=found.min_tokens,
        ignore_eos=found.ignore_eos,
        stop_tokens=tuple(found.stop_token_ids or ()),
    )


def read_prompts(found: str | list[Any], param: str) -> tuple[str | tuple[int, ...], ...]:
    """A prompt in any of OpenAI's four forms: a string, strings, token ids, arrays of token ids."""
    if isinstance(found, str):
        return (found,)
    kinds = set(map(type, found))
    if kinds == {str}:
        return tuple(found)
    if kinds == {int}:
        return (tuple(found),)
    if kinds == {list} and all(item and min(item) >= 0 for item in found):
        return tuple(tuple(item) for item in found)
    raise bad_value(
        param, f"'{param}' must be a string, an array of strings, an array of token ids or an array of such arrays"
    )


def read_output(found: FormatIn | None, unknown: Tree = NOTHING) -> Output | None:
    """The member `response_format`. Raises GatewayError(BAD_REQUEST)."""
    if found is None:
        return None
    if found.type in ("text", "json_object"):
        if found.json_schema is not None:
            param = "response_format.json_schema"
            raise GatewayError(Kind.BAD_REQUEST, f"'{param}' has no meaning for type {found.type}", param=param)
        return Output("text" if found.type == "text" else "json", extra=as_extra(unknown))
    if found.type == "json_schema" and found.json_schema is not None:
        schema = found.json_schema
        return Output(
            "schema",
            present(schema.schema),
            name=schema.name,
            strict=schema.strict,
            description=schema.description,
            extra=as_extra(unknown),
        )
    forms = "'text', 'json_object' or 'json_schema' (with a 'json_schema' object)"
    raise bad_value("response_format", f"'response_format.type' must be {forms}")
