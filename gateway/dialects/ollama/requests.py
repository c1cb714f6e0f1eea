"""Requests of Ollama's API to canonical ones."""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn

from msgspec import Raw, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from gateway.core.errors import GatewayError, Kind
from gateway.core.fields import ExtrasPolicy
from gateway.core.http import Request
from gateway.core.messages import (
    Chat,
    Complete,
    Embed,
    Extra,
    ListModels,
    Logprobs,
    Message,
    Op,
    Output,
    Sampling,
    Text,
)
from gateway.dialects._shared.api import Api
from gateway.dialects._shared.faults import unsupported, wrong
from gateway.dialects._shared.objects import take_object
from gateway.dialects.ollama import models
from gateway.dialects.ollama.conversation import pictures, read_messages
from gateway.dialects.ollama.fields import OPTIONAL, OPTIONS
from gateway.dialects.ollama.views import Body, ChatBody, EmbedBody, GenerateBody, NameIn, OptionsIn
from gateway.wire import clock
from gateway.wire.json import NULL, bad_value, check_depth, decoded, encode, members, missing, typed
from gateway.wire.openai.requests.constraints import constrain
from gateway.wire.openai.requests.messages import function_tool
from gateway.wire.openai.requests.web_tools import without_web_tools
from gateway.wire.unknown import read_known

OPERATIONS = {"chat": "chat", "generate": "complete", "embed": "embed", "embeddings": "embed"}
"""Route of a request to a model -> the operation whose field table it has."""

_chat = Decoder(ChatBody)
_generate = Decoder(GenerateBody)
_embed = Decoder(EmbedBody)
_name = Decoder(NameIn)
_inputs = Decoder(str | list[str]).decode


class _Options(Struct):
    options: OptionsIn


_options = Decoder(_Options)
_LATEST = ":latest"
_OPTIONS = OptionsIn.__struct_fields__
_LEVELS = {"low": "low", "medium": "medium", "high": "high", "max": "high"}
_EMPTY = (b"null", b'""', b"0", b'"0"', b'"0s"', b"0.0")
_FOREIGN = ("max_output_tokens", "tool_choice")
_MOST_TOP, _MOST_INPUTS = 20, 2048


class ReplyFacts(Struct, frozen=True):
    """The facts of a request that its reply needs.

    route   chat | generate | embed | embeddings
    quiet   the client wants no thinking, so a worker's thinking is left out
    began   the time when it was read, in nanoseconds of `wire.clock`
    model   the client's name of the model
    """

    route: str
    quiet: bool
    began: int
    model: str

    @classmethod
    def of(cls, op: Op) -> ReplyFacts:
        """The facts of the request that `op` was read from. A request without a model has the default one by now."""
        found = op.facts(cls)
        return found if found.model else replace(found, model=op.model or "")


def names(model: str | None) -> tuple[str, ...]:
    """The names that `model` may have in the configuration: `m` and `m:latest` are one model."""
    if not model:
        return ()
    return (model, model.removesuffix(_LATEST) if model.endswith(_LATEST) else model + _LATEST)


def read(request: Request, raw: Extra, api: Api) -> Op | ListModels:
    """Reads a request to a model. A request without content loads or unloads the model, so it is answered here. Raises
    GatewayError(BAD_REQUEST, UNSUPPORTED)."""
    policy, operation = api.extras, OPERATIONS[request.route]
    if raw.get("_debug_render_only") == Raw(b"true"):
        raise unsupported("_debug_render_only", "is not supported: the template is the worker's")
    options: OptionsIn | None = None
    left: list[str] = []
    if "options" in raw and operation != "embed":
        own, left = take_object(raw, "options", _OPTIONS, OPTIONS, policy, operation)
        options = typed(encode({"options": own}), _options).options
    # The AI SDK sends these here, although Ollama does not read them here. Its own temperature goes before this one.
    habits = _FOREIGN if options is None or options.temperature is None else (*_FOREIGN, "temperature")
    foreign = [name for name in habits if policy != "error" and raw.pop(name, None) is not None]
    extra, dropped = api.settle(raw, operation)
    left = [*dropped, *foreign, *left]
    op = _read_embed(raw, request.route) if operation == "embed" else _read_text(raw, options, left, operation, policy)
    if op is None:
        return _without_model(raw, request.route, tuple(left))
    op.extra = extra if isinstance(op, Embed) else constrain(op, extra)
    op.model_hints = names(op.model)
    quiet = isinstance(op, Chat) and op.reasoning == "none"
    op.memo = ReplyFacts(request.route, quiet, clock.nanoseconds(), op.model or "")
    op.dropped = tuple(left)
    return op


def read_name(request: Request) -> ListModels:
    """Reads a request to show or to pull a model. Raises GatewayError(BAD_REQUEST)."""
    found = typed(encode(members(request)), _name)
    name = _required(found.model or found.name)
    write = partial(models.show, name) if request.route == "show" else models.pulled
    return ListModels(write=write, model=name, names=names(name))


def refuse_managing(request: Request) -> NoReturn:
    """Refuses what would change the models."""
    message = f"{request.route} is not possible here: the gateway's configuration says which models there are"
    raise GatewayError(Kind.FORBIDDEN, message, code="not_managed_here")


def _required(model: str | None) -> str:
    if not model:
        raise missing("model", "model is required")
    return model


def _without_model(raw: Extra, route: str, dropped: tuple[str, ...]) -> ListModels:
    """The reply to a request that needs no model."""
    model = _required(typed(encode({"model": raw.get("model", NULL)}), _name).model)
    unload = bytes(raw.get("keep_alive", Raw(b"5"))) in _EMPTY[2:]
    write = partial(models.nothing_asked, route, model, "unload" if unload else "load")
    return ListModels(write=write, model=model, names=names(model), dropped=dropped)


# -- chats and generations --------------------------------------------------------------------------------------------


def _read_text(
    raw: Extra, options: OptionsIn | None, left: list[str], operation: str, policy: ExtrasPolicy
) -> Chat | Complete | None:
    """The chat or generation; None if it has no content. Adds what has no place to `left`."""
    found: Body
    op: Chat | Complete | None
    if operation == "chat":
        with without_web_tools(raw) as taken:
            talk, unknown = read_known(raw, _chat, policy)
        left += taken
        found, op = talk, _talk(talk)
    else:
        generation, unknown = read_known(raw, _generate, policy)
        found, op = generation, _generation(generation)
    left += unknown
    if op is None:
        return None
    op.stream = op.include_usage = found.stream is not False
    op.output = _read_format(found.format)
    if found.logprobs:
        if not 0 <= (found.top_logprobs or 0) <= _MOST_TOP:
            raise bad_value("top_logprobs", f"top_logprobs must be between 0 and {_MOST_TOP}")
        op.logprobs = Logprobs(found.top_logprobs or 0)
    elif found.top_logprobs:
        left.append("top_logprobs")
    if options is not None:
        _sample(op, options)
    if isinstance(op, Chat):
        op.optional = OPTIONAL
        _think(op, found.think)
    elif found.think:
        left.append("think")
    return op


def _talk(found: ChatBody) -> Chat | None:
    if not found.messages:
        return None
    tools = tuple([function_tool(tool.function) for tool in found.tools or ()])
    return Chat(model=found.model, messages=read_messages(found.messages), tools=tools)


def _generation(found: GenerateBody) -> Chat | Complete | None:
    if found.raw and (found.template or found.system or found.context or found.images):
        raise bad_value("raw", "raw mode does not support template, system, context or images")
    if found.template:
        raise unsupported("template", "is not supported: the template is the worker's")
    if found.context:
        raise unsupported(
            "context", "is not supported: no worker has the tokens of a former turn; send the conversation to /api/chat"
        )
    if not (found.prompt or found.images or found.suffix):
        return None
    if found.raw or found.suffix:
        if found.system or found.images:
            raise unsupported("suffix", "is not supported: it does not go with system or images")
        return Complete(model=found.model, prompts=(found.prompt or "",), suffix=found.suffix or None)
    system = [Message("system", (Text(found.system),))] if found.system else []
    content = (*pictures(found.images, "images"), Text(found.prompt or ""))
    return Chat(model=found.model, messages=(*system, Message("user", content)))


def _sample(op: Chat | Complete, options: OptionsIn) -> None:
    seed = options.seed
    op.sampling = Sampling(
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        min_p=options.min_p,
        seed=seed if seed is not None and seed >= 0 else None,
        repetition_penalty=options.repeat_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
    )
    limit = options.num_predict
    op.max_output = min(limit, 2**31 - 1) if limit is not None and limit > 0 else None
    stop = [options.stop] if isinstance(options.stop, str) else options.stop or []
    op.stop = tuple(text for text in stop if text)


def _think(op: Chat, think: bool | str | None) -> None:
    if think is None or think == "":
        return
    if think is False:
        op.reasoning = "none"
        op.optional = {**op.optional, "reasoning_effort": "think"}
        return
    effort = "medium" if think is True else _LEVELS.get(think.lower())
    if effort is None:
        raise bad_value("think", "invalid think value: it must be true, false, high, medium, low or max")
    op.reasoning = effort


def _read_format(found: Raw) -> Output | None:
    text = bytes(found)
    if text in _EMPTY[:2]:
        return None
    if text == b'"json"':
        return Output("json")
    if text.startswith(b"{"):
        check_depth({"format": found})
        return Output("schema", found, name="output", strict=True)
    raise wrong("format", 'must be "json" or a JSON schema')


# -- embeddings -------------------------------------------------------------------------------------------------------


def _read_embed(raw: Extra, route: str) -> Embed | None:
    found = typed(encode(raw), _embed)
    inputs: Any = None
    if route == "embed" and found.input != NULL:
        inputs = decoded(_inputs, found.input)
        if inputs is None:
            raise bad_value("input", "invalid input type")
    inputs = found.prompt if inputs is None else inputs
    if not inputs:
        return None
    texts = (inputs,) if isinstance(inputs, str) else tuple(inputs)
    if len(texts) > _MOST_INPUTS:
        raise wrong("input", f"must have at most {_MOST_INPUTS} texts")
    return Embed(
        model=found.model,
        inputs=texts,
        encoding="float",
        dimensions=found.dimensions,
        truncate=found.truncate is not False,
    )
